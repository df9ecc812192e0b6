//! [`ControlPlaneAccess`] by a kubeconfig, or by what a host has made of one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use spur_sdk::Deadlines;
use spur_sdk::fs::{Fingerprint, fingerprint};
use tokio::time::Instant;

use super::KubeSessions;
use crate::kubeconfig::{AccessError, ControlPlaneAccess, Endpoint};

/// How often a file is looked at.
const LOOK: Duration = Duration::from_secs(1);

type Source = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Clone)]
struct Open {
    endpoint: Endpoint,
    sessions: KubeSessions,
}

#[derive(Debug)]
struct Seen {
    open: Open,
    state: Fingerprint,
    looked: Instant,
}

#[derive(Debug, Clone)]
enum From {
    Config(Box<Open>),
    File { path: PathBuf, context: Option<String>, seen: Arc<Mutex<Option<Seen>>> },
}

/// A control plane by a kubeconfig file, which is read anew when it changes, or by a configuration that the host has
/// made. The address and the authorities in it are what users get, unless policy says otherwise.
#[derive(Debug, Clone)]
pub struct KubeAccess {
    from: From,
    deadlines: Deadlines,
}

impl KubeAccess {
    /// By a file, and one of its contexts: the current one where none is named.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>, context: Option<String>, deadlines: Deadlines) -> Self {
        Self { from: From::File { path: path.into(), context, seen: Arc::default() }, deadlines }
    }

    /// By a configuration, such as `Config::infer` finds.
    ///
    /// # Errors
    /// No client can be made of it.
    pub fn config(config: Config, deadlines: Deadlines) -> Result<Self, AccessError> {
        let open = open(config, &deadlines).map_err(|source| AccessError::Credentials {
            from: "the given configuration".to_owned(),
            source,
        })?;
        Ok(Self { from: From::Config(Box::new(open)), deadlines })
    }

    async fn open(&self) -> Result<Open, AccessError> {
        let (path, context, seen) = match &self.from {
            From::Config(open) => return Ok(Open::clone(open)),
            From::File { path, context, seen } => (path, context, seen),
        };
        let looked = Instant::now();
        if let Some(seen) = &*seen.lock().unwrap_or_else(PoisonError::into_inner)
            && looked.saturating_duration_since(seen.looked) < LOOK
        {
            return Ok(seen.open.clone());
        }
        let looked_at = path.clone();
        let state = blocking(move || Ok(fingerprint(&looked_at)), path).await?;
        if let Some(seen) = &mut *seen.lock().unwrap_or_else(PoisonError::into_inner)
            && seen.state == state
        {
            seen.looked = looked;
            return Ok(seen.open.clone());
        }
        let read = path.clone();
        let kubeconfig = blocking(move || Ok(Kubeconfig::read_from(read)?), path).await?;
        let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
        // It is large, and rarely run; whoever asks for a token should not carry it along.
        let config = Box::pin(Config::from_custom_kubeconfig(kubeconfig, &options)).await;
        let opened = config.map_err(Source::from).and_then(|config| open(config, &self.deadlines));
        let open = opened.map_err(|source| credentials(path, source))?;
        *seen.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Seen { open: open.clone(), state, looked });
        Ok(open)
    }
}

fn credentials(path: &Path, source: Source) -> AccessError {
    AccessError::Credentials { from: path.display().to_string(), source }
}

/// What may wait for a file server.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Source> + Send + 'static,
    path: &Path,
) -> Result<T, AccessError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|source| credentials(path, source)),
        Err(error) => Err(credentials(path, error.into())),
    }
}

fn open(config: Config, deadlines: &Deadlines) -> Result<Open, Source> {
    let authorities = match (&config.root_cert_file, &config.root_cert) {
        (Some(path), _) => Some(spur_sdk::fs::read_text(path, 1 << 20)?),
        (None, Some(certificates)) => Some(certificates.iter().map(|der| pem(der)).collect()),
        (None, None) => None,
    };
    let server = config.cluster_url.to_string();
    let endpoint = Endpoint::new(server.trim_end_matches('/'))
        .authorities(authorities)
        .tls_server_name(config.tls_server_name.clone());
    let sessions = KubeSessions::new(Client::try_from(config)?, deadlines);
    Ok(Open { endpoint, sessions })
}

/// RFC 7468: 64 characters a line.
fn pem(der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in body.as_bytes().chunks(64) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

impl ControlPlaneAccess for KubeAccess {
    type Api = KubeSessions;

    async fn endpoint(&self) -> Result<Endpoint, AccessError> {
        Ok(self.open().await?.endpoint)
    }

    async fn sessions(&self) -> Result<KubeSessions, AccessError> {
        Ok(self.open().await?.sessions)
    }
}
