//! A site's accounts, kept by a controller: from an account to a kubeconfig and back.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use spur_sdk::identity::{Access, Caller, Identity, Role};
use spur_sdk::rpc::messages::slurm::{
    AddUserRequest, AddUserRpc, CreateAccountRequest, CreateAccountRpc, RemoveUserRequest, RemoveUserRpc,
};
use spur_sdk::rpc::{Call, Current};
use spur_sdk::store::file::{FileOptions, FileStore, Missing};
use spur_sdk::store::{Fenced, Leadership, SharedStore, SoleLeadership};
use spur_sdk::{Deadlines, SystemClock};
use spur_sdk_quota::accounting::{Accounting, AccountingSource, routes};
use spur_sdk_quota::cluster::{ControllerOptions, QuotaController};
use spur_sdk_quota::k8s::{KubeAccess, KubeApi};
use spur_sdk_quota::kubeconfig::{
    AccountMemberships, Form, KubeconfigPolicy, MintRequest, Minter, mint_scoped_kubeconfig,
};
use spur_sdk_quota::{CancellationToken, Policy};
use spur_test_control_plane::ControlPlane;

use crate::say;

/// Runs the story on a control plane of its own.
pub(crate) async fn story() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    // What spurctld does: a store, leadership over it, and the accounts behind the term's fence.
    let path = control_plane.dir().join("site.store");
    let store =
        SharedStore::new(FileStore::open(&path, FileOptions::default().missing(Missing::Create)).await?);
    let term = SoleLeadership::new(store.clone(), "quickstart", "").campaign().await?;
    let (accounting, changes) =
        Accounting::open(Fenced::new(store, term.fence().clone()), SystemClock).await?;
    tokio::spawn(changes);
    let accounts = Current::new(accounting);
    let calls = routes(&accounts);
    // The reconciler takes the accounts as its source.
    let api = KubeApi::new(control_plane.client().await?, Deadlines::default());
    let shutdown = CancellationToken::new();
    let controller = QuotaController::with(ControllerOptions::default());
    let (source, stop) = (AccountingSource::new(accounts.clone()), shutdown.clone());
    let running = tokio::spawn(async move { controller.serve(source, api, Policy::default(), stop).await });

    let begun = Instant::now();
    let account = CreateAccountRequest {
        name: "physics".to_owned(),
        grp_tres: Some("cpu=64,mem=131072,gres/gpu=8".to_owned()),
        ..CreateAccountRequest::default()
    };
    calls.answer::<CreateAccountRpc>(root()?, &account).await?;
    let alice = AddUserRequest {
        user: "alice".to_owned(),
        account: "physics".to_owned(),
        ..AddUserRequest::default()
    };
    calls.answer::<AddUserRpc>(root()?, &alice).await?;
    say("spur sacctmgr -i add account name=physics grptres=cpu=64,mem=131072,gres/gpu=8");
    say("spur sacctmgr -i add user name=alice account=physics");

    let access = KubeAccess::file(control_plane.kubeconfig(), None, Deadlines::default());
    let memberships = AccountMemberships::new(accounts, Policy::default());
    let minter = Minter::new(access, memberships, KubeconfigPolicy::new("quickstart"))?;
    let request = MintRequest::new("alice".parse()?).client("quickstart");
    let made = mint_scoped_kubeconfig(&minter, &request, Form::Static).await?;
    let kubeconfig = Kubeconfig::from_yaml(&made.kubeconfig.to_yaml()?)?;
    let ends = made.expires.and_then(|end| end.duration_since(SystemTime::now()).ok()).unwrap_or_default();
    say(&format!(
        "spur k8s kubeconfig --user alice --static: a token of {} minutes",
        ends.as_secs().div_ceil(60)
    ));
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let there: Api<ConfigMap> = Api::namespaced(client.clone(), "spur-acct-physics");
    until(&there, true).await.context("alice is not let in")?;
    say(&format!(
        "alice works in spur-acct-physics {:.1} s after the account was made",
        begun.elapsed().as_secs_f64()
    ));
    let elsewhere: Api<ConfigMap> = Api::namespaced(client, "default");
    ensure!(elsewhere.list(&ListParams::default()).await.is_err(), "alice reaches another namespace");
    say("and nowhere else: default is refused");

    let removal = RemoveUserRequest { user: "alice".to_owned(), account: "physics".to_owned() };
    calls.answer::<RemoveUserRpc>(root()?, &removal).await?;
    let removed = Instant::now();
    until(&there, false).await.context("alice is not locked out")?;
    say(&format!(
        "spur sacctmgr -i delete user name=alice: locked out after {:.1} s",
        removed.elapsed().as_secs_f64()
    ));
    shutdown.cancel();
    running.await??;
    control_plane.stop().await
}

/// A call of root's on the socket.
fn root() -> Result<Call> {
    let root = Caller::local(Identity::Admin { name: "root".parse()? }, 0, std::process::id());
    Ok(Call::new(root, [Role::Admin].into(), Access::Allow))
}

/// Waits until a namespace is open to a client, or closed.
async fn until(there: &Api<ConfigMap>, open: bool) -> Result<()> {
    let start = Instant::now();
    while there.list(&ListParams::default()).await.is_ok() != open {
        if start.elapsed() > Duration::from_secs(20) {
            bail!("after 20 s");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
