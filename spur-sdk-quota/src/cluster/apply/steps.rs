//! One write at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;
use spur_sdk::{Classify, ErrorKind, error_chain};
use tokio::time::{Instant, sleep};

use super::ApplyOptions;
use crate::cluster::diff::binds;
use crate::cluster::plan::{AccountPlan, Action, Step, without_status};
use crate::cluster::{ApiError, ClusterApi, Key, Kind, get};
use crate::project::names;

/// What steps did.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub(super) count: usize,
    /// The identity of each object that was applied: a status of an earlier one with its name says nothing.
    pub(super) uids: Vec<(Key, String)>,
}

impl Writes {
    fn applied(key: &Key, object: &Value) -> Self {
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
        Self { count: 1, uids: uid.map(|uid| (key.clone(), uid.to_owned())).into_iter().collect() }
    }

    fn others(count: usize) -> Self {
        Self { count, uids: Vec::new() }
    }

    fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.uids.extend(other.uids);
    }
}

/// Does one step; the error names it.
pub(super) async fn carry_out<A: ClusterApi>(
    api: &A,
    step: &Step,
    options: &ApplyOptions,
) -> Result<Writes, String> {
    let key = &step.target;
    match &step.action {
        Action::Create { object } | Action::Update { object, .. } => {
            let applied = api.apply(key, object).await.map_err(|error| named("apply", key, &error))?;
            Ok(Writes::applied(key, &applied))
        }
        Action::Remove { patch, seen, .. } => {
            let removed = remove(api, key, patch, seen).await;
            removed.map_err(|error| named("remove foreign fields of", key, &error))?;
            Ok(Writes::others(1))
        }
        Action::Delete { uid, resource_version } => {
            let deleted = delete(api, key, uid, resource_version).await;
            deleted.map_err(|error| named("delete", key, &error))?;
            Ok(Writes::others(1))
        }
        Action::Replace { closing, object, uid, resource_version } => {
            let closing_key = Key { name: names::CLOSING_QUOTA.to_owned(), ..key.clone() };
            let closed = api.apply(&closing_key, closing).await;
            let closed = closed.map_err(|error| named("close the namespace with", &closing_key, &error))?;
            wait_bound(api, &closing_key, closing, options.binding_timeout).await?;
            let deleted = delete(api, key, uid, resource_version).await;
            deleted.map_err(|error| named("delete", key, &error))?;
            let applied = api.apply(key, object).await.map_err(|error| named("apply", key, &error))?;
            wait_bound(api, key, object, options.binding_timeout).await?;
            let text = |pointer| closed.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let opened =
                delete(api, &closing_key, text("/metadata/uid"), text("/metadata/resourceVersion")).await;
            opened.map_err(|error| named("open the namespace again by deleting", &closing_key, &error))?;
            let mut writes = Writes::applied(key, &applied);
            writes.add(Writes::others(3));
            Ok(writes)
        }
    }
}

fn named(action: &str, key: &Key, error: &ApiError) -> String {
    format!("{action} {key}: {}", error_chain(error))
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
async fn remove<A: ClusterApi>(api: &A, key: &Key, patch: &Value, seen: &Value) -> Result<(), ApiError> {
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
) -> Result<(), String> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let live = get(api, key).await.map_err(|error| format!("read {key}: {}", error_chain(&error)))?;
        if live.is_some_and(|live| binds(wanted, &live)) {
            return Ok(());
        }
        if is_past(deadline) {
            return Err(format!("{key} does not bind after {} s; run again to go on", timeout.as_secs()));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Writes an account's restricting steps: the namespace, then what is in it at once, and the quota that counts last.
///
/// The API server charges a new object to that quota before it stores the object. Where a run is cut in between, the
/// charge stays until Kubernetes counts anew, minutes later; runs that are cut again and again would use up the quota's
/// own count of quotas and keep the other one out.
pub(super) async fn restrict<'p, A: ClusterApi>(
    account: &'p AccountPlan,
    api: &A,
    options: &ApplyOptions,
) -> (&'p AccountPlan, Writes, Option<String>) {
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
) -> (Writes, Option<String>) {
    let mut writes = Writes::default();
    for step in steps {
        match carry_out(api, step, options).await {
            Ok(done) => writes.add(done),
            Err(error) => return (writes, Some(error)),
        }
    }
    (writes, None)
}

pub(super) async fn admit<'p, A: ClusterApi>(
    account: &'p AccountPlan,
    api: &A,
    options: &ApplyOptions,
) -> (&'p AccountPlan, Writes, Option<String>) {
    let (writes, failed) = in_order(api, account.admit.iter().collect(), options).await;
    (account, writes, failed)
}

/// Whether a deadline has come; one beyond what the clock can hold never does.
pub(super) fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}
