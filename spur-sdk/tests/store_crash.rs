//! Power loss at every point, and `kill -9`: nothing that was confirmed is lost, and no transaction is there in part.
#![cfg(all(feature = "testing", feature = "store-file"))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and says what it did"
)]

mod store_disks;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::Bound;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spur_sdk::store::file::{Disk, FileOptions, FileStore, Missing};
use spur_sdk::store::{
    Change, Commit, Comparison, Key, Revision, Snapshot, Store, StoreError, Transaction, Write as Put,
};
use store_disks::crash::{Event, Platter, Recorded, SURVIVORS};
use store_disks::{Dice, Image};

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn options() -> FileOptions {
    // Little, so that it is cut often.
    FileOptions::default().missing(Missing::Create).history(6).deadline(Duration::from_mins(1))
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

type Values = BTreeMap<Key, Vec<u8>>;

/// What the store holds at each revision.
#[derive(Default)]
struct Model {
    /// The last is what was confirmed; what may be there as long as that was not, comes before.
    states: BTreeMap<Revision, Vec<Values>>,
    changes: BTreeMap<Revision, Vec<Change>>,
}

/// Carries out a transaction on values: what changes, sorted by key.
fn carry_out(values: &mut Values, transaction: &Transaction) -> Vec<Change> {
    let mut changes = Vec::new();
    for write in transaction.writes() {
        match write {
            Put::Put(key, value) => {
                values.insert(key.clone(), value.clone());
                changes.push(Change { key: key.clone(), value: Some(value.clone()) });
            }
            Put::Delete(key) => {
                if values.remove(key).is_some() {
                    changes.push(Change { key: key.clone(), value: None });
                }
            }
            other => panic!("{other:?}"),
        }
    }
    changes.sort_by(|one, other| one.key.cmp(&other.key));
    changes
}

impl Model {
    fn new(mut commits: Vec<(Revision, Transaction)>) -> Self {
        commits.sort_by_key(|(revision, _)| *revision);
        let mut values = Values::new();
        let mut model = Self::default();
        model.states.insert(Revision(0), vec![Values::new()]);
        for (revision, transaction) in commits {
            let changes = carry_out(&mut values, &transaction);
            if !changes.is_empty() {
                model.states.insert(revision, vec![values.clone()]);
                model.changes.insert(revision, changes);
            }
        }
        model
    }

    /// Whether a snapshot is what the store held at its revision.
    fn check(&self, snapshot: &Snapshot, confirmed: u64) -> Result<(), String> {
        let Some(states) = self.states.get(&snapshot.revision) else {
            return Err(format!("revision {} never was", snapshot.revision));
        };
        let found: Values =
            snapshot.entries.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect();
        let fits = if snapshot.revision.0 <= confirmed {
            states.last() == Some(&found)
        } else {
            states.contains(&found)
        };
        ensure(fits, || format!("another content at revision {}", snapshot.revision))
    }
}

fn transaction(dice: &mut Dice, number: u64) -> Transaction {
    let mut transaction = Transaction::new();
    for index in 0..12 {
        let key = key(&format!("key/{index:02}"));
        transaction = match dice.roll(12) {
            0 => transaction.put(key, vec![b'a' + (number % 26) as u8; dice.roll(9000) as usize]),
            1 | 2 => transaction.put(key, format!("{number}").into_bytes()),
            // Now and then nearly everything goes, so that the file shrinks.
            3 => transaction.delete(key),
            _ if number % 16 == 15 => transaction.delete(key),
            _ => transaction,
        };
    }
    // The last thing that a transaction in part would lack.
    transaction.put(key("number"), format!("{number}").into_bytes())
}

/// Writes, and gives what was written.
async fn load(disk: &Arc<Recorded>, seed: u64, transactions: u64) -> Model {
    let mut dice = Dice::new(seed);
    let store = FileStore::on_disk(Arc::clone(disk) as Arc<dyn Disk>, options()).await.unwrap();
    let mut commits = Vec::new();
    let mut number = 0;
    while number < transactions {
        let mut side_by_side = Vec::new();
        for _ in 0..=dice.roll(4) {
            let transaction = transaction(&mut dice, number);
            number += 1;
            let (store, disk) = (store.clone(), Arc::clone(disk));
            side_by_side.push(tokio::spawn(async move {
                let commit = store.commit(transaction.clone()).await.unwrap();
                let Commit::Done(revision) = commit else { panic!("{commit:?}") };
                disk.note(Event::Confirmed(revision.0));
                (revision, transaction)
            }));
        }
        for task in side_by_side {
            commits.push(task.await.unwrap());
        }
        if dice.roll(12) == 0 {
            store.compact().await.unwrap();
        }
        if dice.roll(20) == 0 {
            let start = store.range("").await.unwrap().revision;
            let conflict = Transaction::new().when(Comparison::Absent(key("number"))).delete(key("number"));
            let _ = store.commit(conflict).await.unwrap();
            assert_eq!(store.range("").await.unwrap().revision, start);
        }
    }
    store.close().await;
    Model::new(commits)
}

/// Opens what a crash has left, and looks at it: gives what opening did to the disk.
async fn recover(image: Vec<u8>, model: &Model, confirmed: u64, goes_on: bool) -> Result<Vec<Event>, String> {
    let failed = |error: spur_sdk::store::StoreError| spur_sdk::error_chain(&error);
    let disk = Arc::new(Recorded::new(image));
    let opened = FileStore::on_disk(Arc::clone(&disk) as Arc<dyn Disk>, options().missing(Missing::Refuse));
    let store = opened.await.map_err(failed)?;
    let snapshot = store.range("").await.map_err(failed)?;
    ensure(snapshot.revision.0 >= confirmed, || format!("{} of {confirmed} confirmed", snapshot.revision))?;
    model.check(&snapshot, confirmed)?;
    // The history is that of what survived, where there is one.
    let uncertain = model.states.get(&snapshot.revision).is_some_and(|states| states.len() > 1);
    let after = if uncertain { snapshot.revision } else { Revision(snapshot.revision.0.saturating_sub(3)) };
    let mut watch = store.watch("", after).await.map_err(failed)?;
    for (revision, changes) in
        model.changes.range((Bound::Excluded(after), Bound::Included(snapshot.revision)))
    {
        let set = watch.next().await.map_err(failed)?;
        ensure(set.revision == *revision && set.changes == *changes, || {
            format!("other changes at revision {revision}")
        })?;
    }
    let opening = disk.events.lock().unwrap().clone();
    if goes_on {
        let next = store.commit(Transaction::new().put(key("on"), b"1".to_vec())).await.map_err(failed)?;
        store.close().await;
        let bytes = disk.image.bytes().clone();
        let store = FileStore::on_disk(Arc::new(Image::new(bytes)), options()).await.map_err(failed)?;
        let again = store.range("").await.map_err(failed)?;
        ensure(next == Commit::Done(Revision(snapshot.revision.0 + 1)), || format!("{next:?}"))?;
        ensure(next == Commit::Done(again.revision), || format!("{} after {next:?}", again.revision))?;
        ensure(again.entries.len() == snapshot.entries.len() + 1, || "it does not go on".to_owned())?;
    }
    Ok(opening)
}

/// Writes one transaction after another to a disk that breaks again and again.
async fn load_broken(disk: &Arc<Recorded>, seed: u64, transactions: u64) -> Model {
    let mut dice = Dice::new(seed);
    let store = FileStore::on_disk(Arc::clone(disk) as Arc<dyn Disk>, options()).await.unwrap();
    let mut model = Model::new(Vec::new());
    let mut values = Values::new();
    let mut revision = Revision(0);
    for number in 0..transactions {
        if dice.roll(3) == 0 {
            disk.fail_after(Some(dice.roll(9)));
        }
        for attempt in 0.. {
            assert!(attempt < 50, "load {seed}: it does not heal");
            let transaction = transaction(&mut dice, number * 100 + attempt);
            let next = Revision(revision.0 + 1);
            let mut after = values.clone();
            let changes = carry_out(&mut after, &transaction);
            match store.commit(transaction).await {
                Ok(commit) => {
                    assert_eq!(commit, Commit::Done(next));
                    disk.note(Event::Confirmed(next.0));
                    model.states.entry(next).or_default().push(after.clone());
                    model.changes.insert(next, changes);
                    (values, revision) = (after, next);
                    break;
                }
                Err(StoreError::Unconfirmed { .. }) => {
                    model.states.entry(next).or_default().push(after);
                }
                Err(StoreError::NotWritable { .. }) => {}
                Err(error) => panic!("{}", spur_sdk::error_chain(&error)),
            }
            assert_eq!(store.range("").await.unwrap().revision, revision);
            // While it is healed, it may break again.
            disk.fail_after((dice.roll(2) == 0).then(|| dice.roll(12)));
        }
    }
    disk.fail_after(None);
    store.close().await;
    model
}

/// How a disk behaves until there is no power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Good,
    /// Operations fail now and then.
    Breaks,
    /// It says that it has synced and has not.
    Lies,
}

