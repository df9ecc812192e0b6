//! Calls over real connections: who may call what, who is cut off, what is handed on, how much is taken.
#![cfg(all(feature = "rpc", feature = "testing"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use spur_sdk::identity::table::{self, Access};
use spur_sdk::identity::{
    AdminLevel, Authority, Caller, Credentials, Grant, Identity, IdentityError, JoinGrant, KeyRequest,
    LocalCallers, LocalUser, LocalUsers, LoginIssuer, Registry, Role, Roster, Subject, UserRoles,
    UserStanding,
};
use spur_sdk::rpc::messages::site::{EnrolRequest, EnrolRpc, ListNodesRequest, ListNodesRpc, WhoAmIRpc};
use spur_sdk::rpc::messages::slurm::{
    ListQosRequest, ListQosResponse, ListQosRpc, PingResponse, PingRpc, QosInfo,
};
use spur_sdk::rpc::{
    CallError, Client, ClientOptions, Code, Current, Listener, Refusal, Router, Rpc, Server, ServerOptions,
    Site, SiteCallers, Standing, StandingHandle, Target, paths, site_routes,
};
use spur_sdk::testing::MemoryStore;
use spur_sdk::{Deadlines, SystemClock, UserName};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const DAY: Duration = Duration::from_hours(24);
const SOON: Duration = Duration::from_secs(10);

fn root() -> Caller {
    Caller::local(Identity::Admin { name: "root".parse().unwrap() }, 0, 1)
}

/// The users of this machine: whoever runs the test is alice.
#[derive(Clone)]
struct Alice;

impl LocalUsers for Alice {
    async fn look_up(&self, uid: u32) -> Result<LocalUser, IdentityError> {
        Ok(LocalUser::new(uid, "alice".parse().unwrap(), BTreeSet::new()))
    }
}

/// carol coordinates, oscar is an operator, adam an administrator.
#[derive(Clone)]
struct Standings;

impl UserRoles for Standings {
    async fn standing(&self, user: &UserName) -> Result<UserStanding, IdentityError> {
        let coordinates = ["physics".parse().unwrap()];
        Ok(match user.as_str() {
            "carol" => UserStanding::new(AdminLevel::None, coordinates.into()),
            "oscar" => UserStanding::new(AdminLevel::Operator, BTreeSet::new()),
            "adam" => UserStanding::new(AdminLevel::Administrator, BTreeSet::new()),
            _ => UserStanding::default(),
        })
    }
}

/// A site with its authority, and servers that run until it is dropped.
struct Lab {
    store: MemoryStore,
    authority: Authority,
    roster: Roster,
    shutdown: CancellationToken,
    servers: Vec<JoinHandle<()>>,
    folder: tempfile::TempDir,
}

