//! One term of leadership: the loop that keeps the projection true.

mod wanted;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use spur_sdk::error_chain;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::ControllerOptions;
use super::cache::Cache;
use super::fenced::Fenced;
use super::judge::{Guard, Judged, Ready};
use super::pace::pause;
use super::report::{Report, State};
use super::tell::Teller;
use super::units::{Mark, Unit, Units};
use super::work::{self, Done};
use crate::cluster::observe::LISTS;
use crate::cluster::plan::Desired;
use crate::cluster::{ApiError, ApplyOptions, ClusterApi, EventApi, Kind, LeaseApi, PlanOptions, Removals};
use crate::model::Model;
use crate::policy::Policy;
use crate::project::{Projection, names};
use crate::source::Source;

/// What the loop goes round at least, so that its health can be told.
pub(super) const TICK: Duration = Duration::from_secs(10);

/// How long units are looked at before other things get a turn.
const LONGEST_ROUND: Duration = Duration::from_millis(20);

/// How often the status is published while there is work.
pub(super) const PUBLISH: Duration = Duration::from_secs(1);

/// The first pause after something failed.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// So many rounds of writes in a row without effect are reported.
const IN_VAIN: u32 = 6;

/// How often it is asked whether a namespace that holds something still does.
const KEPT: Duration = Duration::from_hours(1);

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A projection, judged and indexed.
pub(super) type Wanted = Desired<Box<Projection>>;

/// One term.
pub(super) struct Term<'a, 'o, S, A> {
    source: &'a S,
    api: &'a Fenced<'a, A>,
    policy: &'a Arc<Policy>,
    options: &'a ControllerOptions,
    pub(super) cache: &'a Cache,
    pub(super) teller: &'a mut Teller<'o>,
    pub(super) plan_options: PlanOptions,
    apply_options: Arc<ApplyOptions>,
    model: Option<Arc<Model>>,
    /// Whether the model or the cluster's default PriorityClass is newer than the projection.
    stale: bool,
    pub(super) wanted: Option<Wanted>,
    pub(super) prefix: String,
    pub(super) removals: Option<Removals>,
    /// Told when something that all accounts share has changed.
    shared_touched: Arc<Notify>,
    judge_removals: bool,
    judged_removals: Instant,
    pub(super) units: Units,
    pub(super) guard: Guard,
    /// Users who are in no account any more, and whom a RoleBinding still names.
    pub(super) leaving: BTreeSet<Unit>,
    /// The users whom RoleBindings of ours name, since one last changed.
    pub(super) bound: Option<BTreeSet<String>>,
    settled: bool,
    /// When the quotas of an account last began to bind.
    last_bound: Instant,
    /// When the status is published next.
    pub(super) publish_at: Instant,
}

/// Ends that the loop waits for.
struct Pending<'a> {
    work: FuturesUnordered<Boxed<'a, Done>>,
    reading: Boxed<'a, Result<Model, String>>,
    failed_readings: u32,
    projecting: Option<Boxed<'a, Result<Wanted, String>>>,
    recording: Option<Boxed<'a, Result<(), ApiError>>>,
}

impl<'a, 'o, S: Source, A: ClusterApi + LeaseApi + EventApi> Term<'a, 'o, S, A> {
    pub(super) fn new(
        source: &'a S,
        api: &'a Fenced<'a, A>,
        policy: &'a Arc<Policy>,
        options: &'a ControllerOptions,
        cache: &'a Cache,
        teller: &'a mut Teller<'o>,
    ) -> Self {
        let apply = ApplyOptions::default().binding_timeout(options.binding_timeout);
        Self {
            source,
            api,
            policy,
            options,
            cache,
            teller,
            plan_options: PlanOptions::default().adopt(options.adopt),
            apply_options: Arc::new(apply),
            model: None,
            stale: false,
            wanted: None,
            prefix: policy.prefix.clone(),
            removals: None,
            shared_touched: Arc::default(),
            judge_removals: false,
            judged_removals: Instant::now(),
            units: Units::default(),
            guard: Guard::default(),
            leaving: BTreeSet::new(),
            bound: None,
            settled: false,
            last_bound: Instant::now(),
            publish_at: Instant::now(),
        }
    }

