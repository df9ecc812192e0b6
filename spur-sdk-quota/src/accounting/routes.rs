//! SPUR's accounting calls, answered.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use spur_sdk::UserName;
use spur_sdk::identity::{self, Access, IdentityError, Role, UserRoles, UserStanding};
use spur_sdk::rpc::messages::site::{
    AccountingChange, ChangeAccountsResponse, ChangeAccountsRpc, HistoryEntry as Entry, ListHistoryResponse,
    ListHistoryRpc, WaitForChangeResponse, WaitForChangeRpc, accounting_change,
};
use spur_sdk::rpc::messages::slurm::{
    AddUserRequest, AddUserRpc, CreateAccountRequest, CreateAccountRpc, CreateQosRequest, CreateQosRpc,
    DeleteAccountRequest, DeleteAccountRpc, DeleteQosRequest, DeleteQosRpc, ListAccountsRpc, ListQosRpc,
    ListUsersRpc, RemoveUserRequest, RemoveUserRpc,
};
use spur_sdk::rpc::messages::timestamp;
use spur_sdk::rpc::{Call, Code, Current, Refusal, Router, Rpc};
use spur_sdk::store::Revision;

use super::draft::Change;
use super::edit::{AccountEdit, Edit, QosEdit, UserEdit, name};
use super::service::{Accounting, HistoryQuery};
use super::wire::{self, View};
use super::{AccountingError, Book};
use crate::model::AdminLevel;

/// The most changes of one call. With what goes along with each they fit into one transaction.
const MAX_CHANGES: usize = 25;

/// How long a call waits for a change at most.
const MAX_WAIT: Duration = Duration::from_secs(50);

/// The most entries of the history that are answered at once, and how many are if nobody says.
const MAX_HISTORY: u32 = 10_000;
const DEFAULT_HISTORY: u32 = 100;

/// Answers SPUR's accounting calls, and those that this SDK adds.
#[must_use]
pub fn routes(accounts: &Current<Accounting>) -> Router {
    let router = Router::new();
    let router = read::<ListAccountsRpc>(router, accounts, |book, view, _| wire::accounts(book, &view));
    let router =
        read::<ListUsersRpc>(router, accounts, |book, view, request| wire::users(book, &view, &request));
    let router = read::<ListQosRpc>(router, accounts, |book, _, _| wire::qos(book));
    let router = write::<CreateAccountRpc>(router, accounts);
    let router = write::<DeleteAccountRpc>(router, accounts);
    let router = write::<AddUserRpc>(router, accounts);
    let router = write::<RemoveUserRpc>(router, accounts);
    let router = write::<CreateQosRpc>(router, accounts);
    let router = write::<DeleteQosRpc>(router, accounts);
    let (changing, waiting, telling) = (accounts.clone(), accounts.clone(), accounts.clone());
    router
        .on::<ChangeAccountsRpc, _, _>(move |call, request| {
            let accounts = changing.clone();
            async move {
                let accounting = accounts.ready()?;
                if request.changes.len() > MAX_CHANGES {
                    return Err(Refusal::invalid("changes", format!("at most {MAX_CHANGES} in a call")));
                }
                let changes: Vec<_> = request.changes.into_iter().map(one).collect::<Result<_, _>>()?;
                let done = if request.dry_run {
                    judge(&call, &accounting.book(), &changes)?;
                    accounting.dry_run(changes)?
                } else {
                    make(&accounting, &call, changes).await?
                };
                Ok(ChangeAccountsResponse { changed: done.lines, revision: done.revision.0 })
            }
        })
        .on::<WaitForChangeRpc, _, _>(move |_, request| {
            let accounts = waiting.clone();
            async move {
                let accounting = accounts.ready()?;
                let asked = Duration::from_secs(u64::from(request.timeout_seconds));
                let wait = if asked.is_zero() { MAX_WAIT } else { asked.min(MAX_WAIT) };
                let changed = accounting.changed_since(Revision(request.revision));
                match tokio::time::timeout(wait, changed).await {
                    Ok(revision) => Ok(WaitForChangeResponse { revision: revision?.0 }),
                    Err(_) => Ok(WaitForChangeResponse { revision: request.revision }),
                }
            }
        })
        .on::<ListHistoryRpc, _, _>(move |_, request| {
            let accounts = telling.clone();
            async move {
                let accounting = accounts.ready()?;
                let limit = if request.limit == 0 { DEFAULT_HISTORY } else { request.limit.min(MAX_HISTORY) };
                let query = HistoryQuery {
                    after: request.after,
                    limit: usize::try_from(limit).unwrap_or(usize::MAX),
                    subject: request.subject,
                };
                let entries = accounting.history(query).await?;
                let entries = entries.into_iter().map(|entry| Entry {
                    number: entry.number,
                    time: UNIX_EPOCH.checked_add(Duration::from_secs(entry.record.time)).map(timestamp),
                    caller: entry.record.caller,
                    subject: entry.record.subject,
                    change: entry.record.change,
                });
                Ok(ListHistoryResponse { entries: entries.collect() })
            }
        })
}

