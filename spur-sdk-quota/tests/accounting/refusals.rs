//! What is wrong is refused at the door, with the field named, and nothing is stored.

use spur_sdk::rpc::Code;
use spur_sdk::rpc::messages::slurm::{
    AddUserRequest, AddUserRpc, CreateAccountRequest, CreateAccountRpc, CreateQosRequest, CreateQosRpc,
    Presence, RemoveUserRequest, RemoveUserRpc,
};
use spur_sdk::store::Store;

use super::{Service, account, member, refused};

#[tokio::test]
async fn what_is_wrong_with_an_account_is_refused_with_the_field_named_and_nothing_is_stored() {
    let service = Service::site().await;
    let before = service.store.range("").await.unwrap();
    let bad = |code, begins: &'static str, request: CreateAccountRequest| (code, begins, request);
    let invalid = Code::InvalidArgument;
    let text = |text: &str| Some(text.to_owned());
    for (code, begins, request) in [
        bad(invalid, "name: a name must not be empty", account("")),
        bad(invalid, "name: \"-rf\" begins with a sign", account("-rf")),
        bad(invalid, "name: \"a b\" holds ' '", account("a b")),
        bad(invalid, "name: \"a,b\" holds ','", account("a,b")),
        bad(invalid, "name: a name must not hold the control character", account("a\u{7}b")),
        bad(invalid, "name: 10000000 bytes; at most 255", account(&"x".repeat(10_000_000))),
        bad(
            invalid,
            "parent_account: account nowhere does not exist",
            CreateAccountRequest { parent_account: text("nowhere"), ..account("new") },
        ),
        bad(
            invalid,
            "parent_account: theory is physics itself or below",
            CreateAccountRequest { parent_account: text("theory"), ..account("physics") },
        ),
        bad(
            invalid,
            "parent_account: root stands above",
            CreateAccountRequest { parent_account: text("physics"), ..account("root") },
        ),
        bad(
            invalid,
            "description: holds the control character",
            CreateAccountRequest { description: text("a\nb"), ..account("new") },
        ),
        bad(
            invalid,
            "description: 2000 bytes; at most 1024",
            CreateAccountRequest { description: text(&"d".repeat(2000)), ..account("new") },
        ),
        bad(
            invalid,
            "fairshare_weight: NaN is not between",
            CreateAccountRequest { fairshare_weight: Some(f64::NAN), ..account("new") },
        ),
        bad(
            invalid,
            "fairshare_weight: -1 is not between",
            CreateAccountRequest { fairshare_weight: Some(-1.0), ..account("new") },
        ),
        bad(
            invalid,
            "grp_tres: \"nodes\" is no TRES: did you mean node?",
            CreateAccountRequest { grp_tres: text("nodes=4"), ..account("new") },
        ),
        bad(
            invalid,
            "grp_tres: an entry is empty",
            CreateAccountRequest { grp_tres: text("cpu=1,"), ..account("new") },
        ),
        bad(
            invalid,
            "grp_tres: 100000 bytes",
            CreateAccountRequest { grp_tres: text(&"c".repeat(100_000)), ..account("new") },
        ),
        bad(
            invalid,
            "grp_tres: cpu=parent",
            CreateAccountRequest { grp_tres: text("cpu=parent"), ..account("new") },
        ),
        bad(invalid, "presence: is none of", CreateAccountRequest { presence: Some(9), ..account("new") }),
        bad(
            Code::NotFound,
            "user nobody",
            CreateAccountRequest { add_coordinators: vec!["nobody".to_owned()], ..account("physics") },
        ),
        bad(
            Code::AlreadyExists,
            "account physics exists",
            CreateAccountRequest { presence: Some(Presence::Absent.into()), ..account("physics") },
        ),
        bad(
            Code::NotFound,
            "account new does not exist",
            CreateAccountRequest { presence: Some(Presence::Present.into()), ..account("new") },
        ),
    ] {
        refused(service.ask::<CreateAccountRpc>(request).await, code, begins);
    }
    assert_eq!(service.store.range("").await.unwrap(), before);
}

#[tokio::test]
async fn what_is_wrong_with_a_user_is_refused_with_the_field_named_and_nothing_is_stored() {
    let service = Service::site().await;
    let before = service.store.range("").await.unwrap();
    let invalid = Code::InvalidArgument;
    let text = |text: &str| Some(text.to_owned());
    for (code, begins, request) in [
        (invalid, "user: a name must not be empty", member("", "physics")),
        (invalid, "user: \"--help\" begins with a sign", member("--help", "physics")),
        (Code::NotFound, "account nowhere does not exist", member("carol", "nowhere")),
        (invalid, "account: root stands above", member("carol", "root")),
        (
            invalid,
            "account: is needed for limits",
            AddUserRequest { max_running_jobs: Some(1), ..member("carol", "") },
        ),
        (
            invalid,
            "default_qos: qos gold does not exist",
            AddUserRequest { default_qos: text("gold"), ..member("alice", "physics") },
        ),
        (
            invalid,
            "allowed_qos: a name must not be empty",
            AddUserRequest { allowed_qos: text("a,,b"), ..member("alice", "physics") },
        ),
        (
            invalid,
            "admin_level: \"boss\" is none of",
            AddUserRequest { admin_level: text("boss"), ..member("alice", "physics") },
        ),
        (
            invalid,
            "is_default: theory is the user's only account",
            AddUserRequest { is_default: Some(false), ..member("bob", "theory") },
        ),
        (
            invalid,
            "max_tres_per_job: amount of cpu",
            AddUserRequest { max_tres_per_job: text("cpu=x"), ..member("bob", "theory") },
        ),
    ] {
        refused(service.ask::<AddUserRpc>(request).await, code, begins);
    }
    assert_eq!(service.store.range("").await.unwrap(), before);
}

#[tokio::test]
async fn what_is_wrong_with_a_qos_or_a_removal_is_refused_and_nothing_is_stored() {
    let service = Service::site().await;
    let before = service.store.range("").await.unwrap();
    let invalid = Code::InvalidArgument;
    let text = |text: &str| Some(text.to_owned());
    let qos = |name: &str| CreateQosRequest { name: name.to_owned(), ..CreateQosRequest::default() };
    for (begins, request) in [
        ("name: a name must not be empty", qos("")),
        ("preempt: qos gone does not exist", CreateQosRequest { preempt: text("gone"), ..qos("high") }),
        (
            "usage_factor: inf is not between",
            CreateQosRequest { usage_factor: Some(f64::INFINITY), ..qos("high") },
        ),
        (
            "preempt_exempt_time: is set and cleared",
            CreateQosRequest { preempt_exempt_time: Some(1), clear_preempt_exempt_time: true, ..qos("high") },
        ),
    ] {
        refused(service.ask::<CreateQosRpc>(request).await, invalid, begins);
    }
    let remove =
        |user: &str, account: &str| RemoveUserRequest { user: user.to_owned(), account: account.to_owned() };
    refused(service.ask::<RemoveUserRpc>(remove("carol", "")).await, Code::NotFound, "user carol");
    refused(
        service.ask::<RemoveUserRpc>(remove("bob", "physics")).await,
        Code::NotFound,
        "user bob in account physics",
    );
    assert_eq!(service.store.range("").await.unwrap(), before);
}
