//! Watches that outlive their connections.
//!
//! etcd never splits the events of one revision over two batches, but it sends a large batch in fragments, which may
//! end anywhere; all but the last are marked. Without fragments a batch of up to 1000 revisions is one message.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::cluster::Cluster;
use super::failure::{Failure, Fault};
use super::keys::{Keys, number, revision, revision_of};
use super::{EtcdStore, MAX_ANSWER};
use crate::error_chain;
use crate::store::{Change, ChangeSet, Changes, Revision, StoreError, Watch};

/// The most transactions that wait here for a slow watcher; more wait on the way and in etcd, until it compacts them.
const WAITING: usize = 16;
/// How long a watcher may let them wait: meanwhile it may hold up other watches on the same connection.
const SLOW: Duration = Duration::from_secs(30);
/// For how long a watch that has lost its connection looks for another.
const RECONNECT: Duration = Duration::from_secs(30);
/// How long to wait between two attempts.
const PAUSE: Duration = Duration::from_millis(250);

/// What is watched.
#[derive(Debug, Clone, Copy)]
pub(super) enum Extent {
    /// The keys that begin with the text.
    Prefix,
    /// The key alone, for who reads what it gets at once.
    Key,
}

/// Opens a watch.
pub(super) async fn open(
    store: &EtcdStore,
    key: &str,
    extent: Extent,
    after: Revision,
) -> Result<Watch, StoreError> {
    let (out, changes) = mpsc::channel(WAITING);
    let cluster = Arc::clone(match extent {
        Extent::Prefix => &store.watched,
        Extent::Key => &store.cluster,
    });
    let follower =
        Follower { cluster, keys: store.keys.clone(), key: store.keys.there(key), extent, seen: after, out };
    let stream = follower.connect().await.map_err(|failure| follower.error(failure))?;
    let place = store.cluster.place.clone();
    let task = tokio::spawn(follower.run(stream)).abort_handle();
    Ok(Watch::new(EtcdChanges { changes, place, task }))
}

/// The end of a watch that its caller has.
struct EtcdChanges {
    changes: mpsc::Receiver<Result<ChangeSet, StoreError>>,
    place: String,
    task: AbortHandle,
}

impl Changes for EtcdChanges {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<ChangeSet, StoreError>> + Send + '_>> {
        Box::pin(async {
            let ended = || StoreError::Unavailable {
                place: self.place.clone(),
                source: Fault::new("the watch has ended").into(),
            };
            self.changes.recv().await.unwrap_or_else(|| Err(ended()))
        })
    }
}

impl Drop for EtcdChanges {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a connection is not followed any more.
enum End {
    /// Another may go on.
    Connection(Failure),
    /// There is nothing to go on with.
    Watch(StoreError),
    /// Nobody listens.
    Caller,
}

/// The end of a watch that follows etcd.
struct Follower {
    cluster: Arc<Cluster>,
    keys: Keys,
    key: Vec<u8>,
    extent: Extent,
    /// All changes up to this one have been handed on.
    seen: Revision,
    out: mpsc::Sender<Result<ChangeSet, StoreError>>,
}

impl Follower {
    async fn run(mut self, first: WatchStream) {
        let mut stream = first;
        loop {
            let error = match self.follow(stream).await {
                End::Caller => return,
                End::Watch(error) => error,
                End::Connection(failure) => {
                    let place = &self.cluster.place;
                    debug!(endpoints = place, seen = self.seen.0, ?failure, "watch lost its connection");
                    match self.reconnect().await {
                        Ok(again) => {
                            stream = again;
                            continue;
                        }
                        Err(error) => error,
                    }
                }
            };
            // An error means that nobody listens.
            let _ = self.out.send(Err(error)).await;
            return;
        }
    }

    async fn reconnect(&self) -> Result<WatchStream, StoreError> {
        let begin = Instant::now();
        loop {
            match self.connect().await {
                Ok(stream) => return Ok(stream),
                Err(failure) if (failure.is_passing() || matches!(failure, Failure::Late(_))) => {
                    if begin.elapsed() >= RECONNECT {
                        let error = self.error(failure);
                        warn!(
                            endpoints = self.cluster.place,
                            error = error_chain(&error),
                            "watch is given up"
                        );
                        return Err(error);
                    }
                }
                Err(failure) => return Err(self.error(failure)),
            }
            sleep(PAUSE).await;
        }
    }

