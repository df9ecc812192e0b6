//! Files: the path stands in every error.

use std::fs::{File, Metadata};
use std::io::{ErrorKind as IoErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::{Classify, ErrorKind};

/// A file could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("{action} {}", path.display())]
pub struct FileError {
    /// What was tried: `read`.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: std::io::Error,
}

impl Classify for FileError {
    fn kind(&self) -> ErrorKind {
        match self.source.kind() {
            IoErrorKind::NotFound => ErrorKind::NotFound,
            IoErrorKind::PermissionDenied => ErrorKind::Denied,
            IoErrorKind::InvalidData => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        }
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError { action, path, source }
}

/// Reads a whole file as UTF-8 text.
///
/// # Errors
/// The system's error, or `InvalidData` when the file is longer than `limit` bytes or not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String, FileError> {
    let file = File::open(path).map_err(failed("read", path))?;
    let mut text = String::new();
    let read = file.take(limit.saturating_add(1)).read_to_string(&mut text).map_err(failed("read", path))?;
    if u64::try_from(read).unwrap_or(u64::MAX) > limit {
        let source =
            std::io::Error::new(IoErrorKind::InvalidData, format!("the file is larger than {limit} bytes"));
        return Err(FileError { action: "read", path: path.to_owned(), source });
    }
    Ok(text)
}

/// What tells one state of a file from another: two that differ are two states.
///
/// The reverse does not hold for an edit that keeps the length within one tick of the file system's clock, which is a
/// few milliseconds on most and two seconds on the coarsest, FAT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint(State);

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    File {
        /// The path without symbolic links, which are how a mounted ConfigMap is swapped.
        resolved: Option<PathBuf>,
        inode: Inode,
        length: u64,
        modified: Option<SystemTime>,
    },
    /// A pipe, a device or a folder: what is in it does not show.
    Other,
    Missing,
    Unreadable(IoErrorKind),
}

/// What a file is, and when it was last written, linked or given other rights, which no program can set.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Inode {
    device: u64,
    number: u64,
    touched: Option<SystemTime>,
}

impl Inode {
    #[cfg(unix)]
    fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let since = || {
            let seconds = u64::try_from(metadata.ctime()).ok()?;
            let nanoseconds = u32::try_from(metadata.ctime_nsec()).ok()?;
            SystemTime::UNIX_EPOCH.checked_add(std::time::Duration::new(seconds, nanoseconds))
        };
        Self { device: metadata.dev(), number: metadata.ino(), touched: since() }
    }

    #[cfg(not(unix))]
    fn of(metadata: &Metadata) -> Self {
        Self { device: 0, number: 0, touched: metadata.modified().ok() }
    }
}

impl Fingerprint {
    /// When the file was last written, linked or given other rights, by the clock of its file system; `None` if there
    /// is no file, or if it is a pipe, a device or a folder.
    #[must_use]
    pub fn touched(&self) -> Option<SystemTime> {
        match &self.0 {
            State::File { inode, .. } => inode.touched,
            State::Other | State::Missing | State::Unreadable(_) => None,
        }
    }
}

/// The state that the file at `path` is in. That it is missing or cannot be opened is a state too.
///
/// The file is opened: a network file system such as NFS asks its server then, and gives what it remembers otherwise,
/// which may be a minute old.
#[must_use]
pub fn fingerprint(path: &Path) -> Fingerprint {
    let look = || {
        // To open a pipe would wait for whoever writes it.
        if !std::fs::metadata(path)?.is_file() {
            return Ok(State::Other);
        }
        let metadata = File::open(path)?.metadata()?;
        Ok(State::File {
            resolved: std::fs::canonicalize(path).ok(),
            inode: Inode::of(&metadata),
            length: metadata.len(),
            modified: metadata.modified().ok(),
        })
    };
    Fingerprint(look().unwrap_or_else(|error: std::io::Error| match error.kind() {
        IoErrorKind::NotFound | IoErrorKind::NotADirectory => State::Missing,
        kind => State::Unreadable(kind),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named() {
        let error = read_text(Path::new("/nowhere/accounts.toml"), 10).unwrap_err();
        assert_eq!(error.to_string(), "read /nowhere/accounts.toml");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_file_over_the_limit_is_refused_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        std::fs::write(&path, "12345678901").unwrap();
        assert_eq!(read_text(&path, 10).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(read_text(&path, 11).unwrap().len(), 11);
    }
    #[test]
    fn a_fingerprint_is_the_same_until_the_file_is_another_or_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut seen = vec![fingerprint(&path)];
        let mut differs = |what: &str| {
            let now = fingerprint(&path);
            assert_eq!(now, fingerprint(&path), "{what}");
            assert!(!seen.contains(&now), "{what}: {now:?}");
            seen.push(now);
        };
        // Far enough apart for every clock of a file system on which this is run.
        let tick = || std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(&path, "1").unwrap();
        differs("made");
        tick();
        std::fs::write(&path, "2").unwrap();
        differs("another content of the same length");
        std::fs::write(&path, "12").unwrap();
        differs("another length");
        std::fs::write(folder.path().join("new"), "12").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        differs("another file");
        tick();
        let past = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(past).unwrap();
        differs("another time");
        tick();
        std::fs::write(&path, "34").unwrap();
        file.set_modified(past).unwrap();
        differs("the same length and time");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(fingerprint(&path), Fingerprint(State::Missing));
        assert_eq!(fingerprint(&path.join("below")), Fingerprint(State::Missing));
    }

    #[cfg(unix)]
    #[test]
    fn a_fingerprint_tells_through_which_links_a_file_is_reached() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("1")).unwrap();
        std::fs::create_dir(path("2")).unwrap();
        std::fs::write(path("1/file"), "").unwrap();
        std::fs::hard_link(path("1/file"), path("2/file")).unwrap();
        symlink("1", path("data")).unwrap();
        symlink("data/file", path("file")).unwrap();
        let first = fingerprint(&path("file"));
        assert_eq!(first, fingerprint(&path("1/file")));
        symlink("2", path("next")).unwrap();
        std::fs::rename(path("next"), path("data")).unwrap();
        assert_ne!(first, fingerprint(&path("file")));
        std::fs::remove_file(path("data")).unwrap();
        assert_eq!(fingerprint(&path("file")), Fingerprint(State::Missing));
        symlink("data", path("data")).unwrap();
        assert!(matches!(fingerprint(&path("file")).0, State::Unreadable(_)), "a link to itself");
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(fingerprint(folder.path()), Fingerprint(State::Other));
        assert_eq!(fingerprint(folder.path()).touched(), None);
    }
}
