//! How a site stands, seen from outside: what a cluster, and where there is one a source, say of every account.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::json;

use super::diff::{binds, over};
use super::plan::removal::{annotation, is_paused, retired_at};
use super::{
    ClusterApi, Event, EventApi, EventKind, Key, Kind, LeaseApi, LeaseSettings, Live, Observed, OverQuota,
    Plan, Removals, State, StepError,
};
use crate::project::names;
use crate::timestamp::format_time;

/// How one account stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AccountStatus {
    /// The account's name.
    pub account: String,
    /// Its namespace.
    pub namespace: String,
    /// How it stands; `None` when no source was there to compare with, and nothing else is to be said.
    pub state: Option<State>,
    /// Why, and the way out; empty when it is in step.
    pub reason: String,
    /// Since when it is retired, RFC 3339.
    pub retired_at: Option<String>,
    /// What it uses more of than its quota allows.
    pub over_quota: Vec<OverQuota>,
    /// The last warning about it that Kubernetes still has.
    pub warning: Option<Event>,
}

/// How a site stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SiteStatus {
    /// Who holds the Lease; empty when nobody does.
    pub leader: String,
    /// When it was last renewed, RFC 3339; `None` when there is none.
    pub renewed_at: Option<String>,
    /// What all accounts share and is not in step.
    pub shared: Vec<String>,
    /// Accounts, sorted by namespace.
    pub accounts: Vec<AccountStatus>,
    /// What has vanished from the source, where one was compared with.
    pub removals: Option<Removals>,
    /// Warnings that concern no single account, newest first.
    pub warnings: Vec<Event>,
}

impl SiteStatus {
    /// Whether all that can be told is as it should be: in step, or retired or paused by intent.
    #[must_use]
    pub fn is_in_step(&self) -> bool {
        let fine = |state| matches!(state, None | Some(State::InStep | State::Retired | State::Paused));
        self.shared.is_empty() && self.accounts.iter().all(|account| fine(account.state))
    }
}

/// What a source wants of a cluster, for comparing.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Compared<'a> {
    /// The plan that would bring the cluster in step.
    pub plan: &'a Plan,
    /// What has vanished from the source.
    pub removals: &'a Removals,
}

impl<'a> Compared<'a> {
    /// A plan and what has vanished, of the same observation.
    #[must_use]
    pub fn new(plan: &'a Plan, removals: &'a Removals) -> Self {
        Self { plan, removals }
    }
}

/// Reads Lease and Events, and says how a site stands. `prefix` is the policy's. Events that cannot be read are left
/// out.
///
/// # Errors
/// The Lease cannot be read.
///
/// # Cancellation
/// Leaves nothing behind.
pub async fn site_status<A: ClusterApi + LeaseApi + EventApi>(
    api: &A,
    observed: &Observed,
    prefix: &str,
    lease: &LeaseSettings,
    compared: Option<Compared<'_>>,
) -> Result<SiteStatus, super::ApiError> {
    let lease = api.read_lease(&lease.namespace, &lease.name).await?.unwrap_or_default();
    let events = api.recorded().await.unwrap_or_default();
    let mut status = describe(observed, prefix, compared, &events);
    status.leader = lease.holder;
    status.renewed_at = lease.renewed_at.map(format_time);
    Ok(status)
}

fn describe(
    observed: &Observed,
    prefix: &str,
    compared: Option<Compared<'_>>,
    events: &[Event],
) -> SiteStatus {
    let mut accounts = BTreeMap::new();
    let ours = |(key, live): &(&Key, &Live)| live.is_ours() && names::NAMESPACES.is_mapped(&key.name);
    for (key, live) in observed.of_kind(Kind::Namespace).filter(ours) {
        accounts.insert(key.name.clone(), account(key, live, observed, prefix, compared));
    }
    let mut status = SiteStatus {
        leader: String::new(),
        renewed_at: None,
        shared: Vec::new(),
        accounts: Vec::new(),
        removals: compared.map(|compared| compared.removals.clone()),
        warnings: Vec::new(),
    };
    if let Some(compared) = compared {
        status.shared = compared.plan.shared.iter().map(super::Step::summary).collect();
        let whole = compared.plan.refused.iter().filter(|refusal| refusal.account.is_none());
        status.shared.extend(whole.map(|refusal| refusal.reason.clone()));
        add_plan(compared.plan, &mut accounts);
    }
    for event in events.iter().filter(|event| event.kind == EventKind::Warning) {
        match accounts.get_mut(&event.namespace) {
            Some(account) if account.warning.as_ref().is_none_or(|last| last.time < event.time) => {
                account.warning = Some(event.clone());
            }
            Some(_) => {}
            None => status.warnings.push(event.clone()),
        }
    }
    status.warnings.sort_by_key(|event| std::cmp::Reverse(event.time));
    status.accounts = accounts.into_values().collect();
    status
}

