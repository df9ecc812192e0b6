//! CPU and memory as integers, and the two ways memory is spelled.

use std::fmt;

use crate::{Classify, ErrorKind};

/// The largest quantity that is taken: what Kubernetes keeps in an `int64`.
const MAX: u128 = i64::MAX as u128;

/// A quantity that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// It is not a number, with or without a suffix.
    #[error("\"{text}\" is no {what}: write {expected}")]
    Syntax {
        /// What was expected, such as `amount of memory`.
        what: &'static str,
        /// The text.
        text: String,
        /// How to write it.
        expected: &'static str,
    },
    /// It is more than a signed 64-bit integer holds.
    #[error("\"{0}\" is more than Kubernetes can count")]
    TooLarge(String),
}

impl Classify for QuantityError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

/// CPU time share in thousandths of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millicores(pub u64);

impl Millicores {
    /// Reads `16`, `0.5` or `500m`.
    ///
    /// # Errors
    /// [`QuantityError`]; parts of a millicore are refused.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let syntax = || QuantityError::Syntax {
            what: "number of CPUs",
            text: text.to_owned(),
            expected: "cores (16, 0.5) or millicores (500m)",
        };
        let (number, scale) = match text.trim().strip_suffix('m') {
            Some(number) => (number, 1),
            None => (text.trim(), 1000),
        };
        let (value, exact) = scaled(number, scale).ok_or_else(syntax)?;
        if !exact {
            return Err(syntax());
        }
        in_range(value, text).map(Self)
    }
}

/// Kubernetes' spelling: whole cores as a bare number, otherwise millicores with `m`.
impl fmt::Display for Millicores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 1000, self.0 % 1000) {
            (cores, 0) => write!(f, "{cores}"),
            _ => write!(f, "{}m", self.0),
        }
    }
}

/// How a reader's source spells memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemorySpelling {
    /// A bare number is megabytes of 10^6 bytes; suffixes are Kubernetes' (`k` `M` `G` `T` `P` decimal, `Ki`
    /// `Mi` `Gi` `Ti` `Pi` binary). SPUR's wire and our own files.
    Spur,
    /// A bare number is mebibytes; `K` `M` `G` `T` `P` are powers of 1024. Slurm's dumps, tables and REST.
    Slurm,
}

/// Memory or storage in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    /// 10^6 bytes.
    pub const MB: u64 = 1_000_000;
    /// 2^20 bytes.
    pub const MIB: u64 = 1 << 20;

    /// Reads an amount of memory. Decimals are taken (`2.50G`); a part of a byte is rounded down.
    ///
    /// # Errors
    /// [`QuantityError`], with what the spelling expects.
    pub fn parse(text: &str, spelling: MemorySpelling) -> Result<Self, QuantityError> {
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
        let (number, suffix) = trimmed.split_at(split);
        let scale = match spelling {
            MemorySpelling::Spur => decimal_or_binary(suffix),
            MemorySpelling::Slurm => power_of_1024(suffix),
        };
        let value = scale.and_then(|scale| scaled(number, scale)).ok_or_else(|| QuantityError::Syntax {
            what: "amount of memory",
            text: text.to_owned(),
            expected: match spelling {
                MemorySpelling::Spur => "megabytes (32768) or a suffix: k M G T P (decimal), Ki Mi Gi Ti Pi",
                MemorySpelling::Slurm => "mebibytes (32768) or a suffix: K M G T P (powers of 1024)",
            },
        })?;
        in_range(value.0, text).map(Self)
    }

    /// Whole megabytes of 10^6 bytes, rounded down: how SPUR's wire has it.
    #[must_use]
    pub fn megabytes(self) -> u64 {
        self.0 / Self::MB
    }

    /// Whole mebibytes, rounded down: how a Slurm dump has it.
    #[must_use]
    pub fn mebibytes(self) -> u64 {
        self.0 / Self::MIB
    }
}

/// Kubernetes' spelling: a whole number of MB as `M`, otherwise of MiB as `Mi`, otherwise bytes.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0"),
            bytes if bytes % Self::MB == 0 => write!(f, "{}M", bytes / Self::MB),
            bytes if bytes % Self::MIB == 0 => write!(f, "{}Mi", bytes / Self::MIB),
            bytes => write!(f, "{bytes}"),
        }
    }
}

fn decimal_or_binary(suffix: &str) -> Option<u64> {
    Some(match suffix {
        "" | "M" => 1_000_000,
        "k" => 1_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => return None,
    })
}

