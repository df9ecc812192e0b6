//! `spur-operator` as it is deployed: the built program, with exactly the rights of its kustomization.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod operator;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use spur_sdk::ManualClock;
use spur_sdk_quota::cluster::{ControllerOptions, Report};
use spur_sdk_quota::{Policy, QuotaProjector};
use spur_system_tests::reconciler::{Running, Store};
use spur_system_tests::{applied, model, planned};
use spur_test_control_plane::{ControlPlane, Options};

use self::operator::audit::{Comparison, Request, Right, rights};
use self::operator::caller::Caller;
use self::operator::lab::Lab;
use self::operator::life::{NO_GUARD, live};
use self::operator::program::Operator;
use self::operator::{
    ADMISSION, COORDINATORS, RBAC, accounts, apply, deploy, in_namespace, kubectl, text, until,
};

const OPERATING: &str = include_str!("../../../docs/guides/operating.md");
const GUIDE: &str = include_str!("../../../docs/guides/operator.md");

/// The block of YAML behind a mark in a page.
fn block<'p>(page: &'p str, mark: &str) -> Result<&'p str> {
    let (_, after) = page.split_once(&format!("<!-- {mark} -->")).with_context(|| format!("mark {mark}"))?;
    let (_, after) = after.split_once("```yaml\n").context("the block")?;
    Ok(after.split_once("\n```").context("the end of the block")?.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kustomization_gives_the_rights_that_a_whole_life_takes_and_no_others() -> Result<()> {
    let mut lab = Lab::up().await?;
    check_deployment(&lab).await?;
    let given = rights(&lab.admin).await?;
    let mut compared = Comparison::default();

    let lived = live(&lab).await;
    let requests = lab.audit.take()?;
    // A right that is missing shows here first.
    assert_refused_by_the_guard_alone(&requests);
    lived?;
    compared.add(&given, &requests);
    let unseen = |right: &&Right| matches!(&*right.verb, "bind" | "escalate");
    let unused: Vec<_> =
        given.difference(&compared.used).filter(|right| !unseen(right)).map(ToString::to_string).collect();
    assert_eq!(unused, <[&str; 0]>::default(), "rights that nothing took");
    let foreign: Vec<_> = compared.foreign.iter().map(ToString::to_string).collect();
    assert_eq!(foreign, <[&str; 0]>::default(), "requests that another right allowed");

    delete_after_grace(&mut lab, &given).await?;
    take_rights_away(&lab).await?;
    meet_the_fence(&lab).await?;
    lab.control_plane.stop().await
}

/// What is not about rights: the pods pass Pod Security, the policies are sound, the roles are those of this release.
async fn check_deployment(lab: &Lab) -> Result<()> {
    until("two pods, not scheduled", || async {
        let pods = lab.admin.get(&in_namespace("spur-system", "pods")).await?;
        let pods = pods["items"].as_array().context("pods")?.len();
        ensure!(pods == 2, "{pods} pods");
        Ok(())
    })
    .await?;
    for name in ["spur-operator-reach", "spur-operator-roles"] {
        until("the type checker has judged", || async {
            let policy = lab.admin.get(&format!("{ADMISSION}/validatingadmissionpolicies/{name}")).await?;
            ensure!(policy["status"]["observedGeneration"] == policy["metadata"]["generation"], "{policy:#}");
            assert_eq!(policy["status"]["typeChecking"], json!({}), "{name}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

fn assert_refused_by_the_guard_alone(requests: &[Request]) {
    let refused = requests.iter().filter(|request| request.is_refused() && !request.is_probe());
    let refused: Vec<_> = refused.map(ToString::to_string).collect();
    assert_eq!(refused, <[&str; 0]>::default(), "requests that were refused");
}

/// The rights of the component for a grace period: a day cannot pass, so the library runs with another clock.
async fn delete_after_grace(lab: &mut Lab, given: &BTreeSet<Right>) -> Result<()> {
    let overlay = lab.file("overlay");
    std::fs::create_dir_all(&overlay)?;
    // Kustomize takes no absolute paths.
    let up = "../".repeat(overlay.components().count());
    let folder = deploy().canonicalize()?;
    let folder = folder.strip_prefix("/")?.display();
    let kustomization = format!("resources: [{up}{folder}]\ncomponents: [{up}{folder}/grace]\n");
    std::fs::write(overlay.join("kustomization.yaml"), kustomization)?;
    apply(&lab.control_plane, &overlay).await?;
    let deployment = lab.admin.get("/apis/apps/v1/namespaces/spur-system/deployments/spur-operator").await?;
    let variables = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
    ensure!(variables.to_string().contains("SPUR_OPERATOR_DELETE_RETIRED_AFTER"), "{variables:#}");
    let more: BTreeSet<_> = lab.taken_in().await?.difference(given).cloned().collect();
    ensure!(!more.is_empty(), "the component gives nothing");

    let clock = ManualClock::new(SystemTime::now() + Duration::from_hours(25));
    let options = ControllerOptions::default()
        .clock(Arc::new(clock))
        .deletion_delay(Duration::from_millis(100))
        .delete_retired_after(Some(Duration::from_hours(24)));
    let source = Store::of(&accounts("a b c", 2))?;
    let client = lab.control_plane.client_for_service_account("spur-system", "spur-operator").await?;
    let mut running = Running::start_with(source, &client, &Policy::read(NO_GUARD, "p")?, options);
    let mut left: BTreeSet<_> = ["d", "e", "f", "g"].map(|name| format!("spur-acct-{name}")).into();
    while !left.is_empty() {
        let deleted = running.wait_for(|report| match report {
            Report::Deleted { namespace } => Some(namespace.clone()),
            _ => None,
        });
        left.remove(&deleted.await?);
    }
    running.stop().await?;
    let requests = lab.audit.take()?;
    assert_refused_by_the_guard_alone(&requests);
    let mut compared = Comparison::default();
    compared.add(&more.union(given).cloned().collect(), &requests);
    let unused: Vec<_> = more.difference(&compared.used).map(ToString::to_string).collect();
    assert_eq!(unused, <[&str; 0]>::default(), "rights of the component that nothing took");
    Ok(())
}

/// What the audit log does not show: without `bind` nobody is let in, without `escalate` no role is put back.
async fn take_rights_away(lab: &Lab) -> Result<()> {
    let text = accounts("a b c", 2);
    let source = lab.write("accounts.toml", &text)?;
    let operator = Operator::start(&lab.kubeconfig, &[&*source]).await?;
    operator.answers("/readyz", 200).await?;
    lab.holds(&text, "").await?;
    let role = format!("{RBAC}/clusterroles/spur-operator");
    let whole = lab.admin.get(&role).await?;
    for (verb, path, answer) in [
        (
            "bind",
            format!("{RBAC}/namespaces/spur-acct-a/rolebindings/spur-members"),
            "attempting to grant RBAC permissions not currently held",
        ),
        (
            "escalate",
            format!("{RBAC}/clusterroles/spur-tenant"),
            "attempting to grant RBAC permissions not currently held",
        ),
    ] {
        let mut less = whole["rules"].clone();
        for rule in less.as_array_mut().into_iter().flatten() {
            let verbs = rule["verbs"].as_array_mut().context("verbs")?;
            verbs.retain(|found| found != verb);
        }
        lab.admin.patch(&role, &json!({ "rules": less })).await?;
        let right = Right {
            namespace: None,
            verb: verb.to_owned(),
            group: "rbac.authorization.k8s.io".to_owned(),
            resource: "clusterroles".to_owned(),
            name: Some("spur-tenant".to_owned()),
        };
        until("the right is gone", || async {
            ensure!(!right.is_given(&lab.admin).await?, "{right} is still given");
            Ok(())
        })
        .await?;
        lab.admin.delete(&path).await?;
        let failed = |status: &Value| {
            let troubles = status["troubles"].as_array().into_iter().flatten();
            troubles
                .filter(|trouble| trouble["state"] == "failed")
                .any(|trouble| trouble.to_string().contains(answer))
        };
        operator.stands(verb, failed).await?;
        lab.admin.patch(&role, &json!({ "rules": whole["rules"] })).await?;
        lab.holds(&text, "").await.with_context(|| format!("with {verb} again"))?;
    }
    operator.stop().await?;
    Ok(())
}

/// A dry run is no pod; what is no dry run is refused, and the answers of the others were waited for at the start.
async fn meet_the_fence(lab: &Lab) -> Result<()> {
    let client = lab.control_plane.client_for_service_account("spur-system", "spur-operator").await?;
    let pod = json!({ "metadata": { "name": "thief" }, "spec": {
        "serviceAccountName": "spur-user-a-user",
        "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{ "name": "c", "image": "i", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
        } }],
    } });
    let refused = Caller(client).post(&in_namespace("spur-users", "pods"), &pod).await;
    let error = refused.err().context("a pod that could hold a user's token is let in")?;
    ensure!(format!("{error:#}").contains("the operator asks for pods by a dry run"), "{error:#}");
    Ok(())
}

/// The ClusterRoles of members and coordinators as this release projects them, as YAML.
fn tenant_roles() -> Result<String> {
    let policy = Policy::read(COORDINATORS, "p")?;
    let projection = QuotaProjector::new(&policy).project(&model(&accounts("a", 1))?);
    let mut documents = Vec::new();
    for object in projection.shared.iter().filter(|object| object.kind() == "ClusterRole") {
        let role = serde_json::to_value(object)?;
        let list = |values: &Value| {
            let texts = values.as_array().into_iter().flatten().filter_map(Value::as_str);
            let texts: Vec<_> = texts.map(|text| if text.is_empty() { "\"\"" } else { text }).collect();
            format!("[{}]", texts.join(", "))
        };
        let mut text = format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: {}\n  labels:\n    \
            app.kubernetes.io/managed-by: spur-quota\nrules:\n",
            object.name()
        );
        for rule in role["rules"].as_array().context("rules")? {
            let (groups, resources) = (list(&rule["apiGroups"]), list(&rule["resources"]));
            let verbs = list(&rule["verbs"]);
            let _ = write!(text, "- apiGroups: {groups}\n  resources: {resources}\n  verbs: {verbs}\n");
        }
        documents.push(text);
    }
    let head = "# Written by `UPDATE_DOCS=1 cargo test -p spur-system-tests --test operator_rights`. Applied with the rest, so\n\
        # that the operator finds the two roles of its release in place and has them to put back alone.\n";
    Ok(format!("{head}{}", documents.join("---\n")))
}

#[test]
fn the_kustomization_has_the_roles_of_this_release() -> Result<()> {
    let (path, wanted) = (deploy().join("rights/tenant-roles.yaml"), tenant_roles()?);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted)?;
    }
    let found = std::fs::read_to_string(&path)?;
    assert_eq!(found, wanted, "UPDATE_DOCS=1 writes {}", path.display());
    Ok(())
}

