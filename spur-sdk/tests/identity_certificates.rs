//! Certificates: who is let in by them, over a real TLS handshake, and what a hostile request or certificate gets.
#![cfg(all(feature = "identity", feature = "testing"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use spur_sdk::identity::{
    Authority, CLOCK_SKEW, CertificateRequest, Credentials, Grant, IdentityError, KeyRequest, Lifetimes,
    MAX_REQUEST_BYTES, MAX_USER_LIFETIME, PeerCertificate, SiteName, Subject,
};
use spur_sdk::{Classify, ErrorKind, NodeName, UserName};

const DAY: Duration = Duration::from_hours(24);

fn site(name: &str) -> SiteName {
    name.parse().unwrap()
}

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn user(name: &str) -> UserName {
    name.parse().unwrap()
}

fn authority(name: &str) -> Authority {
    Authority::create(&site(name), 100 * DAY, SystemTime::now()).unwrap()
}

fn credentials(authority: &Authority, subject: Subject) -> Credentials {
    let lifetime = Lifetimes::default().of(&subject);
    let request = KeyRequest::generate().unwrap();
    let csr = CertificateRequest::from_pem(request.pem()).unwrap();
    let certificate = authority.issue(&csr, &Grant::new(subject, lifetime), SystemTime::now()).unwrap();
    request.complete(&certificate).unwrap()
}

fn tls(of: &Credentials) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = of.chain().map(|der| CertificateDer::from(der.to_vec())).to_vec();
    (chain, PrivatePkcs8KeyDer::from(of.key().der().to_vec()).into())
}

fn roots(of: &Credentials) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(of.authority().to_vec())).unwrap();
    Arc::new(roots)
}

/// A handshake in memory; gives what the server sees of the client.
fn handshake(client: &Credentials, server: &Credentials, name: &str) -> Result<PeerCertificate, String> {
    let provider = Arc::new(default_provider());
    let (chain, key) = tls(server);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(server), provider.clone());
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(chain, key)
        .unwrap();
    let mut there = ServerConnection::new(Arc::new(config)).unwrap();
    let (chain, key) = tls(client);
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots(client))
        .with_client_auth_cert(chain, key)
        .unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut here = ClientConnection::new(Arc::new(config), name).unwrap();
    while here.is_handshaking() || there.is_handshaking() {
        let mut wire = Vec::new();
        here.write_tls(&mut wire).unwrap();
        there.read_tls(&mut wire.as_slice()).unwrap();
        there.process_new_packets().map_err(|error| format!("server: {error}"))?;
        let mut wire = Vec::new();
        there.write_tls(&mut wire).unwrap();
        here.read_tls(&mut wire.as_slice()).unwrap();
        here.process_new_packets().map_err(|error| format!("client: {error}"))?;
    }
    let leaf = there.peer_certificates().unwrap()[0].clone();
    PeerCertificate::parse(&leaf, server.site()).map_err(|error| error.to_string())
}

#[test]
fn each_role_is_let_in_by_its_certificate_and_known_by_its_name() {
    let authority = authority("lab");
    let controller = credentials(&authority, Subject::Controller(node("head1")));
    let vouched = Subject::User { name: user("Ålice/x?node=y"), vouched_by: Some(node("login1")) };
    for subject in [
        Subject::Controller(node("head2")),
        Subject::Node(node("gpu01")),
        Subject::Admin(user("carol")),
        Subject::user(user("alice")),
        vouched,
    ] {
        let client = credentials(&authority, subject.clone());
        let seen = handshake(&client, &controller, "head1").unwrap();
        assert_eq!((seen.subject(), seen.serial()), (&subject, client.content().serial()));
    }
}

