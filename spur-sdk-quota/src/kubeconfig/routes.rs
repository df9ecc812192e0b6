//! The calls that give users tokens and kubeconfigs, answered.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use spur_sdk::UserName;
use spur_sdk::identity::{Access, Role};
use spur_sdk::rpc::messages::site::{
    KubeTokenResponse, KubeTokenRpc, ListSessionsResponse, ListSessionsRpc, RevokeSessionsResponse,
    RevokeSessionsRpc, Session as Listed,
};
use spur_sdk::rpc::messages::slurm::{ClusterKubeconfigResponse, ClusterKubeconfigRpc};
use spur_sdk::rpc::messages::timestamp;
use spur_sdk::rpc::{Call, Code, Current, Refusal, Router};
use spur_sdk::store::Revision;

use super::{
    ControlPlaneAccess, Directory, EvictionReport, ExecPlugin, Form, KubeconfigError, Membership,
    Memberships, MintRequest, Minter, PodApi, RemovalReport, SessionName, mint_scoped_kubeconfig,
};
use crate::accounting::Accounting;
use crate::{Policy, QuotaProjector};

/// Who is in which account, as worked out from a state of the accounts.
type Known = (Revision, Arc<Directory>);

/// Who is in which account, by the accounts that are served and the policy that they are projected with.
#[derive(Debug, Clone)]
pub struct AccountMemberships {
    accounts: Current<Accounting>,
    policy: Arc<Policy>,
    /// What was worked out last, and for which state of the accounts.
    last: Arc<Mutex<Option<Known>>>,
}

impl AccountMemberships {
    /// Memberships by the accounts that are served at the moment.
    #[must_use]
    pub fn new(accounts: Current<Accounting>, policy: Policy) -> Self {
        Self { accounts, policy: Arc::new(policy), last: Arc::default() }
    }
}

impl Memberships for AccountMemberships {
    async fn membership(&self, user: &UserName) -> Membership {
        let Some(accounting) = self.accounts.get() else {
            return Membership::Unknown("the accounts are not loaded".to_owned());
        };
        let book = accounting.book();
        let now = SystemTime::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = match &*last {
            Some((revision, directory)) if *revision == book.revision() => Arc::clone(directory),
            _ => {
                let model = book.model();
                let directory =
                    Arc::new(Directory::new(&model, &QuotaProjector::new(&self.policy).project(&model), now));
                *last = Some((book.revision(), Arc::clone(&directory)));
                directory
            }
        };
        match directory.of(user) {
            // The accounts are this process's own: asked now, known now.
            Membership::Known { accounts, default, .. } => Membership::Known { accounts, default, seen: now },
            // Without any account there is no membership, and nothing that was not read.
            Membership::Unknown(_) if book.accounts().is_empty() => {
                Membership::Known { accounts: std::collections::BTreeSet::new(), default: None, seen: now }
            }
            unknown @ Membership::Unknown(_) => unknown,
        }
    }
}

impl From<KubeconfigError> for Refusal {
    fn from(error: KubeconfigError) -> Self {
        Self::from_error(&error)
    }
}

/// For whom a call is: the caller, or the one whom an admin names.
fn user(call: &Call, wanted: &str) -> Result<UserName, Refusal> {
    let own = call.caller.user();
    if wanted.is_empty() {
        return own.cloned().ok_or_else(|| Refusal::invalid("user", "no user is known: name one"));
    }
    let wanted: UserName = wanted.parse().map_err(|error| Refusal::invalid("user", error))?;
    if call.access != Access::Allow && own != Some(&wanted) {
        let message = format!("user: {} gets nothing of {wanted}", call.caller);
        return Err(Refusal::new(Code::PermissionDenied, message));
    }
    if own != Some(&wanted) {
        tracing::info!(caller = %call.caller, user = %wanted, "an admin asks for another user");
    }
    Ok(wanted)
}

fn lifetime(seconds: u32) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}

fn session(text: &str) -> Result<Option<SessionName>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| Refusal::invalid("session", error))
}

