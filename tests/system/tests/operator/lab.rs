//! A cluster with the kustomization applied.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use spur_sdk_quota::Policy;
use spur_system_tests::model;
use spur_system_tests::reconciler::in_step;
use spur_test_control_plane::{ControlPlane, Options};
use tempfile::TempDir;

use super::audit::{Audit, Right, rights};
use super::caller::Caller;
use super::fence::fenced;
use super::{RBAC, USER, apply, deploy, in_namespace, kubeconfig, until};

/// A control plane with the kustomization applied, and what the operator's tests need of it.
pub(crate) struct Lab {
    pub(crate) control_plane: ControlPlane,
    pub(crate) admin: Caller,
    pub(crate) audit: Audit,
    folder: TempDir,
    pub(crate) kubeconfig: PathBuf,
}

impl Lab {
    pub(crate) async fn up() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (audit, options) = Audit::of(folder.path(), Options::default().scheduler(false))?;
        let control_plane = ControlPlane::start_with(options).await?;
        let admin = Caller(control_plane.client().await?);
        apply(&control_plane, &deploy()).await?;
        let kubeconfig = kubeconfig(&control_plane, &admin, folder.path()).await?;
        let lab = Self { control_plane, admin, audit, folder, kubeconfig };
        lab.taken_in().await?;
        Ok(lab)
    }

    /// Waits until the API server judges by what was applied, so that not even the first request may be refused.
    pub(crate) async fn taken_in(&self) -> Result<BTreeSet<Right>> {
        let rights = rights(&self.admin).await?;
        for right in &rights {
            until(&right.to_string(), || async {
                ensure!(right.is_given(&self.admin).await?, "is not given");
                Ok(())
            })
            .await?;
        }
        for (path, object, answer) in fenced() {
            until(answer, || self.is_fenced(&path, &object, answer)).await?;
        }
        Ok(rights)
    }

    pub(crate) async fn is_fenced(&self, path: &str, object: &Value, answer: &str) -> Result<()> {
        let groups = ["system:serviceaccounts", "system:serviceaccounts:spur-system", "system:authenticated"];
        let asked = self.admin.ask_as(USER, &groups, path, object).await;
        let error = asked.err().with_context(|| format!("{path}: not refused"))?;
        ensure!(format!("{error:#}").contains(answer), "{path}: {error:#}");
        Ok(())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file as a whole.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<String> {
        let (path, beside) = (self.file(name), self.file("beside"));
        std::fs::write(&beside, text)?;
        std::fs::rename(&beside, &path)?;
        Ok(path.to_str().context("a path")?.to_owned())
    }

    /// What the source says from now on; waits until the cluster holds it.
    pub(crate) async fn say(&self, accounts: &str, policy: &str) -> Result<()> {
        self.write("accounts.toml", accounts)?;
        self.holds(accounts, policy).await
    }

    pub(crate) async fn holds(&self, accounts: &str, policy: &str) -> Result<()> {
        in_step(&self.admin.0, &model(accounts)?, &Policy::read(policy, "policy.toml")?).await
    }

    /// Waits until nothing is left of members and caps in a namespace.
    pub(crate) async fn is_retired(&self, namespace: &str) -> Result<()> {
        until(&format!("{namespace} is retired"), || async {
            let found = self.admin.get(&format!("/api/v1/namespaces/{namespace}")).await?;
            ensure!(found["metadata"]["labels"]["spur.amd.com/state"] == "retired", "{found:#}");
            let quota = self.admin.get(&in_namespace(namespace, "resourcequotas/spur-quota")).await?;
            ensure!(quota["spec"]["hard"]["pods"] == "0", "{quota:#}");
            let bindings = self.admin.get(&format!("{RBAC}/namespaces/{namespace}/rolebindings")).await?;
            ensure!(bindings["items"] == json!([]), "{bindings:#}");
            Ok(())
        })
        .await
    }

    pub(crate) async fn is_gone(&self, path: &str) -> Result<()> {
        until(&format!("{path} is gone"), || async {
            let found = self.admin.get(path).await;
            let error = found.err().with_context(|| format!("{path} is there"))?;
            ensure!(format!("{error:#}").contains("not found"), "{error:#}");
            Ok(())
        })
        .await
    }
}