/// What a cluster says of an account by itself.
fn account(
    key: &Key,
    live: &Live,
    observed: &Observed,
    prefix: &str,
    compared: Option<Compared<'_>>,
) -> AccountStatus {
    let retired: Option<SystemTime> = retired_at(live, prefix);
    let quota = observed.get(&Key::namespaced(Kind::ResourceQuota, &key.name, names::QUOTA));
    let name = annotation(live, prefix, "account-name").unwrap_or(&key.name);
    let vanished = compared.is_some_and(|compared| compared.removals.vanished.contains(&key.name));
    let (state, reason) = if is_paused(live, prefix) {
        (Some(State::Paused), "an annotation of its namespace suspends what we do in it".to_owned())
    } else if live.is_terminating() {
        (Some(State::Refused), "its namespace is being deleted".to_owned())
    } else if retired.is_some() {
        (Some(State::Retired), String::new())
    } else if vanished {
        (Some(State::Held), vanished_reason(compared))
    } else if quota.is_some_and(|quota| !binds(quota.value(), quota.value())) {
        (Some(State::Waiting), "its quota does not bind yet; is the controller manager running?".to_owned())
    } else {
        // Of a plan that is refused as a whole nothing can be told.
        let whole =
            compared.filter(|compared| compared.plan.refused.iter().all(|refusal| refusal.account.is_some()));
        (whole.map(|_| State::InStep), String::new())
    };
    let over = |quota: &Live| over(&json!({ "spec": quota.value().get("spec") }), quota.value());
    let over_quota = match name.parse::<spur_sdk::AccountName>() {
        // Of a retired one everything is more than it may use.
        Ok(account) if retired.is_none() => quota
            .map(over)
            .unwrap_or_default()
            .into_iter()
            .map(|(key, used, hard)| OverQuota { account: account.clone(), key, used, hard })
            .collect(),
        _ => Vec::new(),
    };
    AccountStatus {
        account: name.to_owned(),
        namespace: key.name.clone(),
        state,
        reason,
        retired_at: retired.map(format_time),
        over_quota,
        warning: None,
    }
}

fn vanished_reason(compared: Option<Compared<'_>>) -> String {
    let Some(removals) = compared.map(|compared| compared.removals) else { return String::new() };
    let then = match removals.decision {
        super::RemovalsDecision::Held => "held until confirmed",
        super::RemovalsDecision::NotReadInFull => "the source was not read in full, so it stays",
        super::RemovalsDecision::Allowed | super::RemovalsDecision::Confirmed => "a controller retires it",
    };
    format!("the source does not name it; {then}")
}

/// What a plan says of accounts, also of those that have no namespace yet.
fn add_plan(plan: &Plan, accounts: &mut BTreeMap<String, AccountStatus>) {
    let empty = |account: &str, namespace: &str| AccountStatus {
        account: account.to_owned(),
        namespace: namespace.to_owned(),
        state: None,
        reason: String::new(),
        retired_at: None,
        over_quota: Vec::new(),
        warning: None,
    };
    for planned in &plan.accounts {
        let account = accounts
            .entry(planned.namespace.clone())
            .or_insert_with(|| empty(planned.account.as_str(), &planned.namespace));
        let steps: Vec<_> = planned.restrict.iter().chain(&planned.admit).map(super::Step::summary).collect();
        let waits = planned.restrict.is_empty() && planned.wait;
        account.state = Some(if waits { State::Waiting } else { State::Changing });
        account.reason = match steps.split_first() {
            _ if waits => "its quota does not bind yet; is the controller manager running?".to_owned(),
            None => String::new(),
            Some((first, [])) => first.clone(),
            Some((first, rest)) => format!("{first}; and {} more", rest.len()),
        };
    }
    for refusal in &plan.refused {
        let Some(name) = &refusal.account else { continue };
        let namespace = names::NAMESPACES.map(name.as_str());
        let account = accounts.entry(namespace.clone()).or_insert_with(|| empty(name.as_str(), &namespace));
        account.state = Some(State::Refused);
        account.reason.clone_from(&refusal.reason);
    }
}

/// Lets removals go on that are held. `digest` stands for exactly the accounts that have vanished, as reports, Events
/// and [`Removals`] name it; `prefix` is the policy's. A controller takes the confirmation away when it has served.
///
/// # Errors
/// The annotation cannot be written.
///
/// # Cancellation
/// May leave it written.
pub async fn confirm_removals<A: ClusterApi>(api: &A, prefix: &str, digest: &str) -> Result<(), StepError> {
    let key = Key::cluster(Kind::Namespace, names::USERS_NAMESPACE);
    let patch =
        json!({ "metadata": { "annotations": { format!("{prefix}/{}", names::CONFIRMED): digest } } });
    api.merge(&key, &patch).await.map(drop).map_err(StepError::request("annotate", &key))
}
