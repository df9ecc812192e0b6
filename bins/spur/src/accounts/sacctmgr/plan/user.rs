//! Users and memberships.

use std::collections::BTreeSet;

use spur_sdk::rpc::messages::slurm::{AddUserRequest, Presence, RemoveUserRequest, UserInfo};

use super::super::keys::Field;
use super::super::words::{Line, Pair, Sign, WordsError, names};
use super::{amounts, changed_list, invalid, minutes, number, plain, text};
use crate::accounts::change::Change;
use crate::accounts::records::Records;
use crate::accounts::values::list;

/// The QoS of a membership after a pair; `own` are those before it, and none are all.
fn allowed_qos(
    pair: &Pair,
    own: Vec<String>,
    is_member: bool,
    records: &Records,
) -> Result<String, WordsError> {
    if pair.value.is_empty() || pair.value == "-1" {
        return Ok(String::new());
    }
    let named = names(&pair.value).iter().map(|name| records.qos_name(name)).collect::<Vec<_>>().join(",");
    let resolved = Pair { value: named, ..pair.clone() };
    match pair.sign {
        // Whoever may use every QoS has the one to be added.
        Sign::Add if own.is_empty() && is_member => Ok(String::new()),
        Sign::Remove => {
            let before = if own.is_empty() { records.qos.keys().cloned().collect() } else { own };
            let left = changed_list(&resolved, &before);
            if left.is_empty() {
                return Err(invalid(pair, "no QoS would be left, and to SPUR an empty list is every QoS"));
            }
            Ok(left.join(","))
        }
        Sign::Set | Sign::Add => Ok(changed_list(&resolved, &own).join(",")),
    }
}

