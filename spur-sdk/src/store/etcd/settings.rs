//! Where the cluster is and who we are there.

use std::fmt;
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use zeroize::Zeroizing;

use crate::{Classify, Deadlines, ErrorKind};

/// The most bytes of a key prefix: with it, the largest transaction still fits into etcd's default request size.
pub const MAX_PREFIX_BYTES: usize = 256;

/// After how long without a sign of life a connection is probed. etcd cuts clients off that do it every 5 s.
const KEEP_ALIVE: Duration = Duration::from_secs(6);
/// How long the answer to that may take.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(3);

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdSettingsError {
    /// No endpoint.
    #[error("no endpoint of etcd is given")]
    NoEndpoint,
    /// An endpoint is not the URL of a server.
    #[error("endpoint {0:?}: give it as https://HOST:PORT or http://HOST:PORT")]
    Endpoint(String),
    /// Some of the settings need TLS, some exclude it.
    #[error("endpoint {endpoint:?}: {problem}")]
    Tls {
        /// The endpoint.
        endpoint: String,
        /// What does not fit.
        problem: &'static str,
    },
    /// A certificate or key cannot be read.
    #[error("certificates for etcd: {0}")]
    Certificate(String),
    /// The key prefix cannot be used.
    #[error("key prefix {0:?}: 1 to {MAX_PREFIX_BYTES} bytes without control characters")]
    Prefix(String),
    /// A candidate's name or address cannot be used.
    #[error("candidate {0:?}: a name without control characters, and an address without any")]
    Candidate(String),
}

impl Classify for EtcdSettingsError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

/// Where the cluster is and who we are there.
#[derive(Clone)]
pub struct EtcdSettings {
    pub(super) endpoints: Vec<String>,
    pub(super) prefix: String,
    pub(super) user: Option<(String, Zeroizing<String>)>,
    ca: Option<String>,
    certificate: Option<(String, Zeroizing<String>)>,
    pub(super) deadline: Duration,
    connect: Duration,
}

impl EtcdSettings {
    /// A cluster by the URLs of its members, `https://HOST:PORT` or `http://HOST:PORT`; give all of them. Keys are
    /// below `/spur/`, deadlines are those of [`Deadlines::default`].
    #[must_use]
    pub fn new<S: Into<String>>(endpoints: impl IntoIterator<Item = S>) -> Self {
        let deadlines = Deadlines::default();
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            prefix: "/spur/".to_owned(),
            user: None,
            ca: None,
            certificate: None,
            deadline: deadlines.store,
            connect: deadlines.connect,
        }
    }

    /// Sets what all keys begin with; a `/` at its end is added where it is missing. Stores whose prefixes do not
    /// begin with one another see nothing of each other.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets a user of etcd and its password.
    #[must_use]
    pub fn password(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some((user.into(), Zeroizing::new(password.into())));
        self
    }

    /// Sets the certificates, as PEM, of the authorities that vouch for the servers. `https` needs it.
    #[must_use]
    pub fn ca(mut self, pem: impl Into<String>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// Sets our certificate and its key, as PEM; its common name is the user of etcd.
    #[must_use]
    pub fn certificate(mut self, pem: impl Into<String>, key_pem: impl Into<String>) -> Self {
        self.certificate = Some((pem.into(), Zeroizing::new(key_pem.into())));
        self
    }

    /// Takes the deadlines of a request, `store`, and of opening a connection, `connect`.
    #[must_use]
    pub fn deadlines(mut self, deadlines: &Deadlines) -> Self {
        self.deadline = deadlines.store;
        self.connect = deadlines.connect;
        self
    }

    /// What all keys begin with.
    pub(super) fn whole_prefix(&self) -> Result<String, EtcdSettingsError> {
        let mut prefix = self.prefix.clone();
        // Without it, `/spur` would hold `/spur2/…` too.
        if !prefix.ends_with('/') {
            prefix.push('/');
        }
        let usable = !self.prefix.is_empty()
            && prefix.len() <= MAX_PREFIX_BYTES
            && !prefix.chars().any(char::is_control);
        if usable { Ok(prefix) } else { Err(EtcdSettingsError::Prefix(self.prefix.clone())) }
    }

    pub(super) fn check(&self) -> Result<(), EtcdSettingsError> {
        if self.endpoints.is_empty() {
            return Err(EtcdSettingsError::NoEndpoint);
        }
        self.endpoints.iter().try_for_each(|endpoint| self.check_endpoint(endpoint))
    }

    fn check_endpoint(&self, endpoint: &str) -> Result<(), EtcdSettingsError> {
        let tls = |problem| Err(EtcdSettingsError::Tls { endpoint: endpoint.to_owned(), problem });
        let unusable = || EtcdSettingsError::Endpoint(endpoint.to_owned());
        let (scheme, server) = endpoint.split_once("://").ok_or_else(unusable)?;
        let server = server.strip_suffix('/').unwrap_or(server);
        let port = server.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() || server.contains(['/', '@', '?', '#']) {
            return Err(unusable());
        }
        match scheme {
            "https" if self.ca.is_none() => tls("https needs the certificates of an authority"),
            "http" if self.ca.is_some() || self.certificate.is_some() => tls("certificates need https"),
            "http" | "https" => Ok(()),
            _ => Err(unusable()),
        }
    }

    /// Options of a connection; the user is added when it is used.
    pub(super) fn connect_options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.connect)
            .with_keep_alive(KEEP_ALIVE, KEEP_ALIVE_ANSWER)
            // etcd cuts clients off that probe without a request under way.
            .with_keep_alive_while_idle(false)
            .with_tcp_keepalive(KEEP_ALIVE)
            // A member that has lost the others says so at once.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(ca) = &self.ca {
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
            if let Some((certificate, key)) = &self.certificate {
                tls = tls.identity(Identity::from_pem(certificate, key.as_bytes()));
            }
            options = options.with_tls(tls);
        }
        options
    }
}

