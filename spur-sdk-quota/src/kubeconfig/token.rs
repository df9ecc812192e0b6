//! Tokens.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use zeroize::Zeroizing;

use super::SessionName;
use crate::timestamp::format_time;

/// A bearer token. It is not shown by `Debug` and is wiped from memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(Zeroizing<String>);

impl BearerToken {
    /// A token as the API server gave it.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The token itself, for the one place that has to send or write it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

/// A token and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Token {
    /// The token.
    pub bearer: BearerToken,
    /// When it was given.
    pub issued: SystemTime,
    /// When it ends, as the API server says, which may be sooner than was asked.
    pub expires: SystemTime,
}

impl Token {
    /// A token and its time.
    #[must_use]
    pub fn new(bearer: BearerToken, issued: SystemTime, expires: SystemTime) -> Self {
        Self { bearer, issued, expires }
    }

    /// How long it is still valid; zero when it is over.
    #[must_use]
    pub fn remaining(&self, now: SystemTime) -> Duration {
        self.expires.duration_since(now).unwrap_or_default()
    }

    /// The answer of an exec plugin: an `ExecCredential` of `client.authentication.k8s.io/v1` as JSON on one line.
    ///
    /// Its time is the token's own: kubectl keeps an answer within its process alone, and client-go asks the plugin
    /// anew when the time has come or the API server answers 401.
    #[must_use]
    pub fn exec_credential(&self) -> Zeroizing<String> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Status<'a> {
            expiration_timestamp: String,
            token: &'a str,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct ExecCredential<'a> {
            api_version: &'static str,
            kind: &'static str,
            status: Status<'a>,
        }
        let status = Status { expiration_timestamp: format_time(self.expires), token: self.bearer.expose() };
        let answer =
            ExecCredential { api_version: "client.authentication.k8s.io/v1", kind: "ExecCredential", status };
        // Strings alone cannot fail to be written.
        Zeroizing::new(serde_json::to_string(&answer).unwrap_or_default())
    }
}

/// A token of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Issued {
    /// The token.
    pub token: Token,
    /// The session that it is bound to: with it the next token costs one request, and by it the token is revoked.
    pub session: SessionName,
}

impl Issued {
    /// A token of a session.
    #[must_use]
    pub fn new(token: Token, session: SessionName) -> Self {
        Self { token, session }
    }
}
