//! What a program shows to say who it is: a key, its certificate, and the authority's, in one file.

use std::fmt;
use std::path::Path;
use std::time::SystemTime;

use x509_parser::time::ASN1Time;
use zeroize::Zeroizing;

use super::authority::read_authority;
use super::{IdentityError, PeerCertificate, PrivateKey, SiteName, Subject, certificate, pem};
use crate::fs;

/// The most bytes of a file of credentials.
const FILE_LIMIT: u64 = 128 * 1024;

/// A private key, its certificate, and the certificate of the authority that issued it.
///
/// They stand in one file, so that a renewal replaces all three at once or nothing: PEM, the blocks in that order.
#[derive(Clone)]
pub struct Credentials {
    key: PrivateKey,
    certificate: Vec<u8>,
    authority: Vec<u8>,
    site: SiteName,
    content: PeerCertificate,
}

impl Credentials {
    /// Puts them together, where they belong together.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`] if the certificate is for another key, was issued by another authority, or cannot
    /// be read.
    pub fn new(key: PrivateKey, certificate: &str, authority: &str) -> Result<Self, IdentityError> {
        Self::from_der(key, certificate::from_pem(certificate)?, certificate::from_pem(authority)?)
    }

    fn from_der(key: PrivateKey, leaf: Vec<u8>, authority: Vec<u8>) -> Result<Self, IdentityError> {
        let (site, _) = read_authority(&authority)?;
        let content = PeerCertificate::parse(&leaf, &site)?;
        let parsed = certificate::parse(&leaf)?;
        if parsed.public_key().raw != key.public()? {
            return Err(IdentityError::Certificate("it is for another key"));
        }
        let issuer = certificate::parse(&authority)?;
        parsed
            .verify_signature(Some(issuer.public_key()))
            .map_err(|_| IdentityError::Certificate("another authority issued it"))?;
        Ok(Self { key, certificate: leaf, authority, site, content })
    }

    /// Writes the file, mode 0600, whole or not at all. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        let key = Zeroizing::new(pem::encode(pem::PRIVATE_KEY, self.key.der()));
        let rest =
            [&self.certificate, &self.authority].map(|der| pem::encode(pem::CERTIFICATE, der)).concat();
        let text = Zeroizing::new([key.as_bytes(), rest.as_bytes()].concat());
        Ok(fs::write_file(path, &text, 0o600)?)
    }

    /// Reads the file and sees to it that it can be used now. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::File`] if it cannot be read, or group or others can; [`IdentityError::Credentials`] if what is
    /// in it does not belong together or is not valid now, with the way out.
    pub fn load(path: &Path, now: SystemTime) -> Result<Self, IdentityError> {
        let bytes = Zeroizing::new(fs::read_secret(path, FILE_LIMIT)?);
        Self::from_pem(&bytes, &path.display().to_string(), now)
    }

    /// Reads what [`save`](Self::save) has written, for a host that keeps it elsewhere than in a file of its own, such
    /// as in a mounted Secret. `place` is what errors call it.
    ///
    /// # Errors
    /// [`IdentityError::Credentials`] as [`load`](Self::load).
    pub fn from_pem(bytes: &[u8], place: &str, now: SystemTime) -> Result<Self, IdentityError> {
        let unusable = |what: String| IdentityError::Credentials { place: place.to_owned(), what };
        let blocks = std::str::from_utf8(bytes).ok().and_then(pem::blocks);
        let credentials = match blocks.as_deref() {
            Some([(a, key), (b, leaf), (c, authority)])
                if [a, b, c] == [pem::PRIVATE_KEY, pem::CERTIFICATE, pem::CERTIFICATE] =>
            {
                PrivateKey::from_der(key)
                    .and_then(|key| Self::from_der(key, leaf.to_vec(), authority.to_vec()))
                    .map_err(|error| unusable(error.to_string()))?
            }
            _ => {
                return Err(unusable(
                    "no credentials: a PRIVATE KEY, its CERTIFICATE and the authority's belong in it"
                        .to_owned(),
                ));
            }
        };
        credentials.check_time(now).map_err(unusable)?;
        Ok(credentials)
    }

    fn check_time(&self, now: SystemTime) -> Result<(), String> {
        let subject = &self.content.subject();
        if now < self.content.not_before() {
            let time = time_text(self.content.not_before());
            return Err(format!(
                "the certificate of {subject} begins at {time}: this machine's clock is behind"
            ));
        }
        if now > self.content.not_after() {
            let time = time_text(self.content.not_after());
            let way_out = match subject {
                Subject::Controller(_) => "let root on the controller issue a new one",
                Subject::Node(_) => "enrol the node again, with a new join token",
                Subject::Admin(_) => "let another admin, or root on a controller, issue a new one",
                Subject::User { .. } => "log in again",
            };
            return Err(format!("the certificate of {subject} ended at {time}: {way_out}"));
        }
        Ok(())
    }

    /// Who one is.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        self.content.subject()
    }

    /// What one's certificate says.
    #[must_use]
    pub fn content(&self) -> &PeerCertificate {
        &self.content
    }

    /// The site.
    #[must_use]
    pub fn site(&self) -> &SiteName {
        &self.site
    }

    /// The private key.
    #[must_use]
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// The certificate and the authority's, as DER, in the order in which TLS sends them. The authority's goes along
    /// for a node that enrols, which knows only its fingerprint.
    #[must_use]
    pub fn chain(&self) -> [&[u8]; 2] {
        [&self.certificate, &self.authority]
    }

    /// The authority's certificate, as DER: the only one that peers of this site are verified with.
    #[must_use]
    pub fn authority(&self) -> &[u8] {
        &self.authority
    }

    /// The authority's certificate, as PEM.
    #[must_use]
    pub fn authority_pem(&self) -> String {
        pem::encode(pem::CERTIFICATE, &self.authority)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("site", &self.site)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

fn time_text(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let time = i64::try_from(seconds).ok().and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
    time.map_or_else(|| "another time".to_owned(), |time| time.to_string())
}
