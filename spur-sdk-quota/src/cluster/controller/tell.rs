//! Everything that a controller says, at one place: logs, Events, reports, counters, the status.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use spur_sdk::error_chain;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;

use super::ControllerOptions;
use super::report::{Report, State, Status, Trouble};
use crate::cluster::{Event, EventKind};
use crate::project::names;

/// Events that wait to be written; what does not fit is dropped and counted.
const QUEUE: usize = 256;

/// The same reason in the same namespace is written once in this time.
const ONCE_IN: Duration = Duration::from_mins(1);

/// The reason of an Event about removals that are held.
const HELD: &str = "RemovalsHeld";

/// Says things.
pub(super) struct Teller<'a> {
    options: &'a ControllerOptions,
    events: VecDeque<Event>,
    last: BTreeMap<(String, &'static str, String), Instant>,
    pub(super) status: Status,
}

/// An Event to be: where, how urgent, why, what.
type News = (String, EventKind, &'static str, String);

impl<'a> Teller<'a> {
    pub(super) fn new(options: &'a ControllerOptions) -> Self {
        Self { options, events: VecDeque::new(), last: BTreeMap::new(), status: Status::default() }
    }

    /// The next Event to write.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Events are about what this replica did; one that leads no more is silent.
    pub(super) fn forget_events(&mut self) {
        self.events.clear();
    }

    pub(super) fn event_failed(&self, error: &crate::cluster::ApiError) {
        tracing::debug!(error = %error_chain(error), "an Event is not written");
        self.count_dropped("event");
    }

    /// Publishes the status.
    pub(super) fn publish(&mut self) {
        self.status.beat = Some(self.options.clock.now());
        #[cfg(feature = "metrics")]
        if let Some(metrics) = &self.options.metrics {
            metrics.status(&self.status);
        }
        if let Some(channel) = &self.options.status {
            channel.send_replace(self.status.clone());
        }
    }

    pub(super) fn tell(&mut self, report: Report) {
        log(&report);
        if let Some((namespace, kind, reason, message)) = news(&report) {
            self.event(&namespace, kind, reason, message);
        }
        #[cfg(feature = "metrics")]
        if let Some(metrics) = &self.options.metrics {
            metrics.report(&report);
        }
        if let Some(channel) = &self.options.reports
            && let Err(TrySendError::Full(_)) = channel.try_send(report)
        {
            self.count_dropped("report");
        }
    }

    #[cfg_attr(
        not(feature = "metrics"),
        expect(clippy::unused_self, reason = "the counter is in the options")
    )]
    fn count_dropped(&self, what: &'static str) {
        #[cfg(feature = "metrics")]
        if let Some(metrics) = &self.options.metrics {
            metrics.dropped(what);
        }
        tracing::debug!(what, "dropped");
    }

    fn event(&mut self, namespace: &str, kind: EventKind, reason: &'static str, message: String) {
        let now = Instant::now();
        if self.last.len() > 10_000 {
            self.last.retain(|_, at| now.saturating_duration_since(*at) < ONCE_IN);
        }
        // Removals that are held for other accounts are other news.
        let what = if reason == HELD { message.clone() } else { String::new() };
        let key = (namespace.to_owned(), reason, what);
        if self.last.get(&key).is_some_and(|at| now.saturating_duration_since(*at) < ONCE_IN) {
            return;
        }
        if self.events.len() >= QUEUE {
            return self.count_dropped("event");
        }
        self.last.insert(key, now);
        self.events.push_back(Event::new(namespace, kind, reason, message, self.options.clock.now()));
    }
}

