//! What a failure of etcd means.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use etcd_client::Error as EtcdError;
use tonic::{Code, ConnectError, Status};

use crate::store::{Revision, StoreError};

/// What a failed request means for us.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was not sent: the endpoint cannot be reached.
    Unreachable(Fault),
    /// The endpoint did nothing and says that it cannot at the moment.
    NotNow(Fault),
    /// The endpoint did nothing: we have to sign in again.
    SignIn(Fault),
    /// It may or may not have been carried out.
    Unclear(Fault),
    /// No endpoint has answered within the deadline.
    Late(Duration),
    /// We may not.
    Denied(Fault),
    /// The disk, or what of it etcd may use, is full.
    Full(Fault),
    /// The lease is over.
    NoLease(Fault),
    /// The revision is gone.
    Compacted,
    /// The answer is larger than we take.
    TooLarge(Fault),
    /// A stop that etcd makes when its members disagree.
    Damaged(Fault),
    /// The request is not acceptable.
    Invalid(Fault),
}

/// What etcd or the connection said.
#[derive(Debug)]
pub(super) struct Fault(String);

impl Fault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Fault {}

impl From<EtcdError> for Failure {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::GRpcStatus(status) => Self::of_status(&status),
            EtcdError::LeaseKeepAliveError(text) => Self::NoLease(Fault(text)),
            EtcdError::TransportError(error) => Self::Unreachable(Fault(crate::error_chain(&error))),
            other => Self::Unclear(Fault(other.to_string())),
        }
    }
}

impl Failure {
    fn of_status(status: &Status) -> Self {
        let fault = Fault(text_of(status));
        if was_not_sent(status) {
            // The server's way to refuse a certificate.
            let refused = fault.0.contains("received fatal alert");
            return if refused { Self::Denied(fault) } else { Self::Unreachable(fault) };
        }
        Self::of_code(status.code(), fault)
    }

    fn of_code(code: Code, fault: Fault) -> Self {
        let says = |part| fault.0.contains(part);
        match code {
            Code::Unavailable if says("no leader") || says("not supported for learner") => {
                Self::NotNow(fault)
            }
            Code::ResourceExhausted if says("too many requests") => Self::NotNow(fault),
            Code::ResourceExhausted if says("space exceeded") => Self::Full(fault),
            Code::OutOfRange if says("compacted") => Self::Compacted,
            Code::OutOfRange if says("decoded message length too large") => Self::TooLarge(fault),
            Code::InvalidArgument if says("auth store is old") => Self::SignIn(fault),
            Code::InvalidArgument if says("authentication failed") || says("user name is empty") => {
                Self::Denied(fault)
            }
            Code::FailedPrecondition
                if says("authentication is not enabled") || says("user name not found") =>
            {
                Self::Denied(fault)
            }
            // The client has signed in again already where a token had run out.
            Code::PermissionDenied | Code::Unauthenticated => Self::Denied(fault),
            Code::NotFound if says("lease not found") => Self::NoLease(fault),
            Code::DataLoss => Self::Damaged(fault),
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::ResourceExhausted
            | Code::NotFound
            | Code::AlreadyExists
            | Code::Unimplemented => Self::Invalid(fault),
            // The last is how an endpoint refuses our certificate when it has shaken hands already.
            _ if says("received fatal alert") => Self::Denied(fault),
            _ => Self::Unclear(fault),
        }
    }

    /// What a watch was cancelled for, as its server says.
    pub(super) fn of_cancelled_watch(reason: &str) -> Self {
        let fault = Fault(reason.to_owned());
        if reason.contains("invalid auth token") || reason.contains("auth store is old") {
            return Self::SignIn(fault);
        }
        if reason.contains("permission denied") || reason.contains("user name is empty") {
            return Self::Denied(fault);
        }
        Self::NotNow(fault)
    }

    /// A failure of what precedes a request: the request was not sent.
    pub(super) fn before_sending(self) -> Self {
        match self {
            Self::Unclear(fault) => Self::NotNow(fault),
            Self::Late(after) => Self::NotNow(Fault(format!("no endpoint has answered within {after:?}"))),
            other => other,
        }
    }

