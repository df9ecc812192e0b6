//! What stands in the database, and what a transaction does to it.

use std::panic::AssertUnwindSafe;

use redb::{Database, ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::encoding;
use crate::store::{Change, ChangeSet, Commit, Entry, Key, Revision, Snapshot, Transaction, Write};

/// Values by key, each with the revisions of its entry.
const ENTRIES: TableDefinition<&str, &[u8]> = TableDefinition::new("entries");
/// The last changes, by revision.
const HISTORY: TableDefinition<u64, &[u8]> = TableDefinition::new("history");
/// Numbers about the store.
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// The store's revision, in `META`.
const REVISION: &str = "revision";

/// Something in the database went wrong.
#[derive(Debug)]
pub(super) enum Fault {
    Database(redb::Error),
    /// What is read makes no sense.
    Nonsense(String),
}

impl<E: Into<redb::Error>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Database(error.into())
    }
}

/// Runs what may panic on a file that is damaged.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Fault::Nonsense(text.unwrap_or_default()))
    })
}

fn nonsense<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Nonsense(what.into()))
}

/// What has become of transactions.
pub(super) struct Applied {
    pub(super) outcomes: Vec<Commit>,
    pub(super) sets: Vec<ChangeSet>,
}

/// Writes the first content of a store.
pub(super) fn write_first(database: &Database, first: &Snapshot) -> Result<(), Fault> {
    let transaction = database.begin_write()?;
    {
        let mut entries = transaction.open_table(ENTRIES)?;
        for entry in &first.entries {
            let value = encoding::entry(entry.created, entry.modified, &entry.value);
            entries.insert(entry.key.as_str(), value.as_slice())?;
        }
        transaction.open_table(HISTORY)?;
        transaction.open_table(META)?.insert(REVISION, first.revision.0)?;
    }
    Ok(transaction.commit()?)
}

/// The entry under a key.
pub(super) fn get(read: &ReadTransaction, key: &Key) -> Result<Option<Entry>, Fault> {
    let entries = read.open_table(ENTRIES)?;
    let Some(found) = entries.get(key.as_str())? else { return Ok(None) };
    entry(key.as_str(), found.value()).map(Some)
}

/// The entries whose key begins with a prefix.
pub(super) fn range(read: &ReadTransaction, prefix: &str) -> Result<Snapshot, Fault> {
    let mut found = Vec::new();
    for item in read.open_table(ENTRIES)?.range(prefix..)? {
        let (key, value) = item?;
        if !key.value().starts_with(prefix) {
            break;
        }
        found.push(entry(key.value(), value.value())?);
    }
    Ok(Snapshot::new(revision(read)?, found))
}

/// What becomes of a transaction that writes nothing; `None` for one that does.
pub(super) fn without_writing(
    read: &ReadTransaction,
    transaction: &Transaction,
) -> Result<Option<Commit>, Fault> {
    let entries = read.open_table(ENTRIES)?;
    let conflicts = conflicts(&entries, transaction)?;
    if !conflicts.is_empty() {
        return Ok(Some(Commit::Conflict(conflicts)));
    }
    for write in transaction.writes() {
        if matches!(write, Write::Put(..)) || entries.get(write.key().as_str())?.is_some() {
            return Ok(None);
        }
    }
    Ok(Some(Commit::Done(revision(read)?)))
}

/// The store's revision and its history.
pub(super) fn load(read: &ReadTransaction) -> Result<(Revision, Vec<ChangeSet>), Fault> {
    let mut sets: Vec<ChangeSet> = Vec::new();
    for item in read.open_table(HISTORY)?.iter()? {
        let (at, changes) = item?;
        let at = Revision(at.value());
        let gap = sets.last().is_some_and(|before| before.revision.0 + 1 != at.0);
        match encoding::read_changes(at, changes.value()) {
            Some(set) if !gap => sets.push(set),
            _ => return nonsense(format!("its history cannot be read at revision {at}")),
        }
    }
    Ok((revision(read)?, sets))
}

/// The store's revision.
pub(super) fn revision(read: &ReadTransaction) -> Result<Revision, Fault> {
    match read.open_table(META)?.get(REVISION)? {
        Some(revision) => Ok(Revision(revision.value())),
        None => nonsense("it has no revision"),
    }
}

