//! sacctmgr's tables.

use spur_sdk::rpc::messages::slurm::AccountInfo;
use spur_sdk_quota::ROOT;

use super::Entity;
use super::columns::{Column, Row, columns};
use super::keys::Field;
use super::words::{Flag, Line, WordsError};
use crate::accounts::records::{Records, parent};
use crate::accounts::values::{NO_LIMIT, list};

const ACCOUNT: &str = "Account,Description,Organization";
const ACCOUNT_ASSOCIATIONS: &str = "Account,Description,Organization,Cluster,ParentName,User,Share,Priority,GrpJobs,\
    GrpNodes,GrpCPUs,GrpMemory,GrpSubmit,GrpWall,GrpCPUMins,MaxJobs,MaxNodes,MaxCPUs,MaxSubmit,MaxWall,MaxCPUMins,QOS,\
    DefaultQOS";
const USER: &str = "User,DefaultAccount,AdminLevel";
const USER_ASSOCIATIONS: &str = "User,DefaultAccount,AdminLevel,Cluster,Account,Partition,Share,Priority,MaxJobs,MaxNodes,\
    MaxCPUs,MaxSubmit,MaxWall,MaxCPUMins,QOS,DefaultQOS";
const QOS: &str = "Name,Priority,GraceTime,Preempt,PreemptExemptTime,PreemptMode,Flags%40,UsageThres,UsageFactor,GrpTRES,\
    GrpTRESMins,GrpTRESRunMins,GrpJobs,GrpSubmit,GrpWall,MaxTRES,MaxTRESPerNode,MaxTRESMins,MaxWall,MaxTRESPU,MaxJobsPU,\
    MaxSubmitPU,MaxTRESPA,MaxJobsPA,MaxSubmitPA,MinTRES";
const ASSOCIATION: &str = "Cluster,Account,User,Partition,Share,Priority,GrpJobs,GrpTRES,GrpSubmit,GrpWall,GrpTRESMins,\
    MaxJobs,MaxTRES,MaxTRESPerNode,MaxSubmit,MaxWall,MaxTRESMins,QOS,DefaultQOS,GrpTRESRunMins";
const ASSOCIATION_ONLY: &str = "Cluster,Account,User,Partition";

/// How a table is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// In columns, for people.
    Columns,
    /// `|` between cells, and after the last one.
    Ended,
    /// `|` between cells.
    Parsable,
}

/// Account root, which is there without being kept.
pub(super) fn root() -> AccountInfo {
    AccountInfo {
        name: ROOT.to_owned(),
        description: "default root account".to_owned(),
        organization: ROOT.to_owned(),
        fairshare_weight: 1.0,
        max_running_jobs: NO_LIMIT,
        ..AccountInfo::default()
    }
}

/// The table of `show` or `list`.
pub(super) fn table(
    entity: Entity,
    line: &Line,
    records: &Records,
    site: &str,
    layout: Layout,
    heading: bool,
) -> Result<String, WordsError> {
    if let Some(pair) = line.settings.first() {
        return Err(WordsError(format!(" Unknown condition: {}; show sets nothing", pair.text)));
    }
    let associations = line.has(Flag::WithAssociations);
    let mut format = match entity {
        Entity::Account if associations => ACCOUNT_ASSOCIATIONS,
        Entity::Account => ACCOUNT,
        Entity::User if associations => USER_ASSOCIATIONS,
        Entity::User => USER,
        Entity::Qos => QOS,
        Entity::Association if line.has(Flag::WithoutLimits) => ASSOCIATION_ONLY,
        Entity::Association => ASSOCIATION,
        Entity::Coordinator => {
            return Err(WordsError::new(
                "coordinators are shown by: show account withcoord, show user withcoord",
            ));
        }
    }
    .to_owned();
    if line.has(Flag::WithCoordinators) {
        format.push_str(",Coordinators");
    }
    let columns = columns(line.format.as_deref().unwrap_or(&format))?;
    let mut records = records.clone();
    records.accounts.entry(ROOT.to_owned()).or_insert_with(root);
    let rows = match entity {
        Entity::Account => accounts(line, &records, site),
        Entity::User => users(line, &records, site),
        Entity::Qos => qos(line, &records, site),
        Entity::Association | Entity::Coordinator => tree(line, &records, site),
    };
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|column| row.cell(column)).collect()).collect();
    Ok(write(&columns, &cells, layout, heading))
}

fn accounts<'r>(line: &Line, records: &'r Records, site: &'r str) -> Vec<Row<'r>> {
    let mut rows = Vec::new();
    let found = records.accounts.values().filter(|account| {
        line.admits(Field::Name, &account.name)
            && line.admits(Field::Description, &account.description)
            && line.admits(Field::Organization, &account.organization)
            && line.admits(Field::Parent, if account.name == ROOT { "" } else { parent(account) })
            && line.admits(Field::Cluster, site)
    });
    for account in found {
        let associations = line.has(Flag::WithAssociations);
        rows.push(Row { account: Some(account), association: associations, ..Row::new(records, site) });
        if associations {
            rows.extend(records.members_of(&account.name).map(|member| Row {
                account: Some(account),
                user: Some(&member.name),
                member: Some(member),
                association: true,
                ..Row::new(records, site)
            }));
        }
    }
    rows
}

