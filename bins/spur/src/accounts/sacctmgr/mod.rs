//! `spur sacctmgr`: a controller's accounts in the spelling that Slurm people type.

mod columns;
mod confirm;
mod keys;
mod plan;
mod show;
#[cfg(test)]
mod tests;
mod words;

use std::io::IsTerminal;

use clap::Args;
use spur_sdk::rpc::Client;
use spur_sdk::rpc::messages::site::StatusRpc;
use spur_sdk_quota::source::{Source, SpurSource, to_dump};
use spur_sdk_quota::{Origin, Sourced};

use self::keys::{
    ACCOUNT, ACCOUNT_WHERE, ASSOCIATION_WHERE, COORDINATOR, Field, Key, QOS, QOS_WHERE, USER, USER_WHERE,
};
use self::plan::Plan;
use self::show::Layout;
use self::words::{Line, Word, WordsError, is};
use super::change::{Made, is_unknown_call, make};
use super::records::Records;
use crate::controller::{Controller, block_on, told};
use crate::exit::Exit;
use crate::output;

/// What stands below the help.
pub(crate) const EXAMPLES: &str =
    "Keys are Slurm's, in any case and shortened as there. A bare number of mem is MB (10^6 \
    bytes), as everywhere in SPUR;
only a dump is in Slurm's own spelling.

Examples:
  spur sacctmgr -i add account name=physics grptres=cpu=64,mem=131072,gres/gpu=8
  spur sacctmgr -i add user name=alice account=physics
  spur sacctmgr -i modify account where name=physics set grptres=cpu=128
  spur sacctmgr -nP show assoc format=account,user,grptres where account=physics
  spur sacctmgr dump file=alpha.cfg";

/// `spur sacctmgr`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are sacctmgr's options")]
pub(crate) struct Sacctmgr {
    #[command(flatten)]
    controller: Controller,
    /// Commit without asking.
    #[arg(short, long)]
    immediate: bool,
    /// No heading over a table.
    #[arg(short, long)]
    noheader: bool,
    /// Cells between |.
    #[arg(short = 'P', long)]
    parsable2: bool,
    /// Cells between |, and one after the last.
    #[arg(short, long, conflicts_with = "parsable2")]
    parsable: bool,
    /// Say only what is wrong.
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// Change nothing.
    #[arg(short, long)]
    readonly: bool,
    /// Show associations as well.
    #[arg(short = 's', long)]
    associations: bool,
    /// Taken, as sacctmgr does; without meaning here.
    #[arg(short, long, hide = true)]
    oneliner: bool,
    /// Taken, as sacctmgr does; without meaning here.
    #[arg(short, long, hide = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Also delete what is below, members, and what names it. sacctmgr -i does so unasked.
    #[arg(long)]
    force: bool,
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
    /// add|modify|delete|show|list|dump, then what it is about, as with sacctmgr.
    #[arg(required = true, value_name = "WORD")]
    words: Vec<String>,
}

/// What a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entity {
    Account,
    Association,
    Coordinator,
    Qos,
    User,
}

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add,
    Modify,
    Delete,
    Show,
}

const ENTITIES: &[(&str, usize, Entity)] = &[
    ("Accounts", 2, Entity::Account),
    ("Acct", 4, Entity::Account),
    ("Associations", 2, Entity::Association),
    ("Coordinators", 2, Entity::Coordinator),
    ("QOS", 1, Entity::Qos),
    ("Users", 1, Entity::User),
];

const VERBS: &[(&str, usize, Verb)] = &[
    ("add", 3, Verb::Add),
    ("create", 3, Verb::Add),
    ("modify", 1, Verb::Modify),
    ("update", 1, Verb::Modify),
    ("delete", 3, Verb::Delete),
    ("remove", 3, Verb::Delete),
    ("show", 3, Verb::Show),
    ("list", 3, Verb::Show),
];

impl Entity {
    fn find(word: &str) -> Result<Self, WordsError> {
        let found = ENTITIES.iter().find(|(name, least, _)| is(word, name, *least));
        found.map(|(.., entity)| *entity).ok_or_else(|| {
            WordsError(format!(
                "{word}: name one of account, association, coordinator, qos, user; SPUR keeps no others"
            ))
        })
    }

    fn keys(self) -> (&'static [Key], &'static [Key]) {
        match self {
            Self::Account => (ACCOUNT, ACCOUNT_WHERE),
            Self::Association => (&[], ASSOCIATION_WHERE),
            Self::Coordinator => (COORDINATOR, COORDINATOR),
            Self::Qos => (QOS, QOS_WHERE),
            Self::User => (USER, USER_WHERE),
        }
    }

    /// What a word without `=` names.
    fn naming(self) -> Field {
        if self == Self::Association { Field::Account } else { Field::Name }
    }
}

/// Reads a command line after its verb.
fn read(verb: Verb, words: &[String]) -> Result<(Entity, Line), WordsError> {
    let Some((entity, rest)) = words.split_first() else {
        return Err(WordsError::new("name what it is about: account, association, coordinator, qos or user"));
    };
    let entity = Entity::find(entity)?;
    let (keys, conditions) = entity.keys();
    let line = words::line(rest, keys, conditions, entity.naming(), verb == Verb::Add)?;
    Ok((entity, line))
}

pub(crate) fn sacctmgr(command: &Sacctmgr) -> anyhow::Result<Exit> {
    match carry_out(command) {
        Ok(result) => result,
        Err(WordsError(message)) => {
            output::problem(message.trim_start());
            Ok(Exit::Usage)
        }
    }
}

