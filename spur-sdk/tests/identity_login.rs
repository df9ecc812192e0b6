//! Users who log in, callers of the local socket, and what follows from who one is.
#![cfg(all(feature = "identity", feature = "testing"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use spur_sdk::identity::table::{self, Access};
use spur_sdk::identity::{
    AdminLevel, Authority, Caller, Certificate, ExternalIssuer, Grant, Identity, IdentityError, JoinGrant,
    KeyRequest, LocalCallers, LocalUser, LocalUsers, LoginIssuer, MAX_CREDENTIAL_BYTES, MAX_USER_LIFETIME,
    OnlyUsers, Registry, Role, Roster, Subject, UserRoles, UserStanding, Via, VouchedUser,
};
use spur_sdk::testing::MemoryStore;
use spur_sdk::{Classify, Clock, ErrorKind, ManualClock, NodeName, UserName};

const DAY: Duration = Duration::from_hours(24);

struct Site {
    clock: ManualClock,
    roster: Roster,
    registry: Registry<MemoryStore, ManualClock>,
}

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn user(name: &str) -> UserName {
    name.parse().unwrap()
}

fn csr() -> String {
    KeyRequest::generate().unwrap().pem().to_owned()
}

fn root() -> Caller {
    Caller::local(Identity::Admin { name: user("root") }, 0, 1)
}

fn local(name: &str, uid: u32) -> Caller {
    Caller::local(Identity::User { name: user(name), uid: Some(uid) }, uid, 7)
}

impl Site {
    async fn new() -> Self {
        let clock = ManualClock::new(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000));
        let authority = Authority::create(&"lab".parse().unwrap(), 3650 * DAY, clock.now()).unwrap();
        let store = MemoryStore::new();
        let roster = Roster::new(clock.clone());
        tokio::spawn({
            let (roster, store) = (roster.clone(), store.clone());
            async move { roster.follow(&store).await }
        });
        roster.changed_since(0).await;
        let registry = Registry::new(store, authority, roster.clone(), clock.clone());
        Self { clock, roster, registry }
    }

    async fn enrol(&self, name: &str, login: bool) -> Certificate {
        let grant = JoinGrant::node(node(name)).login(login);
        let (token, _) = self.registry.create_token(&grant, &root()).await.unwrap();
        self.registry.enrol(&token.reveal(), &csr(), &node(name)).await.unwrap()
    }

    async fn vouch(&self, agent: &Certificate, name: &str, uid: u32) -> Result<Certificate, IdentityError> {
        let caller = Caller::certified(agent.content());
        let vouched = VouchedUser { name: user(name), uid };
        LoginIssuer::default().login_for(&self.registry, &caller, &vouched, &csr(), None).await
    }
}

fn denied<T: std::fmt::Debug>(result: Result<T, IdentityError>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
}

#[tokio::test]
async fn a_local_user_gets_a_certificate_of_the_user_role_for_twelve_hours() {
    let site = Site::new().await;
    let issuer = LoginIssuer::default();
    let admin = Caller::local(Identity::Admin { name: user("carol") }, 1001, 7);
    for caller in [local("alice", 1000), admin] {
        let certificate = issuer.login(&site.registry, &caller, &csr(), None).await.unwrap();
        let name = caller.user().unwrap().clone();
        assert_eq!(certificate.content().subject(), &Subject::user(name));
        assert_eq!(certificate.not_after(), site.clock.now() + MAX_USER_LIFETIME);
        site.roster.check(certificate.content()).unwrap();
    }
    let alice = local("alice", 1000);
    let hour = Duration::from_hours(1);
    let short = issuer.login(&site.registry, &alice, &csr(), Some(hour)).await.unwrap();
    assert_eq!(short.not_after(), site.clock.now() + hour);
    let long = issuer.login(&site.registry, &alice, &csr(), Some(13 * hour)).await.unwrap_err();
    assert!(matches!(long, IdentityError::Lifetime { .. }), "{long:?}");
    let generous = LoginIssuer::default().lifetime(100 * DAY);
    let most = generous.login(&site.registry, &alice, &csr(), None).await.unwrap();
    assert_eq!(most.not_after(), site.clock.now() + MAX_USER_LIFETIME);
    // At another controller, which forwards what its kernel said.
    let forwarded = alice.forwarded(node("head2")).unwrap();
    issuer.login(&site.registry, &forwarded, &csr(), None).await.unwrap();
    let noted = site.registry.certificates().await.unwrap();
    assert!(noted.iter().any(|one| one.by == "user alice, socket (uid 1000, pid 7) at controller head2"));
}

#[tokio::test]
async fn root_gets_no_certificate_by_login_under_any_name() {
    let site = Site::new().await;
    let issuer = LoginIssuer::default().refuse([user("spur")]);
    let login = async |caller: Caller| issuer.login(&site.registry, &caller, &csr(), None).await;
    denied(login(root()).await);
    denied(login(local("toor", 0)).await);
    denied(login(local("root", 1000)).await);
    denied(login(local("spur", 990)).await);
    let agent = site.enrol("login1", true).await;
    denied(site.vouch(&agent, "root", 1000).await);
    denied(site.vouch(&agent, "toor", 0).await);
}

