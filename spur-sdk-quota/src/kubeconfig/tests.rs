//! Sessions, tokens and kubeconfigs on a control plane in memory.

#![expect(clippy::arithmetic_side_effects, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use spur_sdk::{AccountName, Classify, ErrorKind, ManualClock, UserName};

use super::testing::SessionModel;
use super::*;
use crate::source::{ReadOptions, read};
use crate::{Policy, QuotaProjector};

const HOUR: Duration = Duration::from_hours(1);

/// Answers in order; the last one stays.
#[derive(Clone)]
struct View(Arc<Mutex<Vec<Membership>>>);

impl View {
    fn say(&self, answers: Vec<Membership>) {
        *self.0.lock().unwrap() = answers;
    }
}

impl Memberships for View {
    async fn membership(&self, _: &UserName) -> Membership {
        let mut answers = self.0.lock().unwrap();
        if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() }
    }
}

struct Lab {
    clock: ManualClock,
    model: SessionModel,
    view: View,
    minter: Minter<SessionModel, View>,
}

fn user(name: &str) -> UserName {
    name.parse().unwrap()
}

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
}

fn known(accounts: &[&str], default: Option<&str>) -> Membership {
    let account = |name: &&str| name.parse::<AccountName>().unwrap();
    let accounts: BTreeSet<_> = accounts.iter().map(account).collect();
    Membership::Known { accounts, default: default.map(|name| account(&name)), seen: start() }
}

fn lab_with(policy: KubeconfigPolicy) -> Lab {
    let clock = ManualClock::new(start());
    let model = SessionModel::new(Arc::new(clock.clone()));
    let view = View(Arc::new(Mutex::new(vec![known(&["optics", "physics"], Some("physics"))])));
    model.add_user(&user("alice"));
    let minter = Minter::new(model.clone(), view.clone(), policy.max_staleness(HOUR * 100)).unwrap();
    let minter = minter.clock(Arc::new(clock.clone()));
    Lab { clock, model, view, minter }
}

fn lab() -> Lab {
    lab_with(KubeconfigPolicy::new("site"))
}

fn alice() -> MintRequest {
    MintRequest::new(user("alice")).client("a test")
}

#[tokio::test]
async fn a_session_takes_three_requests_and_says_whose_it_is() {
    let lab = lab();
    let issued = lab.minter.mint(&alice().client("x\ny".repeat(200))).await.unwrap();
    assert_eq!(
        lab.model.calls(),
        ["account spur-user-alice", "create spur-user-alice", "request_token spur-user-alice"]
    );
    assert!(lab.model.takes(&issued.token.bearer));
    assert_eq!(issued.token.expires, start() + HOUR);
    assert_eq!(issued.session.expires(), start() + 12 * HOUR);
    assert!(issued.session.is_of(&user("alice")) && !issued.session.is_of(&user("alic")));
    let stored = &lab.model.stored()[0];
    let annotation = |key: &str| stored.annotations[&format!("spur.amd.com/{key}")].clone();
    assert_eq!(annotation("user-name"), "alice");
    assert_eq!(annotation("created"), "2027-01-15T08:00:00Z");
    assert_eq!(annotation("expires"), "2027-01-15T20:00:00Z");
    assert!(annotation("client").starts_with("x yx y") && annotation("client").len() == 256);
    assert_eq!(stored.labels["spur.amd.com/session"], "spur-user-alice");
    assert_eq!(stored.labels["app.kubernetes.io/managed-by"], "spur-quota");
}

#[tokio::test]
async fn a_further_token_takes_one_request_and_never_outlives_the_session() {
    let lab = lab();
    let first = lab.minter.mint(&alice()).await.unwrap();
    let before = lab.model.calls().len();
    lab.clock.advance(11 * HOUR + HOUR / 2);
    let second = lab.minter.refresh(&alice(), &first.session).await.unwrap();
    assert_eq!(lab.model.calls().len(), before + 1);
    assert_eq!(second.session, first.session);
    assert_eq!(second.token.expires, first.session.expires());
    assert!(!lab.model.takes(&first.token.bearer) && lab.model.takes(&second.token.bearer));
    // Within 10 min of its end Kubernetes gives none; a new session begins.
    lab.clock.advance(Duration::from_mins(21));
    let error = lab.minter.refresh(&alice(), &first.session).await.unwrap_err();
    assert!(matches!(error, KubeconfigError::SessionEnded(_)));
    let third = lab.minter.issue(&alice(), Some(&first.session)).await.unwrap();
    assert_ne!(third.session, first.session);
}

