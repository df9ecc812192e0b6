//! How entries and changes are written into the database.

use crate::store::{Change, ChangeSet, Key, Revision};

/// A value with the revisions of its entry before it.
pub(super) fn entry(created: Revision, modified: Revision, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + value.len());
    bytes.extend_from_slice(&created.0.to_le_bytes());
    bytes.extend_from_slice(&modified.0.to_le_bytes());
    bytes.extend_from_slice(value);
    bytes
}

/// The revisions and the value of an entry; `None` for what is none.
pub(super) fn read_entry(bytes: &[u8]) -> Option<(Revision, Revision, &[u8])> {
    let (created, rest) = bytes.split_first_chunk()?;
    let (modified, value) = rest.split_first_chunk()?;
    Some((Revision(u64::from_le_bytes(*created)), Revision(u64::from_le_bytes(*modified)), value))
}

const DELETED: u8 = 0;
const SET: u8 = 1;

/// The changes of a transaction.
pub(super) fn changes(changes: &[Change]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for change in changes {
        text(&mut bytes, change.key.as_str().as_bytes());
        match &change.value {
            Some(value) => {
                bytes.push(SET);
                text(&mut bytes, value);
            }
            None => bytes.push(DELETED),
        }
    }
    bytes
}

fn text(bytes: &mut Vec<u8>, text: &[u8]) {
    // A transaction is far below 4 GiB.
    bytes.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(text);
}

/// The changes of the transaction with that revision; `None` for what is none.
pub(super) fn read_changes(revision: Revision, mut bytes: &[u8]) -> Option<ChangeSet> {
    let mut changes = Vec::new();
    while !bytes.is_empty() {
        let key = Key::try_from(String::from_utf8(read_text(&mut bytes)?.to_vec()).ok()?).ok()?;
        let (tag, rest) = bytes.split_first()?;
        bytes = rest;
        let value = match *tag {
            SET => Some(read_text(&mut bytes)?.to_vec()),
            DELETED => None,
            _ => return None,
        };
        changes.push(Change { key, value });
    }
    Some(ChangeSet { revision, changes })
}

fn read_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    *bytes = rest;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let change = |key: &str, value: Option<&[u8]>| Change {
            key: key.parse().unwrap(),
            value: value.map(<[u8]>::to_vec),
        };
        let set = ChangeSet {
            revision: Revision(7),
            changes: vec![change("a", Some(b"")), change("b\u{10ffff}", None), change("c", Some(&[0, 255]))],
        };
        let bytes = changes(&set.changes);
        assert_eq!(read_changes(Revision(7), &bytes), Some(set));
        for cut in 1..bytes.len() {
            let shorter = read_changes(Revision(7), &bytes[..cut]);
            assert!(shorter.is_none_or(|set| set.changes.len() < 3), "{cut}");
        }
        assert_eq!(
            read_entry(&entry(Revision(1), Revision(2), b"v")),
            Some((Revision(1), Revision(2), &b"v"[..]))
        );
        assert_eq!(read_entry(&[0; 15]), None);
    }
}
