//! Who may write.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use super::{Commit, Comparison, Entry, Key, Revision, Snapshot, Store, StoreError, Transaction, Watch};

/// One of several controllers leads; the others wait for it to stop.
pub trait Leadership: Send + Sync {
    /// Waits until this candidate leads.
    ///
    /// # Cancellation
    /// The candidacy is over. A term that had just begun ends by itself when its lease does.
    fn campaign(&self) -> impl Future<Output = Result<Term, StoreError>> + Send;

    /// Who leads; `None` while nobody does.
    fn leader(&self) -> impl Future<Output = Result<Option<Leader>, StoreError>> + Send;
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its name.
    pub name: String,
    /// Where the other controllers and clients reach it, `HOST:PORT`; empty if nowhere.
    pub address: String,
    /// Its term.
    pub fence: Fence,
}

/// What tells one term from any other: an entry that is made when a term begins and deleted when it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The entry.
    pub key: Key,
    /// When it came to be.
    pub created: Revision,
}

/// The end of a term; for implementations of [`Leadership`].
pub trait TermEnd: Send + Sync {
    /// Ends when the term does, at the latest when somebody else may lead.
    fn lost(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    /// Ends the term.
    fn resign(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// A term of leadership. Dropping it lets it run out.
pub struct Term {
    fence: Fence,
    end: Box<dyn TermEnd>,
}

impl Term {
    /// A term, for implementations.
    #[must_use]
    pub fn new(fence: Fence, end: impl TermEnd + 'static) -> Self {
        Self { fence, end: Box::new(end) }
    }

    /// What every write of this term carries; see [`Fenced`].
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Ends when this term does, at the latest when somebody else may lead.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub async fn lost(&self) {
        self.end.lost().await;
    }

    /// Ends the term, so that another candidate need not wait. A store that is not available is not waited for: the
    /// term then ends by itself.
    pub async fn resign(self) {
        self.end.resign().await;
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// A store of which each write is refused with [`StoreError::Deposed`] when a term is over, however late it arrives.
#[derive(Debug, Clone)]
pub struct Fenced<S> {
    store: S,
    fence: Fence,
}

impl<S: Store> Fenced<S> {
    /// A store behind a term's fence.
    #[must_use]
    pub fn new(store: S, fence: Fence) -> Self {
        Self { store, fence }
    }
}

impl<S: Store> Store for Fenced<S> {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.store.get(key).await
    }

    async fn range(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.store.range(prefix).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, StoreError> {
        let fence = Comparison::Created(self.fence.key.clone(), self.fence.created);
        match self.store.commit(transaction.when(fence)).await? {
            Commit::Conflict(keys) if keys.contains(&self.fence.key) => Err(StoreError::Deposed),
            commit => Ok(commit),
        }
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        self.store.watch(prefix, after).await
    }
}

/// Leadership over a store that one process has to itself: it leads at once, and whatever an earlier process of the
/// same store left behind is deposed.
#[derive(Debug, Clone)]
pub struct SoleLeadership<S> {
    store: S,
    name: String,
    address: String,
}

/// The entry of the term.
const LEADER: &str = "leader";

impl<S: Store> SoleLeadership<S> {
    /// Leadership over `store` by the only candidate there is.
    #[must_use]
    pub fn new(store: S, name: &str, address: &str) -> Self {
        Self { store, name: name.to_owned(), address: address.to_owned() }
    }
}

impl<S: Store> Leadership for SoleLeadership<S> {
    async fn campaign(&self) -> Result<Term, StoreError> {
        let key: Key = LEADER.parse()?;
        let value = format!("{}\n{}", self.name, self.address).into_bytes();
        loop {
            if let Some(earlier) = self.store.get(&key).await? {
                let same = Comparison::Created(key.clone(), earlier.created);
                // Whether it is gone is seen below.
                let _ = self.store.commit(Transaction::new().when(same).delete(key.clone())).await?;
            }
            let begin =
                Transaction::new().when(Comparison::Absent(key.clone())).put(key.clone(), value.clone());
            if let Commit::Done(created) = self.store.commit(begin).await? {
                return Ok(Term::new(Fence { key, created }, Endless));
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

/// A term that lasts as long as its process has the store.
struct Endless;

impl TermEnd for Endless {
    fn lost(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }

    fn resign(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }
}
