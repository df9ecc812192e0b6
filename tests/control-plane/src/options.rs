//! What a control plane shall be like.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;

/// Where lines about building and starting go.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(&str) + Send + Sync>);

impl Progress {
    /// Hands each line, without its newline, to `sink`.
    pub fn new(sink: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    /// Writes the lines to standard error.
    #[must_use]
    pub fn stderr() -> Self {
        Self::new(|line| {
            // Nobody is left to tell if standard error is closed.
            let _ = writeln!(std::io::stderr(), "{line}");
        })
    }

    pub(crate) fn say(&self, line: &str) {
        (self.0)(line);
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// Options of a control plane.
///
/// Defaults: the version of `SPUR_TEST_KUBERNETES`, else the first of `versions.tsv`; controller manager and scheduler
/// run; no further arguments; progress to standard error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Kubernetes version as `X.Y.Z`; `None` is the default version.
    pub kubernetes: Option<String>,
    /// Whether the controller manager runs. Without it no quota status is filled, no namespace gets its `default`
    /// ServiceAccount, and nothing is garbage-collected.
    pub controller_manager: bool,
    /// Whether the scheduler runs.
    pub scheduler: bool,
    /// Arguments added to the API server's, each as one word (`--name=value`); a repeated flag replaces an earlier one.
    pub api_server_args: Vec<String>,
    /// Where progress goes.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kubernetes: None,
            controller_manager: true,
            scheduler: true,
            api_server_args: Vec::new(),
            progress: Progress::stderr(),
        }
    }
}

impl Options {
    /// Takes this Kubernetes version, `X.Y.Z`.
    #[must_use]
    pub fn kubernetes(mut self, version: impl Into<String>) -> Self {
        self.kubernetes = Some(version.into());
        self
    }

    /// Sets whether the controller manager runs.
    #[must_use]
    pub fn controller_manager(mut self, runs: bool) -> Self {
        self.controller_manager = runs;
        self
    }

    /// Sets whether the scheduler runs.
    #[must_use]
    pub fn scheduler(mut self, runs: bool) -> Self {
        self.scheduler = runs;
        self
    }

    /// Adds an argument of the API server, `--name=value`.
    #[must_use]
    pub fn api_server_arg(mut self, argument: impl Into<String>) -> Self {
        self.api_server_args.push(argument.into());
        self
    }

    /// Sends progress there.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }
}
