//! How fast the model is, and how much goes wrong in it.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How long things take; each time is drawn anew from its range.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delays {
    /// From a request to its effect. Default: 1 to 20 ms.
    pub request: RangeInclusive<Duration>,
    /// Until a watch tells of a change. Default: 0 to 30 ms.
    pub watch: RangeInclusive<Duration>,
    /// Until a watch ends by itself. Default: 60 to 290 s.
    pub watch_end: RangeInclusive<Duration>,
    /// Until a quota binds. Default: 50 ms to 3 s.
    pub quota: RangeInclusive<Duration>,
    /// Until a namespace has its ServiceAccount `default`. Default: 10 to 500 ms.
    pub service_account: RangeInclusive<Duration>,
    /// Until a policy of the guard is type-checked, and until it is in force. Default: 50 ms to 1 s.
    pub policy: RangeInclusive<Duration>,
    /// Until what is in a deleted namespace is gone, and again until itself is. Default: 100 ms to 5 s.
    pub namespace: RangeInclusive<Duration>,
}

impl Default for Delays {
    fn default() -> Self {
        let range = |from, to| Duration::from_millis(from)..=Duration::from_millis(to);
        Self {
            request: range(1, 20),
            watch: range(0, 30),
            watch_end: range(60_000, 290_000),
            quota: range(50, 3_000),
            service_account: range(10, 500),
            policy: range(50, 1_000),
            namespace: range(100, 5_000),
        }
    }
}

impl Delays {
    /// Sets how long a request takes.
    #[must_use]
    pub fn request(mut self, value: RangeInclusive<Duration>) -> Self {
        self.request = value;
        self
    }

    /// Sets how long it takes until a watch tells of a change.
    #[must_use]
    pub fn watch(mut self, value: RangeInclusive<Duration>) -> Self {
        self.watch = value;
        self
    }

    /// Sets how long a watch lasts.
    #[must_use]
    pub fn watch_end(mut self, value: RangeInclusive<Duration>) -> Self {
        self.watch_end = value;
        self
    }

    /// Sets how long it takes until a quota binds.
    #[must_use]
    pub fn quota(mut self, value: RangeInclusive<Duration>) -> Self {
        self.quota = value;
        self
    }

    /// Sets how long it takes until a policy of the guard is type-checked, and until it is in force.
    #[must_use]
    pub fn policy(mut self, value: RangeInclusive<Duration>) -> Self {
        self.policy = value;
        self
    }

    /// Sets how long the two halves of the end of a namespace take.
    #[must_use]
    pub fn namespace(mut self, value: RangeInclusive<Duration>) -> Self {
        self.namespace = value;
        self
    }
}

/// How often what goes wrong, in thousandths. The default is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Faults {
    /// Requests that fail before they have an effect: refused with 409, 429 or 500, or no connection.
    pub refused: u32,
    /// Requests that are carried out and whose answer is lost.
    pub lost: u32,
    /// Requests without an answer for 30 s; half of them are carried out.
    pub hanging: u32,
    /// Requests that take up to 10 s.
    pub slow: u32,
    /// Events that a watch ends before, without telling them.
    pub watch_breaks: u32,
    /// Events that a watch keeps back for up to 15 s, with all that follow.
    pub watch_silences: u32,
}

impl Faults {
    /// All of them equally often.
    #[must_use]
    pub fn all(per_mille: u32) -> Self {
        Self {
            refused: per_mille,
            lost: per_mille,
            hanging: per_mille,
            slow: per_mille,
            watch_breaks: per_mille,
            watch_silences: per_mille,
        }
    }

    /// Sets how many requests fail before they have an effect.
    #[must_use]
    pub fn refused(mut self, per_mille: u32) -> Self {
        self.refused = per_mille;
        self
    }

    /// Sets how many answers are lost.
    #[must_use]
    pub fn lost(mut self, per_mille: u32) -> Self {
        self.lost = per_mille;
        self
    }

    /// Sets how many requests hang.
    #[must_use]
    pub fn hanging(mut self, per_mille: u32) -> Self {
        self.hanging = per_mille;
        self
    }

    /// Sets how many requests are slow.
    #[must_use]
    pub fn slow(mut self, per_mille: u32) -> Self {
        self.slow = per_mille;
        self
    }

    /// Sets before how many events a watch ends.
    #[must_use]
    pub fn watch_breaks(mut self, per_mille: u32) -> Self {
        self.watch_breaks = per_mille;
        self
    }

    /// Sets how many events a watch keeps back.
    #[must_use]
    pub fn watch_silences(mut self, per_mille: u32) -> Self {
        self.watch_silences = per_mille;
        self
    }
}
