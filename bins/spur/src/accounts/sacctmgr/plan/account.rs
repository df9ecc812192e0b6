//! Accounts.

use spur_sdk::rpc::messages::slurm::{AccountInfo, CreateAccountRequest, Presence};
use spur_sdk_quota::ROOT;

use super::super::keys::Field;
use super::super::words::{Line, Pair, WordsError};
use super::{amounts, invalid, number, plain, text};
use crate::accounts::change::Change;
use crate::accounts::records::{Records, parent};
use crate::accounts::values;

fn account_settings(
    request: &mut CreateAccountRequest,
    pairs: &[Pair],
    records: &Records,
) -> Result<(), WordsError> {
    for pair in pairs {
        plain(pair)?;
        match pair.field {
            Field::Description => request.description = Some(text(&pair.value)),
            Field::Organization => request.organization = Some(text(&pair.value)),
            Field::Parent => request.parent_account = Some(records.account_name(&pair.value)),
            Field::Fairshare => {
                let share = if pair.value == "-1" { Ok(1.0) } else { values::share(&pair.value) };
                request.fairshare_weight = Some(share.map_err(|error| invalid(pair, error))?);
            }
            Field::GrpJobs => request.max_running_jobs = number(pair)?,
            Field::GrpTres => amounts(&mut request.grp_tres, pair, None)?,
            Field::GrpOne(tres) => amounts(&mut request.grp_tres, pair, Some(tres))?,
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn add_accounts(line: &Line, records: &Records) -> Result<Vec<Change>, WordsError> {
    let wanted = line.set_names(Field::Name);
    if wanted.is_empty() {
        return Err(WordsError::new(" Need name of account to add."));
    }
    let mut changes = Vec::new();
    for name in wanted.iter().map(|name| records.account_name(name)) {
        if records.accounts.contains_key(&name) {
            continue;
        }
        let mut request = CreateAccountRequest {
            name: name.clone(),
            presence: Some(Presence::Absent.into()),
            ..CreateAccountRequest::default()
        };
        account_settings(&mut request, &line.settings, records)?;
        // What Slurm takes where nothing is said.
        let parent = request.parent_account.clone().filter(|parent| !parent.is_empty() && parent != ROOT);
        request.description =
            request.description.filter(|text| !text.is_empty()).or_else(|| Some(name.clone()));
        request.organization = request.organization.filter(|text| !text.is_empty()).or(parent).or(Some(name));
        changes.push(Change::CreateAccount(request));
    }
    Ok(changes)
}

/// Accounts that meet the conditions.
pub(super) fn accounts<'r>(
    line: &'r Line,
    records: &'r Records,
    site: &'r str,
) -> impl Iterator<Item = &'r AccountInfo> {
    records.accounts.values().filter(move |account| {
        line.admits(Field::Name, &account.name)
            && line.admits(Field::Cluster, site)
            && line.admits(Field::Description, &account.description)
            && line.admits(Field::Organization, &account.organization)
            && line.admits(Field::Parent, parent(account))
    })
}

pub(super) fn modify_accounts(line: &Line, records: &Records, site: &str) -> Result<Vec<Change>, WordsError> {
    let mut changes = Vec::new();
    for account in accounts(line, records, site) {
        let mut request = CreateAccountRequest {
            name: account.name.clone(),
            presence: Some(Presence::Present.into()),
            merge_tres: Some(true),
            ..CreateAccountRequest::default()
        };
        account_settings(&mut request, &line.settings, records)?;
        changes.push(Change::CreateAccount(request));
    }
    Ok(changes)
}