    /// Whether it shows that the endpoint works. A refusal does not: that of a certificate is an end of the connection.
    pub(super) fn is_an_answer(&self) -> bool {
        !self.is_passing() && !matches!(self, Self::Late(_) | Self::Denied(_))
    }

    /// Whether a request without an effect is worth a try at another endpoint or later.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::NotNow(_) | Self::Unclear(_) | Self::SignIn(_))
    }

    /// What a read ends with.
    pub(super) fn of_read(self, place: &str) -> StoreError {
        let place = place.to_owned();
        match self {
            Self::Late(after) => StoreError::Timeout { place, after },
            Self::Denied(fault) => StoreError::Denied { place, source: fault.into() },
            Self::Full(fault) => StoreError::NotWritable { place, source: fault.into() },
            Self::Damaged(fault) => StoreError::Damaged { place, what: fault.0 },
            Self::Compacted => StoreError::Expired { after: Revision(0), oldest: Revision(0) },
            Self::Unreachable(fault)
            | Self::NotNow(fault)
            | Self::SignIn(fault)
            | Self::Unclear(fault)
            | Self::NoLease(fault)
            | Self::Invalid(fault)
            | Self::TooLarge(fault) => StoreError::Unavailable { place, source: fault.into() },
        }
    }

    /// What a write ends with.
    pub(super) fn of_write(self, place: &str) -> StoreError {
        match self {
            Self::Unclear(fault) => StoreError::Unconfirmed { place: place.to_owned(), source: fault.into() },
            Self::Late(_) => self.before_sending().of_read(place),
            Self::Invalid(fault) => StoreError::Transaction(fault.0),
            other => other.of_read(place),
        }
    }
}

/// Whether the connection was not even made.
fn was_not_sent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// All that is said, each thing once.
fn text_of(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = error.source();
    }
    if text.is_empty() { status.code().to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: Status) -> Failure {
        Failure::from(EtcdError::GRpcStatus(status))
    }

    #[test]
    fn only_what_was_surely_not_carried_out_counts_as_such() {
        let place = "etcd";
        let unclear = [
            Status::unavailable("etcdserver: request timed out"),
            Status::unavailable("etcdserver: request timed out, possibly due to previous leader failure"),
            Status::unavailable("etcdserver: server stopped"),
            Status::deadline_exceeded("context deadline exceeded"),
            Status::unknown("transport error"),
            Status::cancelled("operation was canceled"),
            Status::internal("h2 protocol error"),
        ];
        for status in unclear {
            let text = status.to_string();
            assert!(matches!(of(status).of_write(place), StoreError::Unconfirmed { .. }), "{text}");
        }
        let clear =
            [Status::unavailable("etcdserver: no leader"), Status::resource_exhausted("too many requests")];
        for status in clear {
            assert!(matches!(of(status).of_write(place), StoreError::Unavailable { .. }));
        }
        let refused = Status::from_error(Box::new(ConnectError("connection refused".into())));
        assert!(matches!(of(refused).of_write(place), StoreError::Unavailable { .. }));
    }

    #[test]
    fn what_etcd_says_has_its_meaning() {
        let full = Status::resource_exhausted("etcdserver: mvcc: database space exceeded");
        assert!(matches!(of(full).of_write("etcd"), StoreError::NotWritable { .. }));
        let denied = Status::permission_denied("etcdserver: permission denied");
        assert!(matches!(of(denied).of_write("etcd"), StoreError::Denied { .. }));
        let password =
            Status::invalid_argument("etcdserver: authentication failed, invalid user ID or password");
        assert!(matches!(of(password).of_read("etcd"), StoreError::Denied { .. }));
        let old = Status::invalid_argument("etcdserver: revision of auth store is old");
        assert!(matches!(of(old), Failure::SignIn(_)));
        let gone = Status::out_of_range("etcdserver: mvcc: required revision has been compacted");
        assert!(matches!(of(gone), Failure::Compacted));
        let alert = Status::unknown("transport error: received fatal alert: BadCertificate");
        assert!(matches!(of(alert).of_write("etcd"), StoreError::Denied { .. }));
    }
}
