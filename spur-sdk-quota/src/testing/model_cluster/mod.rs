//! An API server and the controllers behind it, as a model in memory.

mod audit;
mod client;
mod controllers;
mod fields;
mod requests;
mod settings;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use spur_sdk::Clock;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::state::{Request, State};
use crate::cluster::{ApiError, Event, Key, Lease};

pub use audit::{LeaseRecord, Record, Verb};
pub use client::ModelClient;
pub use settings::{Delays, Faults};

/// A cluster in memory for tests of what writes to one: it keeps state and refuses what an API server would.
///
/// - **Objects** have a uid and the version of their last change. Server-side apply knows who owns which field; a
///   write that changes nothing makes no version. What stands in a namespace needs it, and goes with it. Preconditions
///   of patches and deletions hold, and what cannot be changed is refused.
/// - **Watches** tell what changed since a version, in an order of their own, as long as the server remembers.
/// - **Controllers** do their part a while later: a quota's status follows its spec, a namespace gets its ServiceAccount
///   `default` and loses everything before it goes, the tenant guard is type-checked and taken in.
/// - **Faults** strike requests and watches, see [`Faults`]; all that is drawn follows from the seed.
/// - **The record** says who changed what and when, see [`audit`](Self::audit).
///
/// All time is tokio's: a test that starts its runtime paused waits for nothing. Made within a runtime. Clones are
/// the same cluster.
///
/// It does not charge quotas, check names or schemas, merge lists by key, or judge pods by the guard but for its probe.
/// A request that is dropped before its effect has none, where a real one may still have it.
///
/// ```
/// use serde_json::json;
/// use spur_sdk_quota::cluster::{ClusterApi, Key, Kind};
/// use spur_sdk_quota::testing::ModelCluster;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let cluster = ModelCluster::new(1);
/// let key = Key::cluster(Kind::Namespace, "spur-acct-physics");
/// cluster.client("me").apply(&key, &json!({ "metadata": { "labels": { "a": "b" } } })).await?;
/// assert_eq!(cluster.object(&key).unwrap()["metadata"]["labels"]["a"], "b");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ModelCluster(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Told whenever there may be news for watches. It wakes them in the order in which they began to wait, so that the
    /// same seed gives the same history; a watch channel would not.
    news: Notify,
}

impl fmt::Debug for ModelCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelCluster").finish_non_exhaustive()
    }
}

