//! `observe → plan → check → apply` on a real API server: what is written, put back, refused, and waited for.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "the helpers of tests fail as tests do"
)]

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Pod, ResourceQuota};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use spur_sdk::Deadlines;
use spur_sdk_quota::cluster::{AccountOutcome, ApplyOptions, PlanOptions, apply, observe, plan};
use spur_sdk_quota::k8s::KubeApi;
use spur_sdk_quota::source::{Format, ReadOptions, read};
use spur_sdk_quota::{Model, Policy, QuotaProjector};
use spur_system_tests::{applied, eventually, member, model, planned};
use spur_test_control_plane::{Component, ControlPlane};

const ACCOUNTS: &str = include_str!("../../../examples/accounts.toml");

/// Asserts that the cluster is in step.
async fn in_step(client: &Client, model: &Model, policy: &Policy) -> Result<()> {
    let (_, plan) = planned(client, model, policy, false).await?;
    assert!(plan.is_empty(), "still to do:\n{plan}");
    Ok(())
}

/// Applies and asserts that all went well and nothing is left.
async fn converge(client: &Client, model: &Model, policy: &Policy) -> Result<usize> {
    let (_, report) = applied(client, model, policy).await?;
    assert!(report.is_complete(), "{report:#?}");
    in_step(client, model, policy).await?;
    Ok(report.writes)
}

async fn edit<K>(api: &Api<K>, name: &str, patch: Value) -> Result<()>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let parameters = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
    api.patch(name, &parameters, &Patch::Merge(patch)).await.map(drop).context("hand edit")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_applied_stays_in_step_and_hand_edits_are_put_back() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    let policy = Policy::default();
    let model = model(ACCOUNTS)?;

    let writes = converge(&client, &model, &policy).await?;
    println!("first apply: {writes} writes");
    assert_eq!(converge(&client, &model, &policy).await?, 0, "a second apply writes nothing");

    everything_rendered_is_taken_by_a_server_side_dry_run(&client, &model, &policy).await?;
    members_are_let_in(&control_plane).await?;
    hand_edits(&client, &model, &policy).await?;
    foreign_fields(&client, &model, &policy).await?;
    another_role(&client, &model, &policy).await?;
    other_scopes(&client, &model, &policy).await?;
    lowered_below_use(&client, &policy).await?;
    a_partial_source_takes_nobody_out(&client, &policy).await?;
    coordinators_come_and_go(&client, &model).await?;
    foreign_namespaces_are_refused_and_adopted(&client, &policy).await?;
    default_priority_class(&client, &model, &policy).await?;
    a_guard_rule_that_is_switched_off_stops_refusing(&client, &model, &policy).await?;
    access_is_taken_away_though_the_guard_cannot_be_written(&control_plane, &client, &model, &policy).await?;
    control_plane.stop().await
}

async fn everything_rendered_is_taken_by_a_server_side_dry_run(
    client: &Client,
    model: &Model,
    policy: &Policy,
) -> Result<()> {
    let projection = QuotaProjector::new(policy).project(model);
    let mut taken = 0;
    for object in projection.objects() {
        let value = serde_json::to_value(object)?;
        let (group, version) = match object.api_version().split_once('/') {
            Some((group, version)) => (group, version),
            None => ("", object.api_version()),
        };
        let gvk = kube::core::GroupVersionKind::gvk(group, version, object.kind());
        let resource = kube::api::ApiResource::from_gvk(&gvk);
        let api: Api<kube::api::DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let mut parameters = PatchParams::apply("render-test").force();
        parameters.dry_run = true;
        api.patch(object.name(), &parameters, &Patch::Apply(&value)).await.with_context(|| object.title())?;
        taken += 1;
    }
    println!("{taken} rendered objects taken by a server-side dry run");
    Ok(())
}

fn pod(cpu: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "generateName": "try-" },
        "spec": { "containers": [{ "name": "a", "image": "a", "resources": { "requests": { "cpu": cpu } } }] },
    }))
    .unwrap()
}

