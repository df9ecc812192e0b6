//! Tokens on a disk, with whatever may stand in their place.

#![expect(clippy::arithmetic_side_effects, reason = "a test fails by panicking")]

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::*;
use crate::kubeconfig::{BearerToken, KubeconfigError, Token};

const MINUTE: Duration = Duration::from_mins(1);

struct Disk {
    folder: TempDir,
    fetched: Arc<AtomicU32>,
}

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
}

fn session() -> SessionName {
    "spur-user-alice.1800043200.0123456789abcdef".parse().unwrap()
}

fn key() -> CacheKey {
    CacheKey::new(&["controller", "site", "alice"])
}

impl Disk {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), fetched: Arc::default() }
    }

    fn cache(&self) -> TokenCache {
        TokenCache::new(Some(self.folder.path()), None).lock_wait(Duration::from_millis(300))
    }

    fn path(&self, ending: &str) -> PathBuf {
        self.folder.path().join("spur").join(format!("{}.{ending}", key().0))
    }

    fn issue(&self, now: SystemTime) -> Issued {
        let number = self.fetched.fetch_add(1, Ordering::SeqCst);
        let bearer = BearerToken::new(format!("token-{number}"));
        Issued::new(Token::new(bearer, now, now + 60 * MINUTE), session())
    }

    fn get_by(&self, asker: Option<&str>, now: SystemTime) -> Got {
        let fetch = |_: Option<&SessionName>| Ok::<_, KubeconfigError>(self.issue(now));
        self.cache().get_or_refresh(&key(), asker, now, fetch).unwrap()
    }

    fn get(&self, now: SystemTime) -> (String, How) {
        let got = self.get_by(None, now);
        (got.issued.token.bearer.expose().to_owned(), got.how)
    }

    fn fail(&self, now: SystemTime, error: KubeconfigError) -> Result<Got, KubeconfigError> {
        self.cache().get_or_refresh(&key(), None, now, |_| Err(error))
    }
}

#[test]
fn a_token_is_kept_for_two_thirds_of_its_life_less_a_tenth_at_most() {
    let disk = Disk::new();
    assert_eq!(disk.get(start()), ("token-0".to_owned(), How::Fetched));
    assert_eq!(disk.get(start() + 33 * MINUTE), ("token-0".to_owned(), How::Kept));
    assert_eq!(disk.get(start() + 41 * MINUTE), ("token-1".to_owned(), How::Fetched));
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(disk.path("json")), 0o600);
    assert_eq!(mode(disk.folder.path().join("spur")), 0o700);
    // A clock that was set back by more than two machines differ says nothing of a token's age.
    assert_eq!(disk.get(start() + 40 * MINUTE).1, How::Fetched);
}

#[test]
fn the_session_is_used_for_the_next_token() {
    let disk = Disk::new();
    disk.get(start());
    let later = start() + 50 * MINUTE;
    let fetch = |given: Option<&SessionName>| {
        assert_eq!(given, Some(&session()));
        Ok::<_, KubeconfigError>(disk.issue(later))
    };
    assert_eq!(disk.cache().get_or_refresh(&key(), None, later, fetch).unwrap().how, How::Fetched);
}

#[test]
fn a_token_goes_on_while_no_other_is_to_be_had_but_not_against_a_refusal() {
    let disk = Disk::new();
    disk.get(start());
    let unavailable = || KubeconfigError::AssociationsUnknown("not read".to_owned());
    let got = disk.fail(start() + 50 * MINUTE, unavailable()).unwrap();
    assert!(matches!(got.how, How::KeptFor(_)) && got.issued.token.bearer.expose() == "token-0");
    let late = start() + 59 * MINUTE + Duration::from_secs(1);
    disk.fail(late, unavailable()).unwrap_err();
    let refused = KubeconfigError::NoAccount("alice".parse().unwrap());
    disk.fail(start() + 50 * MINUTE, refused).unwrap_err();
}

