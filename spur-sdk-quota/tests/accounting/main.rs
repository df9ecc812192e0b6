//! The accounting service over a store, asked as clients ask it.
#![cfg(all(feature = "accounting", feature = "testing"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod refusals;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use spur_sdk::identity::{Access, Caller, Identity, Role, table};
use spur_sdk::rpc::messages::site::{
    AccountingChange, ChangeAccountsRequest, ChangeAccountsResponse, ChangeAccountsRpc, ListHistoryRequest,
    ListHistoryRpc, WaitForChangeRequest, WaitForChangeRpc, accounting_change::Change,
};
use spur_sdk::rpc::messages::slurm::{
    AddUserRequest, AddUserRpc, CreateAccountRequest, CreateAccountRpc, CreateQosRequest, CreateQosRpc,
    DeleteAccountRequest, DeleteAccountRpc, DeleteQosRequest, DeleteQosRpc, ListAccountsRequest,
    ListAccountsRpc, ListQosRequest, ListQosRpc, ListUsersRequest, ListUsersRpc, RemoveUserRequest,
    RemoveUserRpc,
};
use spur_sdk::rpc::{Call, Code, Current, Refusal, Router, Rpc};
use spur_sdk::store::{Fenced, Leadership, SoleLeadership, Store};
use spur_sdk::testing::MemoryStore;
use spur_sdk::{Limit, ManualClock, Tres};
use spur_sdk_quota::accounting::{Accounting, routes};
use spur_sdk_quota::{AccountProjection, Completeness, Policy, QuotaProjector, TresLimit};

const NO_LIMIT: u32 = u32::MAX;

struct Service {
    store: MemoryStore,
    accounting: Accounting,
    router: Router,
}

