//! Nodes that enrol, renew and go, and who is refused when.
#![cfg(all(feature = "identity", feature = "testing"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::time::{Duration, SystemTime};

use spur_sdk::identity::{
    Authority, Caller, Certificate, Identity, IdentityError, JoinGrant, JoinRefusal, KeyRequest,
    MAX_TOKEN_LIFETIME, PeerCertificate, Registry, Roster, SiteKey, SiteName, Subject, Void,
};
use spur_sdk::store::{Fence, Fenced, Key, Revision, Store, StoreError, Transaction};
use spur_sdk::testing::{MemoryFault, MemoryStore};
use spur_sdk::{Classify, Clock, ErrorKind, ManualClock, NodeName};

const MINUTE: Duration = Duration::from_mins(1);
const DAY: Duration = Duration::from_hours(24);

struct Site {
    store: MemoryStore,
    clock: ManualClock,
    authority: Authority,
    roster: Roster,
    registry: Registry<MemoryStore, ManualClock>,
    by: Caller,
}

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn csr() -> String {
    KeyRequest::generate().unwrap().pem().to_owned()
}

impl Site {
    async fn new() -> Self {
        let clock = ManualClock::new(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000));
        let name: SiteName = "lab".parse().unwrap();
        let authority = Authority::create(&name, 3650 * DAY, clock.now()).unwrap();
        let store = MemoryStore::new();
        let roster = Roster::new(clock.clone());
        follow(&roster, &store).await;
        let registry = Registry::new(store.clone(), authority.clone(), roster.clone(), clock.clone());
        let by = Caller::local(Identity::Admin { name: "root".parse().unwrap() }, 0, 1);
        Self { store, clock, authority, roster, registry, by }
    }

    async fn token(&self, grant: JoinGrant) -> String {
        self.registry.create_token(&grant, &self.by).await.unwrap().0.reveal()
    }

    async fn enrol(&self, name: &str) -> Certificate {
        let token = self.token(JoinGrant::node(node(name))).await;
        self.registry.enrol(&token, &csr(), &node(name)).await.unwrap()
    }

    async fn refusal(&self, token: &str, name: &str) -> JoinRefusal {
        let error = self.registry.enrol(token, &csr(), &node(name)).await.unwrap_err();
        assert_eq!(error.to_string(), "the join token is not valid", "nobody is told why");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(!error.is_retryable());
        error.refusal().unwrap()
    }
}

/// Follows the store in a task, and waits for the first reading.
async fn follow(roster: &Roster, store: &MemoryStore) -> tokio::task::JoinHandle<()> {
    let task = tokio::spawn({
        let (roster, store) = (roster.clone(), store.clone());
        async move { roster.follow(&store).await }
    });
    roster.changed_since(0).await;
    task
}

#[track_caller]
fn assert_void(result: Result<(), IdentityError>, expected: Void) {
    match result {
        Err(ref error @ IdentityError::Void { void, .. }) => {
            assert_eq!(void, expected);
            assert_eq!(error.kind(), ErrorKind::Denied);
        }
        other => panic!("{other:?}, not {expected:?}"),
    }
}

#[tokio::test]
async fn a_node_enrols_with_its_token_and_counts_at_once() {
    let site = Site::new().await;
    let token = site.token(JoinGrant::node(node("gpu01"))).await;
    assert!(token.ends_with(&site.authority.fingerprint()));
    let certificate = site.registry.enrol(&token, &csr(), &node("gpu01")).await.unwrap();
    assert_eq!(certificate.content().subject(), &Subject::Node(node("gpu01")));
    assert_eq!(certificate.not_after(), site.clock.now() + 30 * DAY);
    site.roster.check(certificate.content()).unwrap();
    let nodes = site.registry.nodes().await.unwrap();
    assert_eq!((nodes.len(), nodes[0].serial, nodes[0].removed), (1, certificate.serial(), false));
}

