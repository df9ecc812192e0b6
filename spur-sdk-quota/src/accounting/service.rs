//! The accounts of a site: one task changes them, everybody reads.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use spur_sdk::Clock;
use spur_sdk::store::{
    Commit, Comparison, Key, Record, Revision, Store, StoreError, Transaction, decode, encode,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::AccountingError;
use super::book::{Book, PREFIX, Put};
use super::draft::{Change, Draft, Step};
use super::records::{Head, HistoryRecord};

/// Changes that wait; more wait in their callers.
const QUEUE: usize = 64;

/// Where the history is kept. Not among the accounts, so that it need not be read to know these.
const HISTORY: &str = "history/";

/// Entries of the history that are kept under one prefix, so that the newest can be read alone.
const CHAPTER: u64 = 1000;

/// The records and entries of one transaction; the head comes on top.
const MAX_STEPS: usize = (Transaction::MAX_OPERATIONS - 2) / 2;

/// What was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed {
    /// In words, a line for each record.
    pub lines: Vec<String>,
    /// The state since then.
    pub revision: Revision,
}

/// An entry of the history and its number, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Its number.
    pub number: u64,
    /// The entry.
    pub record: HistoryRecord,
}

/// Which entries of the history.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HistoryQuery {
    /// Only what comes after this number.
    pub after: u64,
    /// At most so many, the newest.
    pub limit: usize,
    /// Only what is about this; empty is everything.
    pub subject: String,
}

enum Request {
    Change { changes: Vec<Change>, caller: String, answer: oneshot::Sender<Result<Changed, AccountingError>> },
    History { query: HistoryQuery, answer: oneshot::Sender<Result<Vec<HistoryEntry>, AccountingError>> },
}

/// The accounts of a site. Clones are the same.
#[derive(Debug, Clone)]
pub struct Accounting {
    requests: mpsc::Sender<Request>,
    book: watch::Receiver<Arc<Book>>,
}

impl Accounting {
    /// Reads the accounts that a store keeps. The future beside it makes the changes: the host runs it, for as long as
    /// this controller leads. `store` should be [fenced](spur_sdk::store::Fenced).
    ///
    /// # Errors
    /// Those of the store, [`StoreError::Damaged`] for a record that cannot be read among them.
    ///
    /// # Cancellation
    /// Nothing is left behind. When the other future is dropped, changes under way are made or not, never in part.
    pub async fn open<S, C>(
        store: S,
        clock: C,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<S, C>), StoreError>
    where
        S: Store,
        C: Clock,
    {
        let book = Arc::new(Book::read(&store.range(PREFIX).await?)?);
        let (requests, queue) = mpsc::channel(QUEUE);
        let (publish, published) = watch::channel(book);
        let writer = Writer { store, clock, publish, stale: false };
        Ok((Self { requests, book: published }, writer.run(queue)))
    }

    /// The accounts now.
    #[must_use]
    pub fn book(&self) -> Arc<Book> {
        Arc::clone(&self.book.borrow())
    }

    /// Ends when the accounts are no longer at a revision, with the one that they are at.
    ///
    /// # Errors
    /// [`AccountingError::Stopped`].
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub async fn changed_since(&self, seen: Revision) -> Result<Revision, AccountingError> {
        let mut book = self.book.clone();
        let changed = book.wait_for(|book| book.revision != seen).await;
        changed.map(|book| book.revision).map_err(|_| AccountingError::Stopped)
    }

    /// Makes changes, all or none, in the name of `caller`.
    pub(super) async fn change(
        &self,
        changes: Vec<Change>,
        caller: String,
    ) -> Result<Changed, AccountingError> {
        let (answer, answered) = oneshot::channel();
        self.ask(Request::Change { changes, caller, answer }).await?;
        answered.await.map_err(|_| AccountingError::Stopped)?
    }

    /// Entries of the history, oldest first.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn history(&self, query: HistoryQuery) -> Result<Vec<HistoryEntry>, AccountingError> {
        let (answer, answered) = oneshot::channel();
        self.ask(Request::History { query, answer }).await?;
        answered.await.map_err(|_| AccountingError::Stopped)?
    }

    async fn ask(&self, request: Request) -> Result<(), AccountingError> {
        self.requests.send(request).await.map_err(|_| AccountingError::Stopped)
    }

    /// What changes would do, without making them.
    pub(super) fn dry_run(&self, changes: Vec<Change>) -> Result<Changed, AccountingError> {
        let book = self.book();
        let steps = plan(&book, changes)?;
        Ok(Changed { lines: lines(&steps), revision: book.revision })
    }
}

fn plan(book: &Book, changes: Vec<Change>) -> Result<Vec<Step>, AccountingError> {
    let mut draft = Draft::new(book);
    for change in changes {
        draft.make(change)?;
    }
    Ok(draft.steps)
}

fn lines(steps: &[Step]) -> Vec<String> {
    steps.iter().map(|step| format!("{}: {}", step.put.subject(), step.change)).collect()
}

/// Makes the changes.
struct Writer<S, C> {
    store: S,
    clock: C,
    publish: watch::Sender<Arc<Book>>,
    /// Whether the store may have what the book has not.
    stale: bool,
}

impl<S: Store, C: Clock> Writer<S, C> {
    async fn run(mut self, mut queue: mpsc::Receiver<Request>) {
        while let Some(request) = queue.recv().await {
            // Nobody waits for an answer that cannot be sent.
            match request {
                Request::Change { changes, caller, answer } => {
                    drop(answer.send(self.change(&changes, &caller).await));
                }
                Request::History { query, answer } => drop(answer.send(self.history(&query).await)),
            }
        }
    }

