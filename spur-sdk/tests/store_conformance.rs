//! Every store of this crate that needs no set-up passes the suite that hosts run on theirs.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, and says what it did")]

use spur_sdk::testing::{MemoryStore, conformance};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_passes() {
    let forget = async |store: &MemoryStore| store.forget_history();
    conformance::run(async || MemoryStore::new(), forget).await.unwrap();
}

#[cfg(feature = "store-file")]
mod file {
    use std::sync::atomic::{AtomicU32, Ordering};

    use spur_sdk::store::file::{FileOptions, FileStore, Missing};
    use spur_sdk::store::{Store, Transaction};

    use super::conformance;

    /// Little history, so that it can be forgotten; as much as the cases rely on.
    const HISTORY: usize = 200;

    async fn forget(store: &FileStore) {
        for index in 0..HISTORY {
            let key = format!("forget/{}", index % 5).parse().unwrap();
            let _ = store.commit(Transaction::new().put(key, b"1".to_vec())).await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn file_passes() {
        let folder = tempfile::tempdir().unwrap();
        let number = AtomicU32::new(0);
        let fresh = async || {
            let path = folder.path().join(number.fetch_add(1, Ordering::Relaxed).to_string());
            let options = FileOptions::default().missing(Missing::Create).history(HISTORY);
            FileStore::open(&path, options).await.unwrap()
        };
        conformance::run(fresh, forget).await.unwrap();
    }
}
