//! What every [`Store`] must pass, and whoever builds on one relies on.
//!
//! ```
//! # use spur_sdk::testing::{MemoryStore, conformance};
//! # async fn my_store_passes() -> Result<(), conformance::Violations> {
//! let fresh = async || MemoryStore::new();
//! let forget = async |store: &MemoryStore| store.forget_history();
//! conformance::run(fresh, forget).await
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(my_store_passes()).unwrap();
//! ```

mod concurrency;
mod leadership;
mod reads;
mod transactions;
mod watches;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::store::{
    ChangeSet, Commit, Entry, Key, Revision, SharedStore, Snapshot, Store, StoreError, Transaction, Watch,
};

/// Runs all cases, each on a store of its own, and says which a store does not pass.
///
/// `fresh` makes an empty store that nobody else writes to; each call another. `forget` makes the store forget the
/// history that it has, so that a watch from an earlier revision is [`StoreError::Expired`]; it may write to keys that
/// begin with `forget/`.
///
/// Runs in a Tokio runtime with time enabled, whose threads share the concurrent cases; it takes a few seconds on a
/// store that needs a millisecond for a commit. Each case ends after a minute at the latest.
///
/// # Errors
/// [`Violations`], whose text names each case that failed and what was wrong.
pub async fn run<S: Store + 'static>(
    fresh: impl AsyncFn() -> S,
    forget: impl AsyncFn(&S),
) -> Result<(), Violations> {
    let mut violations = Vec::new();
    for (name, case) in cases() {
        let store = Arc::new(fresh().await);
        let shared = SharedStore::new(Arc::clone(&store));
        let outcome = tokio::time::timeout(CASE, async {
            match case {
                Case::Plain(case) => case(shared).await,
                Case::Forgetting(before, after) => {
                    let held = before(shared.clone()).await?;
                    forget(&store).await;
                    after(shared, held).await
                }
            }
        });
        let outcome = outcome.await.unwrap_or_else(|_| fail(format!("it did not end within {CASE:?}")));
        if let Err(Failure(what)) = outcome {
            violations.push(Violation { case: name, what });
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(Violations(violations)) }
}

/// How long a case may take.
const CASE: Duration = Duration::from_mins(1);

/// How long a change may take to reach a watch.
const CHANGE: Duration = Duration::from_secs(10);

/// The names of all cases, in the order in which they run.
#[must_use]
pub fn names() -> Vec<&'static str> {
    cases().into_iter().map(|(name, _)| name).collect()
}

/// What a store does not do as it must.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The case, a sentence.
    pub case: &'static str,
    /// What was seen.
    pub what: String,
}

/// The cases that a store does not pass.
#[derive(Clone, PartialEq, Eq)]
pub struct Violations(pub Vec<Violation>);

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} cases failed", self.0.len(), cases().len())?;
        for Violation { case, what } in &self.0 {
            write!(f, "\n{case}: {what}")?;
        }
        Ok(())
    }
}

// What a test that unwraps prints.
impl fmt::Debug for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Violations {}

/// Why a case failed.
#[derive(Debug)]
struct Failure(String);

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self(format!("an error that was not expected: {}", crate::error_chain(&error)))
    }
}

type Outcome<T = ()> = Result<T, Failure>;
type Running<T = ()> = Pin<Box<dyn Future<Output = Outcome<T>> + Send>>;

/// What a case holds while history is forgotten.
type Held = (Revision, Vec<Watch>);

enum Case {
    Plain(fn(SharedStore) -> Running),
    /// What is done before and after history is forgotten.
    Forgetting(fn(SharedStore) -> Running<Held>, fn(SharedStore, Held) -> Running),
}

fn cases() -> Vec<(&'static str, Case)> {
    let mut cases = Vec::new();
    cases.extend(reads::cases());
    cases.extend(transactions::cases());
    cases.extend(watches::cases());
    cases.extend(leadership::cases());
    cases.extend(concurrency::cases());
    cases
}

/// Async functions as cases that are named like them.
macro_rules! plain {
    ($($name:ident),* $(,)?) => {
        vec![$((stringify!($name), $crate::testing::conformance::Case::Plain(|store| Box::pin($name(store))))),*]
    };
}
use plain;

fn fail<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Failure(what.into()))
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Failure(what())) }
}

fn same<T: PartialEq + fmt::Debug>(what: &str, found: &T, expected: &T) -> Outcome {
    ensure(found == expected, || format!("{what} is {found:?}, not {expected:?}"))
}

fn key(text: &str) -> Outcome<Key> {
    Ok(text.parse()?)
}

/// A transaction that sets values.
fn puts(values: &[(&str, &str)]) -> Outcome<Transaction> {
    values.iter().try_fold(Transaction::new(), |transaction, (name, value)| {
        Ok(transaction.put(key(name)?, value.as_bytes().to_vec()))
    })
}

/// Commits what must succeed.
async fn done(store: &impl Store, transaction: Transaction) -> Outcome<Revision> {
    match store.commit(transaction).await? {
        Commit::Done(revision) => Ok(revision),
        Commit::Conflict(keys) => fail(format!("a transaction is in conflict over {keys:?}")),
    }
}

/// Sets one value.
async fn put(store: &impl Store, name: &str, value: &str) -> Outcome<Revision> {
    done(store, puts(&[(name, value)])?).await
}

/// The entry that must be there.
async fn entry(store: &impl Store, name: &str) -> Outcome<Entry> {
    match store.get(&key(name)?).await? {
        Some(entry) => Ok(entry),
        None => fail(format!("nothing stands under {name:?}")),
    }
}

/// The value under a key, as text.
async fn value(store: &impl Store, name: &str) -> Outcome<Option<String>> {
    let entry = store.get(&key(name)?).await?;
    Ok(entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()))
}

/// The keys of a snapshot.
fn keys(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.entries.iter().map(|entry| entry.key.as_str()).collect()
}

/// The next change set, which must come.
async fn next(watch: &mut Watch) -> Outcome<ChangeSet> {
    match tokio::time::timeout(CHANGE, watch.next()).await {
        Ok(set) => Ok(set?),
        Err(_) => fail(format!("no change came within {CHANGE:?}")),
    }
}

/// A change set as text, deletions as `-`.
fn changes(set: &ChangeSet) -> Vec<(String, String)> {
    let text = |value: &Option<Vec<u8>>| {
        value.as_ref().map_or_else(|| "-".to_owned(), |value| String::from_utf8_lossy(value).into_owned())
    };
    set.changes.iter().map(|change| (change.key.to_string(), text(&change.value))).collect()
}

/// Changes that are expected, as [`changes`] gives them.
fn expected(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    changes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Runs tasks side by side, and gives what they return.
async fn together<T: Send + 'static>(tasks: Vec<Running<T>>) -> Outcome<Vec<T>> {
    let mut running = tokio::task::JoinSet::new();
    for task in tasks {
        running.spawn(task);
    }
    let mut returned = Vec::new();
    while let Some(task) = running.join_next().await {
        match task {
            Ok(outcome) => returned.push(outcome?),
            Err(error) => return fail(format!("a task of the case failed: {error}")),
        }
    }
    Ok(returned)
}

/// Polls a future once.
fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
