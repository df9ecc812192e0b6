//! What vanishes from a source: whether it may be taken away, and how.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use spur_sdk::AccountName;

use super::{AccountPlan, Action, Planner, Step, closed, delete, removal_patch, step, without_status};
use crate::cluster::diff::ANNOTATIONS;
use crate::cluster::{Key, Kind, Live, Observed};
use crate::model::{Completeness, Model};
use crate::project::{Projection, names};
use crate::timestamp::{format_time, parse_time};

/// How long a removal counts.
const WINDOW: Duration = Duration::from_hours(24);

/// More than this many within the window are held, however many there are in all.
const MANY: usize = 10;

/// This many within the window are held if they are more than a fifth of all.
const SOME: usize = 3;

/// Whether what has vanished may be taken away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RemovalsDecision {
    /// The source was not read in full, so nothing counts as gone.
    NotReadInFull,
    /// It may.
    Allowed,
    /// So much has vanished that somebody has to say that it is meant.
    Held,
    /// Somebody has said so.
    Confirmed,
}

/// Accounts that have vanished from the source, and whether they may be taken away.
///
/// At least 3 accounts that are more than 20 % of all, or more than 10, within 24 hours are held, and with them every
/// other removal, until somebody confirms them: a source that is wrong looks just like that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Removals {
    /// Namespaces of accounts that the source does not name and that are not retired yet, sorted.
    pub vanished: Vec<String>,
    /// Namespaces that were retired in the last 24 hours, sorted.
    pub recent: Vec<String>,
    /// Namespaces of accounts there are, those of the last 24 hours included.
    pub accounts: usize,
    /// Whether they may be taken away.
    pub decision: RemovalsDecision,
    /// What confirms them: the value of annotation `spur.amd.com/confirm-removals` of namespace `spur-users`. It
    /// stands for exactly these accounts.
    pub digest: String,
}

impl Removals {
    /// Whether anything may be taken away: accounts, members, users' ServiceAccounts.
    #[must_use]
    pub fn allowed(&self) -> bool {
        match self.decision {
            RemovalsDecision::Allowed | RemovalsDecision::Confirmed => true,
            RemovalsDecision::NotReadInFull | RemovalsDecision::Held => false,
        }
    }
}

/// What has vanished from the source that a projection was made of.
#[must_use]
pub fn removals(projection: &Projection, observed: &Observed, now: SystemTime) -> Removals {
    let known = projection.known.iter().map(|account| names::NAMESPACES.map(account.as_str())).collect();
    judge(projection, &known, observed, now)
}

pub(super) fn judge(
    projection: &Projection,
    known: &BTreeSet<String>,
    observed: &Observed,
    now: SystemTime,
) -> Removals {
    let prefix = &projection.prefix;
    let managed = managed(projection);
    let (mut vanished, mut recent, mut accounts) = (Vec::new(), Vec::new(), 0_usize);
    let managed_namespaces: BTreeSet<String> =
        managed.iter().map(|account| names::NAMESPACES.map(account.as_str())).collect();
    let scoped = |key: &Key, live: &Live| {
        managed_namespaces.contains(&key.name) || in_scope(projection, &managed, live, observed)
    };
    let ours = |(key, live): &(&Key, &Live)| live.is_ours() && names::NAMESPACES.is_mapped(&key.name);
    for (key, live) in observed.of_kind(Kind::Namespace).filter(ours) {
        if !scoped(key, live) {
            continue;
        }
        match retired_at(live, prefix) {
            None => {
                accounts = accounts.saturating_add(1);
                let stays = live.is_terminating() || is_paused(live, prefix);
                if !known.contains(&key.name) && !stays {
                    vanished.push(key.name.clone());
                }
            }
            // One in the future, after the clock was set back, counts as well.
            Some(at) if now.duration_since(at).unwrap_or_default() < WINDOW => {
                accounts = accounts.saturating_add(1);
                recent.push(key.name.clone());
            }
            Some(_) => {}
        }
    }
    let digest = digest(vanished.iter().chain(&recent));
    let gone = vanished.len().saturating_add(recent.len());
    let many = gone > MANY || (gone >= SOME && gone.saturating_mul(5) > accounts);
    let users = observed.get(&Key::cluster(Kind::Namespace, names::USERS_NAMESPACE));
    let confirmed = users.and_then(|users| annotation(users, prefix, names::CONFIRMED));
    let decision = if projection.completeness == Completeness::Partial {
        RemovalsDecision::NotReadInFull
    } else if vanished.is_empty() || !many {
        RemovalsDecision::Allowed
    } else if confirmed == Some(&digest) {
        RemovalsDecision::Confirmed
    } else {
        RemovalsDecision::Held
    };
    Removals { vanished, recent, accounts, decision, digest }
}

