//! One connection: who is at its other end, and until when.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;

use super::call;
use super::{Callers, Shared};
use crate::identity::PeerCertificate;

/// A connection that was taken.
pub(super) enum Accepted {
    Socket(UnixStream),
    Tcp(TcpStream, SocketAddr, Arc<ServerConfig>),
}

/// The other end of a connection.
#[derive(Debug, Clone)]
pub(super) enum Peer {
    /// A process of this user on this machine.
    Local { uid: u32, pid: u32 },
    /// One with a certificate of the site.
    Certified(Arc<PeerCertificate>),
    /// One without a certificate.
    Nobody(SocketAddr),
}

pub(super) async fn serve<C: Callers>(accepted: Accepted, shared: Arc<Shared<C>>) {
    match accepted {
        Accepted::Socket(stream) => match stream.peer_cred() {
            Ok(credentials) => {
                let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default();
                requests(stream, Peer::Local { uid: credentials.uid(), pid }, shared).await;
            }
            Err(error) => tracing::warn!(%error, "the kernel does not say who has connected"),
        },
        Accepted::Tcp(stream, address, config) => {
            // Small messages would wait for each other otherwise.
            let _ = stream.set_nodelay(true);
            let handshake = TlsAcceptor::from(config).accept(stream);
            let stream = match tokio::time::timeout(shared.options.deadlines.connect, handshake).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::info!(%address, %error, "TLS handshake failed"),
                Err(_) => return tracing::info!(%address, "TLS handshake took too long"),
            };
            let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let peer = match certificate
                .map(|certificate| PeerCertificate::parse(certificate, shared.callers.site()))
            {
                None => Peer::Nobody(address),
                Some(Ok(certificate)) => Peer::Certified(Arc::new(certificate)),
                Some(Err(error)) => {
                    return tracing::warn!(%address, error = crate::error_chain(&error), "certificate refused");
                }
            };
            let _room = match &peer {
                Peer::Nobody(_) => match Arc::clone(&shared.anonymous).try_acquire_owned() {
                    Ok(room) => Some(room),
                    Err(_) => return tracing::warn!(%address, "too many connections without a certificate"),
                },
                _ => None,
            };
            requests(stream, peer, Arc::clone(&shared)).await;
        }
    }
}

/// Takes requests until the other end is gone, has no right any more, or the server stops.
async fn requests<C, S>(stream: S, peer: Peer, shared: Arc<Shared<C>>)
where
    C: Callers,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = {
        let (peer, shared) = (peer.clone(), Arc::clone(&shared));
        service_fn(move |request: hyper::Request<Incoming>| {
            let (peer, shared) = (peer.clone(), Arc::clone(&shared));
            async move { Ok::<_, std::convert::Infallible>(call::answer(request, peer, shared).await) }
        })
    };
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(std::time::Duration::from_secs(30)))
        .keep_alive_timeout(std::time::Duration::from_secs(20))
        .max_concurrent_streams(shared.options.max_calls)
        .max_header_list_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut stopping = false;
    // What had changed before is seen by each request, which says why it is refused; a cut says nothing.
    let mut seen =
        tokio::time::timeout(std::time::Duration::ZERO, shared.callers.changed(0)).await.unwrap_or(0);
    loop {
        tokio::select! {
            // Polled again in the next round unless it has ended.
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(?peer, %error, "connection ended");
                }
                return;
            }
            // Told once.
            () = shared.stopping.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            // Nothing is missed: what has changed meanwhile differs from what was seen.
            state = shared.callers.changed(seen), if matches!(peer, Peer::Certified(_)) => {
                seen = state;
                if let Peer::Certified(certificate) = &peer
                    && shared.callers.peer(certificate).is_err_and(|refusal| !is_passing(&refusal))
                {
                    // Dropping the connection ends what is open on it.
                    return tracing::info!(?certificate, "connection cut: the certificate does not count any more");
                }
            }
        }
    }
}

/// Whether a refusal says nothing about the certificate.
fn is_passing(refusal: &crate::rpc::Refusal) -> bool {
    refusal.code == crate::rpc::Code::Unavailable
}
