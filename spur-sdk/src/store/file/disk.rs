//! What a store's file lies on, and the first block of the file, which is ours.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use sha2::{Digest, Sha256};

use crate::store::backup::to_hex;
use crate::store::{Revision, StoreError};

/// What a store's file lies on. What was written may be lost, in part too, until [`sync`](Disk::sync) has returned.
pub trait Disk: fmt::Debug + Send + Sync + 'static {
    /// The bytes of the file.
    fn size(&self) -> io::Result<u64>;
    /// Reads all of `bytes` at `offset`.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts the file, or lengthens it by zeros.
    fn resize(&self, size: u64) -> io::Result<()>;
    /// Makes what was written before survive a loss of power.
    fn sync(&self) -> io::Result<()>;
}

/// A file of the system.
#[derive(Debug)]
pub(super) struct FileDisk {
    path: PathBuf,
    file: RwLock<File>,
    /// Whether it was opened for writing, which a read-only file system refuses.
    writable: AtomicBool,
}

impl FileDisk {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let (file, writable) = match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => (File::open(path)?, false),
            opened => (opened?, true),
        };
        Ok(Self { path: path.to_owned(), file: RwLock::new(file), writable: AtomicBool::new(writable) })
    }

    /// Takes the file for this process; `false` if another one has it.
    pub(super) fn lock(&self) -> io::Result<bool> {
        match self.file.read().unwrap_or_else(PoisonError::into_inner).try_lock() {
            Ok(()) => Ok(true),
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Leaves the file to other processes.
    pub(super) fn unlock(&self) {
        // The system does it at the latest when the file is closed.
        let _ = self.file.read().unwrap_or_else(PoisonError::into_inner).unlock();
    }

    /// The file, for writing.
    fn to_write<T>(&self, write: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        if !self.writable.load(Ordering::Acquire) {
            let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
            let new = File::options().read(true).write(true).open(&self.path)?;
            // The lock belongs to what was opened.
            file.unlock()?;
            new.try_lock().map_err(io::Error::from)?;
            *file = new;
            self.writable.store(true, Ordering::Release);
        }
        write(&self.file.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Disk for FileDisk {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.read().unwrap_or_else(PoisonError::into_inner).metadata()?.len())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        std::os::unix::fs::FileExt::read_exact_at(&*file, bytes, offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.to_write(|file| std::os::unix::fs::FileExt::write_all_at(file, bytes, offset))
    }

    fn resize(&self, size: u64) -> io::Result<()> {
        self.to_write(|file| file.set_len(size))
    }

    fn sync(&self) -> io::Result<()> {
        self.to_write(File::sync_data)
    }
}

/// A file in memory: what a new store is made on before it gets its name.
#[derive(Debug, Default)]
pub(super) struct MemoryDisk(Mutex<Vec<u8>>);

impl MemoryDisk {
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn position(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(io::Error::other)
}

impl Disk for MemoryDisk {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = position(offset)?;
        let part = held.get(start..start + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(part);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = position(offset)?;
        let end = start + bytes.len();
        if held.len() < end {
            held.resize(end, 0);
        }
        if let Some(part) = held.get_mut(start..end) {
            part.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn resize(&self, size: u64) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).resize(position(size)?, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The bytes of the first block, behind which the database begins.
pub(super) const HEAD: u64 = 4096;

/// What disks write whole or not at all.
const SECTOR: u64 = 512;

/// The format of the file that is written.
const FORMAT: u32 = 1;

const MAGIC: &str = "spur-store ";

/// Where the two marks stand.
const MARKS: [u64; 2] = [SECTOR, 2 * SECTOR];

/// Writes the head of a new file.
pub(super) fn write_head(disk: &dyn Disk) -> io::Result<()> {
    let mut head = vec![0; usize::try_from(HEAD).map_err(io::Error::other)?];
    let line = format!("{MAGIC}{FORMAT}\n");
    for (to, from) in head.iter_mut().zip(line.bytes()) {
        *to = from;
    }
    disk.write(0, &head)
}

/// The newest revision that was safe on the disk, for as far as the disk has it: a lower bound.
///
/// The database falls back to its last commit but one if the last is damaged, since after a crash that is right. What
/// has been confirmed must not vanish like that, so each confirmed revision is noted here, one sector after the other.
#[derive(Debug)]
pub(super) struct Mark {
    /// Where the next is written: not over the newest.
    next: Mutex<usize>,
}

impl Mark {
    /// Notes a revision. If this fails, an older one stands there, which is as true.
    pub(super) fn write(&self, disk: &dyn Disk, revision: Revision) -> io::Result<()> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sector = mark_line(revision).into_bytes();
        sector.resize(512, 0);
        if let Some(offset) = MARKS.get(*next) {
            disk.write(*offset, &sector)?;
        }
        *next = (*next + 1) % MARKS.len();
        Ok(())
    }
}

fn mark_line(revision: Revision) -> String {
    let text = format!("revision {revision}");
    let sum = Sha256::digest(text.as_bytes());
    // A quarter of it is plenty for one line.
    let (sum, _) = sum.split_at(8);
    format!("{text} {}\n", to_hex(sum))
}

fn read_mark(sector: &[u8]) -> Option<Revision> {
    let line = sector.split(|byte| *byte == b'\n').next()?;
    let text = std::str::from_utf8(line).ok()?;
    let revision = Revision(text.strip_prefix("revision ")?.split(' ').next()?.parse().ok()?);
    (mark_line(revision).trim_end() == text).then_some(revision)
}

/// Reads the head: that it is a store's file, of a format that we know, and what was marked.
pub(super) fn read_head(disk: &dyn Disk, place: &str) -> Result<(Mark, Revision), StoreError> {
    let failed =
        |source: io::Error| StoreError::Unavailable { place: place.to_owned(), source: Box::new(source) };
    let damaged = |what: &str| super::damaged(place, what);
    let size = disk.size().map_err(failed)?;
    if size < 2 * HEAD || size % HEAD != 0 {
        return Err(damaged(&format!("it ends after {size} bytes, in the middle of its content")));
    }
    let mut first = vec![0; 512];
    disk.read(0, &mut first).map_err(failed)?;
    let line = first.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let format =
        std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix(MAGIC)?.parse::<u32>().ok());
    match format {
        Some(FORMAT) => {}
        Some(found) if found > FORMAT => {
            return Err(StoreError::Newer { place: place.to_owned(), found, newest: FORMAT });
        }
        _ => return Err(damaged("it does not begin as the file of a store does")),
    }
    let mut marks = Vec::new();
    for offset in MARKS {
        let mut sector = vec![0; 512];
        disk.read(offset, &mut sector).map_err(failed)?;
        marks.push(if sector.iter().all(|byte| *byte == 0) { Some(Revision(0)) } else { read_mark(&sector) });
    }
    let newest = marks.iter().copied().max().flatten();
    let Some(newest) = newest else { return Err(damaged("its marks cannot be read")) };
    let next = marks.iter().position(|mark| *mark != Some(newest)).unwrap_or(0);
    Ok((Mark { next: Mutex::new(next) }, newest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> MemoryDisk {
        let disk = MemoryDisk::default();
        write_head(&disk).unwrap();
        disk.resize(2 * HEAD).unwrap();
        disk
    }

    #[test]
    fn the_newest_mark_counts_and_is_not_overwritten() {
        let disk = disk();
        let (mark, newest) = read_head(&disk, "s").unwrap();
        assert_eq!(newest, Revision(0));
        for revision in 1..6 {
            mark.write(&disk, Revision(revision)).unwrap();
            let (again, newest) = read_head(&disk, "s").unwrap();
            assert_eq!(newest, Revision(revision));
            assert_eq!(*again.next.lock().unwrap(), *mark.next.lock().unwrap());
        }
    }

    #[test]
    fn a_torn_mark_leaves_the_one_before() {
        let disk = disk();
        let (mark, _) = read_head(&disk, "s").unwrap();
        mark.write(&disk, Revision(1)).unwrap();
        mark.write(&disk, Revision(2)).unwrap();
        disk.write(2 * SECTOR + 10, b"x").unwrap();
        assert_eq!(read_head(&disk, "s").unwrap().1, Revision(1));
        disk.write(SECTOR + 10, b"x").unwrap();
        assert!(matches!(read_head(&disk, "s"), Err(StoreError::Damaged { .. })));
    }

    #[test]
    fn a_newer_format_is_named() {
        let disk = disk();
        disk.write(0, b"spur-store 2\n").unwrap();
        let error = read_head(&disk, "the file").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the file is of format 2, this version reads up to 1: use the version that wrote it, or a later one"
        );
    }
}
