//! Whether this controller leads, and what it serves while it does.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use super::{Code, Refusal};

/// How a controller stands among the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Standing {
    /// Nobody is known to lead: calls that need the leader are answered with `Unavailable`.
    #[default]
    Leaderless,
    /// This one leads.
    Leading,
    /// Another one leads: calls are handed on to it.
    Following {
        /// Its name.
        name: String,
        /// Where it is reached, `HOST:PORT`.
        address: String,
    },
}

impl Standing {
    /// Another one leads.
    #[must_use]
    pub fn following(name: String, address: String) -> Self {
        Self::Following { name, address }
    }
}

/// Tells a [`super::Server`] how this controller stands. Clones tell the same servers.
#[derive(Debug, Clone)]
pub struct StandingHandle(watch::Sender<Standing>);

impl Default for StandingHandle {
    fn default() -> Self {
        Self(watch::Sender::new(Standing::default()))
    }
}

impl StandingHandle {
    /// A handle that says that this controller leads, for one that is alone.
    #[must_use]
    pub fn leading() -> Self {
        Self(watch::Sender::new(Standing::Leading))
    }

    /// Says how this controller stands from now on.
    pub fn set(&self, standing: Standing) {
        self.0.send_if_modified(|current| {
            let differs = *current != standing;
            *current = standing;
            differs
        });
    }

    /// How this controller stands.
    #[must_use]
    pub fn get(&self) -> Standing {
        self.0.borrow().clone()
    }
}

/// A service of the leader's: there while this controller leads and the service has read what it needs. Clones are the
/// same place.
pub struct Current<T>(Arc<RwLock<Option<Arc<T>>>>);

impl<T> Clone for Current<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Current<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> fmt::Debug for Current<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Current").field(&self.get().is_some()).finish()
    }
}

impl<T> Current<T> {
    /// A place with a service in it.
    #[must_use]
    pub fn new(service: T) -> Self {
        Self(Arc::new(RwLock::new(Some(Arc::new(service)))))
    }

    /// Puts a service there, or takes it away.
    pub fn set(&self, service: Option<T>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = service.map(Arc::new);
    }

    /// The service, if there is one.
    #[must_use]
    pub fn get(&self) -> Option<Arc<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The service; where there is none the caller is to try again.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn ready(&self) -> Result<Arc<T>, Refusal> {
        let cold =
            || Refusal::new(Code::Unavailable, "not everything is loaded yet: try again in a few seconds");
        self.get().ok_or_else(cold)
    }
}
