//! Drift is put back, a pause suspends that, what is not ours is left alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use spur_sdk_quota::cluster::{ControllerOptions, Key, Kind, Report, State};
use spur_system_tests::eventually;
use spur_system_tests::reconciler::{Scene, content, events, objects};
use spur_test_control_plane::{Component, ControlPlane};
use tokio::time::sleep;

use crate::{edit, timed};

const ACCOUNTS: &str = include_str!("../../../../examples/accounts.toml");

/// How long nothing has to happen for a test to believe that nothing does.
const QUIET: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn what_is_ours_is_kept_true_and_what_is_not_is_left_alone() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let mut scene = Scene::start(&control_plane, ACCOUNTS, ControllerOptions::default()).await?;
    let theirs = objects_of_others(&scene.client).await?;

    timed("every hand edit is put back", every_hand_edit_is_put_back(&mut scene)).await?;
    timed(
        "a hand edit after a change elsewhere is one still",
        a_hand_edit_after_a_change_elsewhere_is_one_still(&mut scene),
    )
    .await?;
    timed("an account that somebody calls retired is not", called_retired(&scene)).await?;
    timed(
        "a changed account touches its own objects alone",
        a_changed_account_touches_its_own_objects_alone(&mut scene),
    )
    .await?;
    timed("a pause suspends and its end resumes", a_pause_suspends_and_its_end_resumes(&mut scene)).await?;
    timed(
        "a paused account that vanished is retired when the pause ends",
        a_paused_account_that_vanished_is_retired_when_the_pause_ends(&mut scene),
    )
    .await?;
    timed(
        "an account whose namespace is somebody elses is refused",
        an_account_whose_namespace_is_somebody_elses_is_refused(&mut scene),
    )
    .await?;
    timed(
        "a new account lets nobody in before its quota binds",
        a_new_account_lets_nobody_in_before_its_quota_binds(&control_plane, &mut scene),
    )
    .await?;
    let start = a_start_with_everything_in_step_writes_nothing(&control_plane, scene);
    let mut scene = timed("a start with everything in step writes nothing", Box::pin(start)).await?;

    for (key, version) in theirs {
        assert_eq!(version_of(&scene.client, &key).await?.as_deref(), Some(version.as_str()), "{key}");
    }
    println!("reports at the end: {:?}", scene.running.reports());
    scene.running.stop().await?;
    control_plane.stop().await
}

async fn create(client: &Client, key: &Key, object: Value) -> Result<()> {
    let mut object = object;
    object["metadata"]["name"] = key.name.clone().into();
    let object = serde_json::from_value(object)?;
    objects(client, key).create(&PostParams::default(), &object).await.with_context(|| key.to_string())?;
    Ok(())
}

async fn version_of(client: &Client, key: &Key) -> Result<Option<String>> {
    let object = objects(client, key).get_opt(&key.name).await?;
    Ok(object.and_then(|object| object.metadata.resource_version))
}

