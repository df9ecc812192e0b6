//! A controller's accounts at one moment, as its three lists tell them.

use std::collections::{BTreeMap, BTreeSet};

use spur_sdk::rpc::Client;
use spur_sdk::rpc::messages::slurm::{
    AccountInfo, ListAccountsRequest, ListAccountsRpc, ListQosRequest, ListQosRpc, ListUsersRequest,
    ListUsersRpc, QosInfo, UserInfo,
};
use spur_sdk_quota::ROOT;

use super::values::list;
use crate::controller::ask;

/// How often lists that do not belong together are asked for.
const ATTEMPTS: u32 = 5;

/// A user apart from any account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Person {
    pub(super) admin_level: String,
    pub(super) default_account: String,
    pub(super) accounts: BTreeSet<String>,
}

/// A controller's accounts at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Records {
    pub(super) accounts: BTreeMap<String, AccountInfo>,
    pub(super) people: BTreeMap<String, Person>,
    /// By account and user.
    pub(super) members: BTreeMap<(String, String), UserInfo>,
    pub(super) qos: BTreeMap<String, QosInfo>,
    /// There is more than this caller may see.
    pub(super) partial: bool,
}

/// The exact text where there is one.
pub(super) fn amounts<'t>(rounded: &'t str, exact: Option<&'t String>) -> &'t str {
    exact.map_or(rounded, String::as_str)
}

/// The account above; `root` where none is named.
pub(super) fn parent(account: &AccountInfo) -> &str {
    if account.parent_account.is_empty() { ROOT } else { &account.parent_account }
}

impl Records {
    /// Asks for them.
    pub(super) async fn read(client: &Client) -> anyhow::Result<Self> {
        let mut attempt = 1;
        loop {
            let (every_account, every_user) = (ListAccountsRequest::default(), ListUsersRequest::default());
            let accounts = ask::<ListAccountsRpc>(client, &every_account).await?;
            let users = ask::<ListUsersRpc>(client, &every_user).await?;
            let qos = ask::<ListQosRpc>(client, &ListQosRequest::default()).await?;
            let partial = [accounts.partial, users.partial, qos.partial].contains(&Some(true));
            let one = accounts.revision == users.revision && users.revision == qos.revision;
            // A part belongs together as far as anybody can say.
            if one || partial || attempt == ATTEMPTS {
                return Ok(Self::of(accounts.accounts, users.users, qos.qos_list, partial));
            }
            attempt += 1;
        }
    }

    pub(super) fn of(
        accounts: Vec<AccountInfo>,
        users: Vec<UserInfo>,
        qos: Vec<QosInfo>,
        partial: bool,
    ) -> Self {
        let mut records = Self { partial, ..Self::default() };
        records.accounts = accounts.into_iter().map(|account| (account.name.clone(), account)).collect();
        records.qos = qos.into_iter().map(|qos| (qos.name.clone(), qos)).collect();
        for user in users {
            let person = records.people.entry(user.name.clone()).or_default();
            person.admin_level.clone_from(&user.admin_level);
            person.default_account.clone_from(&user.default_account);
            if !user.account.is_empty() {
                person.accounts.insert(user.account.clone());
                records.members.insert((user.account.clone(), user.name.clone()), user);
            }
        }
        records
    }

    /// Accounts directly below one, by name.
    pub(super) fn below<'r>(&'r self, above: &'r str) -> impl Iterator<Item = &'r AccountInfo> {
        self.accounts.values().filter(move |account| account.name != ROOT && parent(account) == above)
    }

    /// An account and all below it, what is lower later.
    pub(super) fn subtree(&self, account: &str) -> Vec<String> {
        let mut found = vec![account.to_owned()];
        let mut at = 0;
        while let Some(above) = found.get(at).cloned() {
            // A circle, which no sound controller has, must not be gone round for ever.
            let below: Vec<_> = self.below(&above).map(|account| account.name.clone()).collect();
            found.extend(below.into_iter().filter(|name| name != account));
            if found.len() > self.accounts.len() {
                break;
            }
            at += 1;
        }
        found
    }

    /// Members of an account, by name.
    pub(super) fn members_of(&self, account: &str) -> impl Iterator<Item = &UserInfo> {
        let from = (account.to_owned(), String::new());
        let account = account.to_owned();
        self.members.range(from..).take_while(move |((of, _), _)| *of == account).map(|(_, member)| member)
    }

    /// A user's memberships, by account.
    pub(super) fn memberships<'r>(&'r self, user: &'r str) -> impl Iterator<Item = &'r UserInfo> {
        let accounts = self.people.get(user).into_iter().flat_map(|person| &person.accounts);
        accounts.filter_map(|account| self.members.get(&(account.clone(), user.to_owned())))
    }

    pub(super) fn member(&self, account: &str, user: &str) -> Option<&UserInfo> {
        self.members.get(&(account.to_owned(), user.to_owned()))
    }

    /// Users who administer an account, by themselves or through one above.
    pub(super) fn coordinators(&self, account: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut next = self.accounts.get(account);
        for _ in 0..=self.accounts.len() {
            let Some(account) = next else { break };
            found.extend(account.coordinators.iter().map(String::as_str));
            next = self.accounts.get(&account.parent_account);
        }
        found
    }

    /// Memberships that name a QoS.
    pub(super) fn uses_of<'r>(&'r self, qos: &'r str) -> impl Iterator<Item = &'r UserInfo> {
        let uses = move |member: &&UserInfo| {
            member.default_qos == qos || list(&member.allowed_qos).iter().any(|allowed| allowed == qos)
        };
        self.members.values().filter(uses)
    }
}