    fn error(&self, failure: Failure) -> StoreError {
        match failure {
            Failure::Compacted => self.expired(Revision(0)),
            failure => failure.of_read(&self.cluster.place),
        }
    }

    /// History up to `compacted` is gone; 0 where that is unknown.
    fn expired(&self, compacted: Revision) -> StoreError {
        // A watch from the compacted revision itself still works.
        StoreError::Expired { after: self.seen, oldest: Revision(compacted.0.saturating_sub(1)) }
    }

    /// A stream that goes on after what was seen.
    async fn connect(&self) -> Result<WatchStream, Failure> {
        let next = Revision(self.seen.0.saturating_add(1));
        let options = WatchOptions::new().with_start_revision(number(next)).with_fragment();
        let options = match self.extent {
            Extent::Prefix => options.with_prefix(),
            Extent::Key => options,
        };
        let key = self.key.clone();
        let begin = move |client: Client| {
            let (key, options) = (key.clone(), options.clone());
            let mut client = client.watch_client().max_decoding_message_size(MAX_ANSWER);
            async move {
                let mut stream = client.watch(key, Some(options)).await?;
                let ended = || Failure::Unclear(Fault::new("the watch was not begun"));
                let first = stream.message().await?.ok_or_else(ended)?;
                if first.canceled() {
                    return Err(cancelled(&first));
                }
                Ok((stream, revision_of(first.header())))
            }
        };
        let (stream, at) = self.cluster.ask(begin).await?;
        if at < self.seen && self.newest().await? < self.seen {
            // The cluster was restored from a backup, or is another one: it would be silent until it gets there.
            return Err(Failure::Compacted);
        }
        Ok(stream)
    }

    async fn newest(&self) -> Result<Revision, Failure> {
        let key = self.key.clone();
        let read = move |mut client: Client| {
            let key = key.clone();
            async move { Ok(revision_of(client.get(key, None).await?.header())) }
        };
        self.cluster.ask(read).await
    }

    /// Hands on what the stream says until it ends.
    async fn follow(&mut self, mut stream: WatchStream) -> End {
        let mut batch = Vec::new();
        loop {
            let answer = match stream.message().await {
                Ok(Some(answer)) => answer,
                Ok(None) => {
                    return End::Connection(Failure::Unclear(Fault::new("the server ended the watch")));
                }
                Err(error) => return End::Connection(error.into()),
            };
            if answer.canceled() {
                let compacted = revision(answer.compact_revision());
                if compacted > Revision(0) {
                    return End::Watch(self.expired(compacted));
                }
                return match cancelled(&answer) {
                    failure if failure.is_passing() => End::Connection(failure),
                    failure => End::Watch(self.error(failure)),
                };
            }
            if let Err(error) = self.take(&answer, &mut batch) {
                return End::Watch(error);
            }
            let rest = if answer.0.fragment {
                // The last revision of it may go on in the next one.
                batch.split_off(batch.len().saturating_sub(1))
            } else {
                Vec::new()
            };
            if let Err(end) = self.hand_on(std::mem::replace(&mut batch, rest)).await {
                return end;
            }
        }
    }

    /// Adds an answer's events to the batch, whose last transaction may be incomplete.
    fn take(&self, answer: &WatchResponse, batch: &mut Vec<ChangeSet>) -> Result<(), StoreError> {
        for event in answer.events() {
            let Some(found) = event.kv() else { continue };
            let value = (event.event_type() == EventType::Put).then(|| found.value().to_vec());
            let change = Change { key: self.keys.here(found.key())?, value };
            let at = revision(found.mod_revision());
            match batch.last_mut() {
                Some(set) if set.revision == at => set.changes.push(change),
                _ => batch.push(ChangeSet { revision: at, changes: vec![change] }),
            }
        }
        Ok(())
    }

    async fn hand_on(&mut self, batch: Vec<ChangeSet>) -> Result<(), End> {
        for mut set in batch {
            set.changes.sort_unstable_by(|one, other| one.key.cmp(&other.key));
            let at = set.revision;
            self.out.send_timeout(Ok(set), SLOW).await.map_err(|error| match error {
                SendTimeoutError::Closed(_) => End::Caller,
                SendTimeoutError::Timeout(_) => End::Watch(self.expired(Revision(0))),
            })?;
            self.seen = at;
        }
        Ok(())
    }
}

fn cancelled(answer: &WatchResponse) -> Failure {
    if answer.compact_revision() > 0 {
        return Failure::Compacted;
    }
    Failure::of_cancelled_watch(answer.cancel_reason())
}