/// What tenants and administrators have beside what is ours, under our names and others, and their versions.
async fn objects_of_others(client: &Client) -> Result<Vec<(Key, String)>> {
    let (ours, theirs) = ("spur-acct-physics", "spur-acct-x");
    let quota = json!({ "spec": { "hard": { "pods": "3" } } });
    let binding = json!({
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
        "subjects": [{ "kind": "ServiceAccount", "name": "somebody", "namespace": "default" }],
    });
    let rules = json!({ "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }] });
    let policy = json!({ "spec": {
        "matchConstraints": { "resourceRules": [
            { "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["things"], "operations": ["CREATE"] },
        ] },
        "validations": [{ "expression": "true" }],
    } });
    let limits = json!({ "spec": { "limits": [{ "type": "Pod", "max": { "cpu": "8" } }] } });
    let all = [
        (Key::cluster(Kind::Namespace, theirs), json!({})),
        (Key::cluster(Kind::Namespace, "team"), json!({ "metadata": { "labels": { "team": "x" } } })),
        (Key::namespaced(Kind::ResourceQuota, theirs, "spur-quota"), quota.clone()),
        (Key::namespaced(Kind::RoleBinding, theirs, "spur-members"), binding.clone()),
        (Key::namespaced(Kind::ResourceQuota, ours, "theirs"), quota),
        (Key::namespaced(Kind::RoleBinding, ours, "theirs"), binding),
        (Key::namespaced(Kind::LimitRange, ours, "theirs"), limits),
        (Key::namespaced(Kind::ServiceAccount, ours, "robot"), json!({})),
        (Key::namespaced(Kind::ServiceAccount, "spur-users", "robot"), json!({})),
        (Key::cluster(Kind::ClusterRole, "theirs"), rules),
        (Key::cluster(Kind::ValidatingAdmissionPolicy, "theirs"), policy),
    ];
    for (key, object) in &all {
        create(client, key, object.clone()).await?;
    }
    // The controller manager fills in the quotas' status and type-checks the policy.
    eventually(|| async {
        for key in [&all[2].0, &all[4].0] {
            let quota = objects(client, key).get(&key.name).await?;
            ensure!(quota.data.pointer("/status/hard/pods").is_some(), "{key} does not bind");
        }
        let policy = objects(client, &all[10].0).get(&all[10].0.name).await?;
        ensure!(policy.data.pointer("/status/observedGeneration").is_some(), "the policy is not taken in");
        Ok(())
    })
    .await?;
    let mut theirs = Vec::new();
    for (key, _) in all {
        let version = version_of(client, &key).await?.with_context(|| key.to_string())?;
        theirs.push((key, version));
    }
    Ok(theirs)
}

/// What somebody does to an object.
enum Hand {
    Patches(Value),
    Deletes,
}

fn patched(key: &Key, patch: Value) -> (Key, Hand) {
    (key.clone(), Hand::Patches(patch))
}

fn labelled(key: &Key, name: &str, value: &Value) -> (Key, Hand) {
    patched(key, json!({ "metadata": { "labels": { name: value } } }))
}

fn annotated(key: &Key, name: &str, value: &Value) -> (Key, Hand) {
    patched(key, json!({ "metadata": { "annotations": { format!("spur.amd.com/{name}"): value } } }))
}

/// A spec with another value, or none, in one place.
fn specified(key: &Key, name: &str, value: &Value) -> (Key, Hand) {
    patched(key, json!({ "spec": { name: value } }))
}

fn deleted(key: &Key) -> (Key, Hand) {
    (key.clone(), Hand::Deletes)
}

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

fn edits_of_an_account() -> Vec<(Key, Hand)> {
    let physics = |kind, name| Key::namespaced(kind, "spur-acct-physics", name);
    let namespace = Key::cluster(Kind::Namespace, "spur-acct-physics");
    let quota = physics(Kind::ResourceQuota, "spur-quota");
    let priority = physics(Kind::ResourceQuota, "spur-priority");
    let range = physics(Kind::LimitRange, "spur-defaults");
    let members = physics(Kind::RoleBinding, "spur-members");
    let default = physics(Kind::ServiceAccount, "default");
    let user = |name: &str| json!({ "kind": "ServiceAccount", "name": name, "namespace": "spur-users" });
    let stranger = json!({ "kind": "ServiceAccount", "name": "mallory", "namespace": "default" });
    let group = "rbac.authorization.k8s.io";
    let everybody = json!({ "kind": "Group", "apiGroup": group, "name": "system:authenticated" });
    let subjects = |subjects: Value| patched(&members, json!({ "subjects": subjects }));
    let mounted = |mounted: Value| patched(&default, json!({ "automountServiceAccountToken": mounted }));
    vec![
        specified(&quota, "hard", &json!({ "requests.cpu": "9999" })),
        specified(&quota, "hard", &json!({ "requests.cpu": "1" })),
        specified(&quota, "hard", &json!({ "pods": null })),
        specified(&quota, "hard", &json!({ "count/jobs.batch": "0" })),
        labelled(&quota, MANAGED_BY, &json!(null)),
        deleted(&quota),
        specified(&priority, "hard", &json!({ "pods": "5" })),
        deleted(&priority),
        specified(&range, "limits", &json!([{ "type": "Container", "default": { "cpu": "64" } }])),
        specified(&range, "limits", &json!([])),
        deleted(&range),
        subjects(json!([stranger])),
        subjects(json!([user("spur-user-alice"), everybody])),
        subjects(json!([user("spur-user-carol")])),
        subjects(json!([user("spur-user-alice")])),
        subjects(json!(null)),
        labelled(&members, MANAGED_BY, &json!(null)),
        deleted(&members),
        labelled(&namespace, ENFORCE, &json!("privileged")),
        labelled(&namespace, ENFORCE, &json!(null)),
        labelled(&namespace, "pod-security.kubernetes.io/enforce-version", &json!("v1.25")),
        labelled(&namespace, MANAGED_BY, &json!(null)),
        labelled(&namespace, "spur.amd.com/account", &json!("chemistry")),
        annotated(&namespace, "account-name", &json!("chemistry")),
        annotated(&namespace, "parent", &json!(null)),
        mounted(json!(true)),
        mounted(json!(null)),
        deleted(&default),
    ]
}

fn edits_of_what_all_share() -> Vec<(Key, Hand)> {
    let users = Key::cluster(Kind::Namespace, "spur-users");
    let alice = Key::namespaced(Kind::ServiceAccount, "spur-users", "spur-user-alice");
    let role = Key::cluster(Kind::ClusterRole, "spur-tenant");
    let policy = Key::cluster(Kind::ValidatingAdmissionPolicy, "spur-guard-pods");
    let binding = Key::cluster(Kind::ValidatingAdmissionPolicyBinding, "spur-guard-pods");
    let all = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
    let others = json!({ "clusterRoleSelectors": [{ "matchLabels": { "a": "b" } }] });
    vec![
        patched(&alice, json!({ "automountServiceAccountToken": true })),
        annotated(&alice, "user-name", &json!("mallory")),
        deleted(&alice),
        patched(&role, json!({ "rules": all })),
        patched(&role, json!({ "rules": [] })),
        patched(&role, json!({ "aggregationRule": others })),
        labelled(&role, MANAGED_BY, &json!(null)),
        deleted(&role),
        labelled(&users, ENFORCE, &json!("privileged")),
        labelled(&users, MANAGED_BY, &json!(null)),
        specified(&policy, "failurePolicy", &json!("Ignore")),
        specified(&policy, "matchConditions", &json!([{ "name": "off", "expression": "false" }])),
        deleted(&policy),
        specified(&binding, "validationActions", &json!(["Warn"])),
        specified(
            &binding,
            "matchResources",
            &json!({ "namespaceSelector": { "matchLabels": { "a": "b" } } }),
        ),
        deleted(&binding),
    ]
}

async fn every_hand_edit_is_put_back(scene: &mut Scene) -> Result<()> {
    let mut times = Vec::new();
    for (key, hand) in edits_of_an_account().into_iter().chain(edits_of_what_all_share()) {
        times.push(put_back(scene, &key, &hand).await?);
    }
    times.sort();
    let (count, median, most) = (times.len(), times[times.len() / 2], times[times.len() - 1]);
    println!("{count} hand edits put back: median {median:?}, at most {most:?}");
    assert!(most < Duration::from_secs(5), "hand edits one after the other do not slow it down");
    scene.in_step().await?;
    for namespace in ["spur-acct-physics", "spur-users"] {
        let events = events(&scene.client, namespace).await?;
        let reverted: Vec<_> = events.iter().filter(|event| event.reason == "Reverted").collect();
        // Not one for each: the same reason is written once a minute.
        assert!(!reverted.is_empty() && reverted.len() <= 2, "{namespace}: {events:#?}");
        assert!(reverted[0].message.starts_with("Put back: "), "{reverted:#?}");
    }
    Ok(())
}

/// Edits, and waits until the object says again what it said before and the report has come; how long the first took.
async fn put_back(scene: &mut Scene, key: &Key, hand: &Hand) -> Result<Duration> {
    let before = content(&scene.client, key).await?.with_context(|| format!("{key} is not there"))?;
    let api = objects(&scene.client, key);
    let start = Instant::now();
    let what = match hand {
        Hand::Patches(patch) => {
            edit(&api, &key.name, patch.clone()).await.with_context(|| format!("{key}: {patch}"))?;
            patch.to_string()
        }
        Hand::Deletes => {
            api.delete(&key.name, &DeleteParams::default()).await?;
            "deleted".to_owned()
        }
    };
    let is_back = async || {
        let now = content(&scene.client, key).await?;
        ensure!(now.as_ref() == Some(&before), "{key} ({what}) is not put back:\n{now:#?}\n{before:#?}");
        Ok(())
    };
    eventually(is_back).await?;
    let time = start.elapsed();
    let reported = |report: &Report| match report {
        Report::Reverted { objects, .. } => objects.contains(key).then_some(()),
        _ => None,
    };
    scene.running.wait_for(reported).await.with_context(|| format!("{key} ({what})"))?;
    Ok(time)
}

/// Another reading of the source makes no hand edit look like the source's own change.
async fn a_hand_edit_after_a_change_elsewhere_is_one_still(scene: &mut Scene) -> Result<()> {
    scene.store.say(&ACCOUNTS.replace("cpu=384,mem=768Gi", "cpu=383,mem=768Gi"))?;
    scene.in_step().await?;
    let quota = Key::namespaced(Kind::ResourceQuota, "spur-acct-physics", "spur-quota");
    put_back(scene, &quota, &Hand::Patches(json!({ "spec": { "hard": { "requests.cpu": "9999" } } })))
        .await?;
    scene.store.say(ACCOUNTS)?;
    scene.in_step().await
}

/// The mark of an account that is gone means nothing on one that is not.
async fn called_retired(scene: &Scene) -> Result<()> {
    let key = Key::cluster(Kind::Namespace, "spur-acct-optics");
    let before = content(&scene.client, &key).await?;
    let mark = json!({ "metadata": {
        "labels": { "spur.amd.com/state": "retired" },
        "annotations": { "spur.amd.com/retired-at": "2020-01-01T00:00:00Z" },
    } });
    edit(&objects(&scene.client, &key), &key.name, mark).await?;
    eventually(|| async {
        ensure!(content(&scene.client, &key).await? == before, "the mark is not taken away");
        Ok(())
    })
    .await?;
    scene.in_step().await
}

/// The versions of everything that is or could be ours.
async fn versions(client: &Client) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    for kind in [
        Kind::Namespace,
        Kind::ResourceQuota,
        Kind::LimitRange,
        Kind::ServiceAccount,
        Kind::RoleBinding,
        Kind::ClusterRole,
        Kind::ValidatingAdmissionPolicy,
        Kind::ValidatingAdmissionPolicyBinding,
    ] {
        let list = objects(client, &Key::cluster(kind, "")).list(&ListParams::default()).await?;
        for object in list.items {
            let name = object.metadata.name.unwrap_or_default();
            let key = Key { kind, namespace: object.metadata.namespace, name };
            versions.insert(key.to_string(), object.metadata.resource_version.unwrap_or_default());
        }
    }
    Ok(versions)
}

async fn a_changed_account_touches_its_own_objects_alone(scene: &mut Scene) -> Result<()> {
    let before = versions(&scene.client).await?;
    let asked = scene.proxy.asked().len();
    scene.running.reports();
    scene.store.say(&ACCOUNTS.replace("grp_tres = \"cpu=256,mem=1Ti\"", "grp_tres = \"cpu=255,mem=1Ti\""))?;
    scene.running.settled().await?;
    scene.in_step().await?;
    let written = scene.written_since(asked);
    assert_eq!(written, ["PATCH /api/v1/namespaces/spur-acct-chemistry/resourcequotas/spur-quota"]);
    let after = versions(&scene.client).await?;
    assert!(before.keys().eq(after.keys()), "nothing came or went");
    let changed: Vec<_> = before.iter().filter(|(key, version)| after.get(*key) != Some(version)).collect();
    let changed: Vec<_> = changed.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(changed, ["ResourceQuota spur-acct-chemistry/spur-quota"]);
    scene.store.say(ACCOUNTS)?;
    scene.in_step().await
}

fn paused(value: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": { "spur.amd.com/paused": value } } })
}

/// Waits until an account stands so in the state's list of what is not in step.
async fn trouble(scene: &Scene, subject: &str, state: State) -> Result<String> {
    let reason = |status: &spur_sdk_quota::cluster::Status| {
        let mut troubles = status.troubles.iter();
        let found = troubles.find(|trouble| trouble.subject == subject && trouble.state == state);
        found.map(|trouble| trouble.reason.clone())
    };
    scene.running.stands(reason).await.with_context(|| format!("{subject} does not stand as {state:?}"))
}

async fn cpus(scene: &Scene, account: &str) -> Result<String> {
    let key = Key::namespaced(Kind::ResourceQuota, &format!("spur-acct-{account}"), "spur-quota");
    let quota = content(&scene.client, &key).await?.with_context(|| key.to_string())?;
    let cap = quota["spec"]["hard"]["requests.cpu"].as_str().context("no cap")?;
    Ok(cap.to_owned())
}

async fn a_pause_suspends_and_its_end_resumes(scene: &mut Scene) -> Result<()> {
    let key = Key::cluster(Kind::Namespace, "spur-acct-physics");
    let namespaces = objects(&scene.client, &key);
    let quota = Key::namespaced(Kind::ResourceQuota, "spur-acct-physics", "spur-quota");
    let raised = json!({ "spec": { "hard": { "requests.cpu": "999" } } });
    edit(&namespaces, &key.name, paused(Some("true"))).await?;
    trouble(scene, "account physics", State::Paused).await?;
    edit(&objects(&scene.client, &quota), "spur-quota", raised.clone()).await?;
    scene.running.reports();
    let changed =
        ACCOUNTS.replace("cpu = 256,", "cpu = 128,").replace("cpu=384,mem=768Gi", "cpu=100,mem=768Gi");
    scene.store.say(&changed)?;
    eventually(|| async {
        ensure!(cpus(scene, "fluid-dynamics").await? == "100", "the other account is not written");
        Ok(())
    })
    .await?;
    sleep(QUIET).await;
    assert_eq!(cpus(scene, "physics").await?, "999", "neither the edit nor the source's change is written");
    assert_eq!(scene.running.status().counts.paused, 1);
    eventually(|| async {
        let events = events(&scene.client, &key.name).await?;
        ensure!(events.iter().any(|event| event.reason == "Paused"), "{events:#?}");
        Ok(())
    })
    .await?;

    edit(&namespaces, &key.name, paused(None)).await?;
    scene.in_step().await?;
    assert_eq!(cpus(scene, "physics").await?, "128");
    scene.running.stands(|status| (status.counts.paused == 0).then_some(())).await?;
    // Said to be off, it is.
    edit(&namespaces, &key.name, paused(Some("false"))).await?;
    edit(&objects(&scene.client, &quota), "spur-quota", raised).await?;
    scene.in_step().await?;
    edit(&namespaces, &key.name, paused(None)).await?;
    scene.store.say(ACCOUNTS)?;
    scene.in_step().await
}

async fn a_paused_account_that_vanished_is_retired_when_the_pause_ends(scene: &mut Scene) -> Result<()> {
    let key = Key::cluster(Kind::Namespace, "spur-acct-archive");
    let namespaces = objects(&scene.client, &key);
    edit(&namespaces, &key.name, paused(Some("true"))).await?;
    trouble(scene, "account archive", State::Paused).await?;
    let before = content(&scene.client, &key).await?;
    scene.store.say(&ACCOUNTS.replace("[[account]]\nname = \"archive\"\nparent = \"guests\"\n", ""))?;
    trouble(scene, "spur-acct-archive", State::Paused).await?;
    sleep(QUIET).await;
    assert_eq!(content(&scene.client, &key).await?, before, "it is as it was");
    scene.running.reports();
    edit(&namespaces, &key.name, paused(None)).await?;
    let retired = |report: &Report| match report {
        Report::Retired { account, .. } => (account.as_str() == "archive").then_some(()),
        _ => None,
    };
    scene.running.wait_for(retired).await?;
    scene.store.say(ACCOUNTS)?;
    scene.in_step().await
}

async fn an_account_whose_namespace_is_somebody_elses_is_refused(scene: &mut Scene) -> Result<()> {
    let with = format!("{ACCOUNTS}\n[[account]]\nname = \"x\"\ngrp_tres = \"cpu=1\"\n");
    scene.store.say(&with.replace("cpu=384,mem=768Gi", "cpu=99,mem=768Gi"))?;
    let reason = trouble(scene, "account x", State::Refused).await?;
    assert!(reason.contains("exists and is not ours"), "{reason}");
    eventually(|| async {
        ensure!(cpus(scene, "fluid-dynamics").await? == "99", "the other account is not written");
        let events = events(&scene.client, "spur-users").await?;
        let refused = events.iter().find(|event| event.reason == "Refused");
        ensure!(refused.is_some_and(|event| event.message.contains("account x")), "{events:#?}");
        Ok(())
    })
    .await?;
    assert!(events(&scene.client, "spur-acct-x").await?.is_empty(), "not even an Event stands in it");
    scene.store.say(ACCOUNTS)?;
    scene.in_step().await
}

async fn a_new_account_lets_nobody_in_before_its_quota_binds(
    control_plane: &ControlPlane,
    scene: &mut Scene,
) -> Result<()> {
    control_plane.pause(Component::ControllerManager)?;
    let with = format!(
        "{ACCOUNTS}\n[[account]]\nname = \"new\"\ngrp_tres = \"cpu=1\"\n[[user]]\nname = \"zoe\"\naccounts = [\"new\"]\n"
    );
    scene.store.say(&with)?;
    let reason = trouble(scene, "account new", State::Waiting).await?;
    assert!(reason.contains("does not bind"), "{reason}");
    let quota = Key::namespaced(Kind::ResourceQuota, "spur-acct-new", "spur-quota");
    let members = Key::namespaced(Kind::RoleBinding, "spur-acct-new", "spur-members");
    assert!(content(&scene.client, &quota).await?.is_some());
    sleep(QUIET).await;
    assert!(content(&scene.client, &members).await?.is_none(), "nobody is let in");
    control_plane.resume(Component::ControllerManager)?;
    scene.in_step().await?;
    assert!(content(&scene.client, &members).await?.is_some());
    Ok(())
}

/// Of what everybody does to the Lease nobody can be without, and no more.
async fn a_start_with_everything_in_step_writes_nothing(
    control_plane: &ControlPlane,
    scene: Scene,
) -> Result<Scene> {
    let Scene { client, store, running, .. } = scene;
    running.stop().await?;
    store.say(ACCOUNTS)?;
    // `new` is retired by the next controller: the last one wrote it.
    let first = Scene::start(control_plane, ACCOUNTS, ControllerOptions::default()).await?;
    eventually(|| async {
        let retired = first.running.status().counts.retired;
        ensure!(retired == 1, "{retired} are retired");
        Ok(())
    })
    .await?;
    first.running.stop().await?;
    let before = versions(&client).await?;
    let scene = Scene::start(control_plane, ACCOUNTS, ControllerOptions::default()).await?;
    sleep(QUIET).await;
    let asked: Vec<_> = scene.proxy.asked().into_iter().map(|asked| asked.request).collect();
    let others = asked.iter().filter(|request| !request.is_of_lease());
    let (watches, others): (Vec<_>, Vec<_>) = others.partition(|request| request.is_watch());
    let lists = others.iter().filter(|request| request.method == "GET").count();
    assert_eq!((lists, others.len(), watches.len()), (14, 14, 14), "{asked:#?}");
    assert_eq!(versions(&client).await?, before);
    Ok(scene)
}
