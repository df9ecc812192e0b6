//! How a controller runs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use spur_sdk::{Clock, SystemClock};
use tokio::sync::{mpsc, watch};

use super::report::{Report, Status};
use crate::cluster::LeaseSettings;
use crate::cluster::lease::LONGEST_LEASE;

/// The shortest grace period. What was retired within a day is the memory of the guard against mass removal.
pub const SHORTEST_GRACE: Duration = Duration::from_hours(24);

/// How a controller runs.
#[derive(Clone)]
#[non_exhaustive]
pub struct ControllerOptions {
    /// The Lease that replicas lead by; `None` for a host that sees to it that one runs at a time. Default: `Lease`
    /// `kube-system/spur-quota`.
    pub lease: Option<LeaseSettings>,
    /// Accounts and users that are written at the same time. Default: 16.
    pub concurrency: usize,
    /// Takes over namespaces, roles and policies that exist under our names and are not ours. Default: no.
    pub adopt: bool,
    /// How long quotas may take to bind before that is reported; they are waited for beyond. Default: 60 s.
    pub binding_timeout: Duration,
    /// How long a reading of the source may take. Default: 60 s.
    pub source_timeout: Duration,
    /// Deletes namespaces so long after their accounts were retired, unless they hold running pods or
    /// PersistentVolumeClaims; at least [`SHORTEST_GRACE`]. Default: never.
    pub delete_retired_after: Option<Duration>,
    /// How long a grace period must have been over, by a clock that nobody sets, before a namespace is deleted: the
    /// time of day may be wrong for a while, and there is no way back. Default: 1 h.
    pub deletion_delay: Duration,
    /// Where every report goes as it happens. When the channel is full, reports are dropped and counted.
    pub reports: Option<mpsc::Sender<Report>>,
    /// Where the state as a whole goes, at most every second while there is work.
    pub status: Option<watch::Sender<Status>>,
    /// The time of day, for annotations and Events. Default: the system's.
    pub clock: Arc<dyn Clock>,
    /// What is counted.
    #[cfg(feature = "metrics")]
    pub metrics: Option<super::Metrics>,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            lease: Some(LeaseSettings::default()),
            concurrency: 16,
            adopt: false,
            binding_timeout: Duration::from_mins(1),
            source_timeout: Duration::from_mins(1),
            delete_retired_after: None,
            deletion_delay: Duration::from_hours(1),
            reports: None,
            status: None,
            clock: Arc::new(SystemClock),
            #[cfg(feature = "metrics")]
            metrics: None,
        }
    }
}

impl fmt::Debug for ControllerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerOptions")
            .field("lease", &self.lease)
            .field("concurrency", &self.concurrency)
            .field("adopt", &self.adopt)
            .field("binding_timeout", &self.binding_timeout)
            .field("source_timeout", &self.source_timeout)
            .field("delete_retired_after", &self.delete_retired_after)
            .finish_non_exhaustive()
    }
}

impl ControllerOptions {
    /// Sets the Lease.
    #[must_use]
    pub fn lease(mut self, value: Option<LeaseSettings>) -> Self {
        self.lease = value;
        self
    }

    /// Sets how many accounts and users are written at the same time.
    #[must_use]
    pub fn concurrency(mut self, value: usize) -> Self {
        self.concurrency = value.max(1);
        self
    }

    /// Takes over what is not ours.
    #[must_use]
    pub fn adopt(mut self, value: bool) -> Self {
        self.adopt = value;
        self
    }

    /// Sets after which time a quota that does not bind is reported.
    #[must_use]
    pub fn binding_timeout(mut self, value: Duration) -> Self {
        self.binding_timeout = value;
        self
    }

    /// Sets how long a reading of the source may take.
    #[must_use]
    pub fn source_timeout(mut self, value: Duration) -> Self {
        self.source_timeout = value;
        self
    }

    /// Sets the grace period after which retired namespaces are deleted.
    #[must_use]
    pub fn delete_retired_after(mut self, value: Option<Duration>) -> Self {
        self.delete_retired_after = value;
        self
    }

    /// Sets how long a grace period must have been over before a namespace is deleted.
    #[must_use]
    pub fn deletion_delay(mut self, value: Duration) -> Self {
        self.deletion_delay = value;
        self
    }

    /// Sends every report there.
    #[must_use]
    pub fn reports(mut self, value: mpsc::Sender<Report>) -> Self {
        self.reports = Some(value);
        self
    }

    /// Publishes the state there.
    #[must_use]
    pub fn status(mut self, value: watch::Sender<Status>) -> Self {
        self.status = Some(value);
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, value: Arc<dyn Clock>) -> Self {
        self.clock = value;
        self
    }

    /// Counts there.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn metrics(mut self, value: super::Metrics) -> Self {
        self.metrics = Some(value);
        self
    }

    pub(super) fn check(&self) -> Result<(), ControllerError> {
        let wrong =
            |field, message: &str| Err(ControllerError::Options { field, message: message.to_owned() });
        if self.delete_retired_after.is_some_and(|grace| grace < SHORTEST_GRACE) {
            return wrong("delete_retired_after", "is less than 24 h");
        }
        if let Some(lease) = &self.lease {
            if lease.identity.is_empty() {
                return wrong("lease.identity", "is empty");
            }
            if lease.namespace.is_empty() || lease.name.is_empty() {
                return wrong("lease", "needs a namespace and a name");
            }
            let ordered = lease.renew_every < lease.give_up_after && lease.give_up_after < lease.duration;
            if !ordered || lease.look_every.is_zero() {
                return wrong(
                    "lease",
                    "wants renew_every < give_up_after < duration, and looks now and then",
                );
            }
            let whole = lease.duration.subsec_nanos() == 0;
            if !whole || !(1..=LONGEST_LEASE.as_secs()).contains(&lease.duration.as_secs()) {
                return wrong("lease.duration", "is not a whole number of seconds from 1 to 600");
            }
        }
        Ok(())
    }
}

/// A controller cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// An option has no sense.
    #[error("{field} {message}")]
    Options {
        /// The option.
        field: &'static str,
        /// What is wrong.
        message: String,
    },
}

impl spur_sdk::Classify for ControllerError {
    fn kind(&self) -> spur_sdk::ErrorKind {
        spur_sdk::ErrorKind::Invalid
    }
}