fn users<'r>(line: &Line, records: &'r Records, site: &'r str) -> Vec<Row<'r>> {
    let mut rows = Vec::new();
    for (user, person) in &records.people {
        let mut levels = line.conditions.iter().filter(|pair| pair.field == Field::AdminLevel).peekable();
        let level = person.admin_level.to_lowercase();
        let of_level =
            levels.peek().is_none() || levels.any(|pair| level.starts_with(&pair.value.to_lowercase()));
        if !of_level
            || !line.admits(Field::Name, user)
            || !line.admits(Field::DefaultAccount, &person.default_account)
        {
            continue;
        }
        let members: Vec<_> = records.memberships(user).filter(|member| meets(line, member, site)).collect();
        let asks = [Field::Account, Field::Qos, Field::DefaultQos].into_iter().any(|field| line.asks(field));
        let row = Row { user: Some(user), ..Row::new(records, site) };
        if line.has(Flag::WithAssociations) {
            rows.extend(members.iter().map(|member| Row { member: Some(*member), association: true, ..row }));
        }
        // Who has none of the associations that are asked for is not meant.
        let alone = !line.has(Flag::WithAssociations) || members.is_empty();
        if alone && !(asks && members.is_empty()) {
            rows.push(row);
        }
    }
    rows
}

/// Whether a membership meets the conditions on associations.
fn meets(line: &Line, member: &spur_sdk::rpc::messages::slurm::UserInfo, site: &str) -> bool {
    line.admits(Field::Account, &member.account)
        && line.admits(Field::Cluster, site)
        && line.admits(Field::Partition, "")
        && line.admits(Field::DefaultQos, &member.default_qos)
        && line.admits_any(Field::Qos, &list(&member.allowed_qos))
}

fn qos<'r>(line: &Line, records: &'r Records, site: &'r str) -> Vec<Row<'r>> {
    let found = records.qos.values().filter(|qos| {
        line.admits(Field::Name, &qos.name)
            && line.admits(Field::Description, &qos.description)
            && line.admits(Field::PreemptMode, &qos.preempt_mode)
    });
    found.map(|qos| Row { qos: Some(qos), ..Row::new(records, site) }).collect()
}

/// Associations from root downwards: an account, its members, then what is below it.
fn tree<'r>(line: &Line, records: &'r Records, site: &'r str) -> Vec<Row<'r>> {
    let mut rows = Vec::new();
    let mut open: Vec<(&AccountInfo, usize)> =
        records.accounts.get(ROOT).map(|root| (root, 0)).into_iter().collect();
    let tree = line.has(Flag::Tree);
    // An account has one parent, so none is met twice.
    while let Some((account, depth)) = open.pop() {
        let above = if account.name == ROOT { "" } else { parent(account) };
        let account_meets = line.admits(Field::Account, &account.name)
            && line.admits(Field::Name, "")
            && line.admits(Field::Cluster, site)
            && line.admits(Field::Partition, "")
            && line.admits(Field::Parent, above)
            && line.admits(Field::Qos, "")
            && line.admits(Field::DefaultQos, "");
        if account_meets {
            rows.push(Row { account: Some(account), association: true, depth, ..Row::new(records, site) });
        }
        // As in Slurm, below what is shown.
        let inner = if tree && account_meets { depth + 1 } else { depth };
        let of_user = |member: &&spur_sdk::rpc::messages::slurm::UserInfo| {
            line.admits(Field::Name, &member.name)
                && line.admits(Field::Parent, "")
                && meets(line, member, site)
        };
        rows.extend(records.members_of(&account.name).filter(of_user).map(|member| Row {
            account: Some(account),
            user: Some(&member.name),
            member: Some(member),
            association: true,
            depth: inner,
            ..Row::new(records, site)
        }));
        let below: Vec<_> = records.below(&account.name).collect();
        open.extend(below.into_iter().rev().map(|child| (child, inner)));
    }
    rows
}

fn write(columns: &[Column], rows: &[Vec<String>], layout: Layout, heading: bool) -> String {
    let mut lines = Vec::new();
    if layout == Layout::Columns {
        if heading {
            let headings = columns.iter().map(|column| {
                let cut: String = column.heading.chars().take(column.width).collect();
                pad(&cut, column)
            });
            lines.push(headings.collect::<String>());
            let rules: Vec<_> = columns.iter().map(|column| "-".repeat(column.width) + " ").collect();
            lines.push(rules.concat());
        }
        lines.extend(rows.iter().map(|row| {
            let cells = columns.iter().zip(row).map(|(column, cell)| {
                let cut = if cell.chars().count() > column.width {
                    // As Slurm marks what it cuts.
                    format!("{}+", cell.chars().take(column.width.saturating_sub(1)).collect::<String>())
                } else {
                    cell.clone()
                };
                pad(&cut, column)
            });
            cells.collect::<String>()
        }));
    } else {
        let end = if layout == Layout::Ended { "|" } else { "" };
        let headings: Vec<_> = columns.iter().map(|column| column.heading.to_owned()).collect();
        let all = heading.then_some(&headings).into_iter().chain(rows);
        lines.extend(all.map(|cells| format!("{}{end}", cells.join("|"))));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

fn pad(text: &str, column: &Column) -> String {
    let width = column.width;
    if column.left { format!("{text:<width$} ") } else { format!("{text:>width$} ") }
}
