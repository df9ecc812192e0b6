//! Tokens that an exec plugin keeps on disk: kubectl runs the plugin in each of its processes.
//!
//! A token that is fresh costs a file that is read. One that is two thirds through its life is replaced, by one of all
//! processes that ask at the time; the others take the old one while it lasts. Nothing that is wrong with the disk
//! keeps a token from its user: then it is fetched and not kept.
//!
//! ```no_run
//! use std::path::Path;
//! use spur_sdk_quota::kubeconfig::{Issued, KubeconfigError, SessionName};
//! use spur_sdk_quota::kubeconfig::cache::{CacheKey, TokenCache};
//!
//! # fn fetch(session: Option<&SessionName>) -> Result<Issued, KubeconfigError> { todo!() }
//! # fn run(runtime: Option<&Path>, cache: Option<&Path>) -> Result<(), KubeconfigError> {
//! let kept = TokenCache::new(runtime, cache);
//! let key = CacheKey::new(&["https://controller.example.org:6817", "site", "alice"]);
//! let got = kept.get_or_refresh(&key, None, std::time::SystemTime::now(), fetch)?;
//! println!("{}", *got.issued.token.exec_credential());
//! # Ok(())
//! # }
//! ```

mod entry;
mod folder;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use spur_sdk::Classify;

use self::entry::Entry;
use self::folder::{Folder, Lock};
use super::{Issued, SessionName};

/// A token that ends sooner is not handed out: the request that it is for takes time, and clocks differ.
const LEAST: Duration = Duration::from_mins(1);

/// What a token is for, as the name of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheKey(String);

impl CacheKey {
    /// A key of everything that makes two tokens different: controller, cluster, user.
    #[must_use]
    pub fn new(parts: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        Self(hex(&hash.finalize(), 16))
    }
}

fn hex(bytes: &[u8], count: usize) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(count) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// How a token was come by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// From the disk.
    Kept,
    /// From the disk although it is time for another, since none is to be had now: the text says why.
    KeptFor(String),
    /// Fetched and kept.
    Fetched,
    /// Fetched, and not kept: the text says why.
    FetchedOnly(String),
}

/// A token, and how it was come by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Got {
    /// The token.
    pub issued: Issued,
    /// How it was come by.
    pub how: How,
}

/// Tokens on disk, in a folder of mode 0700 that belongs to the user, in files of mode 0600.
#[derive(Debug, Clone)]
pub struct TokenCache {
    places: Vec<(PathBuf, String)>,
    lock_wait: Duration,
}

