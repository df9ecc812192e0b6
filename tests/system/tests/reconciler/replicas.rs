//! Of several replicas one leads; the others do nothing, and one of them takes over.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;
use spur_sdk_quota::cluster::{ControllerOptions, Key, Kind, Report};
use spur_sdk_quota::{Policy, names};
use spur_system_tests::model;
use spur_system_tests::program::Program;
use spur_system_tests::proxy::{Asked, Fault, Moment, Proxy};
use spur_system_tests::reconciler::{Running, Store, quick_lease};
use spur_system_tests::witness::Witness;
use spur_test_control_plane::ControlPlane;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::{accounts, edit};

const LEASE: &str = "spur-quota";
const ACCOUNT: &str = "one";

/// A controller behind a proxy of its own.
struct Replica {
    proxy: Proxy,
    running: Running,
}

impl Replica {
    async fn start(control_plane: &ControlPlane, identity: &str, store: &Store) -> Result<Self> {
        let proxy = Proxy::start(control_plane.client().await?).await?;
        let options = ControllerOptions::default().lease(Some(quick_lease().identity(identity)));
        let running = Running::start_with(store.clone(), &proxy.client()?, &Policy::default(), options);
        Ok(Self { proxy, running })
    }

    async fn leads(&mut self) -> Result<()> {
        self.running.wait_for(|report| matches!(report, Report::Leading).then_some(())).await
    }

    async fn follows(&mut self, whom: &str) -> Result<()> {
        let follows = |report: &Report| match report {
            Report::Following { leader, .. } => (leader == whom).then_some(()),
            _ => None,
        };
        self.running.wait_for(follows).await
    }
}

/// Writes of a replica but of its Lease and of Events.
fn writes(proxy: &Proxy) -> Vec<Asked> {
    let asked = proxy.asked().into_iter();
    asked
        .filter(|asked| {
            asked.request.is_write() && !asked.request.is_of_lease() && !asked.request.is_of_event()
        })
        .collect()
}

/// Somebody who edits accounts all the time, and so has whoever leads write.
struct Hand(JoinHandle<Result<()>>);

impl Drop for Hand {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Hand {
    fn start(witness: &Arc<Witness>, accounts: &'static [&'static str]) -> Self {
        let witness = Arc::clone(witness);
        Self(tokio::spawn(async move {
            loop {
                for account in accounts {
                    let namespace = names::NAMESPACES.map(account);
                    let labels = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "privileged" } } });
                    witness.edit(&Key::cluster(Kind::Namespace, &namespace), labels).await?;
                    let quota = Key::namespaced(Kind::ResourceQuota, &namespace, names::QUOTA);
                    witness.edit(&quota, json!({ "spec": { "hard": { "pods": "1000" } } })).await?;
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }))
    }
}

