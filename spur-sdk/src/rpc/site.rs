//! The site's own calls: who belongs to it, and who asks.

use std::collections::BTreeSet;
use std::time::Duration;

use super::messages::site::{
    Certificate as Issued, CreateJoinTokenResponse, CreateJoinTokenRpc, EnrolRpc, EnrolledNode,
    ListNodesResponse, ListNodesRpc, LoginForRpc, LoginRpc, MarkNodeRpc, RemoveNodeRpc, RenewNodeRpc,
    WhoAmIResponse, WhoAmIRpc,
};
use super::messages::timestamp;
use super::{Callers, Code, Current, Refusal, Router};
use crate::identity::{
    Caller, Certificate, ExternalIssuer, Identity, IdentityError, JoinGrant, LocalCallers, LocalUsers,
    LoginIssuer, NoExternalIssuer, PeerCertificate, Registry, Role, Roster, SiteName, UserRoles, VouchedUser,
};
use crate::store::Store;
use crate::{Clock, NameError, NodeName, UserName};

/// Who calls, by the site's roster, this machine's users and what the accounts say of users.
#[derive(Debug, Clone)]
pub struct SiteCallers<L, U> {
    site: SiteName,
    roster: Roster,
    local: LocalCallers<L>,
    users: U,
}

impl<L: LocalUsers, U: UserRoles> SiteCallers<L, U> {
    /// Callers of a site.
    #[must_use]
    pub fn new(site: SiteName, roster: Roster, local: LocalCallers<L>, users: U) -> Self {
        Self { site, roster, local, users }
    }
}

impl<L: LocalUsers + 'static, U: UserRoles + 'static> Callers for SiteCallers<L, U> {
    fn site(&self) -> &SiteName {
        &self.site
    }

    async fn local(&self, uid: u32, pid: u32) -> Result<Caller, Refusal> {
        Ok(self.local.identify(uid, pid).await?)
    }

    fn peer(&self, certificate: &PeerCertificate) -> Result<Caller, Refusal> {
        self.roster.check(certificate)?;
        Ok(Caller::certified(certificate))
    }

    fn forwarded(&self, caller: &Caller) -> Result<(), Refusal> {
        // The other controller may not have heard yet who was removed.
        Ok(self.roster.check_caller(caller)?)
    }

    async fn roles(&self, caller: &Caller) -> Result<BTreeSet<Role>, Refusal> {
        Ok(caller.roles(&self.users).await?)
    }

    async fn changed(&self, seen: u64) -> u64 {
        self.roster.changed_since(seen).await
    }
}

impl From<IdentityError> for Refusal {
    fn from(error: IdentityError) -> Self {
        let refusal = Self::from_error(&error);
        match error {
            // Whatever is wrong with a token or certificate, its holder is nobody.
            IdentityError::Join(_) | IdentityError::Void { .. } => {
                Self { code: Code::Unauthenticated, ..refusal }
            }
            _ => refusal,
        }
    }
}

/// Who belongs to a site: what the leader answers the site's calls with.
#[derive(Debug)]
pub struct Site<S, C, E = NoExternalIssuer> {
    registry: Registry<S, C>,
    login: LoginIssuer<E>,
}

impl<S: Store, C: Clock, E: ExternalIssuer> Site<S, C, E> {
    /// A site.
    #[must_use]
    pub fn new(registry: Registry<S, C>, login: LoginIssuer<E>) -> Self {
        Self { registry, login }
    }

    /// Who belongs to it.
    #[must_use]
    pub fn registry(&self) -> &Registry<S, C> {
        &self.registry
    }
}

fn issued(certificate: &Certificate) -> Issued {
    Issued {
        certificate: certificate.pem().to_owned(),
        authority: certificate.authority_pem().to_owned(),
        not_after: Some(timestamp(certificate.not_after())),
    }
}

fn name<T: std::str::FromStr<Err = NameError>>(field: &str, text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|error| Refusal::invalid(field, error))
}

fn lifetime(seconds: u32) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}

