//! The book as SPUR's messages have it.

use std::collections::BTreeSet;

use spur_sdk::rpc::messages::slurm::{
    AccountInfo, ListAccountsResponse, ListQosResponse, ListUsersRequest, ListUsersResponse, QosInfo,
    UserInfo,
};
use spur_sdk::{AccountName, Bytes, Limit, MemorySpelling, TresUnit, UserName, format_tres};

use super::book::Book;
use super::edit::NO_LIMIT;
use super::records::{AccountRecord, Amounts, MemberRecord, QosRecord, UserRecord};

/// What an account weighs that says nothing.
const WEIGHT: f64 = 1.0;

/// Which accounts a caller sees.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum View {
    All,
    /// Those of a user.
    Of(UserName),
}

fn number(value: Option<u32>) -> u32 {
    value.unwrap_or(NO_LIMIT)
}

fn join<T: ToString>(names: impl IntoIterator<Item = T>) -> String {
    names.into_iter().map(|name| name.to_string()).collect::<Vec<_>>().join(",")
}

/// Amounts as SPUR writes them: whole CPUs, and memory in whole MB, rounded down.
fn tres(amounts: &Amounts) -> String {
    let rounded = amounts.0.iter().map(|(tres, limit)| {
        let rounded = match (tres.unit(), limit) {
            (TresUnit::Bytes, Limit::Value(bytes)) => Limit::Value(down(*bytes, Bytes::MB)),
            (TresUnit::Millicores, Limit::Value(millicores)) => Limit::Value(down(*millicores, 1000)),
            (_, limit) => *limit,
        };
        (tres.clone(), rounded)
    });
    format_tres(&rounded.collect(), MemorySpelling::Spur)
}

fn down(value: u64, unit: u64) -> u64 {
    value.saturating_sub(value.checked_rem(unit).unwrap_or_default())
}

/// The exact text, where the rounded one says something else.
fn exact(amounts: &Amounts) -> Option<String> {
    let text = amounts.text();
    (text != tres(amounts)).then_some(text)
}

impl View {
    fn accounts(&self, book: &Book) -> Option<BTreeSet<AccountName>> {
        let Self::Of(user) = self else { return None };
        let mut seen = BTreeSet::new();
        let own = book.accounts_of(user).into_iter();
        let coordinated = book.accounts.keys().filter(|account| book.coordinates(user, account));
        for account in own.chain(coordinated) {
            let mut next = Some(account);
            while let Some(account) = next
                && seen.insert(account.clone())
            {
                next = book.accounts.get(account).and_then(|record| record.parent.as_ref());
            }
        }
        Some(seen)
    }

    /// Whether a membership is shown.
    fn member(&self, book: &Book, account: &AccountName, member: &UserName) -> bool {
        match self {
            Self::All => true,
            Self::Of(user) => user == member || book.coordinates(user, account),
        }
    }

    /// The state that is shown; a part is none.
    fn revision(&self, book: &Book) -> Option<u64> {
        matches!(self, Self::All).then_some(book.revision.0)
    }

    fn is_partial(&self) -> Option<bool> {
        matches!(self, Self::Of(_)).then_some(true)
    }
}

pub(super) fn accounts(book: &Book, view: &View) -> ListAccountsResponse {
    let seen = view.accounts(book);
    let shown =
        book.accounts.iter().filter(|(name, _)| seen.as_ref().is_none_or(|seen| seen.contains(*name)));
    ListAccountsResponse {
        accounts: shown.map(|(name, record)| account(name, record)).collect(),
        revision: view.revision(book),
        partial: view.is_partial(),
    }
}

fn account(name: &AccountName, record: &AccountRecord) -> AccountInfo {
    AccountInfo {
        name: name.to_string(),
        description: record.description.clone().unwrap_or_default(),
        organization: record.organization.clone().unwrap_or_default(),
        parent_account: record.parent.as_ref().map(ToString::to_string).unwrap_or_default(),
        fairshare_weight: record.fairshare_weight.unwrap_or(WEIGHT),
        max_running_jobs: number(record.max_running_jobs),
        grp_tres: tres(&record.grp_tres),
        grp_tres_exact: exact(&record.grp_tres),
        coordinators: record.coordinators.iter().map(ToString::to_string).collect(),
    }
}

