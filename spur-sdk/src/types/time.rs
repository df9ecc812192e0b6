//! Slurm's spellings of a time limit.

use crate::Limit;

/// A time limit that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimeError {
    /// It has none of the forms that Slurm knows.
    #[error("\"{0}\" is no time: write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS")]
    Syntax(String),
    /// It is longer than fits.
    #[error("\"{0}\" is too long a time")]
    TooLarge(String),
}

/// Reads a time limit, in minutes: `90`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`; `-1`,
/// `unlimited`, `infinite`, `none` and `n/a` for unset, `parent` and `partition_limit` for the parent's.
/// Seconds round up to the next minute, as in Slurm.
///
/// Source: `man sacctmgr`, MaxWall; `man sbatch`, --time.
///
/// # Errors
/// [`TimeError`], with the text.
pub fn parse_minutes(text: &str) -> Result<Limit<u64>, TimeError> {
    let syntax = || TimeError::Syntax(text.to_owned());
    match text.trim().to_ascii_lowercase().as_str() {
        "-1" | "unlimited" | "infinite" | "none" | "n/a" | "4294967295" => return Ok(Limit::Unset),
        "parent" | "partition_limit" => return Ok(Limit::Parent),
        _ => {}
    }
    let number = |part: &str| -> Result<u64, TimeError> {
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return Err(syntax());
        }
        part.parse().map_err(|_| TimeError::TooLarge(text.to_owned()))
    };
    let (days, clock) = match text.trim().split_once('-') {
        Some((days, clock)) => (Some(number(days)?), clock),
        None => (None, text.trim()),
    };
    let parts = clock.split(':').map(number).collect::<Result<Vec<_>, _>>()?;
    let (hours, minutes, seconds) = match (days, parts.as_slice()) {
        (None, &[minutes]) => (0, minutes, 0),
        (None, &[minutes, seconds]) => (0, minutes, seconds),
        (_, &[hours, minutes, seconds]) => (hours, minutes, seconds),
        (Some(_), &[hours]) => (hours, 0, 0),
        (Some(_), &[hours, minutes]) => (hours, minutes, 0),
        _ => return Err(syntax()),
    };
    let total = days
        .unwrap_or(0)
        .checked_mul(24)
        .and_then(|h| h.checked_add(hours))
        .and_then(|h| h.checked_mul(60))
        .and_then(|m| m.checked_add(minutes))
        .and_then(|m| m.checked_add(seconds.div_ceil(60)))
        .ok_or_else(|| TimeError::TooLarge(text.to_owned()))?;
    Ok(Limit::Value(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_time_is_read() {
        for (text, minutes) in [
            ("90", 90),
            ("0", 0),
            ("10:00", 10),
            ("10:01", 11),
            ("36:00:00", 2160),
            ("1-12", 2160),
            ("1-12:30", 2190),
            ("2-00:00:00", 2880),
        ] {
            assert_eq!(parse_minutes(text), Ok(Limit::Value(minutes)), "{text}");
        }
        assert_eq!(parse_minutes("UNLIMITED"), Ok(Limit::Unset));
        assert_eq!(parse_minutes("-1"), Ok(Limit::Unset));
        assert_eq!(parse_minutes("parent"), Ok(Limit::Parent));
        for text in ["", "a", "1-", "1:2:3:4", "-5", "1-2-3", "1.5", "99999999999999999999"] {
            assert!(parse_minutes(text).is_err(), "{text}");
        }
    }
}
