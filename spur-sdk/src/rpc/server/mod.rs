//! Taking calls: who asks, may they, how much at once, and who answers.

mod call;
mod connection;
mod forward;
mod limits;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::Accepted;
use self::forward::Forwarder;
use self::limits::Limits;
use super::listener::{Kind, Listener};
use super::{Refusal, Router, StandingHandle};
use crate::identity::{Caller, Credentials, PeerCertificate, Role, SiteName};
use crate::{Classify, Deadlines, ErrorKind};

/// The metadata by which a controller hands on whom it has verified. It counts only from a controller.
pub(super) const CALLER: &str = "x-spur-caller";

/// Knows who calls; asked anew for each call, so that whoever is removed is refused at once.
pub trait Callers: Send + Sync + 'static {
    /// The site whose certificates count.
    fn site(&self) -> &SiteName;

    /// Who a user of this machine is, by what the kernel says of the other end of a socket.
    fn local(&self, uid: u32, pid: u32) -> impl Future<Output = Result<Caller, Refusal>> + Send;

    /// Who has shown a certificate of the site, if it still counts.
    fn peer(&self, certificate: &PeerCertificate) -> Result<Caller, Refusal>;

    /// Whether somebody whom another controller has verified still counts.
    fn forwarded(&self, caller: &Caller) -> Result<(), Refusal>;

    /// In which roles somebody calls.
    fn roles(&self, caller: &Caller) -> impl Future<Output = Result<BTreeSet<Role>, Refusal>> + Send;

    /// Ends when certificates may have ceased to count since the state `seen`, with the state now. Open connections
    /// are then asked about anew. The first state is 0.
    fn changed(&self, seen: u64) -> impl Future<Output = u64> + Send;
}

/// How much a server takes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The largest message of a call, in bytes. Default: 1 MiB.
    pub max_message: usize,
    /// Connections at once. Default: 4096.
    pub max_connections: usize,
    /// Connections at once of clients without a certificate. Default: 64.
    pub max_anonymous: usize,
    /// Calls of one caller at once; more are refused. Default: 64.
    pub max_calls: u32,
    /// Calls of one caller in a second, and how many it may save up; more are refused. Controllers are not counted.
    /// Default: 200.
    pub rate: u32,
    /// The longest that a call may take, whatever the caller says. Default: 60 s.
    pub max_deadline: Duration,
    /// How long calls that are under way get when the server stops. Default: 10 s.
    pub grace: Duration,
    /// How long a handshake may take, and a call that is handed on.
    pub deadlines: Deadlines,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_message: 1 << 20,
            max_connections: 4096,
            max_anonymous: 64,
            max_calls: 64,
            rate: 200,
            max_deadline: Duration::from_mins(1),
            grace: Duration::from_secs(10),
            deadlines: Deadlines::default(),
        }
    }
}

impl ServerOptions {
    /// Sets the largest message.
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// Sets how many connections without a certificate are open at once.
    #[must_use]
    pub fn max_anonymous(mut self, connections: usize) -> Self {
        self.max_anonymous = connections;
        self
    }

    /// Sets how many calls of one caller run at once.
    #[must_use]
    pub fn max_calls(mut self, calls: u32) -> Self {
        self.max_calls = calls;
        self
    }

    /// Sets how many calls of one caller are taken in a second.
    #[must_use]
    pub fn rate(mut self, calls: u32) -> Self {
        self.rate = calls;
        self
    }

    /// Sets the longest that a call may take.
    #[must_use]
    pub fn max_deadline(mut self, deadline: Duration) -> Self {
        self.max_deadline = deadline;
        self
    }
}

/// A server stopped by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// No connection can be taken any more.
    #[error("take connections")]
    Accept(#[source] std::io::Error),
}

impl Classify for ServeError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Internal
    }
}

/// Takes calls.
#[derive(Debug)]
pub struct Server<C> {
    callers: Arc<C>,
    router: Router,
    standing: StandingHandle,
    credentials: Option<Arc<Credentials>>,
    options: ServerOptions,
}

