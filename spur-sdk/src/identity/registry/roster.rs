//! Which certificates are valid, in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::record::{CertificateRecord, NodeRecord, PREFIX, node_of, serial_of, time};
use crate::identity::{Caller, Identity, IdentityError, PeerCertificate, Serial, Subject, Via, Void};
use crate::store::{Change, Entry, Key, Revision, Store, StoreError, decode};
use crate::{Clock, NodeName, error_chain};

/// How often the store is asked whether it is still there.
const PROBE: Duration = Duration::from_secs(5);
/// How long nothing from the store may be heard until no certificate counts any more.
const MAX_SILENCE: Duration = Duration::from_mins(1);
/// The first and the longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Which certificates are valid, kept true by a watch of the store, and answered from memory. Clones are the same one.
///
/// A new one knows nothing and allows nothing until [`follow`](Self::follow) has read the store. One that has heard
/// nothing from the store for a minute allows nothing either.
#[derive(Clone)]
pub struct Roster(Arc<Inner>);

struct Inner {
    clock: Box<dyn Clock>,
    state: RwLock<State>,
    /// Grows with each change that may make a certificate void.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// When the store was last heard of; `None` before the first reading.
    heard: Option<Instant>,
    nodes: BTreeMap<NodeName, Known>,
    revoked: BTreeMap<Serial, Revision>,
    /// Nodes that have used their latest certificate, while the store still has the one before.
    settled: BTreeMap<NodeName, Serial>,
}

struct Known {
    at: Revision,
    /// `None` for a record that cannot be read.
    record: Option<NodeRecord>,
}

impl Roster {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(clock: impl Clock + 'static) -> Self {
        let (changes, _) = watch::channel(0);
        Self(Arc::new(Inner { clock: Box::new(clock), state: RwLock::default(), changes }))
    }

    /// Reads the store and follows its changes for ever; failures are logged and tried again. A host runs this in a
    /// task of its own.
    ///
    /// # Cancellation
    /// What is known grows stale, and after a minute nothing is allowed.
    pub async fn follow(&self, store: &impl Store) {
        let mut pause = PAUSES.0;
        loop {
            let begun = Instant::now();
            let Err(error) = self.follow_once(store).await;
            // Also a watch that fell behind: what is known stays, and is read anew.
            tracing::warn!(error = error_chain(&error), "the watch of identities ended, reading them anew");
            if begun.elapsed() > PAUSES.1 {
                pause = PAUSES.0;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn follow_once(&self, store: &impl Store) -> Result<std::convert::Infallible, StoreError> {
        let asked = Instant::now();
        let snapshot = store.range(PREFIX).await?;
        self.load(&snapshot.entries, snapshot.revision, asked);
        let mut watch = store.watch(PREFIX, snapshot.revision).await?;
        let probe: Key = format!("{PREFIX}authority").parse()?;
        loop {
            let asked = Instant::now();
            tokio::select! {
                // Dropping it loses nothing, says `Watch::next`.
                set = watch.next() => {
                    let set = set?;
                    self.apply(set.revision, &set.changes);
                    self.heard(asked);
                }
                // Dropping it only asks later: a change was heard, too.
                answer = async { sleep(PROBE).await; (Instant::now(), store.get(&probe).await) } => {
                    answer.1?;
                    self.heard(answer.0);
                }
            }
        }
    }

    /// Whether a certificate is valid now: its time, and that it was not replaced, removed or revoked.
    ///
    /// To be asked for each request, and for open connections after each change.
    ///
    /// # Errors
    /// [`IdentityError::Void`] if not; [`IdentityError::Stale`] if that is not known.
    pub fn check(&self, certificate: &PeerCertificate) -> Result<(), IdentityError> {
        certificate.check_time(self.0.clock.now())?;
        self.check_serial(certificate.subject(), certificate.serial())
    }

    /// As [`check`](Self::check), for a certificate that another controller saw and whose time it has checked.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_serial(&self, subject: &Subject, serial: Serial) -> Result<(), IdentityError> {
        let void = |void| IdentityError::Void { subject: subject.clone(), serial, void };
        let first_use = {
            let state = self.read();
            state.check_heard()?;
            if state.revoked.contains_key(&serial) {
                return Err(void(Void::Revoked));
            }
            match subject {
                Subject::Controller(_) | Subject::Admin(_) | Subject::User { vouched_by: None, .. } => None,
                // Its word counts no longer than it does.
                Subject::User { vouched_by: Some(node), .. } => {
                    let record = state.node(node)?.ok_or_else(|| void(Void::Unknown))?;
                    if record.removed {
                        return Err(void(Void::Removed));
                    }
                    if !record.login {
                        return Err(void(Void::Revoked));
                    }
                    None
                }
                Subject::Node(name) => {
                    let record = state.node(name)?.ok_or_else(|| void(Void::Unknown))?;
                    let now = self.0.clock.now();
                    judge(record, serial, now).map_err(void)?;
                    (record.current.serial == serial && record.previous.is_some()).then_some(name)
                }
            }
        };
        if let Some(name) = first_use {
            self.settle(name, serial);
        }
        Ok(())
    }

    /// As [`check_serial`](Self::check_serial), for a caller; one without a certificate passes.
    ///
    /// # Errors
    /// As [`check`](Self::check). For one that a controller forwarded, the controller's own certificate is the
    /// connection's to check.
    pub fn check_caller(&self, caller: &Caller) -> Result<(), IdentityError> {
        match (caller.via.origin(), caller.subject()) {
            (Via::Tls { serial: Some(serial) }, Some(subject)) => self.check_serial(&subject, *serial),
            (Via::Socket { .. }, _) => Ok(()),
            _ if matches!(caller.identity, Identity::Anonymous) => Ok(()),
            _ => Err(IdentityError::Denied("a name without a certificate")),
        }
    }

    /// How many changes there were that may make a certificate void.
    #[must_use]
    pub fn generation(&self) -> u64 {
        *self.0.changes.borrow()
    }

    /// Waits until there were more changes than `generation`, and says how many. Connections that were opened before
    /// are then checked anew, and cut where their certificate is void.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub async fn changed_since(&self, generation: u64) -> u64 {
        let mut changes = self.0.changes.subscribe();
        let reached = changes.wait_for(|now| *now > generation).await.map(|now| *now);
        match reached {
            Ok(now) => now,
            // Not before the last clone is gone, and this is one.
            Err(_) => std::future::pending().await,
        }
    }

    /// Nodes whose record still has the certificate before the one that they have used.
    pub(super) fn settled(&self) -> Vec<(NodeName, Serial)> {
        self.read().settled.iter().map(|(name, serial)| (name.clone(), *serial)).collect()
    }

    /// Takes in what the store has, in place of all that was known, but for what is known to be newer.
    fn load(&self, entries: &[Entry], revision: Revision, asked: Instant) {
        {
            let mut state = self.write();
            state.nodes.retain(|_, known| known.at > revision);
            state.revoked.retain(|_, at| *at > revision);
            for entry in entries {
                state.put(entry);
            }
            state.heard = Some(asked);
        }
        self.bump();
    }

    /// Takes in what was written at `revision`.
    pub(super) fn apply(&self, revision: Revision, changes: &[Change]) {
        {
            let mut state = self.write();
            // Before the first reading it would look as if this were all there is.
            if state.heard.is_none() {
                return;
            }
            for change in changes {
                match &change.value {
                    Some(value) => {
                        let entry = Entry::new(change.key.clone(), value.clone(), revision, revision);
                        state.put(&entry);
                    }
                    None => state.delete(&change.key, revision),
                }
            }
        }
        self.bump();
    }

    fn heard(&self, at: Instant) {
        self.write().heard = Some(at);
    }

    /// Remembers that a node has used its latest certificate: the one before is void from now on.
    fn settle(&self, name: &NodeName, serial: Serial) {
        {
            let mut state = self.write();
            let Some(Known { record: Some(record), .. }) = state.nodes.get_mut(name) else { return };
            // It may have changed in between.
            if record.current.serial != serial || record.previous.take().is_none() {
                return;
            }
            state.settled.insert(name.clone(), serial);
        }
        self.bump();
    }

    fn bump(&self) {
        self.0.changes.send_modify(|generation| *generation += 1);
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster").field("generation", &self.generation()).finish_non_exhaustive()
    }
}

/// Whether a node's certificate is one that counts.
pub(super) fn judge(record: &NodeRecord, serial: Serial, now: std::time::SystemTime) -> Result<(), Void> {
    if record.removed {
        return Err(Void::Removed);
    }
    if record.current.serial == serial {
        return Ok(());
    }
    match record.previous {
        Some(previous) if previous.serial == serial => {
            if now <= time(previous.not_after) {
                Ok(())
            } else {
                Err(Void::Expired)
            }
        }
        _ => Err(Void::Replaced),
    }
}

impl State {
    fn check_heard(&self) -> Result<(), IdentityError> {
        match self.heard {
            Some(heard) if heard.elapsed() <= MAX_SILENCE => Ok(()),
            _ => Err(IdentityError::Stale),
        }
    }

