//! One-time tokens with which a node joins.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::NodeName;
use crate::identity::secret::{equal, hex, random, sha256, unhex};
use crate::identity::{IdentityError, JoinRefusal, fingerprint};

/// How long a join token lives where nobody says otherwise.
pub const DEFAULT_TOKEN_LIFETIME: Duration = Duration::from_mins(15);
/// The most that a join token may live.
pub const MAX_TOKEN_LIFETIME: Duration = Duration::from_hours(24);

const HEAD: &str = "spur-join";

/// What a join token is to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct JoinGrant {
    /// The node that it is for; `None` for any name that was never enrolled here.
    pub node: Option<NodeName>,
    /// Whether the node may vouch for users; only with a name.
    pub login: bool,
    /// How long it lives; `None` for [`DEFAULT_TOKEN_LIFETIME`].
    pub lifetime: Option<Duration>,
}

impl JoinGrant {
    /// A token for one node.
    #[must_use]
    pub fn node(name: NodeName) -> Self {
        Self { node: Some(name), login: false, lifetime: None }
    }

    /// A token for any node that was never enrolled here.
    #[must_use]
    pub fn any_new() -> Self {
        Self::default()
    }

    /// Says whether the node may vouch for users.
    #[must_use]
    pub fn login(mut self, value: bool) -> Self {
        self.login = value;
        self
    }

    /// Sets how long the token lives, at most [`MAX_TOKEN_LIFETIME`].
    #[must_use]
    pub fn lifetime(mut self, value: Duration) -> Self {
        self.lifetime = Some(value);
        self
    }
}

/// A one-time token with which a node joins: `spur-join.ID.SECRET.FINGERPRINT`.
///
/// The identifier has 16 digits `0-9a-f`, the secret 256 random bits in 43 characters of base64url, and the fingerprint
/// is that of the authority's certificate, by which the node knows whom it talks to.
#[derive(Clone)]
pub struct JoinToken {
    id: String,
    secret: Zeroizing<[u8; 32]>,
    authority: String,
}

impl JoinToken {
    pub(super) fn generate(authority: String) -> Result<Self, IdentityError> {
        Ok(Self { id: hex(&random::<8>()?), secret: Zeroizing::new(random()?), authority })
    }

    /// What names the token, and is no secret.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The fingerprint of the authority's certificate; see [`fingerprint`].
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Whether a certificate is the authority's that the token names.
    #[must_use]
    pub fn recognizes(&self, authority: &[u8]) -> bool {
        fingerprint(authority) == self.authority
    }

    /// The token as text, which is a secret.
    #[must_use]
    pub fn reveal(&self) -> String {
        let secret = Zeroizing::new(URL_SAFE_NO_PAD.encode(self.secret.as_slice()));
        format!("{HEAD}.{}.{}.{}", self.id, *secret, self.authority)
    }

    /// What is stored in place of the secret. The secret is random and long: a plain hash cannot be searched.
    pub(super) fn hash(&self) -> [u8; 32] {
        let text = Zeroizing::new([self.id.as_bytes(), b".", self.secret.as_slice()].concat());
        sha256(&text)
    }

    /// Whether the token is the one that was stored as `hash`.
    pub(super) fn matches(&self, hash: &str) -> bool {
        unhex(hash).is_some_and(|hash| equal(&hash, &self.hash()))
    }
}

impl FromStr for JoinToken {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let read = || {
            let mut parts = text.split('.');
            let (head, id, secret, authority) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            if head != HEAD || parts.next().is_some() {
                return None;
            }
            unhex::<8>(id)?;
            unhex::<32>(authority)?;
            // 32 bytes have 43 characters; a longer text is not worth decoding.
            if secret.len() != 43 {
                return None;
            }
            let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(secret).ok()?);
            let secret = Zeroizing::new(bytes.as_slice().try_into().ok()?);
            Some(Self { id: id.to_owned(), secret, authority: authority.to_owned() })
        };
        read().ok_or(IdentityError::Join(JoinRefusal::Form))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_and_no_other_spelling_is() {
        let token = JoinToken::generate("ab".repeat(32)).unwrap();
        let text = token.reveal();
        let read: JoinToken = text.parse().unwrap();
        assert_eq!((read.id(), read.authority()), (token.id(), token.authority()));
        assert!(read.matches(&hex(&token.hash())));
        assert!(!JoinToken::generate("ab".repeat(32)).unwrap().matches(&hex(&token.hash())));
        assert!(!format!("{token:?}").contains(text.split('.').nth(2).unwrap()));
        let wrong = [
            String::new(),
            "spur-join".to_owned(),
            "spur-join....".to_owned(),
            format!("{text}.x"),
            format!(" {text}"),
            text.replace("spur-join", "spur"),
            text.to_uppercase(),
            text[..text.len() - 1].to_owned(),
            "x".repeat(1_000_000),
        ];
        for text in wrong {
            assert_eq!(text.parse::<JoinToken>().unwrap_err().refusal(), Some(JoinRefusal::Form));
        }
    }
}