impl Service {
    async fn over(store: MemoryStore) -> Self {
        let clock = ManualClock::new(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let (accounting, run) = Accounting::open(store.clone(), clock).await.unwrap();
        tokio::spawn(run);
        let router = routes(&Current::new(accounting.clone()));
        Self { store, accounting, router }
    }

    async fn new() -> Self {
        Self::over(MemoryStore::new()).await
    }

    async fn by<R: Rpc>(
        &self,
        caller: Identity,
        roles: &[Role],
        request: R::Request,
    ) -> Result<R::Response, Refusal> {
        let roles: BTreeSet<Role> = roles.iter().copied().collect();
        let access = table::decide(R::PATH, &roles);
        assert_ne!(access, Access::Deny, "{} is not for {roles:?}", R::PATH);
        let call = Call::new(Caller::local(caller, 1000, 1), roles, access);
        self.router.answer::<R>(call, &request).await
    }

    async fn ask<R: Rpc>(&self, request: R::Request) -> Result<R::Response, Refusal> {
        let admin = Identity::Admin { name: "root".parse().unwrap() };
        self.by::<R>(admin, &[Role::User, Role::Operator, Role::Admin], request).await
    }

    async fn account(&self, name: &str, parent: &str, tres: &str) {
        let request = CreateAccountRequest {
            name: name.to_owned(),
            parent_account: Some(parent.to_owned()),
            grp_tres: Some(tres.to_owned()),
            ..CreateAccountRequest::default()
        };
        self.ask::<CreateAccountRpc>(request).await.unwrap();
    }

    async fn member(&self, user: &str, account: &str) {
        self.ask::<AddUserRpc>(member(user, account)).await.unwrap();
    }

    /// A small site: physics with theory below it, alice in both, bob in theory and coordinator of physics.
    async fn site() -> Self {
        let service = Self::new().await;
        service.account("physics", "", "cpu=64,mem=131072,gres/gpu=8").await;
        service.account("theory", "physics", "cpu=16").await;
        service.account("chemistry", "root", "").await;
        service.member("alice", "physics").await;
        service.member("alice", "theory").await;
        service.member("bob", "theory").await;
        let request = CreateAccountRequest { add_coordinators: vec!["bob".to_owned()], ..account("physics") };
        service.ask::<CreateAccountRpc>(request).await.unwrap();
        service
    }

    async fn users(&self) -> Vec<(String, String, String)> {
        let listed = self.ask::<ListUsersRpc>(ListUsersRequest::default()).await.unwrap();
        listed.users.into_iter().map(|user| (user.name, user.account, user.default_account)).collect()
    }

    async fn history(&self) -> Vec<String> {
        let listed = self.ask::<ListHistoryRpc>(ListHistoryRequest::default()).await.unwrap();
        listed.entries.into_iter().map(|entry| format!("{}: {}", entry.subject, entry.change)).collect()
    }
}

fn account(name: &str) -> CreateAccountRequest {
    CreateAccountRequest { name: name.to_owned(), ..CreateAccountRequest::default() }
}

fn member(user: &str, account: &str) -> AddUserRequest {
    AddUserRequest { user: user.to_owned(), account: account.to_owned(), ..AddUserRequest::default() }
}

fn user(name: &str) -> Identity {
    serde_json::from_value(serde_json::json!({ "user": { "name": name, "uid": 1000 } })).unwrap()
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Refusal>, code: Code, begins: &str) {
    let refusal = answer.unwrap_err();
    assert_eq!(refusal.code, code, "{refusal}");
    assert!(refusal.message.starts_with(begins), "{refusal}");
}

#[tokio::test]
async fn a_modify_changes_only_what_it_names_and_clearing_is_explicit() {
    let service = Service::new().await;
    let all = CreateAccountRequest {
        description: Some("Physics".to_owned()),
        fairshare_weight: Some(2.0),
        max_running_jobs: Some(0),
        grp_tres: Some("cpu=64,mem=1000".to_owned()),
        ..account("physics")
    };
    service.ask::<CreateAccountRpc>(all).await.unwrap();
    let change = CreateAccountRequest { organization: Some("Science".to_owned()), ..account("physics") };
    service.ask::<CreateAccountRpc>(change).await.unwrap();
    let listed = service.ask::<ListAccountsRpc>(ListAccountsRequest {}).await.unwrap();
    let one = &listed.accounts[0];
    assert_eq!((one.description.as_str(), one.organization.as_str()), ("Physics", "Science"));
    assert_eq!((one.max_running_jobs, one.grp_tres.as_str()), (0, "cpu=64,mem=1000"), "0 is stored as 0");
    let clear = CreateAccountRequest {
        description: Some(String::new()),
        max_running_jobs: Some(NO_LIMIT),
        grp_tres: Some(String::new()),
        ..account("physics")
    };
    service.ask::<CreateAccountRpc>(clear).await.unwrap();
    let listed = service.ask::<ListAccountsRpc>(ListAccountsRequest {}).await.unwrap();
    let one = &listed.accounts[0];
    assert_eq!((one.description.as_str(), one.max_running_jobs, one.grp_tres.as_str()), ("", NO_LIMIT, ""));
    assert!((one.fairshare_weight - 2.0).abs() < f64::EPSILON);
    // The same again changes nothing, and is no entry of the history.
    let entries = service.history().await.len();
    let revision = service.accounting.book().revision();
    service.ask::<CreateAccountRpc>(account("physics")).await.unwrap();
    assert_eq!((service.history().await.len(), service.accounting.book().revision()), (entries, revision));
}

#[tokio::test]
async fn tres_are_replaced_or_merged_as_the_request_says() {
    let service = Service::new().await;
    service.account("physics", "", "cpu=64,mem=1000,gres/gpu=8").await;
    let merge = |tres: &str| CreateAccountRequest {
        grp_tres: Some(tres.to_owned()),
        merge_tres: Some(true),
        ..account("physics")
    };
    service.ask::<CreateAccountRpc>(merge("cpu=128,gres/gpu=-1")).await.unwrap();
    let tres = async || {
        service.ask::<ListAccountsRpc>(ListAccountsRequest {}).await.unwrap().accounts[0].grp_tres.clone()
    };
    assert_eq!(tres().await, "cpu=128,mem=1000");
    service.account("physics", "", "node=4").await;
    assert_eq!(tres().await, "node=4");
}

#[tokio::test]
async fn memory_goes_to_the_wire_in_whole_mb_and_exactly_beside() {
    let service = Service::new().await;
    service.account("physics", "", "mem=1Gi,cpu=1500m").await;
    let listed = service.ask::<ListAccountsRpc>(ListAccountsRequest {}).await.unwrap();
    let one = &listed.accounts[0];
    assert_eq!(one.grp_tres, "cpu=1,mem=1073", "an old peer gets no more than there is");
    assert_eq!(one.grp_tres_exact.as_deref(), Some("cpu=1500m,mem=1024Mi"));
    let model = service.accounting.book().model();
    let limits = &model.accounts.values().next().unwrap().terms.limits;
    assert_eq!(limits.tres(TresLimit::GrpTres, &Tres::Mem).unwrap().value, Limit::Value(1 << 30));
}

#[tokio::test]
async fn what_others_depend_on_is_deleted_only_with_force_and_takes_them_along() {
    let service = Service::site().await;
    let delete = |force| DeleteAccountRequest { name: "physics".to_owned(), force };
    let answer = service.ask::<DeleteAccountRpc>(delete(None)).await;
    let held = "account physics has 1 accounts below (theory) and 3 members (alice, bob): use --force";
    refused(answer, Code::FailedPrecondition, held);
    service.ask::<DeleteAccountRpc>(delete(Some(true))).await.unwrap();
    assert_eq!(service.users().await, []);
    let listed = service.ask::<ListAccountsRpc>(ListAccountsRequest {}).await.unwrap();
    assert_eq!(listed.accounts.len(), 1);
    let history = service.history().await;
    assert!(history.contains(&"user alice in account theory: deleted".to_owned()), "{history:#?}");
    assert!(
        history.ends_with(&["account theory: deleted".to_owned(), "account physics: deleted".to_owned()])
    );
    refused(
        service
            .ask::<DeleteAccountRpc>(DeleteAccountRequest { name: "root".to_owned(), force: Some(true) })
            .await,
        Code::InvalidArgument,
        "name: root cannot be deleted",
    );
}

#[tokio::test]
async fn a_forced_deletion_of_more_than_a_transaction_holds_leaves_a_whole_book_at_each_step() {
    let service = Service::new().await;
    service.account("big", "", "").await;
    for number in 0..150 {
        service.member(&format!("user{number}"), "big").await;
    }
    let request = DeleteAccountRequest { name: "big".to_owned(), force: Some(true) };
    service.ask::<DeleteAccountRpc>(request).await.unwrap();
    assert!(service.accounting.book().accounts().is_empty() && service.accounting.book().users().is_empty());
    // What was kept is what is shown.
    let again = Service::over(service.store.clone()).await;
    assert_eq!(*again.accounting.book(), *service.accounting.book());
}

#[tokio::test]
async fn the_default_account_moves_when_its_membership_goes_and_the_last_one_takes_the_user() {
    let service = Service::site().await;
    let remove = |account: &str| RemoveUserRequest { user: "alice".to_owned(), account: account.to_owned() };
    service.ask::<RemoveUserRpc>(remove("physics")).await.unwrap();
    assert!(service.users().await.contains(&("alice".to_owned(), "theory".to_owned(), "theory".to_owned())));
    service.ask::<RemoveUserRpc>(remove("theory")).await.unwrap();
    assert!(service.users().await.iter().all(|(user, ..)| user != "alice"));
    // All of a user, coordination included.
    service
        .ask::<RemoveUserRpc>(RemoveUserRequest { user: "bob".to_owned(), account: String::new() })
        .await
        .unwrap();
    let listed = service.ask::<ListAccountsRpc>(ListAccountsRequest {}).await.unwrap();
    assert!(listed.accounts.iter().all(|account| account.coordinators.is_empty()));
}

#[tokio::test]
async fn a_qos_goes_from_whoever_has_it_and_never_leaves_one_without() {
    let service = Service::site().await;
    for name in ["gold", "silver"] {
        service
            .ask::<CreateQosRpc>(CreateQosRequest { name: name.to_owned(), ..CreateQosRequest::default() })
            .await
            .unwrap();
    }
    let with = |allowed: &str| AddUserRequest {
        allowed_qos: Some(allowed.to_owned()),
        default_qos: Some("gold".to_owned()),
        ..member("alice", "physics")
    };
    service.ask::<AddUserRpc>(with("gold")).await.unwrap();
    let delete = |force| DeleteQosRequest { name: "gold".to_owned(), force };
    let held = "qos gold has 1 memberships that name it (alice in physics): use --force";
    refused(service.ask::<DeleteQosRpc>(delete(None)).await, Code::FailedPrecondition, held);
    let only = "name: is the only allowed QoS of user alice in account physics";
    refused(service.ask::<DeleteQosRpc>(delete(Some(true))).await, Code::InvalidArgument, only);
    service.ask::<AddUserRpc>(with("gold,silver")).await.unwrap();
    service.ask::<DeleteQosRpc>(delete(Some(true))).await.unwrap();
    let listed = service.ask::<ListUsersRpc>(ListUsersRequest::default()).await.unwrap();
    let alice = listed.users.iter().find(|user| user.name == "alice" && user.account == "physics").unwrap();
    assert_eq!((alice.allowed_qos.as_str(), alice.default_qos.as_str()), ("silver", ""));
}

#[tokio::test]
async fn a_coordinator_adds_and_removes_members_below_and_nothing_more() {
    let service = Service::site().await;
    let roles = [Role::User, Role::Coordinator];
    let add = |request| service.by::<AddUserRpc>(user("bob"), &roles, request);
    add(member("carol", "theory")).await.unwrap();
    let denied = Code::PermissionDenied;
    refused(add(member("carol", "chemistry")).await, denied, "account: bob is no coordinator of chemistry");
    let level = AddUserRequest { admin_level: Some("operator".to_owned()), ..member("bob", "theory") };
    refused(add(level).await, denied, "admin_level: only admins");
    let limits = AddUserRequest { grp_tres: Some("cpu=1000".to_owned()), ..member("carol", "theory") };
    refused(add(limits).await, denied, "a coordinator adds and removes members; limits");
    refused(
        add(member("carol", "")).await,
        denied,
        "a coordinator adds and removes members, account by account",
    );
    let remove = |account: &str| RemoveUserRequest { user: "carol".to_owned(), account: account.to_owned() };
    refused(service.by::<RemoveUserRpc>(user("bob"), &roles, remove("")).await, denied, "a coordinator");
    service.by::<RemoveUserRpc>(user("bob"), &roles, remove("theory")).await.unwrap();
    // Through the other call as well.
    let change = Change::CreateAccount(CreateAccountRequest {
        grp_tres: Some("cpu=1".to_owned()),
        ..account("theory")
    });
    let request =
        ChangeAccountsRequest { changes: vec![AccountingChange { change: Some(change) }], dry_run: false };
    refused(service.by::<ChangeAccountsRpc>(user("bob"), &roles, request).await, denied, "a coordinator");
}

#[tokio::test]
async fn an_operator_makes_nobody_more_than_a_user() {
    let service = Service::site().await;
    let roles = [Role::User, Role::Operator];
    let level = AddUserRequest { admin_level: Some("operator".to_owned()), ..member("oscar", "theory") };
    let answer = service.by::<AddUserRpc>(user("oscar"), &roles, level.clone()).await;
    refused(answer, Code::PermissionDenied, "admin_level: only admins");
    service.ask::<AddUserRpc>(level).await.unwrap();
    let remove = RemoveUserRequest { user: "oscar".to_owned(), account: String::new() };
    let answer = service.by::<RemoveUserRpc>(user("ann"), &roles, remove).await;
    refused(answer, Code::PermissionDenied, "user: oscar is an operator");
}

#[tokio::test]
async fn a_user_sees_what_is_the_users_own_and_that_it_is_a_part() {
    let service = Service::site().await;
    let accounts =
        service.by::<ListAccountsRpc>(user("bob"), &[Role::User], ListAccountsRequest {}).await.unwrap();
    let names: Vec<_> = accounts.accounts.iter().map(|account| account.name.as_str()).collect();
    assert_eq!(names, ["physics", "theory"], "with those above, whose limits bind");
    assert_eq!((accounts.partial, accounts.revision), (Some(true), None));
    let users =
        service.by::<ListUsersRpc>(user("alice"), &[Role::User], ListUsersRequest::default()).await.unwrap();
    assert!(users.users.iter().all(|user| user.name == "alice"), "{users:?}");
    assert_eq!((users.partial, users.revision), (Some(true), None));
}

#[tokio::test]
async fn several_changes_are_made_together_or_not_at_all_and_tried_without_being_made() {
    let service = Service::new().await;
    let ask = |changes: Vec<Change>, dry_run| {
        let changes = changes.into_iter().map(|change| AccountingChange { change: Some(change) }).collect();
        service.ask::<ChangeAccountsRpc>(ChangeAccountsRequest { changes, dry_run })
    };
    let good = vec![Change::CreateAccount(account("physics")), Change::AddUser(member("alice", "physics"))];
    let wish: ChangeAccountsResponse = ask(good.clone(), true).await.unwrap();
    assert_eq!(
        wish.changed,
        [
            "account physics: created",
            "user alice: created; default_account: physics",
            "user alice in account physics: created"
        ]
    );
    assert!(service.store.range("").await.unwrap().entries.is_empty());
    let bad = [good.clone(), vec![Change::AddUser(member("bob", "nowhere"))]].concat();
    refused(ask(bad, false).await, Code::NotFound, "account nowhere");
    assert!(service.store.range("").await.unwrap().entries.is_empty());
    assert_eq!(ask(good.clone(), false).await.unwrap().changed, wish.changed);
    assert_eq!(ask(good, false).await.unwrap().changed, Vec::<String>::new());
    let many = (0..26).map(|number| Change::CreateAccount(account(&format!("a{number}")))).collect();
    refused(ask(many, false).await, Code::InvalidArgument, "changes: at most 25");
}

#[tokio::test]
async fn the_history_says_who_changed_what() {
    let service = Service::site().await;
    let change = CreateAccountRequest { grp_tres: Some("cpu=128".to_owned()), ..account("physics") };
    service.ask::<CreateAccountRpc>(change).await.unwrap();
    let request =
        ListHistoryRequest { subject: "account physics".to_owned(), ..ListHistoryRequest::default() };
    let entries = service.ask::<ListHistoryRpc>(request).await.unwrap().entries;
    let last = entries.last().unwrap();
    assert_eq!(last.change, "grp_tres: cpu=64,mem=131072,gres/gpu=8 -> cpu=128");
    assert!(last.caller.starts_with("admin root, socket (uid 1000"), "{}", last.caller);
    assert_eq!(last.time.unwrap().seconds, 1_700_000_000);
    assert_eq!(entries.len(), 3);
    let newest = ListHistoryRequest { limit: 1, ..ListHistoryRequest::default() };
    let newest = service.ask::<ListHistoryRpc>(newest).await.unwrap().entries;
    assert_eq!(newest, std::slice::from_ref(last));
}

#[tokio::test]
async fn who_waits_for_a_change_is_told_at_once() {
    let service = Service::site().await;
    let revision = service.accounting.book().revision().0;
    let wait = |seconds| {
        service.ask::<WaitForChangeRpc>(WaitForChangeRequest { revision, timeout_seconds: seconds })
    };
    assert_eq!(wait(1).await.unwrap().revision, revision, "nothing has changed");
    let (told, ()) = tokio::join!(wait(30), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        service.account("biology", "", "").await;
    });
    assert!(told.unwrap().revision > revision);
}

