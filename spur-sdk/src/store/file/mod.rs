//! The embedded store: one file, one process, no set-up.
//!
//! The file belongs to the process that has it open; a lock file beside it says which. See `docs/reference/store.md`
//! for operators.

mod disk;
mod encoding;
mod engine;
mod lock;
mod overlay;
mod tables;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::history::{History, Limit};
use super::{
    Backup, Commit, Entry, Key, Revision, Snapshot, Store, StoreError, StoreFault, Transaction, Watch,
};
use crate::Deadlines;
pub use disk::Disk;
use disk::{FileDisk, MemoryDisk};
use engine::Engine;
use lock::Lock;
use writer::{Guard, Request, WAITING, Writer};

/// How a [`FileStore`] is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileOptions {
    /// What happens where there is no file. Default: that is an error.
    pub missing: Missing,
    /// The most transactions whose changes are kept for watches, also over a restart. Default: 10 000.
    pub history: usize,
    /// The most bytes of their keys and values, all of them in memory too. Default: 16 MiB.
    pub history_bytes: usize,
    /// How long one request may take. Default: [`Deadlines::store`].
    pub deadline: Duration,
}

/// What happens where there is no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// It is an error: a store that was there before and is gone must not begin anew with nothing.
    Refuse,
    /// A new, empty store is made. For the initialisation of a site.
    Create,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            missing: Missing::Refuse,
            history: 10_000,
            history_bytes: 16 << 20,
            deadline: Deadlines::default().store,
        }
    }
}

impl FileOptions {
    /// Sets what happens where there is no file.
    #[must_use]
    pub fn missing(mut self, value: Missing) -> Self {
        self.missing = value;
        self
    }

    /// Sets the most transactions whose changes are kept for watches; at least one.
    #[must_use]
    pub fn history(mut self, value: usize) -> Self {
        self.history = value.max(1);
        self
    }

    /// Sets the most bytes of keys and values that are kept for watches.
    #[must_use]
    pub fn history_bytes(mut self, value: usize) -> Self {
        self.history_bytes = value;
        self
    }

    /// Sets how long one request may take.
    #[must_use]
    pub fn deadline(mut self, value: Duration) -> Self {
        self.deadline = value;
        self
    }

    fn limit(&self) -> Limit {
        Limit { sets: self.history.max(1), bytes: self.history_bytes }
    }
}

/// How far above a backup's revision a restored store begins: no revision that was given since the backup is given
/// again, as long as there were fewer than this.
pub const RESTORE_STEP: u64 = 1_000_000;

/// The store in a file. Clones are the same store; with the last one it is closed.
///
/// Needs a Tokio runtime with time enabled. Reads run on its threads for blocking work, writes on a thread of the
/// store's own, several waiting ones together; each has reached the disk when it is confirmed.
///
/// What is damaged is found when the file is opened, which reads all of it, or when it is read: that is
/// [`StoreError::Damaged`], never another value or an empty store. A disk that is full or read-only refuses writes, with
/// [`StoreError::NotWritable`]; reads go on, and so do writes once it takes them again. No clock of the system is used.
///
/// Dropping the last clone waits for the write that is under way.
#[derive(Debug, Clone)]
pub struct FileStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Arc<Engine>,
    history: Arc<History>,
    /// `None` once it is closed by dropping.
    requests: Option<mpsc::Sender<Request>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    deadline: Duration,
    place: String,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Ends the thread.
        self.requests = None;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// What compaction has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compaction {
    /// The bytes of the file before.
    pub before: u64,
    /// The bytes of the file now.
    pub after: u64,
}

/// That the content of a file is not what was written, and the way out.
fn damaged(place: &str, what: &str) -> StoreError {
    let what = format!("{what}; nothing was changed: move the file away, and restore the newest backup");
    StoreError::Damaged { place: place.to_owned(), what }
}

fn unavailable(place: &str, source: impl Into<StoreFault>) -> StoreError {
    StoreError::Unavailable { place: place.to_owned(), source: source.into() }
}

/// Runs what blocks where that is welcome.
async fn blocking<T: Send + 'static>(
    place: &str,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(unavailable(place, error)),
    }
}

impl FileStore {
    /// Opens the store in the file at `path`, which takes as long as reading the file.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if there is none and [`FileOptions::missing`] does not say otherwise;
    /// [`StoreError::InUse`]; [`StoreError::Damaged`]; [`StoreError::Newer`]; [`StoreError::Unavailable`] if the system
    /// does not let it be opened.
    ///
    /// # Cancellation
    /// The file may stay open for a moment.
    pub async fn open(path: &Path, options: FileOptions) -> Result<Self, StoreError> {
        let path = path.to_owned();
        let place = path.display().to_string();
        blocking(&place, move || Self::open_now(&path, &options)).await
    }

    fn open_now(path: &Path, options: &FileOptions) -> Result<Self, StoreError> {
        let place = path.display().to_string();
        let missing = || !path.try_exists().unwrap_or(true);
        if missing() && options.missing == Missing::Refuse {
            return Err(StoreError::Missing { path: path.to_owned() });
        }
        let lock = Lock::take(path)?;
        if missing() {
            make(path, &Snapshot::default())?;
        }
        let disk = Arc::new(FileDisk::open(path).map_err(|error| unavailable(&place, error))?);
        if !disk.lock().map_err(|error| unavailable(&place, error))? {
            return Err(lock::in_use(path));
        }
        let guard = Guard { disk: Arc::clone(&disk), _lock: lock };
        Self::start(disk, &place, options, Some(guard))
    }

