//! Messages and calls, as `proto/slurm.proto` and `proto/site.proto` describe them.

/// SPUR's own; what we add to them has numbers from 1000 up.
#[allow(missing_docs, clippy::pedantic, reason = "generated; the protocol descriptions have the comments")]
pub mod slurm {
    include!(concat!(env!("OUT_DIR"), "/slurm.rs"));
}

/// What this SDK adds; also as [`site`].
pub mod spur {
    /// Version 1.
    #[allow(
        missing_docs,
        clippy::pedantic,
        reason = "generated; the protocol descriptions have the comments"
    )]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/spur.v1.rs"));
    }
}

pub use spur::v1 as site;

/// gRPC's health check.
#[allow(missing_docs, clippy::pedantic, reason = "generated; the protocol descriptions have the comments")]
pub mod health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

use std::time::{Duration, SystemTime};

/// A time as messages have it.
pub type Timestamp = prost_types::Timestamp;

/// A time for a message.
#[must_use]
pub fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::from(time)
}

/// A message's time; `None` where it is before 1970 or cannot be held.
#[must_use]
pub fn time(timestamp: &Timestamp) -> Option<SystemTime> {
    let seconds = u64::try_from(timestamp.seconds).ok()?;
    let nanoseconds =
        u32::try_from(timestamp.nanos).ok().filter(|nanoseconds| *nanoseconds < 1_000_000_000)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}
