//! What is told to those who look at a namespace: Kubernetes Events.

use std::future::Future;
use std::time::SystemTime;

use serde::Serialize;

use super::ApiError;

/// How urgent an Event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum EventKind {
    /// Something has been done.
    Normal,
    /// Somebody should look.
    Warning,
}

/// An Event about a namespace, in that namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// The namespace.
    pub namespace: String,
    /// How urgent it is.
    pub kind: EventKind,
    /// One word for machines, such as `Retired`.
    pub reason: String,
    /// What happened, at most 1024 bytes.
    pub message: String,
    /// When.
    #[serde(serialize_with = "rfc3339")]
    pub time: SystemTime,
}

fn rfc3339<S: serde::Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&crate::timestamp::format_time(*time))
}

impl Event {
    /// The longest message that Kubernetes takes, in bytes.
    pub const MAX_MESSAGE: usize = 1024;

    /// An Event; a message that is too long is cut.
    #[must_use]
    pub fn new(
        namespace: &str,
        kind: EventKind,
        reason: &str,
        message: impl Into<String>,
        time: SystemTime,
    ) -> Self {
        let mut message: String = message.into();
        if message.len() > Self::MAX_MESSAGE {
            let mut end = Self::MAX_MESSAGE.saturating_sub('…'.len_utf8());
            while !message.is_char_boundary(end) {
                end = end.saturating_sub(1);
            }
            message.truncate(end);
            message.push('…');
        }
        Self { namespace: namespace.to_owned(), kind, reason: reason.to_owned(), message, time }
    }
}

/// Events of an API server.
pub trait EventApi: Send + Sync {
    /// Writes an Event. It is news, so it is tried once.
    fn record(&self, event: &Event) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Events of ours that the server still has, by default those of the last hour.
    fn recorded(&self) -> impl Future<Output = Result<Vec<Event>, ApiError>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_too_long_is_cut_between_characters() {
        let event = Event::new("n", EventKind::Normal, "R", "ä".repeat(600), SystemTime::UNIX_EPOCH);
        assert!(event.message.len() <= Event::MAX_MESSAGE);
        assert!(event.message.ends_with('…'));
    }
}
