//! Exit codes; every command uses these.

use std::fmt;
use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, nothing to do included.
    Done,
    /// Failed, nothing changed.
    Failed,
    /// There are differences, and the caller asked to be told.
    Differences,
    /// Some accounts were refused or failed, the others are done.
    Partly,
    /// The command line is wrong.
    Usage,
}

/// What the help of a command says of them.
pub(crate) const CODES: &str = "Exit codes: 0 done, nothing to do included; 1 failed, nothing changed; 2 differences \
    (plan, status --exit-code); 3 done in part, the output says what is not; 64 usage.";

/// What stands below the options in the help of a command.
pub(crate) fn help(text: &str) -> String {
    format!("{text}\n\n{CODES}")
}

/// The command line is wrong in a way that its parser does not see.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) &'static str);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for UsageError {}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Differences => 2,
            Exit::Partly => 3,
            Exit::Usage => 64,
        })
    }
}
