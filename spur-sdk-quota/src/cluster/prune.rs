//! Deletes namespaces of retired accounts.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::plan::{removal, removal::retired_at};
use super::{ClusterApi, Key, Kind, Live, Observed, Selection, StepError};
use crate::project::names;
use crate::timestamp::format_time;

/// What a namespace holds that somebody may miss.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Holdings {
    /// Pods that have not ended, sorted.
    pub pods: Vec<String>,
    /// PersistentVolumeClaims, sorted.
    pub claims: Vec<String>,
}

impl Holdings {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.claims.is_empty()
    }
}

/// `2 PersistentVolumeClaims (data, logs) and 1 running pod (web-0)`.
impl fmt::Display for Holdings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |what: &str, names: &[String]| {
            let shown: Vec<_> = names.iter().take(3).map(String::as_str).collect();
            let more = if names.len() > shown.len() { ", …" } else { "" };
            let plural = if names.len() == 1 { "" } else { "s" };
            format!("{} {what}{plural} ({}{more})", names.len(), shown.join(", "))
        };
        let claims = part("PersistentVolumeClaim", &self.claims);
        let pods = part("running pod", &self.pods);
        match (self.claims.is_empty(), self.pods.is_empty()) {
            (false, false) => write!(f, "{claims} and {pods}"),
            (false, true) => f.write_str(&claims),
            (true, false) => f.write_str(&pods),
            (true, true) => f.write_str("nothing"),
        }
    }
}

/// Reads what a namespace holds.
pub(crate) async fn holdings<A: ClusterApi>(api: &A, namespace: &str) -> Result<Holdings, StepError> {
    let mut holdings = Holdings::default();
    for kind in [Kind::Pod, Kind::PersistentVolumeClaim] {
        let key = Key::cluster(Kind::Namespace, namespace);
        let list = api.list(kind, Selection::In(namespace)).await;
        for object in list.map_err(StepError::request("list what is in", &key))?.items {
            let text =
                |pointer| object.pointer(pointer).and_then(serde_json::Value::as_str).unwrap_or_default();
            let name = text("/metadata/name").to_owned();
            match kind {
                Kind::Pod if matches!(text("/status/phase"), "Succeeded" | "Failed") => {}
                Kind::Pod => holdings.pods.push(name),
                _ => holdings.claims.push(name),
            }
        }
    }
    holdings.pods.sort();
    holdings.claims.sort();
    Ok(holdings)
}

/// What is pruned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneOptions {
    /// Only these namespaces or accounts. Default: empty, all that are retired.
    pub only: BTreeSet<String>,
    /// Only what has been retired for so long. Default: 24 h, since what was retired within a day is the memory of the
    /// guard against mass removal.
    pub retired_for: Duration,
    /// Also what holds running pods or PersistentVolumeClaims, which are deleted with it. Default: no.
    pub delete_data: bool,
}

impl Default for PruneOptions {
    fn default() -> Self {
        Self { only: BTreeSet::new(), retired_for: super::SHORTEST_GRACE, delete_data: false }
    }
}

impl PruneOptions {
    /// Prunes only these namespaces or accounts.
    #[must_use]
    pub fn only(mut self, value: impl IntoIterator<Item = String>) -> Self {
        self.only = value.into_iter().collect();
        self
    }

    /// Prunes only what has been retired for so long.
    #[must_use]
    pub fn retired_for(mut self, value: Duration) -> Self {
        self.retired_for = value;
        self
    }

    /// Deletes running pods and PersistentVolumeClaims as well.
    #[must_use]
    pub fn delete_data(mut self, value: bool) -> Self {
        self.delete_data = value;
        self
    }
}

/// Why a namespace is not deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kept {
    /// It is being deleted already.
    BeingDeleted,
    /// Somebody has suspended what we do in it.
    Paused,
    /// It has not been retired for as long as was asked for.
    TooYoung,
    /// It holds running pods or PersistentVolumeClaims.
    HoldsData,
    /// It does not say since when it is retired.
    Undated,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BeingDeleted => "being deleted already",
            Self::Paused => "paused by an annotation",
            Self::TooYoung => "not retired for that long (--retired-for)",
            Self::Undated => "without the annotation that says since when it is retired",
            Self::HoldsData => "holds data (--delete-data deletes it as well)",
        })
    }
}

/// A namespace of a retired account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Prunable {
    /// The namespace.
    pub namespace: String,
    /// Its account.
    pub account: String,
    /// Since when it is retired, RFC 3339.
    pub retired_at: String,
    /// What it holds.
    pub holdings: Holdings,
    /// Why it is not deleted; `None` when it is.
    pub kept: Option<Kept>,
    /// Only if it still is this one.
    #[serde(skip)]
    uid: String,
    /// And has not changed: an account that came back has another version.
    #[serde(skip)]
    resource_version: String,
}

/// What pruning deletes, and what it leaves and why. Sorted by namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
#[non_exhaustive]
pub struct PrunePlan {
    /// Namespaces of retired accounts.
    pub namespaces: Vec<Prunable>,
}

/// Plans pruning; reads what the namespaces hold. `prefix` is the policy's.
///
/// # Errors
/// What a namespace holds cannot be read.
///
/// # Cancellation
/// Leaves nothing behind.
pub async fn plan_prune<A: ClusterApi>(
    api: &A,
    observed: &Observed,
    prefix: &str,
    options: &PruneOptions,
    now: SystemTime,
) -> Result<PrunePlan, StepError> {
    let mut plan = PrunePlan::default();
    let ours = |(key, live): &(&Key, &Live)| live.is_ours() && names::NAMESPACES.is_mapped(&key.name);
    for (key, live) in observed.of_kind(Kind::Namespace).filter(ours) {
        let Some(at) = retired_at(live, prefix) else { continue };
        let account = removal::annotation(live, prefix, "account-name").unwrap_or_default().to_owned();
        if !options.only.is_empty() && !options.only.contains(&key.name) && !options.only.contains(&account) {
            continue;
        }
        let holdings = holdings(api, &key.name).await?;
        let young = now.duration_since(at).unwrap_or_default() < options.retired_for;
        let kept = if live.is_terminating() {
            Some(Kept::BeingDeleted)
        } else if removal::is_paused(live, prefix) {
            Some(Kept::Paused)
        } else if at == SystemTime::UNIX_EPOCH {
            Some(Kept::Undated)
        } else if young {
            Some(Kept::TooYoung)
        } else if !holdings.is_empty() && !options.delete_data {
            Some(Kept::HoldsData)
        } else {
            None
        };
        plan.namespaces.push(Prunable {
            namespace: key.name.clone(),
            account,
            retired_at: format_time(at),
            holdings,
            kept,
            uid: live.text("/metadata/uid").to_owned(),
            resource_version: live.text("/metadata/resourceVersion").to_owned(),
        });
    }
    Ok(plan)
}

/// Deletes what a plan says, one after the other; gives what failed.
///
/// # Cancellation
/// Leaves deleted what has been deleted.
pub async fn prune<A: ClusterApi>(api: &A, plan: &PrunePlan) -> Vec<StepError> {
    let mut failed = Vec::new();
    for prunable in plan.namespaces.iter().filter(|prunable| prunable.kept.is_none()) {
        let key = Key::cluster(Kind::Namespace, &prunable.namespace);
        let deleted = api.delete(&key, &prunable.uid, &prunable.resource_version).await;
        failed.extend(deleted.map_err(StepError::request("delete", &key)).err());
    }
    failed
}
