//! The store that the configuration names.

use anyhow::Context;
use spur_sdk::store::etcd::{EtcdLeadership, EtcdSettings, EtcdStore};
use spur_sdk::store::file::{FileOptions, FileStore, Missing};
use spur_sdk::store::{Leader, Leadership, SharedStore, SoleLeadership, StoreError, Term};

use crate::config::{Config, Etcd, StoreConfig};

/// The largest certificate, key or password file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// A store, and how one of several controllers comes to lead over it.
pub(crate) struct Opened {
    pub(crate) store: SharedStore,
    pub(crate) leadership: Candidate,
    /// What it is, for the status.
    pub(crate) kind: &'static str,
}

/// This controller as a candidate.
pub(crate) enum Candidate {
    Sole(SoleLeadership<SharedStore>),
    Etcd(EtcdLeadership),
}

impl Candidate {
    pub(crate) async fn campaign(&self) -> Result<Term, StoreError> {
        match self {
            Self::Sole(leadership) => leadership.campaign().await,
            Self::Etcd(leadership) => leadership.campaign().await,
        }
    }

    pub(crate) async fn leader(&self) -> Result<Option<Leader>, StoreError> {
        match self {
            Self::Sole(leadership) => leadership.leader().await,
            Self::Etcd(leadership) => leadership.leader().await,
        }
    }
}

/// Opens the store. A file that is missing is made only by `init` and `restore`.
pub(crate) async fn open(config: &Config, missing: Missing) -> anyhow::Result<Opened> {
    let (name, address) = (config.name()?, config.advertised()?);
    match &config.store {
        StoreConfig::File => {
            let path = config.in_state("store.db");
            let store = FileStore::open(&path, FileOptions::default().missing(missing)).await;
            let store =
                SharedStore::new(store.with_context(|| format!("open the store {}", path.display()))?);
            let leadership = SoleLeadership::new(store.clone(), name.as_str(), &address);
            Ok(Opened { store, leadership: Candidate::Sole(leadership), kind: "file" })
        }
        StoreConfig::Etcd(etcd) => {
            let store = EtcdStore::new(&settings(etcd)?).await.context("open the store on etcd")?;
            let leadership = EtcdLeadership::new(store.clone(), name.as_str(), &address)?.ttl(etcd.ttl);
            Ok(Opened {
                store: SharedStore::new(store),
                leadership: Candidate::Etcd(leadership),
                kind: "etcd",
            })
        }
    }
}

fn settings(etcd: &Etcd) -> anyhow::Result<EtcdSettings> {
    let mut settings = EtcdSettings::new(etcd.endpoints.clone()).prefix(&etcd.prefix);
    let secret = |path| -> anyhow::Result<String> {
        Ok(String::from_utf8(spur_sdk::fs::read_secret(path, MAX_FILE)?)?)
    };
    if let (Some(user), Some(password)) = (&etcd.user, &etcd.password_file) {
        settings = settings.password(user, secret(password)?.trim_end_matches('\n'));
    }
    if let Some(ca) = &etcd.ca {
        settings = settings.ca(spur_sdk::fs::read_text(ca, MAX_FILE)?);
    }
    if let (Some(certificate), Some(key)) = (&etcd.certificate, &etcd.key) {
        settings = settings.certificate(spur_sdk::fs::read_text(certificate, MAX_FILE)?, secret(key)?);
    }
    Ok(settings)
}