async fn members_are_let_in(control_plane: &ControlPlane) -> Result<()> {
    let alice = member(control_plane, "alice").await?;
    let create = async |namespace: &str, cpu: &str| {
        let api: Api<Pod> = Api::namespaced(alice.clone(), namespace);
        match api.create(&PostParams::default(), &pod(cpu)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) => Err((status.code, status.message)),
            Err(error) => Err((0, error.to_string())),
        }
    };
    eventually(|| async {
        create("spur-acct-optics", "1").await.map_err(|(_, message)| anyhow::anyhow!(message))
    })
    .await?;
    let (code, message) = create("spur-acct-optics", "64").await.unwrap_err();
    assert!(code == 403 && message.contains("exceeded quota: spur-quota"), "{message}");
    let (code, message) = create("spur-acct-chemistry", "1").await.unwrap_err();
    assert!(code == 403 && message.contains("cannot create resource"), "{message}");
    Ok(())
}

async fn hand_edits(client: &Client, model: &Model, policy: &Policy) -> Result<()> {
    let namespace = "spur-acct-physics";
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), namespace);
    edit(&quotas, "spur-quota", json!({ "spec": { "hard": { "requests.cpu": "9999", "pods": null } } }))
        .await?;
    let ranges: Api<LimitRange> = Api::namespaced(client.clone(), namespace);
    ranges.delete("spur-defaults", &DeleteParams::default()).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let mallory =
        json!({ "subjects": [{ "kind": "ServiceAccount", "name": "mallory", "namespace": "default" }] });
    edit(&bindings, "spur-members", mallory).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let labels = json!({ "metadata": { "labels": {
        "pod-security.kubernetes.io/enforce": "privileged",
        "pod-security.kubernetes.io/enforce-version": "v1.25",
        "app.kubernetes.io/managed-by": null,
        "team": "theirs",
    }, "annotations": { "spur.amd.com/account-name": "other" } } });
    edit(&namespaces, namespace, labels).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    edit(&policies, "spur-guard-pods", json!({ "spec": { "failurePolicy": "Ignore" } })).await?;

    let writes = converge(client, model, policy).await?;
    assert!(writes >= 6, "{writes}");
    let labels = namespaces.get(namespace).await?.metadata.labels.unwrap_or_default();
    assert_eq!(labels.get("team").map(String::as_str), Some("theirs"), "what is not ours stays");
    assert!(!labels.contains_key("pod-security.kubernetes.io/enforce-version"));
    let subjects = bindings.get("spur-members").await?.subjects.unwrap_or_default();
    assert!(subjects.iter().all(|subject| subject.name != "mallory"), "{subjects:?}");
    Ok(())
}

async fn foreign_fields(client: &Client, model: &Model, policy: &Policy) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "spur-acct-physics");
    let foreign =
        json!({ "spec": { "hard": { "count/jobs.batch": "0", "requests.example.com/fpga": "1" } } });
    edit(&quotas, "spur-quota", foreign).await?;
    // A condition that never holds would switch the guard off.
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let off = json!({ "spec": { "matchConditions": [{ "name": "off", "expression": "false" }] } });
    edit(&policies, "spur-guard-pods", off).await?;
    converge(client, model, policy).await?;
    // Actions are a set, which server-side apply only ever adds to; a binding that warns does not refuse.
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    for actions in [json!(["Warn"]), json!(["Audit"]), json!(["Warn", "Audit"]), json!(["Deny", "Audit"])] {
        edit(&bindings, "spur-guard-pods", json!({ "spec": { "validationActions": actions } })).await?;
        converge(client, model, policy).await?;
        let actions = bindings.get("spur-guard-pods").await?.spec.and_then(|spec| spec.validation_actions);
        assert_eq!(actions, Some(vec!["Deny".to_owned()]));
    }
    let quota = quotas.get("spur-quota").await?;
    let hard = quota.spec.and_then(|spec| spec.hard).unwrap_or_default();
    assert!(!hard.contains_key("count/jobs.batch"));
    let ours = quota.metadata.managed_fields.unwrap_or_default();
    let updates = ours.iter().filter(|entry| entry.manager.as_deref() == Some("spur-quota"));
    let updates = updates.filter(|entry| entry.operation.as_deref() == Some("Update")).count();
    assert_eq!(updates, 0, "a removal leaves nothing that an update of ours owns");
    Ok(())
}