/// Single runs of `spur quota apply` by the same identity, and the one right more that the book gives them.
#[tokio::test(flavor = "multi_thread")]
async fn the_rights_in_the_book_are_enough_for_single_runs() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let admin = Caller(control_plane.client().await?);
    apply(&control_plane, &deploy().join("rights")).await?;
    kubectl(&control_plane, &["apply", "-f", "-"], block(OPERATING, "apply-rbac")?).await?;
    for right in rights(&admin).await? {
        until(&right.to_string(), || async {
            ensure!(right.is_given(&admin).await?, "is not given");
            Ok(())
        })
        .await?;
    }
    let operator = control_plane.client_for_service_account("spur-system", "spur-operator").await?;
    let policy = Policy::read(COORDINATORS, "p")?;
    let (_, report) = applied(&operator, &model(&accounts("a b", 4))?, &policy).await?;
    ensure!(report.is_complete(), "{report:#?}");

    // An account more, other caps, a member less, a rule of the guard less; what takes deleting; foreign fields.
    let policy = Policy::read("[guard.rules]\nexternal_ips = false\n", "p")?;
    let second = model(&accounts("a b c", 8).replace("accounts = [\"b\"]", "accounts = [\"a\"]"))?;
    let scoped = json!({
        "metadata": { "name": "spur-quota" }, "spec": { "hard": { "pods": "9" }, "scopes": ["NotTerminating"] },
    });
    let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" });
    let bound = json!({ "metadata": { "name": "spur-members" }, "roleRef": role });
    for (path, name, object) in [
        (in_namespace("spur-acct-a", "resourcequotas"), "spur-quota", scoped),
        (format!("{RBAC}/namespaces/spur-acct-b/rolebindings"), "spur-members", bound),
    ] {
        admin.delete(&format!("{path}/{name}")).await?;
        admin.post(&path, &object).await?;
    }
    let foreign =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce-version": "v1.25" } } });
    admin.patch("/api/v1/namespaces/spur-acct-a", &foreign).await?;
    admin.patch(&format!("{RBAC}/clusterroles/spur-tenant"), &json!({ "rules": [] })).await?;
    let (_, report) = applied(&operator, &second, &policy).await?;
    ensure!(report.is_complete(), "{report:#?}");
    let (_, plan) = planned(&operator, &second, &policy, false).await?;
    ensure!(plan.is_empty(), "{plan}");
    control_plane.stop().await
}

