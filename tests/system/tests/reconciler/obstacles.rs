//! What stands in the way delays an account, and only that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota};
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use spur_sdk_quota::cluster::{ControllerOptions, Key, Kind, Report, State, Status, Trouble};
use spur_system_tests::eventually;
use spur_system_tests::proxy::{Fault, Moment, Request};
use spur_system_tests::reconciler::{Scene, content, events, objects};
use spur_test_control_plane::ControlPlane;
use tokio::time::sleep;

use crate::{accounts, edit, timed};

/// How long nothing has to happen for a test to believe that nothing does.
const QUIET: Duration = Duration::from_secs(2);

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_the_way_of_one_account_delays_that_account_alone() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let mut scene = Scene::start(&control_plane, &accounts(&NAMES), ControllerOptions::default()).await?;
    timed(
        "a namespace that is stuck in terminating is refused until it is gone",
        a_namespace_that_is_stuck_in_terminating_is_refused_until_it_is_gone(&mut scene),
    )
    .await?;
    timed(
        "a quota that is gone while its watch lags lets nobody in",
        a_quota_that_is_gone_while_its_watch_lags_lets_nobody_in(&scene),
    )
    .await?;
    timed(
        "a webhook that denies us delays one account",
        a_webhook_that_denies_us_delays_one_account(&mut scene),
    )
    .await?;
    timed(
        "a quota of somebody on our own objects delays one account",
        a_quota_of_somebody_on_our_own_objects_delays_one_account(&mut scene),
    )
    .await?;
    timed(
        "without what all share nobody new is let in and others are taken out",
        without_what_all_share_nobody_new_is_let_in_and_others_are_taken_out(&mut scene),
    )
    .await?;
    scene.running.stop().await?;
    control_plane.stop().await
}

/// The file of accounts with another cap for some.
fn with_caps(caps: &[(&str, u32)]) -> String {
    let change = |text: String, (name, cap): &(&str, u32)| {
        text.replace(
            &format!("name = \"{name}\"\ngrp_tres = \"cpu=4\""),
            &format!("name = \"{name}\"\ngrp_tres = \"cpu={cap}\""),
        )
    };
    caps.iter().fold(accounts(&NAMES), change)
}

async fn cpus(scene: &Scene, account: &str) -> Result<String> {
    let quotas: Api<ResourceQuota> = Api::namespaced(scene.client.clone(), &format!("spur-acct-{account}"));
    let quota = quotas.get("spur-quota").await?;
    let hard = quota.spec.and_then(|spec| spec.hard).context("a quota without caps")?;
    Ok(hard.get("requests.cpu").context("no cap on CPUs")?.0.clone())
}

async fn has_cpus(scene: &Scene, account: &str, cap: &str) -> Result<()> {
    eventually(|| async {
        let now = cpus(scene, account).await?;
        ensure!(now == cap, "account {account} has {now}, not {cap}");
        Ok(())
    })
    .await
}

fn found(status: &Status, subject: &str, state: State) -> Option<Trouble> {
    let mut troubles = status.troubles.iter();
    troubles.find(|trouble| trouble.subject == subject && trouble.state == state).cloned()
}

/// The one report of something that is not in step.
async fn trouble(scene: &mut Scene, subject: &str, state: State) -> Result<Trouble> {
    let it = |report: &Report| match report {
        Report::Trouble(trouble) => {
            (trouble.subject == subject && trouble.state == state).then(|| trouble.clone())
        }
        _ => None,
    };
    let trouble = scene.running.wait_for(it).await?;
    scene.running.stands(|status| found(status, subject, state).map(drop)).await?;
    Ok(trouble)
}

/// How often somebody was asked for in these objects' paths since so many requests.
fn asked_since(scene: &Scene, requests: usize, path: &str) -> Vec<Instant> {
    let asked = scene.proxy.asked().into_iter().skip(requests);
    asked
        .filter(|asked| asked.request.is_write() && asked.request.path.contains(path))
        .map(|it| it.at)
        .collect()
}

