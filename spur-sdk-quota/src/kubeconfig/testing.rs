//! A control plane in memory, as far as sessions need one; feature `testing`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use spur_sdk::{Clock, UserName};

use super::{
    AccessError, ApiError, BearerToken, ControlPlaneAccess, Endpoint, NewSession, PodApi, Session,
    SessionApi, SessionName, StoredAccount, UserPod,
};
use crate::project::names;

/// ServiceAccounts, sessions and tokens that behave as the API server's do: a token counts while its session and its
/// ServiceAccount are the ones that it was made for. Clones are the same control plane.
#[derive(Clone)]
pub struct SessionModel {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    accounts: BTreeMap<String, StoredAccount>,
    sessions: BTreeMap<SessionName, Stored>,
    tokens: BTreeMap<String, Bound>,
    namespaces: BTreeSet<String>,
    pods: Vec<(UserPod, String)>,
    calls: Vec<String>,
    faults: BTreeMap<usize, ApiError>,
    longest: Option<Duration>,
    made: u64,
}

struct Stored {
    new: NewSession,
    uid: String,
    created: SystemTime,
}

struct Bound {
    session_uid: String,
    account_uid: String,
    expires: SystemTime,
}

impl std::fmt::Debug for SessionModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionModel").finish_non_exhaustive()
    }
}

fn status(code: u16, reason: &str, message: &str) -> ApiError {
    ApiError::Status { code, reason: reason.to_owned(), message: message.to_owned(), retry_after: None }
}

impl State {
    /// One call: written down, and failed if that was asked for.
    fn call(&mut self, what: String) -> Result<(), ApiError> {
        self.calls.push(what);
        self.faults.remove(&self.calls.len()).map_or(Ok(()), Err)
    }

    fn uid(&mut self) -> String {
        self.made = self.made.saturating_add(1);
        format!("uid-{}", self.made)
    }
}

impl SessionModel {
    /// An empty control plane.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a user's ServiceAccount as the reconciler does; one that is there is replaced by another of a new uid.
    pub fn add_user(&self, user: &UserName) {
        let account = StoredAccount {
            labels: [(names::MANAGED_BY.to_owned(), names::MANAGER.to_owned())].into(),
            annotations: [("spur.amd.com/user-name".to_owned(), user.to_string())].into(),
            ..StoredAccount::default()
        };
        self.put_account(&names::SERVICE_ACCOUNTS.map(user.as_str()), account);
    }

    /// Makes a ServiceAccount as it is given, but for the uid.
    pub fn put_account(&self, name: &str, mut account: StoredAccount) {
        self.remove_account(name);
        let mut state = self.state();
        account.uid = state.uid();
        state.accounts.insert(name.to_owned(), account);
    }

    /// Deletes a user's ServiceAccount, and with it the sessions that it owns.
    pub fn remove_user(&self, user: &UserName) {
        self.remove_account(&names::SERVICE_ACCOUNTS.map(user.as_str()));
    }

    fn remove_account(&self, name: &str) {
        let mut state = self.state();
        if let Some(gone) = state.accounts.remove(name) {
            state.sessions.retain(|_, session| session.new.owner_uid != gone.uid);
        }
    }

    /// Makes the namespace of an account.
    pub fn add_namespace(&self, name: &str) {
        self.state().namespaces.insert(name.to_owned());
    }

    /// Makes a pod whose label says that it is a user's.
    pub fn add_pod(&self, namespace: &str, name: &str, user: &UserName) {
        let mut state = self.state();
        let uid = state.uid();
        let account = names::SERVICE_ACCOUNTS.map(user.as_str());
        state.pods.push((UserPod::new(namespace, name, uid), account));
    }

    /// Gives no token a longer life than this, as a server with `--service-account-max-token-expiration`.
    pub fn shorten(&self, longest: Duration) {
        self.state().longest = Some(longest);
    }

    /// Fails the call of this number; the first is 1.
    pub fn fail(&self, call: usize, error: ApiError) {
        self.state().faults.insert(call, error);
    }

    /// What was called so far, such as `create spur-user-alice`.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// The sessions that there are, as they were made; sorted by name.
    #[must_use]
    pub fn stored(&self) -> Vec<NewSession> {
        self.state().sessions.values().map(|session| session.new.clone()).collect()
    }

    /// Whether the API server takes a token.
    #[must_use]
    pub fn takes(&self, token: &BearerToken) -> bool {
        let state = self.state();
        state.tokens.get(token.expose()).is_some_and(|token| {
            let session = state.sessions.values().any(|session| session.uid == token.session_uid);
            let account = state.accounts.values().any(|account| account.uid == token.account_uid);
            session && account && self.clock.now() < token.expires
        })
    }
}