/// Waits for something.
async fn until(what: &str, within: Duration, is_true: impl Fn() -> bool) -> Result<Duration> {
    let start = Instant::now();
    while !is_true() {
        ensure!(start.elapsed() < within, "not within {within:?}: {what}");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(start.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_without_the_lease_asks_for_nothing_else_until_the_leader_stops_or_dies() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let policy = Policy::default();
    let text = accounts(&[ACCOUNT, "two"]);
    let store = Store::of(&text)?;
    let witness = Arc::new(Witness::start(&control_plane.client().await?, &policy).await?);
    witness.hears(&model(&text)?).await?;
    let mut first = Replica::start(&control_plane, "first", &store).await?;
    first.leads().await?;
    let mut second = Replica::start(&control_plane, "second", &store).await?;
    second.follows("first").await?;
    witness.in_step(&model(&text)?, Duration::from_secs(30)).await?;
    let hand = Hand::start(&witness, &[ACCOUNT]);
    let before = second.proxy.asked().len();
    sleep(Duration::from_secs(3)).await;
    let asked = second.proxy.asked();
    ensure!(asked.iter().all(|asked| asked.request.is_of_lease() && !asked.request.is_write()), "{asked:#?}");
    let looks = asked.len() - before;
    ensure!(looks <= 8, "{looks} looks at a Lease of 3 s in 3 s");
    ensure!(!writes(&first.proxy).is_empty(), "the leader writes");

    // Stopped, it gives the Lease back.
    let begin = Instant::now();
    first.running.stop().await?;
    second.leads().await?;
    let took = begin.elapsed();
    println!("after a stop another leads within {took:?}");
    ensure!(took < Duration::from_millis(1500), "{took:?}");
    until("the second writes", Duration::from_secs(10), || !writes(&second.proxy).is_empty()).await?;

    // Dead, it holds it until it is over.
    let mut third = Replica::start(&control_plane, "third", &store).await?;
    third.follows("second").await?;
    let begin = Instant::now();
    drop(second);
    third.leads().await?;
    let took = begin.elapsed();
    println!("after a death another leads within {took:?}");
    ensure!(took > Duration::from_millis(1500) && took < Duration::from_secs(5), "{took:?}");
    until("the third writes", Duration::from_secs(10), || !writes(&third.proxy).is_empty()).await?;
    drop(hand);
    witness.in_step(&model(&text)?, Duration::from_secs(30)).await?;
    let wrong = witness.verdict().await?;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    third.running.stop().await?;
    control_plane.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_somebody_deletes_or_takes_is_led_by_one_at_a_time() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let policy = Policy::default();
    let text = accounts(&[ACCOUNT, "two"]);
    let store = Store::of(&text)?;
    let client = control_plane.client().await?;
    let witness = Arc::new(Witness::start(&client, &policy).await?);
    witness.hears(&model(&text)?).await?;
    let mut first = Replica::start(&control_plane, "first", &store).await?;
    first.leads().await?;
    let mut second = Replica::start(&control_plane, "second", &store).await?;
    second.follows("first").await?;
    witness.in_step(&model(&text)?, Duration::from_secs(30)).await?;
    let hand = Hand::start(&witness, &[ACCOUNT]);
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");

    // Deleted: whoever makes it anew leads, the other follows.
    for round in 0..3 {
        let begin = Instant::now();
        leases.delete(LEASE, &DeleteParams::default()).await?;
        sleep(Duration::from_secs(3)).await;
        let mut all: Vec<(Instant, &str)> = Vec::new();
        for (who, replica) in [("first", &first), ("second", &second)] {
            all.extend(
                writes(&replica.proxy)
                    .into_iter()
                    .filter(|asked| asked.at > begin)
                    .map(|asked| (asked.at, who)),
            );
        }
        all.sort();
        let turns =
            all.windows(2).filter(|pair| matches!(pair, [(_, one), (_, other)] if one != other)).count();
        let holder = leases.get(LEASE).await?.spec.context("a Lease")?.holder_identity.unwrap_or_default();
        let last = all.last().context("nobody writes")?.1;
        println!("round {round}: {} writes, {turns} changes of the leader, then {holder} leads", all.len());
        ensure!(turns <= 1 && last == holder, "{turns} {last} {holder}");
    }

    // Taken by nobody who would do anything: both follow until it is over.
    let taken = json!({ "spec": { "holderIdentity": "somebody-else" } });
    let begin = Instant::now();
    edit(&leases, LEASE, taken).await?;
    let all = || {
        let replicas = [&first, &second].into_iter().flat_map(|replica| writes(&replica.proxy));
        let mut all: Vec<_> =
            replicas.map(|asked| asked.at).filter(|at| *at > begin).chain([begin]).collect();
        all.sort();
        all
    };
    // The longest time without a write, in what is known of the time since.
    let pause = || all().windows(2).map(|pair| pair[1].duration_since(pair[0])).max().unwrap_or_default();
    until("a pause and a write after it", Duration::from_secs(10), || pause() > Duration::from_secs(2))
        .await?;
    println!("taken by somebody else, it is left alone for {:?}", pause());
    let stopped =
        all().windows(2).find(|pair| pair[1].duration_since(pair[0]) == pause()).map(|pair| pair[0]);
    let stopped = stopped.context("a pause")?.duration_since(begin);
    ensure!(stopped < Duration::from_millis(1500), "the leader went on for {stopped:?}");
    drop(hand);
    witness.in_step(&model(&text)?, Duration::from_secs(30)).await?;
    let wrong = witness.verdict().await?;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    control_plane.stop().await
}

/// More accounts, so that much is under way at any moment.
const MANY: [&str; 12] = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "a10", "a11"];

/// All accounts with so many CPUs.
fn with_cap(cap: u32) -> String {
    MANY.iter().fold(String::new(), |mut text, name| {
        let _ = write!(text, "[[account]]\nname = \"{name}\"\ngrp_tres = \"cpu={cap}\"\n");
        text
    })
}

/// A process behind a proxy of its own, with a file of its own.
fn process(proxy: &Proxy, folder: &std::path::Path, identity: &str, cap: u32) -> Result<Program> {
    let (file, kubeconfig) =
        (folder.join(format!("{identity}.toml")), folder.join(format!("{identity}.kubeconfig")));
    std::fs::write(&file, with_cap(cap))?;
    std::fs::write(&kubeconfig, proxy.kubeconfig())?;
    let arguments = ["quota", "watch", "--lease-duration", "3", "--identity", identity, "--kubeconfig"];
    let arguments = arguments.into_iter().map(std::ffi::OsString::from);
    Program::start(arguments.chain([kubeconfig.into(), file.into()]), &folder.join(format!("{identity}.log")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_stopped_for_longer_than_its_lease_writes_nothing_when_it_goes_on() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let policy = Policy::default();
    let folder = tempfile::tempdir()?;
    let witness = Arc::new(Witness::start(&control_plane.client().await?, &policy).await?);
    let proxies = [
        Proxy::start(control_plane.client().await?).await?,
        Proxy::start(control_plane.client().await?).await?,
    ];
    let quota = Key::namespaced(Kind::ResourceQuota, &names::NAMESPACES.map(MANY[0]), names::QUOTA);
    let has = |cap: &str| {
        witness
            .get(&quota)
            .is_some_and(|quota| quota.pointer("/spec/hard/requests.cpu").is_some_and(|is| is == cap))
    };
    let mut processes =
        [process(&proxies[0], folder.path(), "four", 4)?, process(&proxies[1], folder.path(), "five", 5)?];
    let mut leader = usize::from(!until_leads(&proxies).await?);
    let mut wrong = Vec::new();
    for round in 0..4 {
        let cap = |replica| if replica == 0 { "4" } else { "5" };
        let follower = 1 - leader;
        until("the leader's cap", Duration::from_secs(20), || has(cap(leader))).await?;
        let hand = Hand::start(&witness, &MANY);
        let held = Arc::new(AtomicBool::new(true));
        // What is under way when it is stopped: writes on their way, unanswered, refused for a second.
        let fault = [Fault::None, Fault::Hang, Fault::Overloaded, Fault::Lost][round];
        let holds = Arc::clone(&held);
        proxies[leader].script(move |request, moment| {
            let strikes = moment == Moment::Asked
                && request.is_write()
                && !request.is_of_lease()
                && request.number % 4 == 0
                && holds.load(Ordering::Relaxed);
            if strikes { fault } else { Fault::None }
        });
        sleep(Duration::from_millis(600 + 130 * u64::try_from(round)?)).await;
        processes[leader].signal("STOP")?;
        sleep(Duration::from_millis(200)).await;
        let before = writes(&proxies[follower]).len();
        until("the other takes over", Duration::from_secs(8), || {
            writes(&proxies[follower]).len() > before && has(cap(follower))
        })
        .await?;
        held.store(false, Ordering::Relaxed);
        sleep(Duration::from_millis(500)).await;
        let gone_on = Instant::now();
        processes[leader].signal("CONT")?;
        sleep(Duration::from_millis(1500)).await;
        drop(hand);
        let written: Vec<_> =
            proxies[leader].asked().into_iter().filter(|asked| asked.at > gone_on).collect();
        let refused =
            written.iter().filter(|asked| asked.request.is_write() && asked.request.is_of_lease()).count();
        println!(
            "round {round}, {fault:?}: {} requests after it went on, of them {refused} for its Lease",
            written.len()
        );
        let wrote = written
            .iter()
            .filter(|asked| asked.request.is_write())
            // A renewal names the version that it knows, so it is refused.
            .filter(|asked| !asked.request.is_of_lease() || asked.status.is_some_and(|status| status < 300))
            .map(|asked| format!("round {round}: {} ({:?})", asked.request.line(), asked.status));
        wrong.extend(wrote);
        ensure!(written.iter().any(|asked| asked.request.is_of_lease()), "it looks at the Lease again");
        leader = follower;
    }
    ensure!(wrong.is_empty(), "written after it went on: {wrong:#?}");
    for process in &mut processes {
        process.signal("TERM")?;
    }
    control_plane.stop().await
}

/// Waits until one of the two writes; whether it is the first.
async fn until_leads(proxies: &[Proxy; 2]) -> Result<bool> {
    let leads = |proxy: &Proxy| !writes(proxy).is_empty();
    until("one leads", Duration::from_secs(20), || proxies.iter().any(leads)).await?;
    Ok(leads(&proxies[0]))
}