/// One entry for each membership, and one without an account for a user who is in none.
pub(super) fn users(book: &Book, view: &View, request: &ListUsersRequest) -> ListUsersResponse {
    let wanted = |account: &str, user: &str| {
        (request.account.is_empty() || request.account == account)
            && (request.user.is_empty() || request.user == user)
    };
    let unknown = UserRecord::default();
    let of = |user: &UserName| book.users.get(user).map_or(&unknown, |record| record.as_ref());
    let members = book
        .members
        .iter()
        .filter(|((account, user), _)| wanted(account.as_str(), user.as_str()))
        .filter(|((account, user), _)| view.member(book, account, user))
        .map(|((account, user), record)| member(account.as_str(), user, of(user), record));
    let none = MemberRecord::default();
    let alone = book
        .users
        .iter()
        .filter(|(user, _)| !book.accounts_of.contains_key(*user) && wanted("", user.as_str()))
        .filter(|(user, _)| match view {
            View::All => true,
            View::Of(caller) => caller == *user,
        })
        .map(|(user, record)| member("", user, record, &none));
    ListUsersResponse {
        users: members.chain(alone).collect(),
        revision: view.revision(book),
        partial: view.is_partial(),
    }
}

fn member(account: &str, name: &UserName, user: &UserRecord, record: &MemberRecord) -> UserInfo {
    UserInfo {
        name: name.to_string(),
        account: account.to_owned(),
        admin_level: user.admin_level.to_string(),
        default_account: user.default_account.as_ref().map(ToString::to_string).unwrap_or_default(),
        default_qos: record.default_qos.as_ref().map(ToString::to_string).unwrap_or_default(),
        allowed_qos: join(record.allowed_qos.iter().flatten()),
        max_running_jobs: number(record.max_running_jobs),
        max_submit_jobs: number(record.max_submit_jobs),
        grp_submit_jobs: number(record.grp_submit_jobs),
        max_wall_minutes: number(record.max_wall_minutes),
        max_tres_per_job: tres(&record.max_tres_per_job),
        grp_tres: tres(&record.grp_tres),
        grp_tres_exact: exact(&record.grp_tres),
        max_tres_per_job_exact: exact(&record.max_tres_per_job),
    }
}

pub(super) fn qos(book: &Book) -> ListQosResponse {
    let list = book.qos.iter().map(|(name, record)| one_qos(name.as_str(), record)).collect();
    ListQosResponse { qos_list: list, revision: Some(book.revision.0), partial: None }
}

fn one_qos(name: &str, record: &QosRecord) -> QosInfo {
    QosInfo {
        name: name.to_owned(),
        description: record.description.clone().unwrap_or_default(),
        priority: record.priority.unwrap_or_default(),
        preempt_mode: record.preempt_mode.clone().unwrap_or_default(),
        usage_factor: record.usage_factor.unwrap_or(WEIGHT),
        max_jobs_per_user: number(record.max_jobs_per_user),
        max_wall_minutes: number(record.max_wall_minutes),
        max_tres_per_job: tres(&record.max_tres_per_job),
        max_submit_jobs_per_user: number(record.max_submit_jobs_per_user),
        max_tres_per_user: tres(&record.max_tres_per_user),
        grp_tres: tres(&record.grp_tres),
        grp_wall_minutes: number(record.grp_wall_minutes),
        preempt: join(&record.preempt),
        preempt_exempt_time: record.preempt_exempt_time,
        max_submit_jobs_per_account: number(record.max_submit_jobs_per_account),
        grp_submit_jobs: number(record.grp_submit_jobs),
        flags: join(&record.flags),
        grp_tres_exact: exact(&record.grp_tres),
        max_tres_per_job_exact: exact(&record.max_tres_per_job),
        max_tres_per_user_exact: exact(&record.max_tres_per_user),
    }
}