#[test]
fn a_certificate_of_another_sites_authority_is_not_let_in_even_under_the_same_name() {
    let (ours, theirs) = (authority("lab"), authority("lab"));
    let server = credentials(&ours, Subject::Controller(node("head1")));
    let stranger = credentials(&theirs, Subject::Admin(user("carol")));
    // The client finds out first, the server where the client is made to trust it.
    assert!(handshake(&stranger, &server, "head1").unwrap_err().starts_with("client: "));
    let (chain, key) = tls(&stranger);
    let provider = Arc::new(default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots(&server))
        .with_client_auth_cert(chain, key)
        .unwrap();
    let mut here = ClientConnection::new(Arc::new(config), "head1".try_into().unwrap()).unwrap();
    let (chain, key) = tls(&server);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(&server), provider.clone());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(chain, key)
        .unwrap();
    let mut there = ServerConnection::new(Arc::new(config)).unwrap();
    let refused = loop {
        let mut wire = Vec::new();
        here.write_tls(&mut wire).unwrap();
        there.read_tls(&mut wire.as_slice()).unwrap();
        if let Err(error) = there.process_new_packets() {
            break error;
        }
        assert!(there.is_handshaking(), "it was let in");
        let mut wire = Vec::new();
        there.write_tls(&mut wire).unwrap();
        here.read_tls(&mut wire.as_slice()).unwrap();
        here.process_new_packets().unwrap();
    };
    assert!(matches!(refused, rustls::Error::InvalidCertificate(_)), "{refused:?}");
}

#[test]
fn nobody_but_controllers_and_nodes_is_a_server() {
    let authority = authority("lab");
    let client = credentials(&authority, Subject::Controller(node("head1")));
    assert!(handshake(&client, &credentials(&authority, Subject::Node(node("gpu01"))), "gpu01").is_ok());
    let wrong_name = credentials(&authority, Subject::Node(node("gpu01")));
    assert!(handshake(&client, &wrong_name, "gpu02").unwrap_err().starts_with("client: "));
    for subject in [Subject::Admin(user("carol")), Subject::user(user("head1"))] {
        let server = credentials(&authority, subject.clone());
        assert!(handshake(&client, &server, "head1").unwrap_err().starts_with("client: "));
        let csr = CertificateRequest::from_pem(KeyRequest::generate().unwrap().pem()).unwrap();
        let grant = Grant::new(subject, DAY / 4).dns([node("head1")]);
        assert!(authority.issue(&csr, &grant, SystemTime::now()).is_err());
    }
}

#[test]
fn a_server_is_reached_by_all_its_names_and_addresses() {
    let authority = authority("lab");
    let request = KeyRequest::generate().unwrap();
    let csr = CertificateRequest::from_pem(request.pem()).unwrap();
    let addresses = ["192.0.2.1", "2001:db8::1"].map(|address| address.parse::<IpAddr>().unwrap());
    let grant = Grant::new(Subject::Controller(node("head1")), 2 * DAY)
        .dns([node("head1"), node("spur.site.example")])
        .addresses(addresses);
    let certificate = authority.issue(&csr, &grant, SystemTime::now()).unwrap();
    let server = request.complete(&certificate).unwrap();
    let client = credentials(&authority, Subject::user(user("alice")));
    for name in ["head1", "spur.site.example", "192.0.2.1", "2001:db8::1"] {
        handshake(&client, &server, name).unwrap();
    }
    assert!(handshake(&client, &server, "192.0.2.2").is_err());
    let crowd = (0..64).map(|i| node(&format!("n{i}")));
    let grant = Grant::new(Subject::Controller(node("head1")), DAY).dns(crowd);
    assert!(authority.issue(&csr, &grant, SystemTime::now()).is_err());
}

#[test]
fn a_certificate_issues_no_other_and_is_no_root() {
    let authority = authority("lab");
    let controller = credentials(&authority, Subject::Controller(node("head1")));
    // Its holder signs one for an admin with it.
    let pair = KeyPair::try_from(&PrivatePkcs8KeyDer::from(controller.key().der().to_vec())).unwrap();
    let leaf = CertificateDer::from(controller.chain()[0].to_vec());
    let issuer = rcgen::Issuer::from_ca_cert_der(&leaf, pair).unwrap();
    let mut params = CertificateParams::default();
    params.not_before = SystemTime::now().into();
    params.not_after = (SystemTime::now() + DAY).into();
    params.subject_alt_names = vec![SanType::URI("spur://lab/admin/mallory".try_into().unwrap())];
    params.serial_number = Some(7_u64.into());
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let forged_key = KeyPair::generate().unwrap();
    let forged = params.signed_by(&forged_key, &issuer).unwrap();
    // It names an admin of the site ...
    assert!(PeerCertificate::parse(forged.der(), authority.site()).is_ok());
    // ... but no verifier takes its issuer for an authority.
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(&controller), provider).build().unwrap();
    let now = rustls::pki_types::UnixTime::now();
    verifier.verify_client_cert(forged.der(), &[leaf], now).unwrap_err();
    verifier.verify_client_cert(forged.der(), &[], now).unwrap_err();
}