/// Crashes at every event, in several ways: how many crashes there were, and what was wrong after them.
async fn crash_everywhere(seed: u64, transactions: u64, disk_kind: Kind) -> (u64, Vec<String>) {
    let first = Arc::new(Recorded::default());
    let store = FileStore::on_disk(Arc::clone(&first) as Arc<dyn Disk>, options()).await.unwrap();
    store.close().await;
    let disk = Arc::new(Recorded::new(first.image.bytes().clone()));
    let mut platter = Platter::new(first.image.bytes().clone());
    let model = match disk_kind {
        Kind::Breaks => load_broken(&disk, seed, transactions).await,
        Kind::Good | Kind::Lies => load(&disk, seed, transactions).await,
    };
    let events = disk.events.lock().unwrap().clone();
    let mut dice = Dice::new(seed + 1000);
    let (mut confirmed, mut crashes, mut wrong) = (0, 0, Vec::new());
    for (index, event) in events.iter().enumerate() {
        match event {
            Event::Confirmed(revision) => confirmed = confirmed.max(*revision),
            Event::Sync if disk_kind == Kind::Lies => {}
            event => platter.take(event),
        }
        for survivors in SURVIVORS {
            let image = platter.after_crash(survivors, &mut dice);
            let goes_on = dice.roll(8) == 0;
            let what = format!("load {seed}, event {index}, {survivors} of 10 sectors survive");
            crashes += 1;
            let opening = match recover(image.clone(), &model, confirmed, goes_on).await {
                Ok(opening) => opening,
                Err(error) => {
                    wrong.push(format!("{what}: {error}"));
                    continue;
                }
            };
            // A second crash while the first is recovered from.
            if dice.roll(6) == 0 && !opening.is_empty() {
                let point = usize::try_from(dice.roll(opening.len() as u64)).unwrap();
                let mut platter = Platter::new(image);
                opening[..=point].iter().for_each(|event| platter.take(event));
                let image = platter.after_crash(SURVIVORS[dice.roll(5) as usize], &mut dice);
                crashes += 1;
                if let Err(error) = recover(image, &model, confirmed, false).await {
                    wrong.push(format!("{what}, again at {point}: {error}"));
                }
            }
        }
    }
    (crashes, wrong)
}

