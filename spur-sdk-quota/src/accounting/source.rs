//! The accounts of this process as a source of the projection.

use std::sync::{Arc, Mutex, PoisonError};

use spur_sdk::rpc::Current;
use spur_sdk::rpc::messages::slurm::ListUsersRequest;
use spur_sdk::store::Revision;

use super::wire::{self, View};
use super::{Accounting, AccountingError, Book};
use crate::model::Model;
use crate::source::lists::Lists;
use crate::source::{Source, SourceError};

/// The accounts of this process as a source of the projection, without a way over the network. Clones share what was
/// read last.
#[derive(Debug, Clone)]
pub struct AccountingSource {
    accounts: Current<Accounting>,
    last: Arc<Mutex<Option<Revision>>>,
}

/// What a reading of them is called in messages.
const NAME: &str = "accounts";

impl Book {
    /// The accounts as the projection takes them. Read in full, unless there is no account at all.
    #[must_use]
    pub fn model(&self) -> Model {
        let lists = Lists {
            accounts: wire::accounts(self, &View::All),
            users: wire::users(self, &View::All, &ListUsersRequest::default()),
            qos: wire::qos(self),
        };
        lists.model(NAME)
    }
}

impl AccountingSource {
    /// The accounts that are served at the moment.
    #[must_use]
    pub fn new(accounts: Current<Accounting>) -> Self {
        Self { accounts, last: Arc::default() }
    }
}

impl Source for AccountingSource {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    async fn read(&self) -> Result<Model, SourceError> {
        let accounting = self.accounts.get().ok_or_else(|| SourceError::Store {
            store: NAME.to_owned(),
            source: Box::new(AccountingError::Stopped),
        })?;
        let book = accounting.book();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(book.revision());
        Ok(book.model())
    }

    async fn changed(&self) {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.accounts.get(), last) {
            (Some(accounting), Some(last)) => {
                // One that has stopped is read again, which says so.
                let _ = accounting.changed_since(last).await;
            }
            _ => std::future::pending().await,
        }
    }
}
