//! All accounts, users, memberships and QoS at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use spur_sdk::store::{Entry, Key, Revision, Snapshot, StoreError, decode};
use spur_sdk::{AccountName, QosName, UserName};

use super::records::{AccountRecord, Head, MemberRecord, QosRecord, UserRecord};

/// What all keys of the accounts begin with.
pub(super) const PREFIX: &str = "accounts/";

/// All accounts, users, memberships and QoS at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Book {
    pub(super) revision: Revision,
    pub(super) head: Head,
    /// When the head was last written; 0 is never.
    pub(super) head_revision: Revision,
    pub(super) accounts: BTreeMap<AccountName, Arc<AccountRecord>>,
    pub(super) users: BTreeMap<UserName, Arc<UserRecord>>,
    pub(super) members: BTreeMap<(AccountName, UserName), Arc<MemberRecord>>,
    /// The accounts of each user.
    pub(super) accounts_of: BTreeMap<UserName, BTreeSet<AccountName>>,
    pub(super) qos: BTreeMap<QosName, Arc<QosRecord>>,
}

/// A record that is set or, where there is none, removed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Put {
    Account(AccountName, Option<AccountRecord>),
    User(UserName, Option<UserRecord>),
    Member(AccountName, UserName, Option<MemberRecord>),
    Qos(QosName, Option<QosRecord>),
}

impl Put {
    /// Where it is kept. Names that are made hold no slash.
    pub(super) fn key(&self) -> Result<Key, StoreError> {
        let text = match self {
            Self::Account(name, _) => format!("{PREFIX}account/{name}"),
            Self::User(name, _) => format!("{PREFIX}user/{name}"),
            Self::Member(account, user, _) => format!("{PREFIX}member/{account}/{user}"),
            Self::Qos(name, _) => format!("{PREFIX}qos/{name}"),
        };
        text.try_into()
    }

    /// What it concerns, in words.
    pub(super) fn subject(&self) -> String {
        match self {
            Self::Account(name, _) => format!("account {name}"),
            Self::User(name, _) => format!("user {name}"),
            Self::Member(account, user, _) => format!("user {user} in account {account}"),
            Self::Qos(name, _) => format!("qos {name}"),
        }
    }
}

impl Book {
    /// Reads what is kept.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] that names the key.
    pub(super) fn read(snapshot: &Snapshot) -> Result<Self, StoreError> {
        let mut book = Self::default();
        for entry in &snapshot.entries {
            if let Some(put) = take_in(entry)? {
                book.put(put);
            } else {
                book.head = decode(entry)?;
                book.head_revision = entry.modified;
            }
        }
        // Not the store's own, which grows with whatever else is kept.
        book.revision = book.head_revision;
        Ok(book)
    }

    /// Sets or removes a record.
    pub(super) fn put(&mut self, put: Put) {
        fn set<K: Ord, R>(map: &mut BTreeMap<K, Arc<R>>, key: K, record: Option<R>) {
            match record {
                Some(record) => drop(map.insert(key, Arc::new(record))),
                None => drop(map.remove(&key)),
            }
        }
        match put {
            Put::Account(name, record) => set(&mut self.accounts, name, record),
            Put::User(name, record) => set(&mut self.users, name, record),
            Put::Qos(name, record) => set(&mut self.qos, name, record),
            Put::Member(account, user, record) => {
                let accounts = self.accounts_of.entry(user.clone()).or_default();
                if record.is_some() {
                    accounts.insert(account.clone());
                } else {
                    accounts.remove(&account);
                    if accounts.is_empty() {
                        self.accounts_of.remove(&user);
                    }
                }
                set(&mut self.members, (account, user), record);
            }
        }
    }

    /// The state that this shows; it grows with each change.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Accounts by name.
    #[must_use]
    pub fn accounts(&self) -> &BTreeMap<AccountName, Arc<AccountRecord>> {
        &self.accounts
    }

    /// Users by name.
    #[must_use]
    pub fn users(&self) -> &BTreeMap<UserName, Arc<UserRecord>> {
        &self.users
    }

    /// Memberships by account and user.
    #[must_use]
    pub fn members(&self) -> &BTreeMap<(AccountName, UserName), Arc<MemberRecord>> {
        &self.members
    }

    /// QoS by name.
    #[must_use]
    pub fn qos(&self) -> &BTreeMap<QosName, Arc<QosRecord>> {
        &self.qos
    }

    /// The accounts that a user is a member of, the default account first and the others by name.
    #[must_use]
    pub fn accounts_of(&self, user: &UserName) -> Vec<&AccountName> {
        let default = self.users.get(user).and_then(|user| user.default_account.as_ref());
        let mut accounts: Vec<_> = self.accounts_of.get(user).into_iter().flatten().collect();
        accounts.sort_by_key(|account| (Some(*account) != default, *account));
        accounts
    }

    /// Whether a user administers an account, itself or one above it.
    #[must_use]
    pub fn coordinates(&self, user: &UserName, account: &AccountName) -> bool {
        let mut next = Some(account);
        // A chain of parents is never longer than there are accounts.
        for _ in 0..=self.accounts.len() {
            let Some(record) = next.and_then(|account| self.accounts.get(account)) else { return false };
            if record.coordinators.contains(user) {
                return true;
            }
            next = record.parent.as_ref();
        }
        false
    }

    /// Whether a user administers any account.
    #[must_use]
    pub fn is_coordinator(&self, user: &UserName) -> bool {
        self.accounts.values().any(|account| account.coordinators.contains(user))
    }
}

/// The record of an entry; `None` for the head.
fn take_in(entry: &Entry) -> Result<Option<Put>, StoreError> {
    let unknown = || StoreError::damaged(&entry.key, "no account, user, membership or QoS is kept there");
    let path = entry.key.as_str().strip_prefix(PREFIX).ok_or_else(unknown)?;
    if path == "head" {
        return Ok(None);
    }
    let (kind, name) = path.split_once('/').ok_or_else(unknown)?;
    let name_error = |error: spur_sdk::NameError| StoreError::damaged(&entry.key, error.to_string());
    Ok(Some(match kind {
        "account" => Put::Account(name.parse().map_err(name_error)?, Some(decode(entry)?)),
        "user" => Put::User(name.parse().map_err(name_error)?, Some(decode(entry)?)),
        "qos" => Put::Qos(name.parse().map_err(name_error)?, Some(decode(entry)?)),
        "member" => {
            let (account, user) = name.split_once('/').ok_or_else(unknown)?;
            let (account, user) = (account.parse().map_err(name_error)?, user.parse().map_err(name_error)?);
            Put::Member(account, user, Some(decode(entry)?))
        }
        _ => return Err(unknown()),
    }))
}