    fn node(&self, name: &NodeName) -> Result<Option<&NodeRecord>, IdentityError> {
        match self.nodes.get(name) {
            None => Ok(None),
            Some(Known { record: Some(record), .. }) => Ok(Some(record)),
            Some(Known { record: None, .. }) => Err(IdentityError::Stale),
        }
    }

    fn put(&mut self, entry: &Entry) {
        let at = entry.modified;
        if let Some(name) = node_of(&entry.key) {
            // One's own write is known before the watch tells of an earlier one.
            if self.nodes.get(&name).is_some_and(|known| known.at > at) {
                return;
            }
            let mut record = read::<NodeRecord>(entry);
            match (&mut record, self.settled.get(&name)) {
                (Some(record), Some(serial))
                    if record.current.serial == *serial && record.previous.is_some() =>
                {
                    record.previous = None;
                }
                _ => {
                    self.settled.remove(&name);
                }
            }
            self.nodes.insert(name, Known { at, record });
        } else if let Some(serial) = serial_of(&entry.key) {
            // One that cannot be read may be a revocation.
            if read::<CertificateRecord>(entry).is_none_or(|record| record.revoked.is_some()) {
                self.revoked.insert(serial, at);
            }
        }
    }

    fn delete(&mut self, key: &Key, at: Revision) {
        if let Some(name) = node_of(key) {
            if self.nodes.get(&name).is_some_and(|known| known.at <= at) {
                self.nodes.remove(&name);
                self.settled.remove(&name);
            }
        } else if let Some(serial) = serial_of(key) {
            self.revoked.remove(&serial);
        }
    }
}

fn read<R: crate::store::Record>(entry: &Entry) -> Option<R> {
    decode(entry)
        .inspect_err(
            |error| tracing::error!(key = %entry.key, error = error_chain(error), "a record of identity"),
        )
        .ok()
}
