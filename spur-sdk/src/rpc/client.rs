//! Asking a controller or an agent.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use prost::Message;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

use super::codec::BytesCodec;
use super::tls::{self, TlsError};
use super::{Code, Refusal, Rpc};
use crate::identity::Credentials;
use crate::{Classify, Deadlines, ErrorKind};

/// Who is asked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Target {
    /// The controller on this machine; who asks is told by the kernel.
    Socket(PathBuf),
    /// A controller over mutual TLS, `HOST:PORT`, with a certificate of the site.
    Tls(String, Arc<Credentials>),
    /// A controller over TLS, `HOST:PORT`, by one that has no certificate yet and knows the SHA-256 of the
    /// authority's, in hexadecimal digits.
    Enrolling(String, String),
    /// A SPUR controller without TLS, `HOST:PORT`. Nobody is verified.
    Plain(String),
}

/// `unix:/run/spur/spurctld.sock`, or `head1:6817`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::Tls(address, _) | Self::Enrolling(address, _) | Self::Plain(address) => {
                f.write_str(address)
            }
        }
    }
}

/// SPUR's port of a controller.
const PORT: u16 = 6817;

/// An address with SPUR's port, 6817, where it names none. IPv6 addresses with a port stand in brackets.
#[must_use]
pub fn with_port(address: &str) -> String {
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
        (!host.contains(':') || host.ends_with(']')) && port.parse::<u16>().is_ok()
    });
    match (has_port, address.contains(':') && !address.ends_with(']')) {
        (true, _) => address.to_owned(),
        (false, true) => format!("[{address}]:{PORT}"),
        (false, false) => format!("{address}:{PORT}"),
    }
}

/// How a client asks.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// How long connecting and a call may take.
    pub deadlines: Deadlines,
    /// The largest answer that is taken, in bytes. Default: 64 MiB.
    pub max_answer: usize,
    /// What is sent as `authorization: Bearer`, for SPUR's own controllers.
    bearer: Option<zeroize::Zeroizing<String>>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { deadlines: Deadlines::default(), max_answer: 64 << 20, bearer: None }
    }
}

impl ClientOptions {
    /// Sets the deadlines.
    #[must_use]
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// Sends a token with each call, as SPUR's own controllers want it.
    #[must_use]
    pub fn bearer(mut self, token: String) -> Self {
        self.bearer = Some(token.into());
        self
    }
}

/// A call was not answered, or refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The other side refused; its words.
    #[error(transparent)]
    Refused(Refusal),
    /// No connection.
    #[error("connect to {target}: {reason}")]
    Connect {
        /// Who was asked.
        target: String,
        /// Why not.
        reason: String,
    },
    /// No answer in time. Whether the call was carried out is unknown.
    #[error("{target} did not answer within {after:?}")]
    Timeout {
        /// Who was asked.
        target: String,
        /// The deadline.
        after: Duration,
    },
    /// The answer cannot be read.
    #[error("{target} answered something that cannot be read: {reason}")]
    Answer {
        /// Who was asked.
        target: String,
        /// Why.
        reason: String,
    },
    /// The client's own certificate or key cannot be used.
    #[error("set up TLS")]
    Tls(#[source] TlsError),
}

impl CallError {
    /// How the other side refused, if it did.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl Classify for CallError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(refusal) => refusal.kind(),
            Self::Connect { .. } => ErrorKind::Unavailable,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Answer { .. } => ErrorKind::Internal,
            Self::Tls(_) => ErrorKind::Invalid,
        }
    }

    fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_retryable(),
            Self::Connect { .. } | Self::Timeout { .. } => true,
            Self::Answer { .. } | Self::Tls(_) => false,
        }
    }
}

/// A client of one controller or agent. Connects when it is first used, and again whenever the connection is lost.
/// Clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    target: String,
    channel: Channel,
    options: ClientOptions,
}

trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for S {}

#[derive(Clone)]
enum Way {
    Socket(PathBuf),
    Tls(String, TlsConnector),
    Plain(String),
}

