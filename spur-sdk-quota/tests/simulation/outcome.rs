//! How a run ends once all faults are over.

use std::time::Duration;

use serde_json::Value;
use spur_sdk::Clock;
use spur_sdk_quota::cluster::{Key, Kind, PlanOptions, Removals, observe, plan, removals};
use spur_sdk_quota::{Completeness, Projection, QuotaProjector, names};
use tokio::time::sleep;

use crate::facts::{binds, caps, is_ours, is_retired};
use crate::invariants::write_since;
use crate::world::{FOREIGN, World, namespace_of};

/// How long it may take until everything is in step: the longest pause between two tries, and some.
const IN_STEP_WITHIN: Duration = Duration::from_mins(15);

/// How long a watch may be silent before its connection counts as dead, and some for a list.
const DEAD_WATCHES: Duration = Duration::from_secs(170);

/// What the cluster lacks of what the site says.
async fn lacking(world: &World) -> Option<String> {
    let observed = observe(&world.cluster.client("reader")).await.unwrap();
    let projector =
        QuotaProjector::new(&world.policy).default_priority_class(observed.default_priority_class());
    let mut projection = projector.project(&world.site.model());
    if projection.accounts.is_empty() {
        // A source that names nobody is not believed, so what was there stays.
        return None;
    }
    let removals = removals(&projection, &observed, world.clock.now());
    if !removals.allowed() {
        projection.completeness = Completeness::Partial;
    }
    let planned = plan(&projection, &observed, &PlanOptions::default());
    if !planned.is_empty() {
        return Some(format!("still planned:\n{planned}"));
    }
    let foreign = planned
        .refused
        .iter()
        .find(|refusal| refusal.account.as_ref().is_none_or(|account| account.as_str() != FOREIGN));
    if let Some(refusal) = foreign {
        return Some(format!("refused: {}", refusal.reason));
    }
    lacking_removals(world, &projection, &removals)
}

fn lacking_removals(world: &World, projection: &Projection, removals: &Removals) -> Option<String> {
    let objects = world.cluster.objects();
    if removals.allowed() && !removals.vanished.is_empty() {
        return Some(format!("not retired: {:?}", removals.vanished));
    }
    let retired = |(key, value): &(&Key, &std::sync::Arc<Value>)| {
        key.kind == Kind::Namespace
            && key.name.starts_with("spur-acct-")
            && is_ours(value)
            && is_retired(value)
    };
    for (key, _) in objects.iter().filter(retired) {
        let members = Key::namespaced(Kind::RoleBinding, &key.name, names::MEMBERS);
        if objects.contains_key(&members) {
            return Some(format!("{members} of a retired account is still there"));
        }
        let quota = Key::namespaced(Kind::ResourceQuota, &key.name, names::QUOTA);
        let closed = objects.get(&quota).is_some_and(|quota| {
            let caps = caps(quota);
            binds(quota)
                && caps.get("pods") == Some(&0)
                && caps.iter().all(|(key, cap)| key == "resourcequotas" || *cap == 0)
        });
        if !closed {
            return Some(format!("{quota} of a retired account is not closed"));
        }
    }
    let gone = |key: &&Key| {
        let user =
            key.kind == Kind::ServiceAccount && key.namespace.as_deref() == Some(names::USERS_NAMESPACE);
        let known = projection.known_users.iter();
        let mut known = known.map(|user| names::SERVICE_ACCOUNTS.map(user.as_str()));
        user && key.name.starts_with("spur-user-") && !known.any(|name| name == key.name)
    };
    let user = objects.keys().find(gone).filter(|_| removals.allowed());
    user.map(|user| format!("{user} is in no account and still there"))
}

/// Waits until the cluster is as the site says, and stays so without another write.
pub(crate) async fn settle(world: &mut World) -> Result<(), String> {
    let start = world.cluster.elapsed();
    loop {
        sleep(Duration::from_secs(20)).await;
        let Some(lacking) = lacking(world).await else { break };
        if world.cluster.elapsed() > start + IN_STEP_WITHIN {
            return Err(format!("not in step after {IN_STEP_WITHIN:?}: {lacking}"));
        }
    }
    // A watch whose connection died is noticed by its silence alone, and until then what it tells of is written again.
    sleep((start + DEAD_WATCHES).saturating_sub(world.cluster.elapsed())).await;
    let still = world.cluster.elapsed();
    sleep(Duration::from_mins(2)).await;
    if let Some(write) = write_since(world, still) {
        return Err(format!("written although everything is in step: {write}"));
    }
    if let Some(lacking) = lacking(world).await {
        return Err(format!("was in step and is no more: {lacking}"));
    }
    let foreign = world.cluster.object(&Key::cluster(Kind::Namespace, &namespace_of(FOREIGN)));
    let theirs =
        |foreign: Value| foreign.pointer("/metadata/labels/team").is_some_and(|team| team == "theirs");
    if foreign.is_some_and(|foreign| !theirs(foreign)) {
        return Err("the namespace of somebody else has changed".to_owned());
    }
    Ok(())
}