/// Runs loads until there were so many crashes.
fn crashes(at_least: u64, first_seed: u64, disk_kind: Kind) {
    let begin = Instant::now();
    let (next, crashes) = (AtomicU64::new(first_seed), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                while crashes.load(Ordering::SeqCst) < at_least {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    let (count, wrong) = runtime.block_on(crash_everywhere(seed, 40, disk_kind));
                    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
                    crashes.fetch_add(count, Ordering::SeqCst);
                }
            });
        }
    });
    println!("{} crashes in {:?}", crashes.load(Ordering::SeqCst), begin.elapsed());
}

#[test]
fn a_loss_of_power_at_any_point_loses_nothing_that_was_confirmed() {
    crashes(10_000, 1, Kind::Good);
}

#[test]
#[ignore = "long"]
fn a_loss_of_power_at_any_point_loses_nothing_that_was_confirmed_long() {
    crashes(100_000, 10_000, Kind::Good);
    crashes(50_000, 20_000, Kind::Breaks);
}

#[test]
fn a_loss_of_power_while_a_disk_breaks_and_heals_loses_nothing_that_was_confirmed() {
    crashes(4_000, 1, Kind::Breaks);
}

/// What the tests above would not find, they would not find here.
#[tokio::test]
async fn a_disk_that_lies_about_syncs_is_found_out() {
    let (crashes, wrong) = crash_everywhere(3, 20, Kind::Lies).await;
    assert!(wrong.len() as u64 > crashes / 10, "{} of {crashes}", wrong.len());
    assert!(wrong.iter().any(|wrong| wrong.contains("confirmed")), "{wrong:?}");
}

