//! The configuration file.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use ipnetwork::Ipv4Network;
use serde::Deserialize;
use spur_sdk::NodeName;
use spur_sdk::identity::SiteName;

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The configuration of a controller. A change needs a restart.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The name of the site, in all its certificates: a DNS label such as `site1`. Never changed.
    pub(crate) site: SiteName,
    #[serde(default)]
    pub(crate) controller: Controller,
    #[serde(default)]
    pub(crate) store: StoreConfig,
    #[serde(default)]
    pub(crate) limits: Limits,
    /// Without it no kubeconfigs are given.
    pub(crate) kubernetes: Option<Kubernetes>,
    #[serde(default)]
    pub(crate) cluster: Cluster,
    #[serde(default)]
    pub(crate) network: Network,
}

/// Where this controller is, and what it keeps.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Controller {
    /// Its name, a DNS name that differs between controllers. Default: the host name.
    pub(crate) name: Option<NodeName>,
    /// Where clients with certificates connect.
    pub(crate) listen: String,
    /// Where the other controllers and clients reach it, `HOST:PORT`. Default: the name, and the port of `listen`.
    pub(crate) advertise: Option<String>,
    /// Where users of this machine connect.
    pub(crate) socket: PathBuf,
    /// Where everything is kept. Only root may look into it.
    pub(crate) state: PathBuf,
    /// The system's group whose members are admins, beside root.
    pub(crate) admin_group: Option<String>,
}

impl Default for Controller {
    fn default() -> Self {
        Self {
            name: None,
            listen: "0.0.0.0:6817".to_owned(),
            advertise: None,
            socket: "/run/spur/spurctld.sock".into(),
            state: "/var/lib/spur".into(),
            admin_group: None,
        }
    }
}

/// Where what is known is kept: a file, or an etcd cluster for several controllers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "lowercase")]
pub(crate) enum StoreConfig {
    /// `STATE/store.db`; one controller.
    #[default]
    File,
    /// An etcd cluster; several controllers, of which one leads.
    Etcd(Etcd),
}

/// An etcd cluster.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Etcd {
    /// The URLs of all members.
    pub(crate) endpoints: Vec<String>,
    /// What all keys begin with.
    #[serde(default = "prefix")]
    pub(crate) prefix: String,
    pub(crate) user: Option<String>,
    /// A file with the user's password, of mode 0600.
    pub(crate) password_file: Option<PathBuf>,
    /// Certificates of the authorities that vouch for the members, PEM.
    pub(crate) ca: Option<PathBuf>,
    /// Our certificate, PEM.
    pub(crate) certificate: Option<PathBuf>,
    /// Its key, PEM, of mode 0600.
    pub(crate) key: Option<PathBuf>,
    /// How long a leader that is not heard of leads on, such as "10s".
    #[serde(default = "ttl", deserialize_with = "duration")]
    pub(crate) ttl: Duration,
}

/// How much one caller may ask.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Calls in a second.
    pub(crate) calls_per_second: u32,
    /// Calls at once.
    pub(crate) calls_at_once: u32,
    /// Connections of clients without a certificate.
    pub(crate) anonymous_connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { calls_per_second: 200, calls_at_once: 64, anonymous_connections: 64 }
    }
}

/// The cluster that kubeconfigs are for.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kubernetes {
    /// With what this controller asks the cluster; docs/guides/kubeconfig.md has the rights that it needs.
    pub(crate) kubeconfig: PathBuf,
    /// One of its contexts; default: the current one.
    pub(crate) context: Option<String>,
    /// What users' kubeconfigs call the cluster. Default: the site's name.
    pub(crate) name: Option<String>,
    /// Where users reach it. Default: as in `kubeconfig`.
    pub(crate) server: Option<String>,
    /// The name in the server's certificate, where it is not that of the address.
    pub(crate) tls_server_name: Option<String>,
    /// The policy file that the accounts are projected with.
    pub(crate) policy: Option<PathBuf>,
    /// How long a token holds, such as "1h".
    #[serde(default = "hour", deserialize_with = "duration")]
    pub(crate) token_lifetime: Duration,
    /// How long a token may hold at most.
    #[serde(default = "twelve_hours", deserialize_with = "duration")]
    pub(crate) max_token_lifetime: Duration,
}

/// SPUR's keys of a cluster, as far as they are looked at.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Cluster {
    /// Addresses of pods.
    pub(crate) pod_cidr: Ipv4Network,
    /// Addresses of services.
    pub(crate) service_cidr: Ipv4Network,
}

impl Default for Cluster {
    fn default() -> Self {
        Self { pod_cidr: network([10, 42, 0, 0]), service_cidr: network([10, 43, 0, 0]) }
    }
}

/// SPUR's keys of the mesh, as far as they are looked at.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Network {
    /// Addresses of nodes in the mesh.
    pub(crate) wg_cidr: Ipv4Network,
}

impl Default for Network {
    fn default() -> Self {
        Self { wg_cidr: network([10, 44, 0, 0]) }
    }
}

fn network(address: [u8; 4]) -> Ipv4Network {
    Ipv4Network::new_checked(Ipv4Addr::from(address), 16)
        .unwrap_or_else(|| Ipv4Network::from(Ipv4Addr::UNSPECIFIED))
}

fn prefix() -> String {
    "/spur/".to_owned()
}

fn ttl() -> Duration {
    Duration::from_secs(10)
}

fn hour() -> Duration {
    Duration::from_hours(1)
}

fn twelve_hours() -> Duration {
    Duration::from_hours(12)
}

fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map_err(|error| {
        serde::de::Error::custom(format!("{text:?} is no duration such as \"30m\": {error}"))
    })
}

