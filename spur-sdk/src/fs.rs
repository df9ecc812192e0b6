//! Files: the path stands in every error.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

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
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            std::io::ErrorKind::InvalidData => ErrorKind::Invalid,
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
        let source = std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("the file is larger than {limit} bytes"),
        );
        return Err(FileError { action: "read", path: path.to_owned(), source });
    }
    Ok(text)
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
}