#[tokio::test]
async fn many_at_once_lose_nothing() {
    let service = Service::site().await;
    let adding = (0..100).map(|number| {
        let accounting = &service;
        async move { accounting.member(&format!("user{number}"), "chemistry").await }
    });
    futures::future::join_all(adding).await;
    assert_eq!(service.accounting.book().members().len(), 103);
    let numbers =
        service.ask::<ListHistoryRpc>(ListHistoryRequest { limit: 10_000, ..ListHistoryRequest::default() });
    let numbers: Vec<u64> = numbers.await.unwrap().entries.iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "without a gap");
    let again = Service::over(service.store.clone()).await;
    assert_eq!(*again.accounting.book(), *service.accounting.book());
}

#[tokio::test]
async fn a_controller_that_does_not_lead_any_more_changes_nothing() {
    let store = MemoryStore::new();
    let leadership = SoleLeadership::new(store.clone(), "head1", "");
    let term = leadership.campaign().await.unwrap();
    let fenced = Fenced::new(store.clone(), term.fence().clone());
    let (old, run) = Accounting::open(fenced, ManualClock::new(SystemTime::UNIX_EPOCH)).await.unwrap();
    tokio::spawn(run);
    let router = routes(&Current::new(old));
    let _next = leadership.campaign().await.unwrap();
    let admin = Caller::local(Identity::Admin { name: "root".parse().unwrap() }, 0, 1);
    let call = Call::new(admin, [Role::Admin].into(), Access::Allow);
    let before = store.range("accounts/").await.unwrap().entries;
    let answer = router.answer::<CreateAccountRpc>(call, &account("physics")).await;
    refused(answer, Code::Unavailable, "keep the accounts: this term of leadership is over");
    assert_eq!(store.range("accounts/").await.unwrap().entries, before);
}

