//! Certificates: what is in one, and who came with one.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Version};
use x509_parser::time::ASN1Time;

use super::secret::{hex, random, sha256, unhex};
use super::{IdentityError, SiteName, Subject, Void, pem};

/// The most bytes of a certificate that is read. One of ours has 700, and 3 700 with the longest name.
const MAX_CERTIFICATE_BYTES: usize = 16 * 1024;

/// How far a certificate's begin lies before it was issued, for clocks that are behind.
pub const CLOCK_SKEW: Duration = Duration::from_mins(5);

/// The serial number of a certificate: 128 random bits, written as 32 digits `0-9a-f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial([u8; 16]);

impl Serial {
    pub(super) fn random() -> Result<Self, IdentityError> {
        // An authority gives no serial number 0 (RFC 5280 §4.1.2.2).
        Ok(Self(random().map(|bytes: [u8; 16]| if bytes == [0; 16] { [1; 16] } else { bytes })?))
    }

    pub(super) fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// From the content of a DER integer, which has no leading zeros but one that makes it positive.
    fn from_integer(content: &[u8]) -> Option<Self> {
        let digits = content.strip_prefix(&[0]).unwrap_or(content);
        let mut bytes = [0; 16];
        let from = bytes.len().checked_sub(digits.len())?;
        bytes.get_mut(from..)?.copy_from_slice(digits);
        Some(Self(bytes))
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex(&self.0))
    }
}

impl FromStr for Serial {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        unhex(text).map(Self).ok_or(IdentityError::Certificate("a serial number has 32 digits 0-9a-f"))
    }
}

impl Serialize for Serial {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Serial {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A certificate that was just issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub(super) pem: String,
    pub(super) authority_pem: String,
    pub(super) content: PeerCertificate,
}

impl Certificate {
    /// The certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The certificate of the authority that issued it, as PEM.
    #[must_use]
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// What is in it.
    #[must_use]
    pub fn content(&self) -> &PeerCertificate {
        &self.content
    }

    /// Its serial number.
    #[must_use]
    pub fn serial(&self) -> Serial {
        self.content.serial
    }

    /// When it ends.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.content.not_after
    }
}

/// What a certificate says: whom it is for, and for how long.
///
/// That the site's authority signed it is not seen here: a connection verifies that first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    subject: Subject,
    serial: Serial,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl PeerCertificate {
    /// Reads a certificate of the site.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`] if it is no certificate, is that of an authority, is of another site, or has not
    /// exactly one URI, which names a [`Subject`].
    pub fn parse(der: &[u8], site: &SiteName) -> Result<Self, IdentityError> {
        let (of, peer) = Self::parse_any_site(der)?;
        if of != *site {
            return Err(IdentityError::Certificate("it is of another site"));
        }
        Ok(peer)
    }

    /// Reads one's own certificate, which says what site one belongs to.
    pub(super) fn parse_any_site(der: &[u8]) -> Result<(SiteName, Self), IdentityError> {
        let certificate = parse(der)?;
        if certificate.version() != X509Version::V3 {
            return Err(IdentityError::Certificate("it is not X.509 version 3"));
        }
        if is_authority(&certificate) {
            return Err(IdentityError::Certificate("it is that of an authority"));
        }
        let (site, subject) = Subject::parse(only_uri(&certificate)?)?;
        let serial = Serial::from_integer(certificate.raw_serial())
            .ok_or(IdentityError::Certificate("its serial number has more than 128 bits"))?;
        let validity = certificate.validity();
        let (not_before, not_after) = (system_time(&validity.not_before)?, system_time(&validity.not_after)?);
        Ok((site, Self { subject, serial, not_before, not_after }))
    }

    /// Whom it is for.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Its serial number.
    #[must_use]
    pub fn serial(&self) -> Serial {
        self.serial
    }

    /// When it begins, which is [`CLOCK_SKEW`] before it was issued.
    #[must_use]
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// When it ends.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// When its holder should ask for the next one: after two thirds of its time.
    #[must_use]
    pub fn renew_at(&self) -> SystemTime {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_before.checked_add(life * 2 / 3).unwrap_or(self.not_after)
    }

    /// Whether it is valid at a time; a connection may outlive the certificate that it began with.
    ///
    /// # Errors
    /// [`IdentityError::Void`].
    pub fn check_time(&self, now: SystemTime) -> Result<(), IdentityError> {
        if self.not_before <= now && now <= self.not_after {
            return Ok(());
        }
        Err(IdentityError::Void { subject: self.subject.clone(), serial: self.serial, void: Void::Expired })
    }
}

/// The SHA-256 of a certificate in its DER form, as 64 digits `0-9a-f`: what
/// `openssl x509 -noout -fingerprint -sha256` prints, without colons and in lower case.
#[must_use]
pub fn fingerprint(der: &[u8]) -> String {
    hex(&sha256(der))
}

pub(super) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, IdentityError> {
    if der.len() > MAX_CERTIFICATE_BYTES {
        return Err(IdentityError::Certificate("it is too large"));
    }
    let (rest, certificate) =
        X509Certificate::from_der(der).map_err(|_| IdentityError::Certificate("it cannot be read"))?;
    if rest.is_empty() { Ok(certificate) } else { Err(IdentityError::Certificate("something follows it")) }
}

/// Whether it may issue certificates; one that says so in a form that cannot be read counts as if it might.
pub(super) fn is_authority(certificate: &X509Certificate<'_>) -> bool {
    match certificate.basic_constraints() {
        Ok(Some(constraints)) => constraints.value.ca,
        Ok(None) => false,
        Err(_) => true,
    }
}

/// The one URI in a certificate.
pub(super) fn only_uri<'a>(certificate: &'a X509Certificate<'_>) -> Result<&'a str, IdentityError> {
    let mut uris = Vec::new();
    for extension in certificate.extensions() {
        if let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() {
            for name in &names.general_names {
                match name {
                    GeneralName::URI(uri) => uris.push(*uri),
                    GeneralName::DNSName(_) | GeneralName::IPAddress(_) => {}
                    _ => {
                        return Err(IdentityError::Certificate(
                            "it has a name of a kind that none of ours has",
                        ));
                    }
                }
            }
        }
    }
    match uris.as_slice() {
        [uri] => Ok(uri),
        _ => Err(IdentityError::Certificate("it has not exactly one URI")),
    }
}

pub(super) fn system_time(time: &ASN1Time) -> Result<SystemTime, IdentityError> {
    u64::try_from(time.timestamp())
        .ok()
        .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))
        .ok_or(IdentityError::Certificate("its time lies before 1970"))
}

/// The one certificate in a PEM text, as DER.
pub(super) fn from_pem(text: &str) -> Result<Vec<u8>, IdentityError> {
    let der = pem::decode(text, &[pem::CERTIFICATE]);
    der.map(|der| der.to_vec()).ok_or(IdentityError::Certificate("it is not one certificate as PEM"))
}
