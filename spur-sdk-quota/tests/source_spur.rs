//! A SPUR controller as a source: ours, and one as SPUR's own that knows nothing of what we add.
#![cfg(all(feature = "accounting", feature = "source-spur", feature = "testing"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spur_sdk::identity::{Access, Caller, Identity, PeerCertificate, Role, SiteName};
use spur_sdk::rpc::messages::slurm::{
    AccountInfo, AddUserRequest, AddUserRpc, CreateAccountRequest, CreateAccountRpc, ListAccountsResponse,
    ListAccountsRpc, ListQosResponse, ListQosRpc, ListUsersResponse, ListUsersRpc, UserInfo,
};
use spur_sdk::rpc::{
    Call, Callers, Client, ClientOptions, Current, Listener, Refusal, Router, Server, StandingHandle, Target,
};
use spur_sdk::testing::MemoryStore;
use spur_sdk::{Classify, ErrorKind, Limit, SystemClock, Tres};
use spur_sdk_quota::accounting::{Accounting, routes};
use spur_sdk_quota::source::{Source, SourceError, SpurSource};
use spur_sdk_quota::{Completeness, Subject, TresLimit};
use tokio_util::sync::CancellationToken;

/// Everybody on the socket is the same one.
struct All {
    site: SiteName,
    roles: BTreeSet<Role>,
}

impl Callers for All {
    fn site(&self) -> &SiteName {
        &self.site
    }

    async fn local(&self, uid: u32, pid: u32) -> Result<Caller, Refusal> {
        let identity = serde_json::json!({ "user": { "name": "oscar", "uid": uid } });
        Ok(Caller::local(serde_json::from_value::<Identity>(identity).unwrap(), uid, pid))
    }

    fn peer(&self, certificate: &PeerCertificate) -> Result<Caller, Refusal> {
        Ok(Caller::certified(certificate))
    }

    fn forwarded(&self, _: &Caller) -> Result<(), Refusal> {
        Ok(())
    }

    async fn roles(&self, _: &Caller) -> Result<BTreeSet<Role>, Refusal> {
        Ok(self.roles.clone())
    }

    async fn changed(&self, _: u64) -> u64 {
        std::future::pending().await
    }
}

/// A controller on a socket, until it is dropped.
struct Controller {
    folder: tempfile::TempDir,
    stop: CancellationToken,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Controller {
    async fn up(router: Router, roles: &[Role]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::socket(&folder.path().join("s")).await.unwrap();
        let callers = All { site: "lab".parse().unwrap(), roles: roles.iter().copied().collect() };
        let stop = CancellationToken::new();
        let server = Server::new(Arc::new(callers), router, StandingHandle::leading());
        tokio::spawn(server.serve(vec![listener], stop.clone()));
        Self { folder, stop }
    }

    fn source(&self) -> SpurSource {
        let target = Target::Socket(self.folder.path().join("s"));
        SpurSource::new(Client::new(&target, ClientOptions::default()).unwrap())
    }
}

const OPERATOR: [Role; 2] = [Role::User, Role::Operator];

/// The accounting service, and a way to change something.
async fn accounting() -> (Router, Router) {
    let (accounting, run) = Accounting::open(MemoryStore::new(), SystemClock).await.unwrap();
    tokio::spawn(run);
    let router = routes(&Current::new(accounting));
    let change = router.clone();
    account(&change, "physics", "cpu=64,mem=1Gi").await;
    let call = call();
    let member = AddUserRequest {
        user: "alice".to_owned(),
        account: "physics".to_owned(),
        ..AddUserRequest::default()
    };
    change.answer::<AddUserRpc>(call, &member).await.unwrap();
    (router, change)
}

fn call() -> Call {
    let root = Caller::local(Identity::Admin { name: "root".parse().unwrap() }, 0, 1);
    Call::new(root, [Role::Admin].into(), Access::Allow)
}

async fn account(router: &Router, name: &str, tres: &str) {
    let request = CreateAccountRequest {
        name: name.to_owned(),
        grp_tres: Some(tres.to_owned()),
        ..CreateAccountRequest::default()
    };
    router.answer::<CreateAccountRpc>(call(), &request).await.unwrap();
}

#[tokio::test]
async fn our_controller_is_read_in_full_and_tells_of_changes_at_once() {
    let (router, change) = accounting().await;
    let controller = Controller::up(router, &OPERATOR).await;
    let source = controller.source();
    let model = source.read().await.unwrap();
    assert_eq!((model.completeness, model.problems.as_slice()), (Completeness::Full, &[][..]));
    let memory =
        model.accounts.values().next().unwrap().terms.limits.tres(TresLimit::GrpTres, &Tres::Mem).unwrap();
    assert_eq!(memory.value, Limit::Value(1 << 30), "exactly, though the wire's own field is rounded");
    assert_eq!(model.associations.len(), 1);
    let quiet = tokio::time::timeout(Duration::from_millis(300), source.changed()).await;
    assert!(quiet.is_err(), "nothing has changed");
    let (told, ()) = tokio::join!(
        async {
            let start = Instant::now();
            source.changed().await;
            start.elapsed()
        },
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            account(&change, "chemistry", "").await;
        }
    );
    assert!(told < Duration::from_secs(1), "{told:?}");
    assert_eq!(source.read().await.unwrap().accounts.len(), 2);
}

