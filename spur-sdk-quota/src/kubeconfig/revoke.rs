//! Listing and ending sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use futures::{StreamExt, stream};
use spur_sdk::UserName;

use super::{
    ControlPlaneAccess, KubeconfigError, Membership, Memberships, Minter, Session, SessionApi, SessionName,
};
use crate::project::names;

/// How long a session is kept beyond its end: clocks differ.
const GRACE: Duration = Duration::from_mins(1);

/// Why a session was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Removal {
    /// Somebody asked for it.
    Revoked,
    /// Its time is over.
    Expired,
    /// The user has more sessions than policy gives, and it was among the oldest.
    TooMany,
}

/// What became of sessions that were to end.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RemovalReport {
    /// Ended, and why; sorted by name. A session that was gone already is not among them.
    pub removed: Vec<(SessionName, Removal)>,
    /// Not ended, and why not; sorted by name.
    pub failed: Vec<(SessionName, KubeconfigError)>,
}

impl<A: ControlPlaneAccess, M: Memberships> Minter<A, M> {
    /// The sessions of a user, or all; sorted by name. Those whose time is over stand among them until they are swept.
    ///
    /// # Errors
    /// They cannot be listed.
    pub async fn sessions(&self, user: Option<&UserName>) -> Result<Vec<Session>, KubeconfigError> {
        let api = self.access.sessions().await?;
        self.list(&api, user).await
    }

    async fn list(&self, api: &A::Api, user: Option<&UserName>) -> Result<Vec<Session>, KubeconfigError> {
        let account = user.map(|user| names::SERVICE_ACCOUNTS.map(user.as_str()));
        let sessions = api.list(&self.policy.prefix, account.as_deref()).await;
        let mut sessions = sessions.map_err(KubeconfigError::request("list", "sessions"))?;
        sessions.retain(|session| user.is_none_or(|user| session.name.is_of(user)));
        sessions.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(sessions)
    }

    /// Ends all sessions of a user. The API server refuses their tokens for new requests at once where it has not
    /// seen one within the last 10 s, else after 10 s; open watches, logs and terminals go on. The user can make new
    /// sessions while in an account.
    ///
    /// # Errors
    /// They cannot be listed. What could not be ended stands in the report.
    ///
    /// # Cancellation
    /// Some may have ended.
    pub async fn revoke(&self, user: &UserName) -> Result<RemovalReport, KubeconfigError> {
        let api = self.access.sessions().await?;
        let sessions = self.list(&api, Some(user)).await?;
        let doomed = sessions.into_iter().map(|session| (session, Removal::Revoked)).collect();
        let report = self.end(&api, doomed).await;
        let (removed, failed) = (report.removed.len(), report.failed.len());
        tracing::info!(%user, removed, failed, "sessions revoked");
        Ok(report)
    }

    /// Ends the sessions of users who are known to be in no account. Where that is not known, they go on.
    ///
    /// # Errors
    /// They cannot be listed. What could not be ended stands in the report.
    ///
    /// # Cancellation
    /// Some may have ended.
    pub async fn revoke_gone(&self) -> Result<RemovalReport, KubeconfigError> {
        let api = self.access.sessions().await?;
        let sessions = self.list(&api, None).await?;
        let users: BTreeSet<UserName> = sessions.iter().filter_map(|session| session.user.clone()).collect();
        let mut gone = BTreeSet::new();
        for user in users {
            if let Membership::Known { accounts, .. } = self.memberships.membership(&user).await
                && accounts.is_empty()
            {
                gone.insert(user);
            }
        }
        let of_gone = |session: &Session| session.user.as_ref().is_some_and(|user| gone.contains(user));
        let doomed =
            sessions.into_iter().filter(of_gone).map(|session| (session, Removal::Revoked)).collect();
        Ok(self.end(&api, doomed).await)
    }

    /// Ends one session; whether there was one.
    ///
    /// # Errors
    /// The request failed.
    pub async fn revoke_session(&self, session: &SessionName) -> Result<bool, KubeconfigError> {
        let api = self.access.sessions().await?;
        let ended = api.delete(session, None).await;
        let ended = ended.map_err(KubeconfigError::request("delete", session.as_str()))?;
        tracing::info!(%session, ended, "session revoked");
        Ok(ended)
    }

    /// Ends sessions whose time is over by a minute, and the oldest of users who have more than policy gives. To be
    /// called every few minutes.
    ///
    /// # Errors
    /// They cannot be listed. What could not be ended stands in the report.
    ///
    /// # Cancellation
    /// Some may have ended.
    pub async fn sweep(&self) -> Result<RemovalReport, KubeconfigError> {
        let api = self.access.sessions().await?;
        let sessions = self.list(&api, None).await?;
        let doomed = doomed(sessions, self.clock.now(), self.policy.sessions_per_user);
        Ok(self.end(&api, doomed).await)
    }

    async fn end(&self, api: &A::Api, doomed: Vec<(Session, Removal)>) -> RemovalReport {
        let ended = stream::iter(doomed.into_iter().map(|(session, why)| async move {
            let ended = api.delete(&session.name, Some(&session.uid)).await;
            (session.name, why, ended)
        }));
        let mut ended = ended.buffer_unordered(self.policy.concurrency.max(1));
        let mut report = RemovalReport::default();
        while let Some((name, why, ended)) = ended.next().await {
            match ended {
                Ok(true) => report.removed.push((name, why)),
                Ok(false) => {}
                Err(error) => {
                    let error = KubeconfigError::request("delete", name.as_str())(error);
                    report.failed.push((name, error));
                }
            }
        }
        report.removed.sort();
        report.failed.sort_by(|a, b| a.0.cmp(&b.0));
        report
    }
}

/// Which sessions are to end. Those whose time is not known to be over are kept, but for the oldest of too many.
fn doomed(sessions: Vec<Session>, now: SystemTime, per_user: usize) -> Vec<(Session, Removal)> {
    let mut doomed = Vec::new();
    let mut alive: BTreeMap<String, Vec<Session>> = BTreeMap::new();
    for session in sessions {
        if now.duration_since(session.name.expires()).is_ok_and(|over| over > GRACE) {
            doomed.push((session, Removal::Expired));
        } else {
            alive.entry(session.name.service_account().to_owned()).or_default().push(session);
        }
    }
    for sessions in alive.values_mut() {
        sessions.sort_by_key(|session| std::cmp::Reverse((session.created, session.name.clone())));
        let beyond = sessions.split_off(per_user.min(sessions.len()));
        doomed.extend(beyond.into_iter().map(|session| (session, Removal::TooMany)));
    }
    doomed
}
