//! Whoever is in no account any more is locked out.

use std::collections::BTreeSet;
use std::time::Duration;

use spur_sdk::{UserName, error_chain};
use tokio::time::timeout;

use super::{ControlPlaneAccess, Memberships, Minter};
use crate::accounting::{Accounting, Book};

/// The pause before what could not be ended is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Ends the sessions of users who are in no account any more, now and whenever somebody leaves the last one; returns
/// when the accounts are not served any more. What cannot be ended is tried again every 5 s.
///
/// The reconciler takes such users' ServiceAccounts away, which voids all their tokens, but not while it holds
/// removals for somebody to confirm.
///
/// # Cancellation
/// Some sessions may go on; the next call ends them.
pub async fn lock_out<A: ControlPlaneAccess, M: Memberships>(accounting: &Accounting, minter: &Minter<A, M>) {
    let mut book = accounting.book();
    // Who left while nobody led shows in the sessions alone.
    let mut owed = true;
    loop {
        if owed {
            owed = !ended(minter).await;
        }
        let change = accounting.changed_since(book.revision());
        let changed =
            if owed { timeout(RETRY, change).await.unwrap_or(Ok(book.revision())) } else { change.await };
        if changed.is_err() {
            return;
        }
        let now = accounting.book();
        owed |= users(&book).difference(&users(&now)).next().is_some();
        book = now;
    }
}

/// The users who may be let into anything.
fn users(book: &Book) -> BTreeSet<&UserName> {
    let coordinators = book.accounts().values().flat_map(|account| &account.coordinators);
    book.members().keys().map(|(_, user)| user).chain(coordinators).collect()
}

/// Whether all sessions of users who are gone have ended.
async fn ended<A: ControlPlaneAccess, M: Memberships>(minter: &Minter<A, M>) -> bool {
    let error = match minter.revoke_gone().await {
        Ok(report) => {
            if !report.removed.is_empty() {
                tracing::info!(
                    sessions = report.removed.len(),
                    "sessions of users without an account have ended"
                );
            }
            report.failed.into_iter().next().map(|(_, error)| error)
        }
        Err(error) => Some(error),
    };
    if let Some(error) = &error {
        tracing::warn!(error = error_chain(error), "sessions of users without an account go on");
    }
    error.is_none()
}
