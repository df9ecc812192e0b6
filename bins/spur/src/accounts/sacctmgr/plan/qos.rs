//! QoS.

use spur_sdk::rpc::messages::slurm::{CreateQosRequest, Presence, QosInfo};

use super::super::keys::Field;
use super::super::words::{Line, Pair, WordsError};
use super::{amounts, changed_list, invalid, minutes, number, plain, text};
use crate::accounts::change::Change;
use crate::accounts::records::Records;
use crate::accounts::values::{self, NO_LIMIT, list};

/// Whether a QoS meets the conditions.
pub(super) fn qos_meets(line: &Line, qos: &QosInfo) -> bool {
    line.admits(Field::Name, &qos.name)
        && line.admits(Field::Description, &qos.description)
        && line.admits(Field::PreemptMode, &qos.preempt_mode)
}

fn qos_settings(request: &mut CreateQosRequest, line: &Line, records: &Records) -> Result<(), WordsError> {
    let old = records.qos.get(&request.name);
    for pair in &line.settings {
        if !matches!(pair.field, Field::Flags | Field::Preempt) {
            plain(pair)?;
        }
        match pair.field {
            Field::Description => request.description = Some(text(&pair.value)),
            Field::Flags => {
                let before =
                    request.flags.as_deref().or(old.map(|old| old.flags.as_str())).unwrap_or_default();
                let before = list(before);
                request.flags = Some(changed_list(pair, &before).join(","));
            }
            Field::Preempt => {
                let before =
                    request.preempt.as_deref().or(old.map(|old| old.preempt.as_str())).unwrap_or_default();
                let before = list(before);
                let list = changed_list(pair, &before);
                request.preempt =
                    Some(list.iter().map(|name| records.qos_name(name)).collect::<Vec<_>>().join(","));
            }
            Field::PreemptMode => request.preempt_mode = Some(text(&pair.value.to_lowercase())),
            Field::PreemptExemptTime if matches!(pair.value.as_str(), "" | "-1") => {
                request.clear_preempt_exempt_time = true;
            }
            Field::PreemptExemptTime => request.preempt_exempt_time = Some(exempt_time(pair)?),
            Field::Priority => {
                let priority = if pair.value == "-1" { Ok(0) } else { pair.value.trim().parse() };
                request.priority = Some(priority.map_err(|_| invalid(pair, "is no whole number"))?);
            }
            Field::UsageFactor => {
                let factor = if pair.value == "-1" { Ok(1.0) } else { values::share(&pair.value) };
                request.usage_factor = Some(factor.map_err(|error| invalid(pair, error))?);
            }
            Field::MaxJobsPerUser => request.max_jobs_per_user = number(pair)?,
            Field::MaxSubmitJobsPerUser => request.max_submit_jobs_per_user = number(pair)?,
            Field::MaxSubmitJobsPerAccount => request.max_submit_jobs_per_account = number(pair)?,
            Field::GrpSubmitJobs => request.grp_submit_jobs = number(pair)?,
            Field::MaxWall => request.max_wall_minutes = minutes(pair)?,
            Field::GrpWall => request.grp_wall_minutes = minutes(pair)?,
            Field::MaxTresPerJob => amounts(&mut request.max_tres_per_job, pair, None)?,
            Field::MaxOne(tres) => amounts(&mut request.max_tres_per_job, pair, Some(tres))?,
            Field::MaxTresPerUser => amounts(&mut request.max_tres_per_user, pair, None)?,
            Field::GrpTres => amounts(&mut request.grp_tres, pair, None)?,
            Field::GrpOne(tres) => amounts(&mut request.grp_tres, pair, Some(tres))?,
            _ => {}
        }
    }
    Ok(())
}

/// A number alone is minutes to Slurm.
fn exempt_time(pair: &Pair) -> Result<u32, WordsError> {
    let alone = pair.value.trim().parse::<u32>().ok().and_then(|minutes| minutes.checked_mul(60));
    match alone.filter(|seconds| *seconds < NO_LIMIT) {
        Some(seconds) => Ok(seconds),
        None => values::seconds(&pair.value).map_err(|error| invalid(pair, error)),
    }
}

pub(super) fn add_qos(line: &Line, records: &Records) -> Result<Vec<Change>, WordsError> {
    let wanted = line.set_names(Field::Name);
    if wanted.is_empty() {
        return Err(WordsError::new(" Need name of qos to add."));
    }
    let mut changes = Vec::new();
    for name in wanted.iter().map(|name| records.qos_name(name)) {
        if records.qos.contains_key(&name) {
            continue;
        }
        let presence = Some(Presence::Absent.into());
        let mut request = CreateQosRequest { name: name.clone(), presence, ..CreateQosRequest::default() };
        qos_settings(&mut request, line, records)?;
        request.description = request.description.filter(|text| !text.is_empty()).or(Some(name));
        changes.push(Change::CreateQos(request));
    }
    Ok(changes)
}

pub(super) fn modify_qos(line: &Line, records: &Records) -> Result<Vec<Change>, WordsError> {
    let mut changes = Vec::new();
    for qos in records.qos.values().filter(|qos| qos_meets(line, qos)) {
        let mut request = CreateQosRequest {
            name: qos.name.clone(),
            presence: Some(Presence::Present.into()),
            merge_tres: Some(true),
            ..CreateQosRequest::default()
        };
        qos_settings(&mut request, line, records)?;
        changes.push(Change::CreateQos(request));
    }
    Ok(changes)
}