    async fn change(&mut self, changes: &[Change], caller: &str) -> Result<Changed, AccountingError> {
        // Another writer is possible only for a moment, and is not ours: once more is enough, a few times is plenty.
        for attempt in 0_u8.. {
            if self.stale {
                self.read_anew().await?;
            }
            let book = Arc::clone(&self.publish.borrow());
            let steps = plan(&book, changes.to_vec())?;
            match self.carry_out(&book, &steps, caller).await {
                Ok(Some(revision)) => return Ok(Changed { lines: lines(&steps), revision }),
                Ok(None) if attempt < 3 => self.stale = true,
                Ok(None) => break,
                Err(error) => {
                    self.stale = true;
                    return Err(AccountingError::Store(error));
                }
            }
        }
        Err(AccountingError::Stopped)
    }

    async fn read_anew(&mut self) -> Result<(), AccountingError> {
        let snapshot = self.store.range(PREFIX).await.map_err(AccountingError::Store)?;
        let book = Book::read(&snapshot).map_err(AccountingError::Store)?;
        self.stale = false;
        self.publish.send_if_modified(|current| {
            let differs = current.revision != book.revision;
            *current = Arc::new(book);
            differs
        });
        Ok(())
    }

    /// Writes steps, in one transaction unless they are more than one holds; then each leaves a whole book. `None` when
    /// somebody else has written.
    async fn carry_out(
        &mut self,
        book: &Book,
        steps: &[Step],
        caller: &str,
    ) -> Result<Option<Revision>, StoreError> {
        let mut book = book.clone();
        let time =
            self.clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        for part in steps.chunks(MAX_STEPS) {
            let (transaction, head) = write(&book, part, caller, time)?;
            match self.store.commit(transaction).await? {
                Commit::Done(revision) => {
                    for step in part {
                        book.put(step.put.clone());
                    }
                    if !part.is_empty() {
                        book.head = head;
                        book.revision = revision;
                        book.head_revision = revision;
                    }
                    self.publish.send_replace(Arc::new(book.clone()));
                }
                Commit::Conflict(_) => return Ok(None),
            }
        }
        Ok(Some(book.revision))
    }

    async fn history(&self, query: &HistoryQuery) -> Result<Vec<HistoryEntry>, AccountingError> {
        let last = self.publish.borrow().head.changes;
        let mut found = Vec::new();
        let mut chapter = last.checked_div(CHAPTER).unwrap_or_default();
        loop {
            let read = self.store.range(&chapter_prefix(chapter)).await.map_err(AccountingError::Store)?;
            for entry in read.entries.iter().rev() {
                let number = entry.key.as_str().rsplit_once('/').and_then(|(_, number)| number.parse().ok());
                let number: u64 = number.unwrap_or_default();
                let record: HistoryRecord = decode(entry).map_err(AccountingError::Store)?;
                if number <= query.after || found.len() >= query.limit {
                    found.reverse();
                    return Ok(found);
                }
                if query.subject.is_empty() || record.subject == query.subject {
                    found.push(HistoryEntry { number, record });
                }
            }
            let Some(earlier) = chapter.checked_sub(1) else { break };
            chapter = earlier;
        }
        found.reverse();
        Ok(found)
    }
}

fn chapter_prefix(chapter: u64) -> String {
    format!("{HISTORY}{chapter:012}/")
}

/// A transaction of some steps, and the head that it writes.
fn write(book: &Book, steps: &[Step], caller: &str, time: u64) -> Result<(Transaction, Head), StoreError> {
    let head_key: Key = format!("{PREFIX}head").try_into()?;
    let same = match book.head_revision {
        Revision(0) => Comparison::Absent(head_key.clone()),
        revision => Comparison::Modified(head_key.clone(), revision),
    };
    let mut transaction = Transaction::new().when(same);
    let mut head = book.head;
    // A record that several steps change is written once, as the last one leaves it.
    let mut records = BTreeMap::new();
    for step in steps {
        head.changes = head.changes.saturating_add(1);
        let chapter = chapter_prefix(head.changes.checked_div(CHAPTER).unwrap_or_default());
        let key: Key = format!("{chapter}{:015}", head.changes).try_into()?;
        let entry = HistoryRecord {
            time,
            caller: caller.to_owned(),
            subject: step.put.subject(),
            change: step.change.clone(),
        };
        transaction = transaction.put(key.clone(), bytes(&key, &entry)?);
        let key = step.put.key()?;
        let value = match &step.put {
            Put::Account(_, record) => record.as_ref().map(|record| bytes(&key, record)),
            Put::User(_, record) => record.as_ref().map(|record| bytes(&key, record)),
            Put::Member(_, _, record) => record.as_ref().map(|record| bytes(&key, record)),
            Put::Qos(_, record) => record.as_ref().map(|record| bytes(&key, record)),
        };
        records.insert(key, value.transpose()?);
    }
    for (key, value) in records {
        transaction = match value {
            Some(value) => transaction.put(key, value),
            None => transaction.delete(key),
        };
    }
    // Nothing to change leaves the head as it is.
    if !steps.is_empty() {
        let value = bytes(&head_key, &head)?;
        transaction = transaction.put(head_key, value);
    }
    Ok((transaction, head))
}

fn bytes<R: Record>(key: &Key, record: &R) -> Result<Vec<u8>, StoreError> {
    encode(record).map_err(|error| StoreError::damaged(key, spur_sdk::error_chain(&error)))
}
