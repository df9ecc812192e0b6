use std::sync::Mutex;

use serde_json::json;
use spur_sdk::{Classify, ErrorKind};
use tokio::time::{sleep, timeout};

use super::*;
use crate::cluster::{
    ClusterApi, EventApi, EventKind, Kind, LeaseApi, PlanOptions, Selection, WatchEvent, apply, observe, plan,
};
use crate::project::names;
use crate::{Completeness, Model, Origin, Policy, QuotaProjector};

fn quota_key(namespace: &str) -> Key {
    Key::namespaced(Kind::ResourceQuota, namespace, names::QUOTA)
}

fn quota(hard: &Value) -> Value {
    json!({ "metadata": { "labels": { names::MANAGED_BY: names::MANAGER } }, "spec": { "hard": hard } })
}

/// A cluster with a namespace `n`, and a client.
fn cluster() -> (ModelCluster, ModelClient) {
    let cluster = ModelCluster::new(7);
    cluster.put("admin", &Key::cluster(Kind::Namespace, "n"), json!({})).unwrap();
    let client = cluster.client("me");
    (cluster, client)
}

fn code(result: Result<impl fmt::Debug, ApiError>) -> u16 {
    match result.unwrap_err() {
        ApiError::Status { code, .. } => code,
        other => panic!("{other}"),
    }
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// What a watch told but for how far it is, by its first words.
fn without_places(told: &Mutex<Vec<String>>) -> Vec<String> {
    let told = told.lock().unwrap();
    let told = told.iter().filter(|line| !line.starts_with("at "));
    told.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

fn version(value: &Value) -> String {
    text(value, "/metadata/resourceVersion")
}

/// Follows a watch in the background; what it told, as `+name` and `-name` with the version.
fn follow(client: &ModelClient, selection: Selection<'static>, version: &str) -> Arc<Mutex<Vec<String>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let (client, version, list) = (client.clone(), version.to_owned(), Arc::clone(&told));
    tokio::spawn(async move {
        let on_event = |event| {
            let of = |object: &Value| {
                format!("{} {}", text(object, "/metadata/name"), super::tests::version(object))
            };
            list.lock().unwrap().push(match event {
                WatchEvent::Changed(object) => format!("+{}", of(&object)),
                WatchEvent::Deleted(object) => format!("-{}", of(&object)),
                WatchEvent::Version(version) => format!("at {version}"),
            });
        };
        let end = client.watch(Kind::ResourceQuota, selection, &version, on_event).await;
        list.lock().unwrap().push(format!("end {end:?}"));
    });
    told
}

#[tokio::test(start_paused = true)]
async fn applying_the_same_again_makes_no_version() {
    let (cluster, client) = cluster();
    let object = quota(&json!({ "pods": "1" }));
    let first = client.apply(&quota_key("n"), &object).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    let bound = cluster.object(&quota_key("n")).unwrap();
    let second = client.apply(&quota_key("n"), &object).await.unwrap();
    assert_ne!(version(&first), version(&bound));
    assert_eq!(version(&bound), version(&second));
    assert_eq!(cluster.requests("me").get(&Verb::Apply), Some(&2));
}

#[tokio::test(start_paused = true)]
async fn a_field_that_is_no_longer_applied_goes_and_a_field_of_others_stays() {
    let (cluster, client) = cluster();
    let key = quota_key("n");
    client.apply(&key, &quota(&json!({ "pods": "1", "services": "2", "secrets": "3" }))).await.unwrap();
    let edit = |live: &mut Value| {
        live["spec"]["hard"]["count/jobs.batch"] = "0".into();
        live["spec"]["hard"]["secrets"] = "4".into();
    };
    assert!(cluster.edit("somebody", &key, edit).unwrap());
    client.apply(&key, &quota(&json!({ "pods": "1" }))).await.unwrap();
    // What somebody has set is somebody's.
    let hard = json!({ "pods": "1", "secrets": "4", "count/jobs.batch": "0" });
    assert_eq!(cluster.object(&key).unwrap()["spec"]["hard"], hard);
    client.apply(&key, &quota(&json!({ "pods": "1", "secrets": "5" }))).await.unwrap();
    client.apply(&key, &quota(&json!({ "pods": "1" }))).await.unwrap();
    // And ours once it was taken back by force.
    assert_eq!(
        cluster.object(&key).unwrap()["spec"]["hard"],
        json!({ "pods": "1", "count/jobs.batch": "0" })
    );
}

#[tokio::test(start_paused = true)]
async fn a_merge_patch_holds_for_its_version_and_for_what_is_there() {
    let (cluster, client) = cluster();
    let key = quota_key("n");
    let patch = |version: &str| json!({ "metadata": { "resourceVersion": version }, "spec": { "hard": { "pods": null } } });
    assert_eq!(code(client.merge(&key, &patch("1")).await), 404);
    let made = client.apply(&key, &quota(&json!({ "pods": "1", "services": "2" }))).await.unwrap();
    cluster.edit("somebody", &key, |live| live["metadata"]["labels"]["a"] = "b".into()).unwrap();
    assert_eq!(code(client.merge(&key, &patch(&version(&made))).await), 409);
    let live = cluster.object(&key).unwrap();
    client.merge(&key, &patch(&version(&live))).await.unwrap();
    assert_eq!(cluster.object(&key).unwrap()["spec"]["hard"], json!({ "services": "2" }));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_holds_for_one_object_at_one_version() {
    let (cluster, client) = cluster();
    let key = quota_key("n");
    let made = client.apply(&key, &quota(&json!({ "pods": "1" }))).await.unwrap();
    let (uid, first) = (text(&made, "/metadata/uid"), version(&made));
    cluster.edit("somebody", &key, |live| live["metadata"]["labels"]["a"] = "b".into()).unwrap();
    assert_eq!(code(client.delete(&key, &uid, &first).await), 409);
    let second = version(&cluster.object(&key).unwrap());
    assert_eq!(code(client.delete(&key, "uid-other", &second).await), 409);
    client.delete(&key, &uid, &second).await.unwrap();
    assert_eq!(cluster.object(&key), None);
    client.delete(&key, &uid, &second).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn scopes_and_roles_cannot_be_changed() {
    let (_, client) = cluster();
    let mut object = quota(&json!({ "pods": "1" }));
    client.apply(&quota_key("n"), &object).await.unwrap();
    object["spec"]["scopes"] = json!(["Terminating"]);
    assert_eq!(code(client.apply(&quota_key("n"), &object).await), 422);
    let key = Key::namespaced(Kind::RoleBinding, "n", names::MEMBERS);
    client.apply(&key, &json!({ "roleRef": { "name": "a" } })).await.unwrap();
    assert_eq!(code(client.apply(&key, &json!({ "roleRef": { "name": "b" } })).await), 422);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_in_two_steps_and_takes_no_more_meanwhile() {
    let (cluster, client) = cluster();
    assert_eq!(code(client.apply(&quota_key("missing"), &quota(&json!({ "pods": "1" }))).await), 404);
    let made = client.apply(&quota_key("n"), &quota(&json!({ "pods": "1" }))).await.unwrap();
    assert!(!version(&made).is_empty());
    let key = Key::cluster(Kind::Namespace, "n");
    let live = cluster.object(&key).unwrap();
    client.delete(&key, &text(&live, "/metadata/uid"), &version(&live)).await.unwrap();
    let going = cluster.object(&key).unwrap();
    assert!(going.pointer("/metadata/deletionTimestamp").is_some());
    assert!(cluster.object(&quota_key("n")).is_some());
    let members = Key::namespaced(Kind::RoleBinding, "n", names::MEMBERS);
    assert_eq!(code(client.apply(&members, &json!({})).await), 403);
    let event = Event::new("n", EventKind::Normal, "R", "m", SystemTime::UNIX_EPOCH);
    assert_eq!(code(client.record(&event).await), 403);
    sleep(Duration::from_secs(11)).await;
    assert_eq!(cluster.object(&key), None);
    assert_eq!(cluster.object(&quota_key("n")), None);
    // Made anew, it is another one.
    client.apply(&key, &json!({})).await.unwrap();
    assert_ne!(text(&cluster.object(&key).unwrap(), "/metadata/uid"), text(&live, "/metadata/uid"));
}

#[tokio::test(start_paused = true)]
async fn a_quota_binds_a_while_after_each_change_unless_the_controllers_stand_still() {
    let (cluster, client) = cluster();
    let status = || cluster.object(&quota_key("n")).unwrap().get("status").cloned();
    client.apply(&quota_key("n"), &quota(&json!({ "pods": "1" }))).await.unwrap();
    assert_eq!(status(), None);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(status(), Some(json!({ "hard": { "pods": "1" }, "used": { "pods": "0" } })));
    cluster.set_used(&quota_key("n"), &json!({ "pods": "1" }));
    cluster.stop_controllers(true);
    client.apply(&quota_key("n"), &quota(&json!({ "pods": "4000M" }))).await.unwrap();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(status(), Some(json!({ "hard": { "pods": "1" }, "used": { "pods": "1" } })));
    cluster.stop_controllers(false);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(status(), Some(json!({ "hard": { "pods": "4G" }, "used": { "pods": "1" } })));
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_what_is_there_and_then_what_changes_within_its_selection() {
    let (cluster, client) = cluster();
    let key = quota_key("n");
    client.apply(&key, &quota(&json!({ "pods": "1" }))).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    cluster.put("somebody", &Key::namespaced(Kind::ResourceQuota, "n", "other"), json!({})).unwrap();
    let told = follow(&client, Selection::Ours, "0");
    sleep(Duration::from_secs(1)).await;
    cluster.edit("somebody", &key, |live| live["metadata"]["labels"] = json!({})).unwrap();
    sleep(Duration::from_secs(1)).await;
    cluster.remove("somebody", &key);
    sleep(Duration::from_secs(1)).await;
    // What leaves the selection is gone; what happens to it after that is none of the watch's business.
    assert_eq!(without_places(&told), ["+spur-quota", "-spur-quota"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_a_list_as_long_as_the_server_remembers() {
    let (cluster, client) = cluster();
    let list = client.list(Kind::ResourceQuota, Selection::All).await.unwrap();
    cluster.put("somebody", &quota_key("n"), quota(&json!({ "pods": "1" }))).unwrap();
    let told = follow(&client, Selection::Named(names::QUOTA), &list.version);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(without_places(&told), ["+spur-quota", "+spur-quota"], "made, and bound");
    cluster.forget();
    let again = client.watch(Kind::ResourceQuota, Selection::All, &list.version, |_| {}).await;
    assert!(again.unwrap_err().is_expired());
    cluster.remember(3);
    let list = client.list(Kind::ResourceQuota, Selection::All).await.unwrap();
    for number in 0..5 {
        cluster.put("somebody", &Key::cluster(Kind::Namespace, &format!("n{number}")), json!({})).unwrap();
    }
    let again = client.watch(Kind::ResourceQuota, Selection::All, &list.version, |_| {}).await;
    assert!(again.unwrap_err().is_expired());
}

#[tokio::test(start_paused = true)]
async fn a_watch_says_every_minute_how_far_it_is_and_ends_by_itself() {
    let (cluster, client) = cluster();
    let minute = Duration::from_mins(1);
    cluster.set_delays(Delays::default().watch_end(4 * minute..=4 * minute));
    let told = follow(&client, Selection::All, "0");
    sleep(Duration::from_mins(5)).await;
    let told = told.lock().unwrap().clone();
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[0].starts_with("at "));
    assert_eq!(told[3], "end Ok(())");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_starts_anew_disconnects_watches() {
    let (cluster, client) = cluster();
    let told = follow(&client, Selection::All, "0");
    sleep(Duration::from_secs(1)).await;
    cluster.disconnect();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(*told.lock().unwrap(), ["end Err(Transport(\"connection refused\"))"]);
}

#[tokio::test(start_paused = true)]
async fn the_guard_refuses_its_probe_a_while_after_it_was_written_and_as_long_as_it_is_bound() {
    let (cluster, client) = cluster();
    let pod = json!({ "metadata": { "name": names::GUARD_PROBE } });
    let refusal = async || client.refusal(names::USERS_NAMESPACE, &pod).await;
    assert_eq!(code(refusal().await), 404);
    let label = json!({ "metadata": { "labels": { names::MANAGED_BY: names::MANAGER } } });
    client.apply(&Key::cluster(Kind::Namespace, names::USERS_NAMESPACE), &label).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(refusal().await, Ok(None));
    let policy = Key::cluster(Kind::ValidatingAdmissionPolicy, names::GUARD_OF_PODS);
    let binding = Key::cluster(Kind::ValidatingAdmissionPolicyBinding, names::GUARD_OF_PODS);
    let version = |message: &str| json!({ "spec": { "validations": [{ "message": message }] } });
    client.apply(&policy, &version("one")).await.unwrap();
    let bound = json!({ "spec": { "policyName": names::GUARD_OF_PODS, "validationActions": ["Deny"] } });
    sleep(Duration::from_secs(2)).await;
    assert_eq!(refusal().await, Ok(None));
    client.apply(&binding, &bound).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    assert!(refusal().await.unwrap().unwrap().ends_with("denied request: one"));
    let live = cluster.object(&policy).unwrap();
    assert_eq!(live.pointer("/status/observedGeneration"), live.pointer("/metadata/generation"));
    client.apply(&policy, &version("two")).await.unwrap();
    assert!(refusal().await.unwrap().unwrap().ends_with("one"), "the older version judges for a while");
    sleep(Duration::from_secs(2)).await;
    assert!(refusal().await.unwrap().unwrap().ends_with("two"));
    cluster.remove("somebody", &binding);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(refusal().await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_written_by_who_read_its_last_version() {
    let (cluster, client) = cluster();
    let (namespace, name) = ("kube-system", "spur-quota");
    assert_eq!(client.read_lease(namespace, name).await, Ok(None));
    let lease = |holder: &str, version: &str| Lease {
        holder: holder.to_owned(),
        version: version.to_owned(),
        ..Lease::default()
    };
    let written = client.write_lease(namespace, name, &lease("a", "")).await.unwrap();
    assert_eq!(code(client.write_lease(namespace, name, &lease("b", "")).await), 409);
    let taken = client.write_lease(namespace, name, &lease("b", &written.version)).await.unwrap();
    assert_eq!(code(client.write_lease(namespace, name, &written).await), 409);
    assert_eq!(client.read_lease(namespace, name).await, Ok(Some(taken)));
    assert_eq!(code(client.write_lease("missing", name, &lease("a", "")).await), 404);
    let holders: Vec<String> = cluster.leases().into_iter().map(|record| record.holder).collect();
    assert_eq!(holders, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn events_are_kept_for_an_hour() {
    let (cluster, client) = cluster();
    let event = Event::new("n", EventKind::Normal, "R", "m", cluster.clock().now());
    client.record(&event).await.unwrap();
    assert_eq!(client.recorded().await.unwrap(), std::slice::from_ref(&event));
    sleep(Duration::from_hours(1)).await;
    assert_eq!(client.recorded().await.unwrap(), []);
    assert_eq!(cluster.events(), [event]);
}

#[tokio::test(start_paused = true)]
async fn a_request_fails_before_its_effect_or_its_answer_is_lost() {
    let (cluster, client) = cluster();
    let key = quota_key("n");
    let object = quota(&json!({ "pods": "1" }));
    cluster.set_faults(Faults::default().refused(1000));
    for _ in 0..20 {
        let error = client.apply(&key, &object).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Conflict), "{error}");
    }
    assert_eq!(cluster.object(&key), None);
    cluster.set_faults(Faults::default().lost(1000));
    assert!(matches!(client.apply(&key, &object).await, Err(ApiError::Transport(_))));
    assert!(cluster.object(&key).is_some());
    cluster.set_faults(Faults::default().hanging(1000));
    let start = Instant::now();
    assert_eq!(client.apply(&key, &object).await, Err(ApiError::Timeout(Duration::from_secs(30))));
    assert!(start.elapsed() >= Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_cut_off_reaches_nothing_and_its_watches_fall_silent() {
    let (cluster, client) = cluster();
    let told = follow(&client, Selection::All, "0");
    sleep(Duration::from_secs(1)).await;
    cluster.cut_off("me", true);
    cluster.put("somebody", &quota_key("n"), quota(&json!({ "pods": "1" }))).unwrap();
    assert!(client.list(Kind::Namespace, Selection::All).await.is_err());
    sleep(Duration::from_mins(1)).await;
    assert_eq!(told.lock().unwrap().len(), 0);
    cluster.cut_off("me", false);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(*told.lock().unwrap(), ["end Err(Timeout(150s))"]);
    client.list(Kind::Namespace, Selection::All).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn watches_that_break_and_fall_silent_lose_no_event_for_who_goes_on_where_they_were() {
    let (cluster, client) = cluster();
    cluster.set_faults(Faults::all(100));
    let key = quota_key("n");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (watching, list) = (client.clone(), Arc::clone(&seen));
    tokio::spawn(async move {
        let mut at = "1".to_owned();
        loop {
            let from = at.clone();
            let on_event = |event| match event {
                WatchEvent::Changed(object) | WatchEvent::Deleted(object) => {
                    at = version(&object);
                    list.lock().unwrap().push(at.clone());
                }
                WatchEvent::Version(version) => at = version,
            };
            let _ = watching.watch(Kind::ResourceQuota, Selection::All, &from, on_event).await;
        }
    });
    for number in 0..200_u32 {
        cluster.put("somebody", &key, quota(&json!({ "pods": number.to_string() }))).unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_mins(20)).await;
    let all: Vec<String> = cluster
        .audit()
        .iter()
        .filter(|record| record.key == key)
        .map(|record| version(record.after.as_ref().unwrap()))
        .collect();
    assert!(all.len() > 200);
    assert_eq!(*seen.lock().unwrap(), all);
}

#[tokio::test(start_paused = true)]
async fn a_projection_that_was_applied_leaves_nothing_to_plan() {
    let cluster = ModelCluster::new(11);
    let client = cluster.client("me");
    let origin = Origin::store("test");
    let mut model = Model::default();
    model.add_account(&origin, "physics", None, "cpu=16,mem=32768,gres/gpu=8").unwrap();
    model.add_account(&origin, "chemistry", None, "cpu=1500m,mem=1000").unwrap();
    model.add_member(&origin, "physics", "alice").unwrap();
    model.add_member(&origin, "chemistry", "bob").unwrap();
    model.completeness = Completeness::Full;
    let projection = QuotaProjector::new(&Policy::default()).project(&model);
    let planned = plan(&projection, &observe(&client).await.unwrap(), &PlanOptions::default());
    assert!(!planned.is_empty());
    let options = crate::cluster::ApplyOptions::default();
    let report = timeout(Duration::from_mins(2), apply(&planned, &client, &options)).await.unwrap();
    assert!(report.is_complete(), "{report:?}");
    let again = plan(&projection, &observe(&client).await.unwrap(), &PlanOptions::default());
    assert!(again.is_empty(), "{again}");
    // Everybody was let in after the quota bound.
    let audit = cluster.audit();
    for namespace in ["spur-acct-physics", "spur-acct-chemistry"] {
        let at = |key: &Key, ready: fn(&Value) -> bool| {
            let is = |record: &&Record| record.key == *key && record.after.as_deref().is_some_and(ready);
            audit.iter().find(is).unwrap().at
        };
        let bound = at(&quota_key(namespace), |quota| quota.pointer("/status/hard").is_some());
        let members = Key::namespaced(Kind::RoleBinding, namespace, names::MEMBERS);
        assert!(bound < at(&members, |_| true));
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_history() {
    async fn history() -> Vec<String> {
        let cluster = ModelCluster::new(3);
        cluster.set_faults(Faults::all(100));
        let client = cluster.client("me");
        for number in 0..50_u32 {
            let key = Key::cluster(Kind::Namespace, &format!("n{}", number % 7));
            let _ =
                client.apply(&key, &json!({ "metadata": { "labels": { "a": number.to_string() } } })).await;
            let _ = client.apply(&quota_key(&key.name), &quota(&json!({ "pods": "1" }))).await;
        }
        sleep(Duration::from_secs(10)).await;
        cluster.audit().iter().map(ToString::to_string).collect()
    }
    let first = history().await;
    assert!(first.len() > 50, "{}", first.len());
    assert_eq!(first, history().await);
}
