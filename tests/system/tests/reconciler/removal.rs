//! What vanishes from the source is taken away, held, given back, deleted; and what looks like it is not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, PersistentVolumeClaim, Pod, ResourceQuota, ServiceAccount,
};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use spur_sdk::{Clock, Deadlines, ManualClock};
use spur_sdk_quota::cluster::{
    ControllerError, ControllerOptions, Kept, PruneOptions, QuotaController, RemovalsDecision, Report,
    Status, observe, plan_prune, prune,
};
use spur_sdk_quota::k8s::KubeApi;
use spur_sdk_quota::{CancellationToken, Completeness, Model, Origin, Policy, Problem, Subject};
use spur_system_tests::reconciler::{Scene, events};
use spur_system_tests::{eventually, member, model};
use spur_test_control_plane::ControlPlane;
use tokio::time::sleep;

use crate::{accounts, edit, timed};

/// How long nothing has to happen for a test to believe that nothing does.
const QUIET: Duration = Duration::from_secs(1);

const DAY: Duration = Duration::from_hours(25);

/// How long a grace period has to be over.
const DELAY: Duration = Duration::from_secs(2);

/// 2027-01-15T08:00:00Z.
const START: Duration = Duration::from_hours(500_000);

const NAMES: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

/// The first so many accounts with a member each; one more member of the last two, and one of the first two.
fn site(accounts: usize) -> String {
    with(&NAMES[..accounts], &["a", "b"], &["i", "j"])
}

fn with(names: &[&str], extra: &[&str], both: &[&str]) -> String {
    let user = |user: &str, of: &[&str]| {
        let of: Vec<_> = of.iter().filter(|name| names.contains(name)).collect();
        let entry = format!("[[user]]\nname = \"{user}\"\naccounts = {of:?}\n");
        if of.is_empty() { String::new() } else { entry }
    };
    [accounts(names), user("extra", extra), user("both", both)].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_vanishes_is_taken_away_and_what_only_looks_like_it_is_not() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let clock = ManualClock::new(SystemTime::UNIX_EPOCH + START);
    let options = || ControllerOptions::default().clock(Arc::new(clock.clone()));
    let mut scene = Scene::start(&control_plane, &site(10), options()).await?;
    let voided = member(&control_plane, "j-user").await?;

    timed("a vanished account is retired", retired(&control_plane, &mut scene)).await?;
    timed("what is retired stays so", stays_retired(&mut scene)).await?;
    timed("an account that returns is restored", restored(&control_plane, &mut scene)).await?;
    timed("a member who leaves one account stays in the other", leaves_one(&control_plane, &scene)).await?;
    timed("a source read in part takes nobody away", read_in_part(&mut scene)).await?;
    timed("a source that says nothing takes nobody away", says_nothing(&mut scene)).await?;
    timed("so many at once are held, and released", held(&mut scene)).await?;
    timed("a confirmation lets them go", confirmed(&mut scene)).await?;
    clock.advance(DAY);
    scene.store.say(&site(10))?;
    scene.in_step().await?;
    holdings(&scene).await?;
    timed("so many one after the other are held for a day", one_by_one(&mut scene, &clock)).await?;
    scene.running.stop().await?;
    let options = options().delete_retired_after(Some(Duration::from_hours(48))).deletion_delay(DELAY);
    let mut scene = Scene::start(&control_plane, &site(7), options).await?;
    timed("the grace period ends in deletion", grace(&mut scene, &clock)).await?;
    timed("what is pruned is retired and holds nothing", pruned(&mut scene, &clock)).await?;

    eventually(|| async {
        let pods: Api<Pod> = Api::namespaced(voided.clone(), "spur-acct-a");
        let code = refusal(pods.list(&ListParams::default()).await)?;
        ensure!(code == 401, "a token of a ServiceAccount that was deleted gets {code}");
        Ok(())
    })
    .await?;
    scene.running.stop().await?;
    control_plane.stop().await
}

/// The HTTP status of a refusal.
fn refusal<T>(answer: Result<T, kube::Error>) -> Result<u16> {
    match answer {
        Ok(_) => bail!("it is allowed"),
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error.into()),
    }
}

/// Waits until somebody is let into an account, or refused.
async fn may(client: &Client, account: &str, allowed: bool) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace(account));
    eventually(|| async {
        let answer = pods.list(&ListParams::default()).await;
        if allowed {
            return answer.map(drop).with_context(|| format!("not let into {account}"));
        }
        let code = refusal(answer).with_context(|| account.to_owned())?;
        ensure!(code == 403, "HTTP {code}");
        Ok(())
    })
    .await
}

