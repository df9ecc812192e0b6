//! The API server, as far as sessions need it.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, SystemTime};

use super::{ApiError, BearerToken, Session, SessionName};

/// A ServiceAccount in `spur-users`, as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StoredAccount {
    /// Its uid.
    pub uid: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether it is being deleted.
    pub is_leaving: bool,
}

/// A session to be made: an opaque Secret without content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewSession {
    /// Its name.
    pub name: SessionName,
    /// The uid of its ServiceAccount, which owns it: the Secret goes with it.
    pub owner_uid: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// The API server, as far as sessions need it: what stands in `spur-users`. Every call ends by a deadline of its own.
pub trait SessionApi: Send + Sync {
    /// A ServiceAccount, if there is one.
    fn account(&self, name: &str) -> impl Future<Output = Result<Option<StoredAccount>, ApiError>> + Send;

    /// Makes a session and answers its uid.
    fn create(&self, session: &NewSession) -> impl Future<Output = Result<String, ApiError>> + Send;

    /// A token of the session's ServiceAccount bound to the session, and when it ends. With a uid, to the session of
    /// that uid alone.
    fn request_token(
        &self,
        session: &SessionName,
        uid: Option<&str>,
        lifetime: Duration,
    ) -> impl Future<Output = Result<(BearerToken, SystemTime), ApiError>> + Send;

    /// Sessions of ours, all or those of one ServiceAccount, in no order. `prefix`: that of labels and annotations.
    fn list(
        &self,
        prefix: &str,
        account: Option<&str>,
    ) -> impl Future<Output = Result<Vec<Session>, ApiError>> + Send;

    /// Deletes a session, with a uid only if it still is that one; whether there was one.
    fn delete(
        &self,
        session: &SessionName,
        uid: Option<&str>,
    ) -> impl Future<Output = Result<bool, ApiError>> + Send;
}