/// What names the store's file to the child process.
const CHILD: &str = "SPUR_STORE_CRASH_CHILD";

/// Clients of the child, each with keys of its own.
const CLIENTS: u64 = 4;

/// The child process: writes until it is killed, and says what was confirmed.
#[test]
fn child_that_writes() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = FileStore::open(Path::new(&path), options()).await.unwrap();
        let clients = (0..CLIENTS).map(|client| tokio::spawn(write_for_ever(store.clone(), client)));
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
    });
}

async fn write_for_ever(store: FileStore, client: u64) {
    let names = [format!("c/{client}/a"), format!("c/{client}/b")];
    let first = store.get(&key(&names[0])).await.unwrap();
    let first = first.map_or(0, |entry| String::from_utf8_lossy(&entry.value).trim().parse::<u64>().unwrap());
    for number in first + 1.. {
        // Of many sizes.
        let value = format!("{number}{}", " ".repeat((number * 37 % 3000) as usize)).into_bytes();
        let transaction = Transaction::new().put(key(&names[0]), value.clone()).put(key(&names[1]), value);
        let Commit::Done(revision) = store.commit(transaction).await.unwrap() else { panic!("a conflict") };
        // At once and whole; past the capture of the test harness.
        let _ = std::io::stderr().write_all(format!("confirmed {client} {number} {revision}\n").as_bytes());
    }
}

/// Kills a child under load so many times.
fn kills(count: u64) {
    let begin = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut confirmed, mut newest) = (vec![0; CLIENTS as usize], 0);
    let mut dice = Dice::new(count);
    for round in 0..count {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_writes", "--nocapture"])
            .env(CHILD, &path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut text = Vec::new();
        // It works now.
        text.extend(lines.next());
        std::thread::sleep(Duration::from_micros(dice.roll(30_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        text.extend(lines);
        let mut said = 0;
        for line in text {
            let line = line.unwrap();
            let Some(rest) = line.strip_prefix("confirmed ") else { panic!("round {round}: {line}") };
            // The last line may be cut.
            let numbers: Vec<u64> = rest.split(' ').filter_map(|number| number.parse().ok()).collect();
            let [client, number, revision] = numbers[..] else { continue };
            let client = usize::try_from(client).unwrap();
            confirmed[client] = number.max(confirmed[client]);
            newest = revision.max(newest);
            said += 1;
        }
        assert!(said > 0, "round {round}: the child confirmed nothing");
        runtime.block_on(async {
            let store = FileStore::open(&path, options().missing(Missing::Refuse)).await.unwrap();
            let snapshot = store.range("").await.unwrap();
            assert!(snapshot.revision.0 >= newest, "round {round}");
            for (client, confirmed) in confirmed.iter_mut().enumerate() {
                let read = async |name: &str| {
                    let entry = store.get(&key(&format!("c/{client}/{name}"))).await.unwrap();
                    entry.map_or(0, |entry| String::from_utf8_lossy(&entry.value).trim().parse().unwrap())
                };
                let (one, other) = (read("a").await, read("b").await);
                assert_eq!(one, other, "round {round}: half a transaction of client {client}");
                assert!(one >= *confirmed, "round {round}: client {client}: {one} of {confirmed} confirmed");
                *confirmed = one;
            }
            newest = snapshot.revision.0;
        });
    }
    println!("{count} kills in {:?}, {newest} revisions", begin.elapsed());
}

#[test]
fn a_process_that_is_killed_loses_nothing_that_was_confirmed() {
    kills(200);
}
