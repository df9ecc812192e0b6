//! `spur site`, `spur node`: the controller itself, and the nodes that belong to it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use spur_sdk::identity::{JoinToken, KeyRequest};
use spur_sdk::rpc::messages::site::{
    BackupRequest, BackupRpc, CreateJoinTokenRequest, CreateJoinTokenRpc, EnrolRequest, EnrolRpc,
    ListHistoryRequest, ListHistoryRpc, ListNodesRequest, ListNodesRpc, MarkNodeRequest, MarkNodeRpc,
    RemoveNodeRequest, RemoveNodeRpc, StatusRpc,
};
use spur_sdk::rpc::messages::{Timestamp, time};
use spur_sdk::rpc::{Client, ClientOptions, Target};

use crate::controller::{Controller, ask, block_on, private_folder};
use crate::exit::{self, Exit};
use crate::output;

/// A time for people and machines; empty where there is none.
pub(crate) fn shown(timestamp: Option<&Timestamp>) -> String {
    let time = timestamp.and_then(time);
    time.map(|time| humantime::format_rfc3339_seconds(time).to_string()).unwrap_or_default()
}

pub(crate) fn seconds(lifetime: Option<Duration>) -> u32 {
    lifetime.map_or(0, |lifetime| u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX))
}

#[derive(Args, Debug)]
pub(crate) struct Site {
    #[command(flatten)]
    controller: Controller,
    #[command(subcommand)]
    command: SiteCommand,
}