/// Answers `ClusterKubeconfig`, `KubeToken`, `ListSessions` and `RevokeSessions`. `controller` is where the command in
/// a kubeconfig asks for tokens, as [`ExecPlugin::spur`] has it.
#[must_use]
pub fn routes<A, M>(minter: &Current<Minter<A, M>>, controller: Option<&str>) -> Router
where
    A: ControlPlaneAccess + 'static,
    M: Memberships + 'static,
    A::Api: PodApi,
{
    let (files, tokens, listing, ending) = (minter.clone(), minter.clone(), minter.clone(), minter.clone());
    let controller = controller.map(str::to_owned);
    Router::new()
        .on::<ClusterKubeconfigRpc, _, _>(move |call, request| {
            let (minter, controller) = (files.ready(), controller.clone());
            async move {
                if request.admin {
                    let message = if call.roles.contains(&Role::Admin) {
                        "admin: kubeconfigs of admins are not enabled on this site"
                    } else {
                        "admin: only admins get one"
                    };
                    return Err(Refusal::new(Code::PermissionDenied, message));
                }
                let user = user(&call, &request.user)?;
                let minter = minter?;
                let mint = MintRequest::new(user)
                    .lifetime(lifetime(request.lifetime_seconds.unwrap_or_default()))
                    .client(request.client.unwrap_or_default());
                let form = if request.static_token.unwrap_or_default() {
                    Form::Static
                } else {
                    Form::Exec(ExecPlugin::spur(&minter.policy().cluster, controller.as_deref()))
                };
                let made = mint_scoped_kubeconfig(&minter, &mint, form).await?;
                Ok(ClusterKubeconfigResponse {
                    kubeconfig: made.kubeconfig.to_yaml()?.to_string(),
                    session: made.session.map(|session| session.to_string()),
                    expires: made.expires.map(timestamp),
                })
            }
        })
        .on::<KubeTokenRpc, _, _>(move |call, request| {
            let minter = tokens.ready();
            async move {
                let user = user(&call, &request.user)?;
                let mint = MintRequest::new(user)
                    .lifetime(lifetime(request.lifetime_seconds))
                    .client(request.client);
                let issued = minter?.issue(&mint, session(&request.session)?.as_ref()).await?;
                Ok(KubeTokenResponse {
                    token: issued.token.bearer.expose().to_owned(),
                    expires: Some(timestamp(issued.token.expires)),
                    session: issued.session.to_string(),
                })
            }
        })
        .on::<ListSessionsRpc, _, _>(move |call, request| {
            let minter = listing.ready();
            async move {
                let everybody = request.user.is_empty() && call.access == Access::Allow;
                let whose = if everybody { None } else { Some(user(&call, &request.user)?) };
                let sessions = minter?.sessions(whose.as_ref()).await?;
                let sessions = sessions.into_iter().map(|session| Listed {
                    name: session.name.to_string(),
                    user: session.user.map(|user| user.to_string()).unwrap_or_default(),
                    created: session.created.map(timestamp),
                    expires: Some(timestamp(session.name.expires())),
                    client: session.client.unwrap_or_default(),
                });
                Ok(ListSessionsResponse { sessions: sessions.collect() })
            }
        })
        .on::<RevokeSessionsRpc, _, _>(move |call, request| {
            let minter = ending.ready();
            async move {
                let user = user(&call, &request.user)?;
                let minter = minter?;
                let ended = match session(&request.session)? {
                    Some(session) if session.is_of(&user) => {
                        u32::from(minter.revoke_session(&session).await?)
                    }
                    Some(session) => {
                        return Err(Refusal::new(
                            Code::NotFound,
                            format!("session: {user} has no session {session}"),
                        ));
                    }
                    None => all_ended(&minter.revoke(&user).await?)?,
                };
                let pods = if request.evict { evicted(&minter.evict_user_pods(&user).await?)? } else { 0 };
                tracing::info!(caller = %call.caller, %user, sessions = ended, pods, "sessions ended");
                Ok(RevokeSessionsResponse { sessions: ended, pods })
            }
        })
}

/// How many sessions have ended; that some have not is an error.
fn all_ended(report: &RemovalReport) -> Result<u32, Refusal> {
    if let Some((session, error)) = report.failed.first() {
        let refusal = Refusal::from_error(error);
        let message = format!(
            "{} sessions ended, {} did not: {session}: {}",
            report.removed.len(),
            report.failed.len(),
            refusal.message
        );
        return Err(Refusal { message, ..refusal });
    }
    Ok(u32::try_from(report.removed.len()).unwrap_or(u32::MAX))
}

/// How many pods were deleted; that some were not is an error.
fn evicted(report: &EvictionReport) -> Result<u32, Refusal> {
    if let Some((pod, error)) = report.failed.first() {
        let refusal = Refusal::from_error(error);
        let message = format!(
            "the sessions have ended; {} pods are deleted, {} are not: {}/{}: {}",
            report.deleted.len(),
            report.failed.len(),
            pod.namespace,
            pod.name,
            refusal.message
        );
        return Err(Refusal { message, ..refusal });
    }
    Ok(u32::try_from(report.deleted.len()).unwrap_or(u32::MAX))
}