    /// Keeps the projection true until it is dropped.
    pub(super) async fn run(mut self) {
        let (troubles, mut trouble) = tokio::sync::mpsc::channel(LISTS.len());
        let (cache, api) = (self.cache, self.api);
        let follow = |at| {
            let troubles = troubles.clone();
            let tell = move |kind: Kind, error: &ApiError| {
                let (_, _, resource, _) = kind.resource();
                // What does not fit is about the same server.
                let _ = troubles.try_send(Report::Unwatched { resource, error: error_chain(error) });
            };
            cache.follow(api, at, tell)
        };
        let mut watches: FuturesUnordered<_> = (0..LISTS.len()).map(follow).collect();
        let mut pending = Pending {
            work: FuturesUnordered::new(),
            reading: Box::pin(read(self.source, None, self.options.source_timeout)),
            failed_readings: 0,
            projecting: None,
            recording: None,
        };
        loop {
            let more = self.round(&mut pending);
            if more {
                // The Lease is renewed between two rounds.
                tokio::task::yield_now().await;
            }
            let due = self.units.next_due();
            let wake = due.map_or(self.publish_at, |due| due.min(self.publish_at));
            tokio::select! {
                biased;
                // Every arm polls something that lives on beyond the loop's round, or only wakes it up.
                Some(done) = pending.work.next(), if !pending.work.is_empty() => self.done(done),
                () = cache.changed() => {}
                wanted = ready(&mut pending.projecting) => {
                    pending.projecting = None;
                    self.projected(wanted);
                }
                model = &mut pending.reading => self.has_read(model, &mut pending),
                written = ready(&mut pending.recording) => {
                    pending.recording = None;
                    if let Err(error) = written { self.teller.event_failed(&error); }
                }
                Some(report) = trouble.recv() => self.teller.tell(report),
                Some(()) = watches.next() => {}
                () = sleep_until(wake), if !more => {}
                () = std::future::ready(()), if more => {}
            }
        }
    }

    /// What can be done without waiting; whether there is more of it.
    fn round(&mut self, pending: &mut Pending<'a>) -> bool {
        self.take_in();
        self.units.take_due(Instant::now());
        if self.stale && pending.projecting.is_none() && self.cache.is_synced() {
            self.stale = false;
            pending.projecting = self.project();
        }
        let mut more = false;
        if self.wanted.is_some() && self.cache.is_synced() {
            self.judge_removals();
            more = self.start(pending);
        }
        if pending.recording.is_none()
            && let Some(event) = self.teller.next_event()
        {
            let api = self.api;
            pending.recording = Some(Box::pin(async move { api.record(&event).await }));
        }
        let idle = pending.work.is_empty() && !self.units.has_queued() && pending.projecting.is_none();
        if idle && !self.settled && self.wanted.is_some() && self.units.are_at_rest() {
            self.settled = true;
            self.publish();
            self.teller.tell(Report::Settled);
        } else if Instant::now() >= self.publish_at {
            self.publish();
        }
        more
    }

    /// Marks whatever the cache says has changed.
    fn take_in(&mut self) {
        let touched = self.cache.touched();
        self.stale |= touched.priority_class && self.model.is_some();
        for key in touched.keys {
            let known =
                |namespace| self.wanted.as_ref().is_some_and(|wanted| wanted.account_in(namespace).is_some());
            self.judge_removals |= key.kind == Kind::Namespace && !known(&key.name);
            if key.name == names::USERS_NAMESPACE && key.kind == Kind::Namespace {
                self.unblock();
            }
            if key.kind == Kind::RoleBinding {
                self.bound = None;
                for unit in std::mem::take(&mut self.leaving) {
                    self.mark(unit, Mark::Later);
                }
            }
            if let Some(unit) = Unit::of(&key) {
                // What all share is put right before anybody is let in, and before the guard is waited for.
                let mark = if unit == Unit::Shared { Mark::Ahead } else { Mark::Later };
                if unit == Unit::Shared {
                    self.shared_touched.notify_waiters();
                }
                self.mark(unit, mark);
            }
        }
    }

