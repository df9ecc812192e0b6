//! Comparisons and writes that are carried out together or not at all.

use std::collections::BTreeSet;

use super::{Key, Revision, StoreError};

/// What must hold for a transaction's writes to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Comparison {
    /// Nothing stands under the key.
    Absent(Key),
    /// The key was last written at this revision.
    Modified(Key, Revision),
    /// The key came to be at this revision, and has not been deleted since.
    Created(Key, Revision),
}

impl Comparison {
    /// The key that is looked at.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Absent(key) | Self::Modified(key, _) | Self::Created(key, _) => key,
        }
    }

    /// Whether it holds for a key that came to be and was last written at these revisions; `None` where nothing
    /// stands under it.
    #[must_use]
    pub fn holds(&self, found: Option<(Revision, Revision)>) -> bool {
        match self {
            Self::Absent(_) => found.is_none(),
            Self::Modified(_, revision) => found.is_some_and(|(_, modified)| modified == *revision),
            Self::Created(_, revision) => found.is_some_and(|(created, _)| created == *revision),
        }
    }
}

/// A write.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Write {
    /// Sets a value.
    Put(Key, Vec<u8>),
    /// Removes a key; nothing happens where it is absent.
    Delete(Key),
}

impl Write {
    /// The key that is written.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

/// Comparisons and writes that are carried out together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    comparisons: Vec<Comparison>,
    writes: Vec<Write>,
}

impl Transaction {
    /// The most comparisons and the most writes, each. etcd takes 128 of each by default; the rest is for [`super::Fenced`].
    pub const MAX_OPERATIONS: usize = 120;
    /// The most bytes of all keys and values that are written. With as many comparisons as there may be, that still is
    /// below the 1.5 MiB that etcd takes by default.
    pub const MAX_BYTES: usize = 1 << 20;

    /// One that does nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a comparison.
    #[must_use]
    pub fn when(mut self, comparison: Comparison) -> Self {
        self.comparisons.push(comparison);
        self
    }

    /// Sets a value.
    #[must_use]
    pub fn put(mut self, key: Key, value: Vec<u8>) -> Self {
        self.writes.push(Write::Put(key, value));
        self
    }

    /// Removes a key.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Self {
        self.writes.push(Write::Delete(key));
        self
    }

    /// What must hold.
    #[must_use]
    pub fn comparisons(&self) -> &[Comparison] {
        &self.comparisons
    }

    /// What is written.
    #[must_use]
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// The keys whose comparisons do not hold, each once, in the transaction's order; for implementations. `found` says
    /// when a key came to be and was last written, `None` where nothing stands under it.
    #[must_use]
    pub fn conflicts(&self, mut found: impl FnMut(&Key) -> Option<(Revision, Revision)>) -> Vec<Key> {
        let mut keys: Vec<Key> = Vec::new();
        for comparison in &self.comparisons {
            let key = comparison.key();
            if !comparison.holds(found(key)) && !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        keys
    }

    /// The bytes of all keys and values that are written.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let written = self.writes.iter().map(|write| match write {
            Write::Put(key, value) => key.as_str().len() + value.len(),
            Write::Delete(key) => key.as_str().len(),
        });
        written.sum()
    }

    /// Whether every store can take it; implementations ask before anything else.
    ///
    /// # Errors
    /// [`StoreError::Transaction`] if there is too much in it, or two writes to one key.
    pub fn check(&self) -> Result<(), StoreError> {
        // A fence comes on top.
        let most = Self::MAX_OPERATIONS + 1;
        if self.comparisons.len() > most || self.writes.len() > Self::MAX_OPERATIONS {
            return Err(StoreError::Transaction(format!(
                "{} comparisons and {} writes: at most {} of each",
                self.comparisons.len(),
                self.writes.len(),
                Self::MAX_OPERATIONS
            )));
        }
        let bytes = self.bytes();
        if bytes > Self::MAX_BYTES {
            return Err(StoreError::Transaction(format!("{bytes} bytes: at most {}", Self::MAX_BYTES)));
        }
        let mut seen = BTreeSet::new();
        match self.writes.iter().find(|write| !seen.insert(write.key())) {
            Some(twice) => Err(StoreError::Transaction(format!("{} is written twice", twice.key()))),
            None => Ok(()),
        }
    }
}

/// What became of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Commit {
    /// Carried out, at this revision. A transaction that changes nothing, because it has no writes or only deletes what
    /// is absent, has the store's revision of that moment, and no watch sees it.
    Done(Revision),
    /// Some comparisons did not hold, and nothing was written: their keys, each once, in the transaction's order.
    Conflict(Vec<Key>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        text.parse().unwrap()
    }

    #[test]
    fn comparisons_hold_for_what_they_name() {
        let found = Some((Revision(3), Revision(7)));
        let cases = [
            (Comparison::Absent(key("k")), false, true),
            (Comparison::Modified(key("k"), Revision(7)), true, false),
            (Comparison::Modified(key("k"), Revision(3)), false, false),
            (Comparison::Created(key("k"), Revision(3)), true, false),
            (Comparison::Created(key("k"), Revision(7)), false, false),
            (Comparison::Modified(key("k"), Revision(0)), false, false),
            (Comparison::Created(key("k"), Revision(0)), false, false),
        ];
        for (comparison, there, absent) in cases {
            assert_eq!(comparison.holds(found), there, "{comparison:?}");
            assert_eq!(comparison.holds(None), absent, "{comparison:?}");
        }
    }

    #[test]
    fn conflicts_are_named_once_and_in_order() {
        let transaction = ["z", "a", "z", "m"].into_iter().fold(Transaction::new(), |transaction, text| {
            transaction.when(Comparison::Created(key(text), Revision(1)))
        });
        let found = |key: &Key| (key.as_str() == "a").then_some((Revision(1), Revision(2)));
        assert_eq!(transaction.conflicts(found), [key("z"), key("m")]);
    }

    #[test]
    fn limits_hold_exactly() {
        let many = |count: usize| {
            (0..count).fold(Transaction::new(), |transaction, index| {
                transaction.put(key(&format!("{index}")), Vec::new())
            })
        };
        many(Transaction::MAX_OPERATIONS).check().unwrap();
        many(Transaction::MAX_OPERATIONS + 1).check().unwrap_err();
        let large = |bytes: usize| Transaction::new().put(key("k"), vec![0; bytes - 1]);
        large(Transaction::MAX_BYTES).check().unwrap();
        large(Transaction::MAX_BYTES + 1).check().unwrap_err();
        let twice = Transaction::new().put(key("k"), Vec::new()).delete(key("k"));
        assert_eq!(twice.check().unwrap_err().to_string(), "transaction: k is written twice");
    }
}