/// Answers a call that reads.
fn read<R: Rpc>(
    router: Router,
    accounts: &Current<Accounting>,
    answer: impl Fn(&Book, View, R::Request) -> R::Response + Copy + Send + Sync + 'static,
) -> Router
where
    R::Request: Send,
{
    let accounts = accounts.clone();
    router.on::<R, _, _>(move |call, request| {
        let accounting = accounts.ready();
        async move {
            let book = accounting?.book();
            Ok(answer(&book, view(&call)?, request))
        }
    })
}

fn view(call: &Call) -> Result<View, Refusal> {
    match (call.access, call.caller.user()) {
        (Access::Allow, _) => Ok(View::All),
        (Access::Own, Some(user)) => Ok(View::Of(user.clone())),
        _ => Err(Refusal::new(Code::PermissionDenied, format!("{} has no accounts", call.caller))),
    }
}

/// A request that changes the accounts.
trait Wish {
    fn change(self) -> Result<Change, AccountingError>;
}

impl Wish for CreateAccountRequest {
    fn change(self) -> Result<Change, AccountingError> {
        Ok(Change::Account(Box::new(AccountEdit::try_from(self)?)))
    }
}

impl Wish for DeleteAccountRequest {
    fn change(self) -> Result<Change, AccountingError> {
        Ok(Change::DeleteAccount { name: name("name", &self.name)?, force: self.force.unwrap_or_default() })
    }
}

impl Wish for AddUserRequest {
    fn change(self) -> Result<Change, AccountingError> {
        Ok(Change::User(Box::new(UserEdit::try_from(self)?)))
    }
}

impl Wish for RemoveUserRequest {
    fn change(self) -> Result<Change, AccountingError> {
        let account = if self.account.is_empty() { None } else { Some(name("account", &self.account)?) };
        Ok(Change::RemoveUser { user: name("user", &self.user)?, account })
    }
}

impl Wish for CreateQosRequest {
    fn change(self) -> Result<Change, AccountingError> {
        Ok(Change::Qos(Box::new(QosEdit::try_from(self)?)))
    }
}

impl Wish for DeleteQosRequest {
    fn change(self) -> Result<Change, AccountingError> {
        Ok(Change::DeleteQos { name: name("name", &self.name)?, force: self.force.unwrap_or_default() })
    }
}

fn one(change: AccountingChange) -> Result<Change, Refusal> {
    use accounting_change::Change as Wire;
    let change = match change.change {
        Some(Wire::CreateAccount(request)) => request.change(),
        Some(Wire::DeleteAccount(request)) => request.change(),
        Some(Wire::AddUser(request)) => request.change(),
        Some(Wire::RemoveUser(request)) => request.change(),
        Some(Wire::CreateQos(request)) => request.change(),
        Some(Wire::DeleteQos(request)) => request.change(),
        None => {
            return Err(Refusal::invalid("changes", "one of them says nothing, or something unknown here"));
        }
    };
    Ok(change?)
}

