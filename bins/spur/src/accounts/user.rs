//! `spur user`.

use std::ops::ControlFlow;

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use spur_sdk::rpc::Client;
use spur_sdk::rpc::messages::slurm::{AddUserRequest, Presence, RemoveUserRequest, UserInfo};

use super::change::{Change, make_and_tell, missing};
use super::records::{Person, Records, amounts};
use super::values::{self, or_dash};
use crate::controller::{Controller, block_on};
use crate::exit::{self, Exit};
use crate::output;

/// `spur user`.
#[derive(Args, Debug)]
pub(crate) struct User {
    #[command(flatten)]
    controller: Controller,
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Subcommand, Debug)]
enum UserCommand {
    /// List users and their memberships.
    List {
        /// Only members of this account.
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<String>,
        /// Format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Show one user.
    Show {
        /// The user.
        name: String,
        /// Format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Let users into accounts.
    #[command(after_help = exit::help("Examples:
  spur user add alice --account physics
  spur user add alice bob --account physics,chemistry --default physics --max-running-jobs 10"))]
    Add {
        /// The users.
        #[arg(required = true, value_name = "USER")]
        names: Vec<String>,
        /// The accounts that they become members of.
        #[arg(long, value_name = "ACCOUNT", value_delimiter = ',', required = true)]
        account: Vec<String>,
        /// Leave memberships that exist as they are, instead of an error.
        #[arg(long)]
        if_not_exists: bool,
        #[command(flatten)]
        fields: Fields,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Change users. Only what is named changes. Limits and QoS belong to a membership and need --account.
    #[command(after_help = exit::help("Examples:
  spur user modify alice --account physics --max-running-jobs 20
  spur user modify alice --default chemistry
  spur user modify alice --account physics --clear allowed-qos
  spur user modify bob --admin-level operator"))]
    Modify {
        /// The users.
        #[arg(required = true, value_name = "USER")]
        names: Vec<String>,
        /// The accounts whose memberships change.
        #[arg(long, value_name = "ACCOUNT", value_delimiter = ',')]
        account: Vec<String>,
        #[command(flatten)]
        fields: Fields,
        /// TRES options change just what they name, and -1 takes one away; otherwise they replace all.
        #[arg(long)]
        merge_tres: bool,
        /// Take a field's value away: no limit, every QoS.
        #[arg(long, value_enum, value_name = "FIELD", value_delimiter = ',')]
        clear: Vec<Field>,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Take users out of accounts, or out of all.
    #[command(after_help = exit::help("Examples:
  spur user delete alice --account physics
  spur user delete alice"))]
    Delete {
        /// The users.
        #[arg(required = true, value_name = "USER")]
        names: Vec<String>,
        /// Only out of these; left out: out of all, with all rights.
        #[arg(long, value_name = "ACCOUNT", value_delimiter = ',')]
        account: Vec<String>,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
}

/// What a user or a membership has.
#[derive(Args, Debug, Default)]
struct Fields {
    /// The account of jobs that name none.
    #[arg(long, value_name = "ACCOUNT")]
    default: Option<String>,
    /// Rights over the accounts: none, operator or administrator.
    #[arg(long, value_name = "LEVEL")]
    admin_level: Option<String>,
    /// The QoS of jobs that name none; none is none.
    #[arg(long, value_name = "QOS", value_parser = values::text)]
    default_qos: Option<String>,
    /// QoS that may be used, between commas; none is every QoS.
    #[arg(long, value_name = "QOS", value_parser = values::text)]
    allowed_qos: Option<String>,
    /// Jobs running at once; 0 blocks, none is no limit.
    #[arg(long, value_name = "NUMBER", value_parser = values::number, allow_negative_numbers = true)]
    max_running_jobs: Option<u32>,
    /// Jobs pending or running at once; 0 blocks, none is no limit.
    #[arg(long, value_name = "NUMBER", value_parser = values::number, allow_negative_numbers = true)]
    max_submit_jobs: Option<u32>,
    /// Jobs pending or running at once, of all below; 0 blocks, none is no limit.
    #[arg(long, value_name = "NUMBER", value_parser = values::number, allow_negative_numbers = true)]
    grp_submit_jobs: Option<u32>,
    /// Wall time of a job: minutes or [D-]HH:MM:SS; none is no limit.
    #[arg(long, value_name = "TIME", value_parser = values::minutes, allow_negative_numbers = true)]
    max_wall: Option<u32>,
    /// What a job may use, such as cpu=16,mem=65536; none is no limit.
    #[arg(long, value_name = "TRES", value_parser = values::amounts)]
    max_tres_per_job: Option<String>,
    /// What the user may use at once in the account; none is no limit.
    #[arg(long, value_name = "TRES", value_parser = values::amounts)]
    grp_tres: Option<String>,
}

/// A field whose value can be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Field {
    AdminLevel,
    DefaultQos,
    AllowedQos,
    MaxRunningJobs,
    MaxSubmitJobs,
    GrpSubmitJobs,
    MaxWall,
    MaxTresPerJob,
    GrpTres,
}

impl Fields {
    fn request(&self, user: &str, account: &str, presence: Presence) -> AddUserRequest {
        AddUserRequest {
            user: user.to_owned(),
            account: account.to_owned(),
            admin_level: self.admin_level.clone(),
            is_default: (self.default.as_deref() == Some(account)).then_some(true),
            default_qos: self.default_qos.clone(),
            allowed_qos: self.allowed_qos.clone(),
            max_running_jobs: self.max_running_jobs,
            max_submit_jobs: self.max_submit_jobs,
            grp_submit_jobs: self.grp_submit_jobs,
            max_wall_minutes: self.max_wall,
            max_tres_per_job: self.max_tres_per_job.clone(),
            grp_tres: self.grp_tres.clone(),
            presence: Some(presence.into()),
            ..AddUserRequest::default()
        }
    }

    /// Whether something is set that a membership has, apart from being the default.
    fn names_membership(&self, clear: &[Field]) -> bool {
        self.default_qos.is_some()
            || self.allowed_qos.is_some()
            || self.max_running_jobs.is_some()
            || self.max_submit_jobs.is_some()
            || self.grp_submit_jobs.is_some()
            || self.max_wall.is_some()
            || self.max_tres_per_job.is_some()
            || self.grp_tres.is_some()
            || clear.iter().any(|field| *field != Field::AdminLevel)
    }
}

impl Field {
    fn clear(self, request: &mut AddUserRequest) {
        let none = Some(String::new());
        match self {
            Self::AdminLevel => request.admin_level = none,
            Self::DefaultQos => request.default_qos = none,
            Self::AllowedQos => request.allowed_qos = none,
            Self::MaxRunningJobs => request.max_running_jobs = Some(values::NO_LIMIT),
            Self::MaxSubmitJobs => request.max_submit_jobs = Some(values::NO_LIMIT),
            Self::GrpSubmitJobs => request.grp_submit_jobs = Some(values::NO_LIMIT),
            Self::MaxWall => request.max_wall_minutes = Some(values::NO_LIMIT),
            Self::MaxTresPerJob => request.max_tres_per_job = none,
            Self::GrpTres => request.grp_tres = none,
        }
    }
}

/// A membership, as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct Membership {
    pub(super) user: String,
    account: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    default_qos: String,
    /// Empty is every QoS.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed_qos: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_running_jobs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_submit_jobs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grp_submit_jobs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_wall_minutes: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    max_tres_per_job: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    grp_tres: String,
}

impl Membership {
    pub(super) fn new(member: &UserInfo) -> Self {
        Self {
            user: member.name.clone(),
            account: member.account.clone(),
            default_qos: member.default_qos.clone(),
            allowed_qos: values::list(&member.allowed_qos),
            max_running_jobs: values::set(member.max_running_jobs),
            max_submit_jobs: values::set(member.max_submit_jobs),
            grp_submit_jobs: values::set(member.grp_submit_jobs),
            max_wall_minutes: values::set(member.max_wall_minutes),
            max_tres_per_job: amounts(&member.max_tres_per_job, member.max_tres_per_job_exact.as_ref())
                .to_owned(),
            grp_tres: amounts(&member.grp_tres, member.grp_tres_exact.as_ref()).to_owned(),
        }
    }

    /// The limits in words.
    fn limits(&self) -> String {
        let numbers = [
            ("max-running-jobs", self.max_running_jobs),
            ("max-submit-jobs", self.max_submit_jobs),
            ("grp-submit-jobs", self.grp_submit_jobs),
            ("max-wall", self.max_wall_minutes),
        ];
        let texts = [("max-tres-per-job", &self.max_tres_per_job), ("grp-tres", &self.grp_tres)];
        let numbers = numbers.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
        let texts = texts
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| format!("{name} {text}"));
        or_dash(&numbers.chain(texts).collect::<Vec<_>>().join("; "))
    }
}

/// A user, as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    name: String,
    admin_level: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    default_account: String,
    memberships: Vec<Membership>,
}

impl Shown {
    fn new(name: &str, person: &Person, records: &Records) -> Self {
        Self {
            name: name.to_owned(),
            admin_level: if person.admin_level.is_empty() {
                "none".to_owned()
            } else {
                person.admin_level.clone()
            },
            default_account: person.default_account.clone(),
            memberships: records.memberships(name).map(Membership::new).collect(),
        }
    }

