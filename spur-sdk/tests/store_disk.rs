//! Disks that are full, read-only or broken for a while: writes are refused and say so, reads go on, and so do writes
//! afterwards, all without a restart.
#![cfg(all(feature = "testing", feature = "store-file"))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

mod store_disks;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use spur_sdk::store::file::{Disk, FileOptions, FileStore, Missing};
use spur_sdk::store::{Commit, Comparison, Key, Revision, Snapshot, Store, StoreError, Transaction};
use store_disks::Image;
use store_disks::faulty::Faulty;

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn options() -> FileOptions {
    FileOptions::default().missing(Missing::Create).history(5)
}

async fn open(disk: Arc<dyn Disk>) -> Result<FileStore, StoreError> {
    FileStore::on_disk(disk, options()).await
}

/// Sets two keys to the number, and lets the file grow.
fn numbered(number: u64) -> Transaction {
    let size = if number.is_multiple_of(3) { 20_000 } else { 10 };
    Transaction::new()
        .put(key("a"), format!("{number}").into_bytes())
        .put(key("b"), format!("{number}").into_bytes())
        .put(key(&format!("filler/{}", number % 4)), vec![b'x'; size])
}

/// The number that was set last.
async fn number(store: &FileStore) -> u64 {
    let read = async |name: &str| match store.get(&key(name)).await.unwrap() {
        Some(entry) => String::from_utf8(entry.value).unwrap().parse().unwrap(),
        None => 0,
    };
    let (one, other) = (read("a").await, read("b").await);
    assert_eq!(one, other, "half a transaction");
    one
}

/// A store with some content.
async fn image() -> Vec<u8> {
    let disk = Arc::new(Image::default());
    let store = open(Arc::clone(&disk) as Arc<dyn Disk>).await.unwrap();
    for index in 1..=4 {
        let _ = store.commit(numbered(index)).await.unwrap();
    }
    store.close().await;
    disk.bytes().clone()
}

/// What a run with a fault saw.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    refused: u64,
    unconfirmed: u64,
}

/// Opens, commits, compacts and closes, with a fault at one point; how many operations of the disk there were, and what
/// was seen.
async fn run(start: &[u8], fails_at: u64, kind: ErrorKind, tears: bool) -> (u64, Seen) {
    let what = format!("operation {fails_at} fails with {kind}, tears: {tears}");
    let disk = Arc::new(Faulty::new(start.to_vec()));
    let mut seen = Seen::default();
    disk.fail_after(fails_at, kind, tears);
    // Opening only reads where the disk takes no writes.
    let store = open(Arc::clone(&disk) as Arc<dyn Disk>).await.unwrap_or_else(|error| {
        panic!("{what}: {}", spur_sdk::error_chain(&error));
    });
    let mut newest = 4;
    let mut revision = store.range("").await.unwrap().revision;
    for next in 5..=10 {
        if next == 8 {
            match store.compact().await {
                Ok(_) => {}
                Err(StoreError::NotWritable { .. } | StoreError::Unconfirmed { .. }) => {
                    assert_eq!(number(&store).await, newest, "{what}");
                    disk.heal();
                }
                Err(error) => panic!("{what}: {}", spur_sdk::error_chain(&error)),
            }
        }
        match store.commit(numbered(next)).await {
            Ok(Commit::Done(at)) => {
                assert_eq!(at, Revision(revision.0 + 1), "{what}");
                (newest, revision) = (next, at);
            }
            Ok(conflict) => panic!("{what}: {conflict:?}"),
            Err(error) => {
                refused(&store, &disk, &what, newest, next, revision, &error, &mut seen).await;
                // A second one, while it goes on failing, is refused for certain.
                let again = store.commit(numbered(next)).await.unwrap_err();
                assert!(matches!(again, StoreError::NotWritable { .. }), "{what}: {again}");
                let read_only = Transaction::new().when(Comparison::Modified(key("a"), revision));
                assert_eq!(store.commit(read_only).await.unwrap(), Commit::Done(revision), "{what}");
                let conflict = Transaction::new().when(Comparison::Absent(key("a"))).delete(key("a"));
                assert_eq!(store.commit(conflict).await.unwrap(), Commit::Conflict(vec![key("a")]), "{what}");
                disk.heal();
                let healed = store.commit(numbered(next)).await.unwrap_or_else(|error| {
                    panic!("{what}: after healing: {}", spur_sdk::error_chain(&error));
                });
                assert_eq!(healed, Commit::Done(Revision(revision.0 + 1)), "{what}");
                (newest, revision) = (next, Revision(revision.0 + 1));
            }
        }
        assert_eq!(number(&store).await, newest, "{what}");
    }
    store.close().await;
    disk.heal();
    let count = disk.count();
    let bytes = disk.image.bytes().clone();
    let store = open(Arc::new(Image::new(bytes))).await.unwrap();
    assert_eq!((number(&store).await, store.range("").await.unwrap().revision), (10, revision), "{what}");
    (count, seen)
}

