//! The command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Parser, ValueEnum};
use spur_sdk::fs::read_text;
use spur_sdk_quota::cluster::{ControllerOptions, LeaseSettings, SHORTEST_GRACE};
use spur_sdk_quota::source::{FileSource, Format, Merged, ReadOptions};

use crate::accounts::Accounts;
use crate::environment as env;

const HELP: &str = "Of several replicas one leads, by the Lease; the others do nothing until it is gone. A file that is \
    missing or cannot be read delays work: what it said last stays in force.

Accounts and members that vanish from files that were read in full are taken out: access removed, quota closed, nothing
deleted. Many at once are held until `spur quota confirm`.
kubectl annotate namespace NAMESPACE spur.amd.com/paused=true suspends all of that for one account.

Pages: /healthz and /readyz for probes, /metrics for Prometheus, and /status, to this machine or pod alone.

SPUR_LOG chooses what is logged, such as spur_sdk_quota=debug; info if not set.

Examples:
  spur-operator accounts.toml --policy policy.toml --kubeconfig admin.kubeconfig --listen 127.0.0.1:8080
  SPUR_OPERATOR_SOURCES=/etc/spur/accounts.toml spur-operator      in a pod

Exit codes: 0 told to stop, by SIGTERM or SIGINT; 1 cannot start; 64 usage.";

/// Keeps a Kubernetes cluster at what a batch scheduler's accounts say, until it is told to stop.
#[derive(Parser, Debug)]
#[command(name = "spur-operator", version, after_help = HELP)]
pub(crate) struct Arguments {
    /// Files of accounts: TOML, YAML or a sacctmgr dump. Changes in them are written. A colon stands between two.
    #[arg(
        required_unless_present = "from_spur", conflicts_with = "from_spur", value_name = "SOURCE", env = env::SOURCES,
        value_delimiter = ':'
    )]
    sources: Vec<PathBuf>,
    /// Take the accounts of a SPUR controller in the place of files: HOST:PORT, or http://HOST:PORT for one of SPUR's
    /// own, which verifies nobody.
    #[arg(long, value_name = "ADDRESS", env = env::FROM_SPUR)]
    from_spur: Option<String>,
    /// Credentials of an operator or an admin for the controller, as `spurctld init` writes them. Read once.
    #[arg(long, value_name = "FILE", env = env::CREDENTIALS, requires = "from_spur")]
    credentials: Option<PathBuf>,
    /// Policy file, TOML or YAML; without one the defaults hold. It is read once, at the start.
    #[arg(long, value_name = "FILE", env = env::POLICY)]
    pub(crate) policy: Option<PathBuf>,
    /// Format of the sources; told by the content if not given.
    #[arg(long, value_enum, env = env::FORMAT)]
    format: Option<SourceFormat>,
    /// The dumps are whole: only then does an account or a member who is missing from one lose access. It cannot be
    /// seen from a dump, since a cut one reads as well.
    #[arg(long, env = env::COMPLETE, value_parser = BoolishValueParser::new())]
    complete: bool,
    /// Kubeconfig; otherwise the pod's own ServiceAccount.
    #[arg(long, value_name = "FILE", env = env::KUBECONFIG)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; without --kubeconfig, of KUBECONFIG or ~/.kube/config.
    #[arg(long, env = env::CONTEXT)]
    pub(crate) context: Option<String>,
    /// Take over namespaces, roles and policies that exist under our names and are not ours.
    #[arg(long, env = env::ADOPT, value_parser = BoolishValueParser::new())]
    adopt: bool,
    /// Accounts that are written at the same time.
    #[arg(long, env = env::CONCURRENCY, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// Namespace of the Lease that replicas lead by; must exist.
    #[arg(long, value_name = "NAMESPACE", env = env::LEASE_NAMESPACE, default_value = "kube-system")]
    lease_namespace: String,
    /// Name of the Lease. Controllers with the same one lead in turn.
    #[arg(long, value_name = "NAME", env = env::LEASE_NAME, default_value = "spur-quota")]
    lease_name: String,
    /// Seconds that the Lease holds. A replica takes over when the leader has not renewed it for so long.
    #[arg(
        long, value_name = "SECONDS", env = env::LEASE_DURATION, default_value_t = 15,
        value_parser = clap::value_parser!(u64).range(1..=600)
    )]
    lease_duration: u64,
    /// What this replica calls itself in the Lease; must differ between replicas and runs. Default: POD_NAME or the
    /// machine's name, and random characters.
    #[arg(long, value_name = "NAME", env = env::IDENTITY)]
    identity: Option<String>,
    /// Delete namespaces so long after their accounts were retired, such as 30d; at least 24h. Not if they hold
    /// running pods or PersistentVolumeClaims. Default: never.
    #[arg(long, value_name = "TIME", env = env::DELETE_RETIRED_AFTER, value_parser = grace)]
    delete_retired_after: Option<Duration>,
    /// Where the pages are served.
    #[arg(long, value_name = "ADDRESS:PORT", env = env::LISTEN, default_value = "0.0.0.0:8080")]
    pub(crate) listen: SocketAddr,
    /// Format of the log on standard error; json: an object on a line.
    #[arg(long, value_enum, env = env::LOG_FORMAT, default_value = "text")]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SourceFormat {
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

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// A grace period.
fn grace(text: &str) -> Result<Duration, String> {
    let grace = humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 30d"))?;
    if grace < SHORTEST_GRACE {
        return Err("at least 24h: what was retired within a day is counted against mass removal".to_owned());
    }
    Ok(grace)
}

