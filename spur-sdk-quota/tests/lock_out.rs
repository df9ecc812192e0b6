//! Whoever leaves the last account loses all sessions, also while the reconciler does nothing.
#![cfg(all(feature = "accounting", feature = "kubeconfig", feature = "testing"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use spur_sdk::identity::{Access, Caller, Identity, Role};
use spur_sdk::rpc::messages::slurm::{
    AddUserRequest, AddUserRpc, CreateAccountRequest, CreateAccountRpc, RemoveUserRequest, RemoveUserRpc,
};
use spur_sdk::rpc::{Call, Current, Router};
use spur_sdk::testing::MemoryStore;
use spur_sdk::{SystemClock, UserName};
use spur_sdk_quota::Policy;
use spur_sdk_quota::accounting::{Accounting, routes};
use spur_sdk_quota::kubeconfig::testing::SessionModel;
use spur_sdk_quota::kubeconfig::{
    AccountMemberships, ApiError, KubeconfigPolicy, MintRequest, Minter, lock_out,
};

fn call() -> Call {
    let root = Caller::local(Identity::Admin { name: "root".parse().unwrap() }, 0, 1);
    Call::new(root, [Role::Admin].into(), Access::Allow)
}

async fn join(router: &Router, user: &str) {
    let member =
        AddUserRequest { user: user.to_owned(), account: "physics".to_owned(), ..AddUserRequest::default() };
    router.answer::<AddUserRpc>(call(), &member).await.unwrap();
}

async fn leave(router: &Router, user: &str) {
    let request = RemoveUserRequest { user: user.to_owned(), account: "physics".to_owned() };
    router.answer::<RemoveUserRpc>(call(), &request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_the_last_account_loses_all_sessions_and_nobody_else_does() {
    let (accounting, run) = Accounting::open(MemoryStore::new(), SystemClock).await.unwrap();
    tokio::spawn(run);
    let accounts = Current::new(accounting.clone());
    let router = routes(&accounts);
    let account = CreateAccountRequest { name: "physics".to_owned(), ..CreateAccountRequest::default() };
    router.answer::<CreateAccountRpc>(call(), &account).await.unwrap();
    let model = SessionModel::new(Arc::new(SystemClock));
    let policy = Policy::default();
    let minter =
        Minter::new(model.clone(), AccountMemberships::new(accounts, policy), KubeconfigPolicy::new("lab"));
    let minter = Arc::new(minter.unwrap());
    for user in ["alice", "bob", "carol"] {
        join(&router, user).await;
        let name: UserName = user.parse().unwrap();
        model.add_user(&name);
        minter.mint(&MintRequest::new(name.clone())).await.unwrap();
    }
    // Before anybody looks: as if the controller had failed over in between.
    leave(&router, "alice").await;
    tokio::spawn({
        let (accounting, minter) = (accounting.clone(), Arc::clone(&minter));
        async move { lock_out(&accounting, &minter).await }
    });
    let users = || {
        let mut users: Vec<_> =
            model.stored().iter().map(|session| session.name.service_account().to_owned()).collect();
        users.sort();
        users
    };
    settle(&users, &["spur-user-bob", "spur-user-carol"]).await;
    // The API server is out of order at first.
    let calls = model.calls().len();
    let down = ApiError::Status {
        code: 503,
        reason: "ServiceUnavailable".to_owned(),
        message: "down".to_owned(),
        retry_after: None,
    };
    model.fail(calls + 1, down);
    leave(&router, "bob").await;
    settle(&users, &["spur-user-carol"]).await;
    // Whoever is still in an account is left alone, however long.
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(users(), ["spur-user-carol"]);
}

async fn settle(users: &impl Fn() -> Vec<String>, wanted: &[&str]) {
    for _ in 0..100 {
        if users() == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(users(), wanted);
}