async fn members(scene: &Scene, account: &str) -> Result<Option<Vec<String>>> {
    let bindings: Api<RoleBinding> = Api::namespaced(scene.client.clone(), &format!("spur-acct-{account}"));
    let Some(binding) = bindings.get_opt("spur-members").await? else { return Ok(None) };
    Ok(Some(binding.subjects.unwrap_or_default().into_iter().map(|subject| subject.name).collect()))
}

async fn a_namespace_that_is_stuck_in_terminating_is_refused_until_it_is_gone(
    scene: &mut Scene,
) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), "spur-acct-a");
    let held = json!({ "metadata": { "name": "held", "finalizers": ["example.com/hold"] } });
    maps.create(&PostParams::default(), &serde_json::from_value(held)?).await?;
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    let old = namespaces.get("spur-acct-a").await?.metadata.uid;
    namespaces.delete("spur-acct-a", &DeleteParams::default()).await?;
    let refused = trouble(scene, "account a", State::Refused).await?;
    assert!(refused.reason.contains("is being deleted"), "{refused:#?}");

    scene.store.say(&with_caps(&[("a", 5), ("b", 5)]))?;
    has_cpus(scene, "b", "5").await?;
    // The namespace controller has deleted what is in it, and nobody makes it anew.
    eventually(|| async {
        ensure!(members(scene, "a").await?.is_none(), "somebody is let in");
        Ok(())
    })
    .await?;
    let asked = scene.proxy.asked().len();
    sleep(QUIET).await;
    let asked: Vec<_> = scene.proxy.asked().into_iter().skip(asked).map(|asked| asked.request).collect();
    assert!(asked.iter().all(Request::is_of_lease), "{asked:#?}");
    assert_eq!(scene.running.status().counts.refused, 1);

    edit(&maps, "held", json!({ "metadata": { "finalizers": null } })).await?;
    scene.in_step().await?;
    assert_ne!(namespaces.get("spur-acct-a").await?.metadata.uid, old);
    assert_eq!(members(scene, "a").await?, Some(vec!["spur-user-a-user".to_owned()]));
    assert_eq!(cpus(scene, "a").await?, "5");
    scene.running.stands(|status| (status.counts.refused == 0).then_some(())).await?;
    scene.store.say(&accounts(&NAMES))?;
    scene.in_step().await
}

/// Each kind has a watch of its own, and one that lags shows what was before: here a quota that binds.
async fn a_quota_that_is_gone_while_its_watch_lags_lets_nobody_in(scene: &Scene) -> Result<()> {
    let lags = Arc::new(AtomicBool::new(true));
    let slow = Arc::clone(&lags);
    scene.proxy.script(move |request, moment| {
        let quotas = moment == Moment::Event && request.path.ends_with("/resourcequotas");
        if quotas && slow.load(Ordering::SeqCst) { Fault::Slow(Duration::from_secs(2)) } else { Fault::None }
    });
    let quota = Key::namespaced(Kind::ResourceQuota, "spur-acct-c", "spur-quota");
    let binding = Key::namespaced(Kind::RoleBinding, "spur-acct-c", "spur-members");
    for key in [&quota, &binding] {
        objects(&scene.client, key).delete(&key.name, &DeleteParams::default()).await?;
    }
    eventually(|| async {
        let open = members(scene, "c").await?.is_some();
        let quota = objects(&scene.client, &quota).get_opt(&quota.name).await?;
        let binds = quota.is_some_and(|quota| quota.data.pointer("/status/hard/requests.cpu").is_some());
        assert!(binds || !open, "members are let in, and no quota binds");
        ensure!(open, "nobody is let in");
        lags.store(false, Ordering::SeqCst);
        Ok(())
    })
    .await?;
    scene.in_step().await
}

/// A webhook that nobody answers for and that must be asked about what the controller writes.
async fn deny(
    scene: &Scene,
    rule: Value,
    namespace: Option<&str>,
) -> Result<Api<ValidatingWebhookConfiguration>> {
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(scene.client.clone());
    let selector = namespace.map(|name| json!({ "matchLabels": { "kubernetes.io/metadata.name": name } }));
    let webhook = json!({ "metadata": { "name": "denies" }, "webhooks": [{
        "name": "denies.example.com",
        "clientConfig": { "url": "https://127.0.0.1:1/" },
        "rules": [rule],
        "namespaceSelector": selector,
        "matchConditions": [{ "name": "controller", "expression": "request.userInfo.username == 'reconciler'" }],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 1,
        "admissionReviewVersions": ["v1"],
    }] });
    webhooks.create(&PostParams::default(), &serde_json::from_value(webhook)?).await?;
    Ok(webhooks)
}

