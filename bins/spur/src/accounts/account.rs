//! `spur account`.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use spur_sdk::rpc::Client;
use spur_sdk::rpc::messages::slurm::{AccountInfo, CreateAccountRequest, DeleteAccountRequest, Presence};

use super::change::{Change, make_and_tell, missing};
use super::import;
use super::records::{Records, amounts};
use super::user::Membership;
use super::values::{self, or_dash, shown};
use crate::controller::{Controller, block_on};
use crate::exit::{self, Exit};
use crate::output;
use crate::quota::Reading;

/// `spur account`.
#[derive(Args, Debug)]
pub(crate) struct Account {
    #[command(flatten)]
    controller: Controller,
    #[command(subcommand)]
    command: AccountCommand,
}

#[derive(Subcommand, Debug)]
enum AccountCommand {
    /// List accounts.
    List {
        /// Only this account and those below it.
        #[arg(long, value_name = "ACCOUNT")]
        under: Option<String>,
        /// Format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Show one account: its limits, what is above and below it, its members.
    Show {
        /// The account.
        name: String,
        /// Format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Add accounts. What is not given is not limited here; the limits of accounts above hold anyway.
    #[command(after_help = exit::help("Examples:
  spur account add science --grp-tres cpu=512,mem=2000000,gres/gpu=64
  spur account add physics chemistry --parent science --fairshare 10

mem is in MB of 10^6 bytes; write 128Gi for binary units."))]
    Add {
        /// The new accounts.
        #[arg(required = true, value_name = "ACCOUNT")]
        names: Vec<String>,
        /// Leave accounts that exist as they are, instead of an error.
        #[arg(long)]
        if_not_exists: bool,
        #[command(flatten)]
        fields: Fields,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Change accounts. Only what is named changes.
    #[command(after_help = exit::help("Examples:
  spur account modify physics --grp-tres cpu=128,mem=262144
  spur account modify physics --grp-tres gres/gpu=16 --merge-tres
  spur account modify physics --clear grp-tres --clear description"))]
    Modify {
        /// The accounts.
        #[arg(required = true, value_name = "ACCOUNT")]
        names: Vec<String>,
        #[command(flatten)]
        fields: Fields,
        /// Users who administer the accounts no more.
        #[arg(long, value_name = "USER", value_delimiter = ',')]
        remove_coordinator: Vec<String>,
        /// --grp-tres changes just what it names, and -1 takes one away; otherwise it replaces all.
        #[arg(long)]
        merge_tres: bool,
        /// Take a field's value away: no limit, no text.
        #[arg(long, value_enum, value_name = "FIELD", value_delimiter = ',')]
        clear: Vec<Field>,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete accounts.
    #[command(after_help = exit::help("Example: spur account delete physics --force --dry-run"))]
    Delete {
        /// The accounts.
        #[arg(required = true, value_name = "ACCOUNT")]
        names: Vec<String>,
        /// Delete the accounts below and all memberships as well.
        #[arg(long)]
        force: bool,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Take over accounts, users and QoS from files: TOML, YAML or a sacctmgr dump.
    #[command(after_help = exit::help("What a source names is made as the source has it; what it does not name is left \
        alone. Run it again at any time:
it writes only differences. What SPUR's accounting keeps no field for is said, a line each.

Examples:
  sacctmgr dump mycluster file=/dev/stdout | spur account import -
  spur account import accounts.toml --dry-run"))]
    Import {
        /// Files of accounts: TOML, YAML or a sacctmgr dump; - is standard input.
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<PathBuf>,
        #[command(flatten)]
        reading: Reading,
        /// Also delete what the controller has and the sources do not name. They must be whole.
        #[arg(long)]
        delete_missing: bool,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
}

/// What an account has.
#[derive(Args, Debug, Default)]
struct Fields {
    /// The account above; root or none: directly under root.
    #[arg(long, value_name = "ACCOUNT", value_parser = values::text)]
    parent: Option<String>,
    /// What it is, in words.
    #[arg(long, value_name = "TEXT", value_parser = values::text)]
    description: Option<String>,
    /// Whose it is.
    #[arg(long, value_name = "TEXT", value_parser = values::text)]
    organization: Option<String>,
    /// Its share among the accounts beside it; 1 if nothing is said.
    #[arg(long, value_name = "NUMBER", value_parser = values::share)]
    fairshare: Option<f64>,
    /// Jobs running at once in it and below; 0 blocks, none is no limit.
    #[arg(long, value_name = "NUMBER", value_parser = values::number, allow_negative_numbers = true)]
    max_running_jobs: Option<u32>,
    /// What it may use at once, with everything below it, such as cpu=64,mem=131072,gres/gpu=8; none is no limit.
    #[arg(long, value_name = "TRES", value_parser = values::amounts)]
    grp_tres: Option<String>,
    /// Users who administer it.
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    coordinator: Vec<String>,
}

/// A field whose value can be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Field {
    Parent,
    Description,
    Organization,
    Fairshare,
    MaxRunningJobs,
    GrpTres,
}

impl Fields {
    fn request(&self, name: &str, presence: Presence) -> CreateAccountRequest {
        CreateAccountRequest {
            name: name.to_owned(),
            description: self.description.clone(),
            organization: self.organization.clone(),
            parent_account: self.parent.clone(),
            fairshare_weight: self.fairshare,
            max_running_jobs: self.max_running_jobs,
            grp_tres: self.grp_tres.clone(),
            add_coordinators: self.coordinator.clone(),
            presence: Some(presence.into()),
            ..CreateAccountRequest::default()
        }
    }
}

impl Field {
    fn clear(self, request: &mut CreateAccountRequest) {
        match self {
            Self::Parent => request.parent_account = Some(String::new()),
            Self::Description => request.description = Some(String::new()),
            Self::Organization => request.organization = Some(String::new()),
            // On the wire a share is always said, and this is the one of an account that says nothing.
            Self::Fairshare => request.fairshare_weight = Some(1.0),
            Self::MaxRunningJobs => request.max_running_jobs = Some(values::NO_LIMIT),
            Self::GrpTres => request.grp_tres = Some(String::new()),
        }
    }
}

/// An account, as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    organization: String,
    fairshare: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_running_jobs: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    grp_tres: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    coordinators: Vec<String>,
    members: usize,
}

/// An account with what is around it.
#[derive(Debug, Serialize)]
struct Detailed {
    #[serde(flatten)]
    account: Shown,
    /// Accounts above, the nearest first.
    above: Vec<String>,
    below: Vec<String>,
    memberships: Vec<Membership>,
}

impl Shown {
    fn new(account: &AccountInfo, records: &Records) -> Self {
        Self {
            name: account.name.clone(),
            parent: Some(account.parent_account.clone()).filter(|parent| !parent.is_empty()),
            description: account.description.clone(),
            organization: account.organization.clone(),
            fairshare: account.fairshare_weight,
            max_running_jobs: values::set(account.max_running_jobs),
            grp_tres: amounts(&account.grp_tres, account.grp_tres_exact.as_ref()).to_owned(),
            coordinators: account.coordinators.clone(),
            members: records.members_of(&account.name).count(),
        }
    }
}

impl Detailed {
    fn new(account: &AccountInfo, records: &Records) -> Self {
        let mut above = Vec::new();
        let mut next = records.accounts.get(&account.parent_account);
        while let Some(parent) = next.filter(|_| above.len() < records.accounts.len()) {
            above.push(parent.name.clone());
            next = records.accounts.get(&parent.parent_account);
        }
        Self {
            account: Shown::new(account, records),
            above,
            below: records.below(&account.name).map(|account| account.name.clone()).collect(),
            memberships: records.members_of(&account.name).map(Membership::new).collect(),
        }
    }

    fn table(&self) -> String {
        let account = &self.account;
        let names = |names: &[String]| or_dash(&names.join(", "));
        let members: Vec<_> = self.memberships.iter().map(|member| member.user.clone()).collect();
        let rows = [
            ("account", account.name.clone()),
            ("parent", shown(account.parent.as_ref())),
            ("above", names(&self.above)),
            ("below", names(&self.below)),
            ("description", or_dash(&account.description)),
            ("organization", or_dash(&account.organization)),
            ("fairshare", account.fairshare.to_string()),
            ("max running jobs", shown(account.max_running_jobs)),
            ("grp tres", or_dash(&account.grp_tres)),
            ("coordinators", names(&account.coordinators)),
            ("members", names(&members)),
        ];
        let lines = rows.map(|(name, value)| format!("{name:<17} {value}"));
        lines.join("\n")
    }
}

pub(crate) fn account(command: &Account) -> anyhow::Result<Exit> {
    block_on(async {
        let client = command.controller.client()?;
        carry_out(&client, &command.command).await
    })
}

async fn carry_out(client: &Client, command: &AccountCommand) -> anyhow::Result<Exit> {
    match command {
        AccountCommand::List { under, output } => list(client, under.as_deref(), *output).await,
        AccountCommand::Show { name, output } => show(client, name, *output).await,
        AccountCommand::Add { names, if_not_exists, fields, dry_run } => {
            let mut wanted: Vec<_> = names.iter().collect();
            if *if_not_exists {
                let records = Records::read(client).await?;
                match missing(names, "account", |name| records.accounts.contains_key(name)) {
                    ControlFlow::Break(()) => return Ok(Exit::Done),
                    ControlFlow::Continue(missing) => wanted = missing,
                }
            }
            let requests = wanted.into_iter().map(|name| fields.request(name, Presence::Absent));
            let changes: Vec<_> = requests.map(Change::CreateAccount).collect();
            make_and_tell(client, &changes, *dry_run).await
        }
        AccountCommand::Modify { names, fields, remove_coordinator, merge_tres, clear, dry_run } => {
            let requests = names.iter().map(|name| {
                let mut request = fields.request(name, Presence::Present);
                request.remove_coordinators.clone_from(remove_coordinator);
                request.merge_tres = Some(*merge_tres);
                for field in clear {
                    field.clear(&mut request);
                }
                Change::CreateAccount(request)
            });
            let changes: Vec<_> = requests.collect();
            make_and_tell(client, &changes, *dry_run).await
        }
        AccountCommand::Delete { names, force, dry_run } => {
            let requests =
                names.iter().map(|name| DeleteAccountRequest { name: name.clone(), force: Some(*force) });
            let changes: Vec<_> = requests.map(Change::DeleteAccount).collect();
            make_and_tell(client, &changes, *dry_run).await
        }
        AccountCommand::Import { sources, reading, delete_missing, dry_run } => {
            import::import(client, sources, reading, *delete_missing, *dry_run).await
        }
    }
}

async fn list(client: &Client, under: Option<&str>, format: output::Format) -> anyhow::Result<Exit> {
    let records = Records::read(client).await?;
    let among = match under {
        Some(account) if !records.accounts.contains_key(account) => bail!("account {account} does not exist"),
        Some(account) => Some(records.subtree(account)),
        None => None,
    };
    let wanted = |account: &&AccountInfo| among.as_ref().is_none_or(|among| among.contains(&account.name));
    let accounts = records.accounts.values().filter(wanted).map(|account| Shown::new(account, &records));
    let accounts: Vec<_> = accounts.collect();
    output::value(format, &accounts, || {
        let rows = accounts.iter().map(|account| {
            [
                account.name.clone(),
                shown(account.parent.as_ref()),
                account.fairshare.to_string(),
                shown(account.max_running_jobs),
                or_dash(&account.grp_tres),
                account.members.to_string(),
                or_dash(&account.description),
            ]
        });
        output::table(
            ["ACCOUNT", "PARENT", "FAIRSHARE", "MAX JOBS", "GRP TRES", "MEMBERS", "DESCRIPTION"],
            rows,
        )
    })?;
    Ok(Exit::Done)
}

async fn show(client: &Client, name: &str, format: output::Format) -> anyhow::Result<Exit> {
    let records = Records::read(client).await?;
    let Some(account) = records.accounts.get(name) else {
        bail!("account {name} does not exist{}", if records.partial { ", or is none of yours" } else { "" });
    };
    let detailed = Detailed::new(account, &records);
    output::value(format, &detailed, || detailed.table())?;
    Ok(Exit::Done)
}
