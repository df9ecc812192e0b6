//! Sessions, and their names.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use spur_sdk::{Classify, ErrorKind, UserName, is_dns_label};

use crate::project::names;

/// Characters of a name's last part: 5 random bits each.
const RANDOM_CHARS: usize = 16;

/// What a random part is written in.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";

/// No name of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no name of a session")]
#[non_exhaustive]
pub struct SessionNameError;

impl Classify for SessionNameError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

/// The name of a session and of its Secret: `SERVICE-ACCOUNT.END.RANDOM`, the end in seconds since 1970 and 80 random
/// bits.
///
/// Whose a session is and when it ends stands in its name, so that a token of an existing session takes one request. A
/// name that somebody altered is the name of no Secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionName {
    text: String,
    account: usize,
    expires: u64,
}

impl SessionName {
    /// A name for a session of `user` that ends at `expires`.
    pub(crate) fn new(user: &UserName, expires: SystemTime, random: [u8; RANDOM_CHARS]) -> Self {
        let account = names::SERVICE_ACCOUNTS.map(user.as_str());
        let expires = expires.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let random: String = random
            .iter()
            .filter_map(|byte| ALPHABET.get(usize::from(byte & 31)))
            .map(|byte| char::from(*byte))
            .collect();
        Self { account: account.len(), text: format!("{account}.{expires}.{random}"), expires }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The ServiceAccount whose session it is.
    #[must_use]
    pub fn service_account(&self) -> &str {
        self.text.get(..self.account).unwrap_or_default()
    }

    /// Whether it is a session of this user.
    #[must_use]
    pub fn is_of(&self, user: &UserName) -> bool {
        self.service_account() == names::SERVICE_ACCOUNTS.map(user.as_str())
    }

    /// When it ends; no token of it is valid longer.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        let since = Duration::from_secs(self.expires);
        SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl FromStr for SessionName {
    type Err = SessionNameError;

    fn from_str(text: &str) -> Result<Self, SessionNameError> {
        let mut parts = text.split('.');
        let (Some(account), Some(end), Some(random), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(SessionNameError);
        };
        let expires = end.parse::<u64>().map_err(|_| SessionNameError)?;
        let is_ours = is_dns_label(account)
            && names::SERVICE_ACCOUNTS.is_mapped(account)
            // One spelling alone: no sign, no zeros ahead.
            && expires.to_string() == end
            && end.len() <= 12
            && random.len() == RANDOM_CHARS
            && random.bytes().all(|byte| ALPHABET.contains(&byte));
        if is_ours {
            Ok(Self { text: text.to_owned(), account: account.len(), expires })
        } else {
            Err(SessionNameError)
        }
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl Serialize for SessionName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for SessionName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A session as it stands in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Session {
    /// Its name.
    pub name: SessionName,
    /// The Secret's uid: what is deleted is this one and no later one of the same name.
    pub uid: String,
    /// The user; `None` if the annotation is gone, then the name's ServiceAccount still tells.
    pub user: Option<UserName>,
    /// When it was made, as the API server says.
    pub created: Option<SystemTime>,
    /// What the client said of itself; not verified.
    pub client: Option<String>,
}

impl Session {
    /// A session without anything further.
    #[must_use]
    pub fn new(name: SessionName, uid: impl Into<String>) -> Self {
        Self { name, uid: uid.into(), user: None, created: None, client: None }
    }

    /// Sets the user.
    #[must_use]
    pub fn user(mut self, user: Option<UserName>) -> Self {
        self.user = user;
        self
    }

    /// Sets when it was made.
    #[must_use]
    pub fn created(mut self, created: Option<SystemTime>) -> Self {
        self.created = created;
        self
    }

    /// Sets what the client said of itself.
    #[must_use]
    pub fn client(mut self, client: Option<String>) -> Self {
        self.client = client;
        self
    }
}