impl fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdSettings")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(user, _)| user))
            .field("ca", &self.ca.is_some())
            .field("certificate", &self.certificate.is_some())
            .field("deadline", &self.deadline)
            .field("connect", &self.connect)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(settings: &EtcdSettings) -> String {
        settings.check().map_or_else(|error| error.to_string(), |()| "none".to_owned())
    }

    #[test]
    fn secrets_are_not_shown() {
        let settings =
            EtcdSettings::new(["https://a:1"]).password("spur", "hunter2").certificate("CRT", "KEY");
        let text = format!("{settings:?}");
        assert!(!text.contains("hunter2") && !text.contains("KEY"), "{text}");
    }

    #[test]
    fn endpoints_are_urls_of_servers() {
        assert_eq!(problem(&EtcdSettings::new(["http://10.0.0.1:2379", "http://[::1]:2379/"])), "none");
        for wrong in
            ["10.0.0.1:2379", "ftp://a:1", "http://a", "http://u:p@a:1", "http://a:1/path", "http://a:x"]
        {
            assert!(problem(&EtcdSettings::new([wrong])).contains("HOST:PORT"), "{wrong}");
        }
        assert!(problem(&EtcdSettings::new(Vec::<String>::new())).contains("no endpoint"));
    }

    #[test]
    fn tls_is_whole_or_absent() {
        assert!(problem(&EtcdSettings::new(["https://a:1"])).contains("authority"));
        assert!(problem(&EtcdSettings::new(["http://a:1"]).ca("CA")).contains("https"));
        assert_eq!(problem(&EtcdSettings::new(["https://a:1"]).ca("CA")), "none");
    }

    #[test]
    fn a_prefix_ends_like_a_folder() {
        let prefix = |text: &str| EtcdSettings::new(["http://a:1"]).prefix(text).whole_prefix();
        assert_eq!(prefix("/spur").ok().as_deref(), Some("/spur/"));
        assert_eq!(prefix("site/").ok().as_deref(), Some("site/"));
        assert!(prefix("").is_err() && prefix("a\nb").is_err() && prefix(&"a".repeat(256)).is_err());
    }
}
