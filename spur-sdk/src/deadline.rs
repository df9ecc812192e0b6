//! How long a remote call may take.

use std::time::Duration;

/// Deadlines of remote calls, one per kind of call.
///
/// The clients below this SDK have no useful deadline of their own, so each call site takes one from
/// here. The defaults suit a healthy site network; a host may set each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlines {
    /// Opening a connection. Default: 5 s.
    pub connect: Duration,
    /// One Kubernetes request that is not a watch. Default: 30 s.
    pub kubernetes_unary: Duration,
    /// How long a Kubernetes watch is asked to run before the server ends it. Default: 290 s.
    pub kubernetes_watch: Duration,
    /// How long a Kubernetes watch may be silent before its connection counts as dead. The server sends a
    /// bookmark every minute. Default: 150 s.
    pub kubernetes_watch_silence: Duration,
    /// One call of a controller or an agent. Default: 10 s.
    pub rpc_unary: Duration,
    /// One request to a store. Default: 5 s.
    pub store: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            kubernetes_unary: Duration::from_secs(30),
            kubernetes_watch: Duration::from_secs(290),
            kubernetes_watch_silence: Duration::from_secs(150),
            rpc_unary: Duration::from_secs(10),
            store: Duration::from_secs(5),
        }
    }
}

impl Deadlines {
    /// Sets the deadline for opening a connection.
    #[must_use]
    pub fn connect(mut self, value: Duration) -> Self {
        self.connect = value;
        self
    }

    /// Sets the deadline of one Kubernetes request.
    #[must_use]
    pub fn kubernetes_unary(mut self, value: Duration) -> Self {
        self.kubernetes_unary = value;
        self
    }

    /// Sets how long a Kubernetes watch is asked to run.
    #[must_use]
    pub fn kubernetes_watch(mut self, value: Duration) -> Self {
        self.kubernetes_watch = value;
        self
    }

    /// Sets how long a Kubernetes watch may be silent.
    #[must_use]
    pub fn kubernetes_watch_silence(mut self, value: Duration) -> Self {
        self.kubernetes_watch_silence = value;
        self
    }

    /// Sets the deadline of one call of a controller or an agent.
    #[must_use]
    pub fn rpc_unary(mut self, value: Duration) -> Self {
        self.rpc_unary = value;
        self
    }

    /// Sets the deadline of one request to a store.
    #[must_use]
    pub fn store(mut self, value: Duration) -> Self {
        self.store = value;
        self
    }
}
