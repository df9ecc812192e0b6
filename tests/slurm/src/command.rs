//! Running a program to its end, with a deadline.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Longest wait for one program or daemon, generous for a machine that does much else at the same time.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// What a program said, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended. `sacctmgr` ends with 1 after an error, and with 124 where it took longer than a minute.
    pub status: ExitStatus,
    /// Its standard output; what is not UTF-8 is replaced.
    pub stdout: String,
    /// Its standard error; what is not UTF-8 is replaced.
    pub stderr: String,
}

impl Output {
    /// Both streams, without empty lines, and the status.
    pub(crate) fn message(&self) -> String {
        let said =
            self.stderr.lines().chain(self.stdout.lines()).map(str::trim).filter(|line| !line.is_empty());
        let said = said.collect::<Vec<_>>().join("\n");
        format!("{}\n{said}", self.status)
    }

    /// This output, or an error with all of it where the program failed.
    pub(crate) fn succeeded(self, what: &str) -> Result<Self> {
        ensure!(self.status.success(), "{what}: {}", self.message());
        Ok(self)
    }
}

/// A command that runs `program` and ends it after [`PATIENCE`], also where nobody is left to wait for it.
pub(crate) fn limited(timeout: &Path, program: &Path) -> Command {
    let mut command = Command::new(timeout);
    command.arg("--kill-after=1").arg(PATIENCE.as_secs().to_string()).arg(program).env("LC_ALL", "C");
    command
}

/// Runs `command` to its end, without input.
pub(crate) fn run(mut command: Command) -> Result<Output> {
    let ended = command.stdin(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
    Ok(Output {
        status: ended.status,
        stdout: String::from_utf8_lossy(&ended.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
    })
}
