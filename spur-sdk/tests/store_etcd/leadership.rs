//! Who leads, and who does not any more.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spur_sdk::store::etcd::{EtcdLeadership, EtcdSettings, EtcdStore};
use spur_sdk::store::{Commit, Fence, Fenced, Leadership as _, Store as _, StoreError, Term, Transaction};
use tokio::time::{sleep, timeout};

use crate::servers::{Etcd, signal, stop};
use crate::{done, key, put, store};

const TTL: Duration = Duration::from_secs(2);

fn candidate(ours: &EtcdStore, name: &str) -> EtcdLeadership {
    EtcdLeadership::new(ours.clone(), name, &format!("{name}:7000")).expect("candidate").ttl(TTL)
}

async fn lead(ours: &EtcdStore, name: &str) -> Term {
    timeout(Duration::from_secs(10), candidate(ours, name).campaign()).await.expect("in time").expect("term")
}

async fn leader(ours: &EtcdStore) -> Option<(String, String, Fence)> {
    let leader = candidate(ours, "onlooker").leader().await.expect("leader")?;
    Some((leader.name, leader.address, leader.fence))
}

async fn is_lost(term: &Term) -> bool {
    timeout(Duration::ZERO, term.lost()).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_leads_until_it_resigns_or_is_gone() {
    let etcd = Etcd::single(&[]).await;
    let ours = store(&etcd.settings()).await;
    assert_eq!(leader(&ours).await, None);
    let first = lead(&ours, "a").await;
    assert_eq!(leader(&ours).await, Some(("a".into(), "a:7000".into(), first.fence().clone())));
    let second = tokio::spawn({
        let ours = ours.clone();
        async move { lead(&ours, "b").await }
    });
    // Longer than the lease: it is kept.
    sleep(TTL + Duration::from_millis(700)).await;
    assert!(!is_lost(&first).await && !second.is_finished());
    let behind_first = Fenced::new(ours.clone(), first.fence().clone());
    done(&behind_first, put("x", "a")).await;

    let begin = Instant::now();
    first.resign().await;
    let second = second.await.expect("second");
    let after_resigning = begin.elapsed();
    assert!(after_resigning < Duration::from_secs(1), "{after_resigning:?}");
    assert!(matches!(behind_first.commit(put("x", "late")).await, Err(StoreError::Deposed)));
    done(&Fenced::new(ours.clone(), second.fence().clone()), put("x", "b")).await;

    // Dropped: it runs out by itself.
    let begin = Instant::now();
    drop(second);
    let third = lead(&ours, "c").await;
    let after_drop = begin.elapsed();
    assert!(after_drop < TTL + Duration::from_secs(1), "{after_drop:?}");

    // An entry that somebody deletes ends the term at once.
    let begin = Instant::now();
    done(&ours, Transaction::new().delete(key("leader"))).await;
    timeout(Duration::from_secs(1), third.lost()).await.expect("it is lost");
    println!(
        "{after_resigning:?} to lead after a resignation, {after_drop:?} after a drop; lost {:?} after a deletion",
        begin.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_candidates_one_leads_at_a_time() {
    let etcd = Etcd::single(&[]).await;
    let leading = Arc::new(AtomicUsize::new(0));
    let mut candidates = tokio::task::JoinSet::new();
    for index in 0..6 {
        let (settings, leading) = (etcd.settings(), Arc::clone(&leading));
        candidates.spawn(async move {
            let ours = store(&settings).await;
            let term = lead(&ours, &format!("c{index}")).await;
            assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two lead");
            done(&Fenced::new(ours, term.fence().clone()), put("turn", format!("{index}"))).await;
            sleep(Duration::from_millis(50)).await;
            assert_eq!(leading.fetch_sub(1, Ordering::SeqCst), 1, "two lead");
            term.resign().await;
        });
    }
    while let Some(ended) = candidates.join_next().await {
        ended.expect("candidate");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_is_lost_no_later_than_another_may_begin() {
    let mut etcd = Etcd::single(&[]).await;
    let ours = store(&etcd.settings()).await;
    let term = lead(&ours, "a").await;
    // The server is out of reach but goes on counting: paused, it would not.
    sleep(Duration::from_secs(1)).await;
    stop(etcd.members[0].pid());
    let begin = Instant::now();
    timeout(TTL + Duration::from_millis(200), term.lost()).await.expect("lost by our own clock");
    println!("lost {:?} after the server hung", begin.elapsed());
    signal(etcd.members[0].pid(), "CONT");
    // What comes back does not bring a lost term back.
    sleep(Duration::from_millis(500)).await;
    assert!(is_lost(&term).await);
    // A server that is gone, and back without delay.
    let again = lead(&ours, "a").await;
    etcd.members[0].kill();
    etcd.restart(0);
    sleep(TTL + Duration::from_millis(700)).await;
    assert!(!is_lost(&again).await, "a restart of etcd ends no term");
    done(&Fenced::new(ours, again.fence().clone()), put("x", "1")).await;
}

/// A controller in a process of its own. Without the variable it is a test that does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controller_process() {
    let Ok(urls) = std::env::var("SPUR_TEST_ETCD_CONTROLLER") else { return };
    let ours = store(&EtcdSettings::new(urls.split(','))).await;
    let term = lead(&ours, "child").await;
    let fenced = Fenced::new(ours.clone(), term.fence().clone());
    println!("leading");
    let mut line = String::new();
    // It asks nobody whether it still leads.
    while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        match fenced.commit(put("x", line.trim())).await {
            Ok(Commit::Done(_)) => println!("written"),
            Err(StoreError::Deposed) => println!("deposed, lost {}", is_lost(&term).await),
            other => println!("{other:?}"),
        }
        line.clear();
    }
}

struct Controller {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Controller {
    fn start(etcd: &Etcd) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "leadership::controller_process", "--nocapture", "--test-threads=1"])
            .env("SPUR_TEST_ETCD_CONTROLLER", etcd.urls().join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program");
        let (input, output) = (child.stdin.take().expect("input"), child.stdout.take().expect("output"));
        let mut controller = Self { child, input, output: BufReader::new(output) };
        while !controller.line().contains("leading") {}
        controller
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).expect("output") > 0, "it has ended");
        line
    }

    fn tell(&mut self, value: &str) {
        writeln!(self.input, "{value}").expect("input");
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_stopped_longer_than_its_lease_writes_no_more() {
    let etcd = Etcd::single(&[]).await;
    let ours = store(&etcd.settings()).await;
    let mut child = Controller::start(&etcd);
    child.tell("one");
    assert_eq!(child.line().trim(), "written");
    stop(child.child.id());
    let begin = Instant::now();
    // What it is told while it is stopped it does when it wakes up.
    child.tell("late");
    let term = lead(&ours, "parent").await;
    let taken = begin.elapsed();
    assert!(taken < TTL + Duration::from_secs(1), "{taken:?}");
    done(&Fenced::new(ours.clone(), term.fence().clone()), put("x", "two")).await;
    signal(child.child.id(), "CONT");
    assert_eq!(child.line().trim(), "deposed, lost true");
    assert_eq!(ours.get(&key("x")).await.expect("get").expect("x").value, b"two");
    assert!(!is_lost(&term).await);
    println!("led {taken:?} after the stop");
}

/// From the death of a leader to the next one's first write, with a time to live of 2 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leads_within_the_lease_and_a_second() {
    let etcd = Etcd::three().await;
    let ours = store(&etcd.settings()).await;
    let mut child = Controller::start(&etcd);
    let waiting = tokio::spawn({
        let ours = ours.clone();
        async move { lead(&ours, "parent").await }
    });
    // Just renewed, which is the worst moment.
    sleep(Duration::from_millis(700)).await;
    child.child.kill().expect("kill");
    let begin = Instant::now();
    let term = waiting.await.expect("parent");
    done(&Fenced::new(ours.clone(), term.fence().clone()), put("x", "1")).await;
    let acted = begin.elapsed();
    assert!(acted < TTL + Duration::from_secs(1), "{acted:?}");
    println!("first write {acted:?} after the leader's death");
}
