//! Controllers without `ChangeAccounts`: SPUR's own. Its calls know none of our fields, so what these ask for is seen to
//! here.

use anyhow::{Context, bail};
use spur_sdk::rpc::Client;
use spur_sdk::rpc::messages::slurm::{
    AddUserRequest, AddUserRpc, CreateAccountRequest, CreateAccountRpc, CreateQosRequest, CreateQosRpc,
    DeleteAccountRequest, DeleteAccountRpc, DeleteQosRequest, DeleteQosRpc, Presence, RemoveUserRequest,
    RemoveUserRpc,
};

use super::change::{Change, Made};
use super::records::{Records, amounts};
use super::values::{limits, list, spelled};
use crate::controller::ask;
use crate::output;

/// Makes changes one after the other.
pub(super) async fn make(client: &Client, changes: &[Change], dry_run: bool) -> anyhow::Result<Made> {
    output::note(
        "this controller is an older one: changes are made one by one, and none of them is a part of another",
    );
    let mut made = Made::default();
    for (number, change) in changes.iter().enumerate() {
        let carried_out = async {
            // Read anew each time: a change may depend on the one before.
            let records = if asks(change) { Records::read(client).await? } else { Records::default() };
            let mut lines = Vec::new();
            for call in plain(change.clone(), &records)? {
                lines.push(format!(
                    "{}: {}",
                    subject(&call),
                    if dry_run { "would be written" } else { "written" }
                ));
                if !dry_run {
                    carry_out(client, call).await?;
                }
            }
            anyhow::Ok(lines)
        };
        match carried_out.await {
            Ok(lines) => made.lines.extend(lines),
            Err(error) if number == 0 => return Err(error),
            Err(error) => {
                made.stopped = Some(error);
                break;
            }
        }
    }
    Ok(made)
}

async fn carry_out(client: &Client, call: Change) -> anyhow::Result<()> {
    match call {
        Change::CreateAccount(request) => ask::<CreateAccountRpc>(client, &request).await,
        Change::DeleteAccount(request) => ask::<DeleteAccountRpc>(client, &request).await,
        Change::AddUser(request) => ask::<AddUserRpc>(client, &request).await,
        Change::RemoveUser(request) => ask::<RemoveUserRpc>(client, &request).await,
        Change::CreateQos(request) => ask::<CreateQosRpc>(client, &request).await,
        Change::DeleteQos(request) => ask::<DeleteQosRpc>(client, &request).await,
    }
}

/// Whether it depends on what is there.
fn asks(change: &Change) -> bool {
    match change {
        Change::CreateAccount(request) => request.presence.is_some() || request.merge_tres.is_some(),
        Change::AddUser(request) => request.presence.is_some() || request.merge_tres.is_some(),
        Change::CreateQos(request) => request.presence.is_some() || request.merge_tres.is_some(),
        Change::DeleteAccount(_) | Change::RemoveUser(_) | Change::DeleteQos(_) => true,
    }
}

fn subject(call: &Change) -> String {
    let member = |user: &str, account: &str| match account {
        "" => format!("user {user}"),
        account => format!("user {user} in account {account}"),
    };
    match call {
        Change::CreateAccount(request) => format!("account {}", request.name),
        Change::DeleteAccount(request) => format!("account {} deleted", request.name),
        Change::AddUser(request) => member(&request.user, &request.account),
        Change::RemoveUser(request) => format!("{} deleted", member(&request.user, &request.account)),
        Change::CreateQos(request) => format!("qos {}", request.name),
        Change::DeleteQos(request) => format!("qos {} deleted", request.name),
    }
}

/// A change as calls that every SPUR controller knows.
fn plain(change: Change, records: &Records) -> anyhow::Result<Vec<Change>> {
    Ok(match change {
        Change::CreateAccount(request) => vec![Change::CreateAccount(account(request, records)?)],
        Change::AddUser(request) => vec![Change::AddUser(user(request, records)?)],
        Change::CreateQos(request) => vec![Change::CreateQos(qos(request, records)?)],
        Change::DeleteAccount(request) => delete_account(&request, records)?,
        Change::RemoveUser(request) => remove_user(request, records)?,
        Change::DeleteQos(request) => vec![Change::DeleteQos(delete_qos(request, records)?)],
    })
}