fn log(report: &Report) {
    match report {
        Report::Leading => tracing::info!("leading"),
        Report::Following { leader, trouble: Some(error) } => {
            tracing::warn!(leader, error, "the Lease cannot be had");
        }
        Report::Following { leader, trouble: None } => tracing::info!(leader, "following"),
        Report::SourceRead { accounts, problems, full } => {
            tracing::info!(accounts, problems, full, "source read");
        }
        Report::SourceFailed { error } => {
            tracing::warn!(error, "the source cannot be used; what was read before stays in force");
        }
        Report::Unwatched { resource, error } => tracing::warn!(resource, error, "cannot be watched"),
        Report::Written { subject, writes, .. } => tracing::info!(subject, writes, "written"),
        Report::Reverted { account, what, .. } => {
            tracing::info!(account = account.as_ref().map(tracing::field::display), what, "put back");
        }
        Report::Retired { account, namespace } => tracing::warn!(%account, namespace, "retired"),
        Report::Restored { account, namespace } => tracing::info!(%account, namespace, "restored"),
        Report::Deleted { namespace } => tracing::warn!(namespace, "deleted after the grace period"),
        Report::UserRemoved { service_account } => tracing::info!(service_account, "user removed"),
        Report::RemovalsHeld(removals) => {
            tracing::warn!(
                vanished = removals.vanished.len(),
                recent = removals.recent.len(),
                accounts = removals.accounts,
                confirm = removals.digest,
                "removals are held"
            );
        }
        Report::Trouble(Trouble { subject, state, reason, .. }) => {
            tracing::warn!(subject, ?state, reason, "not in step");
        }
        Report::Settled => tracing::info!("settled"),
    }
}

/// What is worth an Event, and in which namespace. What has no namespace of ours stands in that of the users.
fn news(report: &Report) -> Option<News> {
    let users = || names::USERS_NAMESPACE.to_owned();
    Some(match report {
        Report::Reverted { objects, what, .. } => {
            let namespace = objects.first().map(|key| match key.kind {
                crate::cluster::Kind::Namespace => key.name.clone(),
                _ => key.namespace.clone().unwrap_or_else(users),
            });
            (namespace?, EventKind::Normal, "Reverted", format!("Put back: {what}"))
        }
        Report::Retired { account, namespace } => (
            namespace.clone(),
            EventKind::Warning,
            "Retired",
            format!(
                "Account {account} is gone from the source: access removed, quota closed, nothing deleted"
            ),
        ),
        Report::Restored { account, namespace } => (
            namespace.clone(),
            EventKind::Normal,
            "Restored",
            format!("Account {account} is in the source again"),
        ),
        Report::Deleted { namespace } => (
            users(),
            EventKind::Warning,
            "Deleted",
            format!("Namespace {namespace} was deleted: retired for longer than the grace period"),
        ),
        Report::UserRemoved { service_account } => (
            users(),
            EventKind::Normal,
            "UserRemoved",
            format!("ServiceAccount {service_account} was deleted: the user is in no account any more"),
        ),
        Report::RemovalsHeld(removals) => (
            users(),
            EventKind::Warning,
            HELD,
            format!(
                "{} accounts vanished from the source ({} more in the last 24 h, of {}); nothing is taken away \
                 until confirmed: spur quota confirm {}",
                removals.vanished.len(),
                removals.recent.len(),
                removals.accounts,
                removals.digest
            ),
        ),
        Report::Trouble(trouble) => return trouble_news(trouble),
        Report::Leading
        | Report::Following { .. }
        | Report::SourceRead { .. }
        | Report::SourceFailed { .. }
        | Report::Unwatched { .. }
        | Report::Written { .. }
        | Report::Settled => return None,
    })
}

fn trouble_news(trouble: &Trouble) -> Option<News> {
    let (kind, reason, own) = match trouble.state {
        State::Failed => (EventKind::Warning, "Failed", true),
        State::Waiting => (EventKind::Warning, "QuotaNotBound", true),
        State::Paused => (EventKind::Normal, "Paused", true),
        // The namespace may be somebody else's.
        State::Refused => (EventKind::Warning, "Refused", false),
        State::Retired => (EventKind::Warning, "Kept", true),
        State::NotLetIn | State::InStep | State::Changing | State::Held => return None,
    };
    let namespace = trouble.namespace.clone().filter(|_| own);
    let namespace = namespace.unwrap_or_else(|| names::USERS_NAMESPACE.to_owned());
    Some((namespace, kind, reason, format!("{}: {}", trouble.subject, trouble.reason)))
}
