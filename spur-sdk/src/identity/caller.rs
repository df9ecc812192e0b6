//! Who asks, how that is known, and what follows from it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{IdentityError, PeerCertificate, Role, Serial, Subject, UserRoles};
use crate::{NodeName, UserName};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Identity {
    /// Nobody knows.
    Anonymous,
    /// A user.
    User {
        /// The name.
        name: UserName,
        /// The number on this machine; `None` for one from elsewhere.
        #[serde(default)]
        uid: Option<u32>,
    },
    /// One who may do everything.
    Admin {
        /// The name.
        name: UserName,
    },
    /// A node's agent.
    Node {
        /// The name.
        name: NodeName,
    },
    /// A controller.
    Controller {
        /// The name.
        name: NodeName,
    },
}

/// Such as `user alice`.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::User { name, .. } => write!(f, "user {name}"),
            Self::Admin { name } => write!(f, "admin {name}"),
            Self::Node { name } => write!(f, "node {name}"),
            Self::Controller { name } => write!(f, "controller {name}"),
        }
    }
}

/// How it is known who asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Via {
    /// The kernel says so, of the other end of a local socket.
    Socket {
        /// The user's number.
        uid: u32,
        /// The process; 0 where the kernel does not say.
        #[serde(default)]
        pid: u32,
    },
    /// By a certificate.
    Tls {
        /// The certificate; `None` without one.
        #[serde(default)]
        serial: Option<Serial>,
    },
    /// Another controller says so.
    Forwarded {
        /// The controller.
        by: NodeName,
        /// How it knows.
        via: Box<Via>,
    },
}

impl Via {
    /// How it was known where the call came in: the same, but for one that was forwarded.
    #[must_use]
    pub fn origin(&self) -> &Self {
        match self {
            Self::Socket { .. } | Self::Tls { .. } => self,
            Self::Forwarded { via, .. } => via.origin(),
        }
    }

    /// The caller's certificate, also where another controller saw it.
    #[must_use]
    pub fn serial(&self) -> Option<Serial> {
        match self.origin() {
            Self::Tls { serial } => *serial,
            Self::Socket { .. } | Self::Forwarded { .. } => None,
        }
    }

    /// Whether the caller came over a local socket of the machine that answers.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Socket { .. })
    }
}

/// Such as `socket (uid 1000, pid 4711)`.
impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket { uid, pid: 0 } => write!(f, "socket (uid {uid})"),
            Self::Socket { uid, pid } => write!(f, "socket (uid {uid}, pid {pid})"),
            Self::Tls { serial: Some(serial) } => write!(f, "certificate {serial}"),
            Self::Tls { serial: None } => f.write_str("network"),
            Self::Forwarded { by, via } => write!(f, "{via} at controller {by}"),
        }
    }
}

/// Who asks, how that is known, and on which node, if one vouched. Never taken from a field of a request.
///
/// Serializes for the way from a controller to the leader; what comes that way counts only on a connection whose
/// certificate is a controller's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Caller {
    /// Who.
    pub identity: Identity,
    /// How that is known.
    pub via: Via,
    /// The login node that vouched for the user.
    #[serde(default)]
    pub node: Option<NodeName>,
}

impl Caller {
    /// One who is on this machine, of whom the kernel knew the number.
    #[must_use]
    pub fn local(identity: Identity, uid: u32, pid: u32) -> Self {
        Self { identity, via: Via::Socket { uid, pid }, node: None }
    }

    /// One who came over the network without a certificate.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { identity: Identity::Anonymous, via: Via::Tls { serial: None }, node: None }
    }

    /// One who came with a certificate, which the connection has verified.
    #[must_use]
    pub fn certified(certificate: &PeerCertificate) -> Self {
        let (identity, node) = match certificate.subject().clone() {
            Subject::Controller(name) => (Identity::Controller { name }, None),
            Subject::Node(name) => (Identity::Node { name }, None),
            Subject::Admin(name) => (Identity::Admin { name }, None),
            Subject::User { name, vouched_by } => (Identity::User { name, uid: None }, vouched_by),
        };
        Self { identity, via: Via::Tls { serial: Some(certificate.serial()) }, node }
    }

    /// The same caller, as the leader sees it through the controller `by`.
    ///
    /// # Errors
    /// [`IdentityError::Denied`] for one that was forwarded already, and for a controller: those go to the leader
    /// themselves.
    pub fn forwarded(self, by: NodeName) -> Result<Self, IdentityError> {
        if matches!(self.via, Via::Forwarded { .. }) {
            return Err(IdentityError::Denied("a call is forwarded once, to the leader"));
        }
        if matches!(self.identity, Identity::Controller { .. }) {
            return Err(IdentityError::Denied("a call of a controller is not forwarded"));
        }
        Ok(Self { via: Via::Forwarded { by, via: Box::new(self.via) }, ..self })
    }

    /// The user or admin's name.
    #[must_use]
    pub fn user(&self) -> Option<&UserName> {
        match &self.identity {
            Identity::User { name, .. } | Identity::Admin { name } => Some(name),
            Identity::Anonymous | Identity::Node { .. } | Identity::Controller { .. } => None,
        }
    }

    /// What the caller's certificate says whom it is for; `None` without one.
    #[must_use]
    pub fn subject(&self) -> Option<Subject> {
        self.via.serial()?;
        Some(match self.identity.clone() {
            Identity::Anonymous => return None,
            Identity::User { name, .. } => Subject::User { name, vouched_by: self.node.clone() },
            Identity::Admin { name } => Subject::Admin(name),
            Identity::Node { name } => Subject::Node(name),
            Identity::Controller { name } => Subject::Controller(name),
        })
    }

    /// The roles of the caller. A user for whom a node vouched is a user and nothing else, whatever `users` says: a
    /// node that was broken into could else make itself an operator.
    ///
    /// # Errors
    /// As [`UserRoles::standing`].
    pub async fn roles(&self, users: &impl UserRoles) -> Result<BTreeSet<Role>, IdentityError> {
        Ok(match &self.identity {
            Identity::Anonymous => BTreeSet::from([Role::Anonymous]),
            Identity::User { .. } if self.node.is_some() => BTreeSet::from([Role::User]),
            Identity::User { name, .. } => users.standing(name).await?.roles(),
            Identity::Admin { .. } => BTreeSet::from([Role::User, Role::Operator, Role::Admin]),
            Identity::Node { .. } => BTreeSet::from([Role::Node]),
            Identity::Controller { .. } => BTreeSet::from([Role::Controller]),
        })
    }
}

/// Such as `user alice on login1, certificate 3f…`, for the audit.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.identity.fmt(f)?;
        if let Some(node) = &self.node {
            write!(f, " on {node}")?;
        }
        write!(f, ", {}", self.via)
    }
}
