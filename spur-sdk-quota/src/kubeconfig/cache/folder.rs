//! A folder that belongs to the user alone.
//!
//! It may stand in a place where others write, such as `/tmp`. So nothing is reached by a path but the folder's parent:
//! all else is opened relative to the open folder, without following links, and looked at after it was opened.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use zeroize::Zeroizing;

/// A token with all around it has a few KiB.
const LARGEST: u64 = 64 << 10;

/// Between two looks at a lock.
const POLL: Duration = Duration::from_millis(5);

/// What a file server gets to answer, beyond what is waited for a lock.
const PATIENCE: Duration = Duration::from_secs(1);

const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

pub(super) struct Folder(OwnedFd);

/// A lock, or why there is none. The lock is held until the value is gone or the process is.
pub(super) enum Lock {
    Held(#[expect(dead_code, reason = "held, not read")] File),
    /// Another process has it.
    Busy,
    /// This file system has none, or does not answer.
    Unable,
}

fn is_ours(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}

fn mode(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode)
}

impl Folder {
    /// Opens the folder and makes it if it is missing; the parent must be there.
    pub(super) fn open(parent: &Path, name: &str) -> Result<Self, String> {
        let words = |error: Errno| error.to_string();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(parent, flags | OFlags::RDONLY, Mode::empty()).map_err(words)?;
        match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(words(error)),
        }
        let folder = rustix::fs::openat(&parent, name, flags | OFlags::NOFOLLOW, Mode::empty());
        let folder = folder.map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => "it is a symbolic link or no folder".to_owned(),
            error => words(error),
        })?;
        let stat = rustix::fs::fstat(&folder).map_err(words)?;
        if !is_ours(&stat) {
            return Err(format!("it belongs to uid {}", stat.st_uid));
        }
        if mode(&stat).intersects(OTHERS) {
            rustix::fs::fchmod(&folder, Mode::RWXU).map_err(words)?;
        }
        Ok(Self(folder))
    }

    /// What is in a file of ours that nobody else can read; `None` for any other.
    pub(super) fn read(&self, name: &str) -> Option<Zeroizing<String>> {
        // To open a pipe would wait for whoever writes it.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || !is_ours(&stat) || mode(&stat).intersects(OTHERS) || stat.st_nlink != 1 {
            return None;
        }
        let size = u64::try_from(stat.st_size).ok().filter(|size| *size <= LARGEST)?;
        // In full at once: text that moves as it grows leaves copies behind.
        let mut text = Zeroizing::new(String::with_capacity(usize::try_from(size).ok()?));
        File::from(file).take(size).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Puts a file in place whole: who reads it meanwhile finds the old one.
    pub(super) fn replace(&self, name: &str, text: &str) -> std::io::Result<()> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let new = format!("{name}.{}.{number}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(&self.0, &new, flags, PRIVATE_FILE);
        let file = match create() {
            // Of a process that had this number and was killed.
            Err(Errno::EXIST) if self.remove(&new) => create(),
            done => done,
        };
        let written = File::from(file?).write_all(text.as_bytes());
        let placed = written.and_then(|()| Ok(rustix::fs::renameat(&self.0, &new, &self.0, name)?));
        if placed.is_err() {
            self.remove(&new);
        }
        placed
    }

    pub(super) fn remove(&self, name: &str) -> bool {
        rustix::fs::unlinkat(&self.0, name, AtFlags::empty()).is_ok()
    }

    /// Takes a lock among processes. On a thread of its own: a file server may not answer, and no flag changes that.
    pub(super) fn lock(&self, name: &str, wait: Duration) -> Lock {
        let Ok(folder) = self.0.try_clone() else { return Lock::Unable };
        let name = name.to_owned();
        let (sender, receiver) = mpsc::channel();
        let take = move || {
            // Nobody listens any more where it took too long; then the file is closed, which frees it.
            let _ = sender.send(take_lock(&folder, &name, wait));
        };
        match std::thread::Builder::new().name("spur-token-lock".to_owned()).spawn(take) {
            Ok(_) => receiver.recv_timeout(wait.saturating_add(PATIENCE)).unwrap_or(Lock::Unable),
            Err(_) => Lock::Unable,
        }
    }
}

fn take_lock(folder: &OwnedFd, name: &str, wait: Duration) -> Lock {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(folder, name, flags, PRIVATE_FILE) else { return Lock::Unable };
    let file = File::from(file);
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Lock::Held(file),
            Err(std::fs::TryLockError::WouldBlock) if begin.elapsed() >= wait => return Lock::Busy,
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(POLL),
            Err(std::fs::TryLockError::Error(_)) => return Lock::Unable,
        }
    }
}