#[tokio::test]
async fn a_change_between_reading_and_waiting_is_not_missed() {
    let (router, change) = accounting().await;
    let controller = Controller::up(router, &OPERATOR).await;
    let source = controller.source();
    source.read().await.unwrap();
    account(&change, "chemistry", "").await;
    tokio::time::timeout(Duration::from_secs(5), source.changed()).await.expect("the change is missed");
}

#[tokio::test]
async fn a_part_is_never_taken_for_the_whole() {
    let (router, _) = accounting().await;
    let controller = Controller::up(router, &[Role::User]).await;
    let error = controller.source().read().await.unwrap_err();
    assert!(matches!(error, SourceError::Part { .. }) && error.kind() == ErrorKind::Denied, "{error}");
}

/// SPUR's own controller, whose accounts change with every list until they are calm. Counts the lists.
fn old(restless: u32, lists: &Arc<AtomicUsize>, cpus: &Arc<AtomicU32>) -> Router {
    let (calls, lists, cpus) = (Arc::new(AtomicU32::new(0)), Arc::clone(lists), Arc::clone(cpus));
    Router::new()
        .on::<ListAccountsRpc, _, _>(move |_, _| {
            lists.fetch_add(1, Ordering::SeqCst);
            let call = calls.fetch_add(1, Ordering::SeqCst).min(restless);
            let cpu = cpus.load(Ordering::SeqCst) + call;
            let account = AccountInfo {
                name: "physics".to_owned(),
                grp_tres: format!("cpu={cpu}"),
                max_running_jobs: u32::MAX,
                ..AccountInfo::default()
            };
            let broken = AccountInfo {
                name: "broken".to_owned(),
                grp_tres: "cpu=lots".to_owned(),
                ..AccountInfo::default()
            };
            let accounts = vec![account, broken];
            async move { Ok(ListAccountsResponse { accounts, ..ListAccountsResponse::default() }) }
        })
        .on::<ListUsersRpc, _, _>(async |_, _| {
            let alice =
                UserInfo { name: "alice".to_owned(), account: "physics".to_owned(), ..UserInfo::default() };
            Ok(ListUsersResponse { users: vec![alice], ..ListUsersResponse::default() })
        })
        .on::<ListQosRpc, _, _>(async |_, _| Ok(ListQosResponse::default()))
}

#[tokio::test]
async fn an_older_controller_is_read_until_it_says_the_same_twice_and_asked_every_so_often() {
    let (lists, cpus) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU32::new(10)));
    let controller = Controller::up(old(2, &lists, &cpus), &OPERATOR).await;
    let source = controller.source().poll(Duration::from_millis(50));
    let model = source.read().await.unwrap();
    assert_eq!(model.completeness, Completeness::Full);
    assert_eq!(lists.load(Ordering::SeqCst), 4, "one call for each reading, whatever the number of accounts");
    // What cannot be read in full stops that account, and is never no limit.
    assert_eq!(model.problems.len(), 1);
    assert_eq!(model.problems[0].subject, Subject::Account("broken".parse().unwrap()));
    let quiet = tokio::time::timeout(Duration::from_millis(300), source.changed()).await;
    assert!(quiet.is_err(), "nothing has changed");
    cpus.store(20, Ordering::SeqCst);
    tokio::time::timeout(Duration::from_secs(5), source.changed()).await.expect("the change is missed");
}

#[tokio::test]
async fn one_that_never_says_the_same_twice_is_no_full_reading() {
    let (lists, cpus) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU32::new(10)));
    let controller = Controller::up(old(u32::MAX, &lists, &cpus), &OPERATOR).await;
    let error = controller.source().read().await.unwrap_err();
    assert!(matches!(error, SourceError::Restless { attempts: 5, .. }) && error.is_retryable(), "{error}");
}

#[tokio::test]
async fn one_that_is_gone_is_an_error_and_no_empty_reading() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::Socket(folder.path().join("s"));
    let source = SpurSource::new(Client::new(&target, ClientOptions::default()).unwrap());
    let error = source.read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
