//! What lies between the database and the disk.
//!
//! The database refuses everything, reads too, once a write has failed, and a failed `fsync` leaves open what is on the
//! disk: the next one may succeed without what the failed one was about. So what the database writes is kept in memory
//! until it is safe on the disk. If that fails, the blocks are put back, in memory, to what they held before: the
//! database is opened anew on that, at the last commit that is safe, and reads go on. Before the next commit the blocks
//! are written again.
//!
//! It also knows what each block must hold, so that a disk that gives something else is not believed.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hasher;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use redb::StorageBackend;

use super::disk::{Disk, HEAD};

/// The bytes of a block, which are those of the database's pages.
const BLOCK: usize = 4096;

type Block = [u8; BLOCK];

/// The block that says which commit is the last one.
const ROOT: u64 = 0;

/// How far a write that failed has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Nothing of it will ever be seen.
    Nothing,
    /// It may be seen after a crash.
    Unclear,
}

/// A disk did not take what was written.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) reach: Reach,
    kind: io::ErrorKind,
    text: String,
}

impl Failure {
    pub(super) fn new(reach: Reach, error: &io::Error) -> Self {
        Self { reach, kind: error.kind(), text: error.to_string() }
    }

    pub(super) fn source(&self) -> io::Error {
        io::Error::new(self.kind, self.text.clone())
    }
}

#[derive(Debug)]
pub(super) struct Overlay {
    disk: Arc<dyn Disk>,
    state: RwLock<State>,
    failure: Mutex<Option<Failure>>,
}

#[derive(Debug, Default)]
struct State {
    /// What was written and is not safe on the disk yet.
    dirty: BTreeMap<u64, Arc<Block>>,
    /// The bytes that the database sees.
    size: u64,
    /// The same at the last commit that is safe.
    safe_size: u64,
    /// The bytes that the disk has.
    disk_size: u64,
    /// Of each block on the disk that was seen, what it must hold.
    sums: HashMap<u64, u64>,
    /// Whether the disk does not take writes, and changes stay in memory.
    held: bool,
}

fn sum(block: &Block) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(block);
    hasher.finish()
}

/// The offset of a block in the file.
fn offset(block: u64) -> u64 {
    HEAD + block * BLOCK as u64
}

impl Overlay {
    pub(super) fn new(disk: Arc<dyn Disk>) -> io::Result<Self> {
        let size = disk.size()?.saturating_sub(HEAD);
        let state = State { size, safe_size: size, disk_size: size, ..State::default() };
        Ok(Self { disk, state: RwLock::new(state), failure: Mutex::new(None) })
    }

