//! What can go wrong between us and an API server.

use std::time::Duration;

use serde::{Serialize, Serializer};
use spur_sdk::{Classify, ErrorKind, error_chain};

use super::Key;
pub use crate::api_error::ApiError;

/// A cluster cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A list failed.
    #[error("list {resource}")]
    List {
        /// What was listed, such as `resourcequotas`.
        resource: &'static str,
        /// Why.
        #[source]
        source: ApiError,
    },
}

impl Classify for ClusterError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::List { source, .. } => source.kind(),
        }
    }
}

/// A step of a plan could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// A request failed.
    #[error("{action} {target}")]
    Request {
        /// What was tried, such as `apply`.
        action: &'static str,
        /// The object.
        target: Key,
        /// Why.
        #[source]
        source: ApiError,
    },
    /// Kubernetes has not filled in a quota's status, so it restricts nothing yet.
    #[error("{target} does not bind after {} s", .waited.as_secs())]
    NotBound {
        /// The quota.
        target: Key,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The dry run that asks for the tenant guard failed.
    #[error("probe the tenant guard")]
    Probe(#[source] ApiError),
    /// The API server does not judge by the guard that is wanted.
    #[error("the tenant guard is written and not in force after {} s ({answer})", .waited.as_secs())]
    GuardNotInForce {
        /// What the server says to the probe.
        answer: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The controller manager has not type-checked a policy of the guard.
    #[error(
        "{target} is written, but the controller manager has not taken it in within {} s; is it running?",
        .waited.as_secs()
    )]
    NotTakenIn {
        /// The policy.
        target: Key,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A policy of the guard does not type-check.
    #[error("{target} does not type-check: {warnings}")]
    TypeCheck {
        /// The policy.
        target: Key,
        /// What Kubernetes says.
        warnings: String,
    },
}

impl StepError {
    pub(crate) fn request(action: &'static str, target: &Key) -> impl FnOnce(ApiError) -> Self {
        let target = target.clone();
        move |source| Self::Request { action, target, source }
    }
}

impl Classify for StepError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Request { source, .. } | Self::Probe(source) => source.kind(),
            Self::NotBound { .. } | Self::GuardNotInForce { .. } | Self::NotTakenIn { .. } => {
                ErrorKind::Unavailable
            }
            Self::TypeCheck { .. } => ErrorKind::Internal,
        }
    }
}

/// As the text of the error and all its causes.
impl Serialize for StepError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&error_chain(self))
    }
}