/// The overlay in the book, over the manifests of this checkout.
#[tokio::test(flavor = "multi_thread")]
async fn the_overlay_in_the_book_puts_the_files_of_a_site_in_place() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
    let overlay = block(GUIDE, "operator-overlay")?;
    let book = "../spur-sdk/bins/spur-operator/deploy";
    ensure!(overlay.contains(book), "{overlay}");
    // Kustomize takes no absolute paths.
    let up = "../".repeat(folder.path().canonicalize()?.components().count());
    let here = format!("{up}{}", deploy().canonicalize()?.strip_prefix("/")?.display());
    write("kustomization.yaml", &overlay.replace(book, &here))?;
    write("accounts.toml", &accounts("a", 1))?;
    write("policy.toml", COORDINATORS)?;
    let control_plane =
        ControlPlane::start_with(Options::default().controller_manager(false).scheduler(false)).await?;
    apply(&control_plane, folder.path()).await?;
    let admin = Caller(control_plane.client().await?);
    let map = admin.get(&in_namespace("spur-system", "configmaps/spur-accounts")).await?;
    assert_eq!(map["data"]["accounts.toml"], accounts("a", 1));
    let deployment = admin.get("/apis/apps/v1/namespaces/spur-system/deployments/spur-operator").await?;
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], "REGISTRY/spur-operator:0.1.0");
    let policy = pod["volumes"].as_array().into_iter().flatten().find(|volume| volume["name"] == "policy");
    let policy = text(policy.context("the policy")?, "/configMap/name");
    ensure!(policy.starts_with("spur-policy-"), "{policy}: a change has to start the replicas anew");
    let map = admin.get(&in_namespace("spur-system", &format!("configmaps/{policy}"))).await?;
    assert_eq!(map["data"]["policy.toml"], COORDINATORS);
    control_plane.stop().await
}
