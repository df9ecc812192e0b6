//! The database, and how it is opened anew after something went wrong.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redb::{Builder, Database, ReadTransaction, ReadableDatabase};

use super::disk::{self, Disk, Mark};
use super::overlay::{Failure, Opening, Overlay, Reach};
use super::tables::{self, Applied, Fault, guarded};
use crate::store::history::{History, Limit};
use crate::store::{Commit, Entry, Key, Revision, Snapshot, StoreError, StoreFault, Transaction};

/// How much of the database is kept in memory.
const CACHE: usize = 64 << 20;

/// How long after a failure to open the database it is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The database.
#[derive(Debug)]
pub(super) struct Engine {
    disk: Arc<dyn Disk>,
    overlay: Arc<Overlay>,
    slot: RwLock<Slot>,
    mark: Mark,
    place: String,
}

#[derive(Debug)]
enum Slot {
    Open(Open),
    /// It could not be opened, last tried then.
    Failed(StoreError, Instant),
    Closed,
}

#[derive(Debug)]
struct Open {
    database: Database,
    alive: Arc<AtomicBool>,
    /// Each opening has another number.
    number: u64,
}

/// Opens the database over an overlay, after looking at every page of it.
fn open_database(overlay: &Arc<Overlay>, number: u64) -> Result<Open, Fault> {
    let attempt = || {
        let alive = Arc::new(AtomicBool::new(true));
        let opening = Opening::new(Arc::clone(overlay), Arc::clone(&alive));
        let database = guarded(|| {
            let mut builder = Builder::new();
            builder.set_cache_size(CACHE).set_check_integrity_on_open(true);
            Ok(builder.create_with_backend(opening)?)
        });
        database.map(|database| Open { database, alive, number })
    };
    let opened = attempt();
    // To open it is to write to it. Where the disk does not take that, the second time it stays in memory.
    if opened.is_err() && overlay.take_failure().is_some() { attempt() } else { opened }
}

/// Why transactions were not carried out.
pub(super) enum Refusal {
    /// The disk does not take them.
    Disk(Failure),
    Other(StoreError),
}

impl Refusal {
    /// As an error, for each that asks.
    pub(super) fn error(&self, place: &str) -> StoreError {
        let place = place.to_owned();
        match self {
            Self::Other(error) => again(error, place),
            Self::Disk(failure) => {
                let source = Box::new(failure.source());
                match failure.reach {
                    Reach::Nothing => StoreError::NotWritable { place, source },
                    Reach::Unclear => StoreError::Unconfirmed { place, source },
                }
            }
        }
    }
}

/// An error that was said before.
fn again(error: &StoreError, place: String) -> StoreError {
    match error {
        StoreError::Damaged { place, what } => {
            StoreError::Damaged { place: place.clone(), what: what.clone() }
        }
        other => {
            // Its text alone, where it is the same error.
            let source = std::error::Error::source(other).map(crate::error_chain);
            let source: StoreFault = source.unwrap_or_else(|| other.to_string()).into();
            StoreError::Unavailable { place, source }
        }
    }
}

impl Engine {
    /// Writes a new store: its entries, and the revision that it begins with.
    pub(super) fn create(disk: &Arc<dyn Disk>, place: &str, first: &Snapshot) -> Result<(), StoreError> {
        let failed = |fault: Fault| match fault {
            Fault::Database(error) => {
                StoreError::NotWritable { place: place.to_owned(), source: Box::new(error) }
            }
            Fault::Nonsense(what) => super::damaged(place, &what),
        };
        let fill = || {
            disk::write_head(&**disk).map_err(redb::Error::Io)?;
            let overlay = Arc::new(Overlay::new(Arc::clone(disk)).map_err(redb::Error::Io)?);
            let open = open_database(&overlay, 0)?;
            tables::write_first(&open.database, first)?;
            open.database.close()?;
            disk.sync().map_err(redb::Error::Io)?;
            Ok(())
        };
        fill().map_err(failed)
    }

