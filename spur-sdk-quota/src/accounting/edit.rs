//! What a request wants to be different: each field is kept, cleared or set.

use std::collections::{BTreeMap, BTreeSet};

use spur_sdk::rpc::messages::slurm::{AddUserRequest, CreateAccountRequest, CreateQosRequest, Presence};
use spur_sdk::{
    AccountName, Limit, MemorySpelling, NameError, QosName, TresLimits, UserName, error_chain, parse_tres,
};

use super::AccountingError;
use super::records::Amounts;
use crate::model::AdminLevel;

/// Clears a number on the wire: no limit.
pub(super) const NO_LIMIT: u32 = u32::MAX;

/// The longest name that is made, in bytes: what Slurm's tables hold.
const MAX_NAME: usize = 255;

/// The longest text of a description, in bytes.
const MAX_TEXT: usize = 1024;

/// The longest TRES text and list of names, in bytes.
const MAX_LIST: usize = 16 << 10;

/// What becomes of a field.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Edit<T> {
    Keep,
    Clear,
    Set(T),
}

impl<T> Edit<T> {
    fn map<U>(self, f: impl FnOnce(T) -> Result<U, AccountingError>) -> Result<Edit<U>, AccountingError> {
        Ok(match self {
            Self::Keep => Edit::Keep,
            Self::Clear => Edit::Clear,
            Self::Set(value) => Edit::Set(f(value)?),
        })
    }
}

/// What becomes of amounts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TresEdit {
    edit: Edit<TresLimits>,
    /// Only the TRES that are named change.
    merge: bool,
}

impl TresEdit {
    pub(super) fn apply(self, amounts: &mut Amounts) {
        match self.edit {
            Edit::Keep => return,
            Edit::Clear => amounts.0.clear(),
            Edit::Set(new) if self.merge => amounts.0.extend(new),
            Edit::Set(new) => amounts.0 = new,
        }
        amounts.0.retain(|_, limit| *limit != Limit::Unset);
    }
}

/// What a request expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Any,
    Absent,
    Present,
}

/// A new or changed account.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AccountEdit {
    pub(super) name: AccountName,
    pub(super) expected: Expected,
    pub(super) description: Edit<String>,
    pub(super) organization: Edit<String>,
    pub(super) parent: Edit<AccountName>,
    pub(super) fairshare_weight: Edit<f64>,
    pub(super) max_running_jobs: Edit<u32>,
    pub(super) grp_tres: TresEdit,
    pub(super) add_coordinators: BTreeSet<UserName>,
    pub(super) remove_coordinators: BTreeSet<UserName>,
}

/// A new or changed user and, where an account is named, membership.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UserEdit {
    pub(super) user: UserName,
    pub(super) account: Option<AccountName>,
    pub(super) expected: Expected,
    pub(super) admin_level: Edit<AdminLevel>,
    pub(super) is_default: Option<bool>,
    pub(super) default_qos: Edit<QosName>,
    pub(super) allowed_qos: Edit<BTreeSet<QosName>>,
    pub(super) max_running_jobs: Edit<u32>,
    pub(super) max_submit_jobs: Edit<u32>,
    pub(super) grp_submit_jobs: Edit<u32>,
    pub(super) max_wall_minutes: Edit<u32>,
    pub(super) max_tres_per_job: TresEdit,
    pub(super) grp_tres: TresEdit,
}

/// A new or changed QoS.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct QosEdit {
    pub(super) name: QosName,
    pub(super) expected: Expected,
    pub(super) description: Edit<String>,
    pub(super) priority: Edit<i32>,
    pub(super) preempt_mode: Edit<String>,
    pub(super) preempt: Edit<BTreeSet<QosName>>,
    pub(super) preempt_exempt_time: Edit<u32>,
    pub(super) usage_factor: Edit<f64>,
    pub(super) flags: Edit<BTreeSet<String>>,
    pub(super) numbers: BTreeMap<&'static str, Edit<u32>>,
    pub(super) max_tres_per_job: TresEdit,
    pub(super) max_tres_per_user: TresEdit,
    pub(super) grp_tres: TresEdit,
}