/// What stands for a set of namespaces.
fn digest<'a>(namespaces: impl Iterator<Item = &'a String>) -> String {
    let namespaces: BTreeSet<_> = namespaces.collect();
    let mut hash = Sha256::new();
    for namespace in namespaces {
        hash.update(namespace);
        hash.update("\n");
    }
    let bits = hash.finalize().iter().take(6).fold(0_u64, |bits, byte| (bits << 8) | u64::from(*byte));
    format!("{bits:012x}")
}

/// The accounts in the policy's scope, where it has one.
fn managed(projection: &Projection) -> BTreeSet<&AccountName> {
    if projection.scope.is_empty() {
        return BTreeSet::new();
    }
    let projected = projection.accounts.iter().map(|account| &account.account);
    let stopped = projection.stopped.iter().map(|stopped| &stopped.account);
    projected.chain(stopped).chain(&projection.scope).collect()
}

/// Whether a namespace that the source does not name was in the policy's scope, by the parents that it had.
fn in_scope(
    projection: &Projection,
    managed: &BTreeSet<&AccountName>,
    live: &Live,
    observed: &Observed,
) -> bool {
    if projection.scope.is_empty() {
        return true;
    }
    let mut live = live;
    let mut seen = BTreeSet::new();
    let mut name = annotation(live, &projection.prefix, "account-name");
    while let Some(account) = name.and_then(|name| name.parse::<AccountName>().ok()) {
        if Model::is_root(&account) || !seen.insert(account.clone()) {
            break;
        }
        if managed.contains(&account) {
            return true;
        }
        let namespace = names::NAMESPACES.map(account.as_str());
        let Some(above) = observed.get(&Key::cluster(Kind::Namespace, &namespace)) else { break };
        live = above;
        name = annotation(live, &projection.prefix, "parent");
    }
    projection.scope.iter().any(Model::is_root)
}

/// An annotation of ours.
pub(in crate::cluster) fn annotation<'a>(live: &'a Live, prefix: &str, name: &str) -> Option<&'a str> {
    let annotations = live.value().pointer("/metadata/annotations")?;
    annotations.get(format!("{prefix}/{name}"))?.as_str()
}

/// Since when a namespace is retired; one that does not say so is since ever.
pub(in crate::cluster) fn retired_at(live: &Live, prefix: &str) -> Option<SystemTime> {
    let label = live.value().pointer("/metadata/labels")?.get(format!("{prefix}/{}", names::STATE))?;
    if label.as_str() != Some(names::RETIRED) {
        return None;
    }
    let at = annotation(live, prefix, names::RETIRED_AT).and_then(parse_time);
    Some(at.unwrap_or(SystemTime::UNIX_EPOCH))
}

/// Whether a namespace has the annotation that suspends us.
pub(in crate::cluster) fn is_paused(live: &Live, prefix: &str) -> bool {
    annotation(live, prefix, names::PAUSED).is_some_and(|value| value != "false")
}

/// The step that takes a confirmation away which has served.
pub(super) fn forget_confirmation(observed: &Observed, prefix: &str) -> Option<Step> {
    let key = Key::cluster(Kind::Namespace, names::USERS_NAMESPACE);
    let live = observed.get(&key).filter(|live| live.is_ours() && !is_paused(live, prefix))?;
    annotation(live, prefix, names::CONFIRMED)?;
    let name = format!("{prefix}/{}", names::CONFIRMED);
    let fields = vec![format!("metadata.annotations.{name}")];
    let foreign = json!({ "metadata": { "annotations": { name: null } } });
    let foreign = foreign.as_object().cloned().unwrap_or_default();
    let patch = removal_patch(foreign, live.text("/metadata/resourceVersion"));
    let action = Action::Remove { fields, patch, seen: without_status(live.value()) };
    Some(step(key, action, "has let through what it was meant for"))
}