    /// Marks a unit that concerns us.
    fn mark(&mut self, unit: Unit, mark: Mark) {
        let concerns = match (&unit, &self.wanted) {
            (_, None) => false,
            (Unit::Shared, Some(_)) => true,
            (Unit::Account(namespace), Some(wanted)) => {
                wanted.account_in(namespace).is_some() || names::NAMESPACES.is_mapped(namespace)
            }
            (Unit::User(name), Some(_)) => names::SERVICE_ACCOUNTS.is_mapped(name),
        };
        if concerns {
            self.units.mark(unit, mark);
        }
    }

    fn mark_everything(&mut self) {
        let Some(wanted) = &self.wanted else { return };
        let mut all = vec![Unit::Shared];
        all.extend(wanted.accounts().map(|(namespace, _)| Unit::Account(namespace.to_owned())));
        all.extend(wanted.users().map(|(name, _)| Unit::User(name.to_owned())));
        // What exists and is perhaps not wanted.
        let contents = self.cache.lock();
        let live = [Kind::Namespace, Kind::ServiceAccount];
        let live = live.into_iter().flat_map(|kind| contents.observed.of_kind(kind));
        all.extend(live.filter_map(|(key, _)| Unit::of(key)));
        drop(contents);
        for unit in all {
            self.units.unsettle(&unit);
            self.mark(unit, Mark::Later);
        }
    }

    /// Starts work on what is marked, as much as may go on at a time; whether the time for that was too short.
    fn start(&mut self, pending: &mut Pending<'a>) -> bool {
        let start = Instant::now();
        while pending.work.len() < self.options.concurrency.max(1) {
            if start.elapsed() > LONGEST_ROUND {
                return true;
            }
            let contents = self.cache.lock();
            let Some(unit) = self.units.next(&contents, Instant::now()) else { return false };
            let judged = self.judge(&unit, &contents.observed, self.options);
            drop(contents);
            match judged {
                Judged::Nothing => {
                    self.units.put_back(&unit);
                    self.units.forget(&unit);
                }
                Judged::Stands(state, reason) => self.stands(&unit, state, reason),
                Judged::Work(_) if self.units.waits(&unit, Instant::now()) => {}
                Judged::Work(ready) => {
                    self.settled = false;
                    pending.work.push(self.work(*ready));
                }
            }
        }
        false
    }

