//! Private keys, and requests for certificates of them.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SubjectPublicKeyInfo};
use rustls::pki_types::PrivatePkcs8KeyDer;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ECDSA_WITH_SHA256};
use x509_parser::prelude::FromDer;
use zeroize::{Zeroize, Zeroizing};

use super::{Certificate, Credentials, IdentityError, pem};

/// The most bytes of a request as PEM. One of ours has 350.
pub const MAX_REQUEST_BYTES: usize = 16 * 1024;

/// What PEM calls a request.
const REQUEST: &str = "CERTIFICATE REQUEST";
/// And one of old programs.
const NEW_REQUEST: &str = "NEW CERTIFICATE REQUEST";

pub(super) fn cryptography(error: impl fmt::Display) -> IdentityError {
    IdentityError::Cryptography(error.to_string())
}

/// A private key: ECDSA over P-256, as PKCS #8.
#[derive(Clone)]
pub struct PrivateKey(Zeroizing<Vec<u8>>);

impl PrivateKey {
    pub(super) fn generate() -> Result<Self, IdentityError> {
        let mut pair = KeyPair::generate().map_err(cryptography)?;
        let key = Self(Zeroizing::new(pair.serialized_der().to_vec()));
        pair.zeroize();
        Ok(key)
    }

    /// A key from its DER form.
    ///
    /// # Errors
    /// [`IdentityError::Cryptography`] if it is no P-256 key in PKCS #8.
    pub fn from_der(der: &[u8]) -> Result<Self, IdentityError> {
        let key = Self(Zeroizing::new(der.to_vec()));
        key.with(|_| Ok(()))?;
        Ok(key)
    }

    /// The key in its DER form, PKCS #8.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.0
    }

    /// The public half, as the DER of a SubjectPublicKeyInfo.
    pub(super) fn public(&self) -> Result<Vec<u8>, IdentityError> {
        use rcgen::PublicKeyData;
        self.with(|pair| Ok(pair.subject_public_key_info()))
    }

    /// Lends the key to the library that signs, and wipes the copy that it makes.
    pub(super) fn with<T>(
        &self,
        using: impl FnOnce(&KeyPair) -> Result<T, IdentityError>,
    ) -> Result<T, IdentityError> {
        let der = PrivatePkcs8KeyDer::from(self.0.as_slice());
        let mut pair =
            KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).map_err(cryptography)?;
        let result = using(&pair);
        pair.zeroize();
        result
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// A new key whose holder asks for a certificate. The key stays here.
#[derive(Debug)]
pub struct KeyRequest {
    key: PrivateKey,
    pem: String,
}

impl KeyRequest {
    /// Makes a key and a request for it.
    ///
    /// # Errors
    /// [`IdentityError::Cryptography`].
    pub fn generate() -> Result<Self, IdentityError> {
        let key = PrivateKey::generate()?;
        let mut asked = CertificateParams::default();
        asked.distinguished_name = DistinguishedName::new();
        let request = key.with(|pair| asked.serialize_request(pair).map_err(cryptography))?;
        let pem = pem::encode(REQUEST, request.der());
        Ok(Self { key, pem })
    }

    /// The request, PKCS #10, as PEM. It names nobody.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The key together with the certificate that was issued for it.
    ///
    /// # Errors
    /// [`IdentityError::Credentials`] if the certificate is for another key.
    pub fn complete(self, certificate: &Certificate) -> Result<Credentials, IdentityError> {
        Credentials::new(self.key, certificate.pem(), certificate.authority_pem())
    }

    /// As [`complete`](Self::complete), with what came over the wire: the certificate and the authority's, as PEM.
    ///
    /// # Errors
    /// As [`complete`](Self::complete), and if they cannot be read.
    pub fn complete_pem(self, certificate: &str, authority: &str) -> Result<Credentials, IdentityError> {
        Credentials::new(self.key, certificate, authority)
    }
}

/// A request for a certificate that somebody sent, of which only the public key is kept. Whoever sent it has the
/// private one: the request is signed with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    spki: Vec<u8>,
}

impl CertificateRequest {
    /// Reads a request. Names, extensions and attributes in it are not looked at.
    ///
    /// # Errors
    /// [`IdentityError::Request`] if it is larger than [`MAX_REQUEST_BYTES`], not PKCS #10 as PEM, for another kind of
    /// key than ECDSA over P-256, or not signed with its key.
    pub fn from_pem(text: &str) -> Result<Self, IdentityError> {
        if text.len() > MAX_REQUEST_BYTES {
            return Err(IdentityError::Request("it is too large"));
        }
        let der = pem::decode(text, &[REQUEST, NEW_REQUEST]);
        let der = der.ok_or(IdentityError::Request("it is not PEM of a CERTIFICATE REQUEST"))?;
        let (rest, request) = X509CertificationRequest::from_der(&der)
            .map_err(|_| IdentityError::Request("it cannot be read"))?;
        if !rest.is_empty() {
            return Err(IdentityError::Request("something follows it"));
        }
        let info = &request.certification_request_info;
        let kind = &info.subject_pki.algorithm;
        let curve = kind.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
        if kind.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY
            || curve != Some(OID_EC_P256)
            || request.signature_algorithm.algorithm != OID_SIG_ECDSA_WITH_SHA256
        {
            return Err(IdentityError::Request("the key must be ECDSA over P-256, signed with SHA-256"));
        }
        // Also refuses a point that is not on the curve.
        request.verify_signature().map_err(|_| IdentityError::Request("it is not signed with its key"))?;
        let spki = info.subject_pki.raw.to_vec();
        let request = Self { spki };
        request.public()?;
        Ok(request)
    }

    pub(super) fn public(&self) -> Result<SubjectPublicKeyInfo, IdentityError> {
        SubjectPublicKeyInfo::from_der(&self.spki)
            .map_err(|_| IdentityError::Request("the key must be ECDSA over P-256, signed with SHA-256"))
    }
}
