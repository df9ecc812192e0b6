//! The certificate authorities of a control plane and what they sign.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _, SigningKey as _,
};
use yasna::models::ObjectIdentifier;
use yasna::tags::{TAG_GENERALIZEDTIME, TAG_UTCTIME};
use yasna::{DERWriter, Tag};

/// A certificate authority.
#[derive(Debug)]
pub(crate) struct Authority {
    name: &'static str,
    pem: String,
    key: KeyPair,
}

/// A certificate and its key, both PEM.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &'static str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let pem = Self::params(name)?.self_signed(&key)?.pem();
        Ok(Self { name, pem, key })
    }

    fn params(name: &str) -> Result<CertificateParams> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        Ok(params)
    }

    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    pub(crate) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// A certificate that a server shows and, where servers talk to each other, a client too.
    pub(crate) fn server(&self, common_name: &str, names: &[&str]) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let issuer = Issuer::new(Self::params(self.name)?, &self.key);
        let certificate = params.signed_by(&key, &issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }

    /// A client certificate as Kubernetes reads it: the user is the common name, each group an organisation.
    ///
    /// Written by hand because rcgen keeps only one organisation in a name.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let to_sign = yasna::construct_der(|writer| self.write_client(writer, user, groups, &key));
        let signature = self.key.sign(&to_sign)?;
        let certificate = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_der(&to_sign);
                write_ecdsa_with_sha256(writer.next());
                writer.next().write_bitvec_bytes(&signature, signature.len() * 8);
            });
        });
        Ok(Identity { certificate: pem("CERTIFICATE", &certificate), key: key.serialize_pem() })
    }

    /// `TBSCertificate` of RFC 5280, section 4.1.
    fn write_client(&self, writer: DERWriter<'_>, user: &str, groups: &[&str], key: &KeyPair) {
        writer.write_sequence(|writer| {
            writer.next().write_tagged(Tag::context(0), |writer| writer.write_i8(2)); // version 3
            writer.next().write_i8(1); // no list revokes by serial number here
            write_ecdsa_with_sha256(writer.next());
            write_name(writer.next(), &[], self.name);
            writer.next().write_sequence(|writer| {
                // RFC 5280 has UTCTime up to 2049 and GeneralizedTime from then on.
                for (tag, time) in [(TAG_UTCTIME, "200101000000Z"), (TAG_GENERALIZEDTIME, "41000101000000Z")]
                {
                    writer.next().write_tagged_implicit(tag, |writer| writer.write_bytes(time.as_bytes()));
                }
            });
            write_name(writer.next(), groups, user);
            writer.next().write_der(&key.subject_public_key_info());
            writer.next().write_tagged(Tag::context(3), |writer| {
                writer.write_sequence(|writer| {
                    writer.next().write_sequence(|writer| {
                        writer.next().write_oid(&ObjectIdentifier::from_slice(&[2, 5, 29, 37])); // extended key usage
                        let client_auth = ObjectIdentifier::from_slice(&[1, 3, 6, 1, 5, 5, 7, 3, 2]);
                        let usage = yasna::construct_der(|writer| {
                            writer.write_sequence(|writer| writer.next().write_oid(&client_auth));
                        });
                        writer.next().write_bytes(&usage);
                    });
                });
            });
        });
    }
}

fn write_ecdsa_with_sha256(writer: DERWriter<'_>) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&ObjectIdentifier::from_slice(&[1, 2, 840, 10_045, 4, 3, 2]));
    });
}

fn write_name(writer: DERWriter<'_>, organizations: &[&str], common_name: &str) {
    let parts = organizations.iter().map(|name| (10, *name)).chain([(3, common_name)]);
    writer.write_sequence(|writer| {
        for (attribute, value) in parts {
            writer.next().write_set(|writer| {
                writer.next().write_sequence(|writer| {
                    writer.next().write_oid(&ObjectIdentifier::from_slice(&[2, 5, 4, attribute]));
                    writer.next().write_utf8_string(value);
                });
            });
        }
    });
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = after;
    }
    out.push_str("-----END ");
    out.push_str(label);
    out.push_str("-----\n");
    out
}

/// The files that the programs read, and the authority that signs identities.
#[derive(Debug)]
pub(crate) struct Certificates {
    pub(crate) authority: Authority,
    pub(crate) folder: PathBuf,
}

impl Certificates {
    /// Makes everything and writes it to `folder`.
    pub(crate) fn write(folder: &Path) -> Result<Self> {
        let authority = Authority::new("spur-test")?;
        // Another authority: whom the API server lets in as a user must not get at etcd.
        let etcd = Authority::new("spur-test-etcd")?;
        let loopback = ["127.0.0.1", "localhost"];
        let api_names = [
            "127.0.0.1",
            "localhost",
            "10.96.0.1",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let certificates = Self { authority, folder: folder.to_owned() };
        certificates.put("ca.crt", certificates.authority.pem())?;
        certificates.put("ca.key", &certificates.authority.key_pem())?;
        certificates.put("etcd-ca.crt", etcd.pem())?;
        certificates.put_identity("etcd", &etcd.server("etcd", &loopback)?)?;
        certificates.put_identity("etcd-client", &etcd.client("kube-apiserver", &[])?)?;
        certificates
            .put_identity("api-server", &certificates.authority.server("kube-apiserver", &api_names)?)?;
        let service_account = KeyPair::generate()?;
        certificates.put("service-account.key", &service_account.serialize_pem())?;
        certificates.put("service-account.pub", &service_account.public_key_pem())?;
        Ok(certificates)
    }

    fn put(&self, name: &str, content: &str) -> Result<()> {
        let path = self.folder.join(name);
        std::fs::write(&path, content).with_context(|| format!("write {}", path.display()))
    }

    fn put_identity(&self, name: &str, identity: &Identity) -> Result<()> {
        self.put(&format!("{name}.crt"), &identity.certificate)?;
        self.put(&format!("{name}.key"), &identity.key)
    }

    /// A kubeconfig with the one context `test`, for the API server at `url`.
    pub(crate) fn kubeconfig(&self, url: &str, user: &str, groups: &[&str]) -> Result<String> {
        let identity = self.authority.client(user, groups)?;
        Ok(format!(
            "apiVersion: v1
kind: Config
current-context: test
contexts:
- name: test
  context:
    cluster: test
    user: test
clusters:
- name: test
  cluster:
    server: {url}
    certificate-authority-data: {authority}
users:
- name: test
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
",
            authority = BASE64_STANDARD.encode(self.authority.pem()),
            certificate = BASE64_STANDARD.encode(identity.certificate),
            key = BASE64_STANDARD.encode(identity.key),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_certificate_names_its_user_and_every_group() -> Result<()> {
        let authority = Authority::new("test")?;
        let identity = authority.client("alice", &["a-group", "b-group", "c-group"])?;
        let body: String = identity.certificate.lines().filter(|line| !line.starts_with('-')).collect();
        let der = BASE64_STANDARD.decode(body)?;
        for name in ["alice", "a-group", "b-group", "c-group"] {
            assert!(der.windows(name.len()).any(|window| window == name.as_bytes()), "{name} is missing");
        }
        Ok(())
    }
}
