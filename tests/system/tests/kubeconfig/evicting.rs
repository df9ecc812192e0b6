//! Ending pods whose user is known, by the policy in the book where Kubernetes has such policies.

use anyhow::{Context, Result, ensure};
use spur_system_tests::eventually;

use crate::lab::{Lab, block};

pub(crate) async fn pods_that_are_known_to_be_a_users_go(lab: &Lab) -> Result<()> {
    let alice = lab.write(&lab.mint("alice").await?)?;
    let bob = lab.write(&lab.mint("bob").await?)?;
    let error =
        lab.minter.evict_user_pods(&"alice".parse()?).await.err().context("it is a right of its own")?;
    ensure!(error.to_string() == "list namespaces", "{error}");
    lab.kubectl(None, &["apply", "-f", "-"], block("kubeconfig-evict-rbac")?).await?;
    eventually(|| async { Ok(lab.minter.evict_user_pods(&"alice".parse()?).await?) }).await?;

    let kinds = ["api-resources", "--api-group=admissionregistration.k8s.io", "-o", "name"];
    let stamps = lab.kubectl(None, &kinds, "").await?.contains("mutatingadmissionpolicies");
    let run = async |file, name: &str, user: &str| {
        let label = format!("--labels=spur.amd.com/user={user}");
        lab.kubectl(Some(file), &["run", name, "--image=none", &label], "").await
    };
    // What the client says of itself does not count where the policy is in force.
    let said = if stamps { "spur-user-bob" } else { "spur-user-alice" };
    if stamps {
        lab.kubectl(None, &["apply", "-f", "-"], block("kubeconfig-stamp")?).await?;
        eventually(|| async {
            let _ = lab.kubectl(Some(&alice), &["delete", "pod", "mine", "--ignore-not-found"], "").await;
            run(&alice, "mine", said).await?;
            let label = ["get", "pod", "mine", "-o", "jsonpath={.metadata.labels.spur\\.amd\\.com/user}"];
            let label = lab.kubectl(Some(&alice), &label, "").await?;
            ensure!(label == "spur-user-alice", "{label}");
            Ok(())
        })
        .await?;
        lab.kubectl(Some(&alice), &["run", "bare", "--image=none"], "").await?;
    } else {
        run(&alice, "mine", said).await?;
        run(&alice, "bare", said).await?;
    }
    run(&bob, "his", "spur-user-bob").await?;
    // No account's namespace.
    let elsewhere =
        ["-n", "default", "run", "elsewhere", "--image=none", "--labels=spur.amd.com/user=spur-user-alice"];
    lab.kubectl(None, &elsewhere, "").await?;

    let report = lab.minter.evict_user_pods(&"alice".parse()?).await?;
    ensure!(report.failed.is_empty(), "{report:?}");
    let deleted: Vec<_> = report.deleted.iter().map(|pod| (&*pod.namespace, &*pod.name)).collect();
    assert_eq!(deleted, [("spur-acct-physics", "bare"), ("spur-acct-physics", "mine")]);
    lab.kubectl(Some(&bob), &["get", "pod", "his"], "").await?;
    lab.kubectl(None, &["-n", "default", "get", "pod", "elsewhere"], "").await?;
    println!("pods are stamped: {stamps}");
    Ok(())
}