/// Looks at a store that has refused a write.
#[expect(clippy::too_many_arguments, reason = "all that a run knows")]
async fn refused(
    store: &FileStore,
    disk: &Faulty,
    what: &str,
    newest: u64,
    next: u64,
    revision: Revision,
    error: &StoreError,
    seen: &mut Seen,
) {
    assert_eq!(number(store).await, newest, "{what}: reads go on");
    assert_eq!(store.range("").await.unwrap().revision, revision, "{what}");
    // What a loss of power would leave now.
    let bytes = disk.image.bytes().clone();
    let left = open(Arc::new(Image::new(bytes)))
        .await
        .unwrap_or_else(|error| panic!("{what}: a crash: {}", spur_sdk::error_chain(&error)));
    let left = number(&left).await;
    match error {
        StoreError::NotWritable { .. } => {
            seen.refused += 1;
            assert_eq!(left, newest, "{what}: what was refused is there after a crash");
        }
        StoreError::Unconfirmed { .. } => {
            seen.unconfirmed += 1;
            assert!(left == newest || left == next, "{what}: {left} after a crash");
        }
        error => panic!("{what}: {}", spur_sdk::error_chain(error)),
    }
}

#[tokio::test]
async fn a_disk_that_fails_at_any_operation_is_recovered_from() {
    let start = image().await;
    let (operations, seen) = run(&start, u64::MAX / 2, ErrorKind::StorageFull, false).await;
    assert_eq!(seen, Seen::default());
    assert!(operations > 30, "{operations}");
    let mut all = Seen::default();
    for kind in [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem, ErrorKind::Other] {
        for tears in [false, true] {
            for fails_at in 0..operations {
                let (_, seen) = run(&start, fails_at, kind, tears).await;
                all.refused += seen.refused;
                all.unconfirmed += seen.unconfirmed;
            }
        }
    }
    println!("{operations} operations, 6 kinds of fault: {all:?}");
    assert!(all.refused > 50 && all.unconfirmed > 20, "{all:?}");
}

#[tokio::test]
async fn a_disk_that_does_not_read_is_recovered_from() {
    let disk = Arc::new(Faulty::new(image().await));
    let store = open(Arc::clone(&disk) as Arc<dyn Disk>).await.unwrap();
    disk.fail_reads();
    // What is in memory may be read still; nothing else is.
    let _ = store.commit(numbered(5)).await;
    for _ in 0..3 {
        match store.range("").await {
            Ok(snapshot) => assert!(snapshot.entries.len() >= 5),
            Err(StoreError::Unavailable { .. }) => {}
            Err(error) => panic!("{}", spur_sdk::error_chain(&error)),
        }
    }
    disk.heal();
    // It is not tried at once.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    let before = number(&store).await;
    assert!(before == 4 || before == 5, "{before}");
    let _ = store.commit(numbered(6)).await.unwrap();
    assert_eq!(number(&store).await, 6);
}

/// Says that a test did not run, to whoever counts.
fn skip(name: &str, reason: &str) {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = std::io::stderr().write_all(format!("SKIPPED {name}: {reason}\n").as_bytes());
    if let Some(path) = std::env::var_os("SPUR_TEST_SKIPS").filter(|path| !path.is_empty()) {
        let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
        file.write_all(format!("{name}: {reason}\n").as_bytes()).unwrap();
    }
}