async fn another_role(client: &Client, model: &Model, policy: &Policy) -> Result<()> {
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "spur-acct-physics");
    let mut binding = bindings.get("spur-members").await?;
    bindings.delete("spur-members", &DeleteParams::default()).await?;
    "cluster-admin".clone_into(&mut binding.role_ref.name);
    binding.metadata.resource_version = None;
    binding.metadata.uid = None;
    binding.metadata.managed_fields = None;
    bindings.create(&PostParams::default(), &binding).await?;
    converge(client, model, policy).await?;
    assert_eq!(bindings.get("spur-members").await?.role_ref.name, "spur-tenant");
    Ok(())
}

/// Scopes of a quota cannot be changed: it is made anew behind one that closes the namespace.
async fn other_scopes(client: &Client, model: &Model, policy: &Policy) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "spur-acct-physics");
    let mut quota = quotas.get("spur-quota").await?;
    quotas.delete("spur-quota", &DeleteParams::default()).await?;
    quota.metadata.resource_version = None;
    quota.metadata.uid = None;
    quota.metadata.managed_fields = None;
    quota.status = None;
    if let Some(spec) = &mut quota.spec {
        spec.scopes = Some(vec!["NotTerminating".to_owned()]);
        let only = ["requests.cpu", "pods"];
        spec.hard = spec
            .hard
            .take()
            .map(|hard| hard.into_iter().filter(|(k, _)| only.contains(&k.as_str())).collect());
    }
    quotas.create(&PostParams::default(), &quota).await?;
    converge(client, model, policy).await?;
    assert!(quotas.get_opt("spur-closing").await?.is_none());
    assert!(quotas.get("spur-quota").await?.spec.and_then(|spec| spec.scopes).is_none());
    // One that a run left behind when it was cut goes as well.
    let left = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": { "name": "spur-closing", "namespace": "spur-acct-physics" },
        "spec": { "hard": { "pods": "0" } },
    });
    quotas.create(&PostParams::default(), &serde_json::from_value(left)?).await?;
    converge(client, model, policy).await?;
    assert!(quotas.get_opt("spur-closing").await?.is_none());
    Ok(())
}

async fn lowered_below_use(client: &Client, policy: &Policy) -> Result<()> {
    let lowered = model(&ACCOUNTS.replace("grp_tres = \"cpu=64\" ", "grp_tres = \"cpu=0.5\" "))?;
    let (_, plan) = planned(client, &lowered, policy, false).await?;
    let over: Vec<_> =
        plan.over_quota.iter().map(|over| (over.account.as_str(), over.key.as_str())).collect();
    assert_eq!(over, [("optics", "requests.cpu")]);
    converge(client, &lowered, policy).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "spur-acct-optics");
    assert_eq!(pods.list(&ListParams::default()).await?.items.len(), 1, "nothing is evicted");
    converge(client, &model(ACCOUNTS)?, policy).await.map(drop)
}

/// A dump may be cut, so a member or an account that it lacks keeps what it has unless the caller vouches.
async fn a_partial_source_takes_nobody_out(client: &Client, policy: &Policy) -> Result<()> {
    let dump = "Cluster - 'aurora':GrpTRES=cpu=4096,mem=16T,gres/gpu=128\nParent - 'root'\n\
        Account - 'dumped':Description='d':GrpTRES=cpu=4\nParent - 'dumped'\nUser - 'alice'\nUser - 'bob'\n";
    let read_dump = |text: &str, complete: bool| {
        read(text, "d", ReadOptions::default().format(Some(Format::Dump)).complete(complete))
    };
    converge(client, &read_dump(dump, false)?, policy).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "spur-acct-dumped");
    let members = async || -> Result<usize> {
        Ok(bindings.get("spur-members").await?.subjects.unwrap_or_default().len())
    };
    assert_eq!(members().await?, 2);
    let cut = dump.replace("User - 'bob'\n", "");
    converge(client, &read_dump(&cut, false)?, policy).await?;
    assert_eq!(members().await?, 2, "a cut dump takes nobody out");
    // A member whose line cannot be read stays; a bad line lets nobody new in.
    let bad = dump.replace("User - 'bob'", "User - 'bob':GrpTRES=nodes=1").replace("'alice'", "'carol'");
    let bad = read_dump(&bad, true)?;
    let (_, report) = applied(client, &bad, policy).await?;
    assert!(report.shared.is_empty(), "{report:#?}");
    let subjects = bindings.get("spur-members").await?.subjects.unwrap_or_default();
    let subjects: Vec<_> = subjects.into_iter().map(|subject| subject.name).collect();
    assert_eq!(subjects, ["spur-user-bob", "spur-user-carol"]);
    converge(client, &read_dump(&cut, true)?, policy).await?;
    assert_eq!(members().await?, 1, "a whole one does");
    Ok(())
}

