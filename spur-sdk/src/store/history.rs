//! The last changes of a store that lives in this process, and watches over them.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{Change, ChangeSet, Changes, Revision, StoreError, Watch};

/// How much history is kept; what comes first counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// Transactions.
    pub(crate) sets: usize,
    /// Bytes of their keys and values.
    pub(crate) bytes: usize,
}

/// The last changes. Watches read from here at their own pace, so one that is slow costs nothing and finds its place
/// gone some day.
#[derive(Debug)]
pub(crate) struct History {
    kept: Mutex<Kept>,
    /// The revision of the newest change, to wake watches.
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct Kept {
    limit: Limit,
    /// Everything after this revision is here.
    floor: Revision,
    sets: VecDeque<Arc<ChangeSet>>,
    bytes: usize,
}

impl Kept {
    fn prune(&mut self) {
        while self.sets.len() > self.limit.sets || self.bytes > self.limit.bytes {
            let Some(oldest) = self.sets.pop_front() else { return };
            self.floor = oldest.revision;
            self.bytes = self.bytes.saturating_sub(size(&oldest));
        }
    }
}

/// The bytes of a change set that count.
fn size(set: &ChangeSet) -> usize {
    let change = |change: &Change| change.key.as_str().len() + change.value.as_ref().map_or(0, Vec::len);
    set.changes.iter().map(change).sum()
}

impl History {
    /// No history before `floor`.
    pub(crate) fn new(limit: Limit, floor: Revision) -> Arc<Self> {
        let kept = Kept { limit, floor, sets: VecDeque::new(), bytes: 0 };
        Arc::new(Self { kept: Mutex::new(kept), newest: watch::Sender::new(floor.0) })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a transaction's changes, sorted by key, and wakes the watches.
    pub(crate) fn push(&self, set: ChangeSet) {
        let revision = set.revision;
        let mut kept = self.lock();
        kept.bytes += size(&set);
        kept.sets.push_back(Arc::new(set));
        kept.prune();
        drop(kept);
        self.newest.send_replace(revision.0);
    }

    /// Everything after this revision is kept.
    pub(crate) fn floor(&self) -> Revision {
        self.lock().floor
    }

    /// Forgets everything up to now.
    #[cfg(feature = "testing")]
    pub(crate) fn forget(&self) {
        let mut kept = self.lock();
        if let Some(newest) = kept.sets.back().map(|set| set.revision) {
            kept.floor = newest;
            kept.sets.clear();
            kept.bytes = 0;
        }
    }

    /// Changes of keys that begin with `prefix`, after revision `after`; `place` names the store in errors.
    pub(crate) fn watch(
        self: &Arc<Self>,
        prefix: &str,
        after: Revision,
        place: &str,
    ) -> Result<Watch, StoreError> {
        let oldest = self.lock().floor;
        if after < oldest {
            return Err(StoreError::Expired { after, oldest });
        }
        let newest = self.newest.subscribe();
        let (prefix, place) = (prefix.to_owned(), place.to_owned());
        // The sender is not kept alive by its watches: they end with the store.
        Ok(Watch::new(Cursor { history: Arc::downgrade(self), newest, prefix, after, place }))
    }
}

/// A watch's place in the history.
struct Cursor {
    history: std::sync::Weak<History>,
    newest: watch::Receiver<u64>,
    prefix: String,
    /// Everything up to here was given, or is about other keys.
    after: Revision,
    place: String,
}

impl Cursor {
    /// The next change set that is there already.
    fn step(&mut self) -> Result<Option<ChangeSet>, StoreError> {
        let Some(history) = self.history.upgrade() else {
            let source = "the store was closed".into();
            return Err(StoreError::Unavailable { place: self.place.clone(), source });
        };
        let kept = history.lock();
        if self.after < kept.floor {
            return Err(StoreError::Expired { after: self.after, oldest: kept.floor });
        }
        let seen = kept.sets.partition_point(|set| set.revision <= self.after);
        for set in kept.sets.iter().skip(seen) {
            self.after = set.revision;
            let watched = |change: &&Change| change.key.as_str().starts_with(&self.prefix);
            let changes: Vec<Change> = set.changes.iter().filter(watched).cloned().collect();
            if !changes.is_empty() {
                return Ok(Some(ChangeSet { revision: set.revision, changes }));
            }
        }
        Ok(None)
    }
}

impl Changes for Cursor {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<ChangeSet, StoreError>> + Send + '_>> {
        Box::pin(async move {
            loop {
                // Before the look, so that what comes after it wakes us.
                self.newest.mark_unchanged();
                if let Some(set) = self.step()? {
                    return Ok(set);
                }
                // An error means that the store is gone, which the next look says.
                let _ = self.newest.changed().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(revision: u64, key: &str) -> ChangeSet {
        let change = Change { key: key.parse().unwrap(), value: Some(vec![0; 10]) };
        ChangeSet { revision: Revision(revision), changes: vec![change] }
    }

    #[tokio::test]
    async fn both_limits_count() {
        for limit in [Limit { sets: 2, bytes: 1000 }, Limit { sets: 1000, bytes: 22 }] {
            let history = History::new(limit, Revision(0));
            for revision in 1..=4 {
                history.push(set(revision, "k"));
            }
            assert_eq!(history.lock().floor, Revision(2));
            let error = history.watch("", Revision(1), "here").unwrap_err();
            assert!(
                matches!(error, StoreError::Expired { after: Revision(1), oldest: Revision(2) }),
                "{error}"
            );
            let mut watch = history.watch("", Revision(2), "here").unwrap();
            assert_eq!(watch.next().await.unwrap().revision, Revision(3));
            assert_eq!(watch.next().await.unwrap().revision, Revision(4));
        }
    }

    #[tokio::test]
    async fn a_watch_ends_with_its_store() {
        let history = History::new(Limit { sets: 2, bytes: 1000 }, Revision(0));
        let mut watch = history.watch("", Revision(0), "here").unwrap();
        let waiting = tokio::spawn(async move { watch.next().await });
        tokio::task::yield_now().await;
        drop(history);
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(crate::error_chain(&error), "here is not available: the store was closed");
    }
}
