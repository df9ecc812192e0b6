//! Names of the accounting world, and their injective mapping to names that Kubernetes takes.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::{Classify, ErrorKind};

/// The longest name that is taken, in bytes. Slurm stores names in `tinytext` columns (255 bytes); a host
/// may use longer ones, and an annotation has room for them.
const MAX_NAME_BYTES: usize = 1024;

/// The longest DNS-1123 label, in characters (RFC 1123 §2.1).
const MAX_LABEL: usize = 63;

/// Characters of the hash that a mapped name ends with: 5 bits each, 80 bits in all.
const HASH_CHARS: usize = 16;

/// A name that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty.
    #[error("a name must not be empty")]
    Empty,
    /// It is longer than 1024 bytes.
    #[error("a name has at most {MAX_NAME_BYTES} bytes, this one has {0}")]
    TooLong(usize),
    /// It holds a character that no terminal or file could show: a control character, or a mark of direction.
    #[error("a name must not hold the control character {0:?}")]
    Control(char),
    /// It begins or ends with white space, which nobody sees.
    #[error("\"{0}\" begins or ends with white space")]
    Padded(String),
    /// It is no DNS-1123 subdomain, as the name of a machine or a site must be.
    #[error("{0:?} is no DNS name: write a-z, 0-9, - and dots, such as gpu01 or gpu01.site.example")]
    NotDns(String),
}

impl Classify for NameError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

fn validate(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong(name.len()));
    }
    if let Some(c) = name.chars().find(|c| c.is_control() || is_direction(*c)) {
        return Err(NameError::Control(c));
    }
    if name.trim() != name {
        return Err(NameError::Padded(name.to_owned()));
    }
    Ok(())
}

/// Separators of lines, and marks that turn the direction of text: they make a terminal show another name.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Any Unicode text of 1 to 1024 bytes without control characters and outer white space.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                validate(text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                validate(&text)?;
                Ok(Self(text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
            }
        }
    };
}

name_type!(
    /// The name of an account.
    AccountName
);
name_type!(
    /// The name of a user.
    UserName
);
name_type!(
    /// The name of a QoS.
    QosName
);
name_type!(
    /// The name of a partition.
    PartitionName
);
name_type!(
    /// The name of a cluster in the accounting database.
    ClusterName
);

/// Whether `text` is a DNS-1123 label: 1 to 63 of `a-z`, `0-9` and `-`, a letter or digit at both ends.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= MAX_LABEL
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

/// An injective mapping of names to DNS-1123 labels behind a fixed prefix.
///
/// A name that is a legal label, fits behind the prefix and does not end like our own suffix stays as it
/// is. Any other is made readable (lower case, `-` for what a label cannot hold), cut, and given a suffix:
/// `-` and 16 characters of base 32 (`0-9a-v`), the first 80 bits of the SHA-256 of the exact name. So a
/// result either ends in such a suffix, and then the hash tells names apart, or it is the name itself.
///
/// ```
/// let namespaces = spur_sdk::LabelMapping::new("spur-acct-");
/// assert_eq!(namespaces.map("physics"), "spur-acct-physics");
/// assert_eq!(namespaces.map("Physics_Lab"), "spur-acct-physics-lab-vtqd9ms6kn4blatr");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct LabelMapping {
    prefix: &'static str,
}

impl LabelMapping {
    /// A mapping behind `prefix`, which should leave at least 20 of the 63 characters free.
    #[must_use]
    pub const fn new(prefix: &'static str) -> Self {
        Self { prefix }
    }

    /// The prefix and the label of `name`, together at most 63 characters.
    #[must_use]
    pub fn map(&self, name: &str) -> String {
        let mut mapped = self.prefix.to_owned();
        mapped.push_str(&self.label(name));
        mapped
    }

    /// Whether a name may be one that this mapping made.
    #[must_use]
    pub fn is_mapped(&self, name: &str) -> bool {
        name.strip_prefix(self.prefix).is_some_and(|rest| !rest.is_empty())
    }

    /// The label of `name` alone, without the prefix. It is also a legal label value.
    #[must_use]
    pub fn label(&self, name: &str) -> String {
        let room = MAX_LABEL.saturating_sub(self.prefix.len());
        if is_dns_label(name) && name.len() <= room && !ends_like_suffix(name) {
            return name.to_owned();
        }
        let mut readable = String::new();
        for c in name.chars().flat_map(char::to_lowercase) {
            if c.is_ascii_lowercase() || c.is_ascii_digit() {
                readable.push(c);
            } else if !readable.is_empty() && !readable.ends_with('-') {
                readable.push('-');
            }
        }
        // All of it is ASCII, so a cut at any byte is one between characters.
        readable.truncate(room.saturating_sub(HASH_CHARS.saturating_add(1)));
        let readable = readable.trim_end_matches('-');
        // Without a readable part the suffix alone could be another account's legal name.
        let readable = if readable.is_empty() { "x" } else { readable };
        format!("{readable}-{}", hash(name))
    }
}