/// What all connections share.
struct Shared<C> {
    callers: Arc<C>,
    router: Router,
    standing: StandingHandle,
    forwarder: Option<Forwarder>,
    limits: Limits,
    anonymous: Arc<Semaphore>,
    options: ServerOptions,
    stopping: CancellationToken,
}

impl<C: Callers> Server<C> {
    /// A server whose calls `router` answers.
    #[must_use]
    pub fn new(callers: Arc<C>, router: Router, standing: StandingHandle) -> Self {
        Self { callers, router, standing, credentials: None, options: ServerOptions::default() }
    }

    /// Hands calls on to the leader, with a controller's credentials. Without them a follower refuses and names the
    /// leader.
    #[must_use]
    pub fn forwarding(mut self, credentials: Arc<Credentials>) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Sets how much is taken.
    #[must_use]
    pub fn options(mut self, options: ServerOptions) -> Self {
        self.options = options;
        self
    }

    /// Takes calls until `shutdown`, and then lets those under way end.
    ///
    /// # Errors
    /// [`ServeError`] when no connection can be taken any more.
    ///
    /// # Cancellation
    /// Connections are cut; whether calls under way were carried out is unknown.
    pub async fn serve(
        self,
        listeners: Vec<Listener>,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let options = self.options;
        // Dropping it ends every connection's task, also when this future is dropped.
        let stopping = shutdown.child_token();
        let _cut = stopping.clone().drop_guard();
        let shared = Arc::new(Shared {
            callers: self.callers,
            router: self.router,
            standing: self.standing,
            forwarder: self.credentials.map(|credentials| Forwarder::new(credentials, options)),
            limits: Limits::new(options.max_calls, options.rate),
            anonymous: Arc::new(Semaphore::new(options.max_anonymous)),
            options,
            stopping: stopping.clone(),
        });
        let connections = TaskTracker::new();
        let room = Arc::new(Semaphore::new(options.max_connections));
        let (failed, mut failure) = watch::channel(None);
        for listener in listeners {
            let accepting = accept(listener, Arc::clone(&shared), connections.clone(), Arc::clone(&room));
            let failed = failed.clone();
            connections.spawn(async move {
                if let Err(error) = accepting.await {
                    failed.send_replace(Some(error));
                }
            });
        }
        drop(failed);
        let error = tokio::select! {
            // Nothing is lost: the tasks see the token themselves.
            () = stopping.cancelled() => None,
            // The failure stays in the channel.
            _ = failure.changed() => failure.borrow_and_update().as_ref().map(std::io::Error::kind),
        };
        stopping.cancel();
        connections.close();
        let _ = tokio::time::timeout(options.grace, connections.wait()).await;
        match error {
            Some(kind) => Err(ServeError::Accept(kind.into())),
            None => Ok(()),
        }
    }
}

/// Takes a listener's connections until the server stops.
async fn accept<C: Callers>(
    listener: Listener,
    shared: Arc<Shared<C>>,
    connections: TaskTracker,
    room: Arc<Semaphore>,
) -> Result<(), std::io::Error> {
    let mut failures = 0_u32;
    loop {
        // Waits in the system's queue when there is no room.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        let accepted = tokio::select! {
            // A connection that was not taken yet stays in the system's queue.
            () = shared.stopping.cancelled() => break,
            accepted = take(&listener) => accepted,
        };
        match accepted {
            Ok(accepted) => {
                failures = 0;
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    connection::serve(accepted, shared).await;
                    drop(permit);
                });
            }
            // Too many open files, or a client that is gone already.
            Err(error) if failures < 100 => {
                failures += 1;
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error),
        }
    }
    if let Kind::Socket(_, path) = &listener.0 {
        // It would refuse clients where one that is not there makes them look elsewhere.
        let _ = super::listener::remove_socket(path);
    }
    Ok(())
}

async fn take(listener: &Listener) -> Result<Accepted, std::io::Error> {
    match &listener.0 {
        Kind::Socket(listener, _) => Ok(Accepted::Socket(listener.accept().await?.0)),
        Kind::Tls(listener, tls) => {
            let (stream, address) = listener.accept().await?;
            Ok(Accepted::Tcp(stream, address, tls.config()))
        }
    }
}