#[tokio::test]
async fn a_certificate_gets_no_other_so_that_it_ends() {
    let site = Site::new().await;
    let issuer = LoginIssuer::default();
    let first = issuer.login(&site.registry, &local("alice", 1000), &csr(), None).await.unwrap();
    let caller = Caller::certified(first.content());
    denied(issuer.login(&site.registry, &caller, &csr(), None).await);
    denied(issuer.login(&site.registry, &caller.forwarded(node("head2")).unwrap(), &csr(), None).await);
    denied(issuer.login(&site.registry, &Caller::anonymous(), &csr(), None).await);
}

#[tokio::test]
async fn only_a_login_node_vouches_and_the_certificate_names_it() {
    let site = Site::new().await;
    let (login, compute) = (site.enrol("login1", true).await, site.enrol("gpu01", false).await);
    let certificate = site.vouch(&login, "alice", 1000).await.unwrap();
    let caller = Caller::certified(certificate.content());
    assert_eq!(caller.node, Some(node("login1")));
    assert_eq!(caller.to_string(), format!("user alice on login1, certificate {}", certificate.serial()));
    denied(site.vouch(&compute, "alice", 1000).await);
    let vouched = VouchedUser { name: user("alice"), uid: 1000 };
    for caller in [root(), local("alice", 1000), Caller::anonymous(), caller] {
        let issuer = LoginIssuer::default();
        denied(issuer.login_for(&site.registry, &caller, &vouched, &csr(), None).await);
    }
    site.registry.mark_login(&node("gpu01"), true, &root()).await.unwrap();
    site.vouch(&compute, "alice", 1000).await.unwrap();
}

#[tokio::test]
async fn the_word_of_a_login_node_counts_as_long_as_it_is_one() {
    let site = Site::new().await;
    let login = site.enrol("login1", true).await;
    let certificate = site.vouch(&login, "alice", 1000).await.unwrap();
    let own =
        LoginIssuer::default().login(&site.registry, &local("alice", 1000), &csr(), None).await.unwrap();
    site.registry.mark_login(&node("login1"), false, &root()).await.unwrap();
    denied(site.roster.check(certificate.content()));
    denied(site.vouch(&login, "alice", 1000).await);
    site.registry.mark_login(&node("login1"), true, &root()).await.unwrap();
    site.roster.check(certificate.content()).unwrap();
    site.registry.remove(&node("login1"), &root()).await.unwrap();
    denied(site.roster.check(certificate.content()));
    denied(site.vouch(&login, "alice", 1000).await);
    let removed = site.registry.mark_login(&node("login1"), true, &root()).await.unwrap_err();
    assert_eq!(removed.kind(), ErrorKind::NotFound);
    // Enrolled again, it is a login node only if its token says so.
    let again = site.enrol("login1", false).await;
    denied(site.vouch(&again, "alice", 1000).await);
    site.roster.check(own.content()).unwrap();
    assert_eq!(site.registry.revoke_all(&Subject::user(user("alice")), &root()).await.unwrap(), 2);
    denied(site.roster.check(own.content()));
}

/// Everybody is an administrator and coordinates an account.
struct AllAdmins;

impl UserRoles for AllAdmins {
    async fn standing(&self, _user: &UserName) -> Result<UserStanding, IdentityError> {
        let accounts = BTreeSet::from(["physics".parse().unwrap()]);
        Ok(UserStanding::new(AdminLevel::Administrator, accounts))
    }
}

struct Unknown;

impl UserRoles for Unknown {
    async fn standing(&self, _user: &UserName) -> Result<UserStanding, IdentityError> {
        Err(IdentityError::Stale)
    }
}

#[tokio::test]
async fn roles_come_from_who_one_is_and_a_vouched_user_has_no_more_than_one() {
    let site = Site::new().await;
    let login = site.enrol("login1", true).await;
    let vouched = Caller::certified(site.vouch(&login, "carol", 1001).await.unwrap().content());
    let agent = Caller::certified(login.content());
    let everything = [Role::User, Role::Coordinator, Role::Operator, Role::Admin];
    for (caller, plain, raised) in [
        (Caller::anonymous(), &[Role::Anonymous][..], &[Role::Anonymous][..]),
        (local("alice", 1000), &[Role::User], &everything),
        (vouched.clone(), &[Role::User], &[Role::User]),
        (vouched.forwarded(node("head1")).unwrap(), &[Role::User], &[Role::User]),
        (root(), &[Role::User, Role::Operator, Role::Admin], &[Role::User, Role::Operator, Role::Admin]),
        (agent, &[Role::Node], &[Role::Node]),
    ] {
        assert_eq!(caller.roles(&OnlyUsers).await.unwrap(), plain.iter().copied().collect(), "{caller}");
        let roles = caller.roles(&AllAdmins).await.unwrap();
        assert_eq!(roles, raised.iter().copied().collect(), "{caller}");
    }
    let unknown = local("alice", 1000).roles(&Unknown).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Unavailable);
    let roles = local("alice", 1000).roles(&OnlyUsers).await.unwrap();
    assert_eq!(table::decide("slurm.SlurmController/ClusterUp", &roles), Access::Deny);
    let roles = local("alice", 1000).roles(&AllAdmins).await.unwrap();
    assert_eq!(table::decide("slurm.SlurmController/ClusterUp", &roles), Access::Allow);
}

