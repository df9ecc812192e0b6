//! A disk that fails when it is told to.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spur_sdk::store::file::Disk;

use super::Image;

/// A disk whose operations are counted, and fail from one of them on until it is healed.
#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) image: Image,
    /// Writes, changes of size and syncs so far.
    count: AtomicU64,
    /// From which one on they fail, and with which error.
    fails: Mutex<Option<(u64, io::ErrorKind)>>,
    /// Whether a write that fails has written its first half.
    tears: AtomicBool,
    /// Whether reads fail.
    deaf: AtomicBool,
}

impl Faulty {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self {
            image: Image::new(bytes),
            count: AtomicU64::new(0),
            fails: Mutex::new(None),
            tears: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
        }
    }

    /// Operations so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Lets every operation fail that comes after `spared` more.
    pub(crate) fn fail_after(&self, spared: u64, kind: io::ErrorKind, tears: bool) {
        self.tears.store(tears, Ordering::SeqCst);
        *self.fails.lock().unwrap() = Some((self.count() + spared, kind));
    }

    /// Lets reads fail.
    pub(crate) fn fail_reads(&self) {
        self.deaf.store(true, Ordering::SeqCst);
    }

    pub(crate) fn heal(&self) {
        *self.fails.lock().unwrap() = None;
        self.deaf.store(false, Ordering::SeqCst);
    }

    fn admit(&self) -> io::Result<()> {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        match *self.fails.lock().unwrap() {
            Some((first, kind)) if number >= first => Err(kind.into()),
            _ => Ok(()),
        }
    }
}

impl Disk for Faulty {
    fn size(&self) -> io::Result<u64> {
        self.image.size()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        if self.deaf.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk does not answer"));
        }
        self.image.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let admitted = self.admit();
        if admitted.is_ok() {
            self.image.write(offset, bytes)?;
        } else if self.tears.load(Ordering::SeqCst) {
            self.image.write(offset, &bytes[..bytes.len() / 1024 * 512])?;
        }
        admitted
    }

    fn resize(&self, size: u64) -> io::Result<()> {
        self.admit()?;
        self.image.resize(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.admit()
    }
}