impl SessionApi for SessionModel {
    async fn account(&self, name: &str) -> Result<Option<StoredAccount>, ApiError> {
        let mut state = self.state();
        state.call(format!("account {name}"))?;
        Ok(state.accounts.get(name).cloned())
    }

    async fn create(&self, session: &NewSession) -> Result<String, ApiError> {
        let created = self.clock.now();
        let mut state = self.state();
        state.call(format!("create {}", session.name.service_account()))?;
        if state.sessions.contains_key(&session.name) {
            return Err(status(409, "AlreadyExists", "there is one"));
        }
        let uid = state.uid();
        let stored = Stored { new: session.clone(), uid: uid.clone(), created };
        state.sessions.insert(session.name.clone(), stored);
        Ok(uid)
    }

    async fn request_token(
        &self,
        session: &SessionName,
        uid: Option<&str>,
        lifetime: Duration,
    ) -> Result<(BearerToken, SystemTime), ApiError> {
        let now = self.clock.now();
        let mut state = self.state();
        state.call(format!("request_token {}", session.service_account()))?;
        if lifetime < Duration::from_mins(10) {
            return Err(status(422, "Invalid", "may not specify a duration less than 10 minutes"));
        }
        let not_found = || status(404, "NotFound", "not found");
        let account_uid = state.accounts.get(session.service_account()).ok_or_else(not_found)?.uid.clone();
        let session_uid = state.sessions.get(session).ok_or_else(not_found)?.uid.clone();
        if uid.is_some_and(|uid| uid != session_uid) {
            return Err(status(409, "Conflict", "the UID in the bound object reference does not match"));
        }
        let lifetime = state.longest.map_or(lifetime, |longest| longest.min(lifetime));
        let expires = now.checked_add(lifetime).unwrap_or(now);
        let token = format!("token-{}", state.uid());
        state.tokens.insert(token.clone(), Bound { session_uid, account_uid, expires });
        Ok((BearerToken::new(token), expires))
    }

    async fn list(&self, prefix: &str, account: Option<&str>) -> Result<Vec<Session>, ApiError> {
        let mut state = self.state();
        state.call(format!("list {}", account.unwrap_or("all")))?;
        let key = |name: &str| format!("{prefix}/{name}");
        let found = state.sessions.values().filter(|stored| {
            let label = stored.new.labels.get(&key("session"));
            label.is_some_and(|label| account.is_none_or(|account| label == account))
        });
        let sessions = found.map(|stored| {
            let text = |name: &str| stored.new.annotations.get(&key(name)).cloned();
            Session::new(stored.new.name.clone(), stored.uid.clone())
                .user(text("user-name").and_then(|user| user.parse().ok()))
                .created(Some(stored.created))
                .client(text("client"))
        });
        Ok(sessions.collect())
    }

    async fn delete(&self, session: &SessionName, uid: Option<&str>) -> Result<bool, ApiError> {
        let mut state = self.state();
        state.call(format!("delete {}", session.service_account()))?;
        let found = state.sessions.get(session).is_some_and(|stored| uid.is_none_or(|uid| uid == stored.uid));
        if found {
            state.sessions.remove(session);
        }
        Ok(found)
    }
}

impl PodApi for SessionModel {
    async fn account_namespaces(&self, _prefix: &str) -> Result<BTreeSet<String>, ApiError> {
        let mut state = self.state();
        state.call("account_namespaces".to_owned())?;
        Ok(state.namespaces.clone())
    }

    async fn pods(&self, _key: &str, value: &str) -> Result<Vec<UserPod>, ApiError> {
        let mut state = self.state();
        state.call(format!("pods {value}"))?;
        let found = state.pods.iter().filter(|(_, account)| account == value);
        Ok(found.map(|(pod, _)| pod.clone()).collect())
    }

    async fn delete_pod(&self, pod: &UserPod) -> Result<bool, ApiError> {
        let mut state = self.state();
        state.call(format!("delete_pod {}", pod.name))?;
        let before = state.pods.len();
        state.pods.retain(|(found, _)| found != pod);
        Ok(state.pods.len() < before)
    }
}

impl ControlPlaneAccess for SessionModel {
    type Api = Self;

    async fn endpoint(&self) -> Result<Endpoint, AccessError> {
        Ok(Endpoint::new("https://10.0.0.1:6443").authorities(Some("the authority".to_owned())))
    }

    async fn sessions(&self) -> Result<Self, AccessError> {
        Ok(self.clone())
    }
}