#[tokio::test]
async fn the_accounts_are_a_full_source_of_the_projection() {
    let service = Service::site().await;
    let model = service.accounting.book().model();
    assert_eq!((model.completeness, model.problems.len()), (Completeness::Full, 0));
    let policy = Policy::default();
    let projection = QuotaProjector::new(&policy).project(&model);
    let names: Vec<_> =
        projection.accounts.iter().map(|account: &AccountProjection| account.namespace.clone()).collect();
    assert_eq!(names, ["spur-acct-chemistry", "spur-acct-physics", "spur-acct-theory"]);
    let empty = Service::new().await;
    assert_eq!(
        empty.accounting.book().model().completeness,
        Completeness::Partial,
        "no account is no full reading"
    );
}

#[tokio::test]
async fn records_of_the_first_version_still_load() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/accounting-v1.json");
    let service = Service::site().await;
    let gold = CreateQosRequest {
        name: "gold".to_owned(),
        description: Some("Gold".to_owned()),
        priority: Some(10),
        preempt_mode: Some("requeue".to_owned()),
        usage_factor: Some(2.0),
        max_jobs_per_user: Some(5),
        max_wall_minutes: Some(60),
        max_tres_per_job: Some("cpu=4".to_owned()),
        max_submit_jobs_per_user: Some(6),
        max_tres_per_user: Some("gres/gpu=2".to_owned()),
        grp_tres: Some("cpu=100".to_owned()),
        grp_wall_minutes: Some(600),
        preempt_exempt_time: Some(30),
        max_submit_jobs_per_account: Some(7),
        grp_submit_jobs: Some(8),
        flags: Some("DenyOnLimit".to_owned()),
        ..CreateQosRequest::default()
    };
    service.ask::<CreateQosRpc>(gold).await.unwrap();
    let limits = AddUserRequest {
        admin_level: Some("operator".to_owned()),
        default_qos: Some("gold".to_owned()),
        allowed_qos: Some("gold".to_owned()),
        max_running_jobs: Some(1),
        max_submit_jobs: Some(2),
        grp_submit_jobs: Some(3),
        max_wall_minutes: Some(0),
        max_tres_per_job: Some("cpu=1500m".to_owned()),
        grp_tres: Some("mem=1Gi".to_owned()),
        ..member("alice", "physics")
    };
    service.ask::<AddUserRpc>(limits).await.unwrap();
    let entries = service.store.range("").await.unwrap().entries;
    let written: std::collections::BTreeMap<String, String> = entries
        .iter()
        .map(|entry| (entry.key.to_string(), String::from_utf8(entry.value.clone()).unwrap()))
        .collect();
    let text = serde_json::to_string_pretty(&written).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    // The file of a version stays as it is; a later format gets another beside it.
    let kept = std::fs::read_to_string(&golden).unwrap();
    assert_eq!(text, kept);
    let store = MemoryStore::new();
    let kept: std::collections::BTreeMap<String, String> = serde_json::from_str(&kept).unwrap();
    for (key, value) in kept {
        let put = spur_sdk::store::Transaction::new().put(key.parse().unwrap(), value.into_bytes());
        let _ = store.commit(put).await.unwrap();
    }
    let loaded = Service::over(store).await;
    assert_eq!(loaded.accounting.book().accounts(), service.accounting.book().accounts());
    assert_eq!(loaded.accounting.book().members(), service.accounting.book().members());
    assert_eq!(loaded.accounting.book().users(), service.accounting.book().users());
    assert_eq!(loaded.accounting.book().qos(), service.accounting.book().qos());
    assert_eq!(loaded.ask::<ListQosRpc>(ListQosRequest {}).await.unwrap().qos_list.len(), 1);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_named_and_nothing_is_served_as_if_it_were_not_there() {
    let service = Service::site().await;
    let key = "accounts/account/physics".parse().unwrap();
    let put =
        spur_sdk::store::Transaction::new().put(key, b"account/1\n{\"grp_tres\": \"cpu=lots\"}".to_vec());
    let _ = service.store.commit(put).await.unwrap();
    let error = Accounting::open(service.store.clone(), ManualClock::new(SystemTime::UNIX_EPOCH))
        .await
        .err()
        .unwrap();
    assert!(error.to_string().starts_with("accounts/account/physics is damaged: account: "), "{error}");
}
