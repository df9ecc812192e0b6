//! Carries out a plan. It decides nothing.

pub(super) mod guard;
mod report;
mod run;
pub(super) mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ClusterApi;
use super::plan::{Plan, Refusal, check_plan};

pub use report::{AccountOutcome, AccountReport, ApplyReport};

/// How a plan is carried out.
#[derive(Clone)]
#[non_exhaustive]
pub struct ApplyOptions {
    /// Accounts that are written at the same time. Default: 64.
    pub concurrency: usize,
    /// How long to wait for quotas to bind after the last one did. Default: 60 s.
    ///
    /// The controller manager fills in the status of quotas at its own pace, so the time for all of them grows
    /// with their number; what this limits is standing still.
    pub binding_timeout: Duration,
    /// Called after each account; must return at once.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl Default for ApplyOptions {
    fn default() -> Self {
        Self { concurrency: 64, binding_timeout: Duration::from_mins(1), progress: None }
    }
}

impl fmt::Debug for ApplyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApplyOptions")
            .field("concurrency", &self.concurrency)
            .field("binding_timeout", &self.binding_timeout)
            .finish_non_exhaustive()
    }
}

impl ApplyOptions {
    /// Sets how many accounts are written at the same time.
    #[must_use]
    pub fn concurrency(mut self, value: usize) -> Self {
        self.concurrency = value.max(1);
        self
    }

    /// Sets how long to wait for quotas to bind after the last one did.
    #[must_use]
    pub fn binding_timeout(mut self, value: Duration) -> Self {
        self.binding_timeout = value;
        self
    }

    /// Sets what is called after each account.
    #[must_use]
    pub fn progress(mut self, call: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(call));
        self
    }
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Accounts with something to do.
    pub accounts: usize,
    /// Of those, accounts whose restricting objects are written, or that failed.
    pub written: usize,
    /// Of those, accounts that are done.
    pub done: usize,
}

/// Carries out a plan: what is shared and what restricts first, and when the tenant guard and an account's quota
/// bind, who is let in. Accounts are independent: one that fails does not stop the others.
///
/// # Cancellation
/// Leaves written what has been written. Nobody is let in before the quota binds, whenever it is cut; the next
/// run goes on from there.
pub async fn apply<A: ClusterApi>(plan: &Plan, api: &A, options: &ApplyOptions) -> ApplyReport {
    let start = Instant::now();
    let mut report = ApplyReport {
        unchanged: plan.unchanged,
        refused: plan.refused.clone(),
        over_quota: plan.over_quota.clone(),
        unlisted: plan.unlisted.clone(),
        paused: plan.paused.clone(),
        ..ApplyReport::default()
    };
    for finding in check_plan(plan) {
        report.refused.push(Refusal { account: None, reason: format!("unsafe plan: {finding}") });
    }
    if report.refused.iter().any(|refusal| refusal.account.is_none()) {
        return report;
    }
    // Roles and guard come before everything, a few writes whatever the number of accounts.
    let (first, users): (Vec<_>, Vec<_>) =
        plan.shared.iter().partition(|step| step.target.namespace.is_none());
    for step in first {
        let failed = report.count(steps::carry_out(api, step, options).await);
        report.shared.extend(failed);
    }
    run::Run::new(plan, api, options, &mut report, start).go(users).await;
    report.shared.sort();
    report.users.sort();
    report.accounts.sort_by(|a, b| a.account.cmp(&b.account));
    report
}
