//! Times as Kubernetes writes them: RFC 3339, UTC, whole seconds.

use std::time::SystemTime;

use k8s_openapi::jiff::{Timestamp, Unit};

/// `2026-11-30T12:00:00Z`.
pub(crate) fn format_time(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or_default();
    time.round(Unit::Second).unwrap_or(time).to_string()
}

pub(crate) fn parse_time(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_it_was_written() {
        let time = parse_time("2026-11-30T12:00:00Z").unwrap_or(SystemTime::UNIX_EPOCH);
        assert_eq!(format_time(time), "2026-11-30T12:00:00Z");
        assert_eq!(parse_time("yesterday"), None);
    }
}