    /// Opens a store on a disk of the caller's, for tests of what happens when that fails. An empty one gets a new
    /// store if [`FileOptions::missing`] says so.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[cfg(feature = "testing")]
    pub async fn on_disk(disk: Arc<dyn Disk>, options: FileOptions) -> Result<Self, StoreError> {
        let place = "the disk of a test";
        blocking(place, move || {
            let size = disk.size().map_err(|error| unavailable(place, error))?;
            if size == 0 {
                match options.missing {
                    Missing::Create => Engine::create(&disk, place, &Snapshot::default())?,
                    Missing::Refuse => return Err(StoreError::Missing { path: place.into() }),
                }
            }
            Self::start(disk, place, &options, None)
        })
        .await
    }

    fn start(
        disk: Arc<dyn Disk>,
        place: &str,
        options: &FileOptions,
        guard: Option<Guard>,
    ) -> Result<Self, StoreError> {
        let (engine, history) = Engine::open(disk, place, options.limit())?;
        let engine = Arc::new(engine);
        let (requests, asked) = mpsc::channel(WAITING);
        let writer = Writer {
            engine: Arc::clone(&engine),
            history: Arc::clone(&history),
            place: place.to_owned(),
            guard,
        };
        let thread = std::thread::Builder::new().name("spur-store".to_owned());
        let thread = thread.spawn(move || writer.run(asked)).map_err(|error| unavailable(place, error))?;
        Ok(Self(Arc::new(Inner {
            engine,
            history,
            requests: Some(requests),
            thread: Mutex::new(Some(thread)),
            deadline: options.deadline,
            place: place.to_owned(),
        })))
    }

    /// Makes a store at `path` from a backup. It begins [`RESTORE_STEP`] above the backup's revision and has no
    /// history; entries keep the revisions at which they came to be and were written.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`] if there is a file already; [`StoreError::NotWritable`]; [`StoreError::InUse`].
    ///
    /// # Cancellation
    /// The store may be made all the same, never in part.
    pub async fn restore(backup: Backup, path: &Path) -> Result<Revision, StoreError> {
        let path = path.to_owned();
        let place = path.display().to_string();
        blocking(&place, move || {
            let _lock = Lock::take(&path)?;
            let mut snapshot = backup.into_snapshot();
            snapshot.revision = Revision(snapshot.revision.0.saturating_add(RESTORE_STEP));
            make(&path, &snapshot)?;
            Ok(snapshot.revision)
        })
        .await
    }

    /// Gives back to the file system what deleted and replaced entries took. Requests wait meanwhile.
    ///
    /// # Errors
    /// [`StoreError::NotWritable`] if the disk takes no writes: compaction needs some room first.
    ///
    /// # Cancellation
    /// It goes on.
    pub async fn compact(&self) -> Result<Compaction, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.ask(Request::Compact(answer)).await?;
        let (before, after) = answered.await.map_err(|_| self.closed())??;
        Ok(Compaction { before, after })
    }

    /// Closes the store for all clones: what was asked before is done, what is asked later is
    /// [`StoreError::Unavailable`]. When this returns, another process can open it.
    ///
    /// # Cancellation
    /// It goes on.
    pub async fn close(&self) {
        // If this fails it is closed already.
        let _ = self.ask(Request::Close).await;
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(|| thread.join()).await;
        }
    }

    async fn ask(&self, request: Request) -> Result<(), StoreError> {
        let Some(requests) = &self.0.requests else { return Err(self.closed()) };
        match tokio::time::timeout(self.0.deadline, requests.send(request)).await {
            Ok(sent) => sent.map_err(|_| self.closed()),
            Err(_) => Err(unavailable(&self.0.place, format!("{WAITING} writes are waiting"))),
        }
    }

    fn closed(&self) -> StoreError {
        unavailable(&self.0.place, "the store was closed")
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Engine) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let engine = Arc::clone(&self.0.engine);
        let (place, after) = (&self.0.place, self.0.deadline);
        match tokio::time::timeout(after, blocking(place, move || read(&engine))).await {
            Ok(read) => read,
            Err(_) => Err(StoreError::Timeout { place: place.clone(), after }),
        }
    }
}

/// Makes a store's file with its first content, whole or not at all.
fn make(path: &Path, first: &Snapshot) -> Result<(), StoreError> {
    let place = path.display().to_string();
    let memory = Arc::new(MemoryDisk::default());
    let disk: Arc<dyn Disk> = Arc::clone(&memory) as Arc<dyn Disk>;
    Engine::create(&disk, &place, first)?;
    crate::fs::create_file(path, &memory.bytes(), 0o600).map_err(|error| match error.source.kind() {
        io::ErrorKind::AlreadyExists => StoreError::NotEmpty { place },
        _ => StoreError::NotWritable { place, source: Box::new(error) },
    })
}

/// The file that says which process has the store at `path`.
#[must_use]
pub fn lock_file(path: &Path) -> PathBuf {
    lock::lock_path(path)
}

impl Store for FileStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let key = key.clone();
        self.read(move |engine| engine.get(&key)).await
    }

    async fn range(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let prefix = prefix.to_owned();
        self.read(move |engine| engine.range(&prefix)).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, StoreError> {
        transaction.check()?;
        let (answer, answered) = oneshot::channel();
        self.ask(Request::Commit(transaction, answer)).await?;
        match tokio::time::timeout(self.0.deadline, answered).await {
            Ok(Ok(outcome)) => outcome,
            // It was not looked at.
            Ok(Err(_)) => Err(self.closed()),
            Err(_) => {
                let source = format!("no answer within {:?}", self.0.deadline).into();
                Err(StoreError::Unconfirmed { place: self.0.place.clone(), source })
            }
        }
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        let newest = self.read(Engine::revision).await?;
        if after > newest {
            // It is from another life of this store, such as before a copy of the file was put in its place.
            return Err(StoreError::Expired { after, oldest: self.0.history.floor() });
        }
        self.0.history.watch(prefix, after, &self.0.place)
    }
}