async fn coordinators_come_and_go(client: &Client, model: &Model) -> Result<()> {
    let with = Policy::read("coordinators = true", "p")?;
    converge(client, model, &with).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "spur-acct-physics");
    let subjects = bindings.get("spur-coordinators").await?.subjects.unwrap_or_default();
    assert_eq!(subjects.len(), 1);
    converge(client, model, &Policy::default()).await?;
    assert!(bindings.get_opt("spur-coordinators").await?.is_none());
    Ok(())
}

async fn foreign_namespaces_are_refused_and_adopted(client: &Client, policy: &Policy) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let theirs = json!({ "metadata": { "name": "spur-acct-theirs" } });
    namespaces.create(&PostParams::default(), &serde_json::from_value(theirs)?).await?;
    let model = model(&format!("{ACCOUNTS}\n[[account]]\nname = \"theirs\"\ngrp_tres = \"cpu=1\"\n"))?;
    let (_, report) = applied(client, &model, policy).await?;
    assert_eq!(report.refused.len(), 1, "{report:#?}");
    assert!(report.refused[0].reason.contains("exists and is not ours"), "{report:#?}");
    let untouched = namespaces.get("spur-acct-theirs").await?;
    assert!(!untouched.metadata.labels.unwrap_or_default().contains_key("app.kubernetes.io/managed-by"));
    let (_, plan) = planned(client, &model, policy, true).await?;
    let api = KubeApi::new(client.clone(), Deadlines::default());
    let report = apply(&plan, &api, &ApplyOptions::default()).await;
    assert!(report.is_complete(), "{report:#?}");
    in_step(client, &model, policy).await?;
    // One that is going away is named, not written to.
    let finalizer = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "spur-acct-theirs");
    edit(&quotas, "spur-priority", finalizer).await?;
    namespaces.delete("spur-acct-theirs", &DeleteParams::default()).await?;
    let (_, report) = applied(client, &model, policy).await?;
    assert!(report.refused.iter().any(|refusal| refusal.reason.contains("is being deleted")), "{report:#?}");
    edit(&quotas, "spur-priority", json!({ "metadata": { "finalizers": null } })).await
}