fn check(presence: Option<i32>, exists: bool, what: &str) -> anyhow::Result<()> {
    match presence.and_then(|presence| Presence::try_from(presence).ok()) {
        Some(Presence::Absent) if exists => bail!("{what} exists already"),
        Some(Presence::Present) if !exists => bail!("{what} does not exist"),
        _ => Ok(()),
    }
}

/// Amounts that replace those that are there, also where only some are to change.
fn whole(field: &str, new: Option<String>, merge: Option<bool>, old: &str) -> anyhow::Result<Option<String>> {
    let Some(new) = new else { return Ok(None) };
    let merge = merge == Some(true);
    let parsed = spur_sdk::parse_tres(&new, spur_sdk::MemorySpelling::Spur);
    let mut all = if merge {
        limits(old).with_context(|| format!("{field} of the controller: {old}"))?
    } else {
        spur_sdk::TresLimits::new()
    };
    all.extend(parsed.with_context(|| field.to_owned())?);
    all.retain(|_, limit| limit.value().is_some());
    Ok(Some(spelled(&all)))
}

fn account(mut request: CreateAccountRequest, records: &Records) -> anyhow::Result<CreateAccountRequest> {
    let old = records.accounts.get(&request.name);
    check(request.presence.take(), old.is_some(), &format!("account {}", request.name))?;
    if !request.add_coordinators.is_empty() || !request.remove_coordinators.is_empty() {
        bail!("this controller is an older one and keeps no coordinators");
    }
    let amounts = old.map_or("", |old| amounts(&old.grp_tres, old.grp_tres_exact.as_ref()));
    request.grp_tres = whole("grp_tres", request.grp_tres, request.merge_tres.take(), amounts)?;
    Ok(request)
}

fn user(mut request: AddUserRequest, records: &Records) -> anyhow::Result<AddUserRequest> {
    let (exists, what) = match request.account.as_str() {
        "" => (records.people.contains_key(&request.user), format!("user {}", request.user)),
        account => {
            let what = format!("user {} in account {account}", request.user);
            (records.member(account, &request.user).is_some(), what)
        }
    };
    check(request.presence.take(), exists, &what)?;
    let old = records.member(&request.account, &request.user).cloned().unwrap_or_default();
    let merge = request.merge_tres.take();
    let grp = amounts(&old.grp_tres, old.grp_tres_exact.as_ref());
    request.grp_tres = whole("grp_tres", request.grp_tres, merge, grp)?;
    let job = amounts(&old.max_tres_per_job, old.max_tres_per_job_exact.as_ref());
    request.max_tres_per_job = whole("max_tres_per_job", request.max_tres_per_job, merge, job)?;
    Ok(request)
}

fn qos(mut request: CreateQosRequest, records: &Records) -> anyhow::Result<CreateQosRequest> {
    let old = records.qos.get(&request.name).cloned();
    check(request.presence.take(), old.is_some(), &format!("qos {}", request.name))?;
    let old = old.unwrap_or_default();
    let merge = request.merge_tres.take();
    let grp = amounts(&old.grp_tres, old.grp_tres_exact.as_ref());
    request.grp_tres = whole("grp_tres", request.grp_tres, merge, grp)?;
    let job = amounts(&old.max_tres_per_job, old.max_tres_per_job_exact.as_ref());
    request.max_tres_per_job = whole("max_tres_per_job", request.max_tres_per_job, merge, job)?;
    let user = amounts(&old.max_tres_per_user, old.max_tres_per_user_exact.as_ref());
    request.max_tres_per_user = whole("max_tres_per_user", request.max_tres_per_user, merge, user)?;
    Ok(request)
}

/// Members first, then what is lowest: an older controller may not see to that.
fn delete_account(request: &DeleteAccountRequest, records: &Records) -> anyhow::Result<Vec<Change>> {
    let name = &request.name;
    if !records.accounts.contains_key(name) {
        bail!("account {name} does not exist");
    }
    let going = records.subtree(name);
    let members: Vec<_> = going.iter().flat_map(|account| records.members_of(account)).collect();
    if request.force != Some(true) && (going.len() > 1 || !members.is_empty()) {
        let below = going.len() - 1;
        bail!(
            "account {name} has {below} accounts below and {} members: use --force to delete these as well",
            members.len()
        );
    }
    let leave = members
        .into_iter()
        .map(|member| RemoveUserRequest { user: member.name.clone(), account: member.account.clone() });
    let delete =
        going.iter().rev().map(|account| DeleteAccountRequest { name: account.clone(), force: None });
    Ok(leave.map(Change::RemoveUser).chain(delete.map(Change::DeleteAccount)).collect())
}

