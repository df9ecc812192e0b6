//! Whom a certificate is for, written as a URI.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::IdentityError;
use super::secret::hex;
use crate::{NameError, NodeName, UserName, is_dns_label};

/// The longest name of a site, in bytes.
const MAX_SITE_NAME: usize = 63;

/// The name of a site: a DNS-1123 subdomain of at most 63 characters, such as `physics-lab` or `hpc.example.org`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteName(String);

impl SiteName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SiteName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::try_from(text.to_owned())
    }
}

impl TryFrom<String> for SiteName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > MAX_SITE_NAME || !text.split('.').all(is_dns_label) {
            return Err(NameError::NotDns(text.chars().take(MAX_SITE_NAME).collect()));
        }
        Ok(Self(text))
    }
}

impl fmt::Display for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Serialize for SiteName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SiteName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
    }
}

/// Whom a certificate is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// A controller.
    Controller(NodeName),
    /// A node's agent.
    Node(NodeName),
    /// A person or program that may do everything.
    Admin(UserName),
    /// A user, who is nothing more.
    User {
        /// The name.
        name: UserName,
        /// The login node that vouched for the user; `None` where a controller or an external issuer knew.
        vouched_by: Option<NodeName>,
    },
}

impl Subject {
    /// A user whom a controller or an external issuer knows.
    #[must_use]
    pub fn user(name: UserName) -> Self {
        Self::User { name, vouched_by: None }
    }

    /// The word for what it is: `controller`, `node`, `admin` or `user`.
    #[must_use]
    pub fn role(&self) -> &'static str {
        match self {
            Self::Controller(_) => "controller",
            Self::Node(_) => "node",
            Self::Admin(_) => "admin",
            Self::User { .. } => "user",
        }
    }

    /// The name, without what it is.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Controller(name) | Self::Node(name) => name.as_str(),
            Self::Admin(name) | Self::User { name, .. } => name.as_str(),
        }
    }

    /// `spur://SITE/ROLE/NAME`, with `?node=NODE` behind it for a user for whom a node vouched.
    ///
    /// Each byte of a name other than `A-Z a-z 0-9 - . _ ~` is written as `%XX`, so that different subjects have
    /// different URIs.
    #[must_use]
    pub fn uri(&self, site: &SiteName) -> String {
        let mut uri = format!("spur://{site}/{}/{}", self.role(), encode(self.name()));
        if let Self::User { vouched_by: Some(node), .. } = self {
            uri.push_str("?node=");
            uri.push_str(node.as_str());
        }
        uri
    }

    /// Reads a URI that [`uri`](Self::uri) wrote, and nothing else.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`] for any other text.
    pub fn parse(uri: &str) -> Result<(SiteName, Self), IdentityError> {
        let read = || {
            let rest = uri.strip_prefix("spur://")?;
            let (site, rest) = rest.split_once('/')?;
            let (role, rest) = rest.split_once('/')?;
            let (name, node) = match rest.split_once("?node=") {
                Some((name, node)) => (decode(name)?, Some(node.parse().ok()?)),
                None => (decode(rest)?, None),
            };
            let subject = match (role, node) {
                ("controller", None) => Self::Controller(name.try_into().ok()?),
                ("node", None) => Self::Node(name.try_into().ok()?),
                ("admin", None) => Self::Admin(name.try_into().ok()?),
                ("user", vouched_by) => Self::User { name: name.try_into().ok()?, vouched_by },
                _ => return None,
            };
            let site = site.parse().ok()?;
            // One spelling each: `%61` is no `a`.
            (subject.uri(&site) == uri).then_some((site, subject))
        };
        read().ok_or(IdentityError::Certificate("it names nobody whom a SPUR site knows"))
    }
}

/// Such as `node gpu01`, `user alice` or `user alice on login1`.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role(), self.name())?;
        match self {
            Self::User { vouched_by: Some(node), .. } => write!(f, " on {node}"),
            Self::Controller(_) | Self::Node(_) | Self::Admin(_) | Self::User { .. } => Ok(()),
        }
    }
}

fn encode(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.push_str(&hex(&[byte]).to_ascii_uppercase());
        }
    }
    text
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let value = digit(rest.next())? * 16 + digit(rest.next())?;
            bytes.push(u8::try_from(value).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}