/// Slurm takes `G`, `g`, `GB` and `GiB` for the same (`src/common/slurm_protocol_defs.c`, suffix_mult).
fn power_of_1024(suffix: &str) -> Option<u64> {
    let upper = suffix.to_ascii_uppercase();
    let letter = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    Some(match letter {
        "" if suffix.is_empty() => 1 << 20,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        "P" => 1 << 50,
        _ => return None,
    })
}

/// A decimal number times `scale`: the whole part of the product and whether that is all of it.
pub(crate) fn scaled(number: &str, scale: u64) -> Option<(u128, bool)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty()
        || !digits(whole)
        || !digits(fraction)
        || (fraction.is_empty() && number.contains('.'))
    {
        return None;
    }
    // Nineteen digits are more than any limit has; more would leave 128 bits.
    if fraction.len() > 18 {
        return None;
    }
    let scale = u128::from(scale);
    // A number too long for 128 bits is certainly too large; the caller compares with its own maximum.
    let whole = whole.parse::<u128>().unwrap_or(u128::MAX).saturating_mul(scale);
    let mut part = 0;
    let mut exact = true;
    if !fraction.is_empty() {
        let divisor = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let product = fraction.parse::<u128>().ok()?.checked_mul(scale)?;
        part = product.checked_div(divisor)?;
        exact = product.checked_rem(divisor)? == 0;
    }
    Some((whole.saturating_add(part), exact))
}

pub(crate) fn in_range(value: u128, text: &str) -> Result<u64, QuantityError> {
    match u64::try_from(value) {
        Ok(small) if value <= MAX => Ok(small),
        _ => Err(QuantityError::TooLarge(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_the_spelling_of_its_source() {
        use MemorySpelling::{Slurm, Spur};
        for (text, spelling, bytes) in [
            ("32768", Spur, 32_768_000_000),
            ("1Ti", Spur, 1 << 40),
            ("4k", Spur, 4_000),
            ("1.5Gi", Spur, 1_610_612_736),
            ("0", Spur, 0),
            ("131072", Slurm, 128 << 30),
            ("128G", Slurm, 128 << 30),
            ("128g", Slurm, 128 << 30),
            ("2.50G", Slurm, 2_684_354_560),
            ("1500G", Slurm, 1500 << 30),
            ("512K", Slurm, 512 << 10),
        ] {
            assert_eq!(Bytes::parse(text, spelling), Ok(Bytes(bytes)), "{text} {spelling:?}");
        }
        for (text, spelling) in [
            ("1K", Spur),
            ("1gi", Spur),
            ("", Spur),
            ("-1", Spur),
            ("1.", Spur),
            (".5G", Spur),
            ("1e3", Spur),
            ("1X", Slurm),
            ("", Slurm),
            ("1 2", Slurm),
            ("B", Slurm),
            ("1B", Slurm),
        ] {
            assert!(matches!(Bytes::parse(text, spelling), Err(QuantityError::Syntax { .. })), "{text}");
        }
        for text in ["9223372036854775808k", "99999999999999999999999999999999999999999999"] {
            assert_eq!(Bytes::parse(text, Spur), Err(QuantityError::TooLarge(text.to_owned())));
        }
    }

    #[test]
    fn memory_is_written_in_the_largest_unit_that_is_exact() {
        assert_eq!(Bytes(32_768_000_000).to_string(), "32768M");
        assert_eq!(Bytes(1 << 40).to_string(), "1048576Mi");
        assert_eq!(Bytes(1).to_string(), "1");
        assert_eq!(Bytes(0).to_string(), "0");
        // 1000000 MiB is a whole number of MB as well; MB comes first.
        assert_eq!(Bytes(1_000_000 << 20).to_string(), "1048576M");
    }

    #[test]
    fn cpus_are_read_to_the_millicore() {
        assert_eq!(Millicores::parse("16"), Ok(Millicores(16_000)));
        assert_eq!(Millicores::parse("0.5"), Ok(Millicores(500)));
        assert_eq!(Millicores::parse("250m"), Ok(Millicores(250)));
        assert_eq!(Millicores(1500).to_string(), "1500m");
        assert_eq!(Millicores(16_000).to_string(), "16");
        for text in ["", "m", "1.0001", "0.5m", "-1", "x"] {
            assert!(Millicores::parse(text).is_err(), "{text}");
        }
    }
}
