//! Values on the command line, and as they are shown.

use spur_sdk::{Limit, MemorySpelling, TresLimits, error_chain, format_tres, parse_minutes, parse_tres};

/// Clears a number on the wire: no limit.
pub(super) const NO_LIMIT: u32 = u32::MAX;

/// What takes a value away.
fn clears(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "" | "-1" | "none" | "unlimited" | "infinite")
}

/// A count; empty, `none` or `-1` is no limit.
pub(super) fn number(text: &str) -> Result<u32, String> {
    if clears(text) {
        return Ok(NO_LIMIT);
    }
    match text.trim().parse::<u32>() {
        Ok(number) if number < NO_LIMIT - 1 => Ok(number),
        _ => Err(format!("is no number from 0 (blocks) to {}; none takes the limit away", NO_LIMIT - 2)),
    }
}

/// A wall time in minutes; empty, `none` or `-1` is no limit.
pub(super) fn minutes(text: &str) -> Result<u32, String> {
    if clears(text) {
        return Ok(NO_LIMIT);
    }
    match parse_minutes(text).map_err(|error| error.to_string())? {
        Limit::Value(minutes) => match u32::try_from(minutes) {
            Ok(minutes) if minutes < NO_LIMIT - 1 => Ok(minutes),
            _ => Err("is too long a time".to_owned()),
        },
        Limit::Unset | Limit::Parent => Ok(NO_LIMIT),
    }
}

/// A time in seconds: a number of them, or `[D-]HH:MM:SS`, `MM:SS`.
pub(super) fn seconds(text: &str) -> Result<u32, String> {
    let wrong = || format!("\"{text}\" is no time: write seconds, MM:SS, HH:MM:SS or D-HH:MM:SS");
    let (days, clock) = match text.trim().split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().map_err(|_| wrong())?, clock),
        None => (0, text.trim()),
    };
    let parts: Vec<u64> = clock.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let clock = match parts.as_slice() {
        [seconds] if days == 0 => *seconds,
        [minutes, seconds] if days == 0 => minutes.saturating_mul(60).saturating_add(*seconds),
        [hours, minutes, seconds] => {
            hours.saturating_mul(3600).saturating_add(minutes.saturating_mul(60)).saturating_add(*seconds)
        }
        _ => return Err(wrong()),
    };
    let total = days.saturating_mul(86400).saturating_add(clock);
    u32::try_from(total)
        .ok()
        .filter(|total| *total < NO_LIMIT)
        .ok_or_else(|| format!("\"{text}\" is too long a time"))
}

/// Amounts in SPUR's spelling; empty or `none` is no limit.
pub(super) fn amounts(text: &str) -> Result<String, String> {
    if text.trim().eq_ignore_ascii_case("none") {
        return Ok(String::new());
    }
    parse_tres(text, MemorySpelling::Spur).map_err(|error| error_chain(&error))?;
    Ok(text.to_owned())
}

/// A text; `none` is none.
#[expect(clippy::unnecessary_wraps, reason = "a parser of clap's")]
pub(super) fn text(text: &str) -> Result<String, String> {
    Ok(if text.eq_ignore_ascii_case("none") { String::new() } else { text.to_owned() })
}

/// A share of at least 0.
pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(share) if share.is_finite() && (0.0..=f64::from(i32::MAX)).contains(&share) => Ok(share),
        _ if text.eq_ignore_ascii_case("parent") => {
            Err("SPUR's accounting keeps no share \"parent\": write a number".to_owned())
        }
        _ => Err(format!("is no number from 0 to {}", i32::MAX)),
    }
}

/// Amounts that SPUR's text sets; a text that cannot be read is none that is known.
pub(super) fn limits(text: &str) -> Option<TresLimits> {
    let mut limits = parse_tres(text, MemorySpelling::Spur).ok()?;
    limits.retain(|_, limit| limit.value().is_some());
    Some(limits)
}

/// Amounts as SPUR spells them, in full.
pub(super) fn spelled(limits: &TresLimits) -> String {
    format_tres(limits, MemorySpelling::Spur)
}

/// A limit that is set.
pub(super) fn set(number: u32) -> Option<u32> {
    (number != NO_LIMIT).then_some(number)
}

/// A number for people; `-` where there is none.
pub(super) fn shown<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A text for people; `-` where there is none.
pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// A list on the wire: names between commas.
pub(super) fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_may_be_taken_away_and_zero_is_one() {
        assert_eq!(number("0"), Ok(0));
        for text in ["", "-1", "None", "unlimited"] {
            assert_eq!(number(text), Ok(NO_LIMIT), "{text}");
        }
        for text in ["4294967295", "-2", "3.5", "many"] {
            assert!(number(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_slurms() {
        assert_eq!(minutes("1-12"), Ok(2160));
        assert_eq!(minutes("90"), Ok(90));
        assert_eq!(minutes("none"), Ok(NO_LIMIT));
        assert_eq!(seconds("00:02:00"), Ok(120));
        assert_eq!(seconds("120"), Ok(120));
        assert_eq!(seconds("1-00:00:01"), Ok(86401));
        assert!(seconds("soon").is_err());
    }

    #[test]
    fn amounts_that_cannot_be_read_say_what_is_meant() {
        assert_eq!(amounts("nodes=2").unwrap_err(), "\"nodes\" is no TRES: did you mean node?");
        assert_eq!(amounts("NONE"), Ok(String::new()));
    }
}