#[tokio::test]
async fn lifetimes_out_of_range_are_refused_before_any_request() {
    let lab = lab();
    for seconds in [0, 599, 12 * 3600 + 1, u64::MAX] {
        let request = alice().lifetime(Some(Duration::from_secs(seconds)));
        let error = lab.minter.mint(&request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(lab.model.calls(), <[String; 0]>::default());
    lab.model.shorten(HOUR / 4);
    let issued = lab.minter.mint(&alice().lifetime(Some(2 * HOUR))).await.unwrap();
    assert_eq!(issued.token.expires, start() + HOUR / 4, "what the server gives counts");
}

#[tokio::test]
async fn nothing_is_minted_from_a_view_that_is_missing_stale_or_empty() {
    let lab = lab();
    let issued = lab.minter.mint(&alice()).await.unwrap();
    let calls = lab.model.calls().len();
    for (answer, kind) in [
        (Membership::Unknown("not read yet".to_owned()), ErrorKind::Unavailable),
        (known(&[], Some("physics")), ErrorKind::NotFound),
    ] {
        lab.view.say(vec![answer]);
        assert_eq!(lab.minter.mint(&alice()).await.unwrap_err().kind(), kind);
        assert_eq!(lab.minter.refresh(&alice(), &issued.session).await.unwrap_err().kind(), kind);
        let minted = mint_scoped_kubeconfig(&lab.minter, &alice(), Form::Exec(ExecPlugin::new("spur"))).await;
        assert_eq!(minted.unwrap_err().kind(), kind);
    }
    lab.view.say(vec![known(&["physics"], None)]);
    lab.clock.advance(101 * HOUR);
    let error = lab.minter.mint(&alice()).await.unwrap_err();
    assert!(matches!(error, KubeconfigError::AssociationsStale { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(lab.model.calls().len(), calls, "no request was made");
}

#[tokio::test]
async fn an_association_that_goes_while_a_token_is_made_takes_the_session_with_it() {
    let lab = lab();
    let yes = || known(&["physics"], None);
    lab.view.say(vec![yes(), known(&[], None)]);
    assert_eq!(lab.minter.mint(&alice()).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(lab.model.stored(), []);
    lab.view.say(vec![yes()]);
    let issued = lab.minter.mint(&alice()).await.unwrap();
    lab.view.say(vec![yes(), known(&[], None)]);
    assert_eq!(lab.minter.refresh(&alice(), &issued.session).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(lab.model.stored(), []);
    // That nothing is known for a moment ends no session that is there, and makes none.
    lab.view.say(vec![yes()]);
    let issued = lab.minter.mint(&alice()).await.unwrap();
    let unknown = || Membership::Unknown("a moment".to_owned());
    lab.view.say(vec![yes(), unknown()]);
    assert_eq!(
        lab.minter.refresh(&alice(), &issued.session).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    lab.view.say(vec![yes(), unknown()]);
    assert_eq!(lab.minter.mint(&alice()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(lab.model.stored().len(), 1);
}

#[tokio::test]
async fn every_request_that_fails_leaves_no_session_behind() {
    let fault = || ApiError::Status {
        code: 500,
        reason: "InternalError".into(),
        message: "no".into(),
        retry_after: None,
    };
    for call in 1..=3 {
        let lab = lab();
        lab.model.fail(call, fault());
        let error = lab.minter.mint(&alice()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{call}: {error}");
        assert_eq!(lab.model.stored(), [], "{call}");
    }
    // What cannot be taken back ends by itself, and its token was given to nobody.
    let lab = lab();
    lab.model.fail(3, fault());
    lab.model.fail(4, fault());
    assert!(lab.minter.mint(&alice()).await.is_err());
    assert_eq!(lab.model.stored().len(), 1);
    lab.clock.advance(13 * HOUR);
    assert_eq!(lab.minter.sweep().await.unwrap().removed.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_account_is_waited_for_and_named_when_it_does_not_come() {
    let lab = lab();
    lab.model.remove_user(&user("alice"));
    let begin = tokio::time::Instant::now();
    let error = lab.minter.mint(&alice()).await.unwrap_err();
    assert_eq!(begin.elapsed().as_secs(), 10);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("spur-users/spur-user-alice is not there after 10 s"), "{error}");
    let looks = lab.model.calls().len();
    assert!((10..20).contains(&looks), "{looks}");

    let later = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        lab.model.add_user(&user("alice"));
    };
    let request = alice();
    let (minted, ()) = tokio::join!(lab.minter.issue(&request, None), later);
    assert!(lab.model.takes(&minted.unwrap().token.bearer));

    // Who is taken out meanwhile does not wait to the end.
    lab.model.remove_user(&user("alice"));
    lab.view.say(vec![known(&["physics"], None), known(&["physics"], None), known(&[], None)]);
    let begin = tokio::time::Instant::now();
    assert_eq!(lab.minter.mint(&alice()).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_service_account_of_somebody_else_is_refused_at_once() {
    let lab = lab();
    let ours = || lab.model.calls().len();
    for (labels, annotations, why) in [
        (vec![], vec![("spur.amd.com/user-name", "alice")], "label"),
        (vec![("app.kubernetes.io/managed-by", "helm")], vec![("spur.amd.com/user-name", "alice")], "label"),
        (vec![("app.kubernetes.io/managed-by", "spur-quota")], vec![], "annotation"),
        (
            vec![("app.kubernetes.io/managed-by", "spur-quota")],
            vec![("spur.amd.com/user-name", "Alice")],
            "\"Alice\"",
        ),
    ] {
        let texts = |pairs: Vec<(&str, &str)>| {
            pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let account = StoredAccount {
            labels: texts(labels),
            annotations: texts(annotations),
            ..StoredAccount::default()
        };
        lab.model.put_account("spur-user-alice", account);
        let before = ours();
        let error = lab.minter.mint(&alice()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Conflict && !error.is_retryable(), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(ours(), before + 1);
    }
}

#[tokio::test]
async fn nobody_uses_the_session_of_another() {
    let lab = lab();
    lab.model.add_user(&user("bob"));
    let issued = lab.minter.mint(&alice()).await.unwrap();
    let calls = lab.model.calls().len();
    let error = lab.minter.issue(&MintRequest::new(user("bob")), Some(&issued.session)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(lab.model.calls().len(), calls);
    // A name with a later end is the name of no Secret.
    let text = issued.session.to_string();
    let end = text.split('.').nth(1).unwrap();
    let altered: SessionName = text.replace(end, "1900000000").parse().unwrap();
    let error = lab.minter.refresh(&alice(), &altered).await.unwrap_err();
    assert!(matches!(error, KubeconfigError::SessionEnded(_)), "{error}");
}

#[tokio::test]
async fn one_session_ends_without_the_other_and_all_end_with_the_service_account() {
    let lab = lab();
    lab.model.add_user(&user("bob"));
    let first = lab.minter.mint(&alice()).await.unwrap();
    let second = lab.minter.mint(&alice()).await.unwrap();
    let other = lab.minter.mint(&MintRequest::new(user("bob"))).await.unwrap();
    assert!(lab.minter.revoke_session(&first.session).await.unwrap());
    assert!(!lab.minter.revoke_session(&first.session).await.unwrap());
    assert!(!lab.model.takes(&first.token.bearer) && lab.model.takes(&second.token.bearer));
    let third = lab.minter.mint(&alice()).await.unwrap();
    let report = lab.minter.revoke(&user("alice")).await.unwrap();
    assert_eq!(report.removed.len(), 2);
    assert!(!lab.model.takes(&second.token.bearer) && !lab.model.takes(&third.token.bearer));
    assert!(lab.model.takes(&other.token.bearer));
    lab.model.add_user(&user("bob"));
    assert!(!lab.model.takes(&other.token.bearer), "a ServiceAccount of the same name is another one");
    let again = lab.minter.issue(&MintRequest::new(user("bob")), Some(&other.session)).await.unwrap();
    assert!(lab.model.takes(&again.token.bearer));
}

#[tokio::test]
async fn sweeping_ends_what_is_over_and_the_oldest_of_too_many() {
    let lab = lab_with(KubeconfigPolicy::new("site").sessions_per_user(2));
    lab.model.add_user(&user("bob"));
    let mint = async |name: &str| {
        lab.clock.advance(Duration::from_secs(10));
        lab.minter.mint(&MintRequest::new(user(name))).await.unwrap().session
    };
    let old = mint("alice").await;
    lab.clock.advance(12 * HOUR + Duration::from_secs(30));
    let (a, b, c, d) = (mint("alice").await, mint("alice").await, mint("alice").await, mint("bob").await);
    let report = lab.minter.sweep().await.unwrap();
    assert_eq!(report.failed.len(), 0);
    let mut wanted = vec![(a, Removal::TooMany), (old, Removal::Expired)];
    wanted.sort();
    assert_eq!(report.removed, wanted);
    let left: BTreeSet<_> = lab.minter.sessions(None).await.unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(left, BTreeSet::from([b, c, d]));
    assert_eq!(lab.minter.sweep().await.unwrap().removed, []);
}

#[tokio::test]
async fn pods_of_a_user_go_where_accounts_are_and_one_that_fails_keeps_none_from_going() {
    let lab = lab();
    let bob = user("bob");
    lab.model.add_namespace("spur-acct-physics");
    for (namespace, name, whose) in [
        ("spur-acct-physics", "a", "alice"),
        ("spur-acct-physics", "b", "alice"),
        ("kube-system", "c", "alice"),
        ("spur-acct-physics", "d", "bob"),
    ] {
        lab.model.add_pod(namespace, name, &user(whose));
    }
    let fault = ApiError::Timeout(HOUR);
    lab.model.fail(3, fault);
    let report = lab.minter.evict_user_pods(&user("alice")).await.unwrap();
    assert_eq!((report.deleted.len(), report.failed.len()), (1, 1));
    let report = lab.minter.evict_user_pods(&user("alice")).await.unwrap();
    assert_eq!((report.deleted.len(), report.failed.len()), (1, 0));
    let report = lab.minter.evict_user_pods(&user("alice")).await.unwrap();
    assert!(report.deleted.is_empty() && report.failed.is_empty(), "{report:?}");
    assert_eq!(lab.model.pods("spur.amd.com/user", "spur-user-alice").await.unwrap().len(), 1);
    assert_eq!(lab.minter.evict_user_pods(&bob).await.unwrap().deleted.len(), 1);
}

#[tokio::test]
async fn a_kubeconfig_has_a_context_for_each_account_and_no_secret_by_default() {
    let lab = lab();
    let plugin = ExecPlugin::spur("site", Some("https://controller:6817")).install_hint("Ask.");
    let minted = mint_scoped_kubeconfig(&lab.minter, &alice(), Form::Exec(plugin)).await.unwrap();
    insta::assert_snapshot!(*minted.kubeconfig.to_yaml().unwrap(), @"
    apiVersion: v1
    kind: Config
    clusters:
    - name: site
      cluster:
        server: https://10.0.0.1:6443
        certificate-authority-data: dGhlIGF1dGhvcml0eQ==
    users:
    - name: site/user/alice
      user:
        exec:
          apiVersion: client.authentication.k8s.io/v1
          command: spur
          args:
          - kube-token
          - --cluster
          - site
          - --controller
          - https://controller:6817
          installHint: Ask.
          interactiveMode: Never
          provideClusterInfo: false
    contexts:
    - name: site/physics
      context:
        cluster: site
        namespace: spur-acct-physics
        user: site/user/alice
    - name: site/optics
      context:
        cluster: site
        namespace: spur-acct-optics
        user: site/user/alice
    current-context: site/physics
    ");
    assert_eq!(lab.model.calls(), <[String; 0]>::default());

    let request = alice().account(Some("optics".parse().unwrap()));
    let minted = mint_scoped_kubeconfig(&lab.minter, &request, Form::Static).await.unwrap();
    let yaml = minted.kubeconfig.to_yaml().unwrap();
    assert!(yaml.contains("token: token-uid-"), "{}", *yaml);
    assert!(yaml.contains("current-context: site/optics"), "{}", *yaml);
    assert!(!format!("{minted:?}").contains("token-uid-"), "{minted:?}");
    assert_eq!(minted.expires, Some(start() + HOUR));
    assert_eq!(minted.session.unwrap().expires(), start() + HOUR, "it ends with its token");
    let request = alice().account(Some("chemistry".parse().unwrap()));
    let error = mint_scoped_kubeconfig(&lab.minter, &request, Form::Static).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn the_address_for_users_is_policy() {
    let policy = KubeconfigPolicy::new("site")
        .server(Some("https://k8s.example.org".to_owned()))
        .tls_server_name(Some("kubernetes".to_owned()));
    let lab = lab_with(policy);
    let minted = mint_scoped_kubeconfig(&lab.minter, &alice(), Form::Exec(ExecPlugin::new("spur"))).await;
    let yaml = minted.unwrap().kubeconfig.to_yaml().unwrap();
    assert!(yaml.contains("server: https://k8s.example.org\n"), "{}", *yaml);
    assert!(yaml.contains("tls-server-name: kubernetes\n"), "{}", *yaml);
}

#[test]
fn policies_that_cannot_be_carried_out_are_refused() {
    let policy = || KubeconfigPolicy::new("site");
    for (policy, word) in [
        (KubeconfigPolicy::new("my/site"), "cluster"),
        (KubeconfigPolicy::new(""), "cluster"),
        (policy().server(Some("http://host".to_owned())), "server"),
        (policy().server(Some("https://".to_owned())), "server"),
        (policy().server(Some("https://user:secret@host".to_owned())), "server"),
        (policy().server(Some("https://a b".to_owned())), "server"),
        (policy().default_lifetime(Duration::from_secs(599)), "default_lifetime"),
        (policy().session_lifetime(Duration::ZERO), "session_lifetime"),
        (policy().max_lifetime(HOUR / 2), "default_lifetime"),
    ] {
        let error = policy.check().unwrap_err();
        assert!(error.to_string().starts_with(word), "{error}");
    }
    policy().check().unwrap();
}

#[test]
fn a_directory_knows_what_was_read_in_full_alone() {
    let text = "[[account]]\nname = \"physics\"\ngrp_tres = \"cpu=4\"\n[[account]]\nname = \"optics\"\n\
                parent = \"physics\"\n[[user]]\nname = \"alice\"\naccounts = [\"optics\", \"physics\"]\n\
                default_account = \"physics\"\n";
    let directory = |text: &str| {
        let model = read(text, "accounts.toml", ReadOptions::default()).unwrap();
        let policy = Policy::default();
        let projection = QuotaProjector::new(&policy).project(&model);
        Directory::new(&model, &projection, start())
    };
    let found = directory(text);
    assert_eq!(found.of(&user("alice")), known(&["optics", "physics"], Some("physics")));
    assert_eq!(found.of(&user("bob")), known(&[], None));
    let broken = text.replace("cpu=4", "cpu=many");
    let Membership::Known { accounts, .. } = directory(&broken).of(&user("alice")) else { panic!("unknown") };
    assert_eq!(accounts.len(), 2, "a stopped account keeps its members");
    assert!(matches!(directory("").of(&user("alice")), Membership::Unknown(_)));
}

proptest! {
    #[test]
    fn names_of_sessions_are_read_as_they_were_written(name in "\\PC{1,80}", end in 0_u64..=99_999_999_999, random: [u8; 16]) {
        let Ok(user) = name.parse::<UserName>() else { return Ok(()) };
        let session = SessionName::new(&user, SystemTime::UNIX_EPOCH + Duration::from_secs(end), random);
        let read: SessionName = session.as_str().parse().unwrap();
        prop_assert_eq!(&read, &session);
        prop_assert!(read.is_of(&user));
        prop_assert!(read.as_str().len() <= 253);
        prop_assert_eq!(read.expires(), SystemTime::UNIX_EPOCH + Duration::from_secs(end));
    }

    #[test]
    fn other_texts_are_no_names_of_sessions(text in "(spur-user-)?[-a-z0-9./]{0,40}(\\.[0-9+]{0,14}){0,2}(\\.[a-z0-9]{0,17})?") {
        if let Ok(name) = text.parse::<SessionName>() {
            prop_assert_eq!(name.as_str(), text);
            prop_assert!(name.service_account().starts_with("spur-user-"));
        }
    }

    #[test]
    fn hostile_names_stand_in_a_kubeconfig_as_they_are(names in proptest::collection::btree_set("\\PC{1,40}|[-:{}\\[\\]#&*!|>'\"%@` ~?,]{1,8}|true|null|1e3|0x1|-", 1..5), user in "\\PC{1,40}") {
        let accounts: Vec<AccountName> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let Ok(user) = user.parse::<UserName>() else { return Ok(()) };
        let credential = Credential::Token(BearerToken::new("secret".to_owned()));
        let kubeconfig = Kubeconfig::new("site", Endpoint::new("https://h"), &user, accounts.clone(), credential);
        let read = kube::config::Kubeconfig::from_yaml(&kubeconfig.to_yaml().unwrap()).unwrap();
        prop_assert_eq!(&read.auth_infos[0].name, &format!("site/user/{user}"));
        prop_assert_eq!(read.contexts.len(), accounts.len());
        for (context, account) in read.contexts.iter().zip(&accounts) {
            prop_assert_eq!(&context.name, &format!("site/{account}"));
            let inner = context.context.as_ref().unwrap();
            prop_assert_eq!(inner.user.as_ref(), Some(&read.auth_infos[0].name));
            prop_assert_eq!(inner.namespace.clone(), Some(crate::names::NAMESPACES.map(account.as_str())));
        }
    }
}
