//! What every error of this SDK can say about itself.

use std::error::Error;
use std::fmt;

/// What kind of failure an error is. Hosts map this, never an error's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input is wrong; trying again without a change fails again.
    Invalid,
    /// What was asked for does not exist.
    NotFound,
    /// It stands against what exists: another owner, a concurrent change, an older generation.
    Conflict,
    /// The caller may not do this.
    Denied,
    /// The other side cannot be reached or is overloaded; trying again later may work.
    Unavailable,
    /// The deadline passed. Whether the other side acted is unknown.
    Timeout,
    /// The caller asked to stop.
    Cancelled,
    /// A fault of this program or of its host, a full disk among them.
    Internal,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not found",
            Self::Conflict => "conflict",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Internal => "internal",
        })
    }
}

/// An error that knows its kind; every error at a public boundary of this SDK does.
pub trait Classify: Error {
    /// The kind of failure.
    fn kind(&self) -> ErrorKind;

    /// Whether the same call may succeed later without a change of its input.
    fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Conflict | ErrorKind::Unavailable | ErrorKind::Timeout)
    }
}

/// An error with all its causes, joined by `: `, for logs and terminals.
///
/// The errors of this SDK do not repeat their source in their own text, so nothing is said twice.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("read quota of {0}")]
    struct Outer(&'static str, #[source] std::fmt::Error);

    #[test]
    fn chain_names_every_cause_once() {
        let text = error_chain(&Outer("physics", std::fmt::Error));
        assert_eq!(text, format!("read quota of physics: {}", std::fmt::Error));
    }
}
