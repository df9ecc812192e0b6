//! The store on an etcd cluster.
//!
//! [`EtcdStore`] is the [`Store`], [`EtcdLeadership`] the [`Leadership`](super::Leadership) among
//! controllers that share it. The revisions are etcd's own, so other users of the same cluster make them grow too.

mod cluster;
mod failure;
mod keys;
mod leadership;
mod settings;
mod watch;

use std::sync::Arc;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
};

use self::cluster::{Cluster, Newest};
use self::failure::Failure;
use self::keys::{Keys, number, revision};
pub use self::leadership::EtcdLeadership;
pub use self::settings::{EtcdSettings, EtcdSettingsError, MAX_PREFIX_BYTES};
use self::watch::Extent;
use super::{
    Commit, Comparison, Entry, Key, Revision, Snapshot, Store, StoreError, Transaction, Watch, Write,
};

/// The most entries of an answer; fewer where that is too large.
const PAGE: i64 = 1000;
/// The largest answer that is taken. etcd's own limit of a request, thus of a value, is 1.5 MiB by default.
const MAX_ANSWER: usize = 32 << 20;
/// How often a range is begun anew when its revision is compacted meanwhile.
const RANGE_TRIES: usize = 3;

/// The store on an etcd cluster. Clones share their connections.
///
/// Reads are linearizable. A request goes to the endpoint that has answered last; where that takes more than a second
/// the next ones are asked as well. A write is sent once: when the endpoint that got it is lost before it has
/// answered, the write ends with [`StoreError::Unconfirmed`].
///
/// # Cancellation
/// As [`Store`] says. Nothing goes on in the background but watches and terms, which end when they are dropped.
#[derive(Debug, Clone)]
pub struct EtcdStore {
    cluster: Arc<Cluster>,
    /// The same over other connections: what nobody reads fills a connection, and would hold up all calls on it.
    watched: Arc<Cluster>,
    keys: Keys,
}

impl EtcdStore {
    /// A store on a cluster. Nothing is sent before the first request, so this does not wait for the cluster.
    ///
    /// # Errors
    /// [`EtcdSettingsError`] for settings that cannot be used.
    pub async fn new(settings: &EtcdSettings) -> Result<Self, EtcdSettingsError> {
        let prefix = settings.whole_prefix()?;
        let cluster = Arc::new(Cluster::new(settings, &prefix).await?);
        let watched = Arc::new(Cluster::new(settings, &prefix).await?);
        Ok(Self { cluster, watched, keys: Keys(prefix) })
    }

    fn read_failed(&self, failure: Failure) -> StoreError {
        failure.of_read(&self.cluster.place)
    }

    async fn read(&self, key: Vec<u8>, options: GetOptions) -> Result<GetResponse, Failure> {
        let read = move |client: Client| {
            let (key, options) = (key.clone(), options.clone());
            let mut client = client.kv_client().max_decoding_message_size(MAX_ANSWER);
            async move { Ok(client.get(key, Some(options)).await?) }
        };
        self.cluster.ask(read).await
    }

    /// What stands under a key, with the revision of the store at that moment.
    async fn look(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), StoreError> {
        let read = self.read(self.keys.there(key.as_str()), GetOptions::new()).await;
        let mut answer = read.map_err(|failure| self.read_failed(failure))?;
        let at = self.cluster.seen(answer.header());
        Ok((answer.take_kvs().pop(), at))
    }

    /// All pages of a range, as of the first one's revision.
    async fn pages(&self, prefix: &str) -> Result<(Revision, Vec<KeyValue>), Failure> {
        let mut from = self.keys.there(prefix);
        let end = end_of(&from);
        let (mut at, mut found, mut limit) = (Revision(0), Vec::new(), PAGE);
        loop {
            let page = GetOptions::new().with_range(end.clone()).with_limit(limit).with_revision(number(at));
            let mut page = match self.read(from.clone(), page).await {
                Err(Failure::TooLarge(_)) if limit > 1 => {
                    limit = limit.div_euclid(4).max(1);
                    continue;
                }
                page => page?,
            };
            if at == Revision(0) {
                at = self.cluster.seen(page.header());
            }
            found.append(&mut page.take_kvs());
            if !page.more() {
                return Ok((at, found));
            }
            if let Some(last) = found.last() {
                from = last.key().to_vec();
                from.push(0);
            }
            limit = limit.saturating_mul(2).min(PAGE);
        }
    }

