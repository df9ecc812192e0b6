//! What is stored of nodes, tokens and certificates. Times are seconds since 1970, UTC.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::identity::{IdentityError, PeerCertificate, Serial};
use crate::store::{Key, Record, StoreError, encode};
use crate::{NodeName, error_chain};

/// What all of it begins with.
pub(in crate::identity) const PREFIX: &str = "identity/";
const NODE: &str = "identity/node/";
const TOKEN: &str = "identity/token/";
pub(super) const TOKENS: &str = TOKEN;
pub(super) const NODES: &str = NODE;
pub(super) const CERTIFICATE: &str = "identity/certificate/";

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(super) fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

pub(super) fn written<R: Record>(record: &R) -> Result<Vec<u8>, IdentityError> {
    encode(record).map_err(|error| IdentityError::Cryptography(error_chain(&error)))
}

/// A certificate that a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub serial: Serial,
    pub not_after: u64,
}

impl Held {
    pub(super) fn of(certificate: &PeerCertificate) -> Self {
        Self { serial: certificate.serial(), not_after: seconds(certificate.not_after()) }
    }
}

/// A node that was enrolled once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    /// The certificate that was issued last.
    pub current: Held,
    /// The one before, until the last is first used: the answer that carried the last may have been lost.
    #[serde(default)]
    pub previous: Option<Held>,
    /// Whether it was removed and not enrolled since.
    #[serde(default)]
    pub removed: bool,
    /// Whether it may vouch for users.
    #[serde(default)]
    pub login: bool,
    /// When it was enrolled.
    #[serde(default)]
    pub enrolled: u64,
}

impl Record for NodeRecord {
    const KIND: &'static str = "node-identity";
}

pub(super) fn node_key(name: &NodeName) -> Result<Key, StoreError> {
    format!("{NODE}{name}").parse()
}

pub(super) fn node_of(key: &Key) -> Option<NodeName> {
    key.as_str().strip_prefix(NODE)?.parse().ok()
}

/// A join token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TokenRecord {
    /// SHA-256 of `ID.SECRET`, in hexadecimal.
    pub hash: String,
    /// The node that it is for; absent for any that is new.
    #[serde(default)]
    pub node: Option<NodeName>,
    #[serde(default)]
    pub login: bool,
    pub created: u64,
    pub expires: u64,
    /// Who made it, as in the audit.
    #[serde(default)]
    pub by: String,
    /// Who was enrolled with it.
    #[serde(default)]
    pub used: Option<TokenUse>,
}

/// That a node was enrolled with a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TokenUse {
    pub node: NodeName,
    pub serial: Serial,
    pub at: u64,
}

impl Record for TokenRecord {
    const KIND: &'static str = "join-token";
}

pub(super) fn token_key(id: &str) -> Result<Key, StoreError> {
    format!("{TOKEN}{id}").parse()
}

/// A certificate of a controller, an admin or a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CertificateRecord {
    /// The URI that is in it.
    pub subject: String,
    pub issued: u64,
    pub not_after: u64,
    /// Who got it issued, as in the audit.
    #[serde(default)]
    pub by: String,
    #[serde(default)]
    pub revoked: Option<Revocation>,
}

/// That a certificate was revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Revocation {
    pub at: u64,
    #[serde(default)]
    pub by: String,
}

impl Record for CertificateRecord {
    const KIND: &'static str = "certificate";
}

pub(super) fn certificate_key(serial: Serial) -> Result<Key, StoreError> {
    format!("{CERTIFICATE}{serial}").parse()
}

pub(super) fn serial_of(key: &Key) -> Option<Serial> {
    key.as_str().strip_prefix(CERTIFICATE)?.parse().ok()
}
