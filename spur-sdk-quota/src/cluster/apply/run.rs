//! The accounts of one run: written several at a time, let in as their quotas bind.

use std::collections::{BTreeMap, VecDeque};

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt, stream};
use serde_json::Value;
use spur_sdk::error_chain;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, sleep_until};

use super::report::{AccountOutcome, AccountReport, ApplyReport};
use super::steps::{Writes, admit, carry_out, restrict};
use super::{ApplyOptions, Progress, guard};
use crate::cluster::diff::binds;
use crate::cluster::plan::{AccountPlan, Action, Plan, Step};
use crate::cluster::{ApiError, ClusterApi, Kind, Selection, StepError, WatchEvent};
use crate::project::names;

/// One of the writes that restrict, or that nothing depends on.
enum Written<'p> {
    /// A user's ServiceAccount.
    User(Result<Writes, StepError>),
    /// An account: its writes, and what failed.
    Account(&'p AccountPlan, Writes, Option<StepError>),
}

/// The accounts of one run.
pub(super) struct Run<'p, 'r, A> {
    plan: &'p Plan,
    api: &'p A,
    options: &'p ApplyOptions,
    report: &'r mut ApplyReport,
    start: Instant,
    /// The status of quotas as last seen, by namespace and name.
    seen: BTreeMap<(String, String), Value>,
    /// The identity of quotas that this run wrote, by namespace and name.
    uids: BTreeMap<(String, String), String>,
    /// What the watch of quotas last failed with.
    blind: Option<String>,
    /// Written, and the quota does not bind yet; by namespace.
    waiting: BTreeMap<&'p str, &'p AccountPlan>,
    /// Written, and the quota binds.
    ready: VecDeque<&'p AccountPlan>,
    written: usize,
}

impl<'p, 'r, A: ClusterApi> Run<'p, 'r, A> {
    pub(super) fn new(
        plan: &'p Plan,
        api: &'p A,
        options: &'p ApplyOptions,
        report: &'r mut ApplyReport,
        start: Instant,
    ) -> Self {
        Self {
            plan,
            api,
            options,
            report,
            start,
            seen: BTreeMap::new(),
            uids: BTreeMap::new(),
            blind: None,
            waiting: BTreeMap::new(),
            ready: VecDeque::new(),
            written: 0,
        }
    }

    pub(super) async fn go(mut self, users: Vec<&'p Step>) {
        let (plan, api, options) = (self.plan, self.api, self.options);
        // Users' ServiceAccounts depend on nothing, and nothing but a token depends on them.
        let users = users
            .into_iter()
            .map(|step| async move { Written::User(carry_out(api, step, options).await) }.left_future());
        let accounts = plan.accounts.iter().map(|account| {
            restrict(account, api, options)
                .map(|(account, writes, failed)| Written::Account(account, writes, failed))
                .right_future()
        });
        let mut writes = stream::iter(users.chain(accounts)).buffer_unordered(options.concurrency.max(1));
        let mut admits = FuturesUnordered::new();
        let watched = plan.accounts.iter().any(|account| account.wait);
        let (events, mut watch) = unbounded_channel();
        let mut following = std::pin::pin!(follow_quotas(api, events));
        let lets_in = plan.accounts.iter().any(|account| !account.admit.is_empty());
        let touched = plan.shared.iter().any(|step| step.target.name.starts_with(names::GUARD));
        let answer = plan.guard.as_deref().filter(|_| lets_in || touched);
        let written = plan.shared.iter().filter(|step| {
            step.target.kind == Kind::ValidatingAdmissionPolicy
                && !matches!(step.action, Action::Delete { .. })
        });
        let policies: Vec<_> = written.map(|step| step.target.clone()).collect();
        let verified = guard::verify(&policies, answer, api, options.binding_timeout);
        let mut guard = std::pin::pin!(verified);
        let mut guarded = !self.report.shared.is_empty();
        let mut stalled = after(options.binding_timeout);
        let mut writing = true;
        loop {
            while guarded
                && admits.len() < options.concurrency.max(1)
                && let Some(account) = self.ready.pop_front()
            {
                match self.report.shared.first() {
                    Some(error) if !account.admit.is_empty() => {
                        tracing::debug!(error = %error_chain(error), "account waits for what all share");
                        let reason =
                            "what all accounts share is not in place (see above); run again to go on";
                        let reason = reason.to_owned();
                        self.end(account, AccountOutcome::NotLetIn { reason });
                    }
                    _ => admits.push(admit(account, api, options)),
                }
            }
            let idle = !writing && admits.is_empty() && self.ready.is_empty();
            if guarded && idle && self.waiting.is_empty() {
                break;
            }
            tokio::select! {
                // Each branch only polls something that lives on; dropping a poll loses nothing.
                done = writes.next(), if writing => match done {
                    Some(Written::User(result)) => {
                        let failed = self.report.count(result);
                        self.report.users.extend(failed);
                    }
                    Some(Written::Account(account, writes, failed)) => {
                        self.wrote(account, writes, failed);
                        stalled = after(options.binding_timeout);
                    }
                    None => {
                        writing = false;
                        self.report.written_ms = milliseconds(self.start.elapsed());
                    }
                },
                Some((account, writes, failed)) = admits.next(), if !admits.is_empty() => {
                    self.report.writes = self.report.writes.saturating_add(writes.count);
                    let failed = failed.map(|error| AccountOutcome::Failed { error });
                    self.end(account, failed.unwrap_or(AccountOutcome::Applied));
                }
                verified = &mut guard, if !guarded => {
                    guarded = true;
                    self.report.shared.extend(verified.err());
                }
                () = &mut following, if watched => {}
                Some(event) = watch.recv() => match event {
                    Ok(quota) => {
                        self.blind = None;
                        if self.quota_seen(quota) {
                            stalled = after(options.binding_timeout);
                        }
                    }
                    Err(error) => self.blind = Some(error_chain(&error)),
                },
                () = sleep_until(stalled), if guarded && idle && !self.waiting.is_empty() => self.give_up(),
            }
        }
        let whole = milliseconds(self.start.elapsed());
        self.report.binding_ms = whole.saturating_sub(self.report.written_ms);
    }