async fn a_webhook_that_denies_us_delays_one_account(scene: &mut Scene) -> Result<()> {
    let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["resourcequotas"], "operations": ["*"] });
    let webhooks = deny(scene, rule, Some("spur-acct-a")).await?;
    // It is in force a moment after it is written.
    let quotas = Key::namespaced(Kind::ResourceQuota, "spur-acct-a", "spur-quota");
    eventually(|| async {
        let asked = scene.proxy.client()?;
        let dry = kube::api::PatchParams { dry_run: true, ..kube::api::PatchParams::default() };
        let patch = kube::api::Patch::Merge(json!({ "metadata": { "labels": { "probe": "x" } } }));
        let denied = objects(&asked, &quotas).patch("spur-quota", &dry, &patch).await;
        ensure!(denied.is_err(), "the webhook is not asked");
        Ok(())
    })
    .await?;
    let asked = scene.proxy.asked().len();
    scene.running.reports();
    let text = with_caps(&[("a", 6), ("b", 6)]).replace("accounts = [\"a\"]", "accounts = []");
    scene.store.say(&text)?;
    has_cpus(scene, "b", "6").await?;
    let failed = trouble(scene, "account a", State::Failed).await?;
    assert!(failed.reason.contains("ResourceQuota spur-acct-a/spur-quota"), "{failed:#?}");
    assert!(failed.reason.contains("failed calling webhook"), "{failed:#?}");
    assert!(failed.error.is_some());
    // Whom the source has taken out is out although the account cannot be written.
    eventually(|| async {
        let left = members(scene, "a").await?.unwrap_or_default();
        ensure!(left.is_empty(), "{left:?} are in");
        let events = events(&scene.client, "spur-acct-a").await?;
        ensure!(events.iter().any(|event| event.reason == "Failed"), "{events:#?}");
        Ok(())
    })
    .await?;
    // So is what somebody else does to its other objects.
    let range = Key::namespaced(Kind::LimitRange, "spur-acct-a", "spur-defaults");
    let before = content(&scene.client, &range).await?;
    objects(&scene.client, &range).delete("spur-defaults", &DeleteParams::default()).await?;
    eventually(|| async {
        ensure!(content(&scene.client, &range).await? == before, "the LimitRange is not put back");
        Ok(())
    })
    .await?;
    let tries = asked_since(scene, asked, "/spur-acct-a/resourcequotas/").len();
    assert!(tries <= 15, "{tries} tries");

    webhooks.delete("denies", &DeleteParams::default()).await?;
    scene.in_step().await?;
    assert_eq!(cpus(scene, "a").await?, "6");
    scene.running.stands(|status| (status.counts.failed == 0).then_some(())).await?;
    scene.store.say(&accounts(&NAMES))?;
    scene.in_step().await
}

