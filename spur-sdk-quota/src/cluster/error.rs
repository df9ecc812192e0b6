//! What can go wrong between us and an API server.

use std::time::Duration;

use spur_sdk::{Classify, ErrorKind};

/// One request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The server answered with an error.
    #[error("{message} ({reason}, HTTP {code})")]
    Status {
        /// HTTP status.
        code: u16,
        /// Kubernetes' machine-readable reason, such as `Forbidden`.
        reason: String,
        /// What the server says.
        message: String,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// No answer by the deadline.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The server cannot be reached, or the answer broke off.
    #[error("{0}")]
    Transport(String),
    /// The answer is not what the API promises.
    #[error("unexpected answer: {0}")]
    Answer(String),
}

impl Classify for ApiError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Status { code, .. } => match code {
                401 | 403 => ErrorKind::Denied,
                404 => ErrorKind::NotFound,
                409 | 410 => ErrorKind::Conflict,
                400 | 413 | 415 | 422 => ErrorKind::Invalid,
                429 | 500..=599 => ErrorKind::Unavailable,
                _ => ErrorKind::Internal,
            },
            Self::Timeout(_) => ErrorKind::Timeout,
            Self::Transport(_) => ErrorKind::Unavailable,
            Self::Answer(_) => ErrorKind::Internal,
        }
    }
}

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
