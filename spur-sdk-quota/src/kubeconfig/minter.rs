//! Sessions, tokens and kubeconfigs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use spur_sdk::{AccountName, Classify, Clock, ErrorKind, SystemClock, UserName, error_chain};

use super::{
    ApiError, ControlPlaneAccess, Credential, Endpoint, ExecPlugin, Issued, Kubeconfig, KubeconfigError,
    KubeconfigPolicy, Membership, Memberships, NewSession, PolicyError, SHORTEST_LIFETIME, SessionApi,
    SessionName, StoredAccount, Token,
};
use crate::project::names;
use crate::timestamp::format_time;

/// The longest description of a client that is kept, in bytes.
const CLIENT_BYTES: usize = 256;

/// Pauses while a ServiceAccount is waited for: the first, doubled each time, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What is asked for, and for whom. The host has decided that it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MintRequest {
    /// The user whose it will be.
    pub user: UserName,
    /// How long the token shall be valid. `None`: what policy says.
    pub lifetime: Option<Duration>,
    /// The account of the current context. `None`: the user's default account.
    pub account: Option<AccountName>,
    /// What the client says of itself, such as `spur 0.1.0 on login1`; cut at 256 bytes.
    pub client: String,
}

impl MintRequest {
    /// A request for a user, with what policy says.
    #[must_use]
    pub fn new(user: UserName) -> Self {
        Self { user, lifetime: None, account: None, client: String::new() }
    }

    /// Sets how long the token shall be valid.
    #[must_use]
    pub fn lifetime(mut self, lifetime: Option<Duration>) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// Sets the account of the current context.
    #[must_use]
    pub fn account(mut self, account: Option<AccountName>) -> Self {
        self.account = account;
        self
    }

    /// Sets what the client says of itself.
    #[must_use]
    pub fn client(mut self, client: impl Into<String>) -> Self {
        self.client = client.into();
        self
    }
}

/// Which of the two forms a kubeconfig takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// A command that fetches tokens; no session is made.
    Exec(ExecPlugin),
    /// A token in the file, of a session that ends with it.
    Static,
}

/// A kubeconfig, and what was made for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Minted {
    /// The kubeconfig.
    pub kubeconfig: Kubeconfig,
    /// The session of the token in it; `None` with a command.
    pub session: Option<SessionName>,
    /// When the token in it ends; `None` with a command.
    pub expires: Option<SystemTime>,
}

/// Makes and ends the sessions of a control plane. It keeps nothing: several may work side by side.
pub struct Minter<A, M> {
    pub(super) access: A,
    pub(super) memberships: M,
    pub(super) policy: KubeconfigPolicy,
    pub(super) clock: Arc<dyn Clock>,
}

