//! What a file holds.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::{LEAST, hex};
use crate::kubeconfig::{BearerToken, Issued, SessionName, Token};
use crate::timestamp::{format_time, parse_time};

/// The version of the format; a file of another one is ignored and replaced.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    #[serde(with = "text")]
    token: Zeroizing<String>,
    issued: String,
    expires: String,
    session: SessionName,
}

mod text {
    use serde::{Deserialize, Deserializer, Serializer};
    use zeroize::Zeroizing;

    pub(super) fn serialize<S: Serializer>(text: &Zeroizing<String>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Zeroizing<String>, D::Error> {
        String::deserialize(from).map(Zeroizing::new)
    }
}

/// A token that is kept.
pub(super) struct Entry(Issued);

impl Entry {
    pub(super) fn new(issued: &Issued) -> Self {
        Self(issued.clone())
    }

    /// `None` for what is no entry.
    pub(super) fn read(text: &str) -> Option<Self> {
        let stored: Stored = serde_json::from_str(text).ok()?;
        // A token with anything else in it would break out of the header that it is sent in.
        let legal = !stored.token.is_empty() && stored.token.bytes().all(|byte| byte.is_ascii_graphic());
        if stored.version != VERSION || !legal {
            return None;
        }
        let (issued, expires) = (parse_time(&stored.issued)?, parse_time(&stored.expires)?);
        let bearer = BearerToken::new(stored.token.as_str().to_owned());
        Some(Self(Issued::new(Token::new(bearer, issued, expires), stored.session)))
    }

    pub(super) fn to_json(&self) -> Zeroizing<String> {
        let stored = Stored {
            version: VERSION,
            token: Zeroizing::new(self.0.token.bearer.expose().to_owned()),
            issued: format_time(self.0.token.issued),
            expires: format_time(self.0.token.expires),
            session: self.0.session.clone(),
        };
        Zeroizing::new(serde_json::to_string(&stored).unwrap_or_default())
    }

    pub(super) fn issued(&self) -> &Issued {
        &self.0
    }

    /// What tells one token from another, and does not tell the token.
    pub(super) fn digest(&self) -> String {
        hex(&Sha256::digest(self.0.token.bearer.expose().as_bytes()), 16)
    }

    /// Whether it is valid long enough for a request.
    pub(super) fn is_usable(&self, now: SystemTime) -> bool {
        self.0.token.remaining(now) >= LEAST
    }

    /// Whether it is not time for another one: up to two thirds of its life, less up to a tenth of it, so that tokens
    /// that were given at one time are not replaced at one time.
    pub(super) fn is_fresh(&self, now: SystemTime) -> bool {
        let token = &self.0.token;
        let life = token.expires.duration_since(token.issued).unwrap_or_default();
        let Ok(age) = now.duration_since(token.issued) else {
            // The clock was set back; by little, it was so by whoever wrote this.
            return self.is_usable(now) && token.issued.duration_since(now).is_ok_and(|ahead| ahead < LEAST);
        };
        age < life.saturating_mul(2).div_f64(3.0).saturating_sub(self.jitter(life)) && self.is_usable(now)
    }

    /// 0 to 1/10 of a life, always the same for a token.
    fn jitter(&self, life: Duration) -> Duration {
        let hash = Sha256::digest(self.0.token.bearer.expose().as_bytes());
        let byte = hash.first().copied().unwrap_or_default();
        life.div_f64(10.0).mul_f64(f64::from(byte) / 255.0)
    }
}
