//! Changes of a controller's accounts: all go one way.

use std::ops::ControlFlow;

use spur_sdk::rpc::messages::site::{AccountingChange, ChangeAccountsRequest, ChangeAccountsRpc};
use spur_sdk::rpc::{CallError, Client, Code};

pub(super) use spur_sdk::rpc::messages::site::accounting_change::Change;

use super::older;
use crate::controller::told;
use crate::exit::Exit;
use crate::output;

/// The most changes that a controller takes at once.
pub(super) const BATCH: usize = 25;

/// What has come of changes.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// What was changed, a line each.
    pub(super) lines: Vec<String>,
    /// Why it went no further, after what was changed.
    pub(super) stopped: Option<anyhow::Error>,
}

/// Whether a controller answered that it has no such call.
pub(super) fn is_unknown_call(error: &CallError) -> bool {
    error.refusal().is_some_and(|refusal| refusal.code == Code::Unimplemented)
}

/// Sends at most [`BATCH`] changes, which are made all or none.
pub(super) async fn send(
    client: &Client,
    changes: &[Change],
    dry_run: bool,
) -> Result<Vec<String>, CallError> {
    let changes = changes.iter().map(|change| AccountingChange { change: Some(change.clone()) }).collect();
    let request = ChangeAccountsRequest { changes, dry_run };
    client.call::<ChangeAccountsRpc>(&request).await.map(|answer| answer.changed)
}

/// Makes changes; up to [`BATCH`] are made all or none.
pub(super) async fn make(client: &Client, changes: &[Change], dry_run: bool) -> anyhow::Result<Made> {
    let mut made = Made::default();
    for (number, part) in changes.chunks(BATCH).enumerate() {
        match send(client, part, dry_run).await {
            Ok(lines) => made.lines.extend(lines),
            Err(error) if number == 0 && is_unknown_call(&error) => {
                return older::make(client, changes, dry_run).await;
            }
            Err(error) if number == 0 => return Err(told(client, error)),
            Err(error) => {
                made.stopped = Some(told(client, error));
                break;
            }
        }
    }
    Ok(made)
}

/// Says what was changed.
pub(super) fn tell(made: &Made, dry_run: bool) -> anyhow::Result<Exit> {
    output::print(&made.lines.join("\n"))?;
    if let Some(error) = &made.stopped {
        output::error(error);
        output::problem("what stands above was changed, the rest was not");
        return Ok(Exit::Partly);
    }
    match (made.lines.is_empty(), dry_run) {
        (true, _) => output::note("nothing to change"),
        (false, true) => output::note("this is what would change; nothing was"),
        (false, false) => {}
    }
    Ok(Exit::Done)
}

/// Makes changes and says what was changed.
pub(super) async fn make_and_tell(
    client: &Client,
    changes: &[Change],
    dry_run: bool,
) -> anyhow::Result<Exit> {
    tell(&make(client, changes, dry_run).await?, dry_run)
}

/// Drops those that are there already.
pub(super) fn missing<'n>(
    names: &'n [String],
    subject: &str,
    exists: impl Fn(&str) -> bool,
) -> ControlFlow<(), Vec<&'n String>> {
    let mut missing = Vec::new();
    for name in names {
        if exists(name) {
            output::note(&format!("{subject} {name} exists already and is left as it is"));
        } else {
            missing.push(name);
        }
    }
    if missing.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(missing) }
}
