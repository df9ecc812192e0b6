//! How values are written: a line that says what it is and in which format, then JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Entry, StoreError};

/// A kind of value.
///
/// Fields are added with `#[serde(default)]` and never renamed, retyped or used for something else. A change that
/// this cannot express gets the next [`FORMAT`](Record::FORMAT), and [`upgrade`](Record::upgrade) reads the older ones.
pub trait Record: Serialize + DeserializeOwned {
    /// What it is, such as `account`; never changed.
    const KIND: &'static str;
    /// The format that is written now.
    const FORMAT: u32 = 1;

    /// Reads an older format; `None` for one that never was.
    #[must_use]
    fn upgrade(format: u32, json: &str) -> Option<Result<Self, serde_json::Error>> {
        let _ = (format, json);
        None
    }
}

/// A value that is no record of the kind that was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It does not begin as a record does.
    #[error("no record of kind {expected}: it begins with {found:?}")]
    Kind {
        /// The kind that was expected.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// It was written by a later version.
    #[error(
        "{kind} in format {found}, this version reads up to {newest}: use the version that wrote it, or a later one"
    )]
    Format {
        /// The kind.
        kind: &'static str,
        /// The record's format.
        found: u32,
        /// The newest that is known.
        newest: u32,
    },
    /// Its fields cannot be read.
    #[error("{kind}")]
    Fields {
        /// The kind.
        kind: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Writes a record: `KIND/FORMAT`, a line feed, JSON.
///
/// # Errors
/// [`RecordError::Fields`] for a type that JSON cannot hold.
pub fn encode<R: Record>(record: &R) -> Result<Vec<u8>, RecordError> {
    let mut bytes = format!("{}/{}\n", R::KIND, R::FORMAT).into_bytes();
    serde_json::to_writer(&mut bytes, record)
        .map_err(|source| RecordError::Fields { kind: R::KIND, source })?;
    Ok(bytes)
}

/// Reads a record.
///
/// # Errors
/// [`StoreError::Damaged`] that names the key.
pub fn decode<R: Record>(entry: &Entry) -> Result<R, StoreError> {
    read(&entry.value).map_err(|error| StoreError::damaged(&entry.key, crate::error_chain(&error)))
}

fn read<R: Record>(value: &[u8]) -> Result<R, RecordError> {
    let wrong = || RecordError::Kind {
        expected: R::KIND,
        found: String::from_utf8_lossy(value.get(..40).unwrap_or(value)).into_owned(),
    };
    let text = std::str::from_utf8(value).map_err(|_| wrong())?;
    let (head, json) = text.split_once('\n').ok_or_else(wrong)?;
    let (kind, format) = head.split_once('/').ok_or_else(wrong)?;
    let format: u32 = format.parse().map_err(|_| wrong())?;
    if kind != R::KIND {
        return Err(wrong());
    }
    let fields = |source| RecordError::Fields { kind: R::KIND, source };
    if format == R::FORMAT {
        return serde_json::from_str(json).map_err(fields);
    }
    match R::upgrade(format, json) {
        Some(read) => read.map_err(fields),
        None => Err(RecordError::Format { kind: R::KIND, found: format, newest: R::FORMAT }),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::store::Revision;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Thing {
        name: String,
        #[serde(default)]
        size: u32,
    }

    impl Record for Thing {
        const KIND: &'static str = "thing";
        const FORMAT: u32 = 2;

        fn upgrade(format: u32, json: &str) -> Option<Result<Self, serde_json::Error>> {
            (format == 1).then(|| serde_json::from_str(json).map(|name| Self { name, size: 1 }))
        }
    }

    fn read(value: &str) -> Result<Thing, String> {
        let entry = Entry::new("a/key".parse().unwrap(), value.into(), Revision(1), Revision(1));
        decode(&entry).map_err(|error| error.to_string())
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let thing = Thing { name: "a\nb".to_owned(), size: 7 };
        let bytes = encode(&thing).unwrap();
        assert_eq!(bytes, b"thing/2\n{\"name\":\"a\\nb\",\"size\":7}");
        assert_eq!(read(std::str::from_utf8(&bytes).unwrap()), Ok(thing));
    }

    #[test]
    fn older_formats_and_fields_of_later_versions_are_read() {
        assert_eq!(read("thing/1\n\"old\""), Ok(Thing { name: "old".to_owned(), size: 1 }));
        let read = read("thing/2\n{\"name\":\"new\",\"more\":true}");
        assert_eq!(read, Ok(Thing { name: "new".to_owned(), size: 0 }));
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_key() {
        let cases = [
            ("", "no record of kind thing: it begins with \"\""),
            ("other/1\n{}", "no record of kind thing: it begins with \"other/1\\n{}\""),
            ("thing/x\n{}", "no record of kind thing: it begins with \"thing/x\\n{}\""),
            (
                "thing/3\n{}",
                "thing in format 3, this version reads up to 2: use the version that wrote it, or a later one",
            ),
            ("thing/2\n{}", "thing: missing field `name` at line 1 column 2"),
        ];
        for (value, what) in cases {
            assert_eq!(read(value), Err(format!("a/key is damaged: {what}")));
        }
    }
}