impl TokenCache {
    /// The folder `spur` in `runtime` (`$XDG_RUNTIME_DIR`), or where that cannot be used `spur-UID` in `cache`. A
    /// folder that is a symbolic link or another user's is passed over.
    #[must_use]
    pub fn new(runtime: Option<&Path>, cache: Option<&Path>) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let runtime = runtime.map(|path| (path.to_owned(), "spur".to_owned()));
        let cache = cache.map(|path| (path.to_owned(), format!("spur-{uid}")));
        Self { places: runtime.into_iter().chain(cache).collect(), lock_wait: Duration::from_secs(10) }
    }

    /// Sets how long a process without a usable token waits for another one that fetches it, before it fetches one by
    /// itself. Default: 10 s.
    #[must_use]
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// The token that is kept if it is fresh, else what `fetch` gives for the session that it was of.
    ///
    /// `asker` names the process that asks, such as its pid and start time, where that is client-go (which sets
    /// `KUBERNETES_EXEC_INFO`): before its token ends it asks a second time only if the API server has refused it, so
    /// a fresh token is not given to one asker twice.
    ///
    /// It blocks: for the disk, for another process that fetches, and for `fetch`, which is called at most once.
    ///
    /// # Errors
    /// What `fetch` says, unless trying again may help and the token that is kept is valid for a minute.
    pub fn get_or_refresh<E: Classify>(
        &self,
        key: &CacheKey,
        asker: Option<&str>,
        now: SystemTime,
        fetch: impl FnOnce(Option<&SessionName>) -> Result<Issued, E>,
    ) -> Result<Got, E> {
        let folder = match self.folder() {
            Ok(folder) => folder,
            Err(why) => {
                return fetch(None).map(|issued| Got { issued, how: How::FetchedOnly(why) });
            }
        };
        let files = Files { folder: &folder, key, asker };
        let first = files.read();
        let mut refused = None;
        if let Some(entry) = first.as_ref().filter(|entry| entry.is_fresh(now)) {
            if !files.was_given(entry) {
                return Ok(files.give(entry));
            }
            refused = Some(entry.digest());
        }
        let usable = first.filter(|entry| refused.is_none() && entry.is_usable(now));
        let wait = if usable.is_some() { Duration::ZERO } else { self.lock_wait };
        let lock = folder.lock(&format!("{}.lock", key.0), wait);
        if let (Lock::Busy, Some(entry)) = (&lock, &usable) {
            // Another process fetches one.
            return Ok(files.give(entry));
        }
        // Another process may have fetched one meanwhile.
        let kept = files.read();
        let is_refused = |entry: &Entry| refused.as_ref() == Some(&entry.digest());
        if let Some(entry) = kept.as_ref().filter(|entry| entry.is_fresh(now) && !is_refused(entry)) {
            return Ok(files.give(entry));
        }
        let session = kept.as_ref().map(|entry| &entry.issued().session);
        match fetch(session) {
            Ok(issued) => {
                let entry = Entry::new(&issued);
                let how = match files.write(&entry) {
                    Ok(()) => How::Fetched,
                    Err(why) => How::FetchedOnly(why),
                };
                files.note(&entry);
                Ok(Got { issued, how })
            }
            Err(error) if error.is_retryable() => match usable {
                Some(entry) => {
                    Ok(Got { how: How::KeptFor(spur_sdk::error_chain(&error)), ..files.give(&entry) })
                }
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Forgets the token, so that the next one is fetched for a new session. Whether there was one.
    #[must_use]
    pub fn forget(&self, key: &CacheKey) -> bool {
        self.folder().is_ok_and(|folder| folder.remove(&format!("{}.json", key.0)))
    }

    /// The first place that can be used, or what is wrong with all.
    fn folder(&self) -> Result<Folder, String> {
        let mut wrong = Vec::new();
        for (parent, name) in &self.places {
            match Folder::open(parent, name) {
                Ok(folder) => return Ok(folder),
                Err(why) => wrong.push(format!("{}: {why}", parent.join(name).display())),
            }
        }
        Err(if wrong.is_empty() { "there is no folder for it".to_owned() } else { wrong.join("; ") })
    }
}

/// The files of one key.
struct Files<'a> {
    folder: &'a Folder,
    key: &'a CacheKey,
    asker: Option<&'a str>,
}

impl Files<'_> {
    fn name(&self, ending: &str) -> String {
        format!("{}.{ending}", self.key.0)
    }

    fn read(&self) -> Option<Entry> {
        Entry::read(&self.folder.read(&self.name("json"))?)
    }

    fn write(&self, entry: &Entry) -> Result<(), String> {
        self.folder.replace(&self.name("json"), &entry.to_json()).map_err(|error| error.to_string())
    }

    fn give(&self, entry: &Entry) -> Got {
        self.note(entry);
        Got { issued: entry.issued().clone(), how: How::Kept }
    }

    /// Whether this asker was given this token last.
    fn was_given(&self, entry: &Entry) -> bool {
        self.asker.is_some_and(|asker| {
            let noted = self.folder.read(&self.name("asked"));
            noted.is_some_and(|noted| *noted == note(asker, entry))
        })
    }

    /// Keeps in mind whom a token was given; if that fails, one that is refused is found out later.
    fn note(&self, entry: &Entry) {
        if let Some(asker) = self.asker {
            let _ = self.folder.replace(&self.name("asked"), &note(asker, entry));
        }
    }
}

fn note(asker: &str, entry: &Entry) -> String {
    let asker = Sha256::digest(asker.as_bytes());
    format!("{} {}\n", hex(&asker, 16), entry.digest())
}
