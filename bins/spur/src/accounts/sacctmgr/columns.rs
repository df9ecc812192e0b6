//! The columns of sacctmgr's tables, with Slurm's headings, widths and shortest names.
//!
//! Source: what a real sacctmgr 22.05 prints; `src/sacctmgr/common.c`, sacctmgr_process_format_list.

use spur_sdk::rpc::messages::slurm::{AccountInfo, QosInfo, UserInfo};
use spur_sdk::{Bytes, Limit, MemorySpelling, Tres, TresLimits, format_tres};

use super::words::{WordsError, is};
use crate::accounts::records::{Records, amounts, parent};
use crate::accounts::values::{NO_LIMIT, limits, list, set};

/// What a column shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Account,
    AdminLevel,
    Cluster,
    Coordinators,
    DefaultAccount,
    DefaultQos,
    Description,
    Flags,
    GraceTime,
    GrpJobs,
    GrpOne(&'static str),
    GrpSubmit,
    GrpTres,
    GrpWall,
    MaxJobs,
    MaxJobsPerUser,
    MaxOne(&'static str),
    MaxSubmit,
    MaxSubmitPerAccount,
    MaxSubmitPerUser,
    MaxTres,
    MaxTresPerUser,
    MaxWall,
    Name,
    Organization,
    ParentName,
    Preempt,
    PreemptExemptTime,
    PreemptMode,
    Priority,
    Qos,
    Share,
    UsageFactor,
    User,
    /// What SPUR's accounting keeps no field for.
    Nothing,
}

/// A kind of column: the name that `format=` takes, its shortest form, heading and width.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    least: usize,
    heading: &'static str,
    width: usize,
    content: Content,
}

const fn kind(
    name: &'static str,
    least: usize,
    heading: &'static str,
    width: usize,
    content: Content,
) -> Kind {
    Kind { name, least, heading, width, content }
}

