//! A foreign scheduler keeps a cluster at its own database for as long as it runs: a controller inside a program.
//!
//! ```text
//! cargo run --example controller
//! ```

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use spur_sdk::Deadlines;
use spur_sdk_quota::cluster::{ControllerOptions, QuotaController, Report};
use spur_sdk_quota::k8s::KubeApi;
use spur_sdk_quota::source::{Source, SourceError};
use spur_sdk_quota::{CancellationToken, Completeness, Model, ModelError, Origin, Policy};
use spur_test_control_plane::ControlPlane;
use tokio::sync::{mpsc, watch};

/// The scheduler's projects and the cores that each has. Whoever changes them wakes up who watches.
#[derive(Clone)]
struct Database(watch::Sender<BTreeMap<&'static str, u32>>);

impl Database {
    fn model(&self) -> Result<Model, ModelError> {
        let mut model = Model::default();
        for (project, cores) in self.0.borrow().iter() {
            model.add_account(&Origin::store("projects"), project, None, &format!("cpu={cores}"))?;
            model.add_member(&Origin::store("projects"), project, "alice")?;
        }
        // Everything was read: a project that is missing was closed.
        model.completeness = Completeness::Full;
        Ok(model)
    }
}

/// A source that is read once for each change, and never misses one.
struct Watched(Database, std::sync::Mutex<watch::Receiver<BTreeMap<&'static str, u32>>>);

impl Watched {
    fn receiver(&self) -> std::sync::MutexGuard<'_, watch::Receiver<BTreeMap<&'static str, u32>>> {
        self.1.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Source for Watched {
    fn name(&self) -> String {
        "projects".to_owned()
    }

    async fn read(&self) -> Result<Model, SourceError> {
        self.receiver().mark_unchanged();
        self.0.model().map_err(|error| SourceError::Store { store: self.name(), source: error.into() })
    }

    async fn changed(&self) {
        let mut changes = self.receiver().clone();
        // Ends with an error when the database is gone; then nothing changes any more.
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[expect(clippy::print_stdout, reason = "this is a program")]
#[tokio::main]
async fn main() -> Result<()> {
    // A real API server for this example; a scheduler has one, and `kube::Client::try_default()`.
    let control_plane = ControlPlane::start().await?;
    let client = KubeApi::new(control_plane.client().await?, Deadlines::default());
    let database = Database(watch::Sender::new(BTreeMap::from([("climate", 64), ("ocean", 32)])));
    let source = Watched(database.clone(), std::sync::Mutex::new(database.0.subscribe()));

    let (sender, mut reports) = mpsc::channel(100);
    let shutdown = CancellationToken::new();
    let controller = QuotaController::with(ControllerOptions::default().reports(sender));
    let stop = shutdown.clone();
    let running =
        tokio::spawn(async move { controller.serve(source, client, Policy::default(), stop).await });

    let mut settled = 0;
    while settled < 2 {
        let report = reports.recv().await.context("the controller has ended")?;
        println!("{report}");
        if report == Report::Settled {
            settled += 1;
            // What the scheduler does all day.
            database.0.send_modify(|projects| projects.extend([("ocean", 48)]));
        }
    }
    shutdown.cancel();
    running.await??;
    control_plane.stop().await
}
