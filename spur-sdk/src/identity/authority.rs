//! The site's certificate authority.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use super::certificate::{self, CLOCK_SKEW};
use super::key::cryptography;
use super::{
    Certificate, CertificateRequest, IdentityError, PeerCertificate, PrivateKey, Serial, SiteKey, SiteName,
    Subject, fingerprint, pem,
};
use crate::NodeName;
use crate::store::{Commit, Comparison, Key, Record, Store, StoreError, Transaction, decode, encode};

/// The most that a user's certificate may live.
pub const MAX_USER_LIFETIME: Duration = Duration::from_hours(12);
/// The most that any certificate may live.
const MAX_LIFETIME: Duration = Duration::from_hours(3653 * 24);
/// The last moment that a certificate can hold: the end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;
/// The longest common name (RFC 5280, `ub-common-name`), in characters. It is for people; nothing reads it.
const MAX_COMMON_NAME: usize = 64;
/// The most names and addresses of a server in a certificate.
const MAX_SERVER_NAMES: usize = 64;

/// Where the authority stands in the store.
const AUTHORITY: &str = "identity/authority";

/// How long certificates live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lifetimes {
    /// The authority's own. Default: 10 years.
    pub authority: Duration,
    /// A controller's. Default: 365 days.
    pub controller: Duration,
    /// A node's, which it renews after two thirds. Default: 30 days.
    pub node: Duration,
    /// An admin's. Default: 365 days.
    pub admin: Duration,
    /// A user's. Default and most: 12 hours.
    pub user: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        let days = |days: u64| Duration::from_hours(days * 24);
        Self {
            authority: MAX_LIFETIME,
            controller: days(365),
            node: days(30),
            admin: days(365),
            user: MAX_USER_LIFETIME,
        }
    }
}

impl Lifetimes {
    /// Sets how long the authority lives.
    #[must_use]
    pub fn authority(mut self, value: Duration) -> Self {
        self.authority = value;
        self
    }

    /// Sets how long a controller's certificate lives.
    #[must_use]
    pub fn controller(mut self, value: Duration) -> Self {
        self.controller = value;
        self
    }

    /// Sets how long a node's certificate lives.
    #[must_use]
    pub fn node(mut self, value: Duration) -> Self {
        self.node = value;
        self
    }

    /// Sets how long an admin's certificate lives.
    #[must_use]
    pub fn admin(mut self, value: Duration) -> Self {
        self.admin = value;
        self
    }

    /// Sets how long a user's certificate lives; more than [`MAX_USER_LIFETIME`] is refused when one is issued.
    #[must_use]
    pub fn user(mut self, value: Duration) -> Self {
        self.user = value;
        self
    }

    /// How long a certificate for `subject` lives.
    #[must_use]
    pub fn of(&self, subject: &Subject) -> Duration {
        match subject {
            Subject::Controller(_) => self.controller,
            Subject::Node(_) => self.node,
            Subject::Admin(_) => self.admin,
            Subject::User { .. } => self.user,
        }
    }
}

/// What a certificate is to say. Nothing of it comes from the request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Whom it is for.
    pub subject: Subject,
    /// How long it lives. It ends with the authority at the latest.
    pub lifetime: Duration,
    /// The names by which a controller or a node is reached, beside its own name.
    pub dns: Vec<NodeName>,
    /// The addresses by which it is reached.
    pub addresses: Vec<IpAddr>,
}

impl Grant {
    /// A certificate for `subject`.
    #[must_use]
    pub fn new(subject: Subject, lifetime: Duration) -> Self {
        Self { subject, lifetime, dns: Vec::new(), addresses: Vec::new() }
    }

    /// Adds names of a server.
    #[must_use]
    pub fn dns(mut self, names: impl IntoIterator<Item = NodeName>) -> Self {
        self.dns.extend(names);
        self
    }

    /// Adds addresses of a server.
    #[must_use]
    pub fn addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.addresses.extend(addresses);
        self
    }
}

/// The site's certificate authority: a self-signed certificate and its private key.
#[derive(Clone)]
pub struct Authority {
    site: SiteName,
    certificate: Vec<u8>,
    not_after: SystemTime,
    key: PrivateKey,
}

/// What is stored of it.
#[derive(Debug, Serialize, Deserialize)]
struct AuthorityRecord {
    site: SiteName,
    /// PEM.
    certificate: String,
    /// The private key, PKCS #8, sealed with the site key for [`AUTHORITY`]; base 64.
    sealed_key: String,
}

impl Record for AuthorityRecord {
    const KIND: &'static str = "authority";
}