#[tokio::test]
async fn a_token_is_good_once() {
    let site = Site::new().await;
    let token = site.token(JoinGrant::node(node("gpu01"))).await;
    site.registry.enrol(&token, &csr(), &node("gpu01")).await.unwrap();
    assert_eq!(site.refusal(&token, "gpu01").await, JoinRefusal::Used);
    // Also when the clock is set back to when it was good, and when it was swept.
    site.clock.set(site.clock.now() - 10 * MINUTE);
    assert_eq!(site.refusal(&token, "gpu01").await, JoinRefusal::Used);
    site.clock.advance(3 * DAY);
    assert_eq!(site.registry.sweep().await.unwrap().tokens, 1);
    site.clock.set(site.clock.now() - 3 * DAY);
    assert_eq!(site.refusal(&token, "gpu01").await, JoinRefusal::Unknown);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_enrol_at_once_exactly_one_does() {
    let site = std::sync::Arc::new(Site::new().await);
    for round in 0..60 {
        let name = node(&format!("gpu{round}"));
        let token = site.token(JoinGrant::node(name.clone())).await;
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (site, token, name, csr) = (site.clone(), token.clone(), name.clone(), csr());
                tokio::spawn(async move { site.registry.enrol(&token, &csr, &name).await })
            })
            .collect();
        let mut won = Vec::new();
        for task in tasks {
            match task.await.unwrap() {
                Ok(certificate) => won.push(certificate),
                Err(error) => assert_eq!(error.refusal(), Some(JoinRefusal::Used)),
            }
        }
        assert_eq!(won.len(), 1);
        site.roster.check(won[0].content()).unwrap();
    }
}

/// As [`Site`]'s store, where the first reading of a node waits for another one, so that both have seen the token unused.
#[derive(Clone)]
struct InStep(
    MemoryStore,
    std::sync::Arc<tokio::sync::Barrier>,
    std::sync::Arc<std::sync::atomic::AtomicUsize>,
);

impl Store for InStep {
    async fn get(&self, key: &Key) -> Result<Option<spur_sdk::store::Entry>, StoreError> {
        let entry = self.0.get(key).await;
        if key.as_str().contains("/node/") && self.2.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 2 {
            self.1.wait().await;
        }
        entry
    }

