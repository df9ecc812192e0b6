//! What this controller serves while it leads.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use spur_sdk::identity::{Authority, LoginIssuer, Registry, Roster};
use spur_sdk::rpc::{Current, Site, Standing, StandingHandle};
use spur_sdk::store::{Fenced, Leader, SharedStore, StoreError, Term};
use spur_sdk::{Deadlines, SystemClock, error_chain};
use spur_sdk_quota::Policy;
use spur_sdk_quota::accounting::Accounting;
use spur_sdk_quota::k8s::KubeAccess;
use spur_sdk_quota::kubeconfig::{AccountMemberships, KubeconfigPolicy, Minter, lock_out};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Kubernetes};
use crate::store::Candidate;

/// How often a follower looks who leads.
const LOOK: Duration = Duration::from_secs(1);

/// How often what has expired is swept.
const SWEEP: Duration = Duration::from_mins(5);

/// The pause after a store that does not answer.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) type Store = Fenced<SharedStore>;
pub(crate) type KubeMinter = Minter<KubeAccess, AccountMemberships>;

/// The leader's services, there while this controller leads.
#[derive(Clone, Default)]
pub(crate) struct Services {
    pub(crate) accounts: Current<Accounting>,
    pub(crate) site: Current<Site<Store, SystemClock>>,
    pub(crate) minter: Current<KubeMinter>,
    pub(crate) standing: StandingHandle,
}

/// What a term is made of.
pub(crate) struct Parts {
    pub(crate) store: SharedStore,
    pub(crate) authority: Authority,
    pub(crate) roster: Roster,
    pub(crate) kubernetes: Option<(Kubernetes, Policy)>,
    pub(crate) name: String,
}

/// The policy that accounts are projected with, read once.
pub(crate) fn kubernetes(config: &Config) -> anyhow::Result<Option<(Kubernetes, Policy)>> {
    let Some(mut kubernetes) = config.kubernetes.clone() else { return Ok(None) };
    let policy = match &kubernetes.policy {
        Some(path) => Policy::read(&spur_sdk::fs::read_text(path, 1 << 30)?, &path.display().to_string())?,
        None => Policy::default(),
    };
    kubernetes.name.get_or_insert_with(|| config.site.to_string());
    // Said at the start rather than at the first token.
    minter_policy(&kubernetes).check().context("[kubernetes]")?;
    Ok(Some((kubernetes, policy)))
}

fn minter_policy(kubernetes: &Kubernetes) -> KubeconfigPolicy {
    KubeconfigPolicy::new(kubernetes.name.clone().unwrap_or_default())
        .server(kubernetes.server.clone())
        .tls_server_name(kubernetes.tls_server_name.clone())
        .default_lifetime(kubernetes.token_lifetime)
        .max_lifetime(kubernetes.max_token_lifetime)
}

/// Leads whenever it can, until told to stop.
pub(crate) async fn lead(
    candidate: &Candidate,
    parts: &Parts,
    services: &Services,
    shutdown: &CancellationToken,
) {
    loop {
        let term = tokio::select! {
            // A candidacy that is given up leaves nothing.
            () = shutdown.cancelled() => return,
            term = win(candidate, services) => term,
        };
        tracing::info!(controller = parts.name, "this controller leads");
        if let Err(error) = serve(&term, parts, services, shutdown).await {
            tracing::error!(error = error_chain(error.as_ref()), "this term cannot be served");
            tokio::time::sleep(PAUSE).await;
        }
        services.standing.set(Standing::Leaderless);
        services.accounts.set(None);
        services.site.set(None);
        services.minter.set(None);
        tracing::info!(controller = parts.name, "this controller does not lead any more");
        term.resign().await;
    }
}

/// Waits until this controller leads; says meanwhile who does.
async fn win(candidate: &Candidate, services: &Services) -> Term {
    loop {
        let watched = async {
            loop {
                services.standing.set(standing(candidate.leader().await));
                tokio::time::sleep(LOOK).await;
            }
        };
        let won = tokio::select! {
            // The one that looks has nothing to lose.
            won = candidate.campaign() => won,
            () = watched => continue,
        };
        match won {
            Ok(term) => return term,
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "the store does not say who leads");
                services.standing.set(Standing::Leaderless);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn standing(leader: Result<Option<Leader>, StoreError>) -> Standing {
    match leader {
        Ok(Some(leader)) => Standing::following(leader.name, leader.address),
        _ => Standing::Leaderless,
    }
}

/// Serves until the term is over.
async fn serve(
    term: &Term,
    parts: &Parts,
    services: &Services,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let store = Fenced::new(parts.store.clone(), term.fence().clone());
    let (accounting, changes) =
        Accounting::open(store.clone(), SystemClock).await.context("load the accounts")?;
    let registry = Registry::new(store, parts.authority.clone(), parts.roster.clone(), SystemClock);
    services.accounts.set(Some(accounting));
    services.site.set(Some(Site::new(registry, LoginIssuer::default())));
    if let Some((kubernetes, policy)) = &parts.kubernetes {
        let deadlines = Deadlines::default();
        let access = KubeAccess::file(&kubernetes.kubeconfig, kubernetes.context.clone(), deadlines);
        let memberships = AccountMemberships::new(services.accounts.clone(), policy.clone());
        services.minter.set(Some(Minter::new(access, memberships, minter_policy(kubernetes))?));
    }
    services.standing.set(Standing::Leading);
    tokio::select! {
        // What is under way when the term ends is carried out or not, never in part: so each may be dropped.
        () = changes => {}
        () = term.lost() => tracing::warn!("the term of leadership is over"),
        () = shutdown.cancelled() => {}
        () = sweep(services) => {}
        () = locked_out(services) => {}
    }
    Ok(())
}

/// Locks out who is in no account any more.
async fn locked_out(services: &Services) {
    if let (Some(accounting), Some(minter)) = (services.accounts.get(), services.minter.get()) {
        lock_out(&accounting, &minter).await;
    }
    // The end of the term is told by others.
    std::future::pending::<()>().await;
}

/// Sweeps now and then what has expired.
async fn sweep(services: &Services) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let site = services.site.get();
        if let Some(site) = &site
            && let Err(error) = site.registry().sweep().await
        {
            tracing::warn!(error = error_chain(&error), "expired certificates and tokens are not swept");
        }
        let minter: Option<Arc<KubeMinter>> = services.minter.get();
        if let Some(minter) = minter
            && let Err(error) = minter.sweep().await
        {
            tracing::warn!(error = error_chain(&error), "expired sessions are not swept");
        }
    }
}
