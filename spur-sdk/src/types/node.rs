//! Names of machines.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{NameError, is_dns_label};

/// The longest name of a machine, in bytes (RFC 1123 §2.1).
const MAX_NODE_NAME: usize = 253;

/// The name of a machine: of a node or of a controller.
///
/// A DNS-1123 subdomain, which is what Kubernetes takes as the name of a Node: labels of `a-z`, `0-9` and `-`, joined
/// by dots, of 253 characters at most.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::try_from(text.to_owned())
    }
}

impl TryFrom<String> for NodeName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > MAX_NODE_NAME || !text.split('.').all(is_dns_label) {
            return Err(NameError::NotDns(text.chars().take(MAX_NODE_NAME).collect()));
        }
        Ok(Self(text))
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for NodeName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for NodeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_name_that_kubernetes_takes() {
        for name in ["gpu01", "a", "rack1.site.example", &"a".repeat(63)] {
            assert_eq!(name.parse::<NodeName>().unwrap().as_str(), name);
        }
        for name in ["", "GPU1", "-a", "a-", "a..b", ".a", "a_b", "a/b", "a b", "é", "a\n", &"a".repeat(64)]
        {
            assert!(name.parse::<NodeName>().is_err(), "{name:?}");
        }
        assert!(["abcdefg"; 40].join(".").parse::<NodeName>().is_err());
    }
}