/// In Slurm's order: a shortened name is the first that it begins.
const KINDS: &[Kind] = &[
    kind("Accounts", 3, "Account", 10, Content::Account),
    kind("AdminLevel", 2, "Admin", 9, Content::AdminLevel),
    kind("Cluster", 2, "Cluster", 10, Content::Cluster),
    kind("Coordinators", 2, "Coord Accounts", 20, Content::Coordinators),
    kind("DefaultAccount", 8, "Def Acct", 10, Content::DefaultAccount),
    kind("DefaultQOS", 8, "Def QOS", 9, Content::DefaultQos),
    kind("DefaultWCKey", 8, "Def WCKey", 10, Content::Nothing),
    kind("Description", 3, "Descr", 20, Content::Description),
    kind("Shares", 1, "Share", 9, Content::Share),
    kind("Fairshare", 2, "Share", 9, Content::Share),
    kind("Flags", 2, "Flags", 20, Content::Flags),
    kind("GraceTime", 3, "GraceTime", 10, Content::GraceTime),
    kind("GrpCPUMins", 7, "GrpCPUMins", 11, Content::Nothing),
    kind("GrpCPURunMins", 7, "GrpCPURunMins", 13, Content::Nothing),
    kind("GrpCPUs", 6, "GrpCPUs", 8, Content::GrpOne("cpu")),
    kind("GrpTRES", 7, "GrpTRES", 13, Content::GrpTres),
    kind("GrpTRESMins", 8, "GrpTRESMins", 13, Content::Nothing),
    kind("GrpTRESRunMins", 8, "GrpTRESRunMins", 13, Content::Nothing),
    kind("GrpJobs", 4, "GrpJobs", 7, Content::GrpJobs),
    kind("GrpJobsAccrue", 8, "GrpJobsAccrue", 13, Content::Nothing),
    kind("GrpMemory", 4, "GrpMem", 7, Content::GrpOne("mem")),
    kind("GrpNodes", 4, "GrpNodes", 8, Content::GrpOne("node")),
    kind("GrpSubmitJobs", 4, "GrpSubmit", 9, Content::GrpSubmit),
    kind("GrpWall", 4, "GrpWall", 11, Content::GrpWall),
    kind("ID", 2, "ID", 6, Content::Nothing),
    kind("LimitFactor", 6, "LimitFactor", 11, Content::Nothing),
    kind("MaxCPUMinsPerJob", 7, "MaxCPUMins", 11, Content::Nothing),
    kind("MaxCPUsPerJob", 7, "MaxCPUs", 8, Content::MaxOne("cpu")),
    kind("MaxCPUsPerUser", 11, "MaxCPUsPU", 9, Content::Nothing),
    kind("MaxTRES", 7, "MaxTRES", 13, Content::MaxTres),
    kind("MaxTRESPerJob", 8, "MaxTRES", 13, Content::MaxTres),
    kind("MaxTRESPerNode", 11, "MaxTRESPerNode", 14, Content::Nothing),
    kind("MaxTRESMinsPerJob", 8, "MaxTRESMins", 13, Content::Nothing),
    kind("MaxTRESRunMins", 8, "MaxTRESRunMinsPU", 15, Content::Nothing),
    kind("MaxTRESPA", 9, "MaxTRESPA", 13, Content::Nothing),
    kind("MaxTRESPerAccount", 11, "MaxTRESPA", 13, Content::Nothing),
    kind("MaxTRESPU", 9, "MaxTRESPU", 13, Content::MaxTresPerUser),
    kind("MaxTRESPerUser", 11, "MaxTRESPU", 13, Content::MaxTresPerUser),
    kind("MaxJobs", 4, "MaxJobs", 7, Content::MaxJobs),
    kind("MaxJobsAccrue", 8, "MaxJobsAccrue", 13, Content::Nothing),
    kind("MaxJobsPA", 9, "MaxJobsPA", 9, Content::Nothing),
    kind("MaxJobsPerAccount", 11, "MaxJobsPA", 9, Content::Nothing),
    kind("MaxJobsPU", 9, "MaxJobsPU", 9, Content::MaxJobsPerUser),
    kind("MaxJobsPerUser", 11, "MaxJobsPU", 9, Content::MaxJobsPerUser),
    kind("MaxNodesPerJob", 4, "MaxNodes", 8, Content::MaxOne("node")),
    kind("MaxSubmitJobs", 4, "MaxSubmit", 9, Content::MaxSubmit),
    kind("MaxSubmitPA", 10, "MaxSubmitPA", 11, Content::MaxSubmitPerAccount),
    kind("MaxSubmitJobsPA", 15, "MaxSubmitPA", 11, Content::MaxSubmitPerAccount),
    kind("MaxSubmitJobsPerAccount", 17, "MaxSubmitPA", 11, Content::MaxSubmitPerAccount),
    kind("MaxSubmitPU", 10, "MaxSubmitPU", 11, Content::MaxSubmitPerUser),
    kind("MaxSubmitJobsPU", 14, "MaxSubmitPU", 11, Content::MaxSubmitPerUser),
    kind("MaxSubmitJobsPerUser", 14, "MaxSubmitPU", 11, Content::MaxSubmitPerUser),
    kind("MaxWallDurationPerJob", 4, "MaxWall", 11, Content::MaxWall),
    kind("MinPrioThreshold", 4, "MinPrioThres", 12, Content::Nothing),
    kind("MinTRESPerJob", 7, "MinTRES", 13, Content::Nothing),
    kind("Names", 2, "Name", 10, Content::Name),
    kind("Organization", 1, "Org", 20, Content::Organization),
    kind("ParentName", 7, "ParentName", 10, Content::ParentName),
    kind("Partition", 4, "Partition", 10, Content::Nothing),
    kind("Preempt", 7, "Preempt", 10, Content::Preempt),
    kind("PreemptExemptTime", 8, "PreemptExemptTime", 19, Content::PreemptExemptTime),
    kind("PreemptMode", 8, "PreemptMode", 11, Content::PreemptMode),
    kind("Priority", 3, "Priority", 10, Content::Priority),
    kind("QOSLevel", 3, "QOS", 20, Content::Qos),
    kind("UsageFactor", 6, "UsageFactor", 11, Content::UsageFactor),
    kind("UsageThreshold", 6, "UsageThres", 10, Content::Nothing),
    kind("Users", 1, "User", 10, Content::User),
];

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) heading: &'static str,
    pub(super) width: usize,
    pub(super) left: bool,
    content: Content,
}

/// The columns that `format=` names, with `%20` or `%-20` behind.
pub(super) fn columns(format: &str) -> Result<Vec<Column>, WordsError> {
    let mut found = Vec::new();
    for entry in format.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (name, width) = match entry.split_once('%') {
            Some((name, width)) => (name, Some(width)),
            None => (entry, None),
        };
        let whole = KINDS.iter().find(|kind| kind.name.eq_ignore_ascii_case(name));
        let kind = whole.or_else(|| KINDS.iter().find(|kind| is(name, kind.name, kind.least)));
        let Some(kind) = kind else {
            let mut known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
            known.dedup();
            return Err(WordsError(format!("Unknown field '{name}'; known are {}", known.join(", "))));
        };
        let mut column =
            Column { heading: kind.heading, width: kind.width, left: false, content: kind.content };
        if let Some(width) = width {
            column.left = width.starts_with('-');
            let digits = width.trim_start_matches('-');
            let wide = digits.parse().ok().filter(|width| (1..=1000).contains(width));
            column.width =
                wide.ok_or_else(|| WordsError(format!("{entry}: a width is a number such as %20 or %-20")))?;
        }
        found.push(column);
    }
    Ok(found)
}

