//! `spur quota`.

mod cluster;
mod pure;
mod sources;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use spur_sdk_quota::source::Format;

use crate::exit::{self, Exit};
use crate::output;

/// How files of accounts are read.
#[derive(Args, Debug)]
pub(crate) struct Reading {
    /// Format of the sources; told by the content if not given.
    #[arg(long, value_enum)]
    format: Option<SourceFormat>,
}

impl Reading {
    fn format(&self) -> Option<Format> {
        self.format.map(Into::into)
    }
}

/// How files of accounts are read and projected.
#[derive(Args, Debug)]
pub(crate) struct Input {
    /// Policy file, TOML or YAML; without one the defaults hold.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    /// The dumps are whole: only then does a member who is missing from one lose access. It cannot be seen from a
    /// dump, since a cut one reads as well.
    #[arg(long)]
    complete: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SourceFormat {
    /// Our own file as TOML.
    Toml,
    /// Our own file as YAML.
    Yaml,
    /// What `sacctmgr dump` writes.
    Dump,
}

impl From<SourceFormat> for Format {
    fn from(format: SourceFormat) -> Self {
        match format {
            SourceFormat::Toml => Self::Toml,
            SourceFormat::Yaml => Self::Yaml,
            SourceFormat::Dump => Self::Dump,
        }
    }
}

/// Which cluster.
#[derive(Args, Debug)]
pub(crate) struct Target {
    /// Kubeconfig; otherwise KUBECONFIG, ~/.kube/config, or the pod's own ServiceAccount.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    context: Option<String>,
    /// Take over namespaces, roles and policies that exist under our names and are not ours.
    #[arg(long)]
    adopt: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConvertTo {
    /// Our own file, TOML.
    Spur,
    /// A file for `sacctmgr load`.
    Dump,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Schema {
    /// Of the file of accounts.
    Accounts,
    /// Of the policy file.
    Policy,
}

/// The way from a file to a cluster.
pub(crate) const EXAMPLES: &str = "Examples:
  spur quota render -o table accounts.toml    what the file means
  spur quota plan accounts.toml               what that changes in the cluster
  spur quota apply accounts.toml              change it";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the Kubernetes objects that the accounts mean. Needs no cluster.
    #[command(after_help = exit::help("Examples:
  spur quota render -o table accounts.toml
  sacctmgr dump mycluster file=/dev/stdout | spur quota render -o table -
  spur quota render accounts.toml | kubectl diff --server-side --field-manager spur-quota -f -

kubectl wants the namespaces to be there; spur quota plan does not."))]
    Render {
        /// Files of accounts: TOML, YAML or a sacctmgr dump; - is standard input.
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<PathBuf>,
        #[command(flatten)]
        input: Input,
        /// yaml: documents for kubectl; json: one List; table: an overview.
        #[arg(short, long, value_enum, default_value = "yaml")]
        output: output::Format,
    },
    /// Show what would change in a cluster. Writes nothing.
    #[command(after_help = exit::help("+ is created, ~ changed, - deleted, ! deleted and made anew, * waited for.

Examples:
  spur quota plan accounts.toml --policy policy.toml
  spur quota plan --exit-code accounts.toml    (ends with 2 when there are differences)"))]
    Plan {
        /// Files of accounts: TOML, YAML or a sacctmgr dump; - is standard input.
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<PathBuf>,
        #[command(flatten)]
        input: Input,
        #[command(flatten)]
        target: Target,
        /// Exit with 2 when there are differences.
        #[arg(long)]
        exit_code: bool,
        /// table: for people; json, yaml: the whole plan.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Make a cluster hold the accounts. Writes only differences; run it again at any time.
    #[command(after_help = exit::help("Order: what restricts first; members are let in last, when the quota binds.
Accounts that the source does not name are left alone.

Examples:
  spur quota apply accounts.toml --policy policy.toml
  sacctmgr dump mycluster file=/dev/stdout | spur quota apply -"))]
    Apply {
        /// Files of accounts: TOML, YAML or a sacctmgr dump; - is standard input.
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<PathBuf>,
        #[command(flatten)]
        input: Input,
        #[command(flatten)]
        target: Target,
        /// Only show what would change, as `plan` does.
        #[arg(long)]
        dry_run: bool,
        /// Accounts that are written at the same time.
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
        concurrency: u16,
        /// Seconds to wait for quotas to bind after the last one did.
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        binding_timeout: u64,
        /// Format of the closing report.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Show why an account's caps are what they are.
    #[command(after_help = exit::help("-> marks the limit that is the cap: the smallest between the account and the \
        cluster.

Example: spur quota explain accounts.toml physics"))]
    Explain {
        /// Files of accounts: TOML, YAML or a sacctmgr dump; - is standard input.
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<PathBuf>,
        /// The account.
        #[arg(required = true)]
        account: String,
        #[command(flatten)]
        input: Input,
        /// Format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// List every limit that Kubernetes does not enforce, and why.
    #[command(after_help = exit::help("Example: spur quota report accounts.toml"))]
    Report {
        /// Files of accounts: TOML, YAML or a sacctmgr dump; - is standard input.
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<PathBuf>,
        #[command(flatten)]
        input: Input,
        /// Format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Write the accounts in another format.
    #[command(after_help = exit::help("Examples:
  sacctmgr dump mycluster file=/dev/stdout | spur quota convert - >accounts.toml
  spur quota convert --to dump accounts.toml >mycluster.dump    (for sacctmgr load)"))]
    Convert {
        /// Files of accounts: TOML, YAML or a sacctmgr dump; - is standard input.
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<PathBuf>,
        #[command(flatten)]
        reading: Reading,
        /// The format.
        #[arg(long, value_enum, default_value = "spur")]
        to: ConvertTo,
    },
    /// Print the JSON Schema of a file, for editors.
    #[command(after_help = exit::help("Example: spur quota schema accounts >accounts.schema.json"))]
    Schema {
        /// Which file.
        of: Schema,
    },
}

pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Render { sources, input, output } => pure::render(&sources, &input, output),
        Command::Explain { sources, account, input, output } => {
            pure::explain(&sources, &account, &input, output)
        }
        Command::Report { sources, input, output } => pure::report(&sources, &input, output),
        Command::Convert { sources, reading, to } => pure::convert(&sources, &reading, to),
        Command::Schema { of } => pure::schema(of),
        Command::Plan { sources, input, target, exit_code, output } => {
            cluster::plan(&sources, &input, &target, exit_code, output)
        }
        Command::Apply { sources, input, target, dry_run: true, output, .. } => {
            cluster::plan(&sources, &input, &target, false, output)
        }
        Command::Apply { sources, input, target, concurrency, binding_timeout, output, .. } => {
            let options = spur_sdk_quota::cluster::ApplyOptions::default()
                .concurrency(concurrency.into())
                .binding_timeout(std::time::Duration::from_secs(binding_timeout));
            cluster::apply(&sources, &input, &target, options, output)
        }
    }
}