#[tokio::test]
async fn a_call_is_forwarded_once_and_keeps_who_made_it() {
    let site = Site::new().await;
    let request = KeyRequest::generate().unwrap();
    let controller = site
        .registry
        .issue(request.pem(), &Grant::new(Subject::Controller(node("head1")), DAY), &root())
        .await
        .unwrap();
    denied(Caller::certified(controller.content()).forwarded(node("head1")));
    let alice = local("alice", 1000);
    // What goes over the wire is who asked; that head1 forwards it is what the connection says.
    let text = serde_json::to_string(&alice).unwrap();
    let read: Caller = serde_json::from_str(&text).unwrap();
    assert_eq!(read, alice);
    let forwarded = read.forwarded(node("head1")).unwrap();
    assert_eq!(forwarded.identity, alice.identity);
    assert_eq!(forwarded.to_string(), "user alice, socket (uid 1000, pid 7) at controller head1");
    assert!(!forwarded.via.is_local());
    denied(forwarded.forwarded(node("head2")));
}

/// One user with a group.
struct Few;

impl LocalUsers for Few {
    async fn look_up(&self, uid: u32) -> Result<LocalUser, IdentityError> {
        match uid {
            1000 => Ok(LocalUser::new(uid, user("alice"), BTreeSet::from(["users".to_owned()]))),
            1001 => Ok(LocalUser::new(uid, user("carol"), ["users", "spur-admin"].map(String::from).into())),
            // As a broken name server might say.
            65_534 | 0 => Ok(LocalUser::new(uid, user("mallory"), BTreeSet::from(["spur-admin".to_owned()]))),
            _ => Err(IdentityError::LookUpTimeout { uid, after: Duration::from_secs(2) }),
        }
    }
}

#[tokio::test]
async fn root_and_members_of_the_group_are_admins_and_the_unknown_are_refused() {
    let callers = LocalCallers::new(Few, Some("spur-admin".to_owned()));
    let alice = callers.identify(1000, 7).await.unwrap();
    assert_eq!(alice, local("alice", 1000));
    assert_eq!(alice.via, Via::Socket { uid: 1000, pid: 7 });
    assert_eq!(callers.identify(1001, 7).await.unwrap().identity, Identity::Admin { name: user("carol") });
    assert_eq!(callers.identify(0, 7).await.unwrap().identity, Identity::Admin { name: user("root") });
    assert_eq!(callers.identify(4242, 7).await.unwrap_err().kind(), ErrorKind::Timeout);
    denied(callers.identify(65_534, 7).await);
    denied(callers.identify(u32::MAX, 7).await);
    let root_alone = LocalCallers::new(Few, None);
    assert!(matches!(root_alone.identify(1001, 7).await.unwrap().identity, Identity::User { .. }));
}

/// Takes the credential `good NAME`, and sleeps for `slow`.
struct Words;

impl ExternalIssuer for Words {
    async fn identify(&self, credential: &[u8]) -> Result<UserName, IdentityError> {
        let refuse = || IdentityError::External { what: "no".to_owned(), refused: true };
        let text = std::str::from_utf8(credential).map_err(|_| refuse())?;
        if text == "slow" {
            tokio::time::sleep(DAY).await;
        }
        Ok(text.strip_prefix("good ").ok_or_else(refuse)?.parse()?)
    }
}

#[tokio::test(start_paused = true)]
async fn an_external_issuer_names_users_and_never_root() {
    let site = Site::new().await;
    let by = Caller::anonymous();
    let issuer = LoginIssuer::new(Words);
    let login =
        async |credential: &[u8]| issuer.login_external(&site.registry, &by, credential, &csr(), None).await;
    let certificate = login(b"good alice").await.unwrap();
    assert_eq!(certificate.content().subject(), &Subject::user(user("alice")));
    denied(login(b"good root").await);
    denied(login(b"bad").await);
    denied(login(&vec![b'a'; MAX_CREDENTIAL_BYTES + 1]).await);
    assert_eq!(login(b"slow").await.unwrap_err().kind(), ErrorKind::Unavailable);
    let none = LoginIssuer::default();
    denied(none.login_external(&site.registry, &by, b"good alice", &csr(), None).await);
}