impl<A, M> std::fmt::Debug for Minter<A, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Minter").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<A: ControlPlaneAccess, M: Memberships> Minter<A, M> {
    /// A minter by the system's clock.
    ///
    /// # Errors
    /// The policy cannot be carried out.
    pub fn new(access: A, memberships: M, policy: KubeconfigPolicy) -> Result<Self, PolicyError> {
        policy.check()?;
        Ok(Self { access, memberships, policy, clock: Arc::new(SystemClock) })
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &KubeconfigPolicy {
        &self.policy
    }

    /// A token for a user: one more of `session` if that is given and goes on long enough, else the first of a new
    /// session that may be used for policy's `session_lifetime`. This is what an exec plugin asks for.
    ///
    /// # Errors
    /// As [`Self::mint`]. A session of another user is refused; one that has ended is replaced.
    ///
    /// # Cancellation
    /// As [`Self::mint`].
    pub async fn issue(
        &self,
        request: &MintRequest,
        session: Option<&SessionName>,
    ) -> Result<Issued, KubeconfigError> {
        if let Some(session) = session {
            match self.refresh(request, session).await {
                Err(KubeconfigError::SessionEnded(_)) => {}
                done => return done,
            }
        }
        self.mint(request).await
    }

    /// The first token of a new session that may be used for policy's `session_lifetime`.
    ///
    /// # Errors
    /// The user is in no account, it is not known, the lifetime is out of range, the ServiceAccount is missing or
    /// not the reconciler's, or a request fails. Nothing is left behind then, unless the API server cannot be reached.
    ///
    /// # Cancellation
    /// A session without a token may be left behind; [`Self::sweep`] ends it when its time is over.
    pub async fn mint(&self, request: &MintRequest) -> Result<Issued, KubeconfigError> {
        let lifetime = self.lifetime(request)?;
        self.member(&request.user).await?;
        self.new_session(request, lifetime, self.policy.session_lifetime.max(lifetime)).await
    }

    /// One more token of a session, by one request.
    ///
    /// # Errors
    /// As [`Self::mint`]; and the session is another user's, was revoked, or ends within 10 min.
    ///
    /// # Cancellation
    /// Nothing is left behind.
    pub async fn refresh(
        &self,
        request: &MintRequest,
        session: &SessionName,
    ) -> Result<Issued, KubeconfigError> {
        let user = &request.user;
        if !session.is_of(user) {
            return Err(KubeconfigError::ForeignSession { session: session.clone(), user: user.clone() });
        }
        let lifetime = self.lifetime(request)?;
        self.member(user).await?;
        let now = self.clock.now();
        let rest = session.expires().duration_since(now).unwrap_or_default();
        if rest < SHORTEST_LIFETIME {
            return Err(KubeconfigError::SessionEnded(session.clone()));
        }
        let api = self.access.sessions().await?;
        let answer = api.request_token(session, None, lifetime.min(rest)).await;
        let (bearer, expires) = answer.map_err(|error| match error {
            // The Secret or the ServiceAccount is gone.
            ApiError::Status { code: 404 | 409, .. } => KubeconfigError::SessionEnded(session.clone()),
            error => KubeconfigError::request("request a token of", session.as_str())(error),
        })?;
        self.confirm(&api, user, session, None).await?;
        tracing::debug!(%user, %session, expires = %format_time(expires), "a token more");
        Ok(Issued::new(Token::new(bearer, now, expires), session.clone()))
    }

    /// A kubeconfig for a user.
    pub(super) async fn kubeconfig(
        &self,
        request: &MintRequest,
        form: Form,
    ) -> Result<Minted, KubeconfigError> {
        let lifetime = self.lifetime(request)?;
        let mut accounts = self.member(&request.user).await?;
        if let Some(wanted) = &request.account {
            let Some(place) = accounts.iter().position(|account| account == wanted) else {
                let (user, account) = (request.user.clone(), wanted.clone());
                return Err(KubeconfigError::NotInAccount { user, account });
            };
            let first = accounts.remove(place);
            accounts.insert(0, first);
        }
        let endpoint = self.endpoint().await?;
        let (credential, issued) = match form {
            Form::Exec(plugin) => (Credential::Exec(plugin), None),
            Form::Static => {
                let issued = self.new_session(request, lifetime, lifetime).await?;
                (Credential::Token(issued.token.bearer.clone()), Some(issued))
            }
        };
        let kubeconfig = Kubeconfig::new(&self.policy.cluster, endpoint, &request.user, accounts, credential);
        let expires = issued.as_ref().map(|issued| issued.token.expires);
        Ok(Minted { kubeconfig, session: issued.map(|issued| issued.session), expires })
    }

    async fn endpoint(&self) -> Result<Endpoint, KubeconfigError> {
        let found = self.access.endpoint().await?;
        let name = self.policy.tls_server_name.clone();
        Ok(match &self.policy.server {
            // The name that goes with our own address says nothing of another.
            Some(server) => Endpoint { server: server.clone(), tls_server_name: name, ..found },
            None => Endpoint { tls_server_name: name.or(found.tls_server_name), ..found },
        })
    }

    fn lifetime(&self, request: &MintRequest) -> Result<Duration, KubeconfigError> {
        let asked = request.lifetime.unwrap_or(self.policy.default_lifetime);
        let max = self.policy.max_lifetime;
        if asked < SHORTEST_LIFETIME || asked > max {
            return Err(KubeconfigError::Lifetime { asked, max });
        }
        Ok(asked)
    }

    /// The user's accounts, the default first, by a view that is fresh.
    async fn member(&self, user: &UserName) -> Result<Vec<AccountName>, KubeconfigError> {
        let (accounts, default, seen) = match self.memberships.membership(user).await {
            Membership::Unknown(why) => return Err(KubeconfigError::AssociationsUnknown(why)),
            Membership::Known { accounts, default, seen } => (accounts, default, seen),
        };
        let (age, max) =
            (self.clock.now().duration_since(seen).unwrap_or_default(), self.policy.max_staleness);
        if age > max {
            return Err(KubeconfigError::AssociationsStale { age, max });
        }
        if accounts.is_empty() {
            return Err(KubeconfigError::NoAccount(user.clone()));
        }
        let default = default.filter(|default| accounts.contains(default));
        let others = accounts.into_iter().filter(|account| Some(account) != default.as_ref());
        let others: Vec<AccountName> = others.collect();
        Ok(default.into_iter().chain(others).collect())
    }

    /// Makes a session that may be used for `span`, and its first token. The user is a member.
    async fn new_session(
        &self,
        request: &MintRequest,
        lifetime: Duration,
        span: Duration,
    ) -> Result<Issued, KubeconfigError> {
        let user = &request.user;
        let api = self.access.sessions().await?;
        let account = self.service_account(&api, user).await?;
        let now = self.clock.now();
        let session = self.describe(request, account.uid, now, span)?;
        let name = session.name.clone();
        let uid = api.create(&session).await.map_err(KubeconfigError::request("create", name.as_str()))?;
        let token = match api.request_token(&name, Some(&uid), lifetime).await {
            Ok(token) => token,
            Err(error) => {
                self.discard(&api, &name, Some(&uid)).await;
                return Err(match error {
                    // It went between the two requests.
                    ApiError::Status { code: 404, .. } => KubeconfigError::NoServiceAccount {
                        name: name.service_account().to_owned(),
                        waited: Duration::ZERO,
                    },
                    error => KubeconfigError::request("request a token of", name.as_str())(error),
                });
            }
        };
        self.confirm(&api, user, &name, Some(&uid)).await?;
        let (bearer, expires) = token;
        tracing::info!(%user, session = %name, client = %described(&request.client), expires = %format_time(expires), "session made");
        Ok(Issued::new(Token::new(bearer, now, expires), name))
    }

    /// The user's ServiceAccount, once the reconciler has made it.
    async fn service_account(&self, api: &A::Api, user: &UserName) -> Result<StoredAccount, KubeconfigError> {
        let name = names::SERVICE_ACCOUNTS.map(user.as_str());
        let waited = self.policy.account_wait;
        let begin = tokio::time::Instant::now();
        let (mut pause, longest) = PAUSES;
        loop {
            let found = api.account(&name).await;
            match found.map_err(KubeconfigError::request("get ServiceAccount", &*name))? {
                Some(account) if !account.is_leaving => {
                    return self.is_ours(&account, &name, user).map(|()| account);
                }
                _ => {}
            }
            let left = waited.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(KubeconfigError::NoServiceAccount { name, waited });
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = pause.saturating_mul(2).min(longest);
            // Nobody waits for what will not come.
            self.member(user).await?;
        }
    }

    fn is_ours(&self, account: &StoredAccount, name: &str, user: &UserName) -> Result<(), KubeconfigError> {
        let foreign = |why: String| KubeconfigError::ForeignServiceAccount { name: name.to_owned(), why };
        if account.labels.get(names::MANAGED_BY).is_none_or(|manager| manager != names::MANAGER) {
            return Err(foreign(format!("it has no label {}={}", names::MANAGED_BY, names::MANAGER)));
        }
        let key = self.policy.key("user-name");
        match account.annotations.get(&key) {
            Some(found) if found == user.as_str() => Ok(()),
            Some(found) => Err(foreign(format!("its annotation {key} is {found:?}"))),
            None => Err(foreign(format!("it has no annotation {key}"))),
        }
    }

    fn describe(
        &self,
        request: &MintRequest,
        owner_uid: String,
        now: SystemTime,
        span: Duration,
    ) -> Result<NewSession, KubeconfigError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| KubeconfigError::Random(error.to_string()))?;
        let name = SessionName::new(&request.user, now.checked_add(span).unwrap_or(now), random);
        let key = |name| self.policy.key(name);
        let labels = [
            (names::MANAGED_BY.to_owned(), names::MANAGER.to_owned()),
            (key("session"), name.service_account().to_owned()),
        ];
        let annotations = [
            (key("user-name"), request.user.to_string()),
            (key("created"), format_time(now)),
            (key("expires"), format_time(name.expires())),
            (key("client"), described(&request.client)),
        ];
        Ok(NewSession { labels: labels.into(), annotations: annotations.into(), name, owner_uid })
    }

    /// Asks once more whether the user is in an account. Whoever takes the last association away and then ends the
    /// user's sessions finds this one among them, or this finds the association gone.
    async fn confirm(
        &self,
        api: &A::Api,
        user: &UserName,
        session: &SessionName,
        uid: Option<&str>,
    ) -> Result<(), KubeconfigError> {
        let member = self.member(user).await;
        match member {
            Ok(_) => Ok(()),
            Err(error) => {
                if error.kind() == ErrorKind::NotFound || uid.is_some() {
                    self.discard(api, session, uid).await;
                }
                Err(error)
            }
        }
    }

    async fn discard(&self, api: &A::Api, session: &SessionName, uid: Option<&str>) {
        if let Err(error) = api.delete(session, uid).await {
            // Its token was given to nobody, and it ends by itself.
            tracing::warn!(%session, error = %error_chain(&error), "a session is left behind until its end");
        }
    }
}

/// What a client says of itself, on one line and cut.
fn described(client: &str) -> String {
    let mut text = String::new();
    for c in client.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if text.len().saturating_add(c.len_utf8()) > CLIENT_BYTES {
            break;
        }
        text.push(c);
    }
    text
}

/// Writes a kubeconfig for a user with a live association: one context for each account, the default account first.
///
/// With [`Form::Static`] a session is made that ends with its token; with [`Form::Exec`] the command asks for one when
/// it first runs, by [`Minter::issue`].
///
/// # Errors
/// As [`Minter::mint`]; and the user is not in the account that was asked for.
///
/// # Cancellation
/// As [`Minter::mint`].
pub async fn mint_scoped_kubeconfig<A: ControlPlaneAccess, M: Memberships>(
    minter: &Minter<A, M>,
    request: &MintRequest,
    form: Form,
) -> Result<Minted, KubeconfigError> {
    minter.kubeconfig(request, form).await
}
