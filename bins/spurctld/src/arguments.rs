//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Keeps a site's accounts, knows who asks, and gives users their kubeconfigs.
#[derive(Debug, Parser)]
#[command(name = "spurctld", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "The smallest configuration is one line: site = \"NAME\". docs/reference/spurctld.md has all keys.

Examples:
  spurctld init       once: the site's authority, and an admin's credentials
  spurctld run        what a service manager starts

SPUR_LOG says what is logged, such as info,spur_sdk=debug.
Exit codes: 0 done; 1 failed; 64 usage."
)]
pub(crate) struct Arguments {
    /// The configuration, TOML.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        default_value = "/etc/spur/spurctld.toml",
        env = "SPURCTLD_CONFIG"
    )]
    pub(crate) config: PathBuf,
    /// How the log looks.
    #[arg(long, global = true, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a site: its store, its certificate authority, and an admin's credentials. Does nothing that is done.
    #[command(
        after_help = "A further controller of a site on etcd needs the first one's site key: copy STATE/site.key \
there and name it with --site-key, or put it into place before."
    )]
    Init {
        /// The site key of the site's first controller.
        #[arg(long, value_name = "FILE")]
        site_key: Option<PathBuf>,
    },
    /// Serve, until the process is told to end.
    Run,
    /// Say whether the configuration can be used. Starts nothing.
    CheckConfig,
    /// Fill an empty store from a backup that `spur site backup` has written.
    Restore {
        /// The backup.
        backup: PathBuf,
    },
}