/// What a row is about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'r> {
    pub(super) records: &'r Records,
    pub(super) site: &'r str,
    pub(super) account: Option<&'r AccountInfo>,
    /// The name of a user whom the row is about.
    pub(super) user: Option<&'r str>,
    pub(super) member: Option<&'r UserInfo>,
    pub(super) qos: Option<&'r QosInfo>,
    /// Whether it is an association, and not just an account or a user.
    pub(super) association: bool,
    /// Blanks before the account.
    pub(super) depth: usize,
}

fn joined(list: impl IntoIterator<Item = String>) -> String {
    let mut list: Vec<_> = list.into_iter().collect();
    list.sort();
    list.join(",")
}

fn number(value: Option<u32>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// `00:10:00`, `1-12:00:00`.
fn duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest % 3600 / 60, rest % 60);
    if days == 0 { clock } else { format!("{days}-{clock}") }
}

fn minutes(value: u32) -> String {
    if value == NO_LIMIT { String::new() } else { duration(u64::from(value) * 60) }
}

/// Amounts in SPUR's spelling, sorted as texts as Slurm does. What cannot be read stands as it is.
fn tres(text: &str) -> String {
    let Some(limits) = limits(text) else { return text.to_owned() };
    joined(
        limits
            .into_iter()
            .map(|(tres, limit)| format_tres(&TresLimits::from([(tres, limit)]), MemorySpelling::Spur)),
    )
}

/// One TRES of some amounts; memory in MB.
fn one(text: &str, name: &str) -> String {
    let wanted = name.parse::<Tres>().ok().and_then(|tres| limits(text)?.get(&tres).copied());
    match (name, wanted) {
        ("mem", Some(Limit::Value(bytes))) => (bytes / Bytes::MB).to_string(),
        ("cpu", Some(Limit::Value(millicores))) => (millicores / 1000).to_string(),
        (_, Some(Limit::Value(count))) => count.to_string(),
        _ => String::new(),
    }
}

fn share(weight: f64) -> String {
    weight.to_string()
}

/// `administrator` as `Administrator`.
fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.map_or_else(|| "None".to_owned(), |first| format!("{first}{}", letters.as_str().to_lowercase()))
}

impl<'r> Row<'r> {
    pub(super) fn new(records: &'r Records, site: &'r str) -> Self {
        Self {
            records,
            site,
            account: None,
            user: None,
            member: None,
            qos: None,
            association: false,
            depth: 0,
        }
    }

    pub(super) fn cell(&self, column: &Column) -> String {
        match self.qos {
            Some(qos) => qos_cell(qos, column.content),
            None => self.other_cell(column.content),
        }
    }

    fn other_cell(&self, content: Content) -> String {
        let text = |text: &str| text.to_owned();
        let person = self.user.and_then(|user| self.records.people.get(user));
        let terms = self.account.filter(|_| self.association && self.user.is_none());
        match content {
            Content::Account => {
                let name = self
                    .member
                    .map(|member| member.account.as_str())
                    .or(self.account.map(|account| account.name.as_str()));
                name.map(|name| format!("{}{name}", " ".repeat(self.depth))).unwrap_or_default()
            }
            Content::User => self.user.map(text).unwrap_or_default(),
            Content::Cluster if self.association => text(self.site),
            Content::AdminLevel => person.map(|person| capital(&person.admin_level)).unwrap_or_default(),
            Content::DefaultAccount => {
                person.map(|person| person.default_account.clone()).unwrap_or_default()
            }
            Content::Coordinators => match (self.user, self.account) {
                (Some(user), _) => {
                    let coordinated = self
                        .records
                        .accounts
                        .keys()
                        .filter(|account| self.records.coordinators(account).contains(user));
                    joined(coordinated.cloned())
                }
                (None, Some(account)) => {
                    joined(self.records.coordinators(&account.name).into_iter().map(str::to_owned))
                }
                _ => String::new(),
            },
            Content::Description => {
                self.account.map(|account| account.description.clone()).unwrap_or_default()
            }
            Content::Organization => {
                self.account.map(|account| account.organization.clone()).unwrap_or_default()
            }
            Content::ParentName => terms
                .filter(|account| account.name != spur_sdk_quota::ROOT)
                .map(|account| text(parent(account)))
                .unwrap_or_default(),
            Content::Share => match (terms, self.member) {
                (Some(account), _) => share(account.fairshare_weight),
                // A membership has no share of its own, which to Slurm is one.
                (None, Some(_)) => text("1"),
                _ => String::new(),
            },
            Content::GrpJobs => {
                terms.map(|account| number(set(account.max_running_jobs))).unwrap_or_default()
            }
            Content::GrpTres => tres(self.grp_tres(terms)),
            Content::GrpOne(name) => one(self.grp_tres(terms), name),
            _ => self.member.map(|member| member_cell(member, content)).unwrap_or_default(),
        }
    }

