//! What a controller counts, for Prometheus. No label takes a value that a user chooses.

use std::time::{Duration, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use spur_sdk::Classify;

use super::report::{Report, Status};
use crate::cluster::StepError;

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Label {
    kind: &'static str,
}

/// What a controller counts. Clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    leading: Gauge,
    ready: Gauge,
    source: Gauge,
    held: Gauge,
    beat: Gauge,
    accounts: Family<Label, Gauge>,
    reports: Family<Label, Counter>,
    dropped: Family<Label, Counter>,
    failures: Family<Label, Counter>,
    writes: Counter,
    reaction: Histogram,
}

impl Metrics {
    /// Makes the metrics and registers them.
    ///
    /// | metric | type | label `kind` |
    /// |---|---|---|
    /// | `spur_quota_leading` | gauge, 0 or 1 | |
    /// | `spur_quota_ready` | gauge, 0 or 1 | |
    /// | `spur_quota_source_in_force` | gauge, 0 or 1: whether the last reading of the source is in force | |
    /// | `spur_quota_removals_held` | gauge: accounts that are not taken away until somebody confirms it | |
    /// | `spur_quota_last_round_timestamp_seconds` | gauge | |
    /// | `spur_quota_accounts` | gauge | how they stand |
    /// | `spur_quota_reports_total` | counter | what happened |
    /// | `spur_quota_dropped_total` | counter | `event`, `report` |
    /// | `spur_quota_failures_total` | counter | kind of error |
    /// | `spur_quota_writes_total` | counter | |
    /// | `spur_quota_reaction_seconds` | histogram: from a change being seen to its being written | |
    pub fn register(registry: &mut Registry) -> Self {
        let buckets = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];
        let metrics = Self {
            leading: Gauge::default(),
            ready: Gauge::default(),
            source: Gauge::default(),
            held: Gauge::default(),
            beat: Gauge::default(),
            accounts: Family::default(),
            reports: Family::default(),
            dropped: Family::default(),
            failures: Family::default(),
            writes: Counter::default(),
            reaction: Histogram::new(buckets),
        };
        let registry = registry.sub_registry_with_prefix("spur_quota");
        registry.register("leading", "Whether this replica leads", metrics.leading.clone());
        registry.register("ready", "Whether this replica does its work", metrics.ready.clone());
        let help = "Whether the last reading of the source is in force";
        registry.register("source_in_force", help, metrics.source.clone());
        let help = "Accounts that are not taken away until somebody confirms it";
        registry.register("removals_held", help, metrics.held.clone());
        let help = "When the controller last went round";
        registry.register_with_unit("last_round_timestamp", help, Unit::Seconds, metrics.beat.clone());
        registry.register("accounts", "Accounts by how they stand", metrics.accounts.clone());
        registry.register("reports", "What happened", metrics.reports.clone());
        registry.register("dropped", "Events and reports that were dropped", metrics.dropped.clone());
        registry.register("failures", "Rounds of writes that failed", metrics.failures.clone());
        registry.register("writes", "Writes that succeeded", metrics.writes.clone());
        let help = "From a change being seen to its being written";
        registry.register_with_unit("reaction", help, Unit::Seconds, metrics.reaction.clone());
        metrics
    }

    pub(super) fn status(&self, status: &Status) {
        let flag = |gauge: &Gauge, on: bool| {
            gauge.set(i64::from(on));
        };
        flag(&self.leading, status.leading);
        flag(&self.ready, status.is_ready());
        flag(&self.source, status.has_source && status.source_error.is_none());
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.held.set(number(status.counts.held));
        let beat = status.beat.and_then(|beat| beat.duration_since(UNIX_EPOCH).ok());
        self.beat.set(beat.and_then(|beat| i64::try_from(beat.as_secs()).ok()).unwrap_or(0));
        let counts = &status.counts;
        for (kind, count) in [
            ("in-step", counts.in_step),
            ("changing", counts.changing),
            ("failed", counts.failed),
            ("refused", counts.refused),
            ("paused", counts.paused),
            ("retired", counts.retired),
            ("held", counts.held),
        ] {
            self.accounts.get_or_create(&Label { kind }).set(number(count));
        }
    }

    pub(super) fn report(&self, report: &Report) {
        let kind = match report {
            Report::Leading => "leading",
            Report::Following { .. } => "following",
            Report::SourceRead { .. } => "source-read",
            Report::SourceFailed { .. } => "source-failed",
            Report::Unwatched { .. } => "unwatched",
            Report::Written { .. } => "written",
            Report::Reverted { .. } => "reverted",
            Report::Retired { .. } => "retired",
            Report::Restored { .. } => "restored",
            Report::Deleted { .. } => "deleted",
            Report::UserRemoved { .. } => "user-removed",
            Report::RemovalsHeld(_) => "removals-held",
            Report::Trouble(_) => "trouble",
            Report::Settled => "settled",
        };
        self.reports.get_or_create(&Label { kind }).inc();
    }

    pub(super) fn dropped(&self, kind: &'static str) {
        self.dropped.get_or_create(&Label { kind }).inc();
    }

    pub(super) fn worked(&self, writes: usize, failed: Option<&StepError>, took: Duration) {
        self.writes.inc_by(u64::try_from(writes).unwrap_or(0));
        match failed {
            None => self.reaction.observe(took.as_secs_f64()),
            Some(error) => {
                let kind = match error.kind() {
                    spur_sdk::ErrorKind::Invalid => "invalid",
                    spur_sdk::ErrorKind::NotFound => "not-found",
                    spur_sdk::ErrorKind::Conflict => "conflict",
                    spur_sdk::ErrorKind::Denied => "denied",
                    spur_sdk::ErrorKind::Unavailable => "unavailable",
                    spur_sdk::ErrorKind::Timeout => "timeout",
                    spur_sdk::ErrorKind::Cancelled => "cancelled",
                    _ => "internal",
                };
                self.failures.get_or_create(&Label { kind }).inc();
            }
        }
    }
}
