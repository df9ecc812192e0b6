//! Whether what concurrent clients of a store have seen can be explained by one order of their operations.
//!
//! Wing and Gong's search ([Testing and Verifying Concurrent Objects], 1993) over a model of the store, with
//! configurations that were refuted once remembered. It suits histories of a few hundred operations on a few keys.
//!
//! [Testing and Verifying Concurrent Objects]: https://doi.org/10.1006/jpdc.1993.1015

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::dice::Dice;
use crate::store::{
    Commit, Comparison, Entry, Key, Revision, SharedStore, Snapshot, Store, StoreError, Transaction, Write,
};

/// Records what clients ask a store and what it answers.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<Log>);

#[derive(Debug, Default)]
struct Log {
    /// Counts calls and returns, so that each has its place.
    clock: u64,
    operations: Vec<Operation>,
}

#[derive(Debug, Clone)]
struct Operation {
    called: u64,
    /// `None`: it never returned, or what became of it is not known.
    returned: Option<u64>,
    /// `None` for one that certainly did nothing.
    action: Option<Action>,
}

#[derive(Debug, Clone)]
enum Action {
    Get(Key, Option<Entry>),
    Range(String, Snapshot),
    /// With its outcome, where that is known.
    Commit(Transaction, Option<Commit>),
}

impl Recorder {
    /// Nothing recorded yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, action: Option<Action>) -> usize {
        let mut log = self.lock();
        log.clock += 1;
        let called = log.clock;
        log.operations.push(Operation { called, returned: None, action });
        log.operations.len() - 1
    }

    fn settle(&self, index: usize, returned: bool, action: Option<Action>) {
        let mut log = self.lock();
        log.clock += 1;
        let now = log.clock;
        if let Some(operation) = log.operations.get_mut(index) {
            operation.returned = returned.then_some(now);
            operation.action = action;
        }
    }

    /// Reads a key of `store`, and records it.
    ///
    /// # Cancellation
    /// It is recorded as if it had not been called.
    pub async fn get(&self, store: &impl Store, key: &Key) -> Result<Option<Entry>, StoreError> {
        let index = self.call(None);
        let answer = store.get(key).await;
        let action = answer.as_ref().ok().map(|found| Action::Get(key.clone(), found.clone()));
        self.settle(index, true, action);
        answer
    }

    /// Reads a range of `store`, and records it.
    ///
    /// # Cancellation
    /// It is recorded as if it had not been called.
    pub async fn range(&self, store: &impl Store, prefix: &str) -> Result<Snapshot, StoreError> {
        let index = self.call(None);
        let answer = store.range(prefix).await;
        let action = answer.as_ref().ok().map(|found| Action::Range(prefix.to_owned(), found.clone()));
        self.settle(index, true, action);
        answer
    }

    /// Commits a transaction to `store`, and records it.
    ///
    /// # Cancellation
    /// It is recorded as one that may or may not have been carried out.
    pub async fn commit(&self, store: &impl Store, transaction: Transaction) -> Result<Commit, StoreError> {
        let index = self.call(Some(Action::Commit(transaction.clone(), None)));
        let answer = store.commit(transaction.clone()).await;
        match &answer {
            Ok(commit) => {
                self.settle(index, true, Some(Action::Commit(transaction, Some(commit.clone()))));
            }
            Err(StoreError::Unconfirmed { .. } | StoreError::Timeout { .. }) => {
                self.settle(index, false, Some(Action::Commit(transaction, None)));
            }
            Err(_) => self.settle(index, true, None),
        }
        answer
    }

    /// How many operations were recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().operations.len()
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Judges what was recorded, on a store that was empty before.
    ///
    /// # Errors
    /// [`NotLinearizable`] when no order of the operations explains it.
    pub fn check(&self) -> Result<(), NotLinearizable> {
        let mut operations: Vec<Operation> = self.lock().operations.clone();
        operations.retain(|operation| operation.action.is_some());
        operations.sort_by_key(|operation| operation.called);
        Search { operations: &operations, refuted: HashSet::new(), longest: Vec::new() }.run()
    }
}

