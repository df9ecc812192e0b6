//! Changes as they happen.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use super::{Key, Revision, StoreError};

/// A key that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Key,
    /// The new value; `None` if it was deleted.
    pub value: Option<Vec<u8>>,
}

/// What one transaction changed of the keys that are watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeSet {
    /// The transaction's revision.
    pub revision: Revision,
    /// The changes, sorted by key.
    pub changes: Vec<Change>,
}

/// Where a [`Watch`] gets its changes from; for implementations of [`super::Store`].
pub trait Changes: Send {
    /// The next transaction's changes. After an error nothing follows. Dropping the future loses nothing.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<ChangeSet, StoreError>> + Send + '_>>;
}

/// A watch; dropping it ends it.
pub struct Watch(Box<dyn Changes>);

impl Watch {
    /// A watch over an implementation's changes.
    #[must_use]
    pub fn new(changes: impl Changes + 'static) -> Self {
        Self(Box::new(changes))
    }

    /// Waits for the next transaction that changes something that is watched.
    ///
    /// # Errors
    /// [`StoreError::Expired`] if changes were missed: read the range anew. Others if the store is gone: watch anew
    /// from the last revision that was seen.
    ///
    /// # Cancellation
    /// Nothing is lost; the next call gives what this one would have given.
    pub async fn next(&mut self) -> Result<ChangeSet, StoreError> {
        self.0.next().await
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
