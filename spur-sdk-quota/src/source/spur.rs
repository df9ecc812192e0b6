//! SPUR's accounting over gRPC.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spur_sdk::rpc::messages::site::{WaitForChangeRequest, WaitForChangeRpc};
use spur_sdk::rpc::messages::slurm::{
    ListAccountsRequest, ListAccountsRpc, ListQosRequest, ListQosRpc, ListUsersRequest, ListUsersRpc,
};
use spur_sdk::rpc::{CallError, Client, Code};

use super::lists::Lists;
use super::{Source, SourceError};
use crate::model::Model;

/// How often lists that do not belong together are asked for before the source counts as restless.
const ATTEMPTS: u32 = 5;

/// How long a call waits for a change.
const WAIT: Duration = Duration::from_secs(45);

/// What a call that waits may take beyond that.
const SLACK: Duration = Duration::from_secs(10);

/// How long to wait after a call that failed.
const PAUSE: Duration = Duration::from_secs(2);

/// The accounts of a SPUR controller, ours or SPUR's own.
///
/// A reading is three calls, whatever the number of accounts: `ListAccounts`, `ListUsers`, `ListQos`. It counts as
/// full when the three carry one revision, as our controller's do, or, where they carry none, when two readings in a
/// row are alike. A controller of ours says at once when something has changed; one of SPUR's own is asked every so
/// often.
///
/// # Permissions
/// A caller who sees all accounts: an operator, an admin or, of SPUR's own controller, anybody.
#[derive(Debug, Clone)]
pub struct SpurSource {
    client: Client,
    poll: Duration,
    last: Arc<Mutex<Option<Lists>>>,
}

impl SpurSource {
    /// The accounts of the controller that `client` asks.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, poll: Duration::from_secs(10), last: Arc::default() }
    }

    /// How often a controller that does not tell of changes is asked. Default: 10 s.
    #[must_use]
    pub fn poll(mut self, every: Duration) -> Self {
        self.poll = every;
        self
    }

    async fn lists(&self) -> Result<Lists, CallError> {
        let (accounts, all, qos) =
            (ListAccountsRequest::default(), ListUsersRequest::default(), ListQosRequest::default());
        let accounts = self.client.call::<ListAccountsRpc>(&accounts);
        let users = self.client.call::<ListUsersRpc>(&all);
        let qos = self.client.call::<ListQosRpc>(&qos);
        let (accounts, users, qos) = tokio::try_join!(accounts, users, qos)?;
        Ok(Lists { accounts, users, qos })
    }

    fn last(&self) -> Option<Lists> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn failed(&self, error: CallError) -> SourceError {
        SourceError::Store { store: self.name(), source: Box::new(error) }
    }

    /// Waits for a change by asking every so often.
    async fn ask_until_it_differs(&self) {
        loop {
            tokio::time::sleep(self.poll).await;
            match self.lists().await {
                Ok(lists) if Some(&lists) == self.last().as_ref() => {}
                // A controller that does not answer is read again, which says so.
                _ => return,
            }
        }
    }
}

impl Source for SpurSource {
    fn name(&self) -> String {
        format!("controller {}", self.client.target())
    }

    async fn read(&self) -> Result<Model, SourceError> {
        let mut before: Option<Lists> = None;
        for _ in 0..ATTEMPTS {
            let lists = self.lists().await.map_err(|error| self.failed(error))?;
            if lists.are_partial() {
                return Err(SourceError::Part { service: self.name() });
            }
            let whole = match lists.revisions() {
                [Some(a), Some(b), Some(c)] => a == b && b == c,
                _ => before.as_ref() == Some(&lists),
            };
            if whole {
                let model = lists.model(&self.name());
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(lists);
                return Ok(model);
            }
            before = Some(lists);
        }
        Err(SourceError::Restless { service: self.name(), attempts: ATTEMPTS })
    }

    async fn changed(&self) {
        loop {
            let revision = self.last().and_then(|lists| lists.accounts.revision);
            let Some(revision) = revision else {
                // Not read yet, or by a controller that counts nothing.
                if self.last().is_none() {
                    std::future::pending::<()>().await;
                }
                self.ask_until_it_differs().await;
                return;
            };
            let seconds = u32::try_from(WAIT.as_secs()).unwrap_or(u32::MAX);
            let request = WaitForChangeRequest { revision, timeout_seconds: seconds };
            let answer =
                self.client.call_within::<WaitForChangeRpc>(&request, WAIT.saturating_add(SLACK)).await;
            match answer {
                Ok(answer) if answer.revision != revision => return,
                Ok(_) => {}
                Err(error) if error.refusal().is_some_and(|refusal| refusal.code == Code::Unimplemented) => {
                    self.ask_until_it_differs().await;
                    return;
                }
                Err(error) => {
                    tracing::debug!(
                        error = spur_sdk::error_chain(&error),
                        "the controller does not tell of changes"
                    );
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}