fn remove_user(request: RemoveUserRequest, records: &Records) -> anyhow::Result<Vec<Change>> {
    if !records.people.contains_key(&request.user) {
        bail!("user {} does not exist", request.user);
    }
    if !request.account.is_empty() {
        return Ok(vec![Change::RemoveUser(request)]);
    }
    let memberships = records.memberships(&request.user);
    let leave = memberships
        .map(|member| RemoveUserRequest { user: member.name.clone(), account: member.account.clone() });
    Ok(leave.map(Change::RemoveUser).collect())
}

fn delete_qos(request: DeleteQosRequest, records: &Records) -> anyhow::Result<DeleteQosRequest> {
    let name = &request.name;
    if !records.qos.contains_key(name) {
        bail!("qos {name} does not exist");
    }
    let users: Vec<_> = records.uses_of(name).map(|member| member.name.as_str()).collect();
    let preempted = records.qos.values().any(|qos| qos.name != *name && list(&qos.preempt).contains(name));
    if !users.is_empty() || preempted {
        bail!(
            "qos {name} is named by others (users: {}) and this controller is an older one: take it from these first",
            output::shorten(&users)
        );
    }
    Ok(DeleteQosRequest { name: request.name, force: None })
}

#[cfg(test)]
mod tests {
    use spur_sdk::rpc::messages::slurm::{AccountInfo, QosInfo, UserInfo};

    use super::*;

    fn records() -> Records {
        let account = |name: &str, parent: &str, grp_tres: &str| AccountInfo {
            name: name.to_owned(),
            parent_account: parent.to_owned(),
            grp_tres: grp_tres.to_owned(),
            ..AccountInfo::default()
        };
        let member = UserInfo {
            name: "alice".to_owned(),
            account: "optics".to_owned(),
            allowed_qos: "gpu,long".to_owned(),
            ..UserInfo::default()
        };
        let qos = QosInfo { name: "gpu".to_owned(), ..QosInfo::default() };
        let accounts = vec![account("physics", "", "cpu=64,mem=131072"), account("optics", "physics", "")];
        Records::of(accounts, vec![member], vec![qos], false)
    }

    fn modify(name: &str, grp_tres: &str) -> CreateAccountRequest {
        CreateAccountRequest {
            name: name.to_owned(),
            grp_tres: Some(grp_tres.to_owned()),
            presence: Some(Presence::Present.into()),
            merge_tres: Some(true),
            ..CreateAccountRequest::default()
        }
    }

    #[test]
    fn amounts_are_merged_before_an_older_controller_sees_them() {
        let changes =
            plain(Change::CreateAccount(modify("physics", "cpu=128,gres/gpu=8,mem=-1")), &records()).unwrap();
        let [Change::CreateAccount(request)] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!(request.grp_tres.as_deref(), Some("cpu=128,gres/gpu=8"));
        assert_eq!((request.presence, request.merge_tres), (None, None));
    }

    #[test]
    fn presence_is_looked_after() {
        let error = plain(Change::CreateAccount(modify("chem", "cpu=1")), &records()).unwrap_err();
        assert_eq!(error.to_string(), "account chem does not exist");
        let add = CreateAccountRequest { presence: Some(Presence::Absent.into()), ..modify("physics", "") };
        let error = plain(Change::CreateAccount(add), &records()).unwrap_err();
        assert_eq!(error.to_string(), "account physics exists already");
    }

    #[test]
    fn what_goes_with_an_account_goes_before_it() {
        let delete = |force| DeleteAccountRequest { name: "physics".to_owned(), force };
        let error = plain(Change::DeleteAccount(delete(None)), &records()).unwrap_err();
        assert!(error.to_string().contains("1 accounts below and 1 members: use --force"), "{error}");
        let calls = plain(Change::DeleteAccount(delete(Some(true))), &records()).unwrap();
        let calls: Vec<_> = calls.iter().map(subject).collect();
        assert_eq!(
            calls,
            ["user alice in account optics deleted", "account optics deleted", "account physics deleted"]
        );
    }

    #[test]
    fn a_qos_that_is_named_stays() {
        let delete = DeleteQosRequest { name: "gpu".to_owned(), force: Some(true) };
        let error = plain(Change::DeleteQos(delete), &records()).unwrap_err();
        assert!(error.to_string().contains("users: alice"), "{error}");
    }
}