impl Config {
    /// Reads a file, or says what is wrong with it: the line, and what may be meant.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = spur_sdk::fs::read_text(path, MAX_FILE)?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, name: &str) -> anyhow::Result<Self> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            let message = error.message();
            anyhow::anyhow!("{name}:{line}: {message}{}", suggestion(message))
        })?;
        config.check(text, name)?;
        Ok(config)
    }

    fn check(&self, text: &str, name: &str) -> anyhow::Result<()> {
        let place = |key: &str| format!("{name}:{}: {key}", line_of_key(text, key));
        let networks = [
            ("pod_cidr", self.cluster.pod_cidr),
            ("service_cidr", self.cluster.service_cidr),
            ("wg_cidr", self.network.wg_cidr),
        ];
        for (at, (key, network)) in networks.iter().enumerate() {
            if network.network() != network.ip() {
                bail!(
                    "{}: {network} has host bits: write {}/{}",
                    place(key),
                    network.network(),
                    network.prefix()
                );
            }
            for (other, earlier) in networks.iter().take(at) {
                if network.overlaps(*earlier) {
                    bail!("{}: {network} overlaps {other} = {earlier}: choose another", place(key));
                }
            }
        }
        let address = |key: &str, value: &str| match value.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
            _ => bail!("{}: {value:?} is no address such as 0.0.0.0:6817", place(key)),
        };
        address("listen", &self.controller.listen)?;
        if let Some(advertise) = &self.controller.advertise {
            address("advertise", advertise)?;
        }
        if !self.controller.state.is_absolute() || !self.controller.socket.is_absolute() {
            bail!("{}: state and socket are absolute paths", place("state"));
        }
        if self.limits.calls_per_second == 0 || self.limits.calls_at_once == 0 {
            bail!("{}: 0 would let nobody in", place("calls_per_second"));
        }
        if let StoreConfig::Etcd(etcd) = &self.store {
            if etcd.endpoints.is_empty() {
                bail!("{}: name the members, such as [\"https://etcd1:2379\"]", place("endpoints"));
            }
            if etcd.user.is_some() != etcd.password_file.is_some() {
                bail!("{}: user and password_file belong together", place("user"));
            }
            if etcd.certificate.is_some() != etcd.key.is_some() {
                bail!("{}: certificate and key belong together", place("certificate"));
            }
        }
        Ok(())
    }

    /// The controller's name.
    pub(crate) fn name(&self) -> anyhow::Result<NodeName> {
        if let Some(name) = &self.controller.name {
            return Ok(name.clone());
        }
        let host = nix::unistd::gethostname().context("ask for the host name")?;
        let host = host.to_string_lossy().to_lowercase();
        host.parse()
            .with_context(|| format!("the host name {host:?} cannot name a controller: set controller.name"))
    }

    /// Where the controller is reached.
    pub(crate) fn advertised(&self) -> anyhow::Result<String> {
        if let Some(address) = &self.controller.advertise {
            return Ok(address.clone());
        }
        let port = self.controller.listen.rsplit_once(':').map_or("6817", |(_, port)| port);
        Ok(format!("{}:{port}", self.name()?))
    }

    pub(crate) fn in_state(&self, file: &str) -> PathBuf {
        self.controller.state.join(file)
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.get(..at).map_or(1, |before| before.matches('\n').count() + 1)
}

/// The line of a key; the first where it is not written.
fn line_of_key(text: &str, key: &str) -> usize {
    let is = |line: &str| line.split('=').next().is_some_and(|left| left.trim() == key);
    text.lines().position(is).map_or(1, |line| line + 1)
}

/// What a key that is not known may be meant to be: the error lists the known ones in backquotes.
fn suggestion(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let Some(wrong) = quoted.next().filter(|_| message.starts_with("unknown field")) else {
        return String::new();
    };
    let close =
        quoted.max_by(|a, b| strsim::jaro_winkler(a, wrong).total_cmp(&strsim::jaro_winkler(b, wrong)));
    match close {
        Some(close) if strsim::jaro_winkler(close, wrong) > 0.75 => format!("; did you mean `{close}`?"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text, "spurctld.toml").unwrap_err().to_string()
    }

    #[test]
    fn the_smallest_file_names_the_site() {
        let config = Config::parse("site = \"lab\"\n", "spurctld.toml").unwrap();
        assert_eq!(config.controller.listen, "0.0.0.0:6817");
        assert_eq!(config.cluster.pod_cidr.to_string(), "10.42.0.0/16");
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_what_may_be_meant() {
        let error = error("site = \"lab\"\n[controller]\nlsiten = \"0.0.0.0:1\"\n");
        assert!(error.starts_with("spurctld.toml:3: unknown field `lsiten`"), "{error}");
        assert!(error.ends_with("did you mean `listen`?"), "{error}");
    }

    #[test]
    fn a_wrong_type_is_named_with_its_line() {
        let error = error("site = \"lab\"\n[limits]\ncalls_at_once = \"many\"\n");
        assert!(error.starts_with("spurctld.toml:3: invalid type: string \"many\""), "{error}");
    }

    #[test]
    fn overlapping_addresses_are_refused_before_anything_starts() {
        let error = error("site = \"lab\"\n[cluster]\npod_cidr = \"10.43.128.0/17\"\n");
        assert_eq!(
            error,
            "spurctld.toml:1: service_cidr: 10.43.0.0/16 overlaps pod_cidr = 10.43.128.0/17: choose another"
        );
    }

    #[test]
    fn what_belongs_together_is_asked_for() {
        let etcd = "site = \"lab\"\n[store]\nkind = \"etcd\"\nendpoints = [\"http://127.0.0.1:2379\"]\nuser = \"spur\"\n";
        assert_eq!(error(etcd), "spurctld.toml:5: user: user and password_file belong together");
    }
}