fn namespace(account: &str) -> String {
    format!("spur-acct-{account}")
}

fn namespaces(scene: &Scene) -> Api<Namespace> {
    Api::all(scene.client.clone())
}

fn quotas(scene: &Scene, account: &str) -> Api<ResourceQuota> {
    Api::namespaced(scene.client.clone(), &namespace(account))
}

async fn caps(scene: &Scene, account: &str) -> Result<BTreeMap<String, String>> {
    let hard = quotas(scene, account).get("spur-quota").await?.spec.and_then(|spec| spec.hard);
    Ok(hard.context("a quota without caps")?.into_iter().map(|(key, cap)| (key, cap.0)).collect())
}

async fn members(scene: &Scene, account: &str) -> Result<Option<Vec<String>>> {
    let bindings: Api<RoleBinding> = Api::namespaced(scene.client.clone(), &namespace(account));
    let Some(binding) = bindings.get_opt("spur-members").await? else { return Ok(None) };
    Ok(Some(binding.subjects.unwrap_or_default().into_iter().map(|subject| subject.name).collect()))
}

/// The uid of a user's ServiceAccount.
async fn user(scene: &Scene, name: &str) -> Result<Option<String>> {
    let accounts: Api<ServiceAccount> = Api::namespaced(scene.client.clone(), "spur-users");
    let account = accounts.get_opt(&format!("spur-user-{name}")).await?;
    Ok(account.and_then(|account| account.metadata.uid))
}

/// Since when a namespace says that its account is retired.
async fn retired_at(scene: &Scene, account: &str) -> Result<Option<String>> {
    let metadata = namespaces(scene).get(&namespace(account)).await?.metadata;
    let labels = metadata.labels.unwrap_or_default();
    let state = labels.get("spur.amd.com/state").map(String::as_str);
    let at = metadata.annotations.unwrap_or_default().get("spur.amd.com/retired-at").cloned();
    ensure!(state.is_some() == at.is_some(), "{account} has state {state:?} and retired-at {at:?}");
    ensure!(state.is_none_or(|state| state == "retired"), "{account} has state {state:?}");
    Ok(at)
}

/// Waits until nobody is let in and nothing new is.
async fn is_closed(scene: &Scene, account: &str) -> Result<()> {
    eventually(|| async {
        ensure!(retired_at(scene, account).await?.is_some(), "{account} is not retired");
        let members = members(scene, account).await?;
        ensure!(members.is_none(), "{account} lets {members:?} in");
        let caps = caps(scene, account).await?;
        // The one on the number of quotas would keep our own out.
        let open = caps.iter().find(|(key, cap)| *key != "resourcequotas" && *cap != "0");
        ensure!(open.is_none() && caps.contains_key("pods"), "{account} is open: {caps:?}");
        Ok(())
    })
    .await
}

async fn event(scene: &Scene, namespace: &str, reason: &str, part: &str) -> Result<()> {
    eventually(|| async {
        let events = events(&scene.client, namespace).await?;
        let found = events.iter().any(|event| event.reason == reason && event.message.contains(part));
        ensure!(found, "no {reason} with {part}: {events:#?}");
        Ok(())
    })
    .await
}

async fn is_reported(scene: &mut Scene, wanted: impl Fn(&Report) -> bool) -> Result<()> {
    scene.running.wait_for(|report| wanted(report).then_some(())).await
}

fn retires(name: &str) -> impl Fn(&Report) -> bool {
    move |report| matches!(report, Report::Retired { account, .. } if account.as_str() == name)
}

fn restores(name: &str) -> impl Fn(&Report) -> bool {
    move |report| matches!(report, Report::Restored { account, .. } if account.as_str() == name)
}