    fn work(&self, ready: Ready) -> Boxed<'a, Done> {
        let (api, options) = (self.api, Arc::clone(&self.apply_options));
        match ready {
            Ready::Account(plan, done) => Box::pin(work::account(api, plan, done, options)),
            Ready::User(steps, done) => Box::pin(work::user(api, steps, done, options)),
            Ready::Shared(steps, question, done) => {
                let touched = Arc::clone(&self.shared_touched);
                Box::pin(work::shared(api, steps, question, done, options, touched))
            }
            Ready::Delete { namespace, uid, version, done } => {
                Box::pin(work::delete(api, namespace, uid, version, done))
            }
        }
    }

    /// Notes how a unit stands that needs no work now.
    fn stands(&mut self, unit: &Unit, state: State, reason: String) {
        let now = Instant::now();
        let timeout = self.options.binding_timeout;
        let tracked = self.units.entry(unit);
        // The controller manager fills in quotas at its own pace; what is reported is standing still.
        if tracked.state == State::Waiting && state != State::Waiting {
            self.last_bound = now;
        }
        let changed = tracked.stands(state, reason.clone(), None);
        (tracked.attempts, tracked.rounds) = (0, 0);
        let still_since = tracked.since.max(self.last_bound);
        let patient = state == State::Waiting && now.saturating_duration_since(still_since) < timeout;
        let until = still_since.checked_add(timeout).unwrap_or(now);
        let telling = match state {
            State::InStep => {
                tracked.was_in_step = true;
                tracked.owed = None;
                false
            }
            // One that is kept though its time is over has a reason.
            State::Retired => {
                tracked.was_in_step = true;
                tracked.owed = None;
                !reason.is_empty() && !tracked.told
            }
            State::Waiting | State::NotLetIn => !patient && !tracked.told && state == State::Waiting,
            // Held ones are named together.
            State::Changing | State::Held => false,
            State::Failed | State::Refused | State::Paused => !tracked.told,
        };
        tracked.told |= telling;
        self.units.put_back(unit);
        if patient {
            self.units.mark_at(until, unit);
        }
        if telling {
            let trouble = self.trouble(unit, state, reason, None);
            self.teller.tell(Report::Trouble(trouble));
        }
        self.settled &= !changed;
        if changed {
            self.publish_soon();
        }
        self.grace(unit, state);
        if *unit == Unit::Shared && state == State::InStep {
            self.unblock();
        }
    }

    /// Has a retired account looked at when its grace period is over, and every hour from then on.
    fn grace(&mut self, unit: &Unit, state: State) {
        let (Unit::Account(namespace), State::Retired) = (unit, state) else { return };
        let Some(wait) = self.grace_left(namespace, &self.cache.lock().observed, self.options) else {
            return;
        };
        let delay = self.options.deletion_delay.max(Duration::from_millis(100));
        let wait = if wait.is_zero() { KEPT.min(delay) } else { wait.min(KEPT) };
        let at = Instant::now().checked_add(wait).unwrap_or_else(Instant::now);
        self.units.mark_at(at, unit);
    }

    /// Takes in what became of work.
    fn done(&mut self, mut done: Done) {
        let unit = done.unit.clone();
        let writes = done.writes.count;
        let written = std::mem::take(&mut done.writes.written);
        #[cfg(feature = "metrics")]
        if let Some(metrics) = &self.options.metrics {
            let took = self.units.entry(&unit).marked.elapsed();
            metrics.worked(writes, done.failed.as_ref(), took);
        }
        if unit == Unit::Shared {
            self.shared_done(&done);
        }
        let Some(error) = done.failed.take() else {
            let tracked = self.units.entry(&unit);
            tracked.attempts = 0;
            tracked.owed = None;
            tracked.rounds = tracked.rounds.saturating_add(u32::from(writes > 0));
            let in_vain = writes > 0 && tracked.rounds == IN_VAIN;
            let again = Instant::now().checked_add(KEPT);
            tracked.kept = again.zip(done.kept.clone());
            self.units.worked(&unit, written, None);
            if in_vain {
                let reason =
                    format!("written {IN_VAIN} times and not in step: who changes it? Last: {}", done.what);
                let trouble = self.trouble(&unit, State::Changing, reason, None);
                self.teller.tell(Report::Trouble(trouble));
            }
            self.tell_done(done, writes);
            return;
        };
        let spread = unit.spread();
        let reason = error_chain(&error);
        let tracked = self.units.entry(&unit);
        tracked.attempts = tracked.attempts.saturating_add(1);
        tracked.owed = Some(done.purpose);
        let wait = pause(FIRST_RETRY, Duration::from_mins(5), tracked.attempts, spread);
        let changed = tracked.stands(State::Failed, reason.clone(), Some(error.clone()));
        let telling = !tracked.told;
        tracked.told = true;
        self.units.worked(&unit, written, Some(wait));
        if changed {
            self.publish_soon();
        }
        if telling {
            let trouble = self.trouble(&unit, State::Failed, reason, Some(error));
            self.teller.tell(Report::Trouble(trouble));
        }
    }

    /// What waited for what all share goes on.
    fn shared_done(&mut self, done: &Done) {
        if done.failed.is_some() {
            return;
        }
        if done.answered.is_some() {
            self.guard.answered.clone_from(&done.answered);
            self.guard.asked_for = false;
        }
        self.unblock();
    }

    fn unblock(&mut self) {
        for unit in std::mem::take(&mut self.guard.blocked) {
            self.mark(unit, Mark::Later);
        }
    }
}

/// Waits for something that may not be going on.
async fn ready<T>(future: &mut Option<Boxed<'_, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Waits until the source may have changed, or so long, and reads it. After a failure not at once, whatever the source
/// says.
async fn read<S: Source>(source: &S, wait: Option<Duration>, limit: Duration) -> Result<Model, String> {
    if let Some(wait) = wait {
        if wait < Duration::MAX {
            sleep(FIRST_RETRY).await;
        }
        tokio::select! {
            // Dropping either loses nothing: the source says again that it has changed.
            () = source.changed() => {}
            () = sleep(wait) => {}
        }
    }
    match timeout(limit, source.read()).await {
        Ok(model) => model.map_err(|error| error_chain(&error)),
        Err(_) => Err(format!("{}: no answer within {} s", source.name(), limit.as_secs())),
    }
}
