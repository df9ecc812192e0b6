//! Files of credentials and keys, and records of this version that every later one must read.
#![cfg(all(feature = "identity", feature = "testing", unix))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use spur_sdk::identity::{
    Authority, Caller, CertificateRequest, Credentials, Grant, Identity, IdentityError, JoinRefusal,
    KeyRequest, Registry, Roster, SiteKey, Subject, Void,
};
use spur_sdk::store::{Key, Store, Transaction};
use spur_sdk::testing::MemoryStore;
use spur_sdk::{Classify, ErrorKind, ManualClock, error_chain};

const DAY: Duration = Duration::from_hours(24);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
}

fn authority() -> Authority {
    Authority::create(&"lab".parse().unwrap(), 3650 * DAY, now()).unwrap()
}

fn issue(authority: &Authority, subject: Subject, lifetime: Duration) -> Credentials {
    let request = KeyRequest::generate().unwrap();
    let csr = CertificateRequest::from_pem(request.pem()).unwrap();
    let certificate = authority.issue(&csr, &Grant::new(subject, lifetime), now()).unwrap();
    request.complete_pem(certificate.pem(), certificate.authority_pem()).unwrap()
}

fn node(name: &str) -> Subject {
    Subject::Node(name.parse().unwrap())
}

#[test]
fn credentials_are_one_file_for_their_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.pem");
    let authority = authority();
    let first = issue(&authority, node("gpu01"), 30 * DAY);
    first.save(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let read = Credentials::load(&path, now()).unwrap();
    assert_eq!(
        (read.subject(), read.site(), read.key().der(), read.chain(), read.authority()),
        (first.subject(), authority.site(), first.key().der(), first.chain(), authority.certificate_der())
    );
    let second = issue(&authority, node("gpu01"), 30 * DAY);
    second.save(&path).unwrap();
    assert_eq!(Credentials::load(&path, now()).unwrap().content().serial(), second.content().serial());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    for shown in [format!("{read:?}"), format!("{:?}", read.key())] {
        assert!(!shown.contains("key: [") && !shown.contains("PRIVATE"), "{shown}");
    }
    // What other programs make of it.
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("-----BEGIN ").count(), 3);
    let pair = rcgen::KeyPair::from_pem(&text[..text.find("-----BEGIN CERT").unwrap()]).unwrap();
    assert_eq!(pair.serialized_der(), second.key().der());
}

fn unusable(path: &Path, at: SystemTime, why: &str) {
    let error = Credentials::load(path, at).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    let text = error_chain(&error);
    assert!(text.starts_with(&path.display().to_string()) && text.contains(why), "{text}, not {why}");
}

#[test]
fn credentials_that_cannot_be_used_say_why_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("me.pem");
    let authority = authority();
    for (subject, way_out) in [
        (node("gpu01"), "join token"),
        (Subject::user("alice".parse().unwrap()), "log in again"),
        (Subject::Admin("carol".parse().unwrap()), "another admin"),
        (Subject::Controller("head1".parse().unwrap()), "root on the controller"),
    ] {
        issue(&authority, subject, DAY / 4).save(&path).unwrap();
        Credentials::load(&path, now()).unwrap();
        unusable(&path, now() + DAY, way_out);
        unusable(&path, now() - DAY, "clock is behind");
    }
    let write = |text: &str| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    let text = std::fs::read_to_string(&path).unwrap();
    let other_path = folder.path().join("other.pem");
    issue(&authority, node("gpu02"), DAY).save(&other_path).unwrap();
    let other = std::fs::read_to_string(&other_path).unwrap();
    let stranger_path = folder.path().join("stranger.pem");
    issue(&self::authority(), node("gpu01"), DAY).save(&stranger_path).unwrap();
    let stranger = std::fs::read_to_string(&stranger_path).unwrap();
    let blocks = |text: &str| -> Vec<String> {
        text.split_inclusive("-----\n").collect::<Vec<_>>().chunks(2).map(<[&str]>::concat).collect()
    };
    let (ours, others, strangers) = (blocks(&text), blocks(&other), blocks(&stranger));
    assert_eq!(ours.len(), 3);
    for (text, why) in [
        (String::new(), "no credentials"),
        (text.repeat(2), "no credentials"),
        (ours[..2].concat(), "no credentials"),
        ([&ours[1], &ours[0], &ours[2]].map(String::as_str).concat(), "no credentials"),
        ([&others[0], &ours[1], &ours[2]].map(String::as_str).concat(), "another key"),
        ([&ours[0], &ours[1], &strangers[2]].map(String::as_str).concat(), "another authority"),
        ([&ours[0], &ours[2], &ours[1]].map(String::as_str).concat(), "not that of an authority"),
        (text[..text.len() - 100].to_owned(), "no credentials"),
    ] {
        write(&text);
        unusable(&path, now(), why);
    }
    std::fs::write(&path, [0xff; 10]).unwrap();
    unusable(&path, now(), "no credentials");
}

