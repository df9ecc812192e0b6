//! What a term says of its units.

use std::time::Duration;

use tokio::time::Instant;

use super::report::{Counts, Report, State, Status, Trouble};
use super::term::{PUBLISH, TICK, Term};
use super::units::Unit;
use super::work::{Done, Purpose};
use crate::cluster::plan::removal::annotation;
use crate::cluster::{ClusterApi, EventApi, Key, Kind, LeaseApi, StepError};
use crate::source::Source;

impl<S: Source, A: ClusterApi + LeaseApi + EventApi> Term<'_, '_, S, A> {
    /// What a unit is called.
    pub(super) fn subject(&self, unit: &Unit) -> String {
        match unit {
            Unit::Shared => "what all accounts share".to_owned(),
            Unit::User(name) => format!("user {name}"),
            Unit::Account(namespace) => {
                let account = self.wanted.as_ref().and_then(|wanted| wanted.account_in(namespace));
                account.map_or_else(|| namespace.clone(), |account| format!("account {}", account.account))
            }
        }
    }

    pub(super) fn trouble(
        &self,
        unit: &Unit,
        state: State,
        reason: String,
        error: Option<StepError>,
    ) -> Trouble {
        let subject = self.subject(unit);
        let namespace = match unit {
            Unit::Account(namespace) => Some(namespace.clone()),
            Unit::Shared | Unit::User(_) => None,
        };
        Trouble { subject, namespace, state, reason, error }
    }

    pub(super) fn tell_done(&mut self, done: Done, writes: usize) {
        let account = match &done.unit {
            Unit::Account(namespace) => self.account_of(namespace),
            Unit::Shared | Unit::User(_) => None,
        };
        let namespace = match &done.unit {
            Unit::Account(namespace) => Some(namespace.clone()),
            Unit::Shared | Unit::User(_) => None,
        };
        if done.kept.is_some() || writes == 0 {
            return;
        }
        let report = match (done.purpose, account, namespace) {
            (Purpose::Retire, Some(account), Some(namespace)) => Report::Retired { account, namespace },
            (Purpose::Restore, Some(account), Some(namespace)) => Report::Restored { account, namespace },
            (Purpose::Delete, _, Some(namespace)) => Report::Deleted { namespace },
            (Purpose::Revert, account, _) => {
                Report::Reverted { account, objects: done.objects, what: done.what }
            }
            (_, account, namespace) => match &done.unit {
                Unit::User(name) if done.purpose == Purpose::Remove => {
                    Report::UserRemoved { service_account: name.clone() }
                }
                unit => Report::Written { subject: self.subject(unit), account, namespace, writes },
            },
        };
        self.teller.tell(report);
    }

    /// The account of a namespace, also of one that the source does not name.
    pub(super) fn account_of(&self, namespace: &str) -> Option<spur_sdk::AccountName> {
        let wanted = self.wanted.as_ref()?;
        if let Some(account) = wanted.account_in(namespace) {
            return Some(account.account.clone());
        }
        let contents = self.cache.lock();
        let key = Key::cluster(Kind::Namespace, namespace);
        let live = contents.observed.get(&key)?;
        let name = annotation(live, &wanted.projection().prefix, "account-name");
        name.or_else(|| namespace.strip_prefix("spur-acct-"))?.parse().ok()
    }

    /// Has news published within a second.
    pub(super) fn publish_soon(&mut self) {
        self.publish_at = self.publish_at.min(after(PUBLISH));
    }

    pub(super) fn publish(&mut self) {
        self.publish_at = after(TICK);
        let status = &mut self.teller.status;
        status.leading = true;
        status.synced = self.cache.is_synced();
        status.has_source = self.wanted.is_some();
        status.removals = self.removals.clone().filter(|removals| !removals.vanished.is_empty());
        let mut counts = Counts::default();
        let mut troubles = Vec::new();
        for (unit, tracked) in self.units.iter() {
            if matches!(unit, Unit::Account(_)) {
                let count = match tracked.state {
                    State::InStep => &mut counts.in_step,
                    State::Changing | State::Waiting | State::NotLetIn => &mut counts.changing,
                    State::Failed => &mut counts.failed,
                    State::Refused => &mut counts.refused,
                    State::Paused => &mut counts.paused,
                    State::Retired => &mut counts.retired,
                    State::Held => &mut counts.held,
                };
                *count = count.saturating_add(1);
            }
            let quiet = match tracked.state {
                State::InStep | State::Changing => true,
                State::Retired => tracked.reason.is_empty(),
                _ => false,
            };
            if !quiet && troubles.len() < Status::MOST_TROUBLES {
                troubles.push((unit.clone(), tracked.state, tracked.reason.clone(), tracked.error.clone()));
            }
        }
        let troubles = troubles
            .into_iter()
            .map(|(unit, state, reason, error)| self.trouble(&unit, state, reason, error))
            .collect();
        self.teller.status.counts = counts;
        self.teller.status.troubles = troubles;
        self.teller.publish();
    }
}

/// So long from now.
fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or(now)
}