async fn retired(control_plane: &ControlPlane, scene: &mut Scene) -> Result<()> {
    let both = member(control_plane, "both").await?;
    may(&both, "j", true).await?;
    may(&both, "i", true).await?;
    let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), "spur-acct-j");
    let kept = json!({ "metadata": { "name": "kept" } });
    maps.create(&PostParams::default(), &serde_json::from_value(kept)?).await?;

    scene.store.say(&site(9))?;
    is_reported(scene, retires("j")).await?;
    is_closed(scene, "j").await?;
    assert_eq!(retired_at(scene, "j").await?.as_deref(), Some("2027-01-15T08:00:00Z"));
    may(&both, "j", false).await?;
    may(&both, "i", true).await?;
    eventually(|| async {
        ensure!(user(scene, "j-user").await?.is_none(), "the ServiceAccount is there");
        Ok(())
    })
    .await?;
    assert!(user(scene, "both").await?.is_some());
    event(scene, "spur-acct-j", "Retired", "nothing deleted").await?;
    event(scene, "spur-users", "UserRemoved", "spur-user-j-user").await?;
    maps.get("kept").await?;
    scene
        .running
        .stands(|status| (status.counts.retired == 1 && status.removals.is_none()).then_some(()))
        .await?;
    Ok(())
}

async fn stays_retired(scene: &mut Scene) -> Result<()> {
    let quotas = quotas(scene, "j");
    let open = json!({ "spec": { "hard": { "pods": "10", "requests.cpu": "4", "services": "5" } } });
    scene.running.reports();
    edit(&quotas, "spur-quota", open).await?;
    is_closed(scene, "j").await?;
    let reverted = |report: &Report| match report {
        Report::Reverted { account, .. } => account.as_ref().is_some_and(|account| account.as_str() == "j"),
        _ => false,
    };
    is_reported(scene, reverted).await?;
    quotas.delete("spur-quota", &DeleteParams::default()).await?;
    is_closed(scene, "j").await?;
    let bindings: Api<RoleBinding> = Api::namespaced(scene.client.clone(), "spur-acct-j");
    let binding = json!({
        "metadata": { "name": "spur-members" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "spur-tenant" },
        "subjects": [{ "kind": "ServiceAccount", "name": "spur-user-both", "namespace": "spur-users" }],
    });
    bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    is_closed(scene, "j").await?;
    let unlabelled = json!({ "metadata": { "labels": { "spur.amd.com/state": null } } });
    edit(&namespaces(scene), "spur-acct-j", unlabelled).await?;
    is_closed(scene, "j").await
}

async fn restored(control_plane: &ControlPlane, scene: &mut Scene) -> Result<()> {
    scene.store.say(&site(10))?;
    is_reported(scene, restores("j")).await?;
    scene.in_step().await?;
    assert_eq!(retired_at(scene, "j").await?, None);
    assert_eq!(caps(scene, "j").await?, caps(scene, "i").await?);
    let both = member(control_plane, "both").await?;
    may(&both, "j", true).await?;
    assert!(user(scene, "j-user").await?.is_some());
    scene.running.stands(|status| (status.counts.retired == 0).then_some(())).await?;
    event(scene, "spur-acct-j", "Restored", "is in the source again").await
}

async fn leaves_one(control_plane: &ControlPlane, scene: &Scene) -> Result<()> {
    let both = member(control_plane, "both").await?;
    let before = user(scene, "both").await?;
    scene.store.say(&with(&NAMES, &["a", "b"], &["i"]))?;
    may(&both, "j", false).await?;
    may(&both, "i", true).await?;
    scene.in_step().await?;
    assert_eq!(user(scene, "both").await?, before);
    assert_eq!(retired_at(scene, "j").await?, None);
    scene.store.say(&site(10))?;
    scene.in_step().await?;
    may(&both, "j", true).await
}

/// Nothing and nobody is gone after a while, and a hand edit is put back meanwhile.
async fn nothing_is_taken_away(scene: &Scene) -> Result<()> {
    let open = json!({ "spec": { "hard": { "requests.cpu": "1000" } } });
    edit(&quotas(scene, "c"), "spur-quota", open).await?;
    sleep(QUIET).await;
    eventually(|| async {
        let caps = caps(scene, "c").await?;
        ensure!(caps["requests.cpu"] == "4", "the hand edit is not put back: {caps:?}");
        Ok(())
    })
    .await?;
    for name in NAMES {
        assert_eq!(retired_at(scene, name).await?, None, "{name}");
        let members = members(scene, name).await?.unwrap_or_default();
        let user_of = |user: &str| members.contains(&format!("spur-user-{user}"));
        assert!(user_of(&format!("{name}-user")), "{name}: {members:?}");
        assert!(!["a", "b"].contains(&name) || user_of("extra"), "{name}: {members:?}");
        assert!(!["i", "j"].contains(&name) || user_of("both"), "{name}: {members:?}");
        assert!(user(scene, &format!("{name}-user")).await?.is_some());
    }
    assert!(user(scene, "extra").await?.is_some() && user(scene, "both").await?.is_some());
    Ok(())
}

