//! What a caller may be, and where a user's further roles come from.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;

use serde::{Deserialize, Serialize};

use super::IdentityError;
use crate::{AccountName, UserName};

/// What a caller is; one may be several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Over the network and without a certificate.
    Anonymous,
    /// A user.
    User,
    /// A user who looks after accounts.
    Coordinator,
    /// A user who looks after all accounts.
    Operator,
    /// May do everything that a person may.
    Admin,
    /// A node's agent.
    Node,
    /// A controller.
    Controller,
}

impl Role {
    /// All roles, as in the table's columns.
    pub const ALL: [Self; 7] = [
        Self::Anonymous,
        Self::User,
        Self::Coordinator,
        Self::Operator,
        Self::Admin,
        Self::Node,
        Self::Controller,
    ];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Anonymous => "anonymous",
            Self::User => "user",
            Self::Coordinator => "coordinator",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::Node => "node",
            Self::Controller => "controller",
        })
    }
}

/// A user's level, as in Slurm's `AdminLevel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum AdminLevel {
    /// No more than a user.
    #[default]
    None,
    /// Looks after all accounts.
    Operator,
    /// May do everything.
    Administrator,
}

/// What a user is beside a user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct UserStanding {
    /// The level.
    pub level: AdminLevel,
    /// The accounts that the user coordinates.
    pub coordinates: BTreeSet<AccountName>,
}

impl UserStanding {
    /// A standing.
    #[must_use]
    pub fn new(level: AdminLevel, coordinates: BTreeSet<AccountName>) -> Self {
        Self { level, coordinates }
    }

    /// The roles that come with it.
    #[must_use]
    pub fn roles(&self) -> BTreeSet<Role> {
        let mut roles = BTreeSet::from([Role::User]);
        if !self.coordinates.is_empty() {
            roles.insert(Role::Coordinator);
        }
        match self.level {
            AdminLevel::None => {}
            AdminLevel::Operator => {
                roles.insert(Role::Operator);
            }
            AdminLevel::Administrator => {
                roles.extend([Role::Operator, Role::Admin]);
            }
        }
        roles
    }
}

/// Knows what users are beside users; the accounting service does.
pub trait UserRoles: Send + Sync {
    /// What a user is. One who is not known has no standing, which is no error.
    ///
    /// # Errors
    /// Where it is not known at the moment, such as on a cold start. The call is then refused.
    fn standing(&self, user: &UserName) -> impl Future<Output = Result<UserStanding, IdentityError>> + Send;
}

/// All users are users and nothing else.
#[derive(Debug, Clone, Copy, Default)]
pub struct OnlyUsers;

impl UserRoles for OnlyUsers {
    async fn standing(&self, _user: &UserName) -> Result<UserStanding, IdentityError> {
        Ok(UserStanding::default())
    }
}