#[test]
fn a_token_that_its_asker_comes_back_with_was_refused() {
    let disk = Disk::new();
    let token = |asker: &str, minutes: u32| {
        disk.get_by(Some(asker), start() + minutes * MINUTE).issued.token.bearer.expose().to_owned()
    };
    assert_eq!(token("kubectl 1", 0), "token-0");
    assert_eq!(token("kubectl 2", 1), "token-0");
    assert_eq!(token("kubectl 2", 1), "token-1", "the API server has refused the first");
    assert_eq!(token("kubectl 3", 2), "token-1");
    assert_eq!(disk.get(start() + 2 * MINUTE).0, "token-1", "who is not client-go may ask at will");
    assert_eq!(disk.get(start() + 2 * MINUTE).0, "token-1");
}

#[test]
fn what_is_no_entry_of_ours_is_ignored_and_replaced() {
    let disk = Disk::new();
    disk.get(start());
    let path = disk.path("json");
    let good = std::fs::read_to_string(&path).unwrap();
    let replace = |text: &str| {
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    let mut cases = vec![String::new(), "{}".to_owned(), "\u{0}".repeat(100), "x".repeat(70_000)];
    cases.extend((1..good.len()).step_by(17).map(|length| good[..length].to_owned()));
    cases.push(good.replace("\"version\":1", "\"version\":2"));
    cases.push(good.replace("token-0", "token\\n0"));
    cases.push(good.replace("spur-user-alice", "kube-root"));
    for case in cases {
        replace(&case);
        assert_eq!(disk.get(start()).1, How::Fetched, "{case:?}");
        assert_eq!(disk.get(start()).1, How::Kept, "{case:?}");
    }
    // Another may have written what others can write, or knows what others can read.
    for mode in [0o644, 0o660, 0o602] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(disk.get(start()).1, How::Fetched, "{mode:o}");
    }
    let elsewhere = disk.folder.path().join("elsewhere");
    std::fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert_eq!(disk.get(start()).1, How::Fetched, "a link");
    std::fs::remove_file(&path).unwrap();
    std::fs::hard_link(&elsewhere, &path).unwrap();
    assert_eq!(disk.get(start()).1, How::Fetched, "a hard link");
    assert!(std::fs::read_to_string(&elsewhere).unwrap().contains("token-"), "what a link names stays");
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    assert_eq!(disk.get(start()).1, How::Fetched, "a pipe");
}

#[test]
fn a_folder_that_is_a_link_is_passed_over() {
    let disk = Disk::new();
    let theirs = tempfile::tempdir().unwrap();
    symlink(theirs.path(), disk.folder.path().join("spur")).unwrap();
    let got = disk.get(start());
    assert!(matches!(&got.1, How::FetchedOnly(why) if why.contains("symbolic link")), "{got:?}");
    assert_eq!(std::fs::read_dir(theirs.path()).unwrap().count(), 0);
    let second = tempfile::tempdir().unwrap();
    let cache = TokenCache::new(Some(disk.folder.path()), Some(second.path()));
    let fetch = |_: Option<&SessionName>| Ok::<_, KubeconfigError>(disk.issue(start()));
    assert_eq!(cache.get_or_refresh(&key(), None, start(), fetch).unwrap().how, How::Fetched);
    let uid = rustix::process::geteuid().as_raw();
    assert!(second.path().join(format!("spur-{uid}")).is_dir());
}

#[test]
fn a_folder_of_another_user_is_passed_over() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let disk = Disk::new();
    let folder = disk.folder.path().join("spur");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(12_345), None).unwrap();
    let (_, how) = disk.get(start());
    assert!(matches!(&how, How::FetchedOnly(why) if why.contains("uid 12345")), "{how:?}");
    std::os::unix::fs::chown(&folder, Some(0), None).unwrap();
    disk.get(start());
    std::os::unix::fs::chown(disk.path("json"), Some(12_345), None).unwrap();
    assert_eq!(disk.get(start()).1, How::Fetched, "a file of another user");
}

