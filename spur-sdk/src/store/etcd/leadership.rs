//! One leader among several controllers.
//!
//! The leader's entry hangs on a lease: it is there from the moment a term begins until etcd has not heard of its
//! leader for the lease's time to live. Whoever finds it absent may make it.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use tokio::sync::watch as published;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, info, warn};

use super::failure::Failure;
use super::keys::revision;
use super::watch::{Extent, open};
use super::{EtcdSettingsError, EtcdStore};
use crate::store::{
    Commit, Comparison, Fence, Key, Leader, Leadership, Revision, Store as _, StoreError, Term, TermEnd,
    Transaction,
};
use crate::{Classify as _, error_chain};

/// The entry of the leader.
const LEADER: &str = "leader";
/// The default time to live.
const TTL: Duration = Duration::from_secs(10);
/// How long to wait after a failure, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// After how long a candidate that waits looks anew, besides its watch.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// A candidate for the leadership among controllers that share an [`EtcdStore`].
///
/// When the leader dies, another leads within the time to live and a second; when a member of etcd that led etcd's
/// own cluster dies with it, it may take twice as long, since the next one gives all leases a full time to live again.
///
/// A term ends by this process's own monotonic clock, counted from before the last successful renewal was sent, so
/// that no setting of a clock matters. That clock stands still while the whole machine sleeps: then, as after any long
/// stop, it is [`Fenced`](crate::store::Fenced) that keeps an old leader from writing.
#[derive(Debug, Clone)]
pub struct EtcdLeadership {
    store: EtcdStore,
    value: String,
    ttl: Duration,
}

impl EtcdLeadership {
    /// A candidate with its name, and its address as `HOST:PORT`, empty if it has none. The time to live is 10 s.
    ///
    /// # Errors
    /// [`EtcdSettingsError::Candidate`] for an empty name or control characters.
    pub fn new(store: EtcdStore, name: &str, address: &str) -> Result<Self, EtcdSettingsError> {
        if name.is_empty() || name.chars().chain(address.chars()).any(char::is_control) {
            return Err(EtcdSettingsError::Candidate(name.to_owned()));
        }
        Ok(Self { store, value: format!("{name}\n{address}"), ttl: TTL })
    }

    /// Sets for how long a leader that is not heard of leads on. etcd takes whole seconds, at least 2 by default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Leads if nobody does; otherwise waits until the leader may be gone.
    async fn attempt(&self) -> Result<Option<Term>, StoreError> {
        let key: Key = LEADER.parse()?;
        let (found, at) = self.store.look(&key).await?;
        if found.is_some() {
            // Where the time is up it is looked at anew.
            timeout(LOOK_AGAIN, deletion(&self.store, &key, at)).await.unwrap_or(Ok(()))?;
            return Ok(None);
        }
        let lease = Lease::grant(&self.store, self.ttl).await?;
        let begin = Transaction::new()
            .when(Comparison::Absent(key.clone()))
            .put(key.clone(), self.value.clone().into_bytes());
        let made = match self.store.commit_with(&begin, lease.id).await {
            Err(StoreError::Unconfirmed { .. }) => self.own(&key, &lease).await,
            Ok(Commit::Done(created)) => Ok(Some(created)),
            Ok(Commit::Conflict(_)) => Ok(None),
            Err(error) => Err(error),
        };
        match made {
            Ok(Some(created)) => Ok(Some(self.lead(Fence { key, created }, lease))),
            other => {
                // With its lease a write that is still under way is void.
                lease.revoke(&self.store).await;
                other.map(|_| None)
            }
        }
    }

    /// When our entry was made, if it is ours.
    async fn own(&self, key: &Key, lease: &Lease) -> Result<Option<Revision>, StoreError> {
        let (found, _) = self.store.look(key).await?;
        Ok(found.filter(|found| found.lease() == lease.id).map(|found| revision(found.create_revision())))
    }