/// Whether a label ends as one that [`LabelMapping`] made.
fn ends_like_suffix(label: &str) -> bool {
    let Some((_, tail)) = label.rsplit_once('-') else { return false };
    tail.len() == HASH_CHARS && tail.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'v').contains(&b))
}

fn hash(name: &str) -> String {
    const ALPHABET: [char; 32] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j',
        'k', 'l', 'm', 'n', 'o', 'p', 'q', 'r', 's', 't', 'u', 'v',
    ];
    let digest = Sha256::digest(name.as_bytes());
    let bits = digest.iter().take(10).fold(0_u128, |bits, byte| (bits << 8) | u128::from(*byte));
    (0..HASH_CHARS)
        .rev()
        .filter_map(|i| ALPHABET.get(usize::try_from((bits >> (5 * i)) & 31).unwrap_or(0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ACCOUNTS: LabelMapping = LabelMapping::new("spur-acct-");

    #[test]
    fn a_legal_name_that_fits_stays_as_it_is() {
        for name in ["physics", "a", "0", "bio-chem-2", &"a".repeat(53)] {
            assert_eq!(ACCOUNTS.map(name), format!("spur-acct-{name}"));
        }
    }

    #[test]
    fn names_that_differ_only_in_case_or_punctuation_or_beyond_the_cut_differ() {
        let long = "a".repeat(60);
        let names = [
            "Physics",
            "physics",
            "PHYSICS",
            "phy.sics",
            "phy_sics",
            "phy-sics",
            "phy@sics",
            "-physics",
            "physics-",
            "日本",
            "日本語",
            "é",
            "e",
            &long,
            &format!("{long}b"),
            &format!("{long}c"),
        ];
        let mapped: std::collections::BTreeSet<_> = names.iter().map(|n| ACCOUNTS.map(n)).collect();
        assert_eq!(mapped.len(), names.len());
    }

    #[test]
    fn a_name_that_looks_like_a_hashed_one_collides_with_none() {
        let hashed = ACCOUNTS.label("Physics");
        let again = ACCOUNTS.label(&hashed);
        assert_ne!(hashed, again);
        assert!(ends_like_suffix(&again));
        assert_ne!(ACCOUNTS.label(&again), again);
    }

    #[test]
    fn a_name_without_a_readable_character_keeps_apart_from_a_bare_hash() {
        let label = ACCOUNTS.label("日本");
        assert!(label.starts_with("x-"), "{label}");
        let bare = label.trim_start_matches("x-");
        assert_eq!(ACCOUNTS.label(bare), bare, "a bare hash is an ordinary name");
    }

    #[test]
    fn white_space_and_control_characters_are_refused() {
        assert_eq!("".parse::<AccountName>(), Err(NameError::Empty));
        assert_eq!("a\nb".parse::<AccountName>(), Err(NameError::Control('\n')));
        assert_eq!("a\u{202e}b".parse::<AccountName>(), Err(NameError::Control('\u{202e}')));
        assert!(matches!(" a".parse::<AccountName>(), Err(NameError::Padded(_))));
        assert_eq!("x".repeat(1025).parse::<AccountName>(), Err(NameError::TooLong(1025)));
        assert!(serde_json::from_str::<UserName>("\"\"").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn every_mapped_name_is_a_legal_label(name in "\\PC{1,90}") {
            prop_assert!(is_dns_label(&ACCOUNTS.map(&name)));
        }

        #[test]
        fn different_names_map_to_different_labels(a in any::<String>(), b in any::<String>()) {
            prop_assume!(a != b);
            prop_assert_ne!(ACCOUNTS.map(&a), ACCOUNTS.map(&b));
        }

        // Arbitrary text seldom comes near a legal label, so these are drawn close together.
        #[test]
        fn close_names_map_to_different_labels(a in "[aA_.@-]{0,3}[a-c0-2-]{50,56}", b in "[aA_.@-]{0,3}[a-c0-2-]{50,56}",
            c in "[a-bA-B._-]{1,3}", d in "[a-bA-B._-]{1,3}") {
            prop_assert!(a == b || ACCOUNTS.map(&a) != ACCOUNTS.map(&b));
            prop_assert!(c == d || ACCOUNTS.map(&c) != ACCOUNTS.map(&d));
        }

        #[test]
        fn a_mapped_label_given_as_a_name_does_not_collide(name in "\\PC{1,90}", other in "\\PC{1,90}") {
            let label = ACCOUNTS.label(&name);
            prop_assert!(label == name || ACCOUNTS.label(&label) != label);
            prop_assert!(other == label || ACCOUNTS.label(&other) != ACCOUNTS.label(&label));
        }
    }
}
