//! The rights in the book: each is needed, and there is no other.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use spur_sdk::error_chain;
use spur_system_tests::eventually;

use crate::lab::{Lab, request};

pub(crate) async fn each_right_is_needed_and_no_other(lab: &Lab) -> Result<()> {
    let roles: Api<Role> = Api::namespaced(lab.admin.clone(), "spur-users");
    let name = "spur-kubeconfig";
    let given = roles.get(name).await?.rules.context("rules")?;
    let put = async |rules: &[k8s_openapi::api::rbac::v1::PolicyRule]| {
        let patch = Patch::Merge(json!({ "rules": rules }));
        roles.patch(name, &PatchParams::default(), &patch).await.map(drop)
    };
    let mut taken = 0;
    for (place, rule) in given.iter().enumerate() {
        for verb in &rule.verbs {
            let mut less = given.clone();
            less[place].verbs.retain(|found| found != verb);
            less.retain(|rule| !rule.verbs.is_empty());
            put(&less).await?;
            let resource = &rule.resources.as_ref().context("resources")?[0];
            eventually(|| async {
                let error = life(lab).await.err().context("all goes well without it")?;
                let (plain, said) = (resource.split('/').next().unwrap(), format!("{error:#}"));
                ensure!(said.contains("orbidden") && said.contains(plain) && said.contains(verb), "{said}");
                Ok(())
            })
            .await
            .with_context(|| format!("{verb} {resource}"))?;
            put(&given).await?;
            eventually(|| life(lab)).await?;
            taken += 1;
        }
    }
    assert_eq!(taken, 5);
    // Nothing else is given to it, by this role or any other.
    let who = "--as=system:serviceaccount:spur-system:spurctld";
    for (verb, resource, namespace) in [
        ("get", "secrets", "spur-users"),
        ("update", "secrets", "spur-users"),
        ("create", "serviceaccounts", "spur-users"),
        ("list", "secrets", "spur-acct-physics"),
        ("create", "serviceaccounts/token", "spur-system"),
        ("create", "serviceaccounts/token", "kube-system"),
        ("get", "pods", "spur-acct-physics"),
        ("impersonate", "users", "default"),
    ] {
        let can = lab.kubectl(None, &["auth", "can-i", verb, resource, "-n", namespace, who], "").await;
        ensure!(can.is_err(), "{verb} {resource} in {namespace} is given");
    }
    Ok(())
}

/// All that a session goes through.
async fn life(lab: &Lab) -> Result<()> {
    let said = |error: spur_sdk_quota::kubeconfig::KubeconfigError| anyhow::anyhow!(error_chain(&error));
    let issued = lab.minter.mint(&request("alice")).await.map_err(said)?;
    lab.minter.refresh(&request("alice"), &issued.session).await.map_err(said)?;
    lab.minter.sessions(Some(&"alice".parse()?)).await.map_err(said)?;
    lab.minter.revoke_session(&issued.session).await.map_err(said)?;
    Ok(())
}
