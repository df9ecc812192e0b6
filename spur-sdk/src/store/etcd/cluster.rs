//! The members of the cluster, and which of them is asked.
//!
//! etcd-client can spread requests over several endpoints, but it counts an endpoint as fit from the moment that its
//! connection is wanted: of two endpoints of which one refuses or never answers, half of all requests fail. So each
//! endpoint has a client of its own here.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, GetOptions, ResponseHeader};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use zeroize::Zeroizing;

use super::failure::{Failure, Fault};
use super::keys::revision_of;
use super::settings::{EtcdSettings, EtcdSettingsError};
use crate::store::Revision;

/// After how long the next endpoint is asked as well, at most.
const PATIENCE: Duration = Duration::from_secs(1);
/// For how long after an answer an endpoint is trusted with a write without being asked first.
const FRESH: Duration = Duration::from_secs(1);
/// After how long without an answer a connection is made anew: one that hangs in its handshake would never end.
const STUCK: Duration = Duration::from_secs(10);
/// How long to wait when no endpoint can at the moment.
const PAUSE: Duration = Duration::from_millis(100);

/// The members of a cluster.
pub(super) struct Cluster {
    endpoints: Vec<Arc<Endpoint>>,
    /// The endpoint that is asked first.
    first: AtomicUsize,
    /// All endpoints, for messages.
    pub(super) place: String,
    pub(super) deadline: Duration,
    /// What is read to see whether an endpoint works.
    probe: Vec<u8>,
    pub(super) newest: Newest,
}

/// The newest revision that was seen; the cluster's own is at least that.
#[derive(Debug, Default)]
pub(super) struct Newest(AtomicU64);

impl Newest {
    pub(super) fn see(&self, revision: Revision) {
        self.0.fetch_max(revision.0, Ordering::Relaxed);
    }

    pub(super) fn revision(&self) -> Revision {
        Revision(self.0.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("endpoints", &self.place).finish_non_exhaustive()
    }
}

/// One member.
struct Endpoint {
    url: String,
    options: ConnectOptions,
    user: Option<(String, Zeroizing<String>)>,
    state: Mutex<State>,
}

struct State {
    connection: Connection,
    /// The first request since the last answer.
    asked: Option<Instant>,
    answered: Option<Instant>,
}

#[derive(Clone)]
struct Connection {
    client: Client,
    signed_in: Arc<OnceCell<()>>,
}

impl Connection {
    /// Opens no connection yet: the first request does.
    async fn new(url: &str, options: &ConnectOptions) -> Result<Self, etcd_client::Error> {
        let client = Client::connect([url], Some(options.clone())).await?;
        Ok(Self { client, signed_in: Arc::new(OnceCell::new()) })
    }
}

impl Endpoint {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(&self) -> Result<Connection, Failure> {
        let now = Instant::now();
        {
            let mut state = self.state();
            if now.duration_since(*state.asked.get_or_insert(now)) < STUCK {
                return Ok(state.connection.clone());
            }
        }
        let connection = Connection::new(&self.url, &self.options).await?;
        let mut state = self.state();
        state.asked = Some(now);
        state.connection = connection.clone();
        Ok(connection)
    }