    fn lead(&self, fence: Fence, lease: Lease) -> Term {
        info!(term = fence.created.0, ttl_ms = lease.ttl.as_millis(), "leading");
        let tenure = Arc::new(Tenure(published::Sender::new(State { until: lease.until(), over: false })));
        let stop = CancellationToken::new();
        let keeper =
            Keeper { store: self.store.clone(), fence: fence.clone(), lease, tenure: Arc::clone(&tenure) };
        let (store, lease) = (self.store.clone(), keeper.lease.clone());
        let stopped = stop.clone();
        tokio::spawn(async move {
            // Stopped by the term's end: whatever is under way then only lengthens a lease that nobody uses.
            stopped.run_until_cancelled_owned(keeper.keep()).await;
        });
        Term::new(fence, EtcdTerm { store, lease, tenure, stop: stop.drop_guard() })
    }
}

impl Leadership for EtcdLeadership {
    async fn campaign(&self) -> Result<Term, StoreError> {
        let mut pause = PAUSES.0;
        loop {
            match self.attempt().await {
                Ok(Some(term)) => return Ok(term),
                Ok(None) => pause = PAUSES.0,
                Err(error) if error.is_retryable() => {
                    warn!(error = error_chain(&error), "cannot stand for leadership at the moment");
                    sleep(pause).await;
                    pause = pause.saturating_mul(2).min(PAUSES.1);
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn leader(&self) -> Result<Option<Leader>, StoreError> {
        let key: Key = LEADER.parse()?;
        let Some(entry) = self.store.get(&key).await? else { return Ok(None) };
        let text = String::from_utf8_lossy(&entry.value);
        let (name, address) = text.split_once('\n').unwrap_or((&text, ""));
        let fence = Fence { key, created: entry.created };
        Ok(Some(Leader { name: name.to_owned(), address: address.to_owned(), fence }))
    }
}

/// Ends when the key is deleted after a revision, or when that cannot be seen any more.
async fn deletion(store: &EtcdStore, key: &Key, after: Revision) -> Result<(), StoreError> {
    let mut watch = open(store, key.as_str(), Extent::Key, after).await?;
    loop {
        if watch.next().await?.changes.iter().any(|change| change.value.is_none()) {
            return Ok(());
        }
    }
}

/// A lease of etcd.
#[derive(Debug, Clone)]
struct Lease {
    id: i64,
    ttl: Duration,
    /// Before it was last asked for.
    asked: Instant,
}

impl Lease {
    async fn grant(store: &EtcdStore, ttl: Duration) -> Result<Self, StoreError> {
        let asked = Instant::now();
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        // One that is granted twice runs out.
        let grant = move |mut client: Client| async move { Ok(client.lease_grant(seconds, None).await?) };
        let granted = store.cluster.ask(grant).await.map_err(|failure| store.read_failed(failure))?;
        Ok(Self { id: granted.id(), ttl: seconds_of(granted.ttl()), asked })
    }

    /// etcd keeps it at least until then.
    fn until(&self) -> Instant {
        self.asked + self.ttl
    }

    async fn renew(&self, store: &EtcdStore) -> Result<Self, Failure> {
        let (id, asked) = (self.id, Instant::now());
        let renew = move |mut client: Client| async move {
            // The stream is not kept: each renewal may go to another endpoint.
            client.lease_keep_alive(id).await?;
            Ok(())
        };
        let within = self.ttl.div_f32(3.0).min(store.cluster.deadline);
        store.cluster.ask_within(within, renew).await?;
        Ok(Self { asked, ..self.clone() })
    }

    /// Gives it back; where that fails it runs out.
    async fn revoke(&self, store: &EtcdStore) {
        let id = self.id;
        let revoke = move |mut client: Client| async move { Ok(client.lease_revoke(id).await?) };
        let within = PAUSES.1.min(store.cluster.deadline);
        if let Err(failure) = store.cluster.ask_within(within, revoke).await {
            debug!(?failure, "lease was not given back");
        }
    }
}

fn seconds_of(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or_default())
}

/// How long a term lasts as far as is known.
struct State {
    until: Instant,
    over: bool,
}

/// A term's state, which never comes back from its end.
struct Tenure(published::Sender<State>);

impl Tenure {
    /// Until when it lasts; `None` once it is over.
    fn until(&self) -> Option<Instant> {
        self.0.send_if_modified(|state| {
            let ends = !state.over && Instant::now() >= state.until;
            state.over |= ends;
            ends
        });
        let state = self.0.borrow();
        (!state.over).then_some(state.until)
    }

    /// Whether it lasts longer now, which it does not when it was over already.
    fn extend(&self, until: Instant) -> bool {
        if self.until().is_none() {
            return false;
        }
        self.0.send_modify(|state| state.until = until);
        // It may have ended between the two.
        self.until().is_some()
    }

    fn end(&self) {
        self.0.send_modify(|state| state.over = true);
    }

    async fn lost(&self) {
        let mut changes = self.0.subscribe();
        while let Some(until) = self.until() {
            tokio::select! {
                () = sleep_until(until) => {}
                // Never an error, since the sender is here.
                _ = changes.changed() => {}
            }
        }
    }
}

/// Keeps a term's lease alive.
struct Keeper {
    store: EtcdStore,
    fence: Fence,
    lease: Lease,
    tenure: Arc<Tenure>,
}

impl Keeper {
    async fn keep(mut self) {
        let why = self.renew_until_over().await;
        self.tenure.end();
        info!(term = self.fence.created.0, why, "leading no more");
        // Nobody leads any more by it, so nobody needs to wait for it.
        self.lease.revoke(&self.store).await;
    }

    async fn renew_until_over(&mut self) -> &'static str {
        let (store, fence, tenure) = (self.store.clone(), self.fence.clone(), Arc::clone(&self.tenure));
        let mut gone = pin!(gone(&store, &fence));
        let mut lost = pin!(tenure.lost());
        let mut next = self.lease.asked + self.lease.ttl.div_f32(3.0);
        loop {
            let beat = async {
                sleep_until(next).await;
                self.lease.renew(&store).await
            };
            let renewed = tokio::select! {
                // A renewal that is dropped may count at the server; it is not counted here.
                renewed = beat => renewed,
                () = &mut gone => return "the entry was deleted",
                () = &mut lost => return "the lease was not renewed in time",
            };
            match renewed {
                Ok(lease) if tenure.extend(lease.until()) => {
                    next = lease.asked + lease.ttl.div_f32(3.0);
                    self.lease = lease;
                }
                Ok(_) => return "the lease was renewed too late",
                Err(Failure::NoLease(_)) => return "the lease is gone",
                Err(failure) => {
                    warn!(term = fence.created.0, ?failure, "lease was not renewed");
                    next = Instant::now() + PAUSES.0;
                }
            }
        }
    }
}

/// Ends when the entry of a term is there no more.
async fn gone(store: &EtcdStore, fence: &Fence) {
    loop {
        match store.look(&fence.key).await {
            Ok((Some(found), at)) if revision(found.create_revision()) == fence.created => {
                if let Ok(Ok(())) = timeout(LOOK_AGAIN, deletion(store, &fence.key, at)).await {
                    return;
                }
            }
            Ok(_) => return,
            // The lease runs out if this lasts.
            Err(_) => {}
        }
        sleep(PAUSES.0).await;
    }
}

/// A term on etcd.
struct EtcdTerm {
    store: EtcdStore,
    lease: Lease,
    tenure: Arc<Tenure>,
    stop: DropGuard,
}

impl fmt::Debug for EtcdTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTerm").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl TermEnd for EtcdTerm {
    fn lost(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.tenure.lost())
    }

    fn resign(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let Self { store, lease, tenure, stop } = *self;
            tenure.end();
            drop(stop);
            lease.revoke(&store).await;
        })
    }
}