/// Lets `clients` do `each` random things with three keys of `store`, side by side, and records them: reads, ranges, puts,
/// deletions, creations, and transactions that compare what was read and write two keys. An error of the store is
/// recorded as what it says; the client goes on. Needs a Tokio runtime.
///
/// # Cancellation
/// The clients stop.
pub async fn exercise(store: &SharedStore, seed: u64, clients: u64, each: u64) -> Arc<Recorder> {
    let recorder = Arc::new(Recorder::new());
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..clients {
        let (store, recorder) = (store.clone(), Arc::clone(&recorder));
        let mut dice = Dice::new(seed.wrapping_mul(1000).wrapping_add(client));
        tasks.spawn(async move {
            for index in 0..each {
                // What it says is recorded.
                let _ = operation(&store, &recorder, &mut dice, &format!("{client}.{index}")).await;
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    recorder
}

async fn operation(
    store: &SharedStore,
    recorder: &Recorder,
    dice: &mut Dice,
    unique: &str,
) -> Result<(), StoreError> {
    let mut names = ["r/a", "r/b", "r/c"];
    names.rotate_left(usize::try_from(dice.roll(3)).unwrap_or(0));
    let [one, other, _] = names;
    let (one, other): (Key, Key) = (one.parse()?, other.parse()?);
    let value = unique.as_bytes().to_vec();
    let transaction = match dice.roll(8) {
        0 | 1 => return recorder.get(store, &one).await.map(drop),
        2 => return recorder.range(store, "r/").await.map(drop),
        3 => Transaction::new().put(one, value),
        4 => Transaction::new().delete(one),
        5 => Transaction::new().when(Comparison::Absent(one.clone())).put(one, value),
        _ => {
            let Some(entry) = recorder.get(store, &one).await? else { return Ok(()) };
            let comparison = if dice.roll(2) == 0 {
                Comparison::Modified(one.clone(), entry.modified)
            } else {
                Comparison::Created(one.clone(), entry.created)
            };
            Transaction::new().when(comparison).put(one, value.clone()).put(other, value)
        }
    };
    recorder.commit(store, transaction).await.map(drop)
}

/// No order of the operations explains what was seen.
#[derive(Debug)]
pub struct NotLinearizable {
    /// The longest explanation that was found, and what does not fit behind it.
    explanation: String,
}

impl fmt::Display for NotLinearizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no order of the operations explains what was seen\n{}", self.explanation)
    }
}

impl std::error::Error for NotLinearizable {}

/// What the store holds after some of the operations. A revision is `None` as long as it is not known: that of a
/// write whose outcome is not known shows in a later read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Model {
    revision: Revision,
    entries: BTreeMap<Key, Standing>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Standing {
    value: Vec<u8>,
    created: Option<Revision>,
    modified: Option<Revision>,
}

impl Model {
    /// Whether the entry is what stands under its key; learns its revisions.
    fn is(&mut self, key: &Key, seen: Option<&Entry>) -> bool {
        match (self.entries.get_mut(key), seen) {
            (None, None) => true,
            (Some(standing), Some(entry)) => {
                let same = standing.value == entry.value
                    && standing.created.is_none_or(|revision| revision == entry.created)
                    && standing.modified.is_none_or(|revision| revision == entry.modified);
                standing.created = Some(entry.created);
                standing.modified = Some(entry.modified);
                same
            }
            _ => false,
        }
    }

    /// Whether the comparison can have come out as `outcome`.
    fn can_be(&self, comparison: &Comparison, outcome: bool) -> bool {
        let standing = self.entries.get(comparison.key());
        let revision = |seen: Option<Option<Revision>>, wanted: &Revision| match seen {
            None => !outcome,
            Some(None) => true,
            Some(Some(revision)) => (revision == *wanted) == outcome,
        };
        match comparison {
            Comparison::Absent(_) => standing.is_none() == outcome,
            Comparison::Modified(_, wanted) => revision(standing.map(|standing| standing.modified), wanted),
            Comparison::Created(_, wanted) => revision(standing.map(|standing| standing.created), wanted),
        }
    }

    /// Carries out writes, at a revision if it is known. Whether that can be.
    fn write(&mut self, transaction: &Transaction, revision: Option<Revision>) -> bool {
        let mut changed = false;
        for write in transaction.writes() {
            match write {
                Write::Put(key, value) => {
                    let created = self.entries.get(key).map_or(revision, |standing| standing.created);
                    let standing = Standing { value: value.clone(), created, modified: revision };
                    self.entries.insert(key.clone(), standing);
                    changed = true;
                }
                Write::Delete(key) => changed |= self.entries.remove(key).is_some(),
            }
        }
        let Some(revision) = revision else { return true };
        let grows = if changed { revision > self.revision } else { revision >= self.revision };
        self.revision = revision;
        grows
    }

    /// The models after an operation that is explained by this one; none if it is not.
    fn after(&self, action: &Action) -> Vec<Self> {
        let mut next = self.clone();
        let fits = match action {
            Action::Get(key, seen) => next.is(key, seen.as_ref()),
            Action::Range(prefix, seen) => next.range(prefix, seen),
            Action::Commit(transaction, Some(Commit::Done(revision))) => {
                transaction.comparisons().iter().all(|comparison| next.can_be(comparison, true))
                    && next.write(transaction, Some(*revision))
            }
            Action::Commit(transaction, Some(Commit::Conflict(keys))) => {
                !keys.is_empty()
                    && transaction.comparisons().iter().all(|comparison| {
                        // Of several comparisons of one key, one that fails is enough.
                        keys.contains(comparison.key()) || next.can_be(comparison, true)
                    })
                    && keys.iter().all(|key| {
                        let of_key = |comparison: &&Comparison| comparison.key() == key;
                        let mut comparisons = transaction.comparisons().iter().filter(of_key);
                        comparisons.any(|comparison| next.can_be(comparison, false))
                    })
            }
            Action::Commit(transaction, None) => {
                let comparisons = transaction.comparisons();
                let mut models = Vec::new();
                if comparisons.iter().any(|comparison| next.can_be(comparison, false)) {
                    models.push(next.clone());
                }
                if comparisons.iter().all(|comparison| next.can_be(comparison, true)) {
                    next.write(transaction, None);
                    models.push(next);
                }
                return models;
            }
        };
        if fits { vec![next] } else { Vec::new() }
    }

    fn range(&mut self, prefix: &str, seen: &Snapshot) -> bool {
        let within = |key: &&Key| key.as_str().starts_with(prefix);
        if self.entries.keys().filter(within).count() != seen.entries.len() || seen.revision < self.revision {
            return false;
        }
        self.revision = seen.revision;
        seen.entries.iter().all(|entry| self.is(&entry.key, Some(entry)))
    }
}

/// Which operations are explained, one bit each.
type Done = Vec<u64>;

struct Search<'a> {
    operations: &'a [Operation],
    refuted: HashSet<(Done, Model)>,
    longest: Vec<usize>,
}

/// An order so far, and what can still be tried behind it.
struct Step {
    done: Done,
    choices: Vec<(usize, Model)>,
}

impl Search<'_> {
    fn run(mut self) -> Result<(), NotLinearizable> {
        let none = vec![0; self.operations.len().div_ceil(64)];
        let mut order: Vec<usize> = Vec::new();
        let choices = self.choices(&none, &Model::default());
        if self.explained(&none) {
            return Ok(());
        }
        let mut steps = vec![Step { done: none, choices }];
        while let Some(step) = steps.last_mut() {
            let Some((index, model)) = step.choices.pop() else {
                steps.pop();
                order.pop();
                continue;
            };
            let mut done = step.done.clone();
            set(&mut done, index);
            if self.explained(&done) {
                return Ok(());
            }
            if !self.refuted.insert((done.clone(), model.clone())) {
                continue;
            }
            order.push(index);
            if order.len() > self.longest.len() {
                self.longest.clone_from(&order);
            }
            let choices = self.choices(&done, &model);
            steps.push(Step { done, choices });
        }
        Err(NotLinearizable { explanation: self.explanation() })
    }

    /// Whether nothing is left that must have happened.
    fn explained(&self, done: &Done) -> bool {
        self.operations
            .iter()
            .enumerate()
            .all(|(index, operation)| is_set(done, index) || operation.returned.is_none())
    }

    /// What may come next: whatever was called before anything else that is left returned. What has returned first is
    /// tried first.
    fn choices(&self, done: &Done, model: &Model) -> Vec<(usize, Model)> {
        let left = || self.operations.iter().enumerate().filter(|(index, _)| !is_set(done, *index));
        let first_return = left().filter_map(|(_, operation)| operation.returned).min().unwrap_or(u64::MAX);
        let mut next: Vec<(usize, &Operation)> =
            left().take_while(|(_, operation)| operation.called < first_return).collect();
        next.sort_by_key(|(_, operation)| std::cmp::Reverse(operation.returned.unwrap_or(u64::MAX)));
        let mut choices = Vec::new();
        for (index, operation) in next {
            let Some(action) = &operation.action else { continue };
            choices.extend(model.after(action).into_iter().map(|model| (index, model)));
        }
        choices
    }

    fn explanation(&self) -> String {
        let mut done = vec![0; self.operations.len().div_ceil(64)];
        let mut text = String::new();
        let mut model = Model::default();
        for index in &self.longest {
            set(&mut done, *index);
            let Some(operation) = self.operations.get(*index) else { continue };
            text.push_str(&line("explained", operation));
            if let Some(next) = operation.action.as_ref().and_then(|action| model.after(action).pop()) {
                model = next;
            }
        }
        for (index, operation) in self.operations.iter().enumerate() {
            if !is_set(&done, index) {
                text.push_str(&line("left", operation));
            }
        }
        text + &format!("state behind what is explained: {model:?}\n")
    }
}

