//! A store of a kind that is chosen at run time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::{Commit, Entry, Key, Revision, Snapshot, Store, StoreError, Transaction, Watch};

impl<S: Store> Store for Arc<S> {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        (**self).get(key).await
    }

    async fn range(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        (**self).range(prefix).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, StoreError> {
        (**self).commit(transaction).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        (**self).watch(prefix, after).await
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

trait Boxed: Send + Sync {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Entry>>;
    fn range<'a>(&'a self, prefix: &'a str) -> Answer<'a, Snapshot>;
    fn commit(&self, transaction: Transaction) -> Answer<'_, Commit>;
    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> Answer<'a, Watch>;
}

impl<S: Store> Boxed for S {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Entry>> {
        Box::pin(Store::get(self, key))
    }

    fn range<'a>(&'a self, prefix: &'a str) -> Answer<'a, Snapshot> {
        Box::pin(Store::range(self, prefix))
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Commit> {
        Box::pin(Store::commit(self, transaction))
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> Answer<'a, Watch> {
        Box::pin(Store::watch(self, prefix, after))
    }
}

/// A store of a kind that is chosen at run time. Clones are the same store.
#[derive(Clone)]
pub struct SharedStore(Arc<dyn Boxed>);

impl SharedStore {
    /// Shares a store.
    #[must_use]
    pub fn new(store: impl Store + 'static) -> Self {
        Self(Arc::new(store))
    }
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").finish_non_exhaustive()
    }
}

impl Store for SharedStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.0.get(key).await
    }

    async fn range(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.0.range(prefix).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, StoreError> {
        self.0.commit(transaction).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        self.0.watch(prefix, after).await
    }
}
