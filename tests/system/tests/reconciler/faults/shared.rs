//! Each fault at each request for what all accounts share: roles, the guard, the users' namespace.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use spur_sdk_quota::cluster::{ControllerOptions, Key, Kind};
use spur_sdk_quota::k8s::Object;
use spur_sdk_quota::{Model, Policy, Projection, QuotaProjector, names};
use spur_system_tests::model;
use spur_system_tests::proxy::Proxy;
use spur_system_tests::reconciler::{Running, Store};
use spur_system_tests::witness::Witness;
use spur_test_control_plane::ControlPlane;
use tokio::time::sleep;

use super::{Armed, REQUEST_FAULTS, hasty};
use crate::accounts;

/// Changes by somebody else, of every object that all accounts share.
fn edits(projection: &Projection) -> Vec<(Key, Value)> {
    let label = json!({ "metadata": { "labels": { names::MANAGED_BY: "somebody" } } });
    let level = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "privileged" } } });
    let edit = |object: &Object| {
        let kind = match object {
            Object::Namespace(_) => {
                return Some((Key::cluster(Kind::Namespace, object.name()), level.clone()));
            }
            Object::ClusterRole(_) => Kind::ClusterRole,
            Object::ValidatingAdmissionPolicy(_) => Kind::ValidatingAdmissionPolicy,
            Object::ValidatingAdmissionPolicyBinding(_) => Kind::ValidatingAdmissionPolicyBinding,
            _ => return None,
        };
        Some((Key::cluster(kind, object.name()), label.clone()))
    };
    projection.shared.iter().filter_map(edit).collect()
}

/// A site where everything is in step, and what was asked for all that accounts share to get there.
struct Scene {
    control_plane: ControlPlane,
    witness: Witness,
    model: Model,
    edits: Vec<(Key, Value)>,
    armed: Armed,
    running: Running,
    lines: BTreeSet<String>,
    _proxy: Proxy,
}

impl Scene {
    async fn up() -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        let policy = Policy::default();
        let witness = Witness::start(&control_plane.client().await?, &policy).await?;
        let proxy = Proxy::start(control_plane.client().await?).await?;
        let armed = Armed::default();
        armed.over(&proxy);
        let text = accounts(&["one"]);
        let model = model(&text)?;
        witness.hears(&model).await?;
        let api = hasty(proxy.client()?);
        let mut running = Running::start_on(Store::of(&text)?, api, &policy, ControllerOptions::default());
        witness.in_step(&model, Duration::from_secs(30)).await?;
        running.settled().await?;
        let lines = proxy
            .asked()
            .into_iter()
            .map(|asked| asked.request)
            .filter(|request| !request.is_watch() && !request.is_of_lease() && !request.is_of_event())
            .map(|request| request.line())
            .filter(|line| !line.contains("spur-acct-") && !line.contains("/serviceaccounts/"))
            .filter(|line| !line.starts_with("GET") || line.contains("metadata.name=spur-guard"))
            .collect();
        let edits = edits(&QuotaProjector::new(&policy).project(&model));
        Ok(Self { control_plane, witness, model, edits, armed, running, lines, _proxy: proxy })
    }

    /// Has each of these fail in each way, each in another way at a time.
    async fn outlasts(self, lines: impl Fn(&str) -> bool) -> Result<()> {
        let lines: Vec<_> = self.lines.iter().filter(|line| lines(line)).collect();
        let mut total = 0;
        for round in 0..REQUEST_FAULTS.len() {
            let start = Instant::now();
            for (place, line) in lines.iter().enumerate() {
                let fault = REQUEST_FAULTS[(place + round) % REQUEST_FAULTS.len()];
                self.armed.arm((*line).clone(), 0, fault);
            }
            for (key, patch) in &self.edits {
                ensure!(self.witness.edit(key, patch.clone()).await?, "{key} is not there");
            }
            self.witness.in_step(&self.model, Duration::from_secs(30)).await?;
            // The last request asks for the guard, once all of it is written.
            while !self.armed.have_struck_all() && start.elapsed() < Duration::from_secs(30) {
                sleep(Duration::from_millis(50)).await;
            }
            let (count, waiting) = self.armed.disarm();
            ensure!(waiting.is_empty(), "never asked in round {round}: {waiting:#?}");
            total += count;
        }
        println!("{total} of {} pairs of fault and request", lines.len() * REQUEST_FAULTS.len());
        let wrong = self.witness.verdict().await?;
        ensure!(wrong.is_empty(), "{wrong:#?}");
        self.running.stop().await?;
        self.control_plane.stop().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_any_write_of_what_all_share_delays_it_and_does_no_harm() -> Result<()> {
    Scene::up().await?.outlasts(|line| line.starts_with("PATCH")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_any_question_whether_the_guard_is_in_force_has_it_asked_again() -> Result<()> {
    Scene::up().await?.outlasts(|line| !line.starts_with("PATCH")).await
}
