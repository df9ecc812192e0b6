//! Keeps a cluster at what a source says, for years.

mod cache;
mod fenced;
mod judge;
#[cfg(feature = "metrics")]
mod metrics;
mod options;
mod pace;
mod report;
mod tell;
mod telling;
mod term;
mod units;
mod work;

use std::sync::Arc;

use spur_sdk::error_chain;
use tokio_util::sync::CancellationToken;

use self::cache::Cache;
use self::fenced::Fenced;
use self::tell::Teller;
use self::term::Term;
use super::lease::{Elector, Fence};
use super::{ClusterApi, EventApi, LeaseApi};
use crate::policy::Policy;
use crate::source::Source;

#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use options::{ControllerError, ControllerOptions, SHORTEST_GRACE};
pub use report::{Counts, Report, State, Status, Trouble};

/// Watches a source and what we own in a cluster, and writes the differences.
///
/// ```no_run
/// use spur_sdk_quota::cluster::QuotaController;
/// use spur_sdk_quota::k8s::{KubeApi, kube};
/// use spur_sdk_quota::source::{FileSource, ReadOptions};
/// use spur_sdk_quota::{CancellationToken, Policy};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let source = FileSource::new("accounts.toml", ReadOptions::default());
/// let client = KubeApi::new(kube::Client::try_default().await?, spur_sdk::Deadlines::default());
/// let shutdown = CancellationToken::new();
/// QuotaController::run(source, client, Policy::default(), shutdown).await?;
/// # Ok(())
/// # }
/// ```
///
/// # What it does
///
/// - A change of the source is written, changed accounts first. Only objects that differ are touched.
/// - What somebody else changes of what is ours is put back. Annotation `spur.amd.com/paused` on a namespace suspends
///   that.
/// - Accounts and members that vanish from a source that was read in full are taken out: access is removed, the quota
///   closed, the namespace labelled `spur.amd.com/state=retired`. Nothing is deleted, unless a grace period is set. So
///   many at once are held until somebody confirms them: see [`Removals`](super::Removals).
/// - Faults of the API server and of the source delay it. What a source said last stays in force until it says
///   something else that can be understood.
/// - Of several replicas one leads, by a Lease; the others do nothing. Every write is sent only while the Lease is
///   ours, and every delete asks the server for it first.
///
/// It needs a runtime of tokio with timers, and computes projections on its threads for blocking work.
///
/// # Permissions
///
/// Those of [`apply`](super::apply), and: `watch` on what is listed; `delete` on serviceaccounts in `spur-users`;
/// `get`, `create` and `update` on the Lease; `create` on events. With a grace period, `list` on pods and
/// persistentvolumeclaims, and `delete` on namespaces.
#[derive(Debug, Default)]
pub struct QuotaController {
    options: ControllerOptions,
}

impl QuotaController {
    /// Runs with default options until it is told to stop.
    ///
    /// # Errors
    /// Never: faults are reported and outlasted.
    ///
    /// # Cancellation
    /// As [`serve`](Self::serve).
    pub async fn run<S, A>(
        source: S,
        client: A,
        policy: Policy,
        shutdown: CancellationToken,
    ) -> Result<(), ControllerError>
    where
        S: Source,
        A: ClusterApi + LeaseApi + EventApi,
    {
        Self::default().serve(source, client, policy, shutdown).await
    }

    /// A controller with options of its own.
    #[must_use]
    pub fn with(options: ControllerOptions) -> Self {
        Self { options }
    }

    /// Runs until it is told to stop; then gives the Lease back.
    ///
    /// # Errors
    /// [`ControllerError`] at once, when an option has no sense. Faults of source and cluster are reported and
    /// outlasted.
    ///
    /// # Cancellation
    /// Dropped at any moment it leaves written what has been written; nobody is let in before the quota binds, whenever
    /// it is cut. The next run goes on from there. The Lease then runs out instead of being given back.
    pub async fn serve<S, A>(
        &self,
        source: S,
        client: A,
        policy: Policy,
        shutdown: CancellationToken,
    ) -> Result<(), ControllerError>
    where
        S: Source,
        A: ClusterApi + LeaseApi + EventApi,
    {
        self.options.check()?;
        let policy = Arc::new(policy);
        let mut teller = Teller::new(&self.options);
        let Some(settings) = &self.options.lease else {
            let fenced = Fenced { api: &client, lease: None };
            let cache = Cache::default();
            teller.tell(Report::Leading);
            let term = Term::new(&source, &fenced, &policy, &self.options, &cache, &mut teller);
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = term.run() => {}
            }
            return Ok(());
        };
        let fence = Fence::shut();
        let mut elector = Elector::new(&client, settings, &*self.options.clock, &fence);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = follow(&mut elector, &mut teller) => {}
            }
            teller.tell(Report::Leading);
            let fenced = Fenced { api: &client, lease: Some((settings, &fence)) };
            let cache = Cache::default();
            let term = Term::new(&source, &fenced, &policy, &self.options, &cache, &mut teller);
            let stop = tokio::select! {
                biased;
                () = shutdown.cancelled() => true,
                // Before the work, so that a process that was stopped notices first.
                () = elector.hold() => false,
                () = term.run() => false,
            };
            teller.forget_events();
            teller.status = Status::default();
            teller.publish();
            if stop {
                elector.release().await;
                return Ok(());
            }
        }
    }
}

/// Waits for the Lease, and says so.
async fn follow<A: LeaseApi>(elector: &mut Elector<'_, A>, teller: &mut Teller<'_>) {
    let mut last: Option<Report> = None;
    let say = |seen: Result<&str, &super::ApiError>| {
        let (leader, trouble) = match seen {
            Ok(leader) => (leader.to_owned(), None),
            Err(error) => (String::new(), Some(error_chain(error))),
        };
        teller.status = Status { lease_error: trouble.clone(), ..Status::default() };
        teller.publish();
        let report = Report::Following { leader, trouble };
        if last.as_ref() != Some(&report) {
            teller.tell(report.clone());
            last = Some(report);
        }
    };
    elector.acquire(say).await;
}