/// The guard always lets the site's global default class through.
async fn default_priority_class(client: &Client, model: &Model, policy: &Policy) -> Result<()> {
    let classes: Api<k8s_openapi::api::scheduling::v1::PriorityClass> = Api::all(client.clone());
    let class = json!({ "metadata": { "name": "site-default" }, "value": 5, "globalDefault": true });
    classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    converge(client, model, policy).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "spur-acct-chemistry");
    // The policy takes effect in the API server a moment after it is written.
    for attempt in 0..50 {
        match pods.create(&PostParams::default(), &pod("1")).await {
            Ok(pod) => {
                assert_eq!(
                    pod.spec.and_then(|spec| spec.priority_class_name).as_deref(),
                    Some("site-default")
                );
                return Ok(());
            }
            Err(error) if attempt == 49 => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    Ok(())
}

/// A rule that fills a policy of its own leaves that policy behind when it is switched off.
async fn a_guard_rule_that_is_switched_off_stops_refusing(
    client: &Client,
    model: &Model,
    policy: &Policy,
) -> Result<()> {
    let without = Policy::read("[guard.rules]\nexternal_ips = false\n", "p")?;
    let services: Api<k8s_openapi::api::core::v1::Service> =
        Api::namespaced(client.clone(), "spur-acct-chemistry");
    let service = json!({
        "metadata": { "generateName": "s-" },
        "spec": { "ports": [{ "port": 80 }], "externalIPs": ["192.0.2.1"] },
    });
    let service = serde_json::from_value(service)?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    assert!(services.create(&dry, &service).await.is_err(), "the rule holds by default");
    converge(client, model, &without).await?;
    services.create(&dry, &service).await.context("the rule is off")?;
    converge(client, model, policy).await?;
    // Apply returns when the guard is in force again.
    assert!(services.create(&dry, &service).await.is_err(), "the rule is on again");
    Ok(())
}

/// Letting in waits for the guard; taking out does not.
async fn access_is_taken_away_though_the_guard_cannot_be_written(
    control_plane: &ControlPlane,
    client: &Client,
    model: &Model,
    policy: &Policy,
) -> Result<()> {
    let rules = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "all-but-the-guard" },
        "rules": [
            { "apiGroups": ["", "rbac.authorization.k8s.io", "scheduling.k8s.io"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["get", "list"] },
        ],
    });
    let cluster_roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(client.clone());
    cluster_roles.create(&PostParams::default(), &serde_json::from_value(rules)?).await?;
    let binding = json!({
        "metadata": { "name": "all-but-the-guard" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all-but-the-guard" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "narrow" }],
    });
    let cluster_bindings: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = Api::all(client.clone());
    cluster_bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    let narrow = control_plane.client_for("narrow", &[]).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    edit(&policies, "spur-guard-pods", json!({ "spec": { "failurePolicy": "Ignore" } })).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "spur-acct-physics");
    let subjects = json!({ "subjects": [
        { "kind": "ServiceAccount", "name": "spur-user-alice", "namespace": "spur-users" },
        { "kind": "ServiceAccount", "name": "spur-user-mallory", "namespace": "spur-users" },
        { "kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:authenticated" },
    ] });
    edit(&bindings, "spur-members", subjects).await?;
    let (_, report) = eventually(|| applied(&narrow, model, policy)).await?;
    assert_eq!(report.shared.len(), 1, "{report:#?}");
    let members = async || -> Result<Vec<String>> {
        let subjects = bindings.get("spur-members").await?.subjects.unwrap_or_default();
        Ok(subjects.into_iter().map(|subject| subject.name).collect())
    };
    assert_eq!(members().await?, ["spur-user-alice"], "bob is not let in yet, the others are out");
    converge(client, model, policy).await?;
    assert_eq!(members().await?, ["spur-user-alice", "spur-user-bob"]);
    Ok(())
}

/// Until the controller manager has filled in the quota's status, pods are unlimited: nobody is let in.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_before_the_quota_binds() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    let api = KubeApi::new(client.clone(), Deadlines::default());
    let policy = Policy::default();
    let model = model(
        "[[account]]\nname = \"a\"\ngrp_tres = \"cpu=1\"\n[[user]]\nname = \"u\"\naccounts = [\"a\"]\n",
    )?;
    let (_, report) = applied(&client, &model, &policy).await?;
    assert!(report.is_complete(), "the guard is in place: {report:#?}");

    control_plane.pause(Component::ControllerManager)?;
    let text = "[[account]]\nname = \"a\"\ngrp_tres = \"cpu=1\"\n[[account]]\nname = \"b\"\ngrp_tres = \"cpu=2\"\n\
        [[user]]\nname = \"u\"\naccounts = [\"a\", \"b\"]\n";
    let wider = spur_system_tests::model(text)?;
    let observed = observe(&api).await?;
    let projection = QuotaProjector::new(&policy).project(&wider);
    let steps = plan(&projection, &observed, &PlanOptions::default());
    let options = ApplyOptions::default().binding_timeout(Duration::from_secs(2));
    let report = apply(&steps, &api, &options).await;
    let [account] = report.accounts.as_slice() else { panic!("{report:#?}") };
    assert!(matches!(&account.outcome, AccountOutcome::NotLetIn { reason } if reason.contains("run again")));
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "spur-acct-b");
    assert!(bindings.get_opt("spur-members").await?.is_none());
    assert!(
        Api::<ResourceQuota>::namespaced(client.clone(), "spur-acct-b")
            .get_opt("spur-quota")
            .await?
            .is_some()
    );

    control_plane.resume(Component::ControllerManager)?;
    let (_, report) = applied(&client, &wider, &policy).await?;
    assert!(report.is_complete(), "a rerun continues: {report:#?}");
    assert!(bindings.get_opt("spur-members").await?.is_some());
    control_plane.stop().await
}