    async fn call<T, F>(&self, operation: impl FnOnce(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let connection = self.connection().await.map_err(Failure::before_sending)?;
        if let Some((user, password)) = &self.user {
            let sign_in = || async {
                let user = (user.clone(), password.as_str().to_owned());
                connection.client.clone().update_user(Some(user)).await
            };
            let signed_in = connection.signed_in.get_or_try_init(sign_in).await;
            signed_in.map_err(|error| Failure::from(error).before_sending())?;
        }
        let result = operation(connection.client).await;
        let mut state = self.state();
        let works = result.as_ref().err().is_none_or(Failure::is_an_answer);
        state.answered = works.then(Instant::now);
        if works {
            state.asked = None;
        }
        if matches!(result, Err(Failure::SignIn(_))) {
            state.connection.signed_in = Arc::default();
        }
        result
    }

    fn is_fresh(&self) -> bool {
        self.state().answered.is_some_and(|answered| answered.elapsed() < FRESH)
    }
}

impl Cluster {
    pub(super) async fn new(settings: &EtcdSettings, prefix: &str) -> Result<Self, EtcdSettingsError> {
        settings.check()?;
        let options = settings.connect_options();
        let mut endpoints = Vec::new();
        for url in &settings.endpoints {
            let connection = Connection::new(url, &options).await;
            let connection = connection.map_err(|error| EtcdSettingsError::Certificate(error.to_string()))?;
            let state = Mutex::new(State { connection, asked: None, answered: None });
            let (url, user) = (url.clone(), settings.user.clone());
            endpoints.push(Arc::new(Endpoint { url, options: options.clone(), user, state }));
        }
        Ok(Self {
            endpoints,
            first: AtomicUsize::new(0),
            place: settings.endpoints.join(", "),
            deadline: settings.deadline,
            probe: prefix.as_bytes().to_vec(),
            newest: Newest::default(),
        })
    }

    /// The revision of an answer.
    pub(super) fn seen(&self, header: Option<&ResponseHeader>) -> Revision {
        let at = revision_of(header);
        self.newest.see(at);
        at
    }

    /// The endpoints, the one that is to be asked first at the front.
    fn in_order(&self) -> Vec<(usize, Arc<Endpoint>)> {
        let all: Vec<_> = self.endpoints.iter().cloned().enumerate().collect();
        let (before, from) = all.split_at(self.first.load(Ordering::Relaxed).min(all.len()));
        from.iter().chain(before).cloned().collect()
    }