    fn look(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the last write came to, if it failed and nobody has asked yet.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the disk does not take writes.
    pub(super) fn is_held(&self) -> bool {
        self.look().held
    }

    /// Forgets what was written since the last commit that is safe.
    pub(super) fn discard(&self) {
        let mut state = self.change();
        if !state.held {
            state.dirty.clear();
            state.size = state.safe_size;
        }
    }

    /// Writes what was held back, if anything was.
    pub(super) fn heal(&self) -> io::Result<()> {
        if !self.is_held() {
            return Ok(());
        }
        let (dirty, size) = {
            let state = self.look();
            (state.dirty.clone(), state.size)
        };
        // Several commits may be in it, so their root may go to the disk only when all the rest is there.
        let written = self.write_all(&dirty, size).and_then(|()| self.disk.sync()).and_then(|()| {
            self.write_root(&dirty)?;
            self.disk.sync()
        });
        if let Err(error) = written {
            self.measure();
            return Err(error);
        }
        self.settle(&dirty, size);
        self.change().held = false;
        Ok(())
    }

    /// Makes what was written safe, or undoes it.
    fn flush(&self) -> io::Result<()> {
        let (dirty, size, safe_size) = {
            let state = self.look();
            if state.held || (state.dirty.is_empty() && state.size == state.disk_size) {
                return Ok(());
            }
            (state.dirty.clone(), state.size, state.safe_size)
        };
        let mut reach = Reach::Nothing;
        let mut before = BTreeMap::new();
        let written = (|| {
            for block in dirty.keys().filter(|block| **block * (BLOCK as u64) < safe_size) {
                before.insert(*block, Arc::new(self.read_disk(*block)?));
            }
            self.write_all(&dirty, size)?;
            reach = Reach::Unclear;
            self.write_root(&dirty)?;
            self.disk.sync()
        })();
        let Err(source) = written else {
            self.settle(&dirty, size);
            return Ok(());
        };
        let failure = Failure::new(reach, &source);
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        self.measure();
        let mut state = self.change();
        state.dirty = before;
        state.size = safe_size;
        state.held = true;
        Err(source)
    }

    /// Writes all blocks but the root.
    fn write_all(&self, dirty: &BTreeMap<u64, Arc<Block>>, size: u64) -> io::Result<()> {
        if size > self.look().disk_size {
            self.disk.resize(HEAD + size)?;
        }
        let mut run: Vec<u8> = Vec::new();
        let mut start = 0;
        for (block, bytes) in dirty.iter().filter(|(block, _)| **block != ROOT) {
            if !run.is_empty() && start + (run.len() / BLOCK) as u64 != *block {
                self.disk.write(offset(start), &run)?;
                run.clear();
            }
            if run.is_empty() {
                start = *block;
            }
            run.extend_from_slice(&bytes[..]);
        }
        if run.is_empty() { Ok(()) } else { self.disk.write(offset(start), &run) }
    }

    fn write_root(&self, dirty: &BTreeMap<u64, Arc<Block>>) -> io::Result<()> {
        match dirty.get(&ROOT) {
            Some(root) => self.disk.write(offset(ROOT), &root[..]),
            None => Ok(()),
        }
    }

    /// What was written is safe.
    fn settle(&self, dirty: &BTreeMap<u64, Arc<Block>>, size: u64) {
        let mut state = self.change();
        for (block, bytes) in dirty {
            state.sums.insert(*block, sum(bytes));
            if state.dirty.get(block).is_some_and(|now| Arc::ptr_eq(now, bytes)) {
                state.dirty.remove(block);
            }
        }
        state.safe_size = size;
        state.disk_size = state.disk_size.max(size);
        if size < state.disk_size {
            // Only now, since until now a crash would have needed it. A file that stays too long does no harm.
            if self.disk.resize(HEAD + size).is_ok() {
                state.disk_size = size;
            }
            state.sums.retain(|block, _| *block * (BLOCK as u64) < size);
        }
    }

    /// Finds out how much of the file there is after a write that failed.
    fn measure(&self) {
        if let Ok(size) = self.disk.size() {
            self.change().disk_size = size.saturating_sub(HEAD);
        }
    }

    /// A block as the disk has it.
    fn read_disk(&self, block: u64) -> io::Result<Block> {
        let mut bytes = [0; BLOCK];
        self.disk.read(offset(block), &mut bytes)?;
        let found = sum(&bytes);
        let mut state = self.change();
        match state.sums.get(&block) {
            Some(expected) if *expected != found => {
                let what =
                    format!("the disk gives something else than was written, at byte {}", offset(block));
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
            Some(_) => Ok(bytes),
            None => {
                state.sums.insert(block, found);
                Ok(bytes)
            }
        }
    }

    /// A block as the database must see it.
    fn read_block(&self, block: u64) -> io::Result<Block> {
        let start = block * BLOCK as u64;
        let (held, on_disk) = {
            let state = self.look();
            if start >= state.size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            (state.dirty.get(&block).cloned(), start < state.disk_size)
        };
        match held {
            Some(bytes) => Ok(*bytes),
            None if on_disk => self.read_disk(block),
            None => Ok([0; BLOCK]),
        }
    }

    fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        for part in parts(start, out.len()) {
            let bytes = self.read_block(part.block)?;
            if let (Some(to), Some(from)) = (out.get_mut(part.outside), bytes.get(part.inside)) {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }

    fn write(&self, start: u64, data: &[u8]) -> io::Result<()> {
        for part in parts(start, data.len()) {
            let mut bytes =
                if part.inside.len() == BLOCK { [0; BLOCK] } else { self.read_block(part.block)? };
            if let (Some(to), Some(from)) = (bytes.get_mut(part.inside), data.get(part.outside)) {
                to.copy_from_slice(from);
            }
            self.change().dirty.insert(part.block, Arc::new(bytes));
        }
        Ok(())
    }

    fn resize(&self, size: u64) {
        let mut state = self.change();
        let blocks = |size: u64| size.div_ceil(BLOCK as u64);
        let kept = blocks(size);
        state.dirty.retain(|block, _| *block < kept);
        // What was cut off is zero when it comes back, whatever the disk still has there.
        for block in blocks(state.size)..kept.min(blocks(state.disk_size)) {
            state.dirty.insert(block, Arc::new([0; BLOCK]));
        }
        state.size = size;
    }
}

/// A part of a read or a write that lies in one block.
struct Part {
    block: u64,
    inside: std::ops::Range<usize>,
    outside: std::ops::Range<usize>,
}

fn parts(start: u64, length: usize) -> impl Iterator<Item = Part> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= length {
            return None;
        }
        let position = start + done as u64;
        let begin = usize::try_from(position % BLOCK as u64).ok()?;
        let count = (BLOCK - begin).min(length - done);
        let outside = done..done + count;
        done += count;
        Some(Part { block: position / BLOCK as u64, inside: begin..begin + count, outside })
    })
}

/// An overlay as one opening of the database sees it.
#[derive(Debug)]
pub(super) struct Opening {
    overlay: Arc<Overlay>,
    /// Whether this opening counts still; what one writes that was given up must not reach the next one.
    alive: Arc<AtomicBool>,
}

impl Opening {
    pub(super) fn new(overlay: Arc<Overlay>, alive: Arc<AtomicBool>) -> Self {
        Self { overlay, alive }
    }

    fn overlay(&self) -> io::Result<&Overlay> {
        if self.alive.load(Ordering::Acquire) {
            Ok(&self.overlay)
        } else {
            Err(io::Error::other("the database is being opened anew"))
        }
    }
}

impl StorageBackend for Opening {
    fn len(&self) -> io::Result<u64> {
        Ok(self.overlay()?.look().size)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.overlay()?.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.overlay()?.resize(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.overlay()?.flush().inspect_err(|_| self.alive.store(false, Ordering::Release))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.overlay()?.write(offset, data)
    }
}