/// A name that exists or not; what cannot be one is told apart from what is not there.
pub(super) fn name<T>(field: &'static str, text: &str) -> Result<T, AccountingError>
where
    T: std::str::FromStr<Err = NameError>,
{
    if text.len() > MAX_NAME {
        return Err(AccountingError::invalid(field, format!("{} bytes; at most {MAX_NAME}", text.len())));
    }
    text.parse().map_err(|error: NameError| AccountingError::invalid(field, error.to_string()))
}

/// A name that is to be made: one that every command line, dump and list of names can hold.
pub(super) fn new_name(field: &'static str, text: &str) -> Result<(), AccountingError> {
    if text.starts_with(['-', '+']) {
        return Err(AccountingError::invalid(
            field,
            format!("{text:?} begins with a sign, which reads as an option"),
        ));
    }
    let separates =
        |c: char| c.is_whitespace() || matches!(c, ',' | '=' | ':' | '|' | '/' | '\\' | '"' | '\'' | '`');
    match text.chars().find(|c| separates(*c)) {
        Some(c) => Err(AccountingError::invalid(
            field,
            format!("{text:?} holds {c:?}, which separates names elsewhere"),
        )),
        None => Ok(()),
    }
}

fn text(field: &'static str, value: Option<String>) -> Result<Edit<String>, AccountingError> {
    let Some(value) = value else { return Ok(Edit::Keep) };
    if value.len() > MAX_TEXT {
        return Err(AccountingError::invalid(field, format!("{} bytes; at most {MAX_TEXT}", value.len())));
    }
    if let Some(c) = value.chars().find(|c| c.is_control()) {
        return Err(AccountingError::invalid(field, format!("holds the control character {c:?}")));
    }
    Ok(if value.is_empty() { Edit::Clear } else { Edit::Set(value) })
}

fn number(value: Option<u32>) -> Edit<u32> {
    match value {
        None => Edit::Keep,
        Some(NO_LIMIT) => Edit::Clear,
        Some(value) => Edit::Set(value),
    }
}

fn factor(field: &'static str, value: Option<f64>) -> Result<Edit<f64>, AccountingError> {
    match value {
        None => Ok(Edit::Keep),
        Some(value) if value.is_finite() && (0.0..=f64::from(i32::MAX)).contains(&value) => {
            Ok(Edit::Set(value))
        }
        Some(value) => {
            Err(AccountingError::invalid(field, format!("{value} is not between 0 and {}", i32::MAX)))
        }
    }
}

fn short(field: &'static str, value: &str) -> Result<(), AccountingError> {
    if value.len() > MAX_LIST {
        return Err(AccountingError::invalid(field, format!("{} bytes; at most {MAX_LIST}", value.len())));
    }
    Ok(())
}

fn tres(field: &'static str, value: Option<&str>, merge: Option<bool>) -> Result<TresEdit, AccountingError> {
    let merge = merge.unwrap_or_default();
    let Some(value) = value else { return Ok(TresEdit { edit: Edit::Keep, merge }) };
    short(field, value)?;
    let limits = parse_tres(value, MemorySpelling::Spur)
        .map_err(|error| AccountingError::invalid(field, error_chain(&error)))?;
    if let Some((tres, _)) = limits.iter().find(|(_, limit)| **limit == Limit::Parent) {
        let message = format!("{tres}=parent: leave it out instead, what is above holds anyway");
        return Err(AccountingError::invalid(field, message));
    }
    Ok(TresEdit { edit: if limits.is_empty() { Edit::Clear } else { Edit::Set(limits) }, merge })
}

fn names<T>(field: &'static str, value: Option<&str>) -> Result<Edit<BTreeSet<T>>, AccountingError>
where
    T: std::str::FromStr<Err = NameError> + Ord,
{
    let Some(value) = value else { return Ok(Edit::Keep) };
    short(field, value)?;
    if value.is_empty() {
        return Ok(Edit::Clear);
    }
    value.split(',').map(|one| name(field, one.trim())).collect::<Result<_, _>>().map(Edit::Set)
}

fn expected(field: &'static str, presence: Option<i32>) -> Result<Expected, AccountingError> {
    match presence.map(Presence::try_from) {
        None | Some(Ok(Presence::Any)) => Ok(Expected::Any),
        Some(Ok(Presence::Absent)) => Ok(Expected::Absent),
        Some(Ok(Presence::Present)) => Ok(Expected::Present),
        Some(Err(_)) => Err(AccountingError::invalid(field, "is none of 0, 1, 2")),
    }
}

/// Slurm's words, shortened as there.
fn admin_level(text: &str) -> Result<AdminLevel, AccountingError> {
    let lower = text.to_lowercase();
    let known = [
        ("none", AdminLevel::None),
        ("operator", AdminLevel::Operator),
        ("administrator", AdminLevel::Administrator),
    ];
    let found = known.into_iter().find(|(word, _)| !lower.is_empty() && word.starts_with(&lower));
    found.map(|(_, level)| level).ok_or_else(|| {
        AccountingError::invalid("admin_level", format!("{text:?} is none of none, operator, administrator"))
    })
}

impl TryFrom<CreateAccountRequest> for AccountEdit {
    type Error = AccountingError;

    fn try_from(request: CreateAccountRequest) -> Result<Self, AccountingError> {
        let users = |field, list: Vec<String>| -> Result<BTreeSet<UserName>, AccountingError> {
            if list.len() > 1000 {
                return Err(AccountingError::invalid(field, "more than 1000 at once"));
            }
            list.iter().map(|user| name(field, user)).collect()
        };
        let parent = text("parent_account", request.parent_account)?;
        let parent = match parent {
            Edit::Set(parent) if parent == crate::model::ROOT => Edit::Clear,
            parent => parent.map(|parent| name("parent_account", &parent))?,
        };
        Ok(Self {
            name: name("name", &request.name)?,
            expected: expected("presence", request.presence)?,
            description: text("description", request.description)?,
            organization: text("organization", request.organization)?,
            parent,
            fairshare_weight: factor("fairshare_weight", request.fairshare_weight)?,
            max_running_jobs: number(request.max_running_jobs),
            grp_tres: tres("grp_tres", request.grp_tres.as_deref(), request.merge_tres)?,
            add_coordinators: users("add_coordinators", request.add_coordinators)?,
            remove_coordinators: users("remove_coordinators", request.remove_coordinators)?,
        })
    }
}

impl TryFrom<AddUserRequest> for UserEdit {
    type Error = AccountingError;

    fn try_from(request: AddUserRequest) -> Result<Self, AccountingError> {
        let account =
            if request.account.is_empty() { None } else { Some(name("account", &request.account)?) };
        let edit = Self {
            user: name("user", &request.user)?,
            account,
            expected: expected("presence", request.presence)?,
            admin_level: text("admin_level", request.admin_level)?.map(|text| admin_level(&text))?,
            is_default: request.is_default,
            default_qos: text("default_qos", request.default_qos)?.map(|qos| name("default_qos", &qos))?,
            allowed_qos: names("allowed_qos", request.allowed_qos.as_deref())?,
            max_running_jobs: number(request.max_running_jobs),
            max_submit_jobs: number(request.max_submit_jobs),
            grp_submit_jobs: number(request.grp_submit_jobs),
            max_wall_minutes: number(request.max_wall_minutes),
            max_tres_per_job: tres(
                "max_tres_per_job",
                request.max_tres_per_job.as_deref(),
                request.merge_tres,
            )?,
            grp_tres: tres("grp_tres", request.grp_tres.as_deref(), request.merge_tres)?,
        };
        match edit.account {
            None if edit.names_membership() => Err(AccountingError::invalid(
                "account",
                "is needed for limits and QoS: they belong to a membership",
            )),
            _ => Ok(edit),
        }
    }
}

impl UserEdit {
    /// Whether limits, QoS or the default account are set: more than that the user is a member.
    pub(super) fn sets_limits(&self) -> bool {
        self.names_membership()
    }

    /// Whether something is set that only a membership has.
    fn names_membership(&self) -> bool {
        let numbers =
            [&self.max_running_jobs, &self.max_submit_jobs, &self.grp_submit_jobs, &self.max_wall_minutes];
        self.is_default.is_some()
            || self.default_qos != Edit::Keep
            || self.allowed_qos != Edit::Keep
            || self.max_tres_per_job.edit != Edit::Keep
            || self.grp_tres.edit != Edit::Keep
            || numbers.into_iter().any(|number| *number != Edit::Keep)
    }
}

impl TryFrom<CreateQosRequest> for QosEdit {
    type Error = AccountingError;

    fn try_from(request: CreateQosRequest) -> Result<Self, AccountingError> {
        let flags = match text("flags", request.flags)? {
            Edit::Set(flags) => Edit::Set(flags.split(',').map(|flag| flag.trim().to_owned()).collect()),
            Edit::Clear => Edit::Clear,
            Edit::Keep => Edit::Keep,
        };
        let preempt_exempt_time = match (request.clear_preempt_exempt_time, request.preempt_exempt_time) {
            (true, Some(_)) => {
                let message = "is set and cleared at once";
                return Err(AccountingError::invalid("preempt_exempt_time", message));
            }
            (true, None) => Edit::Clear,
            (false, value) => number(value),
        };
        let merge = request.merge_tres;
        Ok(Self {
            name: name("name", &request.name)?,
            expected: expected("presence", request.presence)?,
            description: text("description", request.description)?,
            priority: request.priority.map_or(Edit::Keep, Edit::Set),
            preempt_mode: text("preempt_mode", request.preempt_mode)?,
            preempt: names("preempt", request.preempt.as_deref())?,
            preempt_exempt_time,
            usage_factor: factor("usage_factor", request.usage_factor)?,
            flags,
            numbers: BTreeMap::from([
                ("max_jobs_per_user", number(request.max_jobs_per_user)),
                ("max_submit_jobs_per_user", number(request.max_submit_jobs_per_user)),
                ("max_submit_jobs_per_account", number(request.max_submit_jobs_per_account)),
                ("grp_submit_jobs", number(request.grp_submit_jobs)),
                ("max_wall_minutes", number(request.max_wall_minutes)),
                ("grp_wall_minutes", number(request.grp_wall_minutes)),
            ]),
            max_tres_per_job: tres("max_tres_per_job", request.max_tres_per_job.as_deref(), merge)?,
            max_tres_per_user: tres("max_tres_per_user", request.max_tres_per_user.as_deref(), merge)?,
            grp_tres: tres("grp_tres", request.grp_tres.as_deref(), merge)?,
        })
    }
}
