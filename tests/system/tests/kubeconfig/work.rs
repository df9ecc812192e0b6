//! Working with tokens.

use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use spur_sdk::Classify;
use spur_sdk::ErrorKind;
use spur_sdk_quota::kubeconfig::{Form, KubeconfigError, mint_scoped_kubeconfig};

use crate::lab::{LONGEST, Lab, request};

pub(crate) async fn a_user_works_in_the_accounts_and_nowhere_else(lab: &Lab) -> Result<()> {
    let minted = lab.mint("alice").await?;
    let file = lab.write(&minted)?;
    let run = |arguments: &'static [&'static str]| lab.kubectl(Some(&file), arguments, "");
    let contexts = run(&["config", "get-contexts", "-o", "name"]).await?;
    let mut contexts: Vec<_> = contexts.lines().collect();
    contexts.sort_unstable();
    assert_eq!(contexts, ["site/Quantum Lab", "site/optics", "site/physics"]);
    assert_eq!(run(&["config", "current-context"]).await?.trim(), "site/physics");
    let whoami = run(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]).await?;
    assert_eq!(whoami, "system:serviceaccount:spur-users:spur-user-alice");

    run(&["create", "configmap", "first"]).await?;
    let found = lab.kubectl(None, &["-n", "spur-acct-physics", "get", "configmap", "first"], "").await?;
    assert!(found.contains("first"), "{found}");
    run(&["--context", "site/Quantum Lab", "create", "configmap", "second"]).await?;
    run(&["--context", "site/optics", "run", "pod", "--image=none"]).await?;
    for arguments in [
        &["-n", "spur-acct-chemistry", "get", "pods"][..],
        &["-n", "spur-acct-chemistry", "create", "configmap", "third"],
        &["-n", "spur-users", "get", "secrets"],
        &["-n", "spur-users", "get", "serviceaccounts"],
        &["-n", "spur-users", "create", "token", "spur-user-bob"],
        &["-n", "spur-users", "create", "token", "spur-user-alice"],
        &["create", "token", "default"],
        &["get", "namespaces"],
        &["get", "nodes"],
        &["get", "pods", "-A"],
        &["--as", "system:serviceaccount:spur-users:spur-user-bob", "get", "pods"],
        &["--as", "admin", "get", "pods"],
    ] {
        lab.refused(&file, arguments, "orbidden").await?;
    }

    let erin = lab.write(&lab.mint("Erin@AD").await?)?;
    lab.kubectl(Some(&erin), &["create", "configmap", "hers"], "").await?;
    lab.refused(&erin, &["-n", "spur-acct-physics", "get", "pods"], "orbidden").await
}

pub(crate) async fn a_session_gives_further_tokens_as_long_as_it_lasts(lab: &Lab) -> Result<()> {
    // The API server gives less than was asked for.
    let asked = Some(Duration::from_hours(3));
    let first = lab.minter.mint(&request("bob").lifetime(asked)).await?;
    let life = first.token.expires.duration_since(SystemTime::now())?;
    ensure!(life <= LONGEST && life + Duration::from_secs(30) > LONGEST, "{life:?}");
    let minted = mint_scoped_kubeconfig(&lab.minter, &request("bob").lifetime(asked), Form::Static).await?;
    let life = minted.expires.unwrap().duration_since(SystemTime::now())?;
    ensure!(life <= LONGEST, "{life:?}");

    let second = lab.minter.refresh(&request("bob"), &first.session).await?;
    ensure!(second.token.bearer != first.token.bearer && second.session == first.session);
    let life = second.token.expires.duration_since(SystemTime::now())?;
    ensure!(life > Duration::from_mins(59) && life <= Duration::from_hours(1), "{life:?}");

    let sessions = lab.minter.sessions(Some(&"bob".parse()?)).await?;
    let found = sessions.iter().find(|session| session.name == first.session).unwrap();
    assert_eq!(found.user, Some("bob".parse()?));
    assert_eq!(found.client.as_deref(), Some("system tests"));
    ensure!(found.created.unwrap() <= SystemTime::now());
    let secrets: Api<Secret> = Api::namespaced(lab.admin.clone(), "spur-users");
    let secret = secrets.get(first.session.as_str()).await?;
    assert_eq!(secret.data, None, "there is nothing in it");
    assert_eq!(secret.immutable, Some(true));
    let owner = &secret.metadata.owner_references.unwrap()[0];
    assert_eq!((&*owner.kind, &*owner.name), ("ServiceAccount", "spur-user-bob"));

    assert!(lab.minter.revoke_session(&first.session).await?);
    let error = lab.minter.refresh(&request("bob"), &first.session).await.unwrap_err();
    ensure!(matches!(error, KubeconfigError::SessionEnded(_)), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let third = lab.minter.issue(&request("bob"), Some(&first.session)).await?;
    ensure!(third.session != first.session);
    let fourth = lab.minter.issue(&request("bob"), Some(&third.session)).await?;
    ensure!(third.session == fourth.session);
    Ok(())
}
