//! The store and the leadership on real etcd servers.
#![cfg(all(feature = "etcd", feature = "testing"))]
#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod contract;
mod failures;
mod leadership;
mod servers;

use spur_sdk::store::etcd::{EtcdSettings, EtcdStore};
use spur_sdk::store::{Commit, Key, Revision, Store, Transaction};

fn key(text: &str) -> Key {
    text.parse().expect("a key")
}

fn put(name: &str, value: impl Into<Vec<u8>>) -> Transaction {
    Transaction::new().put(key(name), value.into())
}

async fn store(settings: &EtcdSettings) -> EtcdStore {
    EtcdStore::new(settings).await.expect("settings")
}

/// Commits what must succeed.
async fn done(store: &impl Store, transaction: Transaction) -> Revision {
    match store.commit(transaction).await.expect("a commit") {
        Commit::Done(revision) => revision,
        Commit::Conflict(keys) => panic!("conflict over {keys:?}"),
    }
}
