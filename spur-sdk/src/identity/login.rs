//! Users who log in: certificates of hours, for the user role and nothing else.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

use super::{Caller, Certificate, Grant, Identity, IdentityError, MAX_USER_LIFETIME, Registry, Subject, Via};
use crate::store::Store;
use crate::{Clock, NodeName, UserName};

/// The most bytes of an external credential.
pub const MAX_CREDENTIAL_BYTES: usize = 64 * 1024;
/// How long an external issuer may take.
const EXTERNAL_DEADLINE: Duration = Duration::from_secs(10);

/// Knows users by credentials that others issue, such as OIDC tokens or munge.
pub trait ExternalIssuer: Send + Sync {
    /// The user whom a credential is of.
    ///
    /// The credential comes from a stranger. An implementation verifies all of it, that it is meant for this site and
    /// has not been used before among that, and maps whom it names to a user of the site.
    ///
    /// # Errors
    /// [`IdentityError::External`].
    fn identify(&self, credential: &[u8]) -> impl Future<Output = Result<UserName, IdentityError>> + Send;
}

/// Knows nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoExternalIssuer;

impl ExternalIssuer for NoExternalIssuer {
    async fn identify(&self, _credential: &[u8]) -> Result<UserName, IdentityError> {
        Err(IdentityError::External { what: "this site takes none".to_owned(), refused: true })
    }
}

/// Issues certificates to users.
#[derive(Debug, Clone)]
pub struct LoginIssuer<E = NoExternalIssuer> {
    lifetime: Duration,
    refused: BTreeSet<UserName>,
    external: E,
}

impl Default for LoginIssuer {
    fn default() -> Self {
        Self::new(NoExternalIssuer)
    }
}

impl<E: ExternalIssuer> LoginIssuer<E> {
    /// Logins of local users, of those for whom a node vouches, and of those whom `external` knows. Certificates live
    /// 12 hours, and `root` gets none.
    #[must_use]
    pub fn new(external: E) -> Self {
        let refused = "root".parse().into_iter().collect();
        Self { lifetime: MAX_USER_LIFETIME, refused, external }
    }

    /// Sets how long certificates live where nobody asks for less; at most [`MAX_USER_LIFETIME`].
    #[must_use]
    pub fn lifetime(mut self, value: Duration) -> Self {
        self.lifetime = value.min(MAX_USER_LIFETIME);
        self
    }

    /// Adds names that get no certificate, such as those of daemons.
    #[must_use]
    pub fn refuse(mut self, names: impl IntoIterator<Item = UserName>) -> Self {
        self.refused.extend(names);
        self
    }

    /// A certificate for the caller of a controller's local socket: as a user, also for an admin.
    ///
    /// # Errors
    /// [`IdentityError::Denied`] for root, and for a caller who did not come by a socket;
    /// [`IdentityError::Lifetime`].
    pub async fn login<S: Store, C: Clock>(
        &self,
        registry: &Registry<S, C>,
        caller: &Caller,
        request: &str,
        lifetime: Option<Duration>,
    ) -> Result<Certificate, IdentityError> {
        let Via::Socket { uid, .. } = caller.via.origin() else {
            return Err(IdentityError::Denied("log in on a controller's own socket, or on a login node"));
        };
        let name = match &caller.identity {
            Identity::User { name, .. } | Identity::Admin { name } if caller.node.is_none() => name,
            _ => return Err(IdentityError::Denied("only users log in")),
        };
        self.check(name, *uid)?;
        self.issue(registry, Subject::user(name.clone()), caller, request, lifetime).await
    }

    /// A certificate for a user of a login node, whose agent is the caller and vouches for name and number. The
    /// certificate names the node.
    ///
    /// # Errors
    /// [`IdentityError::Denied`] if the caller is no node that is marked `login`, and for root.
    pub async fn login_for<S: Store, C: Clock>(
        &self,
        registry: &Registry<S, C>,
        caller: &Caller,
        user: &VouchedUser,
        request: &str,
        lifetime: Option<Duration>,
    ) -> Result<Certificate, IdentityError> {
        let Identity::Node { name: node } = &caller.identity else {
            return Err(IdentityError::Denied("only a node vouches for a user"));
        };
        if !registry.is_login(node).await? {
            return Err(IdentityError::Denied("this node is no login node"));
        }
        self.check(&user.name, user.uid)?;
        let node: NodeName = node.clone();
        let subject = Subject::User { name: user.name.clone(), vouched_by: Some(node) };
        self.issue(registry, subject, caller, request, lifetime).await
    }

    /// A certificate for the user whom the external issuer finds in a credential.
    ///
    /// # Errors
    /// [`IdentityError::External`]; [`IdentityError::Denied`] for root.
    pub async fn login_external<S: Store, C: Clock>(
        &self,
        registry: &Registry<S, C>,
        caller: &Caller,
        credential: &[u8],
        request: &str,
        lifetime: Option<Duration>,
    ) -> Result<Certificate, IdentityError> {
        let unasked = |what: &str| IdentityError::External { what: what.to_owned(), refused: false };
        if credential.len() > MAX_CREDENTIAL_BYTES {
            return Err(IdentityError::External { what: "it is too large".to_owned(), refused: true });
        }
        let name = match timeout(EXTERNAL_DEADLINE, self.external.identify(credential)).await {
            Ok(name) => name?,
            Err(_) => return Err(unasked("the issuer did not answer in time")),
        };
        self.check_name(&name)?;
        self.issue(registry, Subject::user(name), caller, request, lifetime).await
    }

    fn check(&self, name: &UserName, uid: u32) -> Result<(), IdentityError> {
        if uid == 0 {
            return Err(IdentityError::Denied("root gets no certificate; use the controller's socket"));
        }
        self.check_name(name)
    }

    fn check_name(&self, name: &UserName) -> Result<(), IdentityError> {
        if self.refused.contains(name) {
            return Err(IdentityError::Denied("this name gets no certificate"));
        }
        Ok(())
    }

    async fn issue<S: Store, C: Clock>(
        &self,
        registry: &Registry<S, C>,
        subject: Subject,
        by: &Caller,
        request: &str,
        lifetime: Option<Duration>,
    ) -> Result<Certificate, IdentityError> {
        let grant = Grant::new(subject, lifetime.unwrap_or(self.lifetime));
        registry.issue(request, &grant, by).await
    }
}

/// A user for whom a node vouches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VouchedUser {
    /// The name.
    pub name: UserName,
    /// The number on the node.
    pub uid: u32,
}
