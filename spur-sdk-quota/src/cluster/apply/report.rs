//! What a run did.

use serde::Serialize;
use spur_sdk::AccountName;

use super::steps::Writes;
use crate::cluster::StepError;
use crate::cluster::plan::{OverQuota, Refusal};

/// How an account ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AccountOutcome {
    /// Everything is written, and the quota bound before anyone was let in.
    Applied,
    /// What restricts is written, nobody new is let in; running again goes on from here.
    NotLetIn {
        /// Why.
        reason: String,
    },
    /// A write failed.
    Failed {
        /// What and why.
        error: StepError,
    },
}

/// How an account ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AccountReport {
    /// The account.
    pub account: AccountName,
    /// How.
    #[serde(flatten)]
    pub outcome: AccountOutcome,
}

/// What a run did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct ApplyReport {
    /// Writes that succeeded.
    pub writes: usize,
    /// Failures of what all accounts share; then nobody was let in.
    pub shared: Vec<StepError>,
    /// Failures of single users' ServiceAccounts: those users get no token, all else goes on.
    pub users: Vec<StepError>,
    /// Accounts that had something to do, sorted by name.
    pub accounts: Vec<AccountReport>,
    /// Accounts that were in step.
    pub unchanged: usize,
    /// What was not written.
    pub refused: Vec<Refusal>,
    /// Accounts that use more than their quota allows; nothing was evicted.
    pub over_quota: Vec<OverQuota>,
    /// Namespaces of ours that the source does not name; nothing was done to them.
    pub unlisted: Vec<String>,
    /// Accounts that somebody has suspended; nothing was done in their namespaces.
    pub paused: Vec<AccountName>,
    /// From the start until everything that restricts was written, in milliseconds.
    pub written_ms: u64,
    /// From then until the last account was let in, in milliseconds: mostly waiting for quotas to bind.
    pub binding_ms: u64,
}

impl ApplyReport {
    /// Whether everything that was planned is done and nothing was refused.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.shared.is_empty()
            && self.users.is_empty()
            && self.refused.is_empty()
            && self.accounts.iter().all(|account| account.outcome == AccountOutcome::Applied)
    }

    /// Whether nothing at all was written.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.writes == 0
    }

    /// Takes in how a step ended; gives the failure to whoever it belongs to.
    pub(super) fn count(&mut self, result: Result<Writes, StepError>) -> Option<StepError> {
        match result {
            Ok(writes) => {
                self.writes = self.writes.saturating_add(writes.count);
                None
            }
            Err(error) => Some(error),
        }
    }
}