impl ModelCluster {
    /// A cluster with the namespaces `default` and `kube-system`, and without faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Inner { state: Mutex::new(State::new(seed)), news: Notify::new() }))
    }

    /// Does something with the state as it is now, and tells watches when it is another then.
    fn with<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = (state.version, state.due_number);
        state.advance(Instant::now());
        let answer = action(&mut state);
        let news = before != (state.version, state.due_number);
        drop(state);
        if news {
            self.0.news.notify_waiters();
        }
        answer
    }

    /// A client, which the record knows by this name.
    #[must_use]
    pub fn client(&self, who: &str) -> ModelClient {
        ModelClient::new(self.clone(), who)
    }

    /// Sets how long things take from now on.
    pub fn set_delays(&self, delays: Delays) {
        self.with(|state| state.delays = delays);
    }

    /// Sets what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.with(|state| state.faults = faults);
    }

    /// Cuts a client off the server, or no longer: no request of its arrives, its watches fall silent.
    pub fn cut_off(&self, who: &str, cut: bool) {
        self.with(|state| {
            state.cut_off.retain(|other| **other != *who);
            if cut {
                state.cut_off.push(Arc::from(who));
            }
        });
        // Watches look only when there is news.
        self.0.news.notify_waiters();
    }

    /// Disconnects all watches, as a server that starts anew does.
    pub fn disconnect(&self) {
        self.with(|state| state.disconnected = state.disconnected.saturating_add(1));
        self.0.news.notify_waiters();
    }

    /// Stops the controller manager, or lets it go on with what it has put off.
    pub fn stop_controllers(&self, stop: bool) {
        self.with(|state| state.stop_controllers(stop));
    }

    /// Sets how many changes the server remembers for watches. At first 1000.
    pub fn remember(&self, changes: usize) {
        self.with(|state| state.history_length = changes);
    }

    /// Forgets all changes: every watch that goes on from an earlier version is refused with 410.
    pub fn forget(&self) {
        self.with(|state| {
            state.history.clear();
            state.forgotten = state.next_version();
        });
    }

    /// An object, if it is there.
    #[must_use]
    pub fn object(&self, key: &Key) -> Option<Value> {
        self.with(|state| state.value(key).map(|value| (**value).clone()))
    }

    /// All objects.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<Key, Arc<Value>> {
        self.with(|state| {
            let objects = state.objects.iter();
            objects.map(|(key, stored)| (key.clone(), Arc::clone(&stored.value))).collect()
        })
    }

    /// Changes an object by hand; whether it is there.
    ///
    /// # Errors
    /// The server refuses the change.
    pub fn edit(&self, who: &str, key: &Key, change: impl FnOnce(&mut Value)) -> Result<bool, ApiError> {
        let who = Arc::from(who);
        self.with(|state| {
            let Some(live) = state.value(key) else { return Ok(false) };
            let mut value = (**live).clone();
            change(&mut value);
            state.replace(Request { who: &who, verb: Verb::Edit }, key, value)?;
            Ok(true)
        })
    }

    /// Makes an object by hand, or replaces it.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn put(&self, who: &str, key: &Key, object: Value) -> Result<(), ApiError> {
        let who = Arc::from(who);
        self.with(|state| state.replace(Request { who: &who, verb: Verb::Edit }, key, object)).map(drop)
    }

    /// Deletes an object by hand; whether it was there.
    #[expect(clippy::must_use_candidate, reason = "what counts is what it does")]
    pub fn remove(&self, who: &str, key: &Key) -> bool {
        let who = Arc::from(who);
        self.with(|state| {
            let there = state.value(key).is_some();
            state.remove(Request { who: &who, verb: Verb::Edit }, key);
            there
        })
    }

    /// Sets what is in use of a quota, as pods that come and go do; whether it is there.
    #[expect(clippy::must_use_candidate, reason = "what counts is what it does")]
    pub fn set_used(&self, key: &Key, used: &Value) -> bool {
        let who = Arc::from("kube-controller-manager");
        self.with(|state| {
            let Some(live) = state.value(key) else { return false };
            let hard = live.pointer("/status/hard").cloned().unwrap_or_else(|| json!({}));
            let status = json!({ "hard": hard, "used": used });
            state.set_status(Request { who: &who, verb: Verb::Control }, key, status);
            true
        })
    }

    /// The Lease, if there is one.
    #[must_use]
    pub fn lease(&self, namespace: &str, name: &str) -> Option<Lease> {
        self.with(|state| state.lease(namespace, name))
    }

    /// Deletes a Lease by hand.
    pub fn remove_lease(&self, who: &str, namespace: &str, name: &str) {
        let who = Arc::from(who);
        self.with(|state| state.remove_lease(&who, namespace, name));
    }

    /// Every change of an object so far, in order.
    #[must_use]
    pub fn audit(&self) -> Vec<Record> {
        self.with(|state| state.audit.clone())
    }

    /// Every change of a Lease so far, in order.
    #[must_use]
    pub fn leases(&self) -> Vec<LeaseRecord> {
        self.with(|state| state.lease_audit.clone())
    }

    /// What the tenant guard answered to its probe from which time on, in order.
    #[must_use]
    pub fn guard_answers(&self) -> Vec<(Duration, Option<String>)> {
        self.with(|state| state.guard_audit.clone())
    }

    /// Every Event so far, in order.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.with(|state| state.events.iter().map(|(_, event)| event.clone()).collect())
    }

    /// How many requests a client has made, those that failed included.
    #[must_use]
    pub fn requests(&self, who: &str) -> BTreeMap<Verb, usize> {
        self.with(|state| {
            let requests = state.requests.iter().filter(|((client, _), _)| **client == *who);
            requests.map(|((_, verb), count)| (*verb, *count)).collect()
        })
    }

    /// The time since the model was made, as the record counts it.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.with(|state| state.elapsed())
    }

    /// The model's wall clock, which begins on 1 January 2026 and goes as tokio's time does.
    #[must_use]
    pub fn clock(&self) -> ModelClock {
        ModelClock(self.clone())
    }
}

/// The wall clock of a [`ModelCluster`].
#[derive(Debug, Clone)]
pub struct ModelClock(ModelCluster);

impl Clock for ModelClock {
    fn now(&self) -> SystemTime {
        self.0.with(|state| state.wall())
    }
}

#[cfg(test)]
mod tests;