fn line(what: &str, operation: &Operation) -> String {
    let Operation { called, returned, action } = operation;
    let returned = returned.map_or_else(|| "?".to_owned(), |at| at.to_string());
    format!("{what}: {called}..{returned} {action:?}\n")
}

fn is_set(done: &Done, index: usize) -> bool {
    done.get(index / 64).is_some_and(|word| word & (1 << (index % 64)) != 0)
}

fn set(done: &mut Done, index: usize) {
    if let Some(word) = done.get_mut(index / 64) {
        *word |= 1 << (index % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        "k".parse().unwrap()
    }

    fn put(value: &str) -> Transaction {
        Transaction::new().put(key(), value.into())
    }

    fn seen(value: &str, created: u64, modified: u64) -> Action {
        Action::Get(key(), Some(Entry::new(key(), value.into(), Revision(created), Revision(modified))))
    }

    fn done(value: &str, revision: u64) -> Action {
        Action::Commit(put(value), Some(Commit::Done(Revision(revision))))
    }

    /// Operations as `(called, returned, action)`; 0 for one that did not return.
    fn verdict(operations: Vec<(u64, u64, Action)>) -> bool {
        let operations = operations.into_iter().map(|(called, returned, action)| Operation {
            called,
            returned: (returned > 0).then_some(returned),
            action: Some(action),
        });
        let log = Log { clock: 0, operations: operations.collect() };
        Recorder(Mutex::new(log)).check().is_ok()
    }

    #[test]
    fn a_read_may_see_a_write_that_runs() {
        assert!(verdict(vec![(1, 4, done("a", 1)), (2, 3, seen("a", 1, 1))]));
        assert!(verdict(vec![(1, 4, done("a", 1)), (2, 3, Action::Get(key(), None))]));
    }

    #[test]
    fn a_read_must_see_a_write_that_has_returned() {
        assert!(!verdict(vec![(1, 2, done("a", 1)), (3, 4, Action::Get(key(), None))]));
    }

    #[test]
    fn a_read_does_not_go_back() {
        let history = |first: Action, second: Action| {
            verdict(vec![(1, 2, done("a", 1)), (3, 10, done("b", 2)), (4, 5, first), (6, 7, second)])
        };
        assert!(history(seen("a", 1, 1), seen("b", 1, 2)));
        assert!(!history(seen("b", 1, 2), seen("a", 1, 1)));
    }

    #[test]
    fn revisions_must_grow() {
        assert!(verdict(vec![(1, 2, done("a", 1)), (3, 4, done("b", 2))]));
        assert!(!verdict(vec![(1, 2, done("a", 2)), (3, 4, done("b", 1))]));
        assert!(!verdict(vec![(1, 4, done("a", 1)), (2, 3, done("b", 1))]));
    }

    #[test]
    fn an_unknown_write_may_come_late_or_never_but_not_twice() {
        let unknown = || (1, 0, Action::Commit(put("a"), None));
        assert!(verdict(vec![unknown(), (2, 3, Action::Get(key(), None)), (4, 5, seen("a", 7, 7))]));
        assert!(verdict(vec![unknown(), (2, 3, done("b", 1)), (4, 5, seen("b", 1, 1))]));
        assert!(!verdict(vec![
            unknown(),
            (2, 3, seen("a", 1, 1)),
            (4, 5, done("b", 2)),
            (6, 7, seen("a", 1, 1))
        ]));
    }

    #[test]
    fn of_two_creations_one_must_fail() {
        let create = |value: &str, outcome: Commit| {
            Action::Commit(put(value).when(Comparison::Absent(key())), Some(outcome))
        };
        let won = || create("a", Commit::Done(Revision(1)));
        assert!(verdict(vec![(1, 3, won()), (2, 4, create("b", Commit::Conflict(vec![key()])))]));
        assert!(!verdict(vec![(1, 3, won()), (2, 4, create("b", Commit::Done(Revision(2))))]));
        assert!(!verdict(vec![(1, 2, create("b", Commit::Conflict(vec![key()]))), (3, 4, won())]));
    }

    #[test]
    fn a_range_is_one_moment() {
        let other: Key = "l".parse().unwrap();
        let both = Transaction::new().put(key(), b"1".to_vec()).put(other.clone(), b"1".to_vec());
        let write = (1, 4, Action::Commit(both, Some(Commit::Done(Revision(5)))));
        let entry = |key: &Key| Entry::new(key.clone(), b"1".to_vec(), Revision(5), Revision(5));
        let range = |entries| (2, 3, Action::Range(String::new(), Snapshot::new(Revision(5), entries)));
        assert!(verdict(vec![write.clone(), range(vec![entry(&key()), entry(&other)])]));
        assert!(!verdict(vec![write, range(vec![entry(&key())])]));
    }
}