fn carry_out(command: &Sacctmgr) -> Result<anyhow::Result<Exit>, WordsError> {
    let Some((first, rest)) = command.words.split_first() else {
        return Err(WordsError::new("write what to do: add, modify, delete, show, list or dump"));
    };
    if is(first, "dump", 3) {
        return dump(command, rest);
    }
    let Some((.., verb)) = VERBS.iter().find(|(name, least, _)| is(first, name, *least)) else {
        return Err(WordsError(match first.to_lowercase().as_str() {
            "load" => "load: spur account import FILE reads a dump".to_owned(),
            _ => format!("invalid keyword: {first}; known are add, modify, delete, show, list, dump"),
        }));
    };
    let (entity, mut line) = read(*verb, rest)?;
    if *verb == Verb::Show {
        if command.associations {
            line.flags.push(words::Flag::WithAssociations);
        }
        return Ok(block_on(async { show(command, entity, &line).await }));
    }
    if command.readonly {
        return Err(WordsError::new("Can't run this command in readonly mode."));
    }
    if !command.immediate && !command.dry_run && !std::io::stdin().is_terminal() {
        return Err(WordsError::new(
            "there is no terminal to ask on: write -i to commit without asking, or --dry-run to see what would change",
        ));
    }
    Ok(block_on(async { change(command, *verb, entity, &line).await }))
}

/// What the controller's site is called, which is the cluster to Slurm.
async fn site(client: &Client) -> anyhow::Result<String> {
    match client.call::<StatusRpc>(&()).await {
        Ok(status) => Ok(status.site),
        Err(error) if is_unknown_call(&error) => Ok("cluster".to_owned()),
        Err(error) => Err(told(client, error)),
    }
}

async fn show(command: &Sacctmgr, entity: Entity, line: &Line) -> anyhow::Result<Exit> {
    let client = command.controller.client()?;
    let (site, records) = (site(&client).await?, Records::read(&client).await?);
    let layout = match (command.parsable2, command.parsable) {
        (true, _) => Layout::Parsable,
        (false, true) => Layout::Ended,
        (false, false) => Layout::Columns,
    };
    match show::table(entity, line, &records, &site, layout, !command.noheader) {
        Ok(table) => {
            output::print(&table)?;
            Ok(Exit::Done)
        }
        Err(WordsError(message)) => {
            output::problem(message.trim_start());
            Ok(Exit::Usage)
        }
    }
}

async fn change(command: &Sacctmgr, verb: Verb, entity: Entity, line: &Line) -> anyhow::Result<Exit> {
    let client = command.controller.client()?;
    let (site, records) = (site(&client).await?, Records::read(&client).await?);
    // Whoever is asked sees what goes.
    let asking = !command.immediate && !command.dry_run;
    let planned = match verb {
        Verb::Add => plan::add(entity, line, &records, &site),
        Verb::Modify | Verb::Show => plan::modify(entity, line, &records, &site),
        Verb::Delete => plan::delete(entity, line, &records, &site, command.force || asking),
    };
    let plan = match planned {
        Ok(plan) => plan,
        Err(WordsError(message)) => {
            output::problem(message.trim_start());
            return Ok(Exit::Usage);
        }
    };
    if plan.changes.is_empty() {
        output::print(plan.nothing)?;
        return Ok(Exit::Failed);
    }
    if asking {
        tell(&plan, &make(&client, &plan.changes, true).await?, false)?;
        if !confirm::confirm()? {
            output::print(" Changes Discarded")?;
            return Ok(Exit::Done);
        }
    }
    let made = make(&client, &plan.changes, command.dry_run).await?;
    if !asking {
        tell(&plan, &made, command.quiet)?;
    }
    if command.dry_run {
        output::note("this is what would change; nothing was");
    }
    match made.stopped {
        Some(error) => {
            output::error(&error);
            output::problem("a part was changed, the rest was not");
            Ok(Exit::Partly)
        }
        None => Ok(Exit::Done),
    }
}

/// Slurm's heading, and what changes below it.
fn tell(plan: &Plan, made: &Made, quiet: bool) -> anyhow::Result<()> {
    if quiet {
        return Ok(());
    }
    let lines = made.lines.iter().map(|line| format!("\n  {line}"));
    let nothing = if made.lines.is_empty() { "\n  nothing to change: all is so already" } else { "" };
    output::print(&format!("{}{}{nothing}", plan.heading, lines.collect::<String>()))
}

/// `dump [CLUSTER] [file=FILE]`.
fn dump(command: &Sacctmgr, words: &[String]) -> Result<anyhow::Result<Exit>, WordsError> {
    let (mut cluster, mut file) = (None, None);
    for text in words {
        let word = Word::new(text);
        match (&word.value, word.key.as_str()) {
            (Some(value), key) if is(key, "File", 1) => file = Some(value.clone()),
            (Some(value), key) if is(key, "Cluster", 1) => cluster = Some(value.clone()),
            (None, _) => cluster = Some(word.text.clone()),
            (Some(_), _) => {
                return Err(WordsError(format!(" Unknown option: {text}; known are cluster, file")));
            }
        }
    }
    Ok(block_on(async {
        let client = command.controller.client()?;
        let site = site(&client).await?;
        if let Some(other) = cluster.filter(|cluster| !cluster.eq_ignore_ascii_case(&site)) {
            output::problem(&format!("cluster {other} does not exist; the controller's is {site}"));
            return Ok(Exit::Failed);
        }
        let mut model = SpurSource::new(client).read().await?;
        if model.cluster.name.is_none() {
            let name = site.parse()?;
            model.cluster.name = Some(Sourced::new(name, Origin::store("site")));
        }
        let (text, notes) = to_dump(&model);
        for note in notes {
            output::note(&note);
        }
        match file {
            Some(file) => spur_sdk::fs::write_file(file.as_ref(), text.as_bytes(), 0o644)?,
            None => output::print(&text)?,
        }
        Ok(Exit::Done)
    }))
}
