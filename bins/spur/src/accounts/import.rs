//! `spur account import`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use spur_sdk::rpc::{CallError, Client, Code};
use spur_sdk_quota::{Model, Tree};

use super::change::{self, BATCH, Change, is_unknown_call};
use super::importing::{Import, Step, plan};
use super::older;
use super::records::Records;
use crate::controller::told;
use crate::exit::Exit;
use crate::output;
use crate::quota::{Reading, read_model};

/// How often long work says how far it is.
const TELL: Duration = Duration::from_secs(2);

/// How long to wait when the controller is asked too much, and how often.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSES: u32 = 100;

/// Sends changes, and again when the controller is asked too much at the moment: they may be made twice.
async fn send(client: &Client, changes: &[Change]) -> Result<Vec<String>, CallError> {
    for _ in 0..PAUSES {
        match change::send(client, changes, false).await {
            Err(error) if error.refusal().is_some_and(|refusal| refusal.code == Code::ResourceExhausted) => {
                tokio::time::sleep(PAUSE).await;
            }
            answered => return answered,
        }
    }
    change::send(client, changes, false).await
}

/// Takes over what files say.
pub(super) async fn import(
    client: &Client,
    sources: &[PathBuf],
    reading: &Reading,
    delete_missing: bool,
    dry_run: bool,
) -> anyhow::Result<Exit> {
    let model = read_model(sources, reading)?;
    let stopped = tell_problems(&model, delete_missing)?;
    let records = Records::read(client).await?;
    if records.partial {
        bail!("the controller shows only a part of the accounts: import as an operator or an admin");
    }
    let import = plan(&model, &records, delete_missing);
    for note in &import.notes {
        output::note(note);
    }
    if !import.left.is_empty() {
        let left: Vec<_> = import.left.iter().map(String::as_str).collect();
        output::note(&format!(
            "the controller has what the sources do not name, and keeps it: {} (--delete-missing deletes it)",
            output::shorten(&left)
        ));
    }
    let exit = if dry_run { show(&import)? } else { make(client, &import.steps).await? };
    Ok(if stopped && exit == Exit::Done { Exit::Partly } else { exit })
}

/// Says what cannot be understood; whether there is something.
fn tell_problems(model: &Model, delete_missing: bool) -> anyhow::Result<bool> {
    let tree = Tree::of(model);
    let problems = tree.problems();
    for problem in &problems {
        output::problem(&problem.to_string());
    }
    if tree.whole().is_some() {
        bail!("nothing is imported: what could not be read may concern everything");
    }
    if delete_missing && !problems.is_empty() {
        bail!("nothing is imported: with --delete-missing, what could not be read would be deleted");
    }
    if delete_missing && model.accounts.is_empty() {
        bail!("nothing is imported: the sources name no account, and --delete-missing would delete all");
    }
    Ok(!problems.is_empty())
}

fn show(import: &Import) -> anyhow::Result<Exit> {
    let lines: Vec<_> = import.steps.iter().map(|step| step.words.as_str()).collect();
    output::print(&lines.join("\n"))?;
    match lines.len() {
        0 => output::note("nothing to change"),
        changes => output::note(&format!("{changes} changes; this is what would change, nothing was")),
    }
    Ok(Exit::Done)
}

/// Makes the changes. What is refused is said, and the others go on.
async fn make(client: &Client, steps: &[Step]) -> anyhow::Result<Exit> {
    let (mut changed, mut refused) = (0, 0);
    let mut told_at = Instant::now();
    for (number, part) in steps.chunks(BATCH).enumerate() {
        if told_at.elapsed() > TELL {
            output::status(&format!("{} of {} changes", number * BATCH, steps.len()));
            told_at = Instant::now();
        }
        let batch: Vec<Change> = part.iter().map(|step| step.change.clone()).collect();
        match send(client, &batch).await {
            Ok(lines) => {
                changed += part.len();
                output::print(&lines.join("\n"))?;
            }
            Err(error) if is_unknown_call(&error) => {
                let rest: Vec<Change> =
                    steps.iter().skip(number * BATCH).map(|step| step.change.clone()).collect();
                return change::tell(&older::make(client, &rest, false).await?, false);
            }
            Err(error) => match error.refusal().map(|refusal| refusal.code) {
                // One of them is wrong: each for itself.
                Some(
                    Code::InvalidArgument | Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition,
                ) => {
                    for step in part {
                        match send(client, std::slice::from_ref(&step.change)).await {
                            Ok(lines) => {
                                changed += 1;
                                output::print(&lines.join("\n"))?;
                            }
                            Err(error) if error.refusal().is_some() => {
                                refused += 1;
                                let subject = step.words.split(": ").next().unwrap_or_default();
                                output::problem(&format!("{subject}: {}", spur_sdk::error_chain(&error)));
                            }
                            Err(error) => return stopped(told(client, error), changed, steps.len()),
                        }
                    }
                }
                _ => return stopped(told(client, error), changed, steps.len()),
            },
        }
    }
    match (changed, refused) {
        (0, 0) => output::note("nothing to change"),
        (changed, 0) => output::note(&format!("{changed} changes")),
        (changed, refused) => {
            output::problem(&format!("{changed} changes were made, {refused} were refused"));
            return Ok(if changed == 0 { Exit::Failed } else { Exit::Partly });
        }
    }
    Ok(Exit::Done)
}

fn stopped(error: anyhow::Error, changed: usize, all: usize) -> anyhow::Result<Exit> {
    if changed == 0 {
        return Err(error);
    }
    output::error(&error);
    output::problem(&format!("{changed} of {all} changes were made; run it again for the others"));
    Ok(Exit::Partly)
}
