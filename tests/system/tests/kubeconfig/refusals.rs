//! Who gets none, and what the answer says.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use spur_sdk::{Classify, Deadlines, ErrorKind, ManualClock, error_chain};
use spur_sdk_quota::k8s::KubeAccess;
use spur_sdk_quota::kubeconfig::{KubeconfigError, KubeconfigPolicy};

use crate::lab::{Lab, minter, request};

pub(crate) async fn all(lab: &Lab) -> Result<()> {
    tokio::try_join!(
        a_service_account_that_is_late(lab),
        a_service_account_of_somebody_else(lab),
        who_is_in_no_account(lab),
        a_view_that_is_too_old(lab),
        a_control_plane_that_cannot_be_reached(lab),
    )?;
    Ok(())
}

fn service_account(name: &str, ours: bool) -> ServiceAccount {
    let labels =
        if ours { json!({ "app.kubernetes.io/managed-by": "spur-quota" }) } else { json!({ "team": "x" }) };
    let user = name.trim_start_matches("spur-user-");
    serde_json::from_value(json!({ "metadata": {
        "name": name, "labels": labels, "annotations": { "spur.amd.com/user-name": user },
    } }))
    .unwrap()
}

async fn a_service_account_that_is_late(lab: &Lab) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(lab.admin.clone(), "spur-users");
    accounts.delete("spur-user-late", &DeleteParams::default()).await?;
    let begin = Instant::now();
    let error = lab.minter.mint(&request("late")).await.unwrap_err();
    let waited = begin.elapsed();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    ensure!(error.to_string().contains("spur-users/spur-user-late is not there after 2 s"), "{error}");
    ensure!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(5), "{waited:?}");
    let later = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        accounts.create(&PostParams::default(), &service_account("spur-user-late", true)).await
    };
    let request = request("late");
    let (minted, made) = tokio::join!(lab.minter.mint(&request), later);
    made?;
    minted?;
    Ok(())
}

async fn a_service_account_of_somebody_else(lab: &Lab) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(lab.admin.clone(), "spur-users");
    accounts.delete("spur-user-bob", &DeleteParams::default()).await?;
    accounts.create(&PostParams::default(), &service_account("spur-user-bob", false)).await?;
    let begin = Instant::now();
    let error = lab.minter.mint(&request("bob")).await.unwrap_err();
    ensure!(begin.elapsed() < Duration::from_secs(2));
    ensure!(matches!(error, KubeconfigError::ForeignServiceAccount { .. }), "{error}");
    ensure!(error.to_string().contains("app.kubernetes.io/managed-by=spur-quota"), "{error}");
    Ok(())
}

async fn who_is_in_no_account(lab: &Lab) -> Result<()> {
    let error = lab.mint("nobody").await.err().context("nobody gets one")?;
    let error = error.downcast::<KubeconfigError>()?;
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.to_string(), "user nobody is in no account");
    Ok(())
}

async fn a_view_that_is_too_old(lab: &Lab) -> Result<()> {
    let clock = ManualClock::new(SystemTime::now() + Duration::from_hours(101));
    let minter = minter(&lab.access, &lab.view, KubeconfigPolicy::new("site"), Arc::new(clock))?;
    let error = minter.mint(&request("alice")).await.unwrap_err();
    ensure!(matches!(error, KubeconfigError::AssociationsStale { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    Ok(())
}

/// Nothing wider is fallen back to.
async fn a_control_plane_that_cannot_be_reached(lab: &Lab) -> Result<()> {
    let policy = || KubeconfigPolicy::new("site");
    let clock = || Arc::new(spur_sdk::SystemClock);
    let missing = KubeAccess::file(lab.path("missing"), None, Deadlines::default());
    let error = minter(&missing, &lab.view, policy(), clock())?.mint(&request("alice")).await.unwrap_err();
    ensure!(error_chain(&error).contains("missing"), "{}", error_chain(&error));
    let text = std::fs::read_to_string(lab.path("minter"))?;
    let elsewhere = text.replace(lab.control_plane.url(), "https://127.0.0.1:1");
    std::fs::write(lab.path("elsewhere"), &elsewhere)?;
    let access = KubeAccess::file(lab.path("elsewhere"), None, Deadlines::default());
    let moved = minter(&access, &lab.view, policy(), clock())?;
    let error = moved.mint(&request("alice")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error_chain(&error));
    // Other credentials in the file count without a restart.
    std::fs::write(lab.path("elsewhere"), text)?;
    spur_system_tests::eventually(|| async { Ok(moved.mint(&request("alice")).await?) }).await?;
    Ok(())
}
