//! Backups: all entries of any store as lines of JSON.
//!
//! The first line says what it is, the last one holds the SHA-256 of all lines before it:
//!
//! ```text
//! {"spur_store_backup":1,"revision":42,"entries":1}
//! {"key":"a","created":7,"modified":42,"text":"1"}
//! {"sha256":"…"}
//! ```
//!
//! A value that is not UTF-8 stands as `"hex"`.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Commit, Comparison, Entry, Key, Revision, Snapshot, Store, StoreError, Transaction};

/// The format that is written.
const FORMAT: u32 = 1;

/// The largest backup that is read: 4 GiB.
const LARGEST: u64 = 4 << 30;

/// All entries of a store at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup(Snapshot);

impl From<Snapshot> for Backup {
    fn from(snapshot: Snapshot) -> Self {
        Self(snapshot)
    }
}

#[derive(Serialize, Deserialize)]
struct First {
    spur_store_backup: u32,
    #[serde(default)]
    revision: u64,
    #[serde(default)]
    entries: u64,
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    created: u64,
    modified: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Last {
    sha256: String,
}

impl Backup {
    /// Reads all of a store, which goes on meanwhile.
    ///
    /// # Errors
    /// What the store says.
    pub async fn of(store: &impl Store) -> Result<Self, StoreError> {
        Ok(Self(store.range("").await?))
    }

    /// The entries, and the revision at which they stood.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.0
    }

    /// The entries, and the revision at which they stood.
    #[must_use]
    pub fn into_snapshot(self) -> Snapshot {
        self.0
    }

    /// Writes the backup to a file that only its owner can read, whole or not at all, in place of one that is there.
    /// Blocks.
    ///
    /// # Errors
    /// [`StoreError::NotWritable`].
    pub fn write(&self, path: &Path) -> Result<(), StoreError> {
        crate::fs::write_file(path, self.to_text().as_bytes(), 0o600).map_err(|error| {
            StoreError::NotWritable { place: path.display().to_string(), source: Box::new(error) }
        })
    }

    /// Reads a backup from a file. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if it is not as it was written, [`StoreError::Newer`], and [`StoreError::Unavailable`] if
    /// it can't be read.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        let place = path.display().to_string();
        let text = crate::fs::read_text(path, LARGEST).map_err(|error| {
            if error.source.kind() == std::io::ErrorKind::InvalidData {
                damaged(&place, &error.source.to_string())
            } else {
                StoreError::Unavailable { place: place.clone(), source: Box::new(error) }
            }
        })?;
        Self::from_text(&text, &place)
    }

    /// The backup as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let entries = self.0.entries.len() as u64;
        line(&mut text, &First { spur_store_backup: FORMAT, revision: self.0.revision.0, entries });
        for entry in &self.0.entries {
            let (created, modified) = (entry.created.0, entry.modified.0);
            let (value, hex) = match std::str::from_utf8(&entry.value) {
                Ok(value) => (Some(value.to_owned()), None),
                Err(_) => (None, Some(to_hex(&entry.value))),
            };
            line(&mut text, &Line { key: entry.key.to_string(), created, modified, text: value, hex });
        }
        let sha256 = to_hex(&Sha256::digest(text.as_bytes()));
        line(&mut text, &Last { sha256 });
        text
    }

    /// Reads a backup from text; `place` names it in errors.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and [`StoreError::Newer`].
    pub fn from_text(text: &str, place: &str) -> Result<Self, StoreError> {
        let first = text.split('\n').next().unwrap_or_default();
        let first: First =
            serde_json::from_str(first).map_err(|_| damaged(place, "it is no backup of a store"))?;
        if first.spur_store_backup > FORMAT {
            let (place, found) = (place.to_owned(), first.spur_store_backup);
            return Err(StoreError::Newer { place, found, newest: FORMAT });
        }
        let cut = || damaged(place, "its end is missing");
        let body = text.strip_suffix('\n').ok_or_else(cut)?;
        let (lines, last) = body.rsplit_once('\n').ok_or_else(cut)?;
        let last: Last = serde_json::from_str(last).map_err(|_| cut())?;
        // With the line feed before the last line.
        let summed = text.get(..=lines.len()).unwrap_or_default();
        if to_hex(&Sha256::digest(summed.as_bytes())) != last.sha256 {
            return Err(damaged(place, "its checksum is another one"));
        }
        let entries = lines.split('\n').enumerate().skip(1).map(|(index, line)| {
            read_line(line).ok_or_else(|| damaged(place, &format!("line {} is no entry", index + 1)))
        });
        let entries = entries.collect::<Result<Vec<Entry>, StoreError>>()?;
        if entries.len() as u64 != first.entries || !entries.is_sorted_by(|one, next| one.key < next.key) {
            return Err(damaged(place, "its entries are not those that it announces"));
        }
        Ok(Self(Snapshot::new(Revision(first.revision), entries)))
    }

    /// Writes all entries to a store of any kind that has none, several transactions after another. What they are made
    /// of is kept; the revisions are the store's own, and may be lower than those of the backup.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`] if there is an entry already, or one appears meanwhile. After any other error a part of
    /// the entries may be there: clear the store and begin anew.
    ///
    /// # Cancellation
    /// A part of the entries may be there.
    pub async fn restore_into(&self, store: &impl Store, place: &str) -> Result<Revision, StoreError> {
        let found = store.range("").await?;
        let not_empty = || StoreError::NotEmpty { place: place.to_owned() };
        if !found.entries.is_empty() {
            return Err(not_empty());
        }
        let mut revision = found.revision;
        let mut batch = Transaction::new();
        for entry in &self.0.entries {
            let size = entry.key.as_str().len() + entry.value.len();
            let full = batch.writes().len() == Transaction::MAX_OPERATIONS
                || batch.bytes() + size > Transaction::MAX_BYTES;
            if full {
                revision = commit(store, std::mem::take(&mut batch)).await?.ok_or_else(not_empty)?;
            }
            batch =
                batch.when(Comparison::Absent(entry.key.clone())).put(entry.key.clone(), entry.value.clone());
        }
        if !batch.writes().is_empty() {
            revision = commit(store, batch).await?.ok_or_else(not_empty)?;
        }
        Ok(revision)
    }
}

async fn commit(store: &impl Store, batch: Transaction) -> Result<Option<Revision>, StoreError> {
    match store.commit(batch).await? {
        Commit::Done(revision) => Ok(Some(revision)),
        Commit::Conflict(_) => Ok(None),
    }
}

fn damaged(place: &str, what: &str) -> StoreError {
    StoreError::Damaged { place: place.to_owned(), what: format!("{what}; use another backup") }
}

fn line(text: &mut String, line: &impl Serialize) {
    // Numbers and strings alone: that can't fail.
    text.push_str(&serde_json::to_string(line).unwrap_or_default());
    text.push('\n');
}

fn read_line(line: &str) -> Option<Entry> {
    let Line { key, created, modified, text, hex } = serde_json::from_str(line).ok()?;
    let value = match (text, hex) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(hex)) => from_hex(&hex)?,
        _ => return None,
    };
    Some(Entry::new(Key::try_from(key).ok()?, value, Revision(created), Revision(modified)))
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // To a string, which can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}
