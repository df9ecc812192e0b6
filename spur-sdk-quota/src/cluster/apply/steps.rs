//! One write at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;
use spur_sdk::{Classify, ErrorKind};
use tokio::time::{Instant, sleep};

use super::ApplyOptions;
use crate::cluster::diff::binds;
use crate::cluster::plan::{AccountPlan, Action, Step, without_status};
use crate::cluster::{ApiError, ClusterApi, Key, Kind, StepError, get};
use crate::project::names;

/// What steps did.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Writes {
    pub(in crate::cluster) count: usize,
    /// What each object that was written is now.
    pub(in crate::cluster) written: Vec<Written>,
}

/// An object that was applied, patched or deleted.
#[derive(Debug)]
pub(in crate::cluster) struct Written {
    pub(in crate::cluster) key: Key,
    /// Which one it is: a status of an earlier one with its name says nothing.
    pub(in crate::cluster) uid: String,
    /// Its version; `None` when it was deleted.
    pub(in crate::cluster) version: Option<String>,
}

impl Writes {
    fn set(&mut self, key: &Key, object: &Value) {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        self.count = self.count.saturating_add(1);
        self.written.push(Written {
            key: key.clone(),
            uid: text("/metadata/uid"),
            version: Some(text("/metadata/resourceVersion")),
        });
    }

    pub(in crate::cluster) fn deleted(&mut self, key: &Key, uid: &str) {
        self.count = self.count.saturating_add(1);
        self.written.push(Written { key: key.clone(), uid: uid.to_owned(), version: None });
    }

    pub(in crate::cluster) fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.written.extend(other.written);
    }
}

/// Does one step; the error names it.
pub(in crate::cluster) async fn carry_out<A: ClusterApi>(
    api: &A,
    step: &Step,
    options: &ApplyOptions,
) -> Result<Writes, StepError> {
    let key = &step.target;
    let mut writes = Writes::default();
    match &step.action {
        Action::Create { object } | Action::Update { object, .. } => {
            let applied = api.apply(key, object).await.map_err(StepError::request("apply", key))?;
            writes.set(key, &applied);
        }
        Action::Remove { patch, seen, .. } => {
            let removed = remove(api, key, patch, seen).await;
            writes.set(key, &removed.map_err(StepError::request("remove foreign fields of", key))?);
        }
        Action::Delete { uid, resource_version } => {
            let deleted = delete(api, key, uid, resource_version).await;
            deleted.map_err(StepError::request("delete", key))?;
            writes.deleted(key, uid);
        }
        Action::Replace { closing, object, uid, resource_version } => {
            let closing_key = Key { name: names::CLOSING_QUOTA.to_owned(), ..key.clone() };
            let closed = api.apply(&closing_key, closing).await;
            let closed = closed.map_err(StepError::request("close the namespace with", &closing_key))?;
            wait_bound(api, &closing_key, closing, options.binding_timeout).await?;
            let deleted = delete(api, key, uid, resource_version).await;
            deleted.map_err(StepError::request("delete", key))?;
            let applied = api.apply(key, object).await.map_err(StepError::request("apply", key))?;
            wait_bound(api, key, object, options.binding_timeout).await?;
            let text = |pointer| closed.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let (uid, version) = (text("/metadata/uid"), text("/metadata/resourceVersion"));
            let opened = delete(api, &closing_key, uid, version).await;
            opened.map_err(StepError::request("open the namespace again by deleting", &closing_key))?;
            writes.set(key, &applied);
            writes.deleted(&closing_key, uid);
            // The closing quota was made, and the old one deleted.
            writes.count = writes.count.saturating_add(2);
        }
    }
    Ok(writes)
}

/// Deletes an object if it still is the one that was planned for. A busy quota gets another version with every
/// pod, so another version of the same object counts as the same.
async fn delete<A: ClusterApi>(
    api: &A,
    key: &Key,
    uid: &str,
    resource_version: &str,
) -> Result<(), ApiError> {
    const TRIES: usize = 5;
    let mut version = resource_version.to_owned();
    for _ in 0..TRIES {
        match api.delete(key, uid, &version).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let Some(live) = get(api, key).await? else { return Ok(()) };
                let text = |pointer| live.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                if text("/metadata/uid") != uid {
                    return Err(error);
                }
                text("/metadata/resourceVersion").clone_into(&mut version);
            }
            result => return result,
        }
    }
    api.delete(key, uid, &version).await
}