impl Client {
    /// A client of `target`. Needs a tokio runtime; nothing is sent yet.
    ///
    /// # Errors
    /// [`CallError::Tls`] when the credentials cannot be used.
    pub fn new(target: &Target, options: ClientOptions) -> Result<Self, CallError> {
        let connector = |config| TlsConnector::from(Arc::new(config));
        let way = match target {
            Target::Socket(path) => Way::Socket(path.clone()),
            Target::Tls(address, credentials) => {
                let config = tls::client(credentials).map_err(CallError::Tls)?;
                Way::Tls(address.clone(), connector(config))
            }
            Target::Enrolling(address, hash) => {
                let config = tls::enrolling(hash).map_err(CallError::Tls)?;
                Way::Tls(address.clone(), connector(config))
            }
            Target::Plain(address) => Way::Plain(address.clone()),
        };
        let connect = tower::service_fn(move |_| connect(way.clone()));
        // What a connection is for is in `way`; the name is only what HTTP wants to see.
        let channel = Endpoint::from_static("http://spur")
            .connect_timeout(options.deadlines.connect)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10))
            .connect_with_connector_lazy(connect);
        Ok(Self { target: target.to_string(), channel, options })
    }

    /// Whom this client asks.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Asks, with the usual deadline.
    ///
    /// # Cancellation
    /// Whether the call was carried out is unknown.
    pub async fn call<R: Rpc>(&self, request: &R::Request) -> Result<R::Response, CallError> {
        self.call_within::<R>(request, self.options.deadlines.rpc_unary).await
    }

    /// Asks, with a deadline of its own.
    ///
    /// # Cancellation
    /// Whether the call was carried out is unknown.
    pub async fn call_within<R: Rpc>(
        &self,
        request: &R::Request,
        deadline: Duration,
    ) -> Result<R::Response, CallError> {
        let path = format!("/{}", R::PATH);
        let answer = self.bytes(&path, Bytes::from(request.encode_to_vec()), deadline, None).await?;
        R::Response::decode(answer)
            .map_err(|error| CallError::Answer { target: self.target.clone(), reason: error.to_string() })
    }

    /// Asks by a call's path and in bytes, for one that hands calls on or has no types for them.
    ///
    /// # Cancellation
    /// Whether the call was carried out is unknown.
    pub async fn call_path(
        &self,
        path: &str,
        message: Vec<u8>,
        deadline: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let answer = self.bytes(&format!("/{path}"), message.into(), deadline, None).await?;
        Ok(answer.into())
    }

    /// Asks in bytes; `caller` is on whose behalf.
    pub(super) async fn bytes(
        &self,
        path: &str,
        message: Bytes,
        deadline: Duration,
        caller: Option<&str>,
    ) -> Result<Bytes, CallError> {
        let asked = self.unary(path, message, deadline, caller);
        match tokio::time::timeout(deadline, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Timeout { target: self.target.clone(), after: deadline }),
        }
    }

    async fn unary(
        &self,
        path: &str,
        message: Bytes,
        deadline: Duration,
        caller: Option<&str>,
    ) -> Result<Bytes, CallError> {
        let refused = |reason: String| CallError::Connect { target: self.target.clone(), reason };
        let mut grpc =
            tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(self.options.max_answer);
        grpc.ready().await.map_err(|error| refused(crate::error_chain(&error)))?;
        let mut request = tonic::Request::new(message);
        request.set_timeout(deadline);
        let metadata = request.metadata_mut();
        if let Some(token) = &self.options.bearer {
            let value = format!("Bearer {}", token.as_str()).parse();
            let mut value: tonic::metadata::MetadataValue<_> =
                value.map_err(|_| refused("the token cannot stand in a header".to_owned()))?;
            value.set_sensitive(true);
            metadata.insert("authorization", value);
        }
        if let Some(caller) = caller.and_then(|caller| caller.parse().ok()) {
            metadata.insert(super::server::CALLER, caller);
        }
        let path = PathAndQuery::try_from(path).map_err(|error| refused(error.to_string()))?;
        match grpc.unary(request, path, BytesCodec).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => Err(self.failed(&status, deadline)),
        }
    }

    fn failed(&self, status: &tonic::Status, deadline: Duration) -> CallError {
        let refusal = Refusal::from_status(status);
        // What never reached the other side has an error of the transport as its source.
        match std::error::Error::source(status) {
            // The client's own clock, which runs beside ours.
            Some(_) if refusal.code == Code::Cancelled => {
                CallError::Timeout { target: self.target.clone(), after: deadline }
            }
            Some(source) if refusal.code == Code::Unavailable || refusal.code == Code::Unknown => {
                CallError::Connect { target: self.target.clone(), reason: crate::error_chain(source) }
            }
            _ => CallError::Refused(refusal),
        }
    }
}

async fn connect(way: Way) -> std::io::Result<TokioIo<Box<dyn Stream>>> {
    let tcp = async |address: &str| {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        std::io::Result::Ok(stream)
    };
    let stream: Box<dyn Stream> = match way {
        Way::Socket(path) => Box::new(UnixStream::connect(path).await?),
        Way::Plain(address) => Box::new(tcp(&address).await?),
        Way::Tls(address, connector) => {
            let stream = tcp(&address).await?;
            let name = ServerName::try_from(tls::CONTROLLER).map_err(std::io::Error::other)?;
            Box::new(connector.connect(name, stream).await?)
        }
    };
    Ok(TokioIo::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gets_the_usual_port() {
        for (given, used) in [
            ("head1", "head1:6817"),
            ("head1:7000", "head1:7000"),
            ("[::1]", "[::1]:6817"),
            ("[::1]:7000", "[::1]:7000"),
            ("::1", "[::1]:6817"),
        ] {
            assert_eq!(with_port(given), used);
        }
    }
}
