//! Our keys as etcd has them: all below one prefix.

use etcd_client::{KeyValue, ResponseHeader};

use crate::store::{Entry, Key, Revision, StoreError};

/// The prefix, and what it takes to go to etcd and back.
#[derive(Debug, Clone)]
pub(super) struct Keys(pub(super) String);

impl Keys {
    /// The key, or the begin of keys, in etcd.
    pub(super) fn there(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.0).into_bytes()
    }

    /// The key here.
    pub(super) fn here(&self, bytes: &[u8]) -> Result<Key, StoreError> {
        let ours = bytes.strip_prefix(self.0.as_bytes()).and_then(|rest| std::str::from_utf8(rest).ok());
        ours.and_then(|text| text.parse().ok()).ok_or_else(|| StoreError::Damaged {
            place: String::from_utf8_lossy(bytes).into_owned(),
            what: "no key of this store: something else has written it; delete it with etcdctl".to_owned(),
        })
    }

    pub(super) fn entry(&self, found: KeyValue) -> Result<Entry, StoreError> {
        let key = self.here(found.key())?;
        let (created, modified) = (revision(found.create_revision()), revision(found.mod_revision()));
        Ok(Entry::new(key, found.into_key_value().1, created, modified))
    }
}

/// A revision as etcd has it; none is negative.
pub(super) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or_default())
}

/// A revision for etcd; one that is too large has not been yet.
pub(super) fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

pub(super) fn revision_of(header: Option<&ResponseHeader>) -> Revision {
    header.map(|header| revision(header.revision())).unwrap_or_default()
}
