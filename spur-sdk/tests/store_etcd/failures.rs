//! Members that are lost, hang or lose their disk, and endpoints that are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, Error as EtcdError};
use spur_sdk::store::etcd::{EtcdSettings, EtcdStore};
use spur_sdk::store::{Commit, Comparison, Revision, Store, StoreError, Transaction};
use spur_sdk::{Classify, Deadlines};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::servers::{Etcd, answers, signal, stop};
use crate::{done, key, put, store};

const DEADLINE: Duration = Duration::from_secs(2);

fn impatient(settings: EtcdSettings) -> EtcdSettings {
    settings.deadlines(&Deadlines::default().store(DEADLINE))
}

/// A server that takes connections and says nothing.
async fn silent() -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("http://{}", listener.local_addr().expect("address"));
    let server = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok(connection) = listener.accept().await {
            held.push(connection);
        }
    });
    (url, server)
}

/// Counts up under one key as long as it is not told to stop; what was refused or unclear is tried again.
struct Writer {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Written>,
}

#[derive(Default)]
struct Written {
    /// The writes that were acknowledged.
    acknowledged: Vec<(u64, Revision)>,
    unclear: usize,
    refused: usize,
    longest: Duration,
}

impl Writer {
    fn start(ours: EtcdStore) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut written = Written::default();
            let mut number = 0;
            while !told.load(Ordering::Relaxed) {
                number += 1;
                let begin = Instant::now();
                match ours.commit(put("count", number.to_string())).await {
                    Ok(Commit::Done(at)) => written.acknowledged.push((number, at)),
                    Err(StoreError::Unconfirmed { .. }) => written.unclear += 1,
                    Err(StoreError::Unavailable { .. }) => written.refused += 1,
                    other => panic!("{other:?}"),
                }
                written.longest = written.longest.max(begin.elapsed());
                sleep(Duration::from_millis(5)).await;
            }
            written
        });
        Self { stop, task }
    }

    async fn stop(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("writer")
    }
}

