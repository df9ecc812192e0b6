//! `spur quota`.

mod cluster;
mod controller;
mod pure;
mod sources;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use spur_sdk_quota::source::Format;

pub(crate) use self::sources::model as read_model;
use crate::controller::Controller;
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
    /// The dumps are whole: only then does a member who is missing from one lose access, and is an account that is
    /// missing retired by a controller. It cannot be seen from a dump, since a cut one reads as well.
    #[arg(long)]
    complete: bool,
}

/// A controller's accounts as the source.
#[derive(Args, Debug)]
pub(crate) struct FromSpur {
    /// Take the accounts of a SPUR controller: unix:PATH, HOST:PORT, or http://HOST:PORT for one of SPUR's own, which
    /// verifies nobody.
    #[arg(long, value_name = "ADDRESS")]
    from_spur: Option<String>,
    /// Credentials for a controller on another machine, of an operator or an admin.
    #[arg(long, value_name = "FILE", env = crate::environment::CREDENTIALS)]
    credentials: Option<PathBuf>,
}

impl FromSpur {
    fn controller(self) -> Option<Controller> {
        let credentials = self.credentials;
        self.from_spur.map(|address| Controller { controller: Some(address), credentials })
    }
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
pub(crate) struct Reach {
    /// Kubeconfig; otherwise KUBECONFIG, ~/.kube/config, or the pod's own ServiceAccount.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    context: Option<String>,
}

/// Which cluster, and what is done about what is not ours.
#[derive(Args, Debug)]
pub(crate) struct Target {
    #[command(flatten)]
    reach: Reach,
    /// Take over namespaces, roles and policies that exist under our names and are not ours.
    #[arg(long)]
    adopt: bool,
}

/// Which Lease replicas lead by.
#[derive(Args, Debug)]
pub(crate) struct LeaseArgs {
    /// Namespace of the Lease that replicas lead by; must exist.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    lease_namespace: String,
    /// Name of the Lease. Controllers with the same one lead in turn.
    #[arg(long, value_name = "NAME", default_value = "spur-quota")]
    lease_name: String,
}

/// How a controller runs.
#[derive(Args, Debug)]
pub(crate) struct Watching {
    #[command(flatten)]
    lease: LeaseArgs,
    /// Seconds that the Lease holds. A replica takes over when the leader has not renewed it for so long.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=600))]
    lease_duration: u64,
    /// What this replica calls itself in the Lease; must differ between replicas. Default: random.
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// Run without a Lease: you see to it that one controller runs at a time.
    #[arg(long, conflicts_with = "identity")]
    no_lease: bool,
    /// Delete namespaces so long after their accounts were retired, such as 30d; at least 24h. Not if they hold
    /// running pods or PersistentVolumeClaims. Default: never.
    #[arg(long, value_name = "TIME", value_parser = grace)]
    delete_retired_after: Option<std::time::Duration>,
    /// Accounts that are written at the same time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
}

/// Which namespaces of retired accounts.
#[derive(Args, Debug)]
pub(crate) struct Pruned {
    /// Accounts or namespaces.
    #[arg(value_name = "ACCOUNT", required_unless_present = "all")]
    accounts: Vec<String>,
    /// All that are retired.
    #[arg(long, conflicts_with = "accounts")]
    all: bool,
    /// Only what has been retired for so long, such as 30d. What was retired within a day is the controller's memory
    /// against mass removal; less than 24h lets it forget.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = humantime::parse_duration)]
    retired_for: std::time::Duration,
    /// Delete running pods and PersistentVolumeClaims as well. Volumes go by their reclaim policy.
    #[arg(long)]
    delete_data: bool,
    /// Only show what would be deleted.
    #[arg(long)]
    dry_run: bool,
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
    /// Keep a cluster at what the accounts say, until it is stopped: a controller.
    #[command(after_help = exit::help("Files are watched; what changes in them is written. What somebody else changes of \
        what is ours is put back.
Accounts and members that vanish from files that were read in full are taken out: access removed, quota closed,
nothing deleted. Many at once are held until `spur quota confirm`.
kubectl annotate namespace NAMESPACE spur.amd.com/paused=true suspends all of that for one account.
Several replicas lead in turn by a Lease.

Examples:
  spur quota watch accounts.toml --policy policy.toml
  spur quota watch accounts.toml -o json | jq -c 'select(.report == \"reverted\")'"))]
    Watch {
        /// Files of accounts: TOML, YAML or a sacctmgr dump.
        #[arg(required_unless_present = "from_spur", conflicts_with = "from_spur", value_name = "SOURCE")]
        sources: Vec<PathBuf>,
        #[command(flatten)]
        spur: FromSpur,
        #[command(flatten)]
        input: Input,
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        watching: Watching,
        /// table: a line for each report; json: an object on a line; yaml: documents.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Show how a cluster stands: what is in step, what is not and why, paused, retired, over quota.
    #[command(after_help = exit::help("Without a source it shows what the cluster says by itself.

Examples:
  spur quota status
  spur quota status accounts.toml --policy policy.toml
  spur quota status accounts.toml --exit-code    (ends with 2 when something is not in step)"))]
    Status {
        /// Files of accounts to compare with: TOML, YAML or a sacctmgr dump; - is standard input.
        #[arg(value_name = "SOURCE")]
        sources: Vec<PathBuf>,
        #[command(flatten)]
        input: Input,
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        lease: LeaseArgs,
        /// Exit with 2 when something is not in step.
        #[arg(long)]
        exit_code: bool,
        /// Format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Let removals go on that a controller holds because many accounts vanished at once.
    #[command(after_help = exit::help("`spur quota status SOURCE` and the controller's reports name the word. It stands \
        for exactly the accounts
that have vanished; when others vanish it is another one.

Example: spur quota confirm 3f9c1a20b7de"))]
    Confirm {
        /// The word that stands for the accounts that vanished.
        #[arg(value_parser = confirmation)]
        word: String,
        /// Policy file, for its prefix.
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Delete namespaces of accounts that were retired. There is no way back.
    #[command(after_help = exit::help("Namespaces that hold running pods or PersistentVolumeClaims are kept without \
        --delete-data. A namespace
whose account came back meanwhile is kept.

Examples:
  spur quota prune --all --retired-for 30d --dry-run
  spur quota prune old-project --retired-for 0s"))]
    Prune {
        #[command(flatten)]
        pruned: Pruned,
        /// Policy file, for its prefix.
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        #[command(flatten)]
        reach: Reach,
        /// Format.
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

/// A grace period, not shorter than the shortest.
fn grace(text: &str) -> Result<std::time::Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time < spur_sdk_quota::cluster::SHORTEST_GRACE {
        return Err("is less than 24h".to_owned());
    }
    Ok(time)
}

/// A word that confirms removals: twelve hexadecimal digits.
fn confirmation(word: &str) -> Result<String, &'static str> {
    let hexadecimal = word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if word.len() == 12 && hexadecimal {
        return Ok(word.to_owned());
    }
    Err("is not twelve hexadecimal digits; see spur quota status SOURCE")
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
        Command::Watch { sources, spur, input, target, watching, output } => {
            controller::watch(&sources, spur, &input, &target, watching, output)
        }
        Command::Status { sources, input, target, lease, exit_code, output } => {
            controller::status(&sources, &input, &target, lease, exit_code, output)
        }
        Command::Confirm { word, policy, reach } => controller::confirm(&word, policy.as_deref(), &reach),
        Command::Prune { pruned, policy, reach, output } => {
            controller::prune(pruned, policy.as_deref(), &reach, output)
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