    /// A row for each membership; one for a user without any.
    fn rows(&self) -> Vec<[String; 6]> {
        let row = |account: String, qos: String, default_qos: String, limits: String| {
            [self.name.clone(), account, self.admin_level.clone(), qos, default_qos, limits]
        };
        let dash = || "-".to_owned();
        if self.memberships.is_empty() {
            return vec![row(dash(), dash(), dash(), dash())];
        }
        let rows = self.memberships.iter().map(|member| {
            let default = if member.account == self.default_account { " (default)" } else { "" };
            let qos =
                if member.allowed_qos.is_empty() { "all".to_owned() } else { member.allowed_qos.join(",") };
            row(format!("{}{default}", member.account), qos, or_dash(&member.default_qos), member.limits())
        });
        rows.collect()
    }
}

fn table(users: &[Shown]) -> String {
    let head = ["USER", "ACCOUNT", "ADMIN LEVEL", "QOS", "DEFAULT QOS", "LIMITS"];
    output::table(head, users.iter().flat_map(Shown::rows))
}

pub(crate) fn user(command: &User) -> anyhow::Result<Exit> {
    block_on(async {
        let client = command.controller.client()?;
        carry_out(&client, &command.command).await
    })
}

async fn carry_out(client: &Client, command: &UserCommand) -> anyhow::Result<Exit> {
    match command {
        UserCommand::List { account, output } => list(client, account.as_deref(), *output).await,
        UserCommand::Show { name, output } => {
            let records = Records::read(client).await?;
            let Some(person) = records.people.get(name) else {
                bail!(
                    "user {name} does not exist{}",
                    if records.partial { ", or is none of yours" } else { "" }
                );
            };
            let user = Shown::new(name, person, &records);
            output::value(*output, &user, || {
                let default = or_dash(&user.default_account);
                let about = format!(
                    "user {}, admin level {}, default account {default}",
                    user.name, user.admin_level
                );
                format!("{about}\n{}", table(std::slice::from_ref(&user)))
            })?;
            Ok(Exit::Done)
        }
        UserCommand::Add { names, account, if_not_exists, fields, dry_run } => {
            if let Some(default) = fields.default.as_ref().filter(|default| !account.contains(default)) {
                output::problem(&format!("--default: {default} is none of --account {}", account.join(",")));
                return Ok(Exit::Usage);
            }
            let mut changes = Vec::new();
            let records = if *if_not_exists { Records::read(client).await? } else { Records::default() };
            for account in account {
                let member = |name: &str| records.member(account, name).is_some();
                if let ControlFlow::Continue(missing) =
                    missing(names, &format!("in account {account} user"), member)
                {
                    changes.extend(
                        missing.into_iter().map(|name| fields.request(name, account, Presence::Absent)),
                    );
                }
            }
            if changes.is_empty() {
                return Ok(Exit::Done);
            }
            let changes: Vec<_> = changes.into_iter().map(Change::AddUser).collect();
            make_and_tell(client, &changes, *dry_run).await
        }
        UserCommand::Modify { names, account, fields, merge_tres, clear, dry_run } => {
            if account.is_empty() && fields.names_membership(clear) {
                output::problem("limits and QoS belong to a membership: name it with --account");
                return Ok(Exit::Usage);
            }
            let mut changes = Vec::new();
            for name in names {
                for account in accounts_to_change(account, fields) {
                    let mut request = fields.request(name, account, Presence::Present);
                    request.merge_tres = Some(*merge_tres);
                    for field in clear {
                        field.clear(&mut request);
                    }
                    changes.push(Change::AddUser(request));
                }
                if let Some(default) = fields
                    .default
                    .as_ref()
                    .filter(|default| !account.is_empty() && !account.contains(default))
                {
                    changes.push(Change::AddUser(AddUserRequest {
                        user: name.clone(),
                        account: default.clone(),
                        is_default: Some(true),
                        presence: Some(Presence::Present.into()),
                        ..AddUserRequest::default()
                    }));
                }
            }
            make_and_tell(client, &changes, *dry_run).await
        }
        UserCommand::Delete { names, account, dry_run } => {
            let every = [String::new()];
            let accounts = if account.is_empty() { every.as_slice() } else { account };
            let requests = names.iter().flat_map(|user| {
                let of =
                    |account: &String| RemoveUserRequest { user: user.clone(), account: account.clone() };
                accounts.iter().map(of)
            });
            let changes: Vec<_> = requests.map(Change::RemoveUser).collect();
            make_and_tell(client, &changes, *dry_run).await
        }
    }
}

/// Whose memberships change; without any named it is the new default's, or just the user.
fn accounts_to_change<'a>(accounts: &'a [String], fields: &'a Fields) -> Vec<&'a str> {
    if accounts.is_empty() {
        return vec![fields.default.as_deref().unwrap_or_default()];
    }
    accounts.iter().map(String::as_str).collect()
}

async fn list(client: &Client, account: Option<&str>, format: output::Format) -> anyhow::Result<Exit> {
    let records = Records::read(client).await?;
    if let Some(account) = account.filter(|account| !records.accounts.contains_key(*account)) {
        bail!("account {account} does not exist");
    }
    let mut users: Vec<_> =
        records.people.iter().map(|(name, person)| Shown::new(name, person, &records)).collect();
    if let Some(account) = account {
        for user in &mut users {
            user.memberships.retain(|member| member.account == account);
        }
        users.retain(|user| !user.memberships.is_empty());
    }
    output::value(format, &users, || table(&users))?;
    Ok(Exit::Done)
}
