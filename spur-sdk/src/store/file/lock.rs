//! Who has the store.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::store::StoreError;

/// The lock file beside a store's file, which says who has it. The system gives it up when the process ends, however it
/// does; the file stays.
#[derive(Debug)]
pub(super) struct Lock(Option<File>);

/// The lock file of a store's file.
pub(super) fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

impl Lock {
    pub(super) fn take(path: &Path) -> Result<Self, StoreError> {
        let own = lock_path(path);
        let failed = |source: io::Error| StoreError::Unavailable {
            place: own.display().to_string(),
            source: Box::new(source),
        };
        let opened =
            File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&own);
        let (mut file, writable) = match opened {
            // What can't be written needs no guard that can be, but one that is there is heeded.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => match File::open(&own) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self(None)),
                file => (file.map_err(failed)?, false),
            },
            file => (file.map_err(failed)?, true),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(path)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        if writable {
            // It is for people, so a disk that is full does not matter.
            let _ = file.set_len(0).and_then(|()| file.write_all(this_process().as_bytes()));
        }
        Ok(Self(Some(file)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = &mut self.0 {
            // Nobody has it now.
            let _ = file.rewind().and_then(|()| file.set_len(0));
        }
    }
}

fn this_process() -> String {
    let program = std::env::current_exe().map_or_else(|_| "?".to_owned(), |path| path.display().to_string());
    format!("{} {program}\n", std::process::id())
}

/// That another process has the store, and which.
pub(super) fn in_use(path: &Path) -> StoreError {
    let mut text = String::new();
    let read = File::open(lock_path(path)).and_then(|file| file.take(4096).read_to_string(&mut text));
    let holder = match text.trim_end().split_once(' ') {
        Some((process, program)) if read.is_ok() => format!("process {process}, {program}"),
        _ => "another process".to_owned(),
    };
    StoreError::InUse { path: path.to_owned(), holder }
}
