//! What a site decides about kubeconfigs.

use std::time::Duration;

use spur_sdk::is_dns_label;

use super::PolicyError;

/// The shortest lifetime that Kubernetes gives a token: 10 min
/// ([validation](https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/authentication/validation/validation.go)).
pub const SHORTEST_LIFETIME: Duration = Duration::from_mins(10);

/// What a site decides about kubeconfigs. [`Minter::new`](super::Minter::new) checks it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KubeconfigPolicy {
    /// What users call the cluster: the name of the entry, and what contexts begin with. A DNS-1123 label.
    pub cluster: String,
    /// Prefix of our labels and annotations, that of [`Policy`](crate::Policy). Default: `spur.amd.com`.
    pub prefix: String,
    /// The address for users, `https://HOST[:PORT]`. Default: that of the control plane's own access.
    pub server: Option<String>,
    /// The name in the server's certificate. Default: that of the control plane's own access, or of the address.
    pub tls_server_name: Option<String>,
    /// How long a token is valid where nothing is asked for. Default: 1 h.
    pub default_lifetime: Duration,
    /// The longest that may be asked for. Default: 12 h.
    pub max_lifetime: Duration,
    /// How long a session may be used for further tokens. Default: 12 h.
    pub session_lifetime: Duration,
    /// How old a view of the associations may be. Default: 1 min.
    pub max_staleness: Duration,
    /// How long the user's ServiceAccount is waited for. Default: 10 s.
    pub account_wait: Duration,
    /// Sessions that a user may have; [`Minter::sweep`](super::Minter::sweep) ends the oldest beyond. Default: 1000.
    pub sessions_per_user: usize,
    /// Sessions that are deleted at a time. Default: 16.
    pub concurrency: usize,
}

impl KubeconfigPolicy {
    /// The defaults for a cluster of this name.
    #[must_use]
    pub fn new(cluster: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            prefix: crate::Policy::default().prefix,
            server: None,
            tls_server_name: None,
            default_lifetime: Duration::from_hours(1),
            max_lifetime: Duration::from_hours(12),
            session_lifetime: Duration::from_hours(12),
            max_staleness: Duration::from_mins(1),
            account_wait: Duration::from_secs(10),
            sessions_per_user: 1000,
            concurrency: 16,
        }
    }

    /// Sets the prefix of labels and annotations, without the slash.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the address for users.
    #[must_use]
    pub fn server(mut self, server: Option<String>) -> Self {
        self.server = server;
        self
    }

    /// Sets the name in the server's certificate.
    #[must_use]
    pub fn tls_server_name(mut self, name: Option<String>) -> Self {
        self.tls_server_name = name;
        self
    }

    /// Sets how long a token is valid where nothing is asked for.
    #[must_use]
    pub fn default_lifetime(mut self, value: Duration) -> Self {
        self.default_lifetime = value;
        self
    }

    /// Sets the longest lifetime that may be asked for.
    #[must_use]
    pub fn max_lifetime(mut self, value: Duration) -> Self {
        self.max_lifetime = value;
        self
    }

    /// Sets how long a session may be used for further tokens.
    #[must_use]
    pub fn session_lifetime(mut self, value: Duration) -> Self {
        self.session_lifetime = value;
        self
    }

    /// Sets how old a view of the associations may be.
    #[must_use]
    pub fn max_staleness(mut self, value: Duration) -> Self {
        self.max_staleness = value;
        self
    }

    /// Sets how long the user's ServiceAccount is waited for.
    #[must_use]
    pub fn account_wait(mut self, value: Duration) -> Self {
        self.account_wait = value;
        self
    }

    /// Sets how many sessions a user may have.
    #[must_use]
    pub fn sessions_per_user(mut self, value: usize) -> Self {
        self.sessions_per_user = value;
        self
    }

    /// Sets how many sessions are deleted at a time.
    #[must_use]
    pub fn concurrency(mut self, value: usize) -> Self {
        self.concurrency = value;
        self
    }

    /// A key under our prefix, such as `spur.amd.com/session`.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// Whether it can be carried out.
    ///
    /// # Errors
    /// It names the field.
    pub fn check(&self) -> Result<(), PolicyError> {
        if !is_dns_label(&self.cluster) {
            return Err(PolicyError::Cluster(self.cluster.clone()));
        }
        if let Some(server) = self.server.as_ref().filter(|server| !is_address(server)) {
            return Err(PolicyError::Server(server.clone()));
        }
        for (field, value) in [
            ("default_lifetime", self.default_lifetime),
            ("max_lifetime", self.max_lifetime),
            ("session_lifetime", self.session_lifetime),
        ] {
            if value < SHORTEST_LIFETIME {
                return Err(PolicyError::TooShort { field, value });
            }
        }
        if self.default_lifetime > self.max_lifetime {
            return Err(PolicyError::DefaultAboveMax);
        }
        Ok(())
    }
}

/// `https://HOST[:PORT][/PATH]`.
fn is_address(server: &str) -> bool {
    let legal = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '@' | '?' | '#');
    server
        .strip_prefix("https://")
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', ':']) && rest.chars().all(legal))
}
