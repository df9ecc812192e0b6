//! Files: the path stands in every error.

use std::fs::{File, Metadata};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use crate::{Classify, ErrorKind};

/// A file or folder could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("{action} {}", path.display())]
pub struct FileError {
    /// What was tried, such as `read` or `write`.
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
            IoErrorKind::AlreadyExists => ErrorKind::Conflict,
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

/// Reads a whole file that holds a secret. Blocks.
///
/// # Errors
/// The system's error; `PermissionDenied` if group or others have any right to the file; `InvalidData` when it is
/// longer than `limit` bytes or no regular file.
pub fn read_secret(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let file = File::open(path).map_err(failed("read", path))?;
    // Of the file that was opened, not of the one that now has the path.
    let metadata = file.metadata().map_err(failed("read", path))?;
    let refuse = |kind, what: String| failed("read", path)(std::io::Error::new(kind, what));
    if !metadata.is_file() {
        return Err(refuse(IoErrorKind::InvalidData, "it is no regular file".to_owned()));
    }
    if let Some(mode) = open_to_others(&metadata) {
        let what = format!(
            "it holds a secret, and others than its owner have a right to it (mode {mode:04o}): chmod 600"
        );
        return Err(refuse(IoErrorKind::PermissionDenied, what));
    }
    if metadata.len() > limit {
        return Err(refuse(IoErrorKind::InvalidData, format!("the file is larger than {limit} bytes")));
    }
    // Room for all of it at once, so that no copy of a part stays behind.
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0).saturating_add(1));
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed("read", path))?;
    if u64::try_from(read).unwrap_or(u64::MAX) > limit {
        return Err(refuse(IoErrorKind::InvalidData, format!("the file is larger than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(unix)]
fn open_to_others(metadata: &Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    let mode = metadata.permissions().mode() & 0o7777;
    (mode & 0o077 != 0).then_some(mode)
}

#[cfg(not(unix))]
fn open_to_others(_metadata: &Metadata) -> Option<u32> {
    None
}

/// Writes a file whole or not at all, with exactly the rights `mode`, in place of the one that has the path. Blocks.
///
/// When this returns, the file survives a loss of power. A crash before that may leave a file behind whose name begins
/// with a dot and ends in `.new`, with the same rights.
///
/// # Errors
/// The system's error. The old file is then as it was.
pub fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let new = NewFile::write(path, content, mode)?;
    std::fs::rename(&new.0, path).map_err(failed("write", path))?;
    sync_folder_of(path)
}

/// As [`write_file`], where there is no file yet.
///
/// # Errors
/// As [`write_file`], and `AlreadyExists`.
pub fn create_file(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let new = NewFile::write(path, content, mode)?;
    // Unlike a rename, a link takes nobody's place.
    std::fs::hard_link(&new.0, path).map_err(failed("create", path))?;
    drop(new);
    sync_folder_of(path)
}

/// Makes a folder with exactly the rights `mode`; one that is there is left as it is. The folder above must exist.
/// Blocks.
///
/// # Errors
/// The system's error, and `NotADirectory` if something else has the path.
pub fn create_folder(path: &Path, mode: u32) -> Result<(), FileError> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, mode);
    match builder.create(path) {
        Ok(()) => {
            // Whatever the process masks.
            #[cfg(unix)]
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .map_err(failed("create", path))?;
            sync_folder_of(path)
        }
        Err(error) if error.kind() == IoErrorKind::AlreadyExists => {
            if path.is_dir() {
                return Ok(());
            }
            Err(failed("create", path)(IoErrorKind::NotADirectory.into()))
        }
        Err(error) => Err(failed("create", path)(error)),
    }
}

/// A file that has not got its name yet; what is left of it goes with it.
struct NewFile(PathBuf);

impl NewFile {
    /// Writes it beside `path`, down to the disk.
    fn write(path: &Path, content: &[u8], mode: u32) -> Result<Self, FileError> {
        let write = || {
            let (new, mut file) = Self::open(path, mode)?;
            // Whatever the process masks.
            #[cfg(unix)]
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
            file.write_all(content)?;
            file.sync_all()?;
            Ok(new)
        };
        write().map_err(failed("write", path))
    }

    fn open(path: &Path, mode: u32) -> std::io::Result<(Self, File)> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = path.file_name().ok_or(IoErrorKind::InvalidInput)?.to_string_lossy();
        let mut options = File::options();
        options.write(true).create_new(true);
        // Nobody else sees it for a moment in which it has more rights.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
        // What a process of the same number left behind has the name already.
        for _ in 0..1000 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            // The longest name that file systems take has 255 bytes.
            let short: String = name.chars().take(40).collect();
            let new = path.with_file_name(format!(".{short}.{}-{count}.new", std::process::id()));
            match options.open(&new) {
                Ok(file) => return Ok((Self(new), file)),
                Err(error) if error.kind() == IoErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(IoErrorKind::AlreadyExists.into())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // After a rename there is nothing under the name.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes a name in a folder survive a loss of power.
fn sync_folder_of(path: &Path) -> Result<(), FileError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("write", folder))
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

    #[cfg(unix)]
    fn mode(path: &Path) -> u32 {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_replaced_whole_with_the_rights_that_were_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        for (content, rights) in [("1", 0o600), ("22", 0o644), ("", 0o600)] {
            write_file(&path, content.as_bytes(), rights).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            assert_eq!(mode(&path), rights);
        }
        assert_eq!(names(folder.path()), ["key"]);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let error = write_file(&folder.path().join("no/key"), b"1", 0o600).unwrap_err();
        assert!(error.to_string().starts_with("write /") && error.to_string().ends_with("no/key"), "{error}");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        write_file(&taken, b"1", 0o600).unwrap_err();
        assert!(write_file(Path::new("/"), b"1", 0o600).is_err());
        assert_eq!(names(folder.path()), ["taken"]);
    }

    #[test]
    fn a_file_that_is_there_is_not_created_again_whoever_else_tries() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let won = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8)
                .map(|i: u8| {
                    let path = &path;
                    scope.spawn(move || (i, create_file(path, &[i], 0o600)))
                })
                .collect();
            let ended: Vec<_> = all.into_iter().map(|one| one.join().unwrap()).collect();
            for (_, result) in ended.iter().filter(|(_, result)| result.is_err()) {
                assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::Conflict);
            }
            ended.into_iter().filter(|(_, result)| result.is_ok()).map(|(i, _)| i).collect::<Vec<_>>()
        });
        assert_eq!(std::fs::read(&path).unwrap(), won);
        assert_eq!(names(folder.path()), ["key"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_secret_that_others_may_touch_is_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write_file(&path, b"secret", 0o600).unwrap();
        assert_eq!(read_secret(&path, 6).unwrap(), b"secret");
        assert_eq!(read_secret(&path, 5).unwrap_err().kind(), ErrorKind::Invalid);
        for rights in [0o640, 0o604, 0o620, 0o602, 0o610, 0o601] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(rights)).unwrap();
            let error = read_secret(&path, 100).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{rights:o}");
            assert!(crate::error_chain(&error).contains("chmod 600"), "{}", crate::error_chain(&error));
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(read_secret(&path, 6).unwrap(), b"secret");
        assert_eq!(read_secret(folder.path(), 6).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(read_secret(&folder.path().join("no"), 6).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_has_the_rights_that_were_asked_for_or_keeps_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        create_folder(&path, 0o777).unwrap();
        assert_eq!(mode(&path), 0o777);
        create_folder(&path, 0o700).unwrap();
        assert_eq!(mode(&path), 0o777);
        std::fs::write(folder.path().join("file"), "").unwrap();
        create_folder(&folder.path().join("file"), 0o700).unwrap_err();
        create_folder(&folder.path().join("no/state"), 0o700).unwrap_err();
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(fingerprint(folder.path()), Fingerprint(State::Other));
        assert_eq!(fingerprint(folder.path()).touched(), None);
    }
}
