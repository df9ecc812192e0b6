//! What can go wrong with identities.

use std::time::Duration;

use super::{Serial, Subject};
use crate::fs::FileError;
use crate::store::StoreError;
use crate::{Classify, ErrorKind, NodeName};

/// Why a join token was refused. For logs and the audit: whoever tries tokens is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JoinRefusal {
    /// It does not have the form of a token.
    Form,
    /// No such token was made, or it was swept since.
    Unknown,
    /// The secret in it is wrong.
    Secret,
    /// A node was enrolled with it.
    Used,
    /// Its time is over.
    Expired,
    /// It is for another node, or for a new one while this name is known.
    Node,
    /// It names another certificate authority.
    Authority,
}

impl std::fmt::Display for JoinRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Form => "no token",
            Self::Unknown => "unknown",
            Self::Secret => "wrong secret",
            Self::Used => "used",
            Self::Expired => "expired",
            Self::Node => "for another node",
            Self::Authority => "of another authority",
        })
    }
}

/// Why a certificate that was once valid no longer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Void {
    /// No node of that name was enrolled.
    Unknown,
    /// The node was removed.
    Removed,
    /// The node has a newer certificate.
    Replaced,
    /// The certificate was revoked.
    Revoked,
    /// Its time is over, or has not come.
    Expired,
}

impl std::fmt::Display for Void {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unknown => "no such node is enrolled",
            Self::Removed => "the node was removed; enrol it with a new join token",
            Self::Replaced => "the node has a newer one",
            Self::Revoked => "it was revoked",
            Self::Expired => "it is not valid at this time; compare the clocks, or get a new one",
        })
    }
}

/// A question of identity that ended without an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A certificate signing request cannot be used.
    #[error("certificate request: {0}")]
    Request(&'static str),
    /// What was shown is no certificate of this site.
    #[error("certificate: {0}")]
    Certificate(&'static str),
    /// A certificate that the site issued is not valid now.
    #[error("certificate {serial} of {subject} is void: {void}")]
    Void {
        /// Whose it is.
        subject: Subject,
        /// Which one.
        serial: Serial,
        /// Why.
        void: Void,
    },
    /// A certificate would live too long, or not at all.
    #[error("{what} for {asked:?}: more than 0 and at most {most:?}")]
    Lifetime {
        /// What it is for.
        what: &'static str,
        /// What was asked for.
        asked: Duration,
        /// What is possible.
        most: Duration,
    },
    /// A time lies where no certificate can.
    #[error("the clock says a time that a certificate cannot hold")]
    Clock,
    /// Files that hold credentials, a key or a secret are not what they should be.
    #[error("{place}: {what}")]
    Credentials {
        /// The file or the record.
        place: String,
        /// What is wrong, and the way out.
        what: String,
    },
    /// What is sealed was not sealed by this site key, under another name, or was changed since.
    #[error("{place} cannot be unsealed: {what}")]
    Sealed {
        /// The record.
        place: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The site has a certificate authority already.
    #[error("there is a certificate authority already, of site {0}")]
    Exists(String),
    /// The site has no certificate authority.
    #[error("there is no certificate authority yet")]
    NoAuthority,
    /// A join token was refused; [`refusal`](IdentityError::refusal) tells why.
    #[error("the join token is not valid")]
    Join(JoinRefusal),
    /// No such node is enrolled.
    #[error("no node {0} is enrolled")]
    NoNode(NodeName),
    /// The caller may not have what it asks for.
    #[error("{0}")]
    Denied(&'static str),
    /// It is not known here which certificates are valid: nothing is allowed.
    #[error("which certificates are valid is not known here at the moment")]
    Stale,
    /// Who a local user is could not be found out in time.
    #[error("the system did not say within {after:?} who uid {uid} is")]
    LookUpTimeout {
        /// The user.
        uid: u32,
        /// The deadline.
        after: Duration,
    },
    /// The system does not know a local user, or failed to say.
    #[error("who is uid {uid}: {what}")]
    LookUp {
        /// The user.
        uid: u32,
        /// What the system said.
        what: String,
    },
    /// An external issuer refused a credential, or could not judge it.
    #[error("external credential: {what}")]
    External {
        /// What it said.
        what: String,
        /// Whether it refused; otherwise it could not be asked.
        refused: bool,
    },
    /// Another write came between; reading anew and trying again may help.
    #[error("{0} was changed by somebody else at the same time")]
    Conflict(String),
    /// A name cannot be one.
    #[error(transparent)]
    Name(#[from] crate::NameError),
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system has no random numbers, or a key cannot be used.
    #[error("cryptography: {0}")]
    Cryptography(String),
}

impl IdentityError {
    /// Why a join token was refused, for the audit.
    #[must_use]
    pub fn refusal(&self) -> Option<JoinRefusal> {
        match self {
            Self::Join(refusal) => Some(*refusal),
            _ => None,
        }
    }
}

impl Classify for IdentityError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Request(_) | Self::Lifetime { .. } | Self::Name(_) | Self::Credentials { .. } => {
                ErrorKind::Invalid
            }
            Self::Certificate(_)
            | Self::Void { .. }
            | Self::Join(_)
            | Self::Denied(_)
            | Self::LookUp { .. } => ErrorKind::Denied,
            Self::External { refused, .. } => {
                if *refused {
                    ErrorKind::Denied
                } else {
                    ErrorKind::Unavailable
                }
            }
            Self::Exists(_) | Self::Conflict(_) => ErrorKind::Conflict,
            Self::NoAuthority | Self::NoNode(_) => ErrorKind::NotFound,
            Self::Stale => ErrorKind::Unavailable,
            Self::LookUpTimeout { .. } => ErrorKind::Timeout,
            Self::Clock | Self::Sealed { .. } | Self::Cryptography(_) => ErrorKind::Internal,
            Self::File(error) => error.kind(),
            Self::Store(error) => error.kind(),
        }
    }

    fn is_retryable(&self) -> bool {
        !matches!(self, Self::Exists(_))
            && matches!(self.kind(), ErrorKind::Conflict | ErrorKind::Unavailable | ErrorKind::Timeout)
    }
}