async fn read_in_part(scene: &mut Scene) -> Result<()> {
    // Without an account, and without a member of another; a cap is another one.
    let mut part = model(&with(&NAMES[..9], &["b"], &["i"]).replacen("cpu=4", "cpu=5", 1))?;
    part.completeness = Completeness::Partial;
    scene.store.set(part);
    is_reported(scene, |report| matches!(report, Report::SourceRead { full: false, .. })).await?;
    nothing_is_taken_away(scene).await?;
    eventually(|| async {
        ensure!(caps(scene, "a").await?["requests.cpu"] == "5", "the cap is not written");
        Ok(())
    })
    .await?;
    // Read in full but for one user, whose entry makes no sense.
    let mut full = model(&with(&NAMES, &[], &["i", "j"]))?;
    full.problems.push(Problem {
        origin: Origin::store("test"),
        subject: Subject::User("extra".parse()?),
        field: "accounts".to_owned(),
        message: "makes no sense".to_owned(),
    });
    scene.store.set(full);
    is_reported(scene, |report| matches!(report, Report::SourceRead { full: true, problems: 1, .. })).await?;
    nothing_is_taken_away(scene).await?;
    scene.store.say(&site(10))?;
    scene.in_step().await
}

async fn says_nothing(scene: &mut Scene) -> Result<()> {
    let mut garbage = model(&site(2))?;
    garbage.problems.push(Problem {
        origin: Origin::store("test"),
        subject: Subject::Source,
        field: String::new(),
        message: "is no file of accounts".to_owned(),
    });
    let says = [
        ("out of order", Err("out of order")),
        ("is no file of accounts", Ok(garbage)),
        ("names no account", Ok(Model::default())),
    ];
    for (why, says) in says {
        match says {
            Ok(model) => scene.store.set(model),
            Err(error) => scene.store.fail(error),
        }
        is_reported(scene, |report| match report {
            Report::SourceFailed { error } => error.contains(why),
            _ => false,
        })
        .await?;
        let says = |error: &String| error.contains(why).then_some(());
        scene.running.stands(|status| status.source_error.as_ref().and_then(says)).await?;
        assert!(scene.running.status().is_ready(), "what was read before stays in force");
        nothing_is_taken_away(scene).await?;
    }
    scene.store.say(&site(10))?;
    scene.running.stands(|status| status.source_error.is_none().then_some(())).await?;
    scene.in_step().await
}

async fn holds(scene: &mut Scene) -> Result<String> {
    let held = |report: &Report| match report {
        Report::RemovalsHeld(removals) => Some(removals.clone()),
        _ => None,
    };
    let removals = scene.running.wait_for(held).await?;
    assert_eq!(removals.decision, RemovalsDecision::Held);
    scene.running.stands(|status| (status.removals.as_ref() == Some(&removals)).then_some(())).await?;
    event(scene, "spur-users", "RemovalsHeld", "until confirmed").await?;
    Ok(removals.digest)
}

fn confirmation(digest: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": { "spur.amd.com/confirm-removals": digest } } })
}

async fn forgets_confirmation(scene: &Scene) -> Result<()> {
    eventually(|| async {
        let annotations = namespaces(scene).get("spur-users").await?.metadata.annotations.unwrap_or_default();
        ensure!(!annotations.contains_key("spur.amd.com/confirm-removals"), "{annotations:?}");
        Ok(())
    })
    .await
}

/// Three of ten, and members of others.
fn too_few() -> String {
    with(&NAMES[..7], &["b"], &["i", "j"])
}

async fn held(scene: &mut Scene) -> Result<()> {
    scene.store.say(&too_few())?;
    holds(scene).await?;
    let removals = scene.running.status().removals.context("no removals")?;
    assert_eq!(removals.vanished, ["spur-acct-h", "spur-acct-i", "spur-acct-j"]);
    assert_eq!(scene.running.status().counts.held, 3);
    nothing_is_taken_away(scene).await?;
    edit(&namespaces(scene), "spur-users", confirmation(Some("0123456789ab"))).await?;
    nothing_is_taken_away(scene).await?;
    assert_eq!(scene.running.status().counts.held, 3);
    scene.store.say(&site(10))?;
    scene
        .running
        .stands(|status| (status.removals.is_none() && status.counts.held == 0).then_some(()))
        .await?;
    forgets_confirmation(scene).await?;
    scene.in_step().await?;
    nothing_is_taken_away(scene).await
}