/// An entry of the table.
fn entry(key: &str, bytes: &[u8]) -> Result<Entry, Fault> {
    let parsed = key.parse::<Key>().ok().zip(encoding::read_entry(bytes));
    match parsed {
        Some((key, (created, modified, value))) => Ok(Entry::new(key, value.to_vec(), created, modified)),
        None => nonsense(format!("the entry {key:?} cannot be read")),
    }
}

/// The keys of the comparisons that do not hold.
fn conflicts(
    entries: &impl ReadableTable<&'static str, &'static [u8]>,
    transaction: &Transaction,
) -> Result<Vec<Key>, Fault> {
    let mut fault = None;
    let conflicts = transaction.conflicts(|key| {
        let found = entries
            .get(key.as_str())
            .map_err(Fault::from)
            .and_then(|found| found.map(|found| entry(key.as_str(), found.value())).transpose());
        match found {
            Ok(found) => found.map(|entry| (entry.created, entry.modified)),
            Err(error) => {
                fault = Some(error);
                None
            }
        }
    });
    fault.map_or(Ok(conflicts), Err)
}

/// Carries out transactions one after another, in one transaction of the database.
pub(super) fn apply_all(
    database: &Database,
    transactions: &[Transaction],
    floor: Revision,
) -> Result<Applied, Fault> {
    let write = database.begin_write()?;
    let applied = fill(&write, transactions, floor)?;
    if applied.sets.is_empty() {
        write.abort()?;
    } else {
        write.commit()?;
    }
    Ok(applied)
}

fn fill(write: &WriteTransaction, transactions: &[Transaction], floor: Revision) -> Result<Applied, Fault> {
    let mut entries = write.open_table(ENTRIES)?;
    let mut history = write.open_table(HISTORY)?;
    let mut meta = write.open_table(META)?;
    let Some(first) = meta.get(REVISION)?.map(|revision| Revision(revision.value())) else {
        return nonsense("it has no revision");
    };
    let mut revision = first;
    let mut applied = Applied { outcomes: Vec::new(), sets: Vec::new() };
    for transaction in transactions {
        let conflicts = conflicts(&entries, transaction)?;
        if !conflicts.is_empty() {
            applied.outcomes.push(Commit::Conflict(conflicts));
            continue;
        }
        let next = Revision(revision.0 + 1);
        let changes = apply(&mut entries, transaction, next)?;
        if !changes.is_empty() {
            revision = next;
            history.insert(revision.0, encoding::changes(&changes).as_slice())?;
            applied.sets.push(ChangeSet { revision, changes });
        }
        applied.outcomes.push(Commit::Done(revision));
    }
    if revision != first {
        meta.insert(REVISION, revision.0)?;
        prune(&mut history, floor)?;
    }
    Ok(applied)
}

/// Carries out the writes of a transaction: what changed, sorted by key.
fn apply(
    entries: &mut Table<'_, &'static str, &'static [u8]>,
    transaction: &Transaction,
    revision: Revision,
) -> Result<Vec<Change>, Fault> {
    let mut changes = Vec::new();
    for write in transaction.writes() {
        let key = write.key();
        match write {
            Write::Put(_, value) => {
                let found = entries.get(key.as_str())?;
                let created = found.map(|found| entry(key.as_str(), found.value())).transpose()?;
                let created = created.map_or(revision, |entry| entry.created);
                entries.insert(key.as_str(), encoding::entry(created, revision, value).as_slice())?;
                changes.push(Change { key: key.clone(), value: Some(value.clone()) });
            }
            Write::Delete(_) if entries.remove(key.as_str())?.is_some() => {
                changes.push(Change { key: key.clone(), value: None });
            }
            Write::Delete(_) => {}
        }
    }
    changes.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(changes)
}

/// Takes out the history up to `floor`, which watches no longer get.
fn prune(history: &mut Table<'_, u64, &'static [u8]>, floor: Revision) -> Result<(), Fault> {
    while history.first()?.is_some_and(|(revision, _)| revision.value() <= floor.0) {
        history.pop_first()?;
    }
    Ok(())
}