/// Every acknowledged write stands in the history, as it was acknowledged.
async fn all_are_there(ours: &EtcdStore, begin: Revision, written: &Written) {
    let mut watch = ours.watch("count", begin).await.expect("watch");
    for (number, at) in &written.acknowledged {
        let set = loop {
            let set = timeout(DEADLINE, watch.next()).await.expect("in time").expect("change");
            // Those before it were unclear.
            if set.revision >= *at {
                break set;
            }
        };
        assert_eq!(set.revision, *at);
        assert_eq!(set.changes[0].value.as_deref(), Some(number.to_string().as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_lose_their_leader_two_members_and_a_disk() {
    let mut etcd = Etcd::three().await;
    let ours = store(&impatient(etcd.settings())).await;
    let begin = ours.range("").await.expect("range").revision;
    let mut watch = ours.watch("", begin).await.expect("watch");
    let writer = Writer::start(ours.clone());

    // The leader.
    sleep(Duration::from_millis(300)).await;
    let leader = etcd.leader().await;
    etcd.members[leader].kill();
    let lost = Instant::now();
    until_written(&ours, "1").await;
    let without_leader = lost.elapsed();
    assert!(without_leader < Duration::from_secs(8), "{without_leader:?}");
    etcd.restart(leader);
    answers(&store(&EtcdSettings::new([&etcd.members[leader].url])).await).await;

    // Two members.
    etcd.members[0].kill();
    etcd.members[1].kill();
    sleep(Duration::from_millis(100)).await;
    let asked = Instant::now();
    let name = key("probe");
    let (read, write) = tokio::join!(ours.get(&name), ours.commit(put("probe", "2")));
    let (read, write) = (read.expect_err("no quorum"), write.expect_err("no quorum"));
    assert!(asked.elapsed() < DEADLINE + Duration::from_millis(500), "{:?}", asked.elapsed());
    assert!(matches!(read, StoreError::Timeout { .. } | StoreError::Unavailable { .. }), "{read:?}");
    assert!(matches!(write, StoreError::Unconfirmed { .. } | StoreError::Unavailable { .. }), "{write:?}");
    assert!(read.is_retryable() && write.is_retryable());
    // By now it is known that there is no leader: nothing is sent.
    let later = ours.commit(put("probe", "3")).await.expect_err("no quorum");
    assert!(matches!(later, StoreError::Unavailable { .. }), "{later:?}");
    etcd.restart(0);
    etcd.restart(1);
    let back = Instant::now();
    until_written(&ours, "4").await;
    let recovered = back.elapsed();
    assert!(recovered < Duration::from_secs(8), "{recovered:?}");

    // A disk.
    etcd.members[2].kill();
    etcd.members[2].wipe();
    let known = retried(async || etcd.client(0).await.member_list().await).await;
    let peer = etcd.members[2].peer.clone();
    let dead = known.members().iter().find(|member| member.peer_urls().contains(&peer)).expect("member").id();
    retried(async || match etcd.client(0).await.member_remove(dead).await {
        Err(EtcdError::GRpcStatus(status)) if status.message().contains("not found") => Ok(()),
        removed => removed.map(drop),
    })
    .await;
    retried(async || match etcd.client(0).await.member_add([&peer], None).await {
        Err(EtcdError::GRpcStatus(status)) if status.message().contains("already") => Ok(()),
        added => added.map(drop),
    })
    .await;
    etcd.restart(2);
    answers(&store(&EtcdSettings::new([&etcd.members[2].url])).await).await;

    let written = writer.stop().await;
    assert!(written.acknowledged.len() > 20, "{}", written.acknowledged.len());
    assert!(written.longest < DEADLINE + Duration::from_millis(500), "{:?}", written.longest);
    // Each member, the new one too, has all of it.
    for member in &etcd.members {
        let alone = store(&EtcdSettings::new([&member.url])).await;
        all_are_there(&alone, begin, &written).await;
    }
    // The watch that was open all the time has missed nothing.
    let mut all = written.acknowledged.iter().peekable();
    while all.peek().is_some() {
        let set = timeout(DEADLINE, watch.next()).await.expect("in time").expect("change");
        all.next_if(|(_, at)| *at == set.revision);
        assert!(all.peek().is_none_or(|(_, at)| *at > set.revision), "a gap before {}", set.revision);
    }
    println!(
        "without its leader: writes again after {without_leader:?}; quorum back: after {recovered:?}; \
         {} acknowledged, {} unclear, {} refused, longest {:?}",
        written.acknowledged.len(),
        written.unclear,
        written.refused,
        written.longest
    );
}

async fn until_written(ours: &EtcdStore, value: &str) {
    let begin = Instant::now();
    while let Err(error) = ours.commit(put("probe", value)).await {
        assert!(begin.elapsed() < Duration::from_secs(20), "{error:?}");
    }
}

/// What the members are, or are to be, which etcd refuses until all are in touch.
async fn retried<T>(call: impl AsyncFn() -> Result<T, EtcdError>) -> T {
    let begin = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(20), "{error}"),
        }
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_that_are_dead_or_say_nothing_fail_no_call() {
    let etcd = Etcd::single(&[]).await;
    let (url, _server) = silent().await;
    for useless in ["http://127.0.0.1:1", url.as_str()] {
        // First, so that it would be taken.
        let settings = EtcdSettings::new([useless, &etcd.members[0].url]);
        let ours = store(&settings).await;
        let begin = Instant::now();
        let start = ours.range("").await.expect("range").revision;
        let mut watch = ours.watch("", start).await.expect("watch");
        let first = begin.elapsed();
        for index in 0..100 {
            let counted = put("a", index.to_string());
            done(&ours, counted).await;
            assert!(ours.get(&key("a")).await.expect("get").is_some());
            watch.next().await.expect("change");
        }
        assert!(first < Duration::from_millis(2500) && begin.elapsed() < Duration::from_secs(5));
        println!("{useless}: first answers after {first:?}, 300 calls after {:?}", begin.elapsed());
    }
    // All of them.
    let ours = store(&impatient(EtcdSettings::new([url.as_str()]))).await;
    let begin = Instant::now();
    let name = key("a");
    let (read, write) = tokio::join!(ours.get(&name), ours.commit(put("a", "1")));
    assert!(matches!(read, Err(StoreError::Timeout { .. })), "{read:?}");
    // Nothing but a question was sent.
    assert!(matches!(write, Err(StoreError::Unavailable { .. })), "{write:?}");
    assert!(begin.elapsed() < DEADLINE + Duration::from_millis(500), "{:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_hangs_fails_no_call_but_what_it_had() {
    let etcd = Etcd::three().await;
    // Not the one that leads, so that the others go on at once.
    let leader = etcd.leader().await;
    let hanging = (leader + 1) % 3;
    let mut urls = etcd.urls();
    urls.rotate_left(hanging);
    let ours = store(&impatient(EtcdSettings::new(urls))).await;
    let start = done(&ours, put("a", "0")).await;
    let mut watch = ours.watch("", start).await.expect("watch");
    let compared = Transaction::new().when(Comparison::Absent(key("b"))).put(key("b"), b"1".to_vec());

    let pid = etcd.members[hanging].pid();
    stop(pid);
    // It has answered just now, so it gets this write: whether it comes through is open.
    let begin = Instant::now();
    let unclear = ours.commit(compared).await;
    assert!(matches!(unclear, Err(StoreError::Unconfirmed { .. })), "{unclear:?}");
    assert!(begin.elapsed() < DEADLINE + Duration::from_millis(500), "{:?}", begin.elapsed());
    let stopped = Instant::now();
    for index in 1..=50 {
        done(&ours, put("a", index.to_string())).await;
        assert!(ours.get(&key("a")).await.expect("get").is_some());
    }
    assert!(stopped.elapsed() < Duration::from_secs(5), "{:?}", stopped.elapsed());
    // The watch was on the member that hangs; it goes on at another without a gap.
    let mut seen = 0;
    while seen < 50 {
        let set = timeout(Duration::from_secs(15), watch.next()).await.expect("in time").expect("change");
        for change in set.changes.into_iter().filter(|change| change.key == key("a")) {
            seen += 1;
            assert_eq!(change.value, Some(seen.to_string().into_bytes()));
        }
    }
    println!("watch moved on {:?} after its member hung", begin.elapsed());
    signal(pid, "CONT");
    answers(&store(&EtcdSettings::new([&etcd.members[hanging].url])).await).await;
}

/// Why each endpoint has a client of its own; when this fails, etcd-client's balancing may have become of use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a fact about etcd-client; tests/long.sh runs it"]
async fn a_balanced_client_fails_where_one_endpoint_is_useless_long() {
    let etcd = Etcd::single(&[]).await;
    let (url, _server) = silent().await;
    for useless in ["http://127.0.0.1:1", url.as_str()] {
        let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(1));
        let both = [useless, etcd.members[0].url.as_str()];
        let client = Client::connect(both, Some(options)).await.expect("client");
        let mut failed = 0;
        for _ in 0..40 {
            let answer = timeout(Duration::from_millis(500), client.clone().get("a", None)).await;
            failed += usize::from(!matches!(answer, Ok(Ok(_))));
        }
        println!("{useless} beside one that works: {failed} of 40 reads fail");
        assert!(failed > 0);
    }
}
