//! The rights that docs/guides/operating.md gives an operator are enough, and the book's manifest is the one tried.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use spur_sdk_quota::Policy;
use spur_system_tests::{applied, eventually, model, planned};
use spur_test_control_plane::ControlPlane;
use tokio::io::AsyncWriteExt;

const BOOK: &str = include_str!("../../../docs/guides/operating.md");

/// The YAML block behind the mark.
fn manifest() -> Result<&'static str> {
    let (_, after) = BOOK.split_once("<!-- operator-rbac -->").context("the mark")?;
    let (_, after) = after.split_once("```yaml\n").context("the block")?;
    Ok(after.split_once("\n```").context("the end of the block")?.0)
}

async fn kubectl_apply(control_plane: &ControlPlane, manifest: &str) -> Result<()> {
    let mut command = control_plane.kubectl().await?;
    let mut child = command.args(["apply", "--server-side", "-f", "-"]).stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("standard input")?;
    stdin.write_all(manifest.as_bytes()).await?;
    drop(stdin);
    let status = child.wait().await?;
    ensure!(status.success(), "kubectl apply: {status}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_in_the_book_are_enough() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let admin = control_plane.client().await?;
    let namespaces: Api<Namespace> = Api::all(admin.clone());

    // An administrator makes the roles, which nobody can make who does not hold their rights.
    let policy = Policy::default();
    let first =
        "[[account]]\nname = \"a\"\ngrp_tres = \"cpu=4\"\n[[user]]\nname = \"u\"\naccounts = [\"a\"]\n";
    let (_, report) = applied(&admin, &model(first)?, &policy).await?;
    ensure!(report.is_complete(), "{report:#?}");
    kubectl_apply(&control_plane, manifest()?).await?;
    let operator = control_plane.client_for_service_account("spur-system", "spur-operator").await?;

    // A new account, a changed cap, a member less, a rule of the guard less.
    let second = "[[account]]\nname = \"a\"\ngrp_tres = \"cpu=8\"\n[[account]]\nname = \"b\"\ngrp_tres = \"cpu=1\"\n\
        [[user]]\nname = \"v\"\naccounts = [\"a\", \"b\"]\n";
    let second = model(second)?;
    let fewer = Policy::read("[guard.rules]\nexternal_ips = false\n", "p")?;
    let (_, report) = eventually(|| applied(&operator, &second, &fewer)).await?;
    ensure!(report.is_complete(), "{report:#?}");

    // What takes deleting: a quota with other scopes, a binding of another role. And foreign fields.
    let quotas: Api<ResourceQuota> = Api::namespaced(admin.clone(), "spur-acct-a");
    quotas.delete("spur-quota", &DeleteParams::default()).await?;
    let scoped = json!({
        "metadata": { "name": "spur-quota" }, "spec": { "hard": { "pods": "9" }, "scopes": ["NotTerminating"] },
    });
    quotas.create(&PostParams::default(), &serde_json::from_value(scoped)?).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(admin.clone(), "spur-acct-b");
    bindings.delete("spur-members", &DeleteParams::default()).await?;
    let other = json!({
        "metadata": { "name": "spur-members" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
    });
    bindings.create(&PostParams::default(), &serde_json::from_value(other)?).await?;
    let foreign =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce-version": "v1.25" } } });
    namespaces.patch("spur-acct-a", &PatchParams::default(), &Patch::Merge(foreign)).await?;
    let (_, report) = applied(&operator, &second, &fewer).await?;
    ensure!(report.is_complete(), "{report:#?}");
    let (_, plan) = planned(&operator, &second, &fewer, false).await?;
    ensure!(plan.is_empty(), "{plan}");
    control_plane.stop().await
}
