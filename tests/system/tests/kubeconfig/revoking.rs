//! Ending sessions, and how long it takes until the API server refuses.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use spur_sdk::{Classify, ErrorKind, ManualClock};
use spur_sdk_quota::kubeconfig::{KubeconfigPolicy, Removal};

use crate::lab::{Lab, accounts, client, minter, request};

/// The most that the issue allows; the API server remembers a token that it has verified for 10 s.
const LOCKED_OUT: Duration = Duration::from_secs(15);

fn configmaps(client: &Client, account: &str) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), &format!("spur-acct-{account}"))
}

/// Uses a client until it is refused, several times a second so that the API server remembers it. The status, and how
/// long it took since `begin`.
async fn refused(client: &Client, account: &str, begin: Instant) -> Result<(u16, Duration)> {
    let api = configmaps(client, account);
    loop {
        match api.list(&ListParams::default().limit(1)).await {
            Err(kube::Error::Api(status)) => return Ok((status.code, begin.elapsed())),
            Err(error) => return Err(error.into()),
            Ok(_) if begin.elapsed() > 2 * LOCKED_OUT => bail!("still let in after {:?}", begin.elapsed()),
            Ok(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Until 401: what is merely not allowed any more is not out yet.
async fn locked_out(client: &Client, account: &str, begin: Instant) -> Result<Duration> {
    loop {
        match refused(client, account, begin).await? {
            (401, took) => return Ok(took),
            _ if begin.elapsed() > 2 * LOCKED_OUT => bail!("never 401"),
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

pub(crate) async fn a_session_ends_alone(lab: &Lab) -> Result<()> {
    let (first, second) = tokio::try_join!(lab.mint("alice"), lab.mint("alice"))?;
    let (gone, stays) = (client(&first).await?, client(&second).await?);
    let list = ListParams::default();
    configmaps(&gone, "physics").list(&list).await?;
    configmaps(&stays, "physics").list(&list).await?;
    let open = configmaps(&gone, "physics");
    let mut watch = Box::pin(open.watch(&WatchParams::default(), "0").await?);

    let session = first.session.context("a session")?;
    let begin = Instant::now();
    ensure!(lab.minter.revoke_session(&session).await?);
    let took = locked_out(&gone, "physics", begin).await?;
    println!("a session in use is locked out {:.1} s after it was revoked", took.as_secs_f64());
    ensure!(took < LOCKED_OUT, "{took:?}");
    configmaps(&stays, "physics").list(&list).await.context("the other session goes on")?;

    // What was open stays open: documented, and the reason for an end to every session.
    let late: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "seen-later" } }))?;
    configmaps(&lab.admin, "physics").create(&PostParams::default(), &late).await?;
    let seen = async {
        while let Some(event) = watch.try_next().await? {
            if let WatchEvent::Added(found) = event
                && found.metadata.name.as_deref() == Some("seen-later")
            {
                return anyhow::Ok(());
            }
        }
        bail!("the watch has ended")
    };
    tokio::time::timeout(Duration::from_secs(5), seen)
        .await
        .context("an open watch outlives its token")??;

    // One that the API server does not remember is refused at once.
    let third = lab.mint("alice").await?;
    lab.minter.revoke_session(&third.session.clone().context("a session")?).await?;
    let (code, took) = refused(&client(&third).await?, "physics", Instant::now()).await?;
    println!("a session that was not in use is refused with {code} after {:.2} s", took.as_secs_f64());
    ensure!(code == 401 && took < Duration::from_secs(1), "{code} {took:?}");
    Ok(())
}

/// The last association goes: the reconciler takes the user out of the RoleBinding and deletes the ServiceAccount.
pub(crate) async fn who_is_taken_out_is_locked_out(lab: &Lab) -> Result<()> {
    let minted = lab.mint("Carol@AD").await?;
    let carol = client(&minted).await?;
    configmaps(&carol, "chemistry").list(&ListParams::default()).await?;
    let without = accounts(&["Carol@AD"]);
    let begin = Instant::now();
    lab.say(&without)?;
    let error = lab.minter.mint(&request("Carol@AD")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "no more tokens, at once");
    let (code, took) = refused(&carol, "chemistry", begin).await?;
    println!("who is taken out is refused with {code} after {:.1} s", took.as_secs_f64());
    ensure!(took < LOCKED_OUT, "{took:?}");
    let took = locked_out(&carol, "chemistry", begin).await?;
    println!("and is unknown after {:.1} s", took.as_secs_f64());
    ensure!(took < LOCKED_OUT, "{took:?}");

    // Who comes back is let in, and not by what was given before.
    lab.say(&accounts(&[]))?;
    let again = lab.mint("Carol@AD").await.context("the ServiceAccount is waited for")?;
    let again = client(&again).await?;
    let maps = configmaps(&again, "chemistry");
    spur_system_tests::eventually(|| async { Ok(maps.list(&ListParams::default()).await?) }).await?;
    let (code, _) = refused(&carol, "chemistry", Instant::now()).await?;
    assert_eq!(code, 401, "the ServiceAccount is another one");
    Ok(())
}

pub(crate) async fn without_the_service_account_nothing_is_left(lab: &Lab) -> Result<()> {
    let minted = lab.mint("dave").await?;
    let session = minted.session.clone().context("a session")?;
    let dave = client(&minted).await?;
    configmaps(&dave, "chemistry").list(&ListParams::default()).await?;
    let service_accounts: Api<ServiceAccount> = Api::namespaced(lab.admin.clone(), "spur-users");
    let begin = Instant::now();
    service_accounts.delete("spur-user-dave", &DeleteParams::default()).await?;
    let took = locked_out(&dave, "chemistry", begin).await?;
    println!("without the ServiceAccount a token is refused after {:.1} s", took.as_secs_f64());
    ensure!(took < LOCKED_OUT, "{took:?}");
    let secrets: Api<Secret> = Api::namespaced(lab.admin.clone(), "spur-users");
    spur_system_tests::eventually(|| async {
        ensure!(secrets.get_opt(session.as_str()).await?.is_none(), "the session is still there");
        Ok(())
    })
    .await
    .context("a session goes with its ServiceAccount")
}

pub(crate) async fn what_is_over_is_swept(lab: &Lab) -> Result<()> {
    let past = ManualClock::new(SystemTime::now() - Duration::from_hours(13));
    let earlier = minter(&lab.access, &lab.view, KubeconfigPolicy::new("site"), Arc::new(past))?;
    let over = earlier.mint(&request("alice")).await?;
    let fresh = lab.minter.mint(&request("alice")).await?;
    // What looks like one of ours, and is none.
    let secrets: Api<Secret> = Api::namespaced(lab.admin.clone(), "spur-users");
    let labels =
        json!({ "app.kubernetes.io/managed-by": "spur-quota", "spur.amd.com/session": "spur-user-alice" });
    for (name, labels) in [
        ("somebodys".to_owned(), labels.clone()),
        ("spur-user-bob.1.0123456789abcdef".to_owned(), labels),
        ("spur-user-alice.1.0123456789abcdef".to_owned(), json!({ "team": "x" })),
    ] {
        let secret = json!({ "metadata": { "name": name, "labels": labels } });
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    }
    let report = lab.minter.sweep().await?;
    ensure!(report.failed.is_empty(), "{report:?}");
    assert_eq!(report.removed, [(over.session.clone(), Removal::Expired)]);
    let left = lab.minter.sessions(Some(&"alice".parse()?)).await?;
    ensure!(left.iter().any(|session| session.name == fresh.session), "{left:?}");
    for name in ["somebodys", "spur-user-bob.1.0123456789abcdef", "spur-user-alice.1.0123456789abcdef"] {
        secrets.get(name).await.context("what is not ours stays")?;
    }
    Ok(())
}