    /// Opens a store, and reads its history.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        place: &str,
        limit: Limit,
    ) -> Result<(Self, Arc<History>), StoreError> {
        let (mark, marked) = disk::read_head(&*disk, place)?;
        let overlay = Overlay::new(Arc::clone(&disk)).map_err(|source| StoreError::Unavailable {
            place: place.to_owned(),
            source: Box::new(source),
        })?;
        let overlay = Arc::new(overlay);
        let opened = open_database(&overlay, 0);
        let mut engine = Self {
            disk,
            overlay: Arc::clone(&overlay),
            slot: RwLock::new(Slot::Closed),
            mark,
            place: place.to_owned(),
        };
        let open = opened.map_err(|fault| engine.error(fault))?;
        engine.slot = RwLock::new(Slot::Open(open));
        let (revision, sets) = engine.read(tables::load)?;
        if revision < marked {
            return Err(super::damaged(
                place,
                &format!("it ends at revision {revision}, but revision {marked} was written to it"),
            ));
        }
        if let Some(newest) = sets.last().map(|set| set.revision).filter(|newest| *newest != revision) {
            let what = format!("its history ends at revision {newest}, its content at {revision}");
            return Err(super::damaged(place, &what));
        }
        let floor = sets.first().map_or(revision, |set| Revision(set.revision.0.saturating_sub(1)));
        let history = History::new(limit, floor);
        for set in sets {
            history.push(set);
        }
        Ok((engine, history))
    }

    /// Reads in one transaction of the database.
    pub(super) fn read<T>(
        &self,
        read: impl Fn(&ReadTransaction) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        for last in [false, true] {
            let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
            let (number, fault) = match &*slot {
                Slot::Closed => return Err(self.closed()),
                Slot::Failed(error, since) if last || since.elapsed() < PAUSE => {
                    return Err(again(error, self.place.clone()));
                }
                Slot::Failed(..) => (None, None),
                Slot::Open(open) => match guarded(|| read(&open.database.begin_read()?)) {
                    Ok(read) => return Ok(read),
                    Err(fault) => (Some(open.number), Some(fault)),
                },
            };
            drop(slot);
            match fault {
                // What was written is not what we write, and does not get better.
                Some(fault @ Fault::Nonsense(_)) => return Err(self.error(fault)),
                Some(fault) if last => return Err(self.error(fault)),
                // The database says nothing more after an error.
                _ => self.reopen(number),
            }
        }
        Err(self.closed())
    }

    /// Opens the database anew, unless somebody has done that since opening `number`.
    fn reopen(&self, number: Option<u64>) {
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        let next = match &*slot {
            Slot::Closed => return,
            Slot::Open(open) if Some(open.number) != number => return,
            Slot::Open(open) => {
                open.alive.store(false, Ordering::Release);
                open.number + 1
            }
            Slot::Failed(_, since) if since.elapsed() < PAUSE => return,
            Slot::Failed(..) => 0,
        };
        // Drops the old one, which can't write any more.
        *slot = Slot::Closed;
        self.overlay.discard();
        *slot = match open_database(&self.overlay, next) {
            Ok(open) => Slot::Open(open),
            Err(fault) => Slot::Failed(self.error(fault), Instant::now()),
        };
    }

    /// The number of the opening that is there.
    fn number(&self) -> Option<u64> {
        match &*self.slot.read().unwrap_or_else(PoisonError::into_inner) {
            Slot::Open(open) => Some(open.number),
            Slot::Failed(..) | Slot::Closed => None,
        }
    }

    fn closed(&self) -> StoreError {
        StoreError::Unavailable { place: self.place.clone(), source: "the store was closed".into() }
    }

    fn error(&self, fault: Fault) -> StoreError {
        let error = match fault {
            Fault::Nonsense(what) => return super::damaged(&self.place, &what),
            Fault::Database(error) => error,
        };
        match &error {
            redb::Error::Corrupted(what) => super::damaged(&self.place, what),
            redb::Error::Io(io) if matches!(io.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) => {
                super::damaged(&self.place, &io.to_string())
            }
            redb::Error::TableDoesNotExist(_)
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TypeDefinitionChanged { .. }
            | redb::Error::UpgradeRequired(_) => super::damaged(&self.place, &error.to_string()),
            _ => StoreError::Unavailable { place: self.place.clone(), source: Box::new(error) },
        }
    }

    /// Makes the disk take writes again, where it did not. Whether it does.
    pub(super) fn heal(&self) -> Result<(), Failure> {
        let was_held = self.overlay.is_held();
        self.overlay.heal().map_err(|error| Failure::new(Reach::Nothing, &error))?;
        if was_held {
            tracing::info!(store = self.place, "writable again");
        }
        Ok(())
    }

    /// Carries out transactions one after another, and makes them safe together.
    pub(super) fn commit(&self, transactions: &[Transaction], floor: Revision) -> Result<Applied, Refusal> {
        self.heal().map_err(Refusal::Disk)?;
        let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
        let (number, fault) = match &*slot {
            Slot::Closed => return Err(Refusal::Other(self.closed())),
            Slot::Failed(error, _) => {
                return Err(Refusal::Other(again(error, self.place.clone())));
            }
            Slot::Open(open) => match guarded(|| tables::apply_all(&open.database, transactions, floor)) {
                Ok(applied) => {
                    if let Some(set) = applied.sets.last() {
                        // If it fails, one that is older stands there.
                        let _ = self.mark.write(&*self.disk, set.revision);
                    }
                    return Ok(applied);
                }
                Err(fault) => (open.number, fault),
            },
        };
        drop(slot);
        let failure = self.overlay.take_failure();
        self.reopen(Some(number));
        match failure {
            Some(failure) => {
                tracing::warn!(
                    store = self.place,
                    error = %failure.source(),
                    "the disk takes no writes; reads go on, and the next write tries again"
                );
                Err(Refusal::Disk(failure))
            }
            None => Err(Refusal::Other(self.error(fault))),
        }
    }

    /// What becomes of a transaction that writes nothing; `None` for one that does.
    pub(super) fn without_writing(&self, transaction: &Transaction) -> Result<Option<Commit>, StoreError> {
        self.read(|read| tables::without_writing(read, transaction))
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.read(|read| tables::get(read, key))
    }

    pub(super) fn range(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.read(|read| tables::range(read, prefix))
    }

    /// The store's revision.
    pub(super) fn revision(&self) -> Result<Revision, StoreError> {
        self.read(tables::revision)
    }

    /// Moves what is in the file to its begin, and cuts off the rest. The bytes of the file before and after.
    pub(super) fn compact(&self) -> Result<(u64, u64), Refusal> {
        self.heal().map_err(Refusal::Disk)?;
        let unknown = |source| {
            Refusal::Other(StoreError::Unavailable { place: self.place.clone(), source: Box::new(source) })
        };
        let before = self.disk.size().map_err(unknown)?;
        let number = self.number();
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        let Slot::Open(open) = &mut *slot else { return Err(Refusal::Other(self.closed())) };
        let compacted = guarded(|| Ok(open.database.compact()?));
        drop(slot);
        match compacted {
            Ok(_) => Ok((before, self.disk.size().map_err(unknown)?)),
            Err(fault) => {
                let failure = self.overlay.take_failure();
                self.reopen(number);
                Err(failure.map_or_else(|| Refusal::Other(self.error(fault)), Refusal::Disk))
            }
        }
    }

    /// Closes the database. What was committed is safe already; this spares the next opening some work.
    pub(super) fn close(&self) {
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        if let Slot::Open(open) = std::mem::replace(&mut *slot, Slot::Closed) {
            let _ = guarded(|| Ok(open.database.close()?));
            // The mark.
            let _ = self.disk.sync();
        }
    }
}
