//! Who is in which account, as the host knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::SystemTime;

use spur_sdk::{AccountName, UserName};

use crate::model::Completeness;
use crate::project::names;
use crate::{Model, Projection};

/// What is known of one user's accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// Nothing: the associations have not been read, or not in full. The text says why.
    Unknown(String),
    /// All of them.
    Known {
        /// Accounts that the user is let into. Empty: the user has none.
        accounts: BTreeSet<AccountName>,
        /// The one that is used where none is named; if it is none of them, the first is taken.
        default: Option<AccountName>,
        /// When this was last known to be so: the time of the question for a host that asks its own store.
        seen: SystemTime,
    },
}

/// A host's knowledge of associations.
pub trait Memberships: Send + Sync {
    /// What is known of a user's accounts now. It is asked before and after a token is made.
    fn membership(&self, user: &UserName) -> impl Future<Output = Membership> + Send;
}

/// What a model and its projection say, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    users: BTreeMap<UserName, BTreeSet<AccountName>>,
    defaults: BTreeMap<UserName, AccountName>,
    unknown: Option<String>,
    seen: SystemTime,
}

impl Directory {
    /// Who is let into which namespaces once the projection is applied. What was not read in full, or is refused as
    /// a whole, is not known to anybody.
    #[must_use]
    pub fn new(model: &Model, projection: &Projection, seen: SystemTime) -> Self {
        let mut users: BTreeMap<UserName, BTreeSet<AccountName>> = BTreeMap::new();
        let mut add = |user: &UserName, account: &AccountName| {
            users.entry(user.clone()).or_default().insert(account.clone());
        };
        for account in &projection.accounts {
            for user in account.members.iter().chain(&account.unread_members) {
                add(user, &account.account);
            }
            if account.objects.iter().any(|object| object.name() == names::COORDINATORS) {
                let found = model.accounts.get(&account.account);
                for user in found.iter().flat_map(|account| account.coordinators.keys()) {
                    add(user, &account.account);
                }
            }
        }
        // What a stopped account has in the cluster stays, its members among it.
        let stopped: BTreeSet<&AccountName> =
            projection.stopped.iter().map(|stopped| &stopped.account).collect();
        for key in model.associations.keys().filter(|key| stopped.contains(&key.account)) {
            add(&key.user, &key.account);
        }
        let defaults = model
            .users
            .values()
            .filter_map(|user| Some((user.name.clone(), user.default_account.as_ref()?.value.clone())));
        let unknown = match projection.refused() {
            Some(problem) => Some(problem.to_string()),
            None if projection.completeness == Completeness::Full => None,
            None => Some("the accounts were not read in full".to_owned()),
        };
        Self { defaults: defaults.collect(), users, unknown, seen }
    }

    /// The same, known to be so at a later time.
    pub fn seen_again(&mut self, seen: SystemTime) {
        self.seen = seen;
    }

    /// What is known of a user's accounts.
    #[must_use]
    pub fn of(&self, user: &UserName) -> Membership {
        match &self.unknown {
            Some(why) => Membership::Unknown(why.clone()),
            None => Membership::Known {
                accounts: self.users.get(user).cloned().unwrap_or_default(),
                default: self.defaults.get(user).cloned(),
                seen: self.seen,
            },
        }
    }
}

impl Memberships for Directory {
    async fn membership(&self, user: &UserName) -> Membership {
        self.of(user)
    }
}