    fn wrote(&mut self, account: &'p AccountPlan, writes: Writes, failed: Option<StepError>) {
        self.report.writes = self.report.writes.saturating_add(writes.count);
        let quotas = writes.written.into_iter().filter(|written| written.key.kind == Kind::ResourceQuota);
        self.uids.extend(quotas.map(|quota| ((account.namespace.clone(), quota.key.name), quota.uid)));
        self.written = self.written.saturating_add(1);
        if let Some(error) = failed {
            return self.end(account, AccountOutcome::Failed { error });
        }
        if !account.wait || self.binds(account) {
            self.ready.push_back(account);
        } else {
            self.waiting.insert(&account.namespace, account);
        }
        self.tell();
    }

    /// Takes in a quota's status; says whether an account became ready by it.
    fn quota_seen(&mut self, quota: Value) -> bool {
        let text = |pointer| quota.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let (Some(namespace), Some(name)) = (text("/metadata/namespace"), text("/metadata/name")) else {
            return false;
        };
        self.seen.insert((namespace.clone(), name), quota);
        match self.waiting.get(namespace.as_str()).copied() {
            Some(account) if self.binds(account) => {
                self.waiting.remove(namespace.as_str());
                self.ready.push_back(account);
                true
            }
            _ => false,
        }
    }

    fn binds(&self, account: &AccountPlan) -> bool {
        account.quotas.iter().all(|wanted| {
            let name = wanted.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            let key = (account.namespace.clone(), name.to_owned());
            let uid = |live: &Value| live.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
            self.seen.get(&key).is_some_and(|live| {
                self.uids.get(&key).is_none_or(|written| uid(live).as_ref() == Some(written))
                    && binds(wanted, live)
            })
        })
    }

    fn give_up(&mut self) {
        let seconds = self.options.binding_timeout.as_secs();
        for account in std::mem::take(&mut self.waiting).into_values() {
            let cause = match &self.blind {
                Some(error) => format!("the quotas cannot be watched: {error}"),
                None => "is the controller manager running?".to_owned(),
            };
            let reason = format!(
                "written, not let in: the quota does not bind {seconds} s after the last one did ({cause}); run again \
                 to go on"
            );
            self.end(account, AccountOutcome::NotLetIn { reason });
        }
    }

    fn end(&mut self, account: &AccountPlan, outcome: AccountOutcome) {
        let error = match &outcome {
            AccountOutcome::Failed { error } => Some(error_chain(error)),
            AccountOutcome::NotLetIn { reason } => Some(reason.clone()),
            AccountOutcome::Applied => None,
        };
        if let Some(error) = error {
            tracing::warn!(account = %account.account, error, "account is not in step");
        }
        self.report.accounts.push(AccountReport { account: account.account.clone(), outcome });
        self.tell();
    }

    fn tell(&self) {
        if let Some(call) = &self.options.progress {
            call(Progress {
                accounts: self.plan.accounts.len(),
                written: self.written,
                done: self.report.accounts.len(),
            });
        }
    }
}

/// Tells quotas of ours, first as they are and then as they change, for ever: a watch that ends is begun anew, after
/// a pause.
async fn follow_quotas<A: ClusterApi>(api: &A, events: UnboundedSender<Result<Value, ApiError>>) {
    loop {
        let tell = |event| {
            if let WatchEvent::Changed(quota) = event {
                // Nobody listens any more when the run is over.
                let _ = events.send(Ok(quota));
            }
        };
        if let Err(error) = api.watch(Kind::ResourceQuota, Selection::Ours, "0", tell).await {
            let _ = events.send(Err(error));
        }
        sleep(Duration::from_millis(500)).await;
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The moment after a while; a century where the clock cannot hold it.
fn after(duration: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_hours(24 * 36_500);
    let now = Instant::now();
    now.checked_add(duration.min(CENTURY)).unwrap_or(now)
}
