//! A file that is not as it was written is reported, never read as something else, and never begun anew.
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

use std::sync::Arc;

use spur_sdk::store::file::{Disk, FileOptions, FileStore, Missing};
use spur_sdk::store::{Key, Revision, Snapshot, Store, StoreError, Transaction};
use store_disks::{Dice, Image};

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn options() -> FileOptions {
    FileOptions::default().missing(Missing::Create).history(4)
}

/// What a store with some content holds, what its disk has once it is closed, and what it has before that.
async fn written() -> (Snapshot, Vec<u8>, Vec<u8>) {
    let disk = Arc::new(Image::default());
    let store = FileStore::on_disk(Arc::clone(&disk) as Arc<dyn Disk>, options()).await.unwrap();
    for index in 0..60_u32 {
        let value = format!("value {index}").repeat(20).into_bytes();
        let _ = store.commit(Transaction::new().put(key(&format!("key/{index}")), value)).await.unwrap();
    }
    let _ = store.commit(Transaction::new().put(key("large"), vec![7; 10_000])).await.unwrap();
    let snapshot = store.range("").await.unwrap();
    let open = disk.bytes().clone();
    store.close().await;
    (snapshot, disk.bytes().clone(), open)
}

#[derive(Debug, Default)]
struct Counts {
    harmless: u64,
    reported: u64,
}

/// Opens what is damaged, and looks whether it is right or reported.
async fn judge(bytes: Vec<u8>, right: &Snapshot, what: &str, counts: &mut Counts) {
    let look = async {
        let store = FileStore::on_disk(Arc::new(Image::new(bytes)), options()).await?;
        let snapshot = store.range("").await?;
        assert!(snapshot == *right, "{what}: another content, at revision {}", snapshot.revision);
        let mut watch = store.watch("", Revision(right.revision.0 - 2)).await?;
        assert_eq!(watch.next().await?.revision, Revision(right.revision.0 - 1), "{what}");
        let set = watch.next().await?;
        assert_eq!((set.revision, set.changes[0].key.as_str()), (right.revision, "large"), "{what}");
        Ok(())
    };
    match look.await {
        Ok(()) => counts.harmless += 1,
        Err(StoreError::Damaged { .. } | StoreError::Newer { .. }) => counts.reported += 1,
        Err(error) => panic!("{what}: {}", spur_sdk::error_chain(&error)),
    }
}

/// Which bytes are tried: all of the parts that say what the file is and which commit is the last, and some of the rest.
fn places(size: usize, stride: usize) -> impl Iterator<Item = usize> {
    (0..size).filter(move |place| {
        let described = *place < 1600 || (4096..4096 + 400).contains(place);
        described || place % stride == 3
    })
}

async fn flips(stride: usize) {
    let (right, closed, open) = written().await;
    for (state, bytes) in [("closed", closed), ("open", open)] {
        let mut counts = Counts::default();
        let mut dice = Dice::new(5);
        for place in places(bytes.len(), stride) {
            // All bits where few bytes decide much.
            let any = dice.roll(8);
            let bits = if (4096..4112).contains(&place) { 0..8 } else { any..any + 1 };
            for bit in bits {
                let mut damaged = bytes.clone();
                damaged[place] ^= 1 << bit;
                judge(damaged, &right, &format!("{state}, bit {bit} of byte {place}"), &mut counts).await;
            }
        }
        println!("{state}, {} bytes: {counts:?}", bytes.len());
        assert!(counts.reported > 300 && counts.harmless > 300, "{counts:?}");
    }
}

#[tokio::test]
async fn a_flipped_bit_is_harmless_or_reported() {
    flips(41).await;
}

#[tokio::test]
#[ignore = "long"]
async fn a_flipped_bit_is_harmless_or_reported_long() {
    flips(4).await;
}

#[tokio::test]
async fn whatever_else_happens_to_a_file_is_reported() {
    let (right, closed, open) = written().await;
    let mut dice = Dice::new(6);
    for (state, bytes) in [("closed", closed), ("open", open)] {
        let mut counts = Counts::default();
        for block in 0..bytes.len() / 512 {
            let start = block * 512;
            let truncated = bytes[..start].to_vec();
            // An empty one is a file of its own, below.
            if start > 0 {
                judge(truncated, &right, &format!("{state}, cut to {start} bytes"), &mut counts).await;
            }
            let mut zeroed = bytes.clone();
            zeroed[start..start + 512].fill(0);
            judge(zeroed, &right, &format!("{state}, zeros at {start}"), &mut counts).await;
            let mut noise = bytes.clone();
            noise[start..start + 512].fill_with(|| dice.roll(256) as u8);
            judge(noise, &right, &format!("{state}, noise at {start}"), &mut counts).await;
            // A write that went to the wrong place.
            let other = dice.roll(bytes.len() as u64 / 512) as usize * 512;
            let mut astray = bytes.clone();
            astray.copy_within(other..other + 512, start);
            judge(astray, &right, &format!("{state}, bytes of {other} at {start}"), &mut counts).await;
        }
        for more in [1, 512, 4096, 8192, 1 << 20] {
            let mut longer = bytes.clone();
            longer.resize(bytes.len() + more, 0);
            judge(longer, &right, &format!("{state}, {more} bytes more"), &mut counts).await;
        }
        println!("{state}: {counts:?}");
    }
}

#[tokio::test]
async fn a_disk_that_changes_under_a_running_store_is_not_believed() {
    let (right, closed, _) = written().await;
    let mut reported = 0;
    for start in (4096..closed.len()).step_by(512) {
        let disk = Arc::new(Image::new(closed.clone()));
        let store = FileStore::on_disk(Arc::clone(&disk) as Arc<dyn Disk>, options()).await.unwrap();
        let changed: Vec<u8> = disk.bytes()[start..start + 512].iter().map(|byte| !byte).collect();
        disk.bytes()[start..start + 512].copy_from_slice(&changed);
        // Reads from memory as long as it can.
        match store.range("").await {
            Ok(snapshot) => assert!(snapshot == right, "{start}"),
            Err(StoreError::Damaged { .. }) => reported += 1,
            Err(error) => panic!("{start}: {}", spur_sdk::error_chain(&error)),
        }
        match store.commit(Transaction::new().put(key("key/1"), b"new".to_vec())).await {
            Ok(_) => {
                let snapshot = store.range("").await.unwrap();
                assert_eq!(snapshot.entries.len(), right.entries.len(), "{start}");
            }
            Err(StoreError::Damaged { .. } | StoreError::NotWritable { .. }) => reported += 1,
            Err(error) => panic!("{start}: {}", spur_sdk::error_chain(&error)),
        }
    }
    println!("{reported} reported");
}

#[tokio::test]
async fn what_is_no_store_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let text = b"accounts:\n- name: physics\n".repeat(1000);
    let redb = b"redb\x1a\x0a\xa9\x0d\x0a".repeat(1000);
    for content in [Vec::new(), b"x".to_vec(), text, redb, vec![0; 100_000]] {
        std::fs::write(&path, &content).unwrap();
        // A file that is there is never begun anew, also where a new one would be made.
        let error = FileStore::open(&path, options()).await.unwrap_err();
        let StoreError::Damaged { place, what } = &error else { panic!("{error}") };
        assert_eq!(place, &path.display().to_string());
        assert!(what.contains("restore the newest backup"), "{what}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
    std::fs::write(&path, format!("spur-store 2\n{}", "\0".repeat(2 * 4096 - 13))).unwrap();
    let error = FileStore::open(&path, options()).await.unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 2, newest: 1, .. }), "{error}");
}