    /// Asks another endpoint first from now on, if that was this one.
    fn avoid(&self, index: usize) {
        let next = index.saturating_add(1).checked_rem(self.endpoints.len()).unwrap_or_default();
        // It may have been changed by another request in the meantime, which is as good.
        let _ = self.first.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Sends a request that may be sent several times, within the deadline.
    pub(super) async fn ask<T, F>(
        &self,
        operation: impl Fn(Client) -> F + Clone + Send + Sync + 'static,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Send + 'static,
    {
        Ok(self.ask_within(self.deadline, operation).await?.1)
    }

    /// Sends a request that may be sent several times; says which endpoint has answered.
    ///
    /// An endpoint that takes its time gets company after a while, and the first answer counts. Ends early where no
    /// endpoint can be reached.
    pub(super) async fn ask_within<T, F>(
        &self,
        within: Duration,
        operation: impl Fn(Client) -> F + Clone + Send + Sync + 'static,
    ) -> Result<(usize, T), Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Send + 'static,
    {
        let end = Instant::now() + within;
        let mut round = Round::new(self.in_order(), (within / 4).min(PATIENCE), end);
        let mut attempts = JoinSet::new();
        loop {
            for (index, endpoint) in round.due(Instant::now()) {
                let operation = operation.clone();
                attempts.spawn(async move { (index, endpoint.call(operation).await) });
            }
            // An attempt that is not at its end goes on in its task.
            let ended = tokio::select! {
                Some(ended) = attempts.join_next() => Some(ended),
                () = sleep_until(round.wake()) => None,
            };
            match ended {
                Some(Ok((index, Ok(value)))) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok((index, value));
                }
                Some(Ok((index, Err(failure)))) if failure.is_passing() => {
                    self.avoid(index);
                    round.failed(index, failure);
                }
                Some(Ok((_, Err(failure)))) => return Err(failure),
                Some(Err(_)) | None => {}
            }
            if round.is_over(Instant::now()) {
                return Err(round.last.unwrap_or(Failure::Late(within)));
            }
        }
    }

    /// Sends a request that must be sent once.
    ///
    /// An endpoint that hangs makes it unclear whether a write has come through. So an endpoint that has not answered
    /// just now is asked something harmless first.
    pub(super) async fn send<T, F>(
        &self,
        operation: impl Fn(Client) -> F + Clone + Send + Sync + 'static,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let end = Instant::now() + self.deadline;
        loop {
            let (index, endpoint) = self.working(end).await?;
            let late = || Failure::Unclear(Fault::new(format!("no answer within {:?}", self.deadline)));
            let result =
                timeout_at(end, endpoint.call(operation.clone())).await.unwrap_or_else(|_| Err(late()));
            match result {
                Err(failure @ (Failure::Unreachable(_) | Failure::NotNow(_) | Failure::SignIn(_))) => {
                    self.avoid(index);
                    if Instant::now() + PAUSE >= end {
                        return Err(failure);
                    }
                    sleep(PAUSE).await;
                }
                Err(failure @ Failure::Unclear(_)) => {
                    self.avoid(index);
                    endpoint.state().answered = None;
                    return Err(failure);
                }
                result => return result,
            }
        }
    }

    /// An endpoint that works.
    async fn working(&self, end: Instant) -> Result<(usize, Arc<Endpoint>), Failure> {
        let first = self.in_order().into_iter().next();
        if let Some((index, endpoint)) = first.filter(|(_, endpoint)| endpoint.is_fresh()) {
            return Ok((index, endpoint));
        }
        let probe = self.probe.clone();
        let asked = self.ask_within(end.saturating_duration_since(Instant::now()), move |mut client| {
            let probe = probe.clone();
            async move {
                let answer = client.get(probe, Some(GetOptions::new().with_count_only())).await?;
                Ok(revision_of(answer.header()))
            }
        });
        let (index, at) = asked.await.map_err(Failure::before_sending)?;
        self.newest.see(at);
        let endpoint = self.endpoints.get(index).cloned();
        Ok((index, endpoint.ok_or_else(|| Failure::NotNow(Fault::new("no endpoint")))?))
    }
}

/// Which endpoints are to be asked when, for one request.
struct Round {
    all: Vec<(usize, Arc<Endpoint>)>,
    /// How many of them have been asked.
    asked: usize,
    /// When the next is.
    company: Instant,
    patience: Duration,
    again: Vec<(Instant, usize)>,
    unreachable: BTreeSet<usize>,
    last: Option<Failure>,
    end: Instant,
}

impl Round {
    fn new(all: Vec<(usize, Arc<Endpoint>)>, patience: Duration, end: Instant) -> Self {
        let company = Instant::now();
        let (again, unreachable) = (Vec::new(), BTreeSet::new());
        Self { all, asked: 0, company, patience, again, unreachable, last: None, end }
    }

    fn due(&mut self, now: Instant) -> Vec<(usize, Arc<Endpoint>)> {
        let mut due: Vec<_> = Vec::new();
        if self.company <= now
            && let Some(next) = self.all.get(self.asked)
        {
            due.push(next.clone());
            self.asked = self.asked.saturating_add(1);
            self.company = now + self.patience;
        }
        let is_due = |(when, _): &mut (Instant, usize)| *when <= now;
        let again: BTreeSet<usize> = self.again.extract_if(.., is_due).map(|(_, index)| index).collect();
        due.extend(self.all.iter().filter(|(index, _)| again.contains(index)).cloned());
        due
    }

    /// When something is due, or the round ends.
    fn wake(&self) -> Instant {
        let company = (self.asked < self.all.len()).then_some(self.company);
        let again = self.again.iter().map(|(when, _)| *when);
        again.chain(company).fold(self.end, Instant::min)
    }

    fn failed(&mut self, index: usize, failure: Failure) {
        let now = Instant::now();
        self.company = now;
        self.again.push((now + PAUSE, index));
        if matches!(failure, Failure::Unreachable(_)) {
            self.unreachable.insert(index);
        } else {
            self.unreachable.remove(&index);
        }
        self.last = Some(failure);
    }

    fn is_over(&self, now: Instant) -> bool {
        now >= self.end || self.unreachable.len() == self.all.len()
    }
}