/// Where a server is reached.
struct Place {
    address: String,
    socket: PathBuf,
    standing: StandingHandle,
    stop: CancellationToken,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Lab {
    async fn new() -> Self {
        let now = std::time::SystemTime::now();
        let authority = Authority::create(&"lab".parse().unwrap(), 3650 * DAY, now).unwrap();
        let store = MemoryStore::new();
        let roster = Roster::new(SystemClock);
        tokio::spawn({
            let (roster, store) = (roster.clone(), store.clone());
            async move { roster.follow(&store).await }
        });
        roster.changed_since(0).await;
        let folder = tempfile::tempdir().unwrap();
        Self { store, authority, roster, shutdown: CancellationToken::new(), servers: Vec::new(), folder }
    }

    fn registry(&self) -> Registry<MemoryStore, SystemClock> {
        Registry::new(self.store.clone(), self.authority.clone(), self.roster.clone(), SystemClock)
    }

    async fn credentials(&self, subject: Subject) -> Credentials {
        let request = KeyRequest::generate().unwrap();
        if let Subject::Node(name) = &subject {
            let (token, _) =
                self.registry().create_token(&JoinGrant::node(name.clone()), &root()).await.unwrap();
            let certificate = self.registry().enrol(&token.reveal(), request.pem(), name).await.unwrap();
            return request.complete(&certificate).unwrap();
        }
        let hour = Duration::from_hours(1);
        let is_controller = matches!(subject, Subject::Controller(_));
        let names = is_controller.then(|| "controller.spur.internal".parse().unwrap());
        let grant = Grant::new(subject, hour).dns(names);
        let certificate = self.registry().issue(request.pem(), &grant, &root()).await.unwrap();
        request.complete(&certificate).unwrap()
    }

    async fn serve(&mut self, name: &str, extra: Router, options: ServerOptions) -> Place {
        let credentials = self.credentials(Subject::Controller(name.parse().unwrap())).await;
        let site = Current::new(Site::new(self.registry(), LoginIssuer::default()));
        let router = site_routes(&site).merge(extra);
        let callers = SiteCallers::new(
            "lab".parse().unwrap(),
            self.roster.clone(),
            LocalCallers::new(Alice, None),
            Standings,
        );
        let socket = self.folder.path().join(format!("{name}.sock"));
        let (network, _) = Listener::tls("127.0.0.1:0", &credentials).await.unwrap();
        let address = network.address().unwrap().to_string();
        let listeners = vec![Listener::socket(&socket).await.unwrap(), network];
        let standing = StandingHandle::leading();
        let stop = self.shutdown.child_token();
        let server = Server::new(Arc::new(callers), router, standing.clone())
            .forwarding(Arc::new(credentials))
            .options(options)
            .serve(listeners, stop.clone());
        self.servers.push(tokio::spawn(async move { server.await.unwrap() }));
        Place { address, socket, standing, stop }
    }

    async fn client(&self, place: &Place, subject: Subject) -> Client {
        let credentials = Arc::new(self.credentials(subject).await);
        Client::new(&Target::Tls(place.address.clone(), credentials), ClientOptions::default()).unwrap()
    }

    fn stranger(&self, place: &Place) -> Client {
        let target = Target::Enrolling(place.address.clone(), self.authority.fingerprint());
        Client::new(&target, ClientOptions::default()).unwrap()
    }
}

fn user(name: &str) -> Subject {
    Subject::user(name.parse().unwrap())
}

fn code<T>(answer: &Result<T, CallError>) -> Option<Code> {
    answer.as_ref().err().and_then(CallError::refusal).map(|refusal| refusal.code)
}

/// Says who calls, in the place of a description.
fn echo() -> Router {
    Router::new().on::<ListQosRpc, _, _>(async |call, _| {
        let name = call.caller.to_string();
        let description = call.roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let qos = QosInfo { name, description, ..QosInfo::default() };
        Ok(ListQosResponse { qos_list: vec![qos], ..ListQosResponse::default() })
    })
}

#[tokio::test]
async fn every_call_is_judged_by_the_table_for_every_identity() {
    let mut lab = Lab::new().await;
    let place = lab.serve("head1", Router::new(), ServerOptions::default().rate(100_000)).await;
    let roles = |roles: &[Role]| roles.iter().copied().collect::<BTreeSet<_>>();
    let socket = Client::new(&Target::Socket(place.socket.clone()), ClientOptions::default()).unwrap();
    // Who runs the test as root is root on the socket.
    let local = match code(&socket.call::<ListNodesRpc>(&ListNodesRequest {}).await) {
        None => roles(&[Role::User, Role::Operator, Role::Admin]),
        Some(_) => roles(&[Role::User]),
    };
    let callers: Vec<(&str, Client, BTreeSet<Role>)> = vec![
        ("a stranger", lab.stranger(&place), roles(&[Role::Anonymous])),
        ("the local user", socket, local),
        ("a user", lab.client(&place, user("bob")).await, roles(&[Role::User])),
        ("a coordinator", lab.client(&place, user("carol")).await, roles(&[Role::User, Role::Coordinator])),
        ("an operator", lab.client(&place, user("oscar")).await, roles(&[Role::User, Role::Operator])),
        (
            "an administrator",
            lab.client(&place, user("adam")).await,
            roles(&[Role::User, Role::Operator, Role::Admin]),
        ),
        (
            "an admin",
            lab.client(&place, Subject::Admin("admin".parse().unwrap())).await,
            roles(&[Role::User, Role::Operator, Role::Admin]),
        ),
        ("a node", lab.client(&place, Subject::Node("gpu01".parse().unwrap())).await, roles(&[Role::Node])),
        (
            "a controller",
            lab.client(&place, Subject::Controller("head2".parse().unwrap())).await,
            roles(&[Role::Controller]),
        ),
    ];
    let all = paths();
    assert!(all.len() > 45, "{all:?}");
    let mut seen: BTreeMap<Access, usize> = BTreeMap::new();
    for path in all.iter().map(String::as_str).chain(["slurm.SlurmController/Unknown", "x/y"]) {
        let in_table = table::find(path).is_some();
        assert_eq!(in_table, all.iter().any(|known| known == path), "{path} and the table");
        for (who, client, roles) in &callers {
            let answer = client.call_path(path, Vec::new(), SOON).await;
            let expected = table::decide(path, roles);
            *seen.entry(expected).or_default() += 1;
            let refused = matches!(
                &answer,
                Err(CallError::Refused(Refusal { message, .. })) if message.contains(&format!("may not call {path}"))
            );
            assert_eq!(refused, expected == Access::Deny, "{who} calls {path}: {answer:?}");
        }
    }
    assert!(seen[&Access::Deny] > 100 && seen[&Access::Own] > 10 && seen[&Access::Allow] > 50, "{seen:?}");
}

#[tokio::test]
async fn a_stranger_may_only_enrol_and_knows_whom_it_talks_to() {
    let mut lab = Lab::new().await;
    let place = lab.serve("head1", Router::new(), ServerOptions::default()).await;
    let (token, _) =
        lab.registry().create_token(&JoinGrant::node("gpu07".parse().unwrap()), &root()).await.unwrap();
    let request = KeyRequest::generate().unwrap();
    let wish =
        EnrolRequest { token: token.reveal(), node: "gpu07".to_owned(), request: request.pem().to_owned() };
    // Another authority: the token is not even sent.
    let target = Target::Enrolling(place.address.clone(), "00".repeat(32));
    let elsewhere = Client::new(&target, ClientOptions::default()).unwrap();
    let answer = elsewhere.call::<EnrolRpc>(&wish).await;
    assert!(matches!(answer, Err(CallError::Connect { .. })), "{answer:?}");
    let stranger = lab.stranger(&place);
    assert_eq!(code(&stranger.call::<WhoAmIRpc>(&()).await), Some(Code::Unauthenticated));
    let given = stranger.call::<EnrolRpc>(&wish).await.unwrap();
    let credentials = Arc::new(request.complete_pem(&given.certificate, &given.authority).unwrap());
    let node =
        Client::new(&Target::Tls(place.address.clone(), credentials), ClientOptions::default()).unwrap();
    assert_eq!(node.call::<WhoAmIRpc>(&()).await.unwrap().caller, "node gpu07");
    let again = stranger.call::<EnrolRpc>(&wish).await;
    assert_eq!(code(&again), Some(Code::Unauthenticated), "{again:?}");
}

#[tokio::test]
async fn a_certificate_of_another_site_is_not_let_in() {
    let mut lab = Lab::new().await;
    let place = lab.serve("head1", Router::new(), ServerOptions::default()).await;
    let other = Lab::new().await;
    let client = other.client(&place, Subject::Admin("admin".parse().unwrap())).await;
    let answer = client.call::<WhoAmIRpc>(&()).await;
    assert!(matches!(answer, Err(CallError::Connect { .. })), "{answer:?}");
}

/// Answers when it is told to.
fn waiting(started: &Arc<AtomicUsize>, go: &CancellationToken) -> Router {
    let (started, go) = (Arc::clone(started), go.clone());
    Router::new().anywhere::<PingRpc, _, _>(move |_, ()| {
        let (started, go) = (Arc::clone(&started), go.clone());
        async move {
            started.fetch_add(1, Ordering::SeqCst);
            go.cancelled().await;
            Ok(PingResponse::default())
        }
    })
}

async fn begun(started: &AtomicUsize, calls: usize) {
    while started.load(Ordering::SeqCst) < calls {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_removed_node_is_refused_and_what_it_has_open_is_cut() {
    let mut lab = Lab::new().await;
    let (started, go) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let place = lab.serve("head1", waiting(&started, &go), ServerOptions::default()).await;
    let node = lab.client(&place, Subject::Node("gpu01".parse().unwrap())).await;
    let other = lab.client(&place, Subject::Node("gpu02".parse().unwrap())).await;
    let open = tokio::spawn({
        let node = node.clone();
        async move { node.call_within::<PingRpc>(&(), Duration::from_secs(30)).await }
    });
    let beside = tokio::spawn({
        let other = other.clone();
        async move { other.call_within::<PingRpc>(&(), Duration::from_secs(30)).await }
    });
    begun(&started, 2).await;
    lab.registry().remove(&"gpu01".parse().unwrap(), &root()).await.unwrap();
    let cut = tokio::time::timeout(SOON, open).await.expect("the connection is not cut").unwrap();
    assert!(cut.is_err(), "{cut:?}");
    let answer = node.call::<WhoAmIRpc>(&()).await;
    assert_eq!(code(&answer), Some(Code::Unauthenticated), "{answer:?}");
    go.cancel();
    beside.await.unwrap().expect("the other node's connection stays");
}

#[tokio::test]
async fn what_a_follower_is_asked_the_leader_answers_to_the_same_caller() {
    let mut lab = Lab::new().await;
    let leader = lab.serve("head1", echo(), ServerOptions::default()).await;
    let follower = lab.serve("head2", echo(), ServerOptions::default()).await;
    follower.standing.set(Standing::following("head1".to_owned(), leader.address.clone()));
    let oscar = lab.client(&follower, user("oscar")).await;
    let answer = oscar.call::<ListQosRpc>(&ListQosRequest::default()).await.unwrap();
    let seen = &answer.qos_list[0];
    assert!(seen.name.starts_with("user oscar, certificate "), "{seen:?}");
    assert!(seen.name.ends_with(" at controller head2"), "{seen:?}");
    assert_eq!(seen.description, "user,operator");
    // Over the socket as well: the kernel's word goes along.
    let socket = Client::new(&Target::Socket(follower.socket.clone()), ClientOptions::default()).unwrap();
    let answer = socket.call::<ListQosRpc>(&ListQosRequest::default()).await.unwrap();
    assert!(answer.qos_list[0].name.contains("socket (uid "), "{answer:?}");
    // A call goes one step: two that take each other for the leader refuse.
    leader.standing.set(Standing::following("head2".to_owned(), follower.address.clone()));
    let answer = oscar.call::<ListQosRpc>(&ListQosRequest::default()).await;
    assert_eq!(code(&answer), Some(Code::Unavailable), "{answer:?}");
    follower.standing.set(Standing::Leaderless);
    let answer = oscar.call::<ListQosRpc>(&ListQosRequest::default()).await;
    assert_eq!(code(&answer), Some(Code::Unavailable), "{answer:?}");
}

#[tokio::test]
async fn a_leader_that_is_gone_is_named() {
    let mut lab = Lab::new().await;
    let follower = lab.serve("head2", echo(), ServerOptions::default()).await;
    follower.standing.set(Standing::following("head1".to_owned(), "127.0.0.1:1".to_owned()));
    let oscar = lab.client(&follower, user("oscar")).await;
    let answer = oscar.call::<ListQosRpc>(&ListQosRequest::default()).await.unwrap_err();
    let refusal = answer.refusal().unwrap();
    assert_eq!(
        (refusal.code, refusal.leader.as_deref()),
        (Code::Unavailable, Some("127.0.0.1:1")),
        "{refusal:?}"
    );
}

#[tokio::test]
async fn messages_calls_at_once_and_calls_in_a_second_have_bounds() {
    let mut lab = Lab::new().await;
    let (started, go) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let options =
        ServerOptions::default().max_message(1000).max_calls(3).rate(5).max_deadline(Duration::from_secs(2));
    let place = lab.serve("head1", waiting(&started, &go), options).await;
    let bob = lab.client(&place, user("bob")).await;
    let large = bob.call_path(WhoAmIRpc::PATH, vec![0; 2000], SOON).await;
    assert!(matches!(code(&large), Some(Code::ResourceExhausted | Code::Unknown)), "{large:?}");
    let garbage = bob.call_path(PingRpc::PATH, vec![0xff; 3], SOON).await;
    assert_eq!(code(&garbage), Some(Code::InvalidArgument), "{garbage:?}");
    // The server's longest deadline holds, whatever the caller says.
    let dan = lab.client(&place, user("dan")).await;
    let late = dan.call_within::<PingRpc>(&(), Duration::from_secs(30)).await;
    assert_eq!(code(&late), Some(Code::DeadlineExceeded), "{late:?}");
    let erin = lab.client(&place, user("erin")).await;
    let mut refused = 0;
    for _ in 0..20 {
        let answer = erin.call::<WhoAmIRpc>(&()).await;
        refused += usize::from(code(&answer) == Some(Code::ResourceExhausted));
    }
    assert!(refused >= 10, "{refused} of 20");
    // Somebody else is not held up by that.
    lab.client(&place, user("fred")).await.call::<WhoAmIRpc>(&()).await.unwrap();
}

#[tokio::test]
async fn what_is_under_way_when_the_server_stops_is_answered() {
    let mut lab = Lab::new().await;
    let (started, go) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let place = lab.serve("head1", waiting(&started, &go), ServerOptions::default()).await;
    let bob = lab.client(&place, user("bob")).await;
    let open = tokio::spawn(async move { bob.call_within::<PingRpc>(&(), SOON).await });
    begun(&started, 1).await;
    place.stop.cancel();
    tokio::time::sleep(Duration::from_millis(50)).await;
    go.cancel();
    open.await.unwrap().unwrap();
    for server in lab.servers.drain(..) {
        tokio::time::timeout(SOON, server).await.expect("the server does not stop").unwrap();
    }
    assert!(!place.socket.exists());
}

#[tokio::test]
async fn a_socket_that_another_controller_has_is_not_taken() {
    let mut lab = Lab::new().await;
    let place = lab.serve("head1", Router::new(), ServerOptions::default()).await;
    let taken = Listener::socket(&place.socket).await.unwrap_err();
    assert!(taken.to_string().contains("another controller runs"), "{taken}");
    let left = lab.folder.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    Listener::socket(&left).await.expect("one that nobody listens on is replaced");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_waited_for_no_longer_than_the_deadline() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options =
        ClientOptions::default().deadlines(Deadlines::default().rpc_unary(Duration::from_millis(300)));
    let client = Client::new(&Target::Plain(address), options).unwrap();
    let answer = client.call::<WhoAmIRpc>(&()).await;
    assert!(matches!(answer, Err(CallError::Timeout { .. })), "{answer:?}");
}
