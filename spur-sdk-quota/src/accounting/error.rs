//! Why a change of the accounts was not made.

use spur_sdk::rpc::{Code, Refusal};
use spur_sdk::store::StoreError;
use spur_sdk::{Classify, ErrorKind, error_chain};

/// A change was not made; nothing of it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccountingError {
    /// A field is wrong.
    #[error("{field}: {message}")]
    Invalid {
        /// The field, as the wire protocol names it.
        field: &'static str,
        /// What is wrong, and the way out.
        message: String,
    },
    /// What is to be changed is not there.
    #[error("{0} does not exist")]
    NotFound(String),
    /// What is to be made is there.
    #[error("{0} exists already")]
    Exists(String),
    /// Something else depends on it.
    #[error("{what} has {holds}: use --force to delete these as well")]
    InUse {
        /// What is to be deleted.
        what: String,
        /// What goes with it.
        holds: String,
    },
    /// The caller may not make this change.
    #[error("{0}")]
    Denied(String),
    /// It cannot be kept.
    #[error("keep the accounts")]
    Store(#[source] StoreError),
    /// The service has stopped, or another controller leads.
    #[error("the accounts are not served here any more")]
    Stopped,
}

impl AccountingError {
    pub(super) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }
}

impl Classify for AccountingError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Exists(_) | Self::InUse { .. } => ErrorKind::Conflict,
            Self::Denied(_) => ErrorKind::Denied,
            Self::Store(error) => error.kind(),
            Self::Stopped => ErrorKind::Unavailable,
        }
    }
}

impl From<AccountingError> for Refusal {
    fn from(error: AccountingError) -> Self {
        let code = match &error {
            AccountingError::Exists(_) => Code::AlreadyExists,
            AccountingError::InUse { .. } => Code::FailedPrecondition,
            AccountingError::Store(StoreError::Deposed) => Code::Unavailable,
            _ => return Self::from_error(&error),
        };
        Self::new(code, error_chain(&error))
    }
}
