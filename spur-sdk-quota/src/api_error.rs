//! What can go wrong with one request to an API server.

use std::time::Duration;

use spur_sdk::{Classify, ErrorKind, error_chain};

/// One request failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
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
    /// Leadership is lost, so nothing may be written; another replica goes on.
    #[error("this replica leads no more")]
    NotLeading,
    /// The answer is not what the API promises.
    #[error("unexpected answer: {0}")]
    Answer(String),
}

impl ApiError {
    /// Whether the server has forgotten the moment at which a watch or a list was to go on; a new list helps.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Status { code: 410, .. })
    }
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
            Self::NotLeading => ErrorKind::Cancelled,
            Self::Answer(_) => ErrorKind::Internal,
        }
    }
}

/// What the kube client says, in our words; nowhere else.
pub(crate) fn translate(error: kube::Error) -> ApiError {
    match error {
        kube::Error::Api(status) => ApiError::Status {
            code: status.code,
            retry_after: status
                .details
                .as_ref()
                .map(|details| details.retry_after_seconds)
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.into())),
            reason: status.reason,
            message: status.message,
        },
        kube::Error::SerdeError(error) => ApiError::Answer(error.to_string()),
        kube::Error::Service(source) => ApiError::Transport(error_chain(&*source)),
        other => ApiError::Transport(other.to_string()),
    }
}