impl Arguments {
    /// The source that is named. Needs a runtime.
    pub(crate) fn source(&self) -> anyhow::Result<Accounts> {
        if let Some(address) = &self.from_spur {
            return Accounts::of_controller(address, self.credentials.as_deref());
        }
        let options = ReadOptions::default().format(self.format.map(Into::into)).complete(self.complete);
        Ok(Accounts::Files(Merged::new(self.sources.iter().map(|path| FileSource::new(path, options)))))
    }

    /// How the controller runs. Every call gives another identity, unless one was named.
    pub(crate) fn options(&self) -> ControllerOptions {
        let lease = LeaseSettings::default()
            .namespace(&self.lease_namespace)
            .name(&self.lease_name)
            .duration(Duration::from_secs(self.lease_duration));
        let identity = self.identity.clone().unwrap_or_else(|| match host() {
            Some(host) => format!("{host}_{}", lease.identity),
            None => lease.identity.clone(),
        });
        ControllerOptions::default()
            .lease(Some(lease.identity(identity)))
            .concurrency(self.concurrency.into())
            .adopt(self.adopt)
            .delete_retired_after(self.delete_retired_after)
    }
}

/// The pod or the machine.
fn host() -> Option<String> {
    let pod = std::env::var(env::POD_NAME).ok();
    let host = || read_text(Path::new("/proc/sys/kernel/hostname"), 256).ok();
    pod.or_else(host).map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Arguments, String> {
        let arguments = ["spur-operator"].iter().chain(arguments);
        Arguments::try_parse_from(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_argument_has_a_variable() {
        let command = Arguments::command();
        let without: Vec<_> = command
            .get_arguments()
            .filter(|argument| argument.get_env().is_none())
            .map(clap::Arg::get_id)
            .collect();
        assert_eq!(without, <[&str; 0]>::default());
    }

    #[test]
    fn a_grace_period_has_a_day_at_least() {
        let grace =
            |text| parse(&["a", "--delete-retired-after", text]).map(|parsed| parsed.delete_retired_after);
        assert_eq!(grace("30d"), Ok(Some(Duration::from_hours(30 * 24))));
        assert_eq!(grace("24h"), Ok(Some(Duration::from_hours(24))));
        assert!(grace("23h").unwrap_err().contains("at least 24h"));
        assert!(grace("soon").unwrap_err().contains("write it like 30d"));
        assert!(grace("").is_err());
    }

    #[test]
    fn files_are_named_one_by_one_or_with_colons_between_them() {
        let names = |arguments: &[&str]| parse(arguments).unwrap().sources;
        assert_eq!(names(&["a", "b"]), names(&["a:b"]));
        assert!(parse(&[]).unwrap_err().contains("SOURCE"));
    }

    #[test]
    fn every_run_has_an_identity_of_its_own_that_names_the_machine() {
        let arguments = parse(&["a"]).unwrap();
        let identity = || arguments.options().lease.unwrap().identity;
        assert_ne!(identity(), identity());
        assert!(identity().contains("_spur-"), "{}", identity());
        let named = parse(&["a", "--identity", "me"]).unwrap();
        assert_eq!(named.options().lease.unwrap().identity, "me");
    }
}
