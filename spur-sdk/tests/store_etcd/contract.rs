//! The contract on one server: access, sizes, limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions, Permission, PermissionType};
use spur_sdk::Deadlines;
use spur_sdk::store::etcd::{EtcdLeadership, EtcdSettings, EtcdSettingsError, EtcdStore};
use spur_sdk::store::{
    Commit, Comparison, Fenced, Leadership as _, Revision, Store, StoreError, Transaction, Watch,
};
use spur_sdk::testing::conformance;
use spur_sdk::testing::linearizability::Recorder;
use tokio::time::timeout;

use crate::servers::{Certificates, Etcd, answers, signal, stop};
use crate::{done, key, put, store};

async fn compact(etcd: &Etcd) {
    let mut client = etcd.client(0).await;
    let at = client.get("none", None).await.expect("get").header().expect("header").revision();
    let physical = CompactionOptions::new().with_physical();
    client.compact(at, Some(physical)).await.expect("compaction");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_the_contract() {
    let etcd = Etcd::single(&[]).await;
    let count = AtomicUsize::new(0);
    let fresh = async || {
        let prefix = format!("/case/{}/", count.fetch_add(1, Ordering::Relaxed));
        store(&etcd.settings().prefix(prefix)).await
    };
    conformance::run(fresh, async |_: &EtcdStore| compact(&etcd).await).await.expect("the contract");
    assert!(count.into_inner() >= conformance::names().len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_of_different_prefixes_see_nothing_of_each_other() {
    let etcd = Etcd::single(&[]).await;
    let one = store(&etcd.settings().prefix("/spur")).await;
    let other = store(&etcd.settings().prefix("/spur2")).await;
    let begin = one.range("").await.expect("range").revision;
    let mut watch = one.watch("", begin).await.expect("watch");
    done(&other, put("a", "other")).await;
    done(&one, put("b", "one")).await;
    assert_eq!(one.get(&key("a")).await.expect("get"), None);
    let names =
        |found: Vec<spur_sdk::store::Entry>| found.into_iter().map(|entry| entry.key).collect::<Vec<_>>();
    assert_eq!(names(one.range("").await.expect("range").entries), [key("b")]);
    assert_eq!(names(other.range("").await.expect("range").entries), [key("a")]);
    assert_eq!(watch.next().await.expect("change").changes[0].key, key("b"));
    // What somebody else puts among our keys is named, and not skipped.
    etcd.client(0).await.put("/spur/bad\nkey", "x", None).await.expect("put");
    assert!(
        matches!(one.range("").await, Err(StoreError::Damaged { place, .. }) if place.contains("bad\nkey"))
    );
    assert!(matches!(watch.next().await, Err(StoreError::Damaged { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_and_clients_know_each_other_by_certificate() {
    let (ours, others) = (Certificates::new("spur"), Certificates::new("spur"));
    let etcd = Etcd::tls(&ours, &[]);
    let (certificate, private) = ours.client.clone();
    let settings = etcd.settings().ca(&ours.ca).certificate(certificate, private);
    let good = store(&settings).await;
    answers(&good).await;
    done(&good, put("a", "1")).await;

    let without = store(&etcd.settings().ca(&ours.ca)).await;
    let error = without.get(&key("a")).await.expect_err("no certificate");
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    let error = without.commit(put("a", "2")).await.expect_err("no certificate");
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");

    let (certificate, private) = others.client.clone();
    let stranger = store(&etcd.settings().ca(&ours.ca).certificate(certificate, private)).await;
    let error = stranger.get(&key("a")).await.expect_err("a stranger's certificate");
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");

    let (certificate, private) = ours.client.clone();
    let deceived = store(&etcd.settings().ca(&others.ca).certificate(certificate, private)).await;
    let error = deceived.get(&key("a")).await.expect_err("a stranger's server");
    assert!(matches!(&error, StoreError::Unavailable { .. }), "{error:?}");
    assert!(spur_sdk::error_chain(&error).contains("certificate"), "{}", spur_sdk::error_chain(&error));

    let broken = EtcdStore::new(&etcd.settings().ca("-----BEGIN CERTIFICATE-----\nnone")).await;
    assert!(matches!(broken, Err(EtcdSettingsError::Certificate(_))), "{broken:?}");
}

/// A user `spur` that may read and write below `/spur/`.
async fn with_password(etcd: &Etcd) {
    let mut client = etcd.client(0).await;
    client.role_add("spur").await.expect("role");
    let rights = Permission::new(PermissionType::Readwrite, "/spur/").with_prefix();
    client.role_grant_permission("spur", rights).await.expect("rights");
    for (user, role) in [("root", "root"), ("spur", "spur")] {
        client.user_add(user, "secret", None).await.expect("user");
        client.user_grant_role(user, role).await.expect("role");
    }
    client.auth_enable().await.expect("auth");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_rights_on_the_prefix_suffices_and_is_signed_in_again() {
    let mut etcd = Etcd::single(&["--auth-token-ttl=1"]).await;
    let settings = etcd.settings().password("spur", "secret");
    // A server that asks for no password does not pass for one that does.
    let error = store(&settings).await.get(&key("a")).await.expect_err("no authentication");
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    with_password(&etcd).await;
    let ours = store(&settings).await;
    done(&ours, put("a", "1")).await;
    let mut watch = ours.watch("", ours.range("").await.expect("range").revision).await.expect("watch");

    let wrong = store(&etcd.settings().password("spur", "guess")).await;
    let anonymous = store(&etcd.settings()).await;
    let elsewhere = store(&settings.clone().prefix("/other/")).await;
    for denied in [wrong, anonymous, elsewhere] {
        let error = denied.get(&key("a")).await.expect_err("not ours");
        assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
        assert!(!format!("{denied:?} {error:?}").contains("guess"));
        let error = denied.commit(put("a", "2")).await.expect_err("not ours");
        assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
        let error = denied.watch("", Revision(0)).await.expect_err("not ours");
        assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    }

    // Leading needs no more rights.
    let candidate = EtcdLeadership::new(ours.clone(), "a", "").expect("candidate");
    let term = candidate.campaign().await.expect("term");
    done(&Fenced::new(ours.clone(), term.fence().clone()), put("b", "1")).await;
    term.resign().await;
    assert_eq!(candidate.leader().await.expect("leader"), None);
    for _ in 0..3 {
        watch.next().await.expect("change");
    }

    // Tokens live for a second.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    ours.watch("", Revision(0)).await.expect("watch with a token that ran out");
    done(&ours, put("a", "2")).await;
    assert_eq!(watch.next().await.expect("change").changes[0].value.as_deref(), Some(&b"2"[..]));

    // A server that starts anew knows none of the tokens.
    etcd.members[0].kill();
    etcd.restart(0);
    answers(&ours).await;
    done(&ours, put("a", "3")).await;
    assert_eq!(watch.next().await.expect("change").changes[0].value.as_deref(), Some(&b"3"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_ranges_and_batches_of_changes_are_whole() {
    const MEBIBYTES: usize = 40;
    let etcd = Etcd::single(&[]).await;
    let ours = store(&etcd.settings()).await;
    let begin = ours.range("").await.expect("range").revision;
    // More than one answer may hold, and more than etcd sends in one piece.
    for index in 0..MEBIBYTES {
        done(&ours, put(&format!("large/{index:03}"), vec![b'x'; Transaction::MAX_BYTES - 9])).await;
    }
    for round in 0..60_u8 {
        let all = (0..120).fold(Transaction::new(), |all, index| {
            all.put(key(&format!("many/{index:03}")), vec![b'a' + round % 26; 4000])
        });
        done(&ours, all).await;
    }
    // Each page shows what was there at the first one.
    let writer = ours.clone();
    let write = tokio::spawn(async move {
        for index in 0..50 {
            let both = put("pair/a", format!("{index}")).put(key("zpair/a"), format!("{index}").into_bytes());
            done(&writer, both).await;
        }
    });
    for _ in 0..3 {
        let snapshot = ours.range("").await.expect("range");
        let large = snapshot.entries.iter().filter(|entry| entry.value.len() > 1 << 19).count();
        assert_eq!(large, MEBIBYTES);
        let value =
            |name| snapshot.entries.iter().find(|entry| entry.key == key(name)).map(|entry| &entry.value);
        assert_eq!(value("pair/a"), value("zpair/a"));
        assert!(snapshot.entries.is_sorted_by_key(|entry| &entry.key));
    }
    write.await.expect("writer");

    // The whole history at once: fragments, of which one ends within a transaction.
    let mut watch = ours.watch("", begin).await.expect("watch");
    let mut last = begin;
    for _ in 0..MEBIBYTES {
        let set = watch.next().await.expect("change");
        assert!(set.revision > last && set.changes.len() == 1);
        last = set.revision;
    }
    for _ in 0..60 {
        let set = watch.next().await.expect("change");
        assert!(set.revision > last);
        assert_eq!(set.changes.len(), 120, "revision {}", set.revision);
        assert!(set.changes.is_sorted_by_key(|change| &change.key));
        last = set.revision;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_were_compacted_have_expired() {
    let etcd = Etcd::single(&[]).await;
    let ours = store(&etcd.settings()).await;
    let begin = done(&ours, put("a", "0")).await;
    // Read too slowly: what waits for it here, on the way and in etcd is bounded.
    let mut slow = ours.watch("", begin).await.expect("watch");
    for _ in 0..500 {
        done(&ours, put("a", vec![b'x'; 100_000])).await;
    }
    compact(&etcd).await;
    let error = expired(ours.watch("", begin).await).await;
    let StoreError::Expired { after, oldest } = error else { panic!("{error:?}") };
    assert_eq!(after, begin);
    assert!(ours.watch("", oldest).await.is_ok() && oldest > begin);
    let mut last = begin;
    let error = loop {
        match timeout(Duration::from_secs(10), slow.next()).await.expect("more, or an error") {
            Ok(set) => {
                assert_eq!(set.revision.0, last.0 + 1, "no gap");
                last = set.revision;
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Expired { after, .. } if after == last), "{error:?} after {last}");
    assert!(slow.next().await.is_err());
    // A store that went back in time would be silent until it gets there again.
    expired(ours.watch("", Revision(1_000_000)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_nobody_reads_hold_up_no_call() {
    let etcd = Etcd::single(&[]).await;
    let ours = store(&etcd.settings()).await;
    let begin = done(&ours, put("a", "0")).await;
    let mut unread = Vec::new();
    for _ in 0..6 {
        unread.push(ours.watch("", begin).await.expect("watch"));
    }
    // More than the windows of a connection hold.
    let start = Instant::now();
    for _ in 0..40 {
        done(&ours, put("a", vec![b'x'; 1 << 19])).await;
        assert!(ours.get(&key("a")).await.expect("get").is_some());
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(ours.range("").await.is_ok());
    for mut watch in unread.into_iter().take(2) {
        let set = timeout(Duration::from_secs(5), watch.next()).await.expect("in time").expect("change");
        assert_eq!(set.revision.0, begin.0 + 1);
    }
}

async fn expired(watch: Result<Watch, StoreError>) -> StoreError {
    let error = match watch {
        Ok(mut watch) => watch.next().await.expect_err("it has expired"),
        Err(error) => error,
    };
    assert!(matches!(error, StoreError::Expired { .. }), "{error:?}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_writes_and_goes_on_reading() {
    let etcd = Etcd::single(&["--quota-backend-bytes=3000000"]).await;
    let ours = store(&etcd.settings()).await;
    let ordinary = done(&ours, put("ordinary", "before")).await;
    let (mut index, mut unclear) = (0, 0);
    let error = loop {
        match ours.commit(put(&format!("{index}"), vec![b'x'; 500_000])).await {
            Ok(_) => index += 1,
            // The one that the quota was too small for: etcd may have carried it out.
            Err(StoreError::Unconfirmed { .. }) if unclear == 0 => unclear = 1,
            Err(error) => break error,
        }
        assert!(index < 100, "3 MB never fill");
        // etcd measures itself ten times a second.
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(matches!(error, StoreError::NotWritable { .. }), "{error:?}");
    let snapshot = ours.range("").await.expect("reads go on");
    let found = snapshot.entries.len() - 1;
    assert!((index..=index + unclear).contains(&found), "{found} of {index} and {unclear}");
    assert!(ours.get(&key("0")).await.expect("reads go on").is_some());
    // Whoever else writes: this was certainly not written.
    let other = store(&etcd.settings()).await;
    for ours in [&ours, &other] {
        let refused = ours.commit(put("ordinary", "after")).await;
        assert!(matches!(refused, Err(StoreError::NotWritable { .. })), "{refused:?}");
    }
    assert_eq!(ours.get(&key("ordinary")).await.expect("get").expect("entry").modified, ordinary);
    // What an operator does, without a restart of ours.
    for gone in 0..found {
        done(&ours, Transaction::new().delete(key(&format!("{gone}")))).await;
    }
    compact(&etcd).await;
    let mut client = etcd.client(0).await;
    client.defragment().await.expect("defragmentation");
    let member = client.status().await.expect("status").header().expect("header").member_id();
    let mut of_member = AlarmOptions::new();
    of_member.with_member(member);
    client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of_member)).await.expect("alarm");
    done(&ours, put("a", "1")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_etcd_would_refuse_is_refused_before_it() {
    let etcd = Etcd::single(&[]).await;
    let long = format!("/{}/", "p".repeat(254));
    let ours = store(&etcd.settings().prefix(long)).await;
    // The largest transaction that every store takes, under the longest prefix.
    let name = |index: usize| key(&format!("{}{index:03}", "k".repeat(1021)));
    let most = Transaction::MAX_OPERATIONS;
    let largest = (0..most).fold(Transaction::new(), |all, index| {
        all.when(Comparison::Absent(name(index)))
            .put(name(index), vec![b'v'; Transaction::MAX_BYTES / most - 2048])
    });
    let again = largest.clone();
    done(&ours, largest).await;
    // In conflict over all of them.
    let Commit::Conflict(keys) = ours.commit(again).await.expect("commit") else { panic!("no conflict") };
    assert_eq!(keys.len(), most);
    let larger = put("a", vec![0; Transaction::MAX_BYTES]);
    assert!(matches!(ours.commit(larger).await, Err(StoreError::Transaction(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_said_at_once() {
    let settings = EtcdSettings::new(["http://127.0.0.1:1", "http://127.0.0.1:2"]);
    let ours = store(&settings).await;
    let begin = Instant::now();
    let error = ours.get(&key("a")).await.expect_err("nobody there");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    let error = ours.commit(put("a", "1")).await.expect_err("nobody there");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
}

/// Clients with few keys, much contention, and a member that is lost and comes back all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes; tests/long.sh runs it"]
async fn histories_on_etcd_are_linearizable_long() {
    let mut etcd = Etcd::three().await;
    let mut unclear = 0;
    for round in 0..40_u32 {
        let settings = etcd.settings().prefix(format!("/round/{round}/"));
        let settings = settings.deadlines(&Deadlines::default().store(Duration::from_secs(2)));
        let recorder = Arc::new(Recorder::new());
        let mut clients = tokio::task::JoinSet::new();
        for client in 0..4_u32 {
            let (ours, recorder) = (store(&settings).await, Arc::clone(&recorder));
            clients.spawn(async move { drive(&ours, &recorder, round * 10 + client).await });
        }
        let victim = if round % 2 == 0 { etcd.leader().await } else { (round % 3) as usize };
        if round % 4 == 3 {
            stop(etcd.members[victim].pid());
            tokio::time::sleep(Duration::from_secs(2)).await;
            signal(etcd.members[victim].pid(), "CONT");
        } else {
            etcd.members[victim].kill();
            tokio::time::sleep(Duration::from_millis(500)).await;
            etcd.restart(victim);
        }
        while let Some(client) = clients.join_next().await {
            unclear += client.expect("client");
        }
        recorder.check().expect("linearizable");
        for member in &etcd.members {
            answers(&store(&EtcdSettings::new([&member.url])).await).await;
        }
    }
    println!("linearizable: 40 histories, {unclear} writes of unclear outcome");
}

/// What one client does; how many of its writes were unclear.
async fn drive(ours: &EtcdStore, recorder: &Recorder, seed: u32) -> usize {
    let mut unclear = 0;
    let mut dice = seed.wrapping_mul(2_654_435_761) | 1;
    for step in 0..25 {
        dice ^= dice << 13;
        dice ^= dice >> 17;
        dice ^= dice << 5;
        let name = key(["a", "b", "c"][(dice % 3) as usize]);
        match (dice >> 8) % 4 {
            0 => drop(recorder.range(ours, "").await),
            1 => drop(recorder.commit(ours, put(name.as_str(), format!("{seed}.{step}"))).await),
            _ => {
                let Ok(found) = recorder.get(ours, &name).await else { continue };
                let comparison = match found {
                    Some(found) => Comparison::Modified(name.clone(), found.modified),
                    None => Comparison::Absent(name.clone()),
                };
                let swap = put(name.as_str(), format!("{seed}.{step}")).when(comparison);
                let outcome = recorder.commit(ours, swap).await;
                unclear += usize::from(matches!(outcome, Err(StoreError::Unconfirmed { .. })));
            }
        }
        tokio::time::sleep(Duration::from_millis(u64::from(dice >> 20) % 100)).await;
    }
    unclear
}