#[test]
fn credentials_and_site_keys_that_others_can_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (credentials, key) = (folder.path().join("me.pem"), folder.path().join("site.key"));
    issue(&authority(), node("gpu01"), DAY).save(&credentials).unwrap();
    let made = SiteKey::create(&key).unwrap();
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o7777, 0o600);
    let sealed = made.seal("place", b"secret").unwrap();
    assert_eq!(SiteKey::load(&key).unwrap().open("place", &sealed).unwrap().bytes(), b"secret");
    // One that is there is not overwritten.
    assert_eq!(SiteKey::create(&key).unwrap_err().kind(), ErrorKind::Conflict);
    SiteKey::load(&key).unwrap().open("place", &sealed).unwrap();
    for path in [&credentials, &key] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o640)).unwrap();
    }
    assert_eq!(Credentials::load(&credentials, now()).unwrap_err().kind(), ErrorKind::Denied);
    let error = SiteKey::load(&key).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error_chain(&error).contains("chmod 600"), "{}", error_chain(&error));
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    for text in ["", "spur-site-key-1 AAAA\n", "spur-site-key-2 AAAA\n", "garbage", &"x".repeat(5000)] {
        std::fs::write(&key, text).unwrap();
        assert_eq!(SiteKey::load(&key).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(SiteKey::load(&folder.path().join("no")).unwrap_err().kind(), ErrorKind::NotFound);
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/identity")
}

/// The store of a site as a version wrote it, a file for each record.
async fn stored(golden: &Path) -> MemoryStore {
    let store = MemoryStore::new();
    let mut transaction = Transaction::new();
    for entry in std::fs::read_dir(golden.join("records")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().replace("--", "/");
        let key: Key = name.parse().unwrap();
        transaction = transaction.put(key, std::fs::read(&path).unwrap());
    }
    assert_eq!(transaction.writes().len(), 7);
    let _ = store.commit(transaction).await.unwrap();
    store
}

#[tokio::test]
async fn records_and_files_of_the_first_version_are_read() {
    are_read(&golden()).await;
}

#[tokio::test]
async fn records_and_files_of_this_version_are_read() {
    let folder = tempfile::tempdir().unwrap();
    // For a new format's golden files, beside those of the earlier ones.
    let named = std::env::var_os("SPUR_WRITE_GOLDEN").map(PathBuf::from);
    let written = named.unwrap_or_else(|| folder.path().join("identity"));
    write(&written).await;
    are_read(&written).await;
}

/// Reads what [`write`] wrote, whichever version's it was.
async fn are_read(golden: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let own = |name: &str| {
        // As they come out of a checkout, others may read them.
        let path = folder.path().join(name);
        std::fs::copy(golden.join(name), &path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let store = stored(golden).await;
    let authority = Authority::load(&store, &SiteKey::load(&own("site.key")).unwrap()).await.unwrap();
    assert_eq!(authority.site().as_str(), "golden");
    let clock = ManualClock::new(now());
    let roster = Roster::new(clock.clone());
    tokio::spawn({
        let (roster, store) = (roster.clone(), store.clone());
        async move { roster.follow(&store).await }
    });
    roster.changed_since(0).await;
    let registry = Registry::new(store, authority, roster.clone(), clock);
    let nodes = registry.nodes().await.unwrap();
    let told: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.login, node.removed)).collect();
    assert_eq!(told, [("gpu01", false, false), ("gpu02", false, true), ("login1", true, false)]);
    let credentials = Credentials::load(&own("node.pem"), now()).unwrap();
    assert_eq!(credentials.subject().to_string(), "node gpu01");
    // It is the one before the current one, which was not used yet.
    roster.check(credentials.content()).unwrap();
    let certificates = registry.certificates().await.unwrap();
    let revoked: Vec<_> = certificates.iter().filter(|certificate| certificate.revoked).collect();
    let [carol] = revoked.as_slice() else { panic!("{certificates:?}") };
    assert_eq!(
        (carol.subject.to_string().as_str(), carol.by.as_str()),
        ("admin carol", "admin root, socket (uid 0, pid 1)")
    );
    let void = roster.check_serial(&carol.subject, carol.serial).unwrap_err();
    assert!(matches!(void, IdentityError::Void { void: Void::Revoked, .. }), "{void:?}");
    let request = KeyRequest::generate().unwrap();
    let tokens = std::fs::read_to_string(golden.join("tokens")).unwrap();
    let tokens: Vec<_> = tokens.lines().collect();
    let name = "gpu03".parse().unwrap();
    let used = registry.enrol(tokens[0], request.pem(), &name).await.unwrap_err();
    assert_eq!(used.refusal(), Some(JoinRefusal::Used));
    registry.enrol(tokens[1], request.pem(), &name).await.unwrap();
}

/// Writes the golden files into a new folder.
async fn write(folder: &Path) {
    let by = Caller::local(Identity::Admin { name: "root".parse().unwrap() }, 0, 1);
    let store = MemoryStore::new();
    std::fs::create_dir_all(folder.join("records")).unwrap();
    let key = SiteKey::create(&folder.join("site.key")).unwrap();
    let name = "golden".parse().unwrap();
    let (authority, _) = Authority::establish(&store, &key, &name, 3653 * DAY, now()).await.unwrap();
    let clock = ManualClock::new(now());
    let registry = Registry::new(store.clone(), authority, Roster::new(clock.clone()), clock);
    let mut tokens = Vec::new();
    for (name, login) in [("gpu01", false), ("gpu02", false), ("login1", true), ("gpu03", false)] {
        let grant = spur_sdk::identity::JoinGrant::node(name.parse().unwrap()).login(login);
        let token = registry.create_token(&grant, &by).await.unwrap().0.reveal();
        if name != "gpu03" {
            let request = KeyRequest::generate().unwrap();
            let certificate = registry.enrol(&token, request.pem(), &name.parse().unwrap()).await.unwrap();
            if name == "gpu01" {
                let serial = certificate.serial();
                request.complete(&certificate).unwrap().save(&folder.join("node.pem")).unwrap();
                let next = KeyRequest::generate().unwrap();
                registry.renew(&name.parse().unwrap(), serial, next.pem()).await.unwrap();
            }
        }
        tokens.push(token);
    }
    registry.remove(&"gpu02".parse().unwrap(), &by).await.unwrap();
    let request = KeyRequest::generate().unwrap();
    let carol = Subject::Admin("carol".parse().unwrap());
    let certificate = registry.issue_for(request.pem(), carol, &by).await.unwrap();
    registry.revoke(certificate.serial(), &by).await.unwrap();
    let (first, last) = (tokens.first().unwrap(), tokens.last().unwrap());
    std::fs::write(folder.join("tokens"), format!("{first}\n{last}\n")).unwrap();
    let keep = |key: &str| {
        !key.contains("/token/") || [first, last].iter().any(|token| key.ends_with(&token[10..26]))
    };
    for entry in store.range("").await.unwrap().entries {
        let name = entry.key.as_str();
        if keep(name) {
            std::fs::write(folder.join("records").join(name.replace('/', "--")), entry.value).unwrap();
        }
    }
}
