//! A file of accounts: read whole, and told when it has changed.

#[cfg(feature = "apply")]
mod watch;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use spur_sdk::fs::{FileError, Fingerprint, fingerprint, read_text};

use super::{ReadOptions, Source, SourceError, read};
use crate::model::Model;

/// The largest file that is read, in bytes. A dump of 100 000 accounts with ten users each has 200 MB.
const MAX_FILE: u64 = 1 << 30;

/// How long a file stays as it is before it counts as written to its end.
const CALM: Duration = Duration::from_millis(200);

/// How often a file that changes while it is read is read before it counts as cut.
const ATTEMPTS: u32 = 5;

/// A file of accounts.
///
/// A file that changes while it is read is read again, 200 ms later. If it has changed during the fifth reading too, it
/// is [`SourceError::Unsteady`], since what was read may be part of the file. Better, a file is made anew beside
/// the old one and renamed. A pipe or a device is read once.
///
/// With feature `apply`, [`changed`](Source::changed) looks at the file every 500 ms: at the path that its symbolic
/// links lead to, its inode, its length and its times, and at whether it is there and can be opened. It looks instead
/// of being told (inotify), since nobody tells of a file on NFS that another machine changes. It ends when the file
/// has been the same for 200 ms, or changing for 5 s. A change that shows in none of these, since it kept the length
/// in the same tick of the file system's clock as a reading, is found by its content 3 s after that reading. Before
/// the first reading, changes count from the first look. A ConfigMap that is mounted by `subPath` never changes.
///
/// With feature `apply` and in a runtime of tokio, whose timers must be enabled, files are touched on its threads for
/// blocking work, by one such thread at a time for a source and its clones: while a file server hangs, so do
/// [`read`](Source::read) and [`changed`](Source::changed), and nothing else. To end the runtime all the same takes
/// `shutdown_background` or `shutdown_timeout`. Without a runtime or the feature, `read` blocks, and `changed` never
/// ends.
///
/// # Cancellation
/// A [`read`](Source::read) that is dropped counts as none. It goes on to its end on its thread.
#[derive(Debug, Clone)]
pub struct FileSource {
    path: PathBuf,
    options: ReadOptions,
    #[cfg(feature = "apply")]
    watch: watch::Watch,
}

impl FileSource {
    /// The file at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, options: ReadOptions) -> Self {
        Self {
            path: path.into(),
            options,
            #[cfg(feature = "apply")]
            watch: watch::Watch::default(),
        }
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What [`read`](Source::read) does, for programs without a runtime: blocks the thread.
    ///
    /// # Errors
    /// [`SourceError::File`] when the file cannot be opened, is no UTF-8 or has more than 1 GiB, and those of
    /// [`read`](super::read()).
    pub fn read_blocking(&self) -> Result<Model, SourceError> {
        let reading = Reading::of(&self.path);
        #[cfg(feature = "apply")]
        self.watch.set_read(watch::Base::of(&reading));
        reading.into_model(&self.name(), self.options)
    }
}

impl Source for FileSource {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    #[cfg(feature = "apply")]
    async fn read(&self) -> Result<Model, SourceError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return self.read_blocking();
        }
        let (path, name, options) = (self.path.clone(), self.name(), self.options);
        let done = self.watch.blocking(move || {
            let reading = Reading::of(&path);
            (watch::Base::of(&reading), reading.into_model(&name, options))
        });
        match done.await {
            Ok((base, model)) => {
                // Not on the other thread: a reading that nobody waited for must not take a change away.
                self.watch.set_read(base);
                model
            }
            Err(stopped) => Err(SourceError::Store { store: self.name(), source: Box::new(stopped) }),
        }
    }

    #[cfg(not(feature = "apply"))]
    fn read(&self) -> impl Future<Output = Result<Model, SourceError>> + Send {
        std::future::ready(self.read_blocking())
    }

    #[cfg(feature = "apply")]
    fn changed(&self) -> impl Future<Output = ()> + Send {
        self.watch.changed(&self.path)
    }
}

/// What a file had, and the states that it was in.
struct Reading {
    text: Result<String, FileError>,
    before: Fingerprint,
    after: Fingerprint,
}

impl Reading {
    fn of(path: &Path) -> Self {
        Self::by(path, |path| read_text(path, MAX_FILE))
    }

    fn by(path: &Path, read: impl Fn(&Path) -> Result<String, FileError>) -> Self {
        let take = |before| Self { before, text: read(path), after: fingerprint(path) };
        let mut reading = take(fingerprint(path));
        for _ in 1..ATTEMPTS {
            if reading.is_steady() {
                break;
            }
            std::thread::sleep(CALM);
            // It must be as it was before the pause: whoever writes it was not done a moment ago.
            reading = take(reading.after);
        }
        reading
    }

    /// Whether the file stayed as it was.
    fn is_steady(&self) -> bool {
        self.before == self.after
    }

    fn into_model(self, name: &str, options: ReadOptions) -> Result<Model, SourceError> {
        let steady = self.is_steady();
        let text = self.text?;
        // A part of a file may lack the limit that stands in the rest, and no limit is not what it says.
        if !steady {
            return Err(SourceError::Unsteady { file: name.to_owned() });
        }
        read(&text, name, options)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use spur_sdk::{Classify, ErrorKind};

    use super::*;
    use crate::model::Completeness;

    const PART: &str = "[[account]]\nname = \"a\"\n";
    const WHOLE: &str = "[[account]]\nname = \"a\"\n[[account]]\nname = \"b\"\n";

    /// Reads a file that is written during its first readings, whole only in the last of them; how often it is read,
    /// and the result.
    fn read_while_written(written: usize) -> (usize, Result<Model, SourceError>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("accounts.toml");
        let readings = RefCell::new(1_usize..);
        let reading = Reading::by(&path, |path| {
            let number = readings.borrow_mut().next().unwrap();
            if number <= written {
                let text = if number < written { PART } else { WHOLE };
                // Of another length each time.
                std::fs::write(path, format!("{text}#{}\n", "#".repeat(number))).unwrap();
            }
            read_text(path, MAX_FILE)
        });
        let read = readings.into_inner().start.saturating_sub(1);
        (read, reading.into_model("a", ReadOptions::default()))
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_read_again_until_it_stays() {
        for written in [1, 3] {
            let (count, model) = read_while_written(written);
            let model = model.unwrap();
            assert_eq!(Some(count), written.checked_add(1));
            assert_eq!(model.accounts.len(), 2);
            assert_eq!(model.completeness, Completeness::Full);
        }
    }

    #[test]
    fn a_file_that_never_stays_is_not_used() {
        let (count, model) = read_while_written(usize::MAX);
        assert_eq!(count, 5);
        assert!(matches!(model, Err(SourceError::Unsteady { .. })));
    }

    #[test]
    fn a_file_that_goes_while_it_is_read_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("accounts.toml");
        std::fs::write(&path, WHOLE).unwrap();
        let reading = Reading::by(&path, |path| {
            let text = read_text(path, MAX_FILE);
            let _ = std::fs::remove_file(path);
            text
        });
        let error = reading.into_model("a", ReadOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
