//! What is wanted: the source read, projected, and what differs from before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Boxed, FIRST_RETRY, Pending, TICK, Term, Wanted, read};
use crate::cluster::controller::pace::pause;
use crate::cluster::controller::report::Report;
use crate::cluster::controller::units::{Mark, Unit};
use crate::cluster::{ClusterApi, EventApi, LeaseApi, Removals, RemovalsDecision};
use crate::model::Model;
use crate::project::{QuotaProjector, names};
use crate::source::Source;

impl<'a, S: Source, A: ClusterApi + LeaseApi + EventApi> Term<'a, '_, S, A> {
    /// Takes in what the source says, or why it says nothing; and reads on.
    pub(super) fn has_read(&mut self, model: Result<Model, String>, pending: &mut Pending<'a>) {
        let retry = match model {
            Ok(model) => {
                pending.failed_readings = 0;
                self.model = Some(Arc::new(model));
                self.stale = true;
                None
            }
            Err(error) => {
                self.source_failed(error);
                pending.failed_readings = pending.failed_readings.saturating_add(1);
                Some(pause(FIRST_RETRY, Duration::from_mins(1), pending.failed_readings, 0))
            }
        };
        let wait = Some(retry.unwrap_or(Duration::MAX));
        pending.reading = Box::pin(read(self.source, wait, self.options.source_timeout));
    }

    pub(super) fn source_failed(&mut self, error: String) {
        if self.teller.status.source_error.as_ref() != Some(&error) {
            self.teller.status.source_error = Some(error.clone());
            self.teller.tell(Report::SourceFailed { error });
        }
        self.publish();
    }

    pub(super) fn project(&self) -> Option<Boxed<'a, Result<Wanted, String>>> {
        let model = Arc::clone(self.model.as_ref()?);
        let policy = Arc::clone(self.policy);
        let class = self.cache.lock().observed.default_priority_class();
        Some(Box::pin(async move {
            // Seconds of computing for a hundred thousand accounts; the Lease has to be renewed meanwhile.
            let projected = tokio::task::spawn_blocking(move || {
                let projector = QuotaProjector::new(&policy).default_priority_class(class);
                Wanted::new(Box::new(projector.project(&model)))
            });
            projected.await.map_err(|error| format!("project the accounts: {error}"))
        }))
    }

    /// Puts a projection into force, unless nothing of it may be used.
    pub(super) fn projected(&mut self, wanted: Result<Wanted, String>) {
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(error) => return self.source_failed(error),
        };
        if let Some(reason) = wanted.refused().first() {
            return self.source_failed(reason.clone());
        }
        let projection = wanted.projection();
        if projection.known.is_empty() {
            return self.source_failed("the source names no account".to_owned());
        }
        let read = Report::SourceRead {
            accounts: projection.known.len(),
            problems: projection.problems.len(),
            full: projection.completeness == crate::model::Completeness::Full,
        };
        self.teller.status.source_error = None;
        self.publish_soon();
        self.teller.tell(read);
        self.judge_removals = true;
        let before = self.wanted.replace(wanted);
        match before {
            None => self.mark_everything(),
            Some(before) => self.mark_changes(&before),
        }
    }

    /// Marks what differs between two projections, before all that waits already.
    pub(super) fn mark_changes(&mut self, before: &Wanted) {
        let Some(now) = &self.wanted else { return };
        let mut changed = Vec::new();
        let same = |namespace| match (before.account_in(namespace), now.account_in(namespace)) {
            (Some(old), Some(new)) => {
                old.objects == new.objects
                    && old.unread_members == new.unread_members
                    && before.stopped().get(&old.account) == now.stopped().get(&new.account)
            }
            _ => false,
        };
        let accounts = before.accounts().chain(now.accounts());
        changed.extend(
            accounts
                .filter(|(namespace, _)| !same(namespace))
                .map(|(namespace, _)| Unit::Account(namespace.to_owned())),
        );
        let (users_before, users_now): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (before.users().collect(), now.users().collect());
        let users = users_before.keys().chain(users_now.keys());
        changed.extend(
            users
                .filter(|name| users_before.get(*name) != users_now.get(*name))
                .map(|name| Unit::User((*name).to_owned())),
        );
        let shared = |wanted: &Wanted| {
            let shared = wanted.projection().shared.iter();
            shared.filter(|object| object.kind() != "ServiceAccount").cloned().collect::<Vec<_>>()
        };
        if shared(before) != shared(now) {
            changed.push(Unit::Shared);
        }
        let completeness = before.projection().completeness != now.projection().completeness;
        // Users that lost their last membership are told by what the source knows, not by objects.
        if completeness || before.projection().known_users != now.projection().known_users {
            let gone = before.projection().known_users.difference(&now.projection().known_users);
            changed.extend(gone.map(|user| Unit::User(names::SERVICE_ACCOUNTS.map(user.as_str()))));
        }
        for unit in changed {
            self.mark(unit, Mark::News);
        }
        if completeness {
            self.mark_everything();
        }
    }

    /// Judges anew what may be taken away, and marks what that concerns.
    pub(super) fn judge_removals(&mut self) {
        // What was retired a day ago counts no more.
        let vanished = self.removals.as_ref().is_some_and(|removals| !removals.vanished.is_empty());
        let aged = vanished && self.judged_removals.elapsed() >= TICK;
        if !std::mem::take(&mut self.judge_removals) && !aged {
            return;
        }
        self.judged_removals = Instant::now();
        let Some(wanted) = &self.wanted else { return };
        let now = wanted.removals(&self.cache.lock().observed, self.options.clock.now());
        let before = self.removals.replace(now.clone());
        if before.as_ref() == Some(&now) {
            return;
        }
        self.publish_soon();
        let allowed_before = before.as_ref().is_some_and(Removals::allowed);
        let vanished_before = before.iter().flat_map(|before| &before.vanished);
        let concerned: Vec<_> =
            vanished_before.chain(&now.vanished).map(|namespace| Unit::Account(namespace.clone())).collect();
        for unit in concerned {
            self.mark(unit, Mark::Later);
        }
        // A confirmation that has served is taken away.
        self.mark(Unit::Shared, Mark::Later);
        if allowed_before != now.allowed() {
            self.mark_everything();
        }
        let held = |removals: &Removals| removals.decision == RemovalsDecision::Held;
        let news = before.as_ref().is_none_or(|before| !held(before) || before.digest != now.digest);
        if held(&now) && news {
            self.teller.tell(Report::RemovalsHeld(now));
        }
    }
}