/// Answers the site's own calls.
#[must_use]
pub fn site_routes<S, C, E>(site: &Current<Site<S, C, E>>) -> Router
where
    S: Store + 'static,
    C: Clock + 'static,
    E: ExternalIssuer + 'static,
{
    let router = Router::new().anywhere::<WhoAmIRpc, _, _>(async |call, ()| {
        Ok(WhoAmIResponse {
            caller: call.caller.identity.to_string(),
            roles: call.roles.iter().map(ToString::to_string).collect(),
            via: call.caller.via.to_string(),
        })
    });
    nodes(logins(router, site), site)
}

fn logins<S, C, E>(router: Router, site: &Current<Site<S, C, E>>) -> Router
where
    S: Store + 'static,
    C: Clock + 'static,
    E: ExternalIssuer + 'static,
{
    let (here, there) = (site.clone(), site.clone());
    router
        .on::<LoginRpc, _, _>(move |call, request| {
            let site = here.ready();
            async move {
                let Site { registry, login } = &*site?;
                let lifetime = lifetime(request.lifetime_seconds);
                Ok(issued(&login.login(registry, &call.caller, &request.request, lifetime).await?))
            }
        })
        .on::<LoginForRpc, _, _>(move |call, request| {
            let site = there.ready();
            async move {
                let Site { registry, login } = &*site?;
                let user = VouchedUser { name: name::<UserName>("user", &request.user)?, uid: request.uid };
                let lifetime = lifetime(request.lifetime_seconds);
                Ok(issued(&login.login_for(registry, &call.caller, &user, &request.request, lifetime).await?))
            }
        })
}

fn nodes<S, C, E>(router: Router, site: &Current<Site<S, C, E>>) -> Router
where
    S: Store + 'static,
    C: Clock + 'static,
    E: ExternalIssuer + 'static,
{
    let get = || {
        let site = site.clone();
        move || site.ready()
    };
    let (enrol, renew, token, list, mark, remove) = (get(), get(), get(), get(), get(), get());
    router
        .on::<EnrolRpc, _, _>(move |_, request| {
            let site = enrol();
            async move {
                let node = name::<NodeName>("node", &request.node)?;
                Ok(issued(&site?.registry.enrol(&request.token, &request.request, &node).await?))
            }
        })
        .on::<RenewNodeRpc, _, _>(move |call, request| {
            let site = renew();
            async move {
                let (Identity::Node { name }, Some(serial)) =
                    (&call.caller.identity, call.caller.via.serial())
                else {
                    return Err(Refusal::new(Code::PermissionDenied, "only a node renews its certificate"));
                };
                Ok(issued(&site?.registry.renew(name, serial, &request.request).await?))
            }
        })
        .on::<CreateJoinTokenRpc, _, _>(move |call, request| {
            let site = token();
            async move {
                let mut grant = match request.node.as_str() {
                    "" => JoinGrant::any_new(),
                    node => JoinGrant::node(name("node", node)?),
                }
                .login(request.login);
                if let Some(lifetime) = lifetime(request.lifetime_seconds) {
                    grant = grant.lifetime(lifetime);
                }
                let (token, expires) = site?.registry.create_token(&grant, &call.caller).await?;
                Ok(CreateJoinTokenResponse { token: token.reveal(), expires: Some(timestamp(expires)) })
            }
        })
        .on::<ListNodesRpc, _, _>(move |_, _| {
            let site = list();
            async move {
                let nodes = site?.registry.nodes().await?;
                let nodes = nodes.into_iter().map(|node| EnrolledNode {
                    name: node.name.to_string(),
                    serial: node.serial.to_string(),
                    not_after: Some(timestamp(node.not_after)),
                    login: node.login,
                    removed: node.removed,
                });
                Ok(ListNodesResponse { nodes: nodes.collect() })
            }
        })
        .on::<MarkNodeRpc, _, _>(move |call, request| {
            let site = mark();
            async move {
                let node = name("node", &request.node)?;
                Ok(site?.registry.mark_login(&node, request.login, &call.caller).await?)
            }
        })
        .on::<RemoveNodeRpc, _, _>(move |call, request| {
            let site = remove();
            async move {
                let node = name("node", &request.node)?;
                Ok(site?.registry.remove(&node, &call.caller).await?)
            }
        })
}