/// Answers one of SPUR's calls that change something.
fn write<R>(router: Router, accounts: &Current<Accounting>) -> Router
where
    R: Rpc<Response = ()>,
    R::Request: Wish + Send,
{
    let accounts = accounts.clone();
    router.on::<R, _, _>(move |call, request| {
        let accounting = accounts.ready();
        async move {
            let accounting = accounting?;
            make(&accounting, &call, vec![request.change()?]).await.map(drop)
        }
    })
}

async fn make(accounting: &Accounting, call: &Call, changes: Vec<Change>) -> Result<super::Changed, Refusal> {
    judge(call, &accounting.book(), &changes)?;
    let done = accounting.change(changes, call.caller.to_string()).await?;
    for line in &done.lines {
        tracing::info!(caller = %call.caller, change = line, "accounts changed");
    }
    Ok(done)
}

/// Whether a caller may make these changes: what the table leaves to what is the caller's own.
fn judge(call: &Call, book: &Book, changes: &[Change]) -> Result<(), Refusal> {
    let denied = |message: String| Err(Refusal::new(Code::PermissionDenied, message));
    let admin = call.roles.contains(&Role::Admin);
    for change in changes {
        match change {
            Change::User(edit) if edit.admin_level != Edit::Keep && !admin => {
                return denied("admin_level: only admins give or take it".to_owned());
            }
            // Out of all accounts, or with the last one, rights over the accounts go as well.
            Change::RemoveUser { user, .. } if !admin && level(book, user) != AdminLevel::None => {
                return denied(format!("user: {user} is an {}; only admins remove one", level(book, user)));
            }
            _ => {}
        }
        if call.access == Access::Allow {
            continue;
        }
        let (Access::Own, Some(caller)) = (call.access, call.caller.user()) else {
            return denied(format!("{} may not change accounts", call.caller));
        };
        let account = match change {
            Change::User(edit) => edit.account.as_ref(),
            Change::RemoveUser { account, .. } => account.as_ref(),
            _ => None,
        };
        match account {
            Some(account) if book.coordinates(caller, account) => {}
            Some(account) => return denied(format!("account: {caller} is no coordinator of {account}")),
            None => return denied("a coordinator adds and removes members, account by account".to_owned()),
        }
        if let Change::User(edit) = change
            && edit.sets_limits()
        {
            return denied(
                "a coordinator adds and removes members; limits and QoS are an operator's".to_owned(),
            );
        }
    }
    Ok(())
}

fn level(book: &Book, user: &UserName) -> AdminLevel {
    book.users().get(user).map(|user| user.admin_level).unwrap_or_default()
}

/// What users are, by the accounts.
#[derive(Debug, Clone)]
pub struct AccountRoles(pub Current<Accounting>);

impl UserRoles for AccountRoles {
    fn standing(&self, user: &UserName) -> impl Future<Output = Result<UserStanding, IdentityError>> + Send {
        // A controller that does not lead hands calls on, and the leader judges them.
        let book: Option<Arc<Book>> = self.0.get().map(|accounting| accounting.book());
        let standing = book.map(|book| {
            let level = match level(&book, user) {
                AdminLevel::None => identity::AdminLevel::None,
                AdminLevel::Operator => identity::AdminLevel::Operator,
                AdminLevel::Administrator => identity::AdminLevel::Administrator,
            };
            let coordinated = book.accounts().iter().filter(|(_, record)| record.coordinators.contains(user));
            UserStanding::new(level, coordinated.map(|(name, _)| name.clone()).collect())
        });
        std::future::ready(standing.ok_or(IdentityError::Stale))
    }
}