async fn a_quota_of_somebody_on_our_own_objects_delays_one_account(scene: &mut Scene) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(scene.client.clone(), "spur-acct-b");
    let bindings: Api<RoleBinding> = Api::namespaced(scene.client.clone(), "spur-acct-b");
    let hard = json!({ "count/rolebindings.rbac.authorization.k8s.io": "0", "resourcequotas": "0" });
    let theirs = json!({ "metadata": { "name": "theirs" }, "spec": { "hard": hard } });
    quotas.create(&PostParams::default(), &serde_json::from_value(theirs)?).await?;
    eventually(|| async {
        let status = quotas.get("theirs").await?.status.and_then(|status| status.hard).unwrap_or_default();
        ensure!(status.len() == 2, "it does not bind");
        Ok(())
    })
    .await?;
    scene.running.reports();
    let asked = scene.proxy.asked().len();
    bindings.delete("spur-members", &DeleteParams::default()).await?;
    let failed = trouble(scene, "account b", State::Failed).await?;
    assert!(failed.reason.contains("exceeded quota: theirs"), "{failed:#?}");
    let pauses = eventually(|| async {
        let tries = asked_since(scene, asked, "/spur-acct-b/rolebindings/");
        ensure!(tries.len() >= 3, "tried {} times", tries.len());
        Ok((tries[1] - tries[0], tries[2] - tries[1]))
    })
    .await?;
    println!("pauses between tries: {pauses:?}");
    assert!(pauses.0 >= Duration::from_secs(1) && pauses.1 >= Duration::from_secs(2), "{pauses:?}");
    quotas.delete("spur-quota", &DeleteParams::default()).await?;
    scene.store.say(&with_caps(&[("d", 7)]))?;
    has_cpus(scene, "d", "7").await?;
    sleep(QUIET).await;
    assert!(quotas.get_opt("spur-quota").await?.is_none());
    assert!(members(scene, "b").await?.is_none(), "nobody is let in without the quota");
    quotas.delete("theirs", &DeleteParams::default()).await?;
    scene.in_step().await?;
    assert!(members(scene, "b").await?.is_some());
    scene.store.say(&accounts(&NAMES))?;
    scene.in_step().await
}

async fn without_what_all_share_nobody_new_is_let_in_and_others_are_taken_out(
    scene: &mut Scene,
) -> Result<()> {
    let rule = json!({
        "apiGroups": ["rbac.authorization.k8s.io"], "apiVersions": ["v1"], "resources": ["clusterroles"],
        "operations": ["*"],
    });
    let webhooks = deny(scene, rule, None).await?;
    let roles: Api<ClusterRole> = Api::all(scene.client.clone());
    let tenant = Key::cluster(Kind::ClusterRole, "spur-tenant");
    let before = content(&scene.client, &tenant).await?;
    let wider = json!({ "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }] });
    scene.running.reports();
    // It is in force a moment after it is written.
    eventually(|| async {
        edit(&roles, "spur-tenant", wider.clone()).await?;
        sleep(Duration::from_millis(500)).await;
        ensure!(content(&scene.client, &tenant).await? != before, "the role is put back at once");
        Ok(())
    })
    .await?;
    let failed = trouble(scene, "what all accounts share", State::Failed).await?;
    assert!(failed.reason.contains("ClusterRole spur-tenant"), "{failed:#?}");

    // One member comes, one goes, one moves; an account comes.
    let mut names = NAMES.to_vec();
    names.push("f");
    let text = accounts(&names)
        .replace("accounts = [\"a\"]", "accounts = [\"a\", \"b\"]")
        .replace("accounts = [\"c\"]", "accounts = []")
        .replace("accounts = [\"d\"]", "accounts = [\"e\"]");
    scene.store.say(&text)?;
    trouble_stands(scene, "account b", State::NotLetIn).await?;
    trouble_stands(scene, "account f", State::NotLetIn).await?;
    eventually(|| async {
        for account in ["c", "d"] {
            let left = members(scene, account).await?.unwrap_or_default();
            ensure!(left.is_empty(), "{left:?} are in {account}");
        }
        Ok(())
    })
    .await?;
    sleep(QUIET).await;
    assert_eq!(members(scene, "b").await?, Some(vec!["spur-user-b-user".to_owned()]), "nobody new is let in");
    assert_eq!(members(scene, "e").await?, Some(vec!["spur-user-e-user".to_owned()]), "nobody new is let in");
    assert_eq!(members(scene, "f").await?, None, "nobody new is let in");
    assert_eq!(cpus(scene, "f").await?, "4", "what restricts is written");

    webhooks.delete("denies", &DeleteParams::default()).await?;
    scene.in_step().await?;
    assert_eq!(content(&scene.client, &tenant).await?, before);
    assert!(members(scene, "f").await?.is_some());
    Ok(())
}

async fn trouble_stands(scene: &Scene, subject: &str, state: State) -> Result<()> {
    let stands = scene.running.stands(|status| found(status, subject, state).map(drop)).await;
    stands.with_context(|| format!("{subject} does not stand as {state:?}"))
}
