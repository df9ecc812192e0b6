//! TLS with the site's own certificates. The provider is passed explicitly; none is installed.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
};
use sha2::{Digest, Sha256};

use crate::identity::Credentials;

/// The name that every controller's certificate has beside those of its hosts, so that a client need not know by which
/// of them it has come.
pub(super) const CONTROLLER: &str = "controller.spur.internal";

/// The protocol that is spoken within.
const HTTP2: &[u8] = b"h2";

/// A certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The parts do not fit each other, or nothing that this SDK takes.
    #[error("certificate or key cannot be used: {0}")]
    Unusable(String),
    /// No SHA-256.
    #[error("\"{0}\" is no SHA-256 in hexadecimal digits")]
    Hash(String),
}

fn unusable(error: impl std::fmt::Display) -> TlsError {
    TlsError::Unusable(error.to_string())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn roots(authority: &[u8]) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(authority.to_vec())).map_err(unusable)?;
    Ok(Arc::new(roots))
}

/// The chain, the authority's certificate at its end so that one who enrols can compare it, and the key.
fn own(
    credentials: &Credentials,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = credentials.chain().into_iter().map(|der| CertificateDer::from(der.to_vec()));
    let key = PrivateKeyDer::try_from(credentials.key().der().to_vec()).map_err(unusable)?;
    Ok((chain.collect(), key))
}

/// A server that takes clients with a certificate of the site, and without any.
pub(super) fn server(credentials: &Credentials) -> Result<ServerConfig, TlsError> {
    let (chain, key) = own(credentials)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(credentials.authority())?, provider())
        .allow_unauthenticated()
        .build()
        .map_err(unusable)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    // A resumed session would keep the identity of a certificate that has expired since.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// A client that shows its certificate and takes controllers of its site.
pub(super) fn client(credentials: &Credentials) -> Result<ClientConfig, TlsError> {
    let (chain, key) = own(credentials)?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots(credentials.authority())?)
        .with_client_auth_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(config)
}

/// A client without a certificate that takes controllers of the site whose authority has this hash.
pub(super) fn enrolling(hash: &str) -> Result<ClientConfig, TlsError> {
    let wrong = || TlsError::Hash(hash.to_owned());
    let text = hash.trim();
    if text.len() != 64 || !text.is_ascii() {
        return Err(wrong());
    }
    let digit = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let hash: Option<Vec<u8>> = (0..32).map(|byte| digit(byte * 2)).collect();
    let verifier = Pinned { hash: hash.ok_or_else(wrong)?, provider: provider() };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(config)
}

/// Takes the one authority whose certificate has this SHA-256, and from it what any client takes.
#[derive(Debug)]
struct Pinned {
    hash: Vec<u8>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let pinned =
            intermediates.iter().find(|certificate| Sha256::digest(certificate).as_slice() == self.hash);
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let Some(authority) = pinned else { return Err(unknown) };
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider));
        let verifier = verifier.build().map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
