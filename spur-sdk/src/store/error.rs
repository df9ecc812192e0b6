//! What can go wrong with a store.

use std::path::PathBuf;

use super::{Key, MAX_KEY_BYTES, Revision};
use crate::{Classify, ErrorKind};

/// What the system below a store says.
pub type StoreFault = Box<dyn std::error::Error + Send + Sync>;

/// A store did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A key is empty, too long or holds control characters.
    #[error("{0:?} is no key: 1 to {MAX_KEY_BYTES} bytes without control characters")]
    Key(String),
    /// A transaction is larger than every store takes, or names a key twice.
    #[error("transaction: {0}")]
    Transaction(String),
    /// History since the revision is gone: read the range anew and watch from its revision.
    #[error("changes since revision {after} are gone, the oldest that are kept follow revision {oldest}")]
    Expired {
        /// The revision that was asked for.
        after: Revision,
        /// The oldest one that can be asked for; 0 where the store does not know.
        oldest: Revision,
    },
    /// Somebody else leads: nothing was written, and nothing that this term writes ever will be.
    #[error("this term of leadership is over")]
    Deposed,
    /// There is no store.
    #[error("there is no store at {path}: restore a backup, or initialise it if it is meant to be new")]
    Missing {
        /// The store's file.
        path: PathBuf,
    },
    /// There is something already where a store or its content is meant to go. Nothing was changed.
    #[error("{place} is not empty: nothing was restored")]
    NotEmpty {
        /// The file or the endpoints.
        place: String,
    },
    /// A later version of this program wrote it.
    #[error(
        "{place} is of format {found}, this version reads up to {newest}: use the version that wrote it, or a later one"
    )]
    Newer {
        /// The file.
        place: String,
        /// Its format.
        found: u32,
        /// The newest that is known.
        newest: u32,
    },
    /// Another process has the store.
    #[error("{path} is in use by {holder}")]
    InUse {
        /// The store's file.
        path: PathBuf,
        /// The process that has it, in words.
        holder: String,
    },
    /// What is stored cannot be read. Nothing was changed.
    #[error("{place} is damaged: {what}")]
    Damaged {
        /// The file or the key.
        place: String,
        /// What is wrong, and the way out.
        what: String,
    },
    /// Writes are refused, as by a full or read-only disk; reads go on. Nothing was written.
    #[error("{place} cannot be written")]
    NotWritable {
        /// The file or the endpoint.
        place: String,
        /// Why.
        #[source]
        source: StoreFault,
    },
    /// The store cannot be reached or is closed. Nothing was written.
    #[error("{place} is not available")]
    Unavailable {
        /// The file or the endpoints.
        place: String,
        /// Why.
        #[source]
        source: StoreFault,
    },
    /// The store refuses the caller: password, certificate or rights.
    #[error("{place} refuses access")]
    Denied {
        /// The file or the endpoints.
        place: String,
        /// Why.
        #[source]
        source: StoreFault,
    },
    /// No answer in time to a read.
    #[error("{place} did not answer within {after:?}")]
    Timeout {
        /// The file or the endpoints.
        place: String,
        /// The deadline.
        after: std::time::Duration,
    },
    /// It is unclear whether a transaction was carried out: read, and decide anew.
    #[error("{place} did not confirm a write")]
    Unconfirmed {
        /// The file or the endpoints.
        place: String,
        /// Why.
        #[source]
        source: StoreFault,
    },
}

impl StoreError {
    /// A key whose value cannot be used.
    #[must_use]
    pub fn damaged(key: &Key, what: impl Into<String>) -> Self {
        Self::Damaged { place: key.to_string(), what: what.into() }
    }
}

impl Classify for StoreError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Key(_) | Self::Transaction(_) | Self::Newer { .. } => ErrorKind::Invalid,
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::Expired { .. } | Self::Deposed | Self::NotEmpty { .. } => ErrorKind::Conflict,
            Self::Denied { .. } => ErrorKind::Denied,
            Self::InUse { .. }
            | Self::NotWritable { .. }
            | Self::Unavailable { .. }
            | Self::Unconfirmed { .. } => ErrorKind::Unavailable,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Damaged { .. } => ErrorKind::Internal,
        }
    }

    fn is_retryable(&self) -> bool {
        // Of what is in conflict here, nothing goes away by itself.
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
    }
}