impl Authority {
    /// Makes a new authority, which stands nowhere but in memory yet.
    ///
    /// # Errors
    /// [`IdentityError::Lifetime`], [`IdentityError::Clock`], [`IdentityError::Cryptography`].
    pub fn create(site: &SiteName, lifetime: Duration, now: SystemTime) -> Result<Self, IdentityError> {
        check_lifetime("the authority", lifetime, MAX_LIFETIME)?;
        let key = PrivateKey::generate()?;
        let mut params = params(&format!("SPUR {site}"), now, later(now, lifetime)?)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.subject_alt_names = vec![uri(&format!("spur://{site}"))?];
        let certificate =
            key.with(|pair| Ok(params.self_signed(pair).map_err(cryptography)?.der().to_vec()))?;
        Self::from_parts(&certificate, key)
    }

    /// An authority from its certificate and key, which must belong together.
    fn from_parts(der: &[u8], key: PrivateKey) -> Result<Self, IdentityError> {
        let (site, not_after) = read_authority(der)?;
        if key.public()? != certificate::parse(der)?.public_key().raw {
            return Err(IdentityError::Certificate("the authority's key belongs to another certificate"));
        }
        Ok(Self { site, certificate: der.to_vec(), not_after, key })
    }

    /// Stores the authority of a site that has none, its key sealed.
    ///
    /// # Errors
    /// [`IdentityError::Exists`] if there is one: nothing is changed then.
    ///
    /// # Cancellation
    /// It is stored or not; [`load`](Self::load) tells.
    pub async fn save(&self, store: &impl Store, site_key: &SiteKey) -> Result<(), IdentityError> {
        let record = AuthorityRecord {
            site: self.site.clone(),
            certificate: self.certificate_pem(),
            sealed_key: STANDARD.encode(site_key.seal(AUTHORITY, self.key.der())?),
        };
        let key: Key = AUTHORITY.parse()?;
        let transaction = Transaction::new()
            .when(Comparison::Absent(key.clone()))
            .put(key, encode(&record).map_err(|error| cryptography(crate::error_chain(&error)))?);
        match store.commit(transaction).await? {
            Commit::Done(_) => Ok(()),
            Commit::Conflict(_) => Err(IdentityError::Exists("this store".to_owned())),
        }
    }

    /// Loads the site's authority.
    ///
    /// # Errors
    /// [`IdentityError::NoAuthority`] if there is none, [`IdentityError::Sealed`] if the site key is another.
    pub async fn load(store: &impl Store, site_key: &SiteKey) -> Result<Self, IdentityError> {
        let entry = store.get(&AUTHORITY.parse()?).await?.ok_or(IdentityError::NoAuthority)?;
        let record: AuthorityRecord = decode(&entry)?;
        let damaged = |what: &str| IdentityError::Store(StoreError::damaged(&entry.key, what));
        let sealed = STANDARD.decode(&record.sealed_key).map_err(|_| damaged("the key is not base 64"))?;
        let key = PrivateKey::from_der(site_key.open(AUTHORITY, &sealed)?.bytes())?;
        let der = certificate::from_pem(&record.certificate)?;
        let authority = Self::from_parts(&der, key)?;
        if authority.site != record.site {
            return Err(damaged("the certificate is of another site"));
        }
        Ok(authority)
    }

    /// Loads the site's authority, or makes and stores one; the second value says whether it did. Of several
    /// controllers that do this at once, one makes it and all have the same.
    ///
    /// # Errors
    /// [`IdentityError::Exists`] if the store has that of another site.
    ///
    /// # Cancellation
    /// May be called again.
    pub async fn establish(
        store: &impl Store,
        site_key: &SiteKey,
        site: &SiteName,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<(Self, bool), IdentityError> {
        let mut made = false;
        let found = match Self::load(store, site_key).await {
            Err(IdentityError::NoAuthority) => {
                let authority = Self::create(site, lifetime, now)?;
                match authority.save(store, site_key).await {
                    Ok(()) => {
                        made = true;
                        authority
                    }
                    Err(IdentityError::Exists(_)) => Self::load(store, site_key).await?,
                    Err(error) => return Err(error),
                }
            }
            found => found?,
        };
        if found.site == *site {
            Ok((found, made))
        } else {
            Err(IdentityError::Exists(found.site.to_string()))
        }
    }

    /// The site.
    #[must_use]
    pub fn site(&self) -> &SiteName {
        &self.site
    }

    /// The authority's certificate as PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        pem::encode(pem::CERTIFICATE, &self.certificate)
    }

    /// The authority's certificate as DER.
    #[must_use]
    pub fn certificate_der(&self) -> &[u8] {
        &self.certificate
    }