    fn grp_tres(&self, terms: Option<&'r AccountInfo>) -> &'r str {
        match (self.member, terms) {
            (Some(member), _) => amounts(&member.grp_tres, member.grp_tres_exact.as_ref()),
            (None, Some(account)) => amounts(&account.grp_tres, account.grp_tres_exact.as_ref()),
            _ => "",
        }
    }
}

fn member_cell(member: &UserInfo, content: Content) -> String {
    let job = amounts(&member.max_tres_per_job, member.max_tres_per_job_exact.as_ref());
    match content {
        Content::GrpSubmit => number(set(member.grp_submit_jobs)),
        Content::MaxJobs => number(set(member.max_running_jobs)),
        Content::MaxSubmit => number(set(member.max_submit_jobs)),
        Content::MaxWall => minutes(member.max_wall_minutes),
        Content::MaxTres => tres(job),
        Content::MaxOne(name) => one(job, name),
        Content::Qos => joined(list(&member.allowed_qos)),
        Content::DefaultQos => member.default_qos.clone(),
        _ => String::new(),
    }
}

fn qos_cell(qos: &QosInfo, content: Content) -> String {
    let grp = amounts(&qos.grp_tres, qos.grp_tres_exact.as_ref());
    let job = amounts(&qos.max_tres_per_job, qos.max_tres_per_job_exact.as_ref());
    match content {
        Content::Name => qos.name.clone(),
        Content::Description => qos.description.clone(),
        Content::Priority => qos.priority.to_string(),
        Content::GraceTime => duration(0),
        Content::Preempt => joined(list(&qos.preempt)),
        Content::PreemptExemptTime => {
            qos.preempt_exempt_time.map(|time| duration(u64::from(time))).unwrap_or_default()
        }
        Content::PreemptMode if qos.preempt_mode.is_empty() => "cluster".to_owned(),
        Content::PreemptMode => qos.preempt_mode.clone(),
        Content::Flags => joined(list(&qos.flags)),
        Content::UsageFactor => format!("{:.6}", qos.usage_factor),
        Content::GrpTres => tres(grp),
        Content::GrpOne(name) => one(grp, name),
        Content::GrpSubmit => number(set(qos.grp_submit_jobs)),
        Content::GrpWall => minutes(qos.grp_wall_minutes),
        Content::MaxTres => tres(job),
        Content::MaxOne(name) => one(job, name),
        Content::MaxWall => minutes(qos.max_wall_minutes),
        Content::MaxTresPerUser => {
            tres(amounts(&qos.max_tres_per_user, qos.max_tres_per_user_exact.as_ref()))
        }
        Content::MaxJobsPerUser => number(set(qos.max_jobs_per_user)),
        Content::MaxSubmitPerUser => number(set(qos.max_submit_jobs_per_user)),
        Content::MaxSubmitPerAccount => number(set(qos.max_submit_jobs_per_account)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_slurms_shortest_names() {
        let heading = |format: &str| columns(format).unwrap()[0].heading;
        for (format, expected) in [
            ("acc", "Account"),
            ("u", "User"),
            ("s", "Share"),
            ("org", "Org"),
            ("grptres", "GrpTRES"),
            ("grptresm", "GrpTRESMins"),
            ("maxtres", "MaxTRES"),
            ("maxw", "MaxWall"),
            ("prio", "Priority"),
            ("preempt", "Preempt"),
            ("defaultq", "Def QOS"),
            ("qos", "QOS"),
        ] {
            assert_eq!(heading(format), expected, "{format}");
        }
        assert!(columns("account,def").unwrap_err().0.starts_with("Unknown field 'def'"));
        let column = columns("account%-20").unwrap()[0];
        assert_eq!((column.width, column.left), (20, true));
        assert!(columns("account%x").is_err());
    }

    #[test]
    fn amounts_stand_in_slurms_order_and_spurs_spelling() {
        assert_eq!(
            tres("node=3,mem=131072,gres/gpu=8,cpu=64,gres/gpu:mi300x=2"),
            "cpu=64,gres/gpu:mi300x=2,gres/gpu=8,mem=131072,node=3"
        );
        assert_eq!(tres("mem=1024Mi"), "mem=1024Mi");
        assert_eq!(tres(""), "");
        assert_eq!(one("cpu=64,mem=131072", "mem"), "131072");
    }

    #[test]
    fn times_are_slurms() {
        assert_eq!(minutes(2160), "1-12:00:00");
        assert_eq!(minutes(10), "00:10:00");
        assert_eq!(minutes(NO_LIMIT), "");
        assert_eq!(minutes(0), "00:00:00");
    }
}