#[test]
fn of_a_request_only_the_key_counts() {
    let authority = authority("lab");
    let pair = KeyPair::generate().unwrap();
    let mut asked = CertificateParams::default();
    asked.distinguished_name.push(DnType::CommonName, "root");
    asked.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    asked.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    asked.subject_alt_names = vec![
        SanType::URI("spur://lab/admin/mallory".try_into().unwrap()),
        SanType::URI("spur://lab/controller/head1".try_into().unwrap()),
        SanType::DnsName("head1".try_into().unwrap()),
        SanType::IpAddress("192.0.2.1".parse().unwrap()),
    ];
    let strange = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
    asked.custom_extensions = vec![strange];
    let csr = asked.serialize_request(&pair).unwrap().pem().unwrap();
    let request = CertificateRequest::from_pem(&csr).unwrap();
    let subject = Subject::user(user("alice"));
    let certificate =
        authority.issue(&request, &Grant::new(subject.clone(), DAY / 4), SystemTime::now()).unwrap();
    assert_eq!(certificate.content().subject(), &subject);
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.pem().as_bytes()).unwrap();
    let parsed = pem.parse_x509().unwrap();
    assert!(!parsed.is_ca());
    assert_eq!(parsed.subject().to_string(), "CN=user alice");
    assert_eq!(parsed.public_key().subject_public_key.data, pair.public_key_raw());
    let names = &parsed.subject_alternative_name().unwrap().unwrap().value.general_names;
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(!parsed.key_usage().unwrap().unwrap().value.key_cert_sign());
    let purposes = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(purposes.client_auth && !purposes.server_auth && !purposes.any);
    assert_eq!(parsed.extensions().len(), 6, "nothing of the request: {:?}", parsed.extensions());
}