fn member_settings(
    request: &mut AddUserRequest,
    pairs: &[Pair],
    member: Option<&UserInfo>,
    records: &Records,
) -> Result<(), WordsError> {
    for pair in pairs {
        if pair.field != Field::Qos {
            plain(pair)?;
        }
        match pair.field {
            Field::DefaultQos => {
                request.default_qos = Some(records.qos_name(&text(&pair.value)));
            }
            Field::Qos => {
                // What the words before have made of them.
                let own = request.allowed_qos.as_deref().or(member.map(|member| member.allowed_qos.as_str()));
                let own = list(own.unwrap_or_default());
                request.allowed_qos = Some(allowed_qos(pair, own, member.is_some(), records)?);
            }
            Field::MaxJobs => request.max_running_jobs = number(pair)?,
            Field::MaxSubmitJobs => request.max_submit_jobs = number(pair)?,
            Field::GrpSubmitJobs => request.grp_submit_jobs = number(pair)?,
            Field::MaxWall => request.max_wall_minutes = minutes(pair)?,
            Field::MaxTresPerJob => amounts(&mut request.max_tres_per_job, pair, None)?,
            Field::MaxOne(tres) => amounts(&mut request.max_tres_per_job, pair, Some(tres))?,
            Field::GrpTres => amounts(&mut request.grp_tres, pair, None)?,
            Field::GrpOne(tres) => amounts(&mut request.grp_tres, pair, Some(tres))?,
            Field::Partition if !pair.value.is_empty() => {
                return Err(invalid(pair, "SPUR's memberships hold on all partitions; leave it out"));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn add_users(line: &Line, records: &Records) -> Result<Vec<Change>, WordsError> {
    let (users, accounts) = (line.set_names(Field::Name), line.set_names(Field::Account));
    if users.is_empty() {
        return Err(WordsError::new(" Need name of user to add."));
    }
    let default = line.set(Field::DefaultAccount).map(|pair| records.account_name(&pair.value));
    let mut accounts: Vec<_> = accounts.iter().map(|name| records.account_name(name)).collect();
    if accounts.is_empty() {
        // As in Slurm, the default account is one to be a member of.
        accounts.extend(default.clone());
    }
    if accounts.is_empty() {
        return Err(WordsError::new(" Need name of account to add user to."));
    }
    // The first one becomes the default where none is.
    accounts.sort_by_key(|account| default.as_ref() != Some(account));
    let mut changes = Vec::new();
    for user in users.iter().map(|name| records.user_name(name)) {
        let mut level = line.set(Field::AdminLevel).map(|pair| pair.value.clone());
        for account in accounts.iter().filter(|account| records.member(account, &user).is_none()) {
            let mut request = AddUserRequest {
                user: user.clone(),
                account: account.clone(),
                admin_level: level.take(),
                is_default: (default.as_ref() == Some(account)).then_some(true),
                presence: Some(Presence::Absent.into()),
                ..AddUserRequest::default()
            };
            member_settings(&mut request, &line.settings, None, records)?;
            changes.push(Change::AddUser(request));
        }
    }
    Ok(changes)
}

/// Memberships that meet the conditions.
fn members<'r>(line: &'r Line, records: &'r Records, site: &'r str) -> impl Iterator<Item = &'r UserInfo> {
    records.members.values().filter(move |member| {
        line.admits(Field::Name, &member.name)
            && line.admits(Field::Account, &member.account)
            && line.admits(Field::Cluster, site)
            && line.admits(Field::Partition, "")
            && line.admits(Field::DefaultQos, &member.default_qos)
            && line.admits_any(Field::Qos, &list(&member.allowed_qos))
            && person_meets(line, records, &member.name)
    })
}

/// Whether a user meets the conditions that are about no membership.
fn person_meets(line: &Line, records: &Records, user: &str) -> bool {
    let Some(person) = records.people.get(user) else { return false };
    let mut asked = line.conditions.iter().filter(|pair| pair.field == Field::AdminLevel).peekable();
    let level = person.admin_level.to_lowercase();
    let level_meets =
        asked.peek().is_none() || asked.any(|pair| level.starts_with(&pair.value.to_lowercase()));
    level_meets
        && line.admits(Field::Name, user)
        && line.admits(Field::DefaultAccount, &person.default_account)
}

/// Whether a condition is about memberships.
pub(super) fn asks_membership(line: &Line) -> bool {
    [Field::Account, Field::DefaultQos, Field::Qos, Field::Partition]
        .into_iter()
        .any(|field| line.asks(field))
}

pub(super) fn modify_users(line: &Line, records: &Records, site: &str) -> Result<Vec<Change>, WordsError> {
    if let Some(pair) = line.settings.iter().find(|pair| matches!(pair.field, Field::Account | Field::Name)) {
        return Err(invalid(
            pair,
            "a membership is not moved; add the user to the one account and delete from the other",
        ));
    }
    let about_person =
        |pair: &&Pair| matches!(pair.field, Field::AdminLevel | Field::DefaultAccount | Field::Cluster);
    let mut changes = Vec::new();
    let level = line.set(Field::AdminLevel).map(|pair| pair.value.clone());
    let default = line.set(Field::DefaultAccount).map(|pair| records.account_name(&pair.value));
    let mut users: BTreeSet<&str> = members(line, records, site).map(|member| member.name.as_str()).collect();
    if !asks_membership(line) {
        users.extend(
            records.people.keys().map(String::as_str).filter(|user| person_meets(line, records, user)),
        );
    }
    if level.is_some() || default.is_some() {
        changes.extend(users.into_iter().map(|user| {
            Change::AddUser(AddUserRequest {
                user: user.to_owned(),
                account: default.clone().unwrap_or_default(),
                is_default: default.is_some().then_some(true),
                admin_level: level.clone(),
                presence: Some(Presence::Present.into()),
                ..AddUserRequest::default()
            })
        }));
    }
    if line.settings.iter().all(|pair| about_person(&pair)) {
        return Ok(changes);
    }
    for member in members(line, records, site) {
        let mut request = AddUserRequest {
            user: member.name.clone(),
            account: member.account.clone(),
            presence: Some(Presence::Present.into()),
            merge_tres: Some(true),
            ..AddUserRequest::default()
        };
        member_settings(&mut request, &line.settings, Some(member), records)?;
        changes.push(Change::AddUser(request));
    }
    Ok(changes)
}

pub(super) fn delete_users(line: &Line, records: &Records, site: &str) -> Vec<Change> {
    let remove = |user: &str, account: &str| {
        Change::RemoveUser(RemoveUserRequest { user: user.to_owned(), account: account.to_owned() })
    };
    if asks_membership(line) {
        return members(line, records, site).map(|member| remove(&member.name, &member.account)).collect();
    }
    let users = records.people.keys().filter(|user| person_meets(line, records, user));
    users.filter(|_| line.admits(Field::Cluster, site)).map(|user| remove(user, "")).collect()
}
