//! The embedded store's file: who has it, backups, compaction, restarts.
#![cfg(all(feature = "testing", feature = "store-file"))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it did"
)]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use spur_sdk::store::file::{FileOptions, FileStore, Missing, RESTORE_STEP, lock_file};
use spur_sdk::store::{
    Backup, Commit, Entry, Fenced, Key, Leadership, Revision, Snapshot, SoleLeadership, Store, StoreError,
    Transaction,
};
use spur_sdk::testing::{MemoryStore, linearizability};

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn new() -> FileOptions {
    FileOptions::default().missing(Missing::Create)
}

async fn put(store: &impl Store, name: &str, value: &[u8]) -> Revision {
    let commit = store.commit(Transaction::new().put(key(name), value.to_vec())).await.unwrap();
    let Commit::Done(revision) = commit else { panic!("{commit:?}") };
    revision
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[tokio::test]
async fn a_store_that_is_gone_is_not_begun_anew() {
    let folder = Folder::new();
    let path = folder.path("store");
    let error = FileStore::open(&path, FileOptions::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "there is no store at {}: restore a backup, or initialise it if it is meant to be new",
            path.display()
        )
    );
    assert_eq!(std::fs::read_dir(folder.0.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_new_store_is_two_files_that_only_their_owner_can_read() {
    let folder = Folder::new();
    let path = folder.path("store");
    let store = FileStore::open(&path, new()).await.unwrap();
    put(&store, "a", b"1").await;
    let mut names: Vec<_> =
        std::fs::read_dir(folder.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert_eq!(names, [path.clone(), lock_file(&path)]);
    for name in names {
        assert_eq!(name.metadata().unwrap().permissions().mode() & 0o7777, 0o600, "{}", name.display());
    }
}

#[tokio::test]
async fn a_restart_keeps_entries_revisions_and_history() {
    let folder = Folder::new();
    let path = folder.path("store");
    let mut store = FileStore::open(&path, new().history(10)).await.unwrap();
    for index in 0..15_u32 {
        put(&store, &format!("key/{}", index % 3), format!("{index}").as_bytes()).await;
        if index % 4 == 0 {
            let before = store.range("").await.unwrap();
            // Once told, once left to itself.
            if index % 8 == 0 {
                store.close().await;
            }
            drop(store);
            store = FileStore::open(&path, FileOptions::default().history(10)).await.unwrap();
            assert_eq!(store.range("").await.unwrap(), before);
        }
    }
    drop(store);
    let store = FileStore::open(&path, FileOptions::default().history(10)).await.unwrap();
    assert!(matches!(
        store.watch("", Revision(4)).await,
        Err(StoreError::Expired { after: Revision(4), oldest: Revision(5) })
    ));
    let mut watch = store.watch("key/1", Revision(5)).await.unwrap();
    for revision in [8, 11, 14] {
        let set = watch.next().await.unwrap();
        assert_eq!(set.revision, Revision(revision));
        assert_eq!(set.changes[0].value, Some(format!("{}", revision - 1).into_bytes()));
    }
    // From another life of the store.
    assert!(matches!(store.watch("", Revision(16)).await, Err(StoreError::Expired { .. })));
    let mut watch = store.watch("", Revision(15)).await.unwrap();
    drop(store);
    let error = watch.next().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let folder = Folder::new();
    let store = FileStore::open(&folder.path("store"), new()).await.unwrap();
    let waiting = tokio::spawn({
        let mut watch = store.watch("", Revision(0)).await.unwrap();
        async move { watch.next().await }
    });
    let other = store.clone();
    store.close().await;
    let closed = |error: StoreError| {
        assert_eq!(
            spur_sdk::error_chain(&error),
            format!("{} is not available: the store was closed", folder.path("store").display())
        );
    };
    closed(other.get(&key("a")).await.unwrap_err());
    closed(other.commit(Transaction::new()).await.unwrap_err());
    closed(other.compact().await.unwrap_err());
    drop((store, other));
    closed(waiting.await.unwrap().unwrap_err());
}

#[tokio::test]
async fn a_second_opening_in_this_process_is_refused() {
    let folder = Folder::new();
    let path = folder.path("store");
    let store = FileStore::open(&path, new()).await.unwrap();
    for attempt in [path.clone(), folder.0.path().join(".").join("store")] {
        let error = FileStore::open(&attempt, new()).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("is in use by process {}, /", std::process::id())), "{text}");
    }
    // By another name of the file too, past the lock file.
    std::fs::hard_link(&path, folder.path("other")).unwrap();
    let error = FileStore::open(&folder.path("other"), new()).await.unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    let restored = FileStore::restore(Backup::of(&store).await.unwrap(), &path).await;
    assert!(matches!(restored, Err(StoreError::InUse { .. })));
    put(&store, "a", b"1").await;
    drop(store);
    FileStore::open(&path, FileOptions::default()).await.unwrap();
}

/// What names the store's file to the child process.
const CHILD: &str = "SPUR_STORE_LOCK_CHILD";

/// The child process: opens the store, says how that went, and waits until it is killed.
#[tokio::test]
async fn child_that_opens() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    match FileStore::open(Path::new(&path), FileOptions::default()).await {
        Ok(store) => {
            eprintln!("opened");
            put(&store, "child", b"1").await;
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        Err(error) => eprintln!("{error}"),
    }
}

fn child(path: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_opens", "--nocapture"])
        .env(CHILD, path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn a_second_process_is_refused_and_told_who_was_first() {
    let folder = Folder::new();
    let path = folder.path("store");
    let store = FileStore::open(&path, new()).await.unwrap();
    let mut refused = child(&path);
    let mut said = String::new();
    refused.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    refused.wait().unwrap();
    let program = std::env::current_exe().unwrap();
    let expected =
        format!("{} is in use by process {}, {}\n", path.display(), std::process::id(), program.display());
    assert_eq!(said, expected);
    store.close().await;
    // The other way round, although a clone is there still.
    let mut first = child(&path);
    let mut lines = BufReader::new(first.stderr.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "opened");
    let error = FileStore::open(&path, FileOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains(&format!("process {},", first.id())), "{error}");
    first.kill().unwrap();
    first.wait().unwrap();
    FileStore::open(&path, FileOptions::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_gives_back_what_is_free() {
    let folder = Folder::new();
    let store = FileStore::open(&folder.path("store"), new().history(1)).await.unwrap();
    for index in 0..100 {
        put(&store, &format!("filler/{index}"), &vec![b'x'; 50_000]).await;
    }
    for index in 0..99 {
        let _ = store.commit(Transaction::new().delete(key(&format!("filler/{index}")))).await.unwrap();
    }
    let before = store.range("").await.unwrap();
    let reader = tokio::spawn({
        let store = store.clone();
        async move {
            for _ in 0..50 {
                assert_eq!(store.range("").await.unwrap().entries.len(), 1);
            }
        }
    });
    let compaction = store.compact().await.unwrap();
    reader.await.unwrap();
    println!("{compaction:?}");
    assert!(compaction.before > 5_000_000 && compaction.after < 500_000, "{compaction:?}");
    let size = folder.path("store").metadata().unwrap().len();
    assert!(size <= compaction.after, "{size}");
    assert_eq!(store.range("").await.unwrap(), before);
    put(&store, "a", b"1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_is_one_moment_and_restores() {
    let folder = Folder::new();
    let store = FileStore::open(&folder.path("store"), new()).await.unwrap();
    put(&store, "binary", &[0, 159, 146, 150]).await;
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for index in 0..200_u32 {
                let value = format!("{index}").into_bytes();
                let both = Transaction::new().put(key("a"), value.clone()).put(key("b"), value);
                let _ = store.commit(both).await.unwrap();
            }
        }
    });
    let mut backups = Vec::new();
    while !writer.is_finished() {
        let path = folder.path(&format!("backup{}", backups.len()));
        let backup = Backup::of(&store).await.unwrap();
        backup.write(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(Backup::read(&path).unwrap(), backup);
        backups.push(backup);
    }
    writer.await.unwrap();
    assert!(backups.len() > 2);
    for (index, backup) in backups.iter().enumerate().step_by(backups.len() / 3) {
        let path = folder.path(&format!("restored{index}"));
        let revision = FileStore::restore(backup.clone(), &path).await.unwrap();
        assert_eq!(revision.0, backup.snapshot().revision.0 + RESTORE_STEP);
        let again = FileStore::restore(backup.clone(), &path).await.unwrap_err();
        assert!(matches!(again, StoreError::NotEmpty { .. }), "{again}");
        let restored = FileStore::open(&path, FileOptions::default()).await.unwrap();
        let snapshot = restored.range("").await.unwrap();
        assert_eq!((snapshot.revision, &snapshot.entries), (revision, &backup.snapshot().entries));
        let values: Vec<_> = snapshot
            .entries
            .iter()
            .filter(|entry| entry.key.as_str() != "binary")
            .map(|entry| &entry.value)
            .collect();
        assert!(values.iter().all(|value| *value == values[0]), "half a transaction");
        assert!(matches!(
            restored.watch("", backup.snapshot().revision).await,
            Err(StoreError::Expired { .. })
        ));
        assert_eq!(put(&restored, "c", b"1").await, Revision(revision.0 + 1));
    }
}

#[tokio::test]
async fn a_backup_goes_into_a_store_of_another_kind() {
    let from = MemoryStore::new();
    for index in 0..300 {
        put(&from, &format!("key/{index:03}"), format!("{index}").as_bytes()).await;
    }
    put(&from, "large/1", &vec![b'x'; 900_000]).await;
    put(&from, "large/2", &vec![b'y'; 900_000]).await;
    let backup = Backup::of(&from).await.unwrap();
    let folder = Folder::new();
    let to = FileStore::open(&folder.path("store"), new()).await.unwrap();
    let revision = backup.restore_into(&to, "the new store").await.unwrap();
    let snapshot = to.range("").await.unwrap();
    assert_eq!(snapshot.revision, revision);
    let content = |entries: &[Entry]| {
        entries.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect::<Vec<_>>()
    };
    assert_eq!(content(&snapshot.entries), content(&backup.snapshot().entries));
    let error = backup.restore_into(&to, "the new store").await.unwrap_err();
    assert_eq!(error.to_string(), "the new store is not empty: nothing was restored");
}

#[tokio::test]
async fn a_process_that_comes_later_deposes_the_one_before() {
    let folder = Folder::new();
    let path = folder.path("store");
    let store = FileStore::open(&path, new()).await.unwrap();
    let first = SoleLeadership::new(store.clone(), "one", "").campaign().await.unwrap();
    let fence = first.fence().clone();
    drop(store);
    let store = FileStore::open(&path, new()).await.unwrap();
    let second = SoleLeadership::new(store.clone(), "one", "").campaign().await.unwrap();
    let late = Fenced::new(store.clone(), fence).commit(Transaction::new().put(key("a"), Vec::new())).await;
    assert!(matches!(late, Err(StoreError::Deposed)));
    put(&Fenced::new(store, second.fence().clone()), "a", b"1").await;
}

async fn histories(seeds: std::ops::Range<u64>) {
    let mut operations = 0;
    for seed in seeds {
        let folder = Folder::new();
        let store = FileStore::open(&folder.path("store"), new()).await.unwrap();
        let shared = spur_sdk::store::SharedStore::new(store);
        let recorder = linearizability::exercise(&shared, seed, 6, 40).await;
        recorder.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        operations += recorder.len();
    }
    println!("{operations} operations");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_histories_are_linearizable() {
    histories(0..6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "long"]
async fn concurrent_histories_are_linearizable_long() {
    histories(100..600).await;
}

/// The first version's backup, which later ones must read for ever.
const GOLDEN: &str = "tests/golden/store/v1.backup";

fn golden() -> Snapshot {
    let entry = |name: &str, value: &[u8], created: u64, modified: u64| {
        Entry::new(key(name), value.to_vec(), Revision(created), Revision(modified))
    };
    let entries = vec![
        entry("accounting/account/physics", b"account/1\n{\"name\":\"physics\"}", 3, 17),
        entry("bytes", &[0, 1, 127, 128, 254, 255], 5, 5),
        entry("cluster", b"", 1, 1),
        entry("quotes \" and \\", b"two\nlines\t\"quoted\" \\ \x7f", 6, 6),
        entry("unicode/\u{e4}\u{20ac}\u{1f680}", "\u{e4}\u{20ac}\u{1f680}".as_bytes(), 7, 40),
    ];
    Snapshot::new(Revision(u64::MAX >> 11), entries)
}

#[test]
fn a_backup_of_the_first_version_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    assert_eq!(Backup::read(&path).unwrap().into_snapshot(), golden());
}

#[test]
fn a_backup_is_written_as_the_first_version_did() {
    let folder = Folder::new();
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN)).unwrap();
    Backup::from(golden()).write(&folder.path("again")).unwrap();
    assert_eq!(std::fs::read_to_string(folder.path("again")).unwrap(), text);
}

/// The first version's file, with what is in [`GOLDEN`] and three transactions more.
const GOLDEN_FILE: &str = "tests/golden/store/v1.store";

async fn golden_changes(store: &FileStore) {
    let _ = store.commit(Transaction::new().delete(key("bytes")).put(key("z"), b"1".to_vec())).await.unwrap();
    let _ = store.commit(Transaction::new().put(key("z"), vec![0xff; 100])).await.unwrap();
    let _ = store.commit(Transaction::new().delete(key("cluster"))).await.unwrap();
}

#[tokio::test]
async fn a_file_of_the_first_version_is_read() {
    let folder = Folder::new();
    let (path, fresh) = (folder.path("store"), folder.path("fresh"));
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN_FILE), &path).unwrap();
    let store = FileStore::open(&path, FileOptions::default()).await.unwrap();
    let begin = FileStore::restore(golden().into(), &fresh).await.unwrap();
    let expected = FileStore::open(&fresh, FileOptions::default()).await.unwrap();
    golden_changes(&expected).await;
    assert_eq!(store.range("").await.unwrap(), expected.range("").await.unwrap());
    let mut watches = (store.watch("", begin).await.unwrap(), expected.watch("", begin).await.unwrap());
    for _ in 0..3 {
        assert_eq!(watches.0.next().await.unwrap(), watches.1.next().await.unwrap());
    }
    put(&store, "a", b"1").await;
}

#[test]
fn a_backup_that_was_changed_is_refused() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN)).unwrap();
    let read = |text: &str| Backup::from_text(text, "it");
    for place in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[place] ^= 1;
        if let Ok(text) = String::from_utf8(bytes) {
            assert!(
                matches!(read(&text), Err(StoreError::Damaged { .. } | StoreError::Newer { .. })),
                "byte {place}"
            );
        }
        if let Some(cut) = text.get(..place) {
            assert!(matches!(read(cut), Err(StoreError::Damaged { .. })), "cut at {place}");
        }
    }
    let lines: Vec<&str> = text.lines().collect();
    for line in 0..lines.len() {
        let mut fewer = lines.clone();
        fewer.remove(line);
        assert!(matches!(read(&(fewer.join("\n") + "\n")), Err(StoreError::Damaged { .. })), "line {line}");
    }
    let newer = text.replacen("\"spur_store_backup\":1", "\"spur_store_backup\":2", 1);
    assert_eq!(
        read(&newer).unwrap_err().to_string(),
        "it is of format 2, this version reads up to 1: use the version that wrote it, or a later one"
    );
}