#[derive(Subcommand, Debug)]
enum SiteCommand {
    /// Show how the controller stands, and who leads.
    Status {
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Show who changed what of the accounts.
    History {
        /// Only what is about this, such as "account physics".
        #[arg(long, default_value = "")]
        subject: String,
        /// At most so many, the newest.
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// Only what comes after this entry.
        #[arg(long, default_value_t = 0)]
        after: u64,
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Have the controller write a backup of all that it knows into its folder for backups.
    #[command(after_help = exit::help("The site key is not in it: keep STATE/site.key beside, or what is sealed is lost."))]
    Backup {
        /// The file's name; default: the time.
        #[arg(default_value = "")]
        name: String,
    },
}

#[derive(Serialize)]
struct Status {
    site: String,
    controller: String,
    version: String,
    leading: bool,
    leader: String,
    leader_address: String,
    store: String,
    started: String,
    revision: u64,
    accounts: u64,
    users: u64,
}

#[derive(Serialize)]
struct Entry {
    number: u64,
    time: String,
    caller: String,
    subject: String,
    change: String,
}

pub(crate) fn site(command: &Site) -> anyhow::Result<Exit> {
    block_on(async {
        let client = command.controller.client()?;
        match &command.command {
            SiteCommand::Status { output } => status(&client, *output).await,
            SiteCommand::History { subject, limit, after, output } => {
                let request = ListHistoryRequest { after: *after, limit: *limit, subject: subject.clone() };
                history(&client, &request, *output).await
            }
            SiteCommand::Backup { name } => {
                let written = ask::<BackupRpc>(&client, &BackupRequest { name: name.clone() }).await?;
                output::note(&format!("{} entries at revision {}", written.entries, written.revision));
                output::print(&written.path)?;
                Ok(Exit::Done)
            }
        }
    })
}

async fn status(client: &Client, format: output::Format) -> anyhow::Result<Exit> {
    let answer = ask::<StatusRpc>(client, &()).await?;
    let status = Status {
        site: answer.site,
        controller: answer.controller,
        version: answer.version,
        leading: answer.leading,
        leader: answer.leader,
        leader_address: answer.leader_address,
        store: answer.store,
        started: shown(answer.started.as_ref()),
        revision: answer.revision,
        accounts: answer.accounts,
        users: answer.users,
    };
    output::value(format, &status, || {
        let leader = match (status.leading, status.leader.as_str()) {
            (true, _) => "this controller".to_owned(),
            (false, "") => "nobody".to_owned(),
            (false, leader) => format!("{leader} at {}", status.leader_address),
        };
        format!(
            "site        {}\ncontroller  {} {}, since {}\nleads       {leader}\nstore       {}\naccounts    {}, {} users, \
             revision {}",
            status.site,
            status.controller,
            status.version,
            status.started,
            status.store,
            status.accounts,
            status.users,
            status.revision
        )
    })?;
    Ok(Exit::Done)
}

async fn history(
    client: &Client,
    request: &ListHistoryRequest,
    format: output::Format,
) -> anyhow::Result<Exit> {
    let answer = ask::<ListHistoryRpc>(client, request).await?;
    let entries: Vec<Entry> = answer
        .entries
        .into_iter()
        .map(|entry| Entry {
            number: entry.number,
            time: shown(entry.time.as_ref()),
            caller: entry.caller,
            subject: entry.subject,
            change: entry.change,
        })
        .collect();
    output::value(format, &entries, || {
        let rows = entries.iter().map(|entry| {
            [
                entry.number.to_string(),
                entry.time.clone(),
                entry.subject.clone(),
                entry.change.clone(),
                entry.caller.clone(),
            ]
        });
        output::table(["NUMBER", "TIME", "SUBJECT", "CHANGE", "BY"], rows)
    })?;
    Ok(Exit::Done)
}

#[derive(Args, Debug)]
pub(crate) struct Node {
    #[command(flatten)]
    controller: Controller,
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Subcommand, Debug)]
enum NodeCommand {
    /// Make a one-time token with which a node joins.
    Token {
        /// The node; without one, any node that was never enrolled.
        #[arg(default_value = "")]
        node: String,
        /// How long it holds, such as 15m; at most 24h.
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        lifetime: Option<Duration>,
        /// Users may log in on the node: it vouches for them.
        #[arg(long)]
        login: bool,
    },
    /// Join with a token: get this node its certificate.
    Join {
        /// The token; - reads it from standard input, where no other user sees it.
        token: String,
        /// The name of this node.
        #[arg(long)]
        name: String,
        /// Where the credentials are written.
        #[arg(long, value_name = "FILE", default_value = "/var/lib/spur/node.pem")]
        save: PathBuf,
    },
    /// List the nodes that have joined.
    List {
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Say whether users may log in on a node.
    Mark {
        /// The node.
        node: String,
        /// Whether.
        #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
        login: bool,
    },
    /// Refuse a node from now on, and cut its connections.
    Remove {
        /// The node.
        node: String,
    },
}

#[derive(Serialize)]
struct Enrolled {
    name: String,
    serial: String,
    expires: String,
    login: bool,
    removed: bool,
}

pub(crate) fn node(command: &Node) -> anyhow::Result<Exit> {
    block_on(async {
        match &command.command {
            NodeCommand::Token { node, lifetime, login } => {
                let request = CreateJoinTokenRequest {
                    node: node.clone(),
                    lifetime_seconds: seconds(*lifetime),
                    login: *login,
                };
                let made = ask::<CreateJoinTokenRpc>(&command.controller.client()?, &request).await?;
                output::note(&format!("holds until {}, for one join", shown(made.expires.as_ref())));
                output::print(&made.token)?;
            }
            NodeCommand::Join { token, name, save } => join(&command.controller, token, name, save).await?,
            NodeCommand::List { output } => list(&command.controller.client()?, *output).await?,
            NodeCommand::Mark { node, login } => {
                let request = MarkNodeRequest { node: node.clone(), login: *login };
                ask::<MarkNodeRpc>(&command.controller.client()?, &request).await?;
            }
            NodeCommand::Remove { node } => {
                let request = RemoveNodeRequest { node: node.clone() };
                ask::<RemoveNodeRpc>(&command.controller.client()?, &request).await?;
                output::note(&format!("{node} is refused from now on"));
            }
        }
        Ok(Exit::Done)
    })
}

async fn join(
    controller: &Controller,
    token: &str,
    name: &str,
    save: &std::path::Path,
) -> anyhow::Result<()> {
    let read = match token {
        "-" => std::io::read_to_string(std::io::stdin().lock())?,
        token => token.to_owned(),
    };
    let token: JoinToken = read.trim().parse()?;
    let target = match controller.address() {
        Some(address) => Target::Enrolling(address, token.authority().to_owned()),
        None => anyhow::bail!(exit::UsageError("name the controller with --controller HOST:PORT")),
    };
    let client = Client::new(&target, ClientOptions::default())?;
    let request = KeyRequest::generate()?;
    let asked =
        EnrolRequest { token: token.reveal(), node: name.to_owned(), request: request.pem().to_owned() };
    let given = ask::<EnrolRpc>(&client, &asked).await?;
    let credentials = request.complete_pem(&given.certificate, &given.authority)?;
    private_folder(save)?;
    credentials.save(save)?;
    output::note(&format!(
        "{name} has joined site {}; its credentials are in {}",
        credentials.site(),
        save.display()
    ));
    Ok(())
}

async fn list(client: &Client, format: output::Format) -> anyhow::Result<()> {
    let answer = ask::<ListNodesRpc>(client, &ListNodesRequest {}).await?;
    let nodes: Vec<Enrolled> = answer
        .nodes
        .into_iter()
        .map(|node| Enrolled {
            name: node.name,
            serial: node.serial,
            expires: shown(node.not_after.as_ref()),
            login: node.login,
            removed: node.removed,
        })
        .collect();
    output::value(format, &nodes, || {
        let rows = nodes.iter().map(|node| {
            let state = match (node.removed, node.login) {
                (true, _) => "removed",
                (false, true) => "login",
                (false, false) => "",
            };
            [node.name.clone(), node.expires.clone(), state.to_owned(), node.serial.clone()]
        });
        output::table(["NODE", "EXPIRES", "STATE", "SERIAL"], rows)
    })
}