/// Removes what is foreign from the version that was planned for. A version that differs in status alone, as
/// a busy quota's does all the time, counts as the same.
async fn remove<A: ClusterApi>(api: &A, key: &Key, patch: &Value, seen: &Value) -> Result<Value, ApiError> {
    const TRIES: usize = 5;
    let mut patch = patch.clone();
    for _ in 0..TRIES {
        match api.merge(key, &patch).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let live = get(api, key).await?.unwrap_or_default();
                let version = live.pointer("/metadata/resourceVersion").cloned();
                match (patch.get_mut("metadata").and_then(Value::as_object_mut), version) {
                    (Some(metadata), Some(version)) if without_status(&live) == *seen => {
                        metadata.insert("resourceVersion".to_owned(), version);
                    }
                    _ => return Err(error),
                }
            }
            result => return result,
        }
    }
    api.merge(key, &patch).await
}

async fn wait_bound<A: ClusterApi>(
    api: &A,
    key: &Key,
    wanted: &Value,
    timeout: Duration,
) -> Result<(), StepError> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let live = get(api, key).await.map_err(StepError::request("read", key))?;
        if live.is_some_and(|live| binds(wanted, &live)) {
            return Ok(());
        }
        if is_past(deadline) {
            return Err(StepError::NotBound { target: key.clone(), waited: timeout });
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Writes an account's restricting steps: the namespace, then what is in it at once, and the quota that counts last.
///
/// The API server charges a new object to that quota before it stores the object. Where a run is cut in between, the
/// charge stays until Kubernetes counts anew, minutes later; runs that are cut again and again would use up the quota's
/// own count of quotas and keep the other one out.
pub(in crate::cluster) async fn restrict<'p, A: ClusterApi>(
    account: &'p AccountPlan,
    api: &A,
    options: &ApplyOptions,
) -> (&'p AccountPlan, Writes, Option<StepError>) {
    let mut writes = Writes::default();
    // Steps on one object keep their order; steps on different ones need none.
    let (first, rest): (Vec<_>, Vec<_>) =
        account.restrict.iter().partition(|step| step.target.kind == Kind::Namespace);
    let (last, rest): (Vec<_>, Vec<_>) = rest
        .into_iter()
        .partition(|step| step.target.kind == Kind::ResourceQuota && step.target.name == names::QUOTA);
    let mut targets: BTreeMap<&Key, Vec<&Step>> = BTreeMap::new();
    for step in rest {
        targets.entry(&step.target).or_default().push(step);
    }
    for step in first {
        match carry_out(api, step, options).await {
            Ok(done) => writes.add(done),
            Err(error) => return (account, writes, Some(error)),
        }
    }
    // At most one future per object of an account, of which there are three.
    let mut inside: FuturesUnordered<_> =
        targets.into_values().map(|steps| in_order(api, steps, options)).collect();
    let mut failed = None;
    while let Some((done, error)) = inside.next().await {
        writes.add(done);
        failed = failed.or(error);
    }
    // Whatever failed: it restricts those who are in already.
    let (done, error) = in_order(api, last, options).await;
    writes.add(done);
    (account, writes, failed.or(error))
}

async fn in_order<A: ClusterApi>(
    api: &A,
    steps: Vec<&Step>,
    options: &ApplyOptions,
) -> (Writes, Option<StepError>) {
    let mut writes = Writes::default();
    for step in steps {
        match carry_out(api, step, options).await {
            Ok(done) => writes.add(done),
            Err(error) => return (writes, Some(error)),
        }
    }
    (writes, None)
}

pub(in crate::cluster) async fn admit<'p, A: ClusterApi>(
    account: &'p AccountPlan,
    api: &A,
    options: &ApplyOptions,
) -> (&'p AccountPlan, Writes, Option<StepError>) {
    let (writes, failed) = in_order(api, account.admit.iter().collect(), options).await;
    (account, writes, failed)
}

/// Whether a deadline has come; one beyond what the clock can hold never does.
pub(super) fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}