fn refuse(text: &str) {
    let error = CertificateRequest::from_pem(text).unwrap_err();
    assert!(matches!(error, IdentityError::Request(_)), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn a_hostile_request_is_refused() {
    let good = KeyRequest::generate().unwrap();
    let good = good.pem();
    assert!(CertificateRequest::from_pem(good).is_ok());
    for text in [
        String::new(),
        "x".repeat(10_000_000),
        " ".repeat(MAX_REQUEST_BYTES),
        "-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n".to_owned(),
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n".to_owned(),
        good.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
        format!("{good}{good}"),
        authority("lab").certificate_pem(),
    ] {
        refuse(&text);
    }
    // Another kind of key, and one with which the request is not signed.
    for algorithm in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P384_SHA384] {
        let pair = KeyPair::generate_for(algorithm).unwrap();
        refuse(&CertificateParams::default().serialize_request(&pair).unwrap().pem().unwrap());
    }
    let (_, pem) = x509_parser::pem::parse_x509_pem(good.as_bytes()).unwrap();
    let other = KeyRequest::generate().unwrap();
    let (_, other) = x509_parser::pem::parse_x509_pem(other.pem().as_bytes()).unwrap();
    // The last 64 bytes or so are the signature.
    let cut = pem.contents.len() - 60;
    let mixed = [&pem.contents[..cut], &other.contents[other.contents.len() - 60..]].concat();
    refuse(&pem_of("CERTIFICATE REQUEST", &mixed));
    let mut longer = pem.contents.clone();
    longer.push(0);
    refuse(&pem_of("CERTIFICATE REQUEST", &longer));
    let mut same = 0;
    for at in 0..pem.contents.len() {
        let mut changed = pem.contents.clone();
        changed[at] ^= 0x01;
        // What is not signed, such as how many bits of the signature's last byte count, may say the same differently.
        if let Ok(changed) = CertificateRequest::from_pem(&pem_of("CERTIFICATE REQUEST", &changed)) {
            assert_eq!(changed, CertificateRequest::from_pem(good).unwrap(), "byte {at}");
            same += 1;
        }
        refuse(&pem_of("CERTIFICATE REQUEST", &pem.contents[..at]));
    }
    assert!(same < 3, "{same}");
}

fn pem_of(label: &str, der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

#[test]
fn a_certificate_with_other_names_than_one_of_ours_is_nobodys() {
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let alice = "spur://lab/user/alice";
    let parse = |names: Vec<SanType>, authority: bool| {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        if authority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        PeerCertificate::parse(certificate.der(), &site("lab"))
    };
    // Self-signed ones have another kind of serial number, hence not equality.
    let serial = parse(vec![uri(alice)], false).unwrap_err().to_string();
    assert!(serial.contains("serial"), "{serial}");
    let refused = |names: Vec<SanType>, authority: bool, why: &str| {
        let error = parse(names, authority).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains(why), "{error}, not {why}");
    };
    refused(vec![uri(alice)], true, "authority");
    refused(vec![], false, "one URI");
    refused(vec![uri(alice), uri(alice)], false, "one URI");
    refused(vec![uri(alice), uri("https://example.org")], false, "one URI");
    refused(vec![uri(alice), SanType::Rfc822Name("a@b".try_into().unwrap())], false, "kind");
    for other in [
        "spur://lab/user/",
        "spur://lab/user",
        "spur://lab/root/alice",
        "spur://lab/user/a/b",
        "spur://lab/user/%61",
        "spur://lab/user/%c3%a9",
        "spur://lab/user/%ZZ",
        "spur://lab/user/a%00",
        "SPUR://lab/user/alice",
        "spur://lab//user/alice",
        "spur://LAB/user/alice",
        "spur://lab/node/GPU",
        "spur://lab/node/a?node=b",
        "spur://lab/user/a?node=",
        "spur://lab/user/a?node=b?node=c",
        "spur://lab/user/a#b",
        "spur://lab:1/user/a",
        "spur://x@lab/user/a",
        "https://lab/user/alice",
        "",
    ] {
        refused(vec![uri(other)], false, "nobody");
    }
}

#[test]
fn a_certificate_of_another_site_is_nobodys() {
    let theirs = credentials(&authority("other"), Subject::Admin(user("carol")));
    let error = PeerCertificate::parse(theirs.chain()[0], &site("lab")).unwrap_err();
    assert_eq!(error.to_string(), "certificate: it is of another site");
    let der = theirs.chain()[0];
    for at in 0..der.len() {
        assert!(PeerCertificate::parse(&der[..at], &site("other")).is_err());
    }
    assert!(PeerCertificate::parse(&[der, &[0]].concat(), &site("other")).is_err());
    assert!(PeerCertificate::parse(&vec![0x30; 100_000], &site("other")).is_err());
}

#[test]
fn serial_numbers_have_128_random_bits_and_are_read_back() {
    let authority = authority("lab");
    let all: Vec<_> =
        (0..300).map(|_| credentials(&authority, Subject::user(user("a"))).content().serial()).collect();
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
    assert!(
        all.iter().any(|serial| serial.to_string().starts_with(['8', '9', 'a', 'b', 'c', 'd', 'e', 'f']))
    );
    for serial in &all {
        assert_eq!(serial.to_string().len(), 32);
        assert_eq!(&serial.to_string().parse::<spur_sdk::identity::Serial>().unwrap(), serial);
    }
}

#[test]
fn a_certificate_lives_as_long_as_it_may() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    let authority = Authority::create(&site("lab"), 10 * DAY, now).unwrap();
    let request = KeyRequest::generate().unwrap();
    let csr = CertificateRequest::from_pem(request.pem()).unwrap();
    let issue = |subject: Subject, lifetime: Duration, at: SystemTime| {
        authority.issue(&csr, &Grant::new(subject, lifetime), at)
    };
    let certificate = issue(Subject::Node(node("gpu01")), 3 * DAY, now).unwrap();
    let content = certificate.content();
    assert_eq!(content.not_before(), now - CLOCK_SKEW);
    assert_eq!(content.not_after(), now + 3 * DAY);
    assert_eq!(content.renew_at(), now - CLOCK_SKEW + (3 * DAY + CLOCK_SKEW) * 2 / 3);
    assert!(content.check_time(now - CLOCK_SKEW).is_ok());
    assert!(content.check_time(now - CLOCK_SKEW - Duration::from_secs(1)).is_err());
    assert!(content.check_time(now + 3 * DAY).is_ok());
    assert!(content.check_time(now + 3 * DAY + Duration::from_secs(1)).is_err());
    // Not longer than its authority.
    let long = issue(Subject::Node(node("gpu01")), 30 * DAY, now).unwrap();
    assert_eq!(long.not_after(), authority.not_after());
    let over = issue(Subject::Node(node("gpu01")), DAY, now + 10 * DAY).unwrap_err();
    assert!(over.to_string().contains("its time is over"), "{over}");
    // A user's not longer than 12 hours, whatever the settings say.
    assert!(issue(Subject::user(user("alice")), MAX_USER_LIFETIME, now).is_ok());
    for (subject, lifetime) in [
        (Subject::user(user("alice")), MAX_USER_LIFETIME + Duration::from_secs(1)),
        (Subject::user(user("alice")), Duration::MAX),
        (Subject::Admin(user("carol")), Duration::MAX),
        (Subject::Node(node("gpu01")), Duration::ZERO),
    ] {
        let error = issue(subject, lifetime, now).unwrap_err();
        assert!(matches!(error, IdentityError::Lifetime { .. }), "{error:?}");
    }
    // A clock that says nonsense breaks nothing.
    let early = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
    assert!(matches!(issue(Subject::Admin(user("c")), DAY, early), Err(IdentityError::Clock)));
    let late = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_700);
    assert!(matches!(Authority::create(&site("lab"), DAY, late), Err(IdentityError::Clock)));
    assert!(Authority::create(&site("lab"), DAY, SystemTime::UNIX_EPOCH).is_ok());
}

