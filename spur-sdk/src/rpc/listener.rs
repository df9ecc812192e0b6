//! Where a server takes connections.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::tls::{self, TlsError};
use crate::identity::Credentials;
use crate::{Classify, ErrorKind};

/// A server cannot take connections.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address or the path cannot be had.
    #[error("listen on {address}")]
    Bind {
        /// The address or the path.
        address: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Another process listens on the socket.
    #[error("{0} is in use: another controller runs on this machine")]
    InUse(PathBuf),
    /// The credentials cannot be used.
    #[error("set up TLS on {address}")]
    Tls {
        /// The address.
        address: String,
        /// Why not.
        #[source]
        source: TlsError,
    },
}

impl Classify for ListenError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Bind { .. } => ErrorKind::Internal,
            Self::InUse(_) => ErrorKind::Conflict,
            Self::Tls { .. } => ErrorKind::Invalid,
        }
    }
}

#[derive(Debug)]
pub(super) enum Kind {
    Socket(UnixListener, PathBuf),
    Tls(TcpListener, TlsHandle),
}

/// Where a server takes connections.
#[derive(Debug)]
pub struct Listener(pub(super) Kind);

/// The credentials that a listener shows; they can be replaced while it runs. Clones are the same listener's.
#[derive(Debug, Clone)]
pub struct TlsHandle(Arc<RwLock<Arc<ServerConfig>>>);

impl TlsHandle {
    /// Shows other credentials from the next connection on.
    ///
    /// # Errors
    /// [`TlsError`] when they cannot be used; the old ones stay.
    pub fn replace(&self, credentials: &Credentials) -> Result<(), TlsError> {
        let config = Arc::new(tls::server(credentials)?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn remove_socket(path: &Path) -> std::io::Result<()> {
    std::fs::remove_file(path)
}

impl Listener {
    /// A Unix socket that everybody on the machine may connect to: the kernel says who does. A socket that nobody
    /// listens on any more is replaced. The folder must exist.
    ///
    /// # Cancellation
    /// Nothing is left behind but perhaps the removal of such a socket.
    pub async fn socket(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Bind { address: path.display().to_string(), source };
        match UnixStream::connect(path).await {
            Ok(_) => return Err(ListenError::InUse(path.to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                remove_socket(path).map_err(failed)?;
            }
            // There is none; what else may be wrong shows when it is made.
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
        Ok(Self(Kind::Socket(listener, path.to_owned())))
    }

    /// TLS with the site's certificates on an address.
    ///
    /// # Cancellation
    /// Nothing is left behind.
    pub async fn tls(address: &str, credentials: &Credentials) -> Result<(Self, TlsHandle), ListenError> {
        let config = tls::server(credentials)
            .map_err(|source| ListenError::Tls { address: address.to_owned(), source })?;
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| ListenError::Bind { address: address.to_owned(), source })?;
        let handle = TlsHandle(Arc::new(RwLock::new(Arc::new(config))));
        Ok((Self(Kind::Tls(listener, handle.clone())), handle))
    }

    /// The address of a TLS listener, with the port that the system chose where 0 was asked for.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Tls(listener, _) => listener.local_addr().ok(),
            Kind::Socket(..) => None,
        }
    }
}
