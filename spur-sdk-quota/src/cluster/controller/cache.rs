//! What the cluster has of us, kept true by watches.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::pace::pause;
use crate::cluster::observe::LISTS;
use crate::cluster::{ApiError, ClusterApi, Key, Kind, Observed, Selection, WatchEvent};

/// The first pause after a list or watch that failed.
const SHORTEST: Duration = Duration::from_millis(500);

/// The first pause after a watch that ended at once, and well.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(30);

/// The cache. Watches write it, the controller's loop reads it; both are parts of one task.
#[derive(Debug, Default)]
pub(super) struct Cache {
    state: Mutex<Contents>,
    changed: Notify,
}

/// What is in it.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) observed: Observed,
    /// Objects that changed since they were last asked for.
    touched: BTreeSet<Key>,
    /// Whether the cluster's default PriorityClass did.
    priority_class: bool,
    /// Lists that have been read at least once.
    synced: BTreeSet<usize>,
}

/// What changed.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) keys: BTreeSet<Key>,
    pub(super) priority_class: bool,
}

impl Contents {
    fn put(&mut self, kind: Kind, value: Value) {
        if kind == Kind::PriorityClass {
            self.priority_class |= self.observed.take_priority_class(&value, false);
        } else if let Some(key) = self.observed.put_newer(kind, value) {
            self.touched.insert(key);
        }
    }

    fn remove(&mut self, kind: Kind, value: &Value) {
        if kind == Kind::PriorityClass {
            self.priority_class |= self.observed.take_priority_class(value, true);
        } else if let Some(key) = self.observed.remove_not_newer(kind, value) {
            self.touched.insert(key);
        }
    }

    /// Takes a whole list in: what it does not name is gone.
    fn replace(&mut self, at: usize, kind: Kind, selection: Selection<'_>, items: Vec<Value>) {
        if kind == Kind::PriorityClass {
            let before = self.observed.default_priority_class();
            self.observed.forget_priority_class();
            for value in &items {
                self.observed.take_priority_class(value, false);
            }
            self.priority_class |= before != self.observed.default_priority_class();
        } else {
            let listed: BTreeSet<Key> = items.iter().filter_map(|value| Key::of(kind, value)).collect();
            let gone: Vec<Key> = self
                .observed
                .of_kind(kind)
                .map(|(key, _)| key)
                .filter(|key| selects(selection, key) && !listed.contains(*key))
                .cloned()
                .collect();
            for key in gone {
                self.observed.remove(&key);
                self.touched.insert(key);
            }
            // A list says how things are, also after a restore of etcd, where versions go back.
            for value in items {
                self.touched.extend(self.observed.put_other(kind, value));
            }
        }
        self.synced.insert(at);
    }
}

/// Whether a selection holds an object; labels cannot be told by a key.
fn selects(selection: Selection<'_>, key: &Key) -> bool {
    match selection {
        Selection::All | Selection::Ours => true,
        Selection::Named(name) => key.name == name,
        Selection::In(namespace) => key.namespace.as_deref() == Some(namespace),
        Selection::One(namespace, name) => key.namespace.as_deref() == namespace && key.name == name,
    }
}

/// Whether a failure after so many others is worth a report.
fn is_news(failures: u32) -> bool {
    failures.is_multiple_of(10)
}

impl Cache {
    pub(super) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, change: impl FnOnce(&mut Contents)) {
        change(&mut self.lock());
        self.changed.notify_one();
    }

    /// Ends when something has changed since it last ended.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether every list has been read.
    pub(super) fn is_synced(&self) -> bool {
        self.lock().synced.len() == LISTS.len()
    }

    /// What has changed since this was last asked.
    pub(super) fn touched(&self) -> Touched {
        let mut contents = self.lock();
        Touched {
            keys: std::mem::take(&mut contents.touched),
            priority_class: std::mem::take(&mut contents.priority_class),
        }
    }

    /// Keeps one of the lists true, for ever. Lists and watches are begun anew with growing pauses.
    pub(super) async fn follow<A: ClusterApi>(&self, api: &A, at: usize, trouble: impl Fn(Kind, &ApiError)) {
        let Some((kind, selection)) = LISTS.get(at).copied() else { return };
        let mut failures = 0_u32;
        let spread = u64::try_from(at).unwrap_or(0);
        loop {
            let mut version = match api.list(kind, selection).await {
                Ok(list) => {
                    let version = list.version;
                    self.write(|contents| contents.replace(at, kind, selection, list.items));
                    version
                }
                Err(error) => {
                    if is_news(failures) {
                        trouble(kind, &error);
                    }
                    failures = failures.saturating_add(1);
                    sleep(pause(SHORTEST, LONGEST, failures, spread)).await;
                    continue;
                }
            };
            failures = failures.min(4);
            // A watch that cannot go on where it was is begun anew from a list.
            while failures < 5 {
                let start = Instant::now();
                let mut seen = version.clone();
                let watched = api.watch(kind, selection, &version, |event| self.take(kind, event, &mut seen));
                let ended = watched.await;
                if seen != version {
                    failures = 0;
                    version = seen;
                }
                match ended {
                    // One that lasted ended because its time was over.
                    Ok(()) if start.elapsed() > Duration::from_secs(10) => failures = 0,
                    Ok(()) => {
                        failures = failures.saturating_add(1);
                        sleep(pause(AT_ONCE, LONGEST, failures, spread)).await;
                    }
                    Err(error) if error.is_expired() => {
                        if start.elapsed() < Duration::from_secs(10) {
                            failures = failures.saturating_add(1);
                            sleep(pause(AT_ONCE, LONGEST, failures, spread)).await;
                        }
                        break;
                    }
                    Err(error) => {
                        if is_news(failures) {
                            trouble(kind, &error);
                        }
                        failures = failures.saturating_add(1);
                        sleep(pause(SHORTEST, LONGEST, failures, spread)).await;
                    }
                }
            }
        }
    }

    fn take(&self, kind: Kind, event: WatchEvent, version: &mut String) {
        let of = |value: &Value| {
            value.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        match event {
            WatchEvent::Changed(value) => {
                *version = of(&value);
                self.write(|contents| contents.put(kind, value));
            }
            WatchEvent::Deleted(value) => {
                *version = of(&value);
                self.write(|contents| contents.remove(kind, &value));
            }
            WatchEvent::Version(at) => *version = at,
        }
    }
}