impl Planner<'_> {
    pub(super) fn is_paused(&self, namespace: &str) -> bool {
        let live = self.observed.get(&Key::cluster(Kind::Namespace, namespace));
        live.is_some_and(|live| is_paused(live, self.prefix))
    }

    /// Marks the namespace first, so that the removal counts even when the run is cut; then takes access away and
    /// closes the quota.
    pub(super) fn retire(&self, namespace: &str, now: SystemTime) -> Result<AccountPlan, String> {
        let key = Key::cluster(Kind::Namespace, namespace);
        let Some(live) = self.observed.get(&key) else { return Err(format!("{key} is not there")) };
        self.ownership(&key, live)?;
        let name = annotation(live, self.prefix, "account-name").and_then(|name| name.parse().ok());
        let unprefixed = || namespace.strip_prefix("spur-acct-").and_then(|name| name.parse().ok());
        let account: AccountName =
            name.or_else(unprefixed).ok_or_else(|| format!("{key} does not say whose it is"))?;
        let labels = self.retired_labels(live);
        let mut restrict = self.differences(key, retired_namespace(live, self.prefix, &labels, now), live);
        for step in &mut restrict {
            "the account is gone from the source".clone_into(&mut step.reason);
        }
        for name in [names::MEMBERS, names::COORDINATORS] {
            let key = Key::namespaced(Kind::RoleBinding, namespace, name);
            let live = self.observed.get(&key).filter(|live| !live.is_terminating());
            restrict.extend(live.map(|live| delete(key, live, "the account is gone from the source")));
        }
        restrict.extend(self.closed(namespace, &labels)?);
        Ok(AccountPlan {
            account,
            namespace: namespace.to_owned(),
            restrict,
            quotas: Vec::new(),
            wait: false,
            admit: Vec::new(),
        })
    }

    fn retired_labels(&self, live: &Live) -> Map<String, Value> {
        let ours =
            |key: &String| key.starts_with(names::POD_SECURITY) || *key == format!("{}/account", self.prefix);
        let labels = live.value().pointer("/metadata/labels").and_then(Value::as_object);
        let labels = labels.into_iter().flatten().filter(|(key, _)| ours(key));
        let mut labels: Map<_, _> = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
        labels.insert(names::MANAGED_BY.to_owned(), names::MANAGER.into());
        labels
    }

    /// The account's quota with every cap at zero.
    fn closed(&self, namespace: &str, labels: &Map<String, Value>) -> Result<Vec<Step>, String> {
        let key = Key::namespaced(Kind::ResourceQuota, namespace, names::QUOTA);
        let live = self.observed.get(&key);
        let mut labels = labels.clone();
        labels.retain(|key, _| !key.starts_with(names::POD_SECURITY));
        let hard = live.and_then(|live| live.value().pointer("/spec/hard")).and_then(Value::as_object);
        let wanted = json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": { "name": names::QUOTA, "namespace": namespace, "labels": labels },
            "spec": { "hard": closed(hard) },
        });
        self.quota(key, &wanted, live)
    }
}

fn retired_namespace(live: &Live, prefix: &str, labels: &Map<String, Value>, now: SystemTime) -> Value {
    let mut labels = labels.clone();
    labels.insert(format!("{prefix}/{}", names::STATE), names::RETIRED.into());
    let mut annotations = Map::new();
    for name in ANNOTATIONS {
        if let Some(value) = annotation(live, prefix, name) {
            annotations.insert(format!("{prefix}/{name}"), value.into());
        }
    }
    let at = annotation(live, prefix, names::RETIRED_AT).filter(|at| parse_time(at).is_some());
    let at = at.map_or_else(|| format_time(now), str::to_owned);
    annotations.insert(format!("{prefix}/{}", names::RETIRED_AT), at.into());
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": live.text("/metadata/name"), "labels": labels, "annotations": annotations },
    })
}

#[cfg(test)]
mod tests;
