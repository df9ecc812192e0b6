//! What a controller must not forget: a small ordered key-value store with transactions over several keys, and watches.
//!
//! | implementation | feature | for |
//! |---|---|---|
//! | `store::file::FileStore` | `store-file` | one controller on one machine |
//! | `store::etcd::EtcdStore` | `etcd` | several controllers, of which one leads |
//! | `testing::MemoryStore` | `testing` | tests of hosts |
//!
//! A host that has a replicated log of its own implements [`Store`] on it and runs `testing::conformance` against it.

mod backup;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "store-file")]
pub mod file;
#[cfg(any(feature = "store-file", feature = "testing"))]
pub(crate) mod history;
mod leadership;
mod record;
mod shared;
mod transaction;
mod watch;

use std::fmt;
use std::future::Future;
use std::str::FromStr;

pub use backup::Backup;
pub use error::{StoreError, StoreFault};
pub use leadership::{Fence, Fenced, Leader, Leadership, SoleLeadership, Term, TermEnd};
pub use record::{Record, RecordError, decode, encode};
pub use shared::SharedStore;
pub use transaction::{Commit, Comparison, Transaction, Write};
pub use watch::{Change, ChangeSet, Changes, Watch};

/// An ordered key-value store.
///
/// Every transaction that writes gives the store a new [`Revision`]; revisions only grow, also over a restart. All
/// methods have a deadline of the implementation's own and end with [`StoreError::Timeout`] or, where it is unclear
/// whether a write has come through, [`StoreError::Unconfirmed`].
///
/// # Cancellation
/// A `commit` whose future is dropped may or may not be carried out, never in part.
pub trait Store: Send + Sync {
    /// The entry under a key.
    fn get(&self, key: &Key) -> impl Future<Output = Result<Option<Entry>, StoreError>> + Send;

    /// All entries whose key begins with `prefix`, sorted by key, as they were at one revision. An empty prefix is the
    /// whole store.
    fn range(&self, prefix: &str) -> impl Future<Output = Result<Snapshot, StoreError>> + Send;

    /// Carries out all of the transaction's writes if all of its comparisons hold, and nothing otherwise. When this
    /// returns [`Commit::Done`] the writes survive a crash.
    fn commit(&self, transaction: Transaction) -> impl Future<Output = Result<Commit, StoreError>> + Send;

    /// All changes of keys that begin with `prefix`, made after revision `after`, in order and without a gap.
    ///
    /// `after` is a revision that this store has given. History is bounded: where the store no longer has all changes
    /// since then, this or the watch ends with [`StoreError::Expired`], and the caller reads the range anew. The same
    /// holds for a watcher that is too slow.
    fn watch(&self, prefix: &str, after: Revision) -> impl Future<Output = Result<Watch, StoreError>> + Send;
}

/// A point in the store's history; 0 is before the first write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The most bytes of a key.
pub const MAX_KEY_BYTES: usize = 1024;

/// A key: 1 to [`MAX_KEY_BYTES`] bytes of UTF-8 without control characters, by convention a path such as
/// `accounting/account/physics`. Keys are ordered by their bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// The text of the key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Key {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        Self::try_from(text.to_owned())
    }
}

impl TryFrom<String> for Key {
    type Error = StoreError;

    fn try_from(text: String) -> Result<Self, StoreError> {
        if text.is_empty() || text.len() > MAX_KEY_BYTES || text.chars().any(char::is_control) {
            return Err(StoreError::Key(text));
        }
        Ok(Self(text))
    }
}

/// What stands under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: Vec<u8>,
    /// When the key came to be; one that was deleted and made anew has another.
    pub created: Revision,
    /// When it was last written.
    pub modified: Revision,
}

impl Entry {
    /// An entry, for implementations.
    #[must_use]
    pub fn new(key: Key, value: Vec<u8>, created: Revision, modified: Revision) -> Self {
        Self { key, value, created, modified }
    }
}

/// Entries as they were at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// The store's revision at that moment, whichever keys it was about.
    pub revision: Revision,
    /// The entries, sorted by key.
    pub entries: Vec<Entry>,
}

impl Snapshot {
    /// A snapshot, for implementations.
    #[must_use]
    pub fn new(revision: Revision, entries: Vec<Entry>) -> Self {
        Self { revision, entries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_hold_what_can_be_printed() {
        let longest = "k".repeat(MAX_KEY_BYTES);
        for good in ["a", " ", "a/b c", "\u{e4}\u{10ffff}", &longest] {
            assert_eq!(good.parse::<Key>().unwrap().as_str(), good);
        }
        let too_long = "k".repeat(MAX_KEY_BYTES + 1);
        for bad in ["", "a\n", "\0", "\u{7f}", "\u{85}", &too_long] {
            assert!(matches!(bad.parse::<Key>(), Err(StoreError::Key(_))), "{bad:?}");
        }
    }
}