    /// The transaction as etcd takes it; what is put goes with `lease`, 0 for none.
    fn request(&self, transaction: &Transaction, lease: i64) -> Txn {
        let compare = |comparison: &Comparison| {
            let key = self.keys.there(comparison.key().as_str());
            match comparison {
                Comparison::Absent(_) => Compare::create_revision(key, CompareOp::Equal, 0),
                Comparison::Modified(_, revision) => {
                    Compare::mod_revision(key, CompareOp::Equal, exact(*revision))
                }
                Comparison::Created(_, revision) => {
                    Compare::create_revision(key, CompareOp::Equal, exact(*revision))
                }
            }
        };
        let write = |write: &Write| match write {
            Write::Put(key, value) => {
                let options = PutOptions::new().with_lease(lease);
                TxnOp::put(self.keys.there(key.as_str()), value.clone(), Some(options))
            }
            Write::Delete(key) => TxnOp::delete(self.keys.there(key.as_str()), None),
        };
        let look = |comparison: &Comparison| {
            let key = self.keys.there(comparison.key().as_str());
            TxnOp::get(key, Some(GetOptions::new().with_keys_only()))
        };
        let mut writes: Vec<TxnOp> = transaction.writes().iter().map(write).collect();
        if writes.is_empty() {
            // A transaction without operations is answered from what one member happens to know.
            writes.push(TxnOp::get(self.keys.there(""), Some(GetOptions::new().with_count_only())));
        }
        Txn::new()
            .when(transaction.comparisons().iter().map(compare).collect::<Vec<_>>())
            .and_then(writes)
            .or_else(transaction.comparisons().iter().map(look).collect::<Vec<_>>())
    }

    /// Whether nothing of a transaction that was sent after a revision was seen has been written, as far as can be seen.
    ///
    /// etcd says "space exceeded" of a transaction that it has carried out, when that is the one which the quota was
    /// too small for (`quotaApplierV3` in its `server/etcdserver/apply`), and with the same words of those that it has
    /// not.
    async fn is_untouched(&self, transaction: &Transaction, before: Revision) -> bool {
        let put = |write: &Write| match write {
            Write::Put(key, _) => Some(self.keys.there(key.as_str())),
            Write::Delete(_) => None,
        };
        let options = || Some(GetOptions::new().with_keys_only());
        let looks: Vec<_> =
            transaction.writes().iter().filter_map(put).map(|key| TxnOp::get(key, options())).collect();
        let look = move |mut client: Client| {
            let looks = Txn::new().and_then(looks.clone());
            async move { Ok(client.txn(looks).await?) }
        };
        let Ok(answer) = self.cluster.ask(look).await else { return false };
        let nothing_since = self.cluster.seen(answer.header()) == before;
        let is_older = |found: &KeyValue| revision(found.mod_revision()) <= before;
        let mut found = answer.op_responses().into_iter();
        // An absent key tells nothing: it may have been deleted since.
        nothing_since
            || found
                .any(|found| matches!(found, TxnOpResponse::Get(found) if found.kvs().iter().any(is_older)))
    }

    async fn commit_with(&self, transaction: &Transaction, lease: i64) -> Result<Commit, StoreError> {
        transaction.check()?;
        let request = self.request(transaction, lease);
        let before = Arc::new(Newest::default());
        let send = {
            let (cluster, before) = (Arc::clone(&self.cluster), Arc::clone(&before));
            move |mut client: Client| {
                before.see(cluster.newest.revision());
                let request = request.clone();
                async move { Ok(client.txn(request).await?) }
            }
        };
        let place = &self.cluster.place;
        let answer = if transaction.writes().is_empty() {
            self.cluster.ask(send).await.map_err(|failure| failure.of_read(place))?
        } else {
            match self.cluster.send(send).await {
                Err(Failure::Full(fault)) if !self.is_untouched(transaction, before.revision()).await => {
                    return Err(Failure::Unclear(fault).of_write(place));
                }
                answer => answer.map_err(|failure| failure.of_write(place))?,
            }
        };
        let at = self.cluster.seen(answer.header());
        if answer.succeeded() {
            return Ok(Commit::Done(at));
        }
        let found = answer.op_responses().into_iter().map(|found| match found {
            TxnOpResponse::Get(mut found) => found.take_kvs().pop(),
            _ => None,
        });
        let revisions = |found: KeyValue| (revision(found.create_revision()), revision(found.mod_revision()));
        let mut failed = Vec::new();
        for (comparison, found) in transaction.comparisons().iter().zip(found) {
            if !comparison.holds(found.map(revisions)) && !failed.contains(comparison.key()) {
                failed.push(comparison.key().clone());
            }
        }
        Ok(Commit::Conflict(failed))
    }
}

impl Store for EtcdStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.look(key).await?.0.map(|found| self.keys.entry(found)).transpose()
    }

    async fn range(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let mut tries = RANGE_TRIES;
        let (at, found) = loop {
            tries = tries.saturating_sub(1);
            match self.pages(prefix).await {
                Err(Failure::Compacted) if tries > 0 => {}
                pages => break pages.map_err(|failure| self.read_failed(failure))?,
            }
        };
        let entries = found.into_iter().map(|found| self.keys.entry(found)).collect::<Result<_, _>>()?;
        Ok(Snapshot::new(at, entries))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, StoreError> {
        self.commit_with(&transaction, 0).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        watch::open(self, prefix, Extent::Prefix, after).await
    }
}

/// The first key after all that begin with this. The last byte of UTF-8 is never the largest one.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

/// A revision to compare with. To etcd an absent key has revision 0, which to us no key has.
fn exact(revision: Revision) -> i64 {
    if revision == Revision(0) { -1 } else { number(revision) }
}
