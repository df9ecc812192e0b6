//! A store in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::history::{History, Limit};
use crate::store::{
    Change, ChangeSet, Commit, Entry, Key, Revision, Snapshot, Store, StoreError, Transaction, Watch, Write,
};

/// A store in memory, for tests. Clones are the same store. It keeps the last 1024 transactions for watches, or as many
/// as it was made with.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    history: Arc<History>,
}

#[derive(Debug, Default)]
struct State {
    revision: Revision,
    entries: BTreeMap<Key, Entry>,
    /// What becomes of the next commits.
    fault: Option<Fault>,
}

#[derive(Debug)]
struct Fault {
    /// Commits that still work.
    spared: usize,
    kind: MemoryFault,
}

/// How a commit fails that [`MemoryStore::fail_after`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryFault {
    /// [`StoreError::NotWritable`]: this commit and all later ones, until [`MemoryStore::heal`]; reads go on.
    NotWritable,
    /// [`StoreError::Unavailable`]: this commit and whatever is asked later, reads too, until [`MemoryStore::heal`].
    Unavailable,
    /// [`StoreError::Unconfirmed`], and it was carried out: this commit alone.
    UnconfirmedDone,
    /// [`StoreError::Unconfirmed`], and it was not carried out: this commit alone.
    UnconfirmedLost,
}

impl MemoryFault {
    fn error(self) -> StoreError {
        let place = PLACE.to_owned();
        let source = "a fault that a test asked for".into();
        match self {
            Self::NotWritable => StoreError::NotWritable { place, source },
            Self::Unavailable => StoreError::Unavailable { place, source },
            Self::UnconfirmedDone | Self::UnconfirmedLost => StoreError::Unconfirmed { place, source },
        }
    }
}

/// How errors name the store.
const PLACE: &str = "memory";

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::with_history(1024)
    }

    /// An empty store that keeps the changes of so many transactions for watches.
    #[must_use]
    pub fn with_history(transactions: usize) -> Self {
        let limit = Limit { sets: transactions, bytes: usize::MAX };
        Self { state: Arc::default(), history: History::new(limit, Revision(0)) }
    }

    /// Forgets all history up to now: watches that have not seen it end with [`StoreError::Expired`].
    pub fn forget_history(&self) {
        self.history.forget();
    }

    /// Lets `spared` more commits work and the one after them fail.
    pub fn fail_after(&self, spared: usize, kind: MemoryFault) {
        self.lock().fault = Some(Fault { spared, kind });
    }

    /// Ends whatever [`fail_after`](Self::fail_after) began.
    pub fn heal(&self) {
        self.lock().fault = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether it can be read.
    fn readable(&self) -> Result<(), StoreError> {
        match &self.fault {
            Some(Fault { spared: 0, kind: kind @ MemoryFault::Unavailable }) => Err(kind.error()),
            _ => Ok(()),
        }
    }

    /// What becomes of a commit.
    fn fault(&mut self) -> Option<MemoryFault> {
        let fault = self.fault.as_mut()?;
        if fault.spared > 0 {
            fault.spared -= 1;
            return None;
        }
        let kind = fault.kind;
        if matches!(kind, MemoryFault::UnconfirmedDone | MemoryFault::UnconfirmedLost) {
            self.fault = None;
        }
        Some(kind)
    }

    /// Carries out a transaction; with what it changed, if it did change anything.
    fn apply(&mut self, transaction: &Transaction) -> (Commit, Option<ChangeSet>) {
        let found = |key: &Key| self.entries.get(key).map(|entry| (entry.created, entry.modified));
        let conflicts = transaction.conflicts(found);
        if !conflicts.is_empty() {
            return (Commit::Conflict(conflicts), None);
        }
        let revision = Revision(self.revision.0 + 1);
        let mut changes = Vec::new();
        for write in transaction.writes() {
            let key = write.key().clone();
            match write {
                Write::Put(_, value) => {
                    let created = self.entries.get(&key).map_or(revision, |entry| entry.created);
                    let entry = Entry::new(key.clone(), value.clone(), created, revision);
                    self.entries.insert(key.clone(), entry);
                    changes.push(Change { key, value: Some(value.clone()) });
                }
                Write::Delete(_) if self.entries.remove(&key).is_some() => {
                    changes.push(Change { key, value: None });
                }
                Write::Delete(_) => {}
            }
        }
        if changes.is_empty() {
            return (Commit::Done(self.revision), None);
        }
        self.revision = revision;
        changes.sort_by(|one, other| one.key.cmp(&other.key));
        (Commit::Done(revision), Some(ChangeSet { revision, changes }))
    }
}

impl Store for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let state = self.lock();
        state.readable()?;
        Ok(state.entries.get(key).cloned())
    }

    async fn range(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let state = self.lock();
        state.readable()?;
        let within = |entry: &&Entry| entry.key.as_str().starts_with(prefix);
        Ok(Snapshot::new(state.revision, state.entries.values().filter(within).cloned().collect()))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, StoreError> {
        transaction.check()?;
        let mut state = self.lock();
        let fault = state.fault();
        if let Some(kind) = fault.filter(|kind| *kind != MemoryFault::UnconfirmedDone) {
            return Err(kind.error());
        }
        let (commit, changed) = state.apply(&transaction);
        // Under the lock, so that changes come in order.
        if let Some(set) = changed {
            self.history.push(set);
        }
        fault.map_or(Ok(commit), |kind| Err(kind.error()))
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        let state = self.lock();
        state.readable()?;
        if after > state.revision {
            // It is from another store.
            return Err(StoreError::Expired { after, oldest: self.history.floor() });
        }
        drop(state);
        self.history.watch(prefix, after, PLACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str) -> Transaction {
        Transaction::new().put(key.parse().unwrap(), b"1".to_vec())
    }

    async fn keys(store: &MemoryStore) -> Vec<String> {
        let entries = store.range("").await.unwrap().entries;
        entries.iter().map(|entry| entry.key.to_string()).collect()
    }

    #[tokio::test]
    async fn faults_come_when_asked_and_say_the_truth() {
        let store = MemoryStore::new();
        store.fail_after(1, MemoryFault::NotWritable);
        assert_eq!(store.commit(put("a")).await.unwrap(), Commit::Done(Revision(1)));
        for _ in 0..2 {
            let error = store.commit(put("b")).await.unwrap_err();
            assert!(matches!(error, StoreError::NotWritable { .. }), "{error}");
        }
        assert_eq!(keys(&store).await, ["a"]);
        store.fail_after(0, MemoryFault::UnconfirmedDone);
        assert!(matches!(store.commit(put("c")).await, Err(StoreError::Unconfirmed { .. })));
        store.fail_after(0, MemoryFault::UnconfirmedLost);
        assert!(matches!(store.commit(put("d")).await, Err(StoreError::Unconfirmed { .. })));
        let _ = store.commit(put("e")).await.unwrap();
        assert_eq!(keys(&store).await, ["a", "c", "e"]);
        store.fail_after(0, MemoryFault::Unavailable);
        assert!(store.commit(put("f")).await.is_err());
        assert!(store.range("").await.is_err());
        assert!(store.watch("", Revision(0)).await.is_err());
        store.heal();
        assert_eq!(keys(&store).await, ["a", "c", "e"]);
    }
}