    async fn range(&self, prefix: &str) -> Result<spur_sdk::store::Snapshot, StoreError> {
        self.0.range(prefix).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<spur_sdk::store::Commit, StoreError> {
        self.0.commit(transaction).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<spur_sdk::store::Watch, StoreError> {
        self.0.watch(prefix, after).await
    }
}

#[tokio::test]
async fn two_that_both_saw_the_token_unused_do_not_both_enrol() {
    let site = Site::new().await;
    for names in [["gpu01", "gpu01"], ["gpu02", "gpu03"]] {
        let store = InStep(
            site.store.clone(),
            std::sync::Arc::new(tokio::sync::Barrier::new(2)),
            std::sync::Arc::default(),
        );
        let registry = Registry::new(store, site.authority.clone(), site.roster.clone(), site.clock.clone());
        let token = site.token(JoinGrant::any_new()).await;
        let (csrs, names) = ([csr(), csr()], names.map(node));
        let (a, b) = tokio::join!(
            registry.enrol(&token, &csrs[0], &names[0]),
            registry.enrol(&token, &csrs[1], &names[1])
        );
        let refused = a.is_ok() != b.is_ok();
        assert!(refused, "{a:?} {b:?}");
        let error = a.err().or(b.err()).unwrap();
        assert_eq!(error.refusal(), Some(JoinRefusal::Used));
    }
}

#[tokio::test]
async fn a_token_is_good_for_its_time_and_no_longer() {
    let site = Site::new().await;
    let token = site.token(JoinGrant::node(node("gpu01"))).await;
    site.clock.advance(15 * MINUTE);
    assert_eq!(site.refusal(&token, "gpu01").await, JoinRefusal::Expired);
    site.clock.set(site.clock.now() - Duration::from_secs(1));
    site.registry.enrol(&token, &csr(), &node("gpu01")).await.unwrap();
    // Set back to before it was made: how long it has lived is not known.
    let token = site.token(JoinGrant::node(node("gpu02"))).await;
    site.clock.set(site.clock.now() - DAY);
    assert_eq!(site.refusal(&token, "gpu02").await, JoinRefusal::Expired);
    for lifetime in [Duration::ZERO, MAX_TOKEN_LIFETIME + Duration::from_secs(1), Duration::MAX] {
        let grant = JoinGrant::node(node("gpu03")).lifetime(lifetime);
        let error = site.registry.create_token(&grant, &site.by).await.unwrap_err();
        assert!(matches!(error, IdentityError::Lifetime { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_wrong_token_uses_up_nothing() {
    let site = Site::new().await;
    let token = site.token(JoinGrant::node(node("gpu01"))).await;
    let other = site.token(JoinGrant::node(node("gpu02"))).await;
    let parts: Vec<_> = token.split('.').collect();
    let others: Vec<_> = other.split('.').collect();
    for (text, expected) in [
        (String::new(), JoinRefusal::Form),
        ("x".repeat(10_000_000), JoinRefusal::Form),
        ([parts[0], "../../..", parts[2], parts[3]].join("."), JoinRefusal::Form),
        ([parts[0], others[1], parts[2], parts[3]].join("."), JoinRefusal::Secret),
        ([parts[0], parts[1], others[2], parts[3]].join("."), JoinRefusal::Secret),
        ([parts[0], "0123456789abcdef", parts[2], parts[3]].join("."), JoinRefusal::Unknown),
        ([parts[0], parts[1], parts[2], &"ab".repeat(32)].join("."), JoinRefusal::Authority),
        (other, JoinRefusal::Node),
    ] {
        assert_eq!(site.refusal(&text, "gpu01").await, expected);
    }
    let bad = site.registry.enrol(&token, "no request", &node("gpu01")).await.unwrap_err();
    assert_eq!(bad.kind(), ErrorKind::Invalid);
    site.registry.enrol(&token, &csr(), &node("gpu01")).await.unwrap();
}

#[tokio::test]
async fn a_token_for_any_node_takes_nobodys_place() {
    let site = Site::new().await;
    let known = site.enrol("gpu01").await;
    let token = site.token(JoinGrant::any_new()).await;
    assert_eq!(site.refusal(&token, "gpu01").await, JoinRefusal::Node);
    site.roster.check(known.content()).unwrap();
    site.registry.remove(&node("gpu01"), &site.by).await.unwrap();
    assert_eq!(site.refusal(&token, "gpu01").await, JoinRefusal::Node, "nor that of one that was removed");
    site.registry.enrol(&token, &csr(), &node("gpu02")).await.unwrap();
    let login = JoinGrant::any_new().login(true);
    assert_eq!(site.registry.create_token(&login, &site.by).await.unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn the_secret_of_a_token_is_stored_nowhere() {
    let site = Site::new().await;
    let token = site.token(JoinGrant::node(node("gpu01"))).await;
    let secret = token.split('.').nth(2).unwrap();
    let all = site.store.range("").await.unwrap();
    assert!(all.entries.iter().any(|entry| entry.key.as_str().starts_with("identity/token/")));
    for entry in all.entries {
        assert!(!String::from_utf8_lossy(&entry.value).contains(secret));
    }
}

#[tokio::test]
async fn enrolling_again_voids_what_the_node_had() {
    let site = Site::new().await;
    let first = site.enrol("gpu01").await;
    let renewed = site.registry.renew(&node("gpu01"), first.serial(), &csr()).await.unwrap();
    let again = site.enrol("gpu01").await;
    assert_void(site.roster.check(first.content()), Void::Replaced);
    assert_void(site.roster.check(renewed.content()), Void::Replaced);
    site.roster.check(again.content()).unwrap();
    for old in [first, renewed] {
        let error = site.registry.renew(&node("gpu01"), old.serial(), &csr()).await.unwrap_err();
        assert_void(Err(error), Void::Replaced);
    }
}

#[tokio::test]
async fn the_certificate_before_counts_until_the_next_is_used() {
    let site = Site::new().await;
    let first = site.enrol("gpu01").await;
    let second = site.registry.renew(&node("gpu01"), first.serial(), &csr()).await.unwrap();
    // The answer was lost: the node asks again with what it has.
    site.roster.check(first.content()).unwrap();
    let third = site.registry.renew(&node("gpu01"), first.serial(), &csr()).await.unwrap();
    assert_void(site.roster.check(second.content()), Void::Replaced);
    site.roster.check(first.content()).unwrap();
    let before = site.roster.generation();
    site.roster.check(third.content()).unwrap();
    assert!(site.roster.generation() > before, "connections of the first are to be cut");
    assert_void(site.roster.check(first.content()), Void::Replaced);
    // Another controller learns of it by the sweep.
    let elsewhere = Roster::new(site.clock.clone());
    follow(&elsewhere, &site.store).await;
    elsewhere.check(first.content()).unwrap();
    assert_eq!(site.registry.sweep().await.unwrap().settled, 1);
    assert_eq!(site.registry.sweep().await.unwrap().settled, 0);
    tokio::time::timeout(MINUTE, async {
        while elsewhere.check(first.content()).is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    elsewhere.check(third.content()).unwrap();
}

#[tokio::test]
async fn the_certificate_before_does_not_outlive_itself() {
    let site = Site::new().await;
    let first = site.enrol("gpu01").await;
    site.clock.advance(20 * DAY);
    site.registry.renew(&node("gpu01"), first.serial(), &csr()).await.unwrap();
    site.clock.advance(11 * DAY);
    assert_void(site.roster.check(first.content()), Void::Expired);
    assert_void(site.roster.check_serial(first.content().subject(), first.serial()), Void::Expired);
    let error = site.registry.renew(&node("gpu01"), first.serial(), &csr()).await.unwrap_err();
    assert_void(Err(error), Void::Expired);
}

#[tokio::test]
async fn a_removed_node_is_refused_until_it_is_enrolled_again() {
    let site = Site::new().await;
    let first = site.enrol("gpu01").await;
    let generation = site.roster.generation();
    let wait = tokio::spawn({
        let roster = site.roster.clone();
        async move { roster.changed_since(generation).await }
    });
    site.registry.remove(&node("gpu01"), &site.by).await.unwrap();
    assert!(wait.await.unwrap() > generation);
    assert_void(site.roster.check(first.content()), Void::Removed);
    let error = site.registry.renew(&node("gpu01"), first.serial(), &csr()).await.unwrap_err();
    assert_void(Err(error), Void::Removed);
    site.registry.remove(&node("gpu01"), &site.by).await.unwrap();
    assert!(site.registry.nodes().await.unwrap()[0].removed);
    let again = site.enrol("gpu01").await;
    site.roster.check(again.content()).unwrap();
    assert_void(site.roster.check(first.content()), Void::Replaced);
    let unknown = site.registry.remove(&node("gpu09"), &site.by).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn nothing_is_allowed_before_the_store_was_read() {
    let site = Site::new().await;
    let certificate = site.enrol("gpu01").await;
    let admin =
        site.registry.issue_for(&csr(), Subject::Admin("carol".parse().unwrap()), &site.by).await.unwrap();
    let cold = Roster::new(site.clock.clone());
    for certificate in [certificate.content(), admin.content()] {
        let error = cold.check(certificate).unwrap_err();
        assert!(matches!(error, IdentityError::Stale), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    follow(&cold, &site.store).await;
    cold.check(certificate.content()).unwrap();
    cold.check(admin.content()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_roster_that_hears_nothing_of_the_store_allows_nothing() {
    let site = Site::new().await;
    let certificate = site.enrol("gpu01").await;
    tokio::time::sleep(10 * MINUTE).await;
    site.roster.check(certificate.content()).expect("a store in which nothing happens is heard of");
    site.store.fail_after(0, MemoryFault::Unavailable);
    let key: Key = "x".parse().unwrap();
    site.store.commit(Transaction::new().put(key, Vec::new())).await.unwrap_err();
    tokio::time::sleep(MINUTE / 2).await;
    site.roster.check(certificate.content()).unwrap();
    tokio::time::sleep(MINUTE).await;
    assert!(matches!(site.roster.check(certificate.content()), Err(IdentityError::Stale)));
    site.store.heal();
    tokio::time::sleep(MINUTE / 4).await;
    site.roster.check(certificate.content()).unwrap();
}

#[tokio::test]
async fn a_roster_that_fell_behind_reads_anew() {
    let site = Site::new().await;
    let certificate = site.enrol("gpu01").await;
    let other = Roster::new(site.clock.clone());
    follow(&other, &site.store).await;
    other.check(certificate.content()).unwrap();
    // Written while the other's task had no turn, and forgotten before it has.
    site.registry.remove(&node("gpu01"), &site.by).await.unwrap();
    site.store.forget_history();
    tokio::time::timeout(MINUTE, async {
        let mut generation = other.generation();
        while other.check(certificate.content()).is_ok() {
            generation = other.changed_since(generation).await;
        }
    })
    .await
    .unwrap();
    assert_void(other.check(certificate.content()), Void::Removed);
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_and_no_other() {
    let site = Site::new().await;
    let carol = Subject::Admin("carol".parse().unwrap());
    let first = site.registry.issue_for(&csr(), carol.clone(), &site.by).await.unwrap();
    let second = site.registry.issue_for(&csr(), carol.clone(), &site.by).await.unwrap();
    let alice =
        site.registry.issue_for(&csr(), Subject::user("carol".parse().unwrap()), &site.by).await.unwrap();
    site.registry.revoke(first.serial(), &site.by).await.unwrap();
    assert_void(site.roster.check(first.content()), Void::Revoked);
    site.roster.check(second.content()).unwrap();
    assert_eq!(site.registry.revoke_all(&carol, &site.by).await.unwrap(), 1);
    assert_void(site.roster.check(second.content()), Void::Revoked);
    site.roster.check(alice.content()).expect("the user of that name is another subject");
    let listed = site.registry.certificates().await.unwrap();
    assert_eq!((listed.len(), listed.iter().filter(|one| one.revoked).count()), (3, 2));
    let node = site.enrol("gpu01").await;
    assert!(site.registry.revoke(node.serial(), &site.by).await.is_err(), "a node is removed instead");
    assert!(
        site.registry.issue_for(&csr(), Subject::Node("gpu02".parse().unwrap()), &site.by).await.is_err()
    );
}

#[tokio::test]
async fn a_sweep_forgets_what_is_over_and_no_revocation_that_a_clock_could_bring_back() {
    let site = Site::new().await;
    let alice = Subject::user("alice".parse().unwrap());
    let kept = site.registry.issue_for(&csr(), alice.clone(), &site.by).await.unwrap();
    let mut certificates = vec![kept];
    for _ in 0..250 {
        certificates.push(site.registry.issue_for(&csr(), alice.clone(), &site.by).await.unwrap());
    }
    site.registry.revoke(certificates[0].serial(), &site.by).await.unwrap();
    assert_eq!(site.registry.sweep().await.unwrap().certificates, 0);
    site.clock.advance(30 * DAY);
    assert_eq!(site.registry.sweep().await.unwrap().certificates, 250);
    site.clock.set(site.clock.now() - 30 * DAY);
    assert_void(site.roster.check(certificates[0].content()), Void::Revoked);
    site.clock.advance(400 * DAY);
    assert_eq!(site.registry.sweep().await.unwrap().certificates, 1);
}

#[tokio::test]
async fn a_write_that_was_not_confirmed_counts_if_it_came_through() {
    let site = Site::new().await;
    let token = site.token(JoinGrant::node(node("gpu01"))).await;
    site.store.fail_after(0, MemoryFault::UnconfirmedLost);
    let error = site.registry.enrol(&token, &csr(), &node("gpu01")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    site.store.heal();
    site.store.fail_after(0, MemoryFault::UnconfirmedDone);
    let certificate = site.registry.enrol(&token, &csr(), &node("gpu01")).await.unwrap();
    site.store.heal();
    site.roster.check(certificate.content()).unwrap();
    assert_eq!(site.refusal(&token, "gpu01").await, JoinRefusal::Used);
}

#[tokio::test]
async fn a_leader_that_was_deposed_enrols_nobody() {
    let site = Site::new().await;
    let token = site.token(JoinGrant::node(node("gpu01"))).await;
    let fence = Fence { key: "leader".parse().unwrap(), created: Revision(7777) };
    let deposed = Registry::new(
        Fenced::new(site.store.clone(), fence),
        site.authority.clone(),
        site.roster.clone(),
        site.clock.clone(),
    );
    let error = deposed.enrol(&token, &csr(), &node("gpu01")).await.unwrap_err();
    assert!(matches!(error, IdentityError::Store(StoreError::Deposed)), "{error:?}");
    assert!(site.registry.nodes().await.unwrap().is_empty());
    site.registry.enrol(&token, &csr(), &node("gpu01")).await.unwrap();
}

#[tokio::test]
async fn a_record_that_cannot_be_read_allows_nothing() {
    let site = Site::new().await;
    let node_certificate = site.enrol("gpu01").await;
    let admin =
        site.registry.issue_for(&csr(), Subject::Admin("carol".parse().unwrap()), &site.by).await.unwrap();
    for key in ["identity/node/gpu01".to_owned(), format!("identity/certificate/{}", admin.serial())] {
        let key: Key = key.parse().unwrap();
        let _ = site.store.commit(Transaction::new().put(key, b"garbage".to_vec())).await.unwrap();
    }
    let roster = Roster::new(site.clock.clone());
    follow(&roster, &site.store).await;
    assert!(matches!(roster.check(node_certificate.content()), Err(IdentityError::Stale)));
    assert_void(roster.check(admin.content()), Void::Revoked);
    assert_eq!(site.registry.nodes().await.unwrap_err().kind(), ErrorKind::Internal);
}

#[tokio::test]
async fn a_node_of_another_name_or_never_enrolled_is_refused() {
    let site = Site::new().await;
    let certificate = site.enrol("gpu01").await;
    let serial = certificate.serial();
    assert_void(site.roster.check_serial(&Subject::Node(node("gpu02")), serial), Void::Unknown);
    let other = site.enrol("gpu02").await;
    assert_void(site.roster.check_serial(&Subject::Node(node("gpu01")), other.serial()), Void::Replaced);
    let caller = |content: &PeerCertificate| Caller::certified(content);
    site.roster.check_caller(&caller(certificate.content())).unwrap();
    let forwarded = caller(certificate.content()).forwarded(node("head1")).unwrap();
    site.roster.check_caller(&forwarded).unwrap();
    site.registry.remove(&node("gpu01"), &site.by).await.unwrap();
    assert_void(site.roster.check_caller(&forwarded), Void::Removed);
    site.roster.check_caller(&Caller::anonymous()).unwrap();
    // A name that nothing vouches for, also where a controller says so.
    let mut nameless = Caller::anonymous();
    nameless.identity = Identity::Admin { name: "carol".parse().unwrap() };
    site.roster.check_caller(&nameless).unwrap_err();
    site.roster.check_caller(&nameless.forwarded(node("head1")).unwrap()).unwrap_err();
    site.roster.check_caller(&site.by).unwrap();
}

#[tokio::test]
async fn controllers_share_one_authority_and_a_second_is_refused() {
    let store = MemoryStore::new();
    let key = SiteKey::generate().unwrap();
    let lab: SiteName = "lab".parse().unwrap();
    let now = SystemTime::now();
    assert!(matches!(Authority::load(&store, &key).await, Err(IdentityError::NoAuthority)));
    let establish = || Authority::establish(&store, &key, &lab, DAY, now);
    let (a, b, c) = tokio::join!(establish(), establish(), establish());
    let all = [a.unwrap(), b.unwrap(), c.unwrap()];
    assert_eq!(all.iter().filter(|(_, made)| *made).count(), 1);
    assert!(all.iter().all(|(authority, _)| authority.fingerprint() == all[0].0.fingerprint()));
    let other = Authority::create(&lab, DAY, now).unwrap();
    let error = other.save(&store, &key).await.unwrap_err();
    assert!(matches!(error, IdentityError::Exists(_)), "{error:?}");
    assert!(!error.is_retryable());
    let elsewhere: SiteName = "elsewhere".parse().unwrap();
    let error = Authority::establish(&store, &key, &elsewhere, DAY, now).await.unwrap_err();
    assert_eq!(error.to_string(), "there is a certificate authority already, of site lab");
    let wrong = SiteKey::generate().unwrap();
    let error = Authority::load(&store, &wrong).await.unwrap_err();
    assert!(error.to_string().contains("another site key"), "{error}");
    // What it issued is verified with what is loaded.
    let loaded = Authority::load(&store, &key).await.unwrap();
    assert_eq!(loaded.certificate_pem(), all[0].0.certificate_pem());
    // The key is nowhere to be read.
    let entry = store.get(&"identity/authority".parse().unwrap()).await.unwrap().unwrap();
    let text = String::from_utf8(entry.value).unwrap();
    assert!(!text.contains("PRIVATE"), "{text}");
    assert!(!format!("{loaded:?}").contains("key"), "{loaded:?}");
}
