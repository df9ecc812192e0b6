//! What can go wrong with a kubeconfig.

use std::time::Duration;

use spur_sdk::{AccountName, Classify, ErrorKind, UserName};

use super::{AccessError, ApiError, SHORTEST_LIFETIME, SessionName};

/// A policy that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The name of the cluster is no label.
    #[error("cluster: {0:?} is not 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends")]
    Cluster(String),
    /// The address for users is none.
    #[error("server: {0:?} is not https://HOST[:PORT]")]
    Server(String),
    /// A lifetime is below what Kubernetes gives.
    #[error("{field}: {} s is less than {} s, the least that Kubernetes gives", .value.as_secs(), SHORTEST_LIFETIME.as_secs())]
    TooShort {
        /// The field.
        field: &'static str,
        /// Its value.
        value: Duration,
    },
    /// The default is beyond the longest.
    #[error("default_lifetime is above max_lifetime")]
    DefaultAboveMax,
}

impl Classify for PolicyError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

/// No kubeconfig, token or revocation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeconfigError {
    /// A lifetime that is not given. Invalid.
    #[error(
        "a token of {} s cannot be had: {} s at least, {} s at most",
        .asked.as_secs(), SHORTEST_LIFETIME.as_secs(), .max.as_secs()
    )]
    Lifetime {
        /// What was asked for.
        asked: Duration,
        /// The longest that policy gives.
        max: Duration,
    },
    /// The associations have not been read, or not in full. Unavailable.
    #[error("it is not known who is in which account: {0}")]
    AssociationsUnknown(String),
    /// The associations were read too long ago. Unavailable.
    #[error("what is known of the accounts is {} s old, more than {} s", .age.as_secs(), .max.as_secs())]
    AssociationsStale {
        /// Their age.
        age: Duration,
        /// The most that policy takes.
        max: Duration,
    },
    /// The user is in no account. Not found.
    #[error("user {0} is in no account")]
    NoAccount(UserName),
    /// The user is not in the account that was asked for. Not found.
    #[error("user {user} is not in account {account}")]
    NotInAccount {
        /// The user.
        user: UserName,
        /// The account.
        account: AccountName,
    },
    /// The session is another user's. Denied.
    #[error("session {session} is not one of user {user}")]
    ForeignSession {
        /// The session.
        session: SessionName,
        /// The user.
        user: UserName,
    },
    /// The session has ended or was revoked. Not found.
    #[error("session {0} has ended")]
    SessionEnded(SessionName),
    /// The reconciler has not made the user's ServiceAccount. Unavailable.
    #[error(
        "ServiceAccount spur-users/{name} is not there after {} s; does the reconciler run, and does it read these \
         accounts?",
        .waited.as_secs()
    )]
    NoServiceAccount {
        /// Its name.
        name: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A ServiceAccount of that name is not the reconciler's, or is another user's. Conflict, and trying again does not
    /// help.
    #[error("ServiceAccount spur-users/{name} is not SPUR's for this user: {why}")]
    ForeignServiceAccount {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A request failed.
    #[error("{action} {target}")]
    Request {
        /// What was tried, such as `create`.
        action: &'static str,
        /// The object.
        target: String,
        /// Why.
        #[source]
        source: ApiError,
    },
    /// The control plane cannot be reached with what there is.
    #[error("reach the control plane")]
    Access(#[from] AccessError),
    /// The system gives no random numbers.
    #[error("name a session: no random numbers ({0})")]
    Random(String),
    /// The kubeconfig cannot be written as YAML.
    #[error("write the kubeconfig: {0}")]
    Write(String),
}

impl KubeconfigError {
    pub(crate) fn request(action: &'static str, target: impl Into<String>) -> impl FnOnce(ApiError) -> Self {
        let target = target.into();
        move |source| Self::Request { action, target, source }
    }
}

impl Classify for KubeconfigError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Lifetime { .. } => ErrorKind::Invalid,
            Self::AssociationsUnknown(_) | Self::AssociationsStale { .. } | Self::NoServiceAccount { .. } => {
                ErrorKind::Unavailable
            }
            Self::NoAccount(_) | Self::NotInAccount { .. } | Self::SessionEnded(_) => ErrorKind::NotFound,
            Self::ForeignSession { .. } => ErrorKind::Denied,
            Self::ForeignServiceAccount { .. } => ErrorKind::Conflict,
            Self::Request { source, .. } => match source.kind() {
                // What the control plane refuses us is a fault of ours, not of who asked.
                ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::NotFound => ErrorKind::Internal,
                kind => kind,
            },
            Self::Access(source) => source.kind(),
            Self::Random(_) | Self::Write(_) => ErrorKind::Internal,
        }
    }

    fn is_retryable(&self) -> bool {
        !matches!(self, Self::ForeignServiceAccount { .. })
            && matches!(self.kind(), ErrorKind::Conflict | ErrorKind::Unavailable | ErrorKind::Timeout)
    }
}
