//! Reads what the command line names.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use spur_sdk::fs::read_text;
use spur_sdk_quota::source::{self, FileSource, ReadOptions, SourceError};
use spur_sdk_quota::{Model, Policy, Projection};

use super::{Input, Reading};
use crate::exit::{Exit, UsageError};
use crate::output;

/// The largest policy or standard input that is read, in bytes.
const MAX_FILE: u64 = 1 << 30;

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Standard input, and what messages call it.
fn stdin() -> anyhow::Result<(String, &'static str)> {
    let mut text = String::new();
    std::io::stdin().take(MAX_FILE + 1).read_to_string(&mut text).context("read standard input")?;
    if text.len() as u64 > MAX_FILE {
        bail!("standard input is larger than {MAX_FILE} bytes");
    }
    Ok((text, "stdin"))
}

pub(super) fn policy(path: &Path) -> anyhow::Result<Policy> {
    Ok(if is_stdin(path) {
        let (text, name) = stdin()?;
        Policy::read(&text, name)?
    } else {
        Policy::read(&read_text(path, MAX_FILE)?, &path.display().to_string())?
    })
}

fn accounts(path: &Path, options: ReadOptions) -> anyhow::Result<Model> {
    let model = if is_stdin(path) {
        let (text, name) = stdin()?;
        source::read(&text, name, options)
    } else {
        FileSource::new(path, options).read_blocking()
    };
    model.map_err(|error| match error {
        // It says that it is about reading, and which file.
        SourceError::File(error) => error.into(),
        error => error.into(),
    })
}

/// Reads the policy and all sources.
pub(super) fn read(sources: &[PathBuf], input: &Input) -> anyhow::Result<(Policy, Model)> {
    stdin_once(sources.iter().chain(&input.policy))?;
    let policy = input.policy.as_deref().map_or_else(|| Ok(Policy::default()), policy)?;
    let options = ReadOptions::default().format(input.reading.format()).complete(input.complete);
    Ok((policy, merged(sources, options)?))
}

/// Reads all sources into one model.
pub(crate) fn model(sources: &[PathBuf], reading: &Reading) -> anyhow::Result<Model> {
    stdin_once(sources.iter())?;
    merged(sources, ReadOptions::default().format(reading.format()))
}

fn stdin_once<'p>(files: impl Iterator<Item = &'p PathBuf>) -> anyhow::Result<()> {
    if files.filter(|file| is_stdin(file)).count() > 1 {
        bail!(UsageError("standard input (-) can be named once"));
    }
    Ok(())
}

fn merged(sources: &[PathBuf], options: ReadOptions) -> anyhow::Result<Model> {
    let mut whole: Option<Model> = None;
    for source in sources {
        let model = accounts(source, options)?;
        match &mut whole {
            Some(whole) => whole.merge(model),
            None => whole = Some(model),
        }
    }
    let whole = whole.context("no source is named")?;
    if whole.accounts.is_empty() && whole.problems.is_empty() {
        // What ran before a pipe may have failed.
        output::warning("the sources name no account");
    }
    Ok(whole)
}

/// Tells what could not be understood and what it stops; gives the exit code that follows.
pub(super) fn tell_problems(projection: &Projection) -> Exit {
    for problem in &projection.problems {
        output::problem(&problem.to_string());
    }
    if !projection.stopped.is_empty() {
        let names: Vec<_> = projection.stopped.iter().map(|stopped| stopped.account.as_str()).collect();
        output::problem(&format!(
            "{} of {} accounts are stopped by these errors: {}",
            names.len(),
            names.len() + projection.accounts.len(),
            output::shorten(&names)
        ));
    }
    match (projection.refused(), projection.problems.is_empty(), projection.accounts.is_empty()) {
        (Some(_), ..) | (None, false, true) => Exit::Failed,
        (None, false, false) => Exit::Partly,
        (None, true, _) => Exit::Done,
    }
}