async fn confirmed(scene: &mut Scene) -> Result<()> {
    scene.running.reports();
    scene.store.say(&too_few())?;
    let digest = holds(scene).await?;
    edit(&namespaces(scene), "spur-users", confirmation(Some(&digest))).await?;
    for name in ["h", "i", "j"] {
        is_closed(scene, name).await?;
    }
    eventually(|| async {
        for name in ["h-user", "i-user", "j-user", "both"] {
            ensure!(user(scene, name).await?.is_none(), "{name} has a ServiceAccount");
        }
        ensure!(members(scene, "a").await? == Some(vec!["spur-user-a-user".to_owned()]), "extra is in a");
        Ok(())
    })
    .await?;
    assert!(user(scene, "extra").await?.is_some(), "who is in another account stays");
    forgets_confirmation(scene).await?;
    let put_back = |report: &Report| matches!(report, Report::Reverted { .. });
    let reports = scene.running.reports();
    assert!(!reports.iter().any(put_back), "nobody else has changed anything: {reports:#?}");
    scene.in_step().await
}

/// Things that somebody may miss, in two accounts.
async fn holdings(scene: &Scene) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(scene.client.clone(), "spur-acct-i");
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } },
    });
    claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    let pods: Api<Pod> = Api::namespaced(scene.client.clone(), "spur-acct-h");
    let requests = json!({ "requests": { "cpu": "1" } });
    let pod = json!({
        "metadata": { "name": "works" },
        "spec": { "containers": [{ "name": "a", "image": "a", "resources": requests }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}

/// Has a controller look at a namespace.
async fn poke(scene: &Scene, namespace: &str) -> Result<()> {
    let number = scene.proxy.asked().len().to_string();
    edit(&namespaces(scene), namespace, json!({ "metadata": { "labels": { "poked": number } } })).await
}

async fn one_by_one(scene: &mut Scene, clock: &ManualClock) -> Result<()> {
    scene.running.reports();
    scene.store.say(&site(9))?;
    is_reported(scene, retires("j")).await?;
    scene.store.say(&site(8))?;
    is_reported(scene, retires("i")).await?;
    scene.store.say(&site(7))?;
    holds(scene).await?;
    let removals = scene.running.status().removals.context("no removals")?;
    assert_eq!(removals.vanished, ["spur-acct-h"]);
    assert_eq!(removals.recent, ["spur-acct-i", "spur-acct-j"]);
    assert_eq!(removals.accounts, 10);
    sleep(QUIET).await;
    assert_eq!(retired_at(scene, "h").await?, None);
    clock.advance(DAY);
    poke(scene, "spur-users").await?;
    is_reported(scene, retires("h")).await?;
    is_closed(scene, "h").await
}

/// Whether a namespace is there and nobody has deleted it.
async fn is_there(scene: &Scene, account: &str) -> Result<bool> {
    let found = namespaces(scene).get_opt(&namespace(account)).await?;
    Ok(found.is_some_and(|found| found.metadata.deletion_timestamp.is_none()))
}

/// `j` and `i` are retired since 25 hours, `h` since now; `i` holds a claim, `h` a pod.
async fn grace(scene: &mut Scene, clock: &ManualClock) -> Result<()> {
    let short = ControllerOptions::default().delete_retired_after(Some(Duration::from_hours(23)));
    let api = KubeApi::new(scene.client.clone(), Deadlines::default());
    let refused = QuotaController::with(short);
    let refused = refused.serve(scene.store.clone(), api, Policy::default(), CancellationToken::new()).await;
    assert!(matches!(refused, Err(ControllerError::Options { field: "delete_retired_after", .. })));

    let poke_all = async || {
        for name in ["g", "h", "i", "j"] {
            poke(scene, &namespace(name)).await?;
        }
        anyhow::Ok(())
    };
    scene.store.say(&site(6))?;
    is_closed(scene, "g").await?;
    clock.advance(Duration::from_mins(22 * 60 + 59));
    poke_all().await?;
    sleep(QUIET).await;
    for name in ["g", "h", "i", "j"] {
        assert!(is_there(scene, name).await?, "{name} is deleted after less than 48 h");
    }
    // A clock that is ahead, and put right again.
    clock.advance(Duration::from_mins(2));
    poke_all().await?;
    sleep(DELAY / 2).await;
    clock.set(clock.now() - Duration::from_mins(2));
    poke_all().await?;
    sleep(DELAY).await;
    assert!(is_there(scene, "j").await?, "it is deleted by a clock that was wrong for a moment");
    clock.advance(Duration::from_mins(2));
    poke_all().await?;
    sleep(DELAY / 2).await;
    assert!(is_there(scene, "j").await?, "it is deleted at once");
    eventually(|| async {
        ensure!(namespaces(scene).get_opt("spur-acct-j").await?.is_none(), "j is there");
        Ok(())
    })
    .await?;
    event(scene, "spur-users", "Deleted", "spur-acct-j").await?;
    assert!(is_there(scene, "i").await?, "it holds a claim");
    let kept = |status: &Status| {
        let mut troubles = status.troubles.iter();
        let kept = troubles.find(|trouble| trouble.namespace.as_deref() == Some("spur-acct-i"))?;
        kept.reason.contains("1 PersistentVolumeClaim (data)").then_some(())
    };
    scene.running.stands(kept).await?;
    // What is kept stays closed, and the account may return.
    edit(&quotas(scene, "i"), "spur-quota", json!({ "spec": { "hard": { "pods": "9" } } })).await?;
    is_closed(scene, "i").await?;
    let six = [&NAMES[..6], &["g", "i"]].concat();
    scene.store.say(&with(&six, &["a", "b"], &["i"]))?;
    scene.in_step().await?;
    assert_eq!(retired_at(scene, "i").await?, None);

    clock.advance(DAY);
    for name in ["g", "h", "i"] {
        poke(scene, &namespace(name)).await?;
    }
    sleep(QUIET).await;
    assert!(is_there(scene, "h").await?, "a pod runs in it");
    assert!(is_there(scene, "g").await? && is_there(scene, "i").await?, "they have returned");
    let deleted = |report: &Report| match report {
        Report::Deleted { namespace } => Some(namespace.clone()),
        _ => None,
    };
    let reports = scene.running.reports();
    assert_eq!(reports.iter().filter_map(deleted).collect::<Vec<_>>(), ["spur-acct-j"], "{reports:#?}");
    Ok(())
}

async fn pruned(scene: &mut Scene, clock: &ManualClock) -> Result<()> {
    scene.store.say(&site(7))?;
    is_closed(scene, "i").await?;
    let api = KubeApi::new(scene.client.clone(), Deadlines::default());
    let planned = async |options: PruneOptions| {
        let observed = observe(&api).await?;
        anyhow::Ok(plan_prune(&api, &observed, "spur.amd.com", &options, clock.now()).await?)
    };
    let young = planned(PruneOptions::default().delete_data(true)).await?;
    let reasons: Vec<_> = young.namespaces.iter().map(|it| (it.account.as_str(), it.kept)).collect();
    assert_eq!(reasons, [("h", None), ("i", Some(Kept::TooYoung))]);
    let now = PruneOptions::default().retired_for(Duration::ZERO);
    let kept = planned(now.clone()).await?;
    let reasons: Vec<_> =
        kept.namespaces.iter().map(|it| (it.account.as_str(), it.kept, it.holdings.to_string())).collect();
    let expected = [
        ("h", Some(Kept::HoldsData), "1 running pod (works)".to_owned()),
        ("i", Some(Kept::HoldsData), "1 PersistentVolumeClaim (data)".to_owned()),
    ];
    assert_eq!(reasons, expected);
    assert!(prune(&api, &kept).await.is_empty());
    assert!(is_there(scene, "h").await? && is_there(scene, "i").await?);
    let only = planned(PruneOptions::default().only(["h".to_owned()])).await?;
    assert_eq!(only.namespaces.len(), 1);

    let all = planned(now.delete_data(true)).await?;
    assert!(all.namespaces.iter().all(|it| it.kept.is_none()), "{all:#?}");
    scene.store.say(&site(8))?;
    is_reported(scene, restores("h")).await?;
    scene.in_step().await?;
    let failed = prune(&api, &all).await;
    assert_eq!(failed.len(), 1, "{failed:#?}");
    assert!(is_there(scene, "h").await?, "its account has returned");
    eventually(|| async {
        ensure!(namespaces(scene).get_opt("spur-acct-i").await?.is_none(), "i is there");
        Ok(())
    })
    .await?;
    scene.in_step().await
}