fn subjects() -> impl Strategy<Value = Subject> {
    let user = prop_oneof!["\\PC{1,12}", "[a-b/%?=&.@ ]{1,6}", "[a-b]%[0-9a-f]{2}", "[a-b]\\?node=[a-b]"]
        .prop_filter_map("a name", |text| text.parse::<UserName>().ok());
    let node = "[a-b]([a-b.-]{0,3}[a-b])?".prop_filter_map("a name", |text| text.parse::<NodeName>().ok());
    prop_oneof![
        node.clone().prop_map(Subject::Controller),
        node.clone().prop_map(Subject::Node),
        user.clone().prop_map(Subject::Admin),
        (user, prop::option::of(node)).prop_map(|(name, vouched_by)| Subject::User { name, vouched_by }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_subject_is_read_back_from_its_uri(subject in subjects()) {
        let uri = subject.uri(&site("hpc.example.org"));
        prop_assert!(uri.is_ascii());
        prop_assert_eq!(Subject::parse(&uri).unwrap(), (site("hpc.example.org"), subject));
    }

    #[test]
    fn different_subjects_have_different_uris(a in subjects(), b in subjects()) {
        prop_assert_eq!(a == b, a.uri(&site("lab")) == b.uri(&site("lab")));
    }

    #[test]
    fn what_is_read_is_written_alike(text in "spur://[a-b.]{1,3}/(user|node|admin|controller)/[a-b%2F0?=node.~]{0,9}") {
        if let Ok((site, subject)) = Subject::parse(&text) {
            prop_assert_eq!(subject.uri(&site), text);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_name_stands_in_a_certificate_as_it_is(name in "\\PC{1,80}|[\\PC]{300}") {
        let Ok(name) = name.parse::<UserName>() else { return Ok(()) };
        let subject = Subject::user(name);
        let read = credentials(&authority("lab"), subject.clone());
        prop_assert_eq!(read.subject(), &subject);
    }
}

#[test]
fn the_longest_name_fits() {
    let longest = Subject::user(user(&"é".repeat(512)));
    assert_eq!(credentials(&authority("lab"), longest.clone()).subject(), &longest);
}
