//! Where the control plane is and with what it is reached.

use std::future::Future;

use spur_sdk::{Classify, ErrorKind};

use super::SessionApi;

/// How users reach the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// `https://HOST:PORT`.
    pub server: String,
    /// Certificates of the authorities that the server's certificate is verified by, PEM. `None`: those that the
    /// user's machine trusts.
    pub authorities: Option<String>,
    /// The name in the server's certificate, where it is not that of the address.
    pub tls_server_name: Option<String>,
}

impl Endpoint {
    /// An address whose certificate the user's machine trusts.
    #[must_use]
    pub fn new(server: impl Into<String>) -> Self {
        Self { server: server.into(), authorities: None, tls_server_name: None }
    }

    /// Sets the authorities, PEM.
    #[must_use]
    pub fn authorities(mut self, pem: Option<String>) -> Self {
        self.authorities = pem;
        self
    }

    /// Sets the name in the server's certificate.
    #[must_use]
    pub fn tls_server_name(mut self, name: Option<String>) -> Self {
        self.tls_server_name = name;
        self
    }
}

/// The control plane cannot be reached with what there is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// There is no control plane yet, or its credentials are not there yet.
    #[error("there is no control plane: {0}")]
    Absent(String),
    /// The credentials cannot be used.
    #[error("use the control plane's credentials from {from}")]
    Credentials {
        /// Where they came from.
        from: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Classify for AccessError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Absent(_) => ErrorKind::Unavailable,
            Self::Credentials { .. } => ErrorKind::Internal,
        }
    }
}

/// The control plane as this side reaches it: a kubeconfig, or the cluster that the host owns. Both answers are asked
/// for anew each time, so that another address or newer credentials count at once; they should be quick.
pub trait ControlPlaneAccess: Send + Sync {
    /// The sessions there.
    type Api: SessionApi;

    /// How users reach the API server, unless policy says otherwise.
    fn endpoint(&self) -> impl Future<Output = Result<Endpoint, AccessError>> + Send;

    /// The sessions there, by credentials with the rights of [`super`].
    fn sessions(&self) -> impl Future<Output = Result<Self::Api, AccessError>> + Send;
}
