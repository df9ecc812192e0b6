//! How a call that is not carried out is answered.

use std::fmt;

use crate::{Classify, ErrorKind, error_chain};

/// gRPC's status codes, as far as they are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The caller asked to stop.
    Cancelled,
    /// A fault that says no more.
    Unknown,
    /// A field is wrong, whatever the state.
    InvalidArgument,
    /// Too late. Whether it was carried out is unknown.
    DeadlineExceeded,
    /// What was asked for does not exist.
    NotFound,
    /// What was to be made exists.
    AlreadyExists,
    /// The caller may not do this.
    PermissionDenied,
    /// Too much at once: a limit of size, number or rate.
    ResourceExhausted,
    /// Not in this state.
    FailedPrecondition,
    /// A concurrent change; try again.
    Aborted,
    /// There is no such call here.
    Unimplemented,
    /// A fault of the server.
    Internal,
    /// The server cannot answer now; try again, perhaps elsewhere.
    Unavailable,
    /// Nobody knows who calls.
    Unauthenticated,
}

impl Code {
    const ALL: [(Self, tonic::Code); 14] = [
        (Self::Cancelled, tonic::Code::Cancelled),
        (Self::Unknown, tonic::Code::Unknown),
        (Self::InvalidArgument, tonic::Code::InvalidArgument),
        (Self::DeadlineExceeded, tonic::Code::DeadlineExceeded),
        (Self::NotFound, tonic::Code::NotFound),
        (Self::AlreadyExists, tonic::Code::AlreadyExists),
        (Self::PermissionDenied, tonic::Code::PermissionDenied),
        (Self::ResourceExhausted, tonic::Code::ResourceExhausted),
        (Self::FailedPrecondition, tonic::Code::FailedPrecondition),
        (Self::Aborted, tonic::Code::Aborted),
        (Self::Unimplemented, tonic::Code::Unimplemented),
        (Self::Internal, tonic::Code::Internal),
        (Self::Unavailable, tonic::Code::Unavailable),
        (Self::Unauthenticated, tonic::Code::Unauthenticated),
    ];

    fn of(code: tonic::Code) -> Self {
        Self::ALL.into_iter().find(|(_, theirs)| *theirs == code).map_or(Self::Unknown, |(own, _)| own)
    }

    fn grpc(self) -> tonic::Code {
        Self::ALL.into_iter().find(|(own, _)| *own == self).map_or(tonic::Code::Unknown, |(_, theirs)| theirs)
    }
}

/// In gRPC's spelling, such as `PermissionDenied`.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A call that was not carried out: why, in a way that programs and people understand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub code: Code,
    /// For people; names the field.
    pub message: String,
    /// Who leads, where that is why; `HOST:PORT`.
    pub leader: Option<String>,
}

/// The metadata that names the leader.
const LEADER: &str = "x-spur-leader";

/// The most characters of a message on the wire.
const MAX_MESSAGE: usize = 2000;

impl Refusal {
    /// A refusal.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), leader: None }
    }

    /// A field is wrong.
    #[must_use]
    pub fn invalid(field: &str, message: impl fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, format!("{field}: {message}"))
    }

    /// An error of this SDK, with its causes.
    #[must_use]
    pub fn from_error(error: &impl Classify) -> Self {
        let code = match error.kind() {
            ErrorKind::Invalid => Code::InvalidArgument,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::Conflict => Code::Aborted,
            ErrorKind::Denied => Code::PermissionDenied,
            ErrorKind::Unavailable => Code::Unavailable,
            ErrorKind::Timeout => Code::DeadlineExceeded,
            ErrorKind::Cancelled => Code::Cancelled,
            ErrorKind::Internal => Code::Internal,
        };
        Self::new(code, error_chain(error))
    }

    pub(super) fn into_status(self) -> tonic::Status {
        let message: String = self.message.chars().take(MAX_MESSAGE).collect();
        let mut status = tonic::Status::new(self.code.grpc(), message);
        if let Some(leader) = self.leader.and_then(|leader| leader.parse().ok()) {
            status.metadata_mut().insert(LEADER, leader);
        }
        status
    }

    pub(super) fn from_status(status: &tonic::Status) -> Self {
        let leader = status.metadata().get(LEADER).and_then(|leader| leader.to_str().ok());
        let leader = leader.map(str::to_owned);
        Self { code: Code::of(status.code()), message: status.message().to_owned(), leader }
    }
}

impl Classify for Refusal {
    fn kind(&self) -> ErrorKind {
        match self.code {
            Code::InvalidArgument => ErrorKind::Invalid,
            Code::NotFound => ErrorKind::NotFound,
            Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => ErrorKind::Conflict,
            Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented => ErrorKind::Denied,
            Code::Unavailable | Code::ResourceExhausted => ErrorKind::Unavailable,
            Code::DeadlineExceeded => ErrorKind::Timeout,
            Code::Cancelled => ErrorKind::Cancelled,
            Code::Internal | Code::Unknown => ErrorKind::Internal,
        }
    }

    fn is_retryable(&self) -> bool {
        matches!(
            self.code,
            Code::Aborted | Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded
        )
    }
}