    /// The SHA-256 of the certificate, which join tokens carry; see [`fingerprint`].
    #[must_use]
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.certificate)
    }

    /// When the authority ends, and with it all that it issued.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Issues a certificate for the key in a request. All else in it comes from `grant`.
    ///
    /// # Errors
    /// [`IdentityError::Lifetime`] for a life that is too long, [`IdentityError::Credentials`] if the authority's own
    /// is over.
    pub fn issue(
        &self,
        request: &CertificateRequest,
        grant: &Grant,
        now: SystemTime,
    ) -> Result<Certificate, IdentityError> {
        let (what, most) = match &grant.subject {
            Subject::Controller(_) => ("a controller's certificate", MAX_LIFETIME),
            Subject::Node(_) => ("a node's certificate", MAX_LIFETIME),
            Subject::Admin(_) => ("an admin's certificate", MAX_LIFETIME),
            Subject::User { .. } => ("a user's certificate", MAX_USER_LIFETIME),
        };
        check_lifetime(what, grant.lifetime, most)?;
        if now >= self.not_after {
            return Err(IdentityError::Credentials {
                place: format!("authority of site {}", self.site),
                what: "its time is over, or this machine's clock is ahead".to_owned(),
            });
        }
        let not_after = later(now, grant.lifetime)?.min(self.not_after);
        let serial = Serial::random()?;
        let mut params = params(&grant.subject.to_string(), now, not_after)?;
        params.serial_number = Some(SerialNumber::from_slice(&serial.bytes()));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names = vec![uri(&grant.subject.uri(&self.site))?];
        match &grant.subject {
            Subject::Controller(name) | Subject::Node(name) => {
                params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
                params.subject_alt_names.extend(server_names(name, grant)?);
            }
            Subject::Admin(_) | Subject::User { .. }
                if grant.dns.is_empty() && grant.addresses.is_empty() => {}
            Subject::Admin(_) | Subject::User { .. } => {
                return Err(IdentityError::Denied("only controllers and nodes are servers"));
            }
        }
        let public = request.public()?;
        let der = self.key.with(|pair| {
            let issuer = Issuer::from_ca_cert_der(&CertificateDer::from(self.certificate.as_slice()), pair)
                .map_err(cryptography)?;
            Ok(params.signed_by(&public, &issuer).map_err(cryptography)?.der().to_vec())
        })?;
        // Read back: what this side cannot read no other can.
        let content = PeerCertificate::parse(&der, &self.site)?;
        Ok(Certificate {
            pem: pem::encode(pem::CERTIFICATE, &der),
            authority_pem: self.certificate_pem(),
            content,
        })
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("site", &self.site).finish_non_exhaustive()
    }
}

/// The site that an authority's certificate is of, and when it ends.
pub(super) fn read_authority(der: &[u8]) -> Result<(SiteName, SystemTime), IdentityError> {
    let certificate = certificate::parse(der)?;
    if !certificate::is_authority(&certificate) {
        return Err(IdentityError::Certificate("it is not that of an authority"));
    }
    let uri = certificate::only_uri(&certificate)?;
    let site = uri.strip_prefix("spur://").and_then(|site| site.parse().ok());
    let site = site.ok_or(IdentityError::Certificate("it is not that of a SPUR site's authority"))?;
    certificate
        .verify_signature(Some(certificate.public_key()))
        .map_err(|_| IdentityError::Certificate("the authority's own signature is wrong"))?;
    Ok((site, certificate::system_time(&certificate.validity().not_after)?))
}

fn check_lifetime(what: &'static str, asked: Duration, most: Duration) -> Result<(), IdentityError> {
    if asked < Duration::from_secs(1) || asked > most {
        return Err(IdentityError::Lifetime { what, asked, most });
    }
    Ok(())
}

/// A later time, in whole seconds, as certificates have them.
fn later(now: SystemTime, by: Duration) -> Result<SystemTime, IdentityError> {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| IdentityError::Clock)?;
    let second = since.as_secs().checked_add(by.as_secs()).filter(|second| *second <= LAST_SECOND);
    let second = second.ok_or(IdentityError::Clock)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(second)).ok_or(IdentityError::Clock)
}

fn params(name: &str, now: SystemTime, not_after: SystemTime) -> Result<CertificateParams, IdentityError> {
    // Also sees to it that the time can be written.
    let now = later(now, Duration::ZERO)?;
    let not_before = now.checked_sub(CLOCK_SKEW).filter(|time| *time >= SystemTime::UNIX_EPOCH);
    let mut params = CertificateParams::default();
    params.not_before = not_before.unwrap_or(SystemTime::UNIX_EPOCH).into();
    params.not_after = not_after.into();
    params.distinguished_name = DistinguishedName::new();
    let name: String = name.chars().take(MAX_COMMON_NAME).collect();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn uri(text: &str) -> Result<SanType, IdentityError> {
    Ok(SanType::URI(text.try_into().map_err(cryptography)?))
}

fn server_names(name: &NodeName, grant: &Grant) -> Result<Vec<SanType>, IdentityError> {
    let mut names: Vec<&NodeName> = std::iter::once(name).chain(&grant.dns).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() + grant.addresses.len() > MAX_SERVER_NAMES {
        return Err(IdentityError::Denied("a certificate names at most 64 names and addresses of a server"));
    }
    let mut sans = Vec::new();
    for name in names {
        sans.push(SanType::DnsName(name.as_str().try_into().map_err(cryptography)?));
    }
    sans.extend(grant.addresses.iter().map(|address| SanType::IpAddress(*address)));
    Ok(sans)
}