#[test]
fn a_folder_that_others_can_enter_is_closed() {
    let disk = Disk::new();
    let folder = disk.folder.path().join("spur");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(disk.get(start()).1, How::Fetched);
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn without_any_folder_a_token_is_fetched_each_time() {
    let disk = Disk::new();
    for cache in [TokenCache::new(None, None), TokenCache::new(Some(Path::new("/nowhere/at/all")), None)] {
        let fetch = |_: Option<&SessionName>| Ok::<_, KubeconfigError>(disk.issue(start()));
        let got = cache.get_or_refresh(&key(), None, start(), fetch).unwrap();
        assert!(matches!(got.how, How::FetchedOnly(_)));
    }
}

#[test]
fn many_at_once_fetch_once() {
    let disk = Disk::new();
    let all = |now: SystemTime| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..50)
                .map(|_| {
                    scope.spawn(|| {
                        let fetch = |_: Option<&SessionName>| {
                            std::thread::sleep(Duration::from_millis(50));
                            Ok::<_, KubeconfigError>(disk.issue(now))
                        };
                        let cache = disk.cache().lock_wait(Duration::from_secs(10));
                        cache.get_or_refresh(&key(), None, now, fetch).unwrap();
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
        });
    };
    all(start());
    assert_eq!(disk.fetched.load(Ordering::SeqCst), 1);
    all(start() + 45 * MINUTE);
    assert_eq!(disk.fetched.load(Ordering::SeqCst), 2, "one replaces it, the others take what there is");
    all(start() + 45 * MINUTE + 60 * MINUTE);
    assert_eq!(disk.fetched.load(Ordering::SeqCst), 3, "one replaces what is over, the others wait");
}

#[test]
fn who_holds_the_lock_for_ever_delays_and_keeps_nobody_out() {
    let disk = Disk::new();
    disk.get(start());
    let lock = std::fs::File::create(disk.path("lock")).unwrap();
    lock.lock().unwrap();
    let begin = std::time::Instant::now();
    assert_eq!(disk.get(start() + 45 * MINUTE).1, How::Kept, "it is still valid");
    assert!(begin.elapsed() < Duration::from_millis(200), "{:?}", begin.elapsed());
    assert_eq!(disk.get(start() + 70 * MINUTE).1, How::Fetched);
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn forgetting_makes_the_next_one_new() {
    let disk = Disk::new();
    disk.get(start());
    assert!(disk.cache().forget(&key()) && !disk.cache().forget(&key()));
    let fetch = |given: Option<&SessionName>| {
        assert_eq!(given, None);
        Ok::<_, KubeconfigError>(disk.issue(start()))
    };
    disk.cache().get_or_refresh(&key(), None, start(), fetch).unwrap();
}

#[test]
fn keys_of_other_parts_are_other_keys() {
    let keys = [&["ab", "c"][..], &["a", "bc"], &["abc"], &["a", "b", "c"], &["ab", "c", ""], &["ab", "C"]];
    let keys: std::collections::BTreeSet<_> = keys.iter().map(|parts| CacheKey::new(parts).0).collect();
    assert_eq!(keys.len(), 6);
}

#[test]
fn the_file_of_the_first_version_is_still_read() {
    let disk = Disk::new();
    disk.get(start());
    let golden = r#"{"version":1,"token":"golden","issued":"2027-01-15T08:00:00Z","expires":"2027-01-15T09:00:00Z","session":"spur-user-alice.1800043200.0123456789abcdef"}"#;
    std::fs::write(disk.path("json"), golden).unwrap();
    assert_eq!(disk.get(start()), ("golden".to_owned(), How::Kept));
    let got = disk.get_by(None, start());
    insta::assert_snapshot!(
        *got.issued.token.exec_credential(),
        @r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"expirationTimestamp":"2027-01-15T09:00:00Z","token":"golden"}}"#
    );
    assert!(!format!("{got:?}").contains("golden"));
}