/// A small file system of its own.
struct Small {
    folder: tempfile::TempDir,
}

impl Small {
    /// `Err` says why there can be none.
    fn mount(kibibytes: u32) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let small = Self { folder };
        small.call(&["-t", "tmpfs", "-o", &format!("size={kibibytes}k"), "spur-store-test"])?;
        Ok(small)
    }

    fn call(&self, arguments: &[&str]) -> Result<(), String> {
        let called =
            Command::new("mount").args(arguments).arg(self.folder.path()).stdin(Stdio::null()).output();
        let called = called.map_err(|error| format!("mount: {error}"))?;
        let said = String::from_utf8_lossy(&called.stderr).into_owned();
        if called.status.success() { Ok(()) } else { Err(format!("mount: {said}")) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).stderr(Stdio::null()).status();
    }
}

async fn all(store: &FileStore) -> Snapshot {
    store.range("").await.unwrap()
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_is_recovered_from() {
    let small = match Small::mount(600) {
        Ok(small) => small,
        Err(reason) => return skip("a_full_disk_refuses_writes_and_is_recovered_from", &reason),
    };
    let path = small.path("store");
    let store = FileStore::open(&path, options()).await.unwrap();
    let _ = store.commit(numbered(1)).await.unwrap();
    std::fs::write(small.path("ballast"), vec![1; 200 << 10]).unwrap();
    let mut written = 0;
    let error = loop {
        let grow = Transaction::new().put(key(&format!("large/{written}")), vec![b'x'; 30_000]);
        match store.commit(grow).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100, "the disk does not get full");
    };
    assert!(matches!(error, StoreError::NotWritable { .. }), "{error}");
    assert!(spur_sdk::error_chain(&error).contains("No space left"), "{}", spur_sdk::error_chain(&error));
    let full = all(&store).await;
    assert_eq!(full.entries.len(), written + 3);
    assert!(matches!(store.commit(numbered(2)).await, Err(StoreError::NotWritable { .. })));
    assert_eq!(number(&store).await, 1);
    std::fs::remove_file(small.path("ballast")).unwrap();
    let _ = store.commit(numbered(3)).await.unwrap();
    assert_eq!(number(&store).await, 3);
    store.close().await;
    let store = FileStore::open(&path, options().missing(Missing::Refuse)).await.unwrap();
    assert_eq!(number(&store).await, 3);
    assert_eq!(all(&store).await.revision.0, full.revision.0 + 1);
}

#[tokio::test]
async fn a_read_only_disk_is_read_and_written_once_it_can_be() {
    let name = "a_read_only_disk_is_read_and_written_once_it_can_be";
    let small = match Small::mount(2000) {
        Ok(small) => small,
        Err(reason) => return skip(name, &reason),
    };
    let path = small.path("store");
    let store = FileStore::open(&path, options()).await.unwrap();
    let _ = store.commit(numbered(1)).await.unwrap();
    store.close().await;
    drop(store);
    if let Err(reason) = small.call(&["-o", "remount,ro"]) {
        return skip(name, &reason);
    }
    let store = FileStore::open(&path, options()).await.unwrap();
    assert_eq!(number(&store).await, 1);
    let error = store.commit(numbered(2)).await.unwrap_err();
    assert!(matches!(error, StoreError::NotWritable { .. }), "{error}");
    assert!(spur_sdk::error_chain(&error).contains("Read-only"), "{}", spur_sdk::error_chain(&error));
    assert_eq!(number(&store).await, 1);
    let second = FileStore::open(&path, options()).await.unwrap_err();
    assert!(matches!(second, StoreError::InUse { .. }), "{second}");
    small.call(&["-o", "remount,rw"]).unwrap();
    let _ = store.commit(numbered(2)).await.unwrap();
    assert_eq!(number(&store).await, 2);
    let second = FileStore::open(&path, options()).await.unwrap_err();
    assert!(matches!(second, StoreError::InUse { .. }), "{second}");
    store.close().await;
    let missing = FileStore::open(Path::new("/proc/no/such/folder/store"), options()).await.unwrap_err();
    assert!(matches!(missing, StoreError::Unavailable { .. }), "{missing}");
}
