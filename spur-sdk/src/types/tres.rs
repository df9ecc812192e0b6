//! Trackable resources (TRES): what an allocation counts.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::types::quantity::{in_range, scaled};
use crate::{Bytes, Classify, ErrorKind, Limit, MemorySpelling, Millicores, QuantityError};

/// The unit in which this SDK keeps an amount of a [`Tres`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TresUnit {
    /// Thousandths of a core.
    Millicores,
    /// Bytes.
    Bytes,
    /// A plain count.
    Count,
}

/// A trackable resource. Names are kept in lower case, as Slurm compares them.
///
/// Source: `man slurm.conf`, AccountingStorageTRES; `src/common/slurmdb_defs.c`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tres {
    /// `cpu`.
    Cpu,
    /// `mem`.
    Mem,
    /// `node`.
    Node,
    /// `energy`, in joules.
    Energy,
    /// `billing`: the weighted sum that a site configures.
    Billing,
    /// `vmem`.
    VirtualMemory,
    /// `pages`.
    Pages,
    /// `gres/NAME[:TYPE]`: a generic resource such as a GPU; counts by type are a breakdown of the count
    /// without one.
    Gres {
        /// The resource, such as `gpu`.
        name: String,
        /// Its type, such as `mi300x`; `None` is the count over all types.
        kind: Option<String>,
    },
    /// `license/NAME`.
    License(String),
    /// `bb/NAME`: a burst buffer.
    BurstBuffer(String),
    /// `fs/NAME`: a file system.
    FileSystem(String),
    /// `ic/NAME`: an interconnect.
    Interconnect(String),
}

impl Tres {
    /// The unit of an amount.
    #[must_use]
    pub fn unit(&self) -> TresUnit {
        match self {
            Self::Cpu => TresUnit::Millicores,
            Self::Mem | Self::VirtualMemory | Self::BurstBuffer(_) | Self::FileSystem(_) => TresUnit::Bytes,
            Self::Node
            | Self::Energy
            | Self::Billing
            | Self::Pages
            | Self::Gres { .. }
            | Self::License(_)
            | Self::Interconnect(_) => TresUnit::Count,
        }
    }

    /// An amount as Kubernetes spells it: `16`, `1500m`, `32768M`, `8`.
    #[must_use]
    pub fn display_amount(&self, amount: u64) -> String {
        match self.unit() {
            TresUnit::Millicores => Millicores(amount).to_string(),
            TresUnit::Bytes => Bytes(amount).to_string(),
            TresUnit::Count => amount.to_string(),
        }
    }
}

impl fmt::Display for Tres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Mem => f.write_str("mem"),
            Self::Node => f.write_str("node"),
            Self::Energy => f.write_str("energy"),
            Self::Billing => f.write_str("billing"),
            Self::VirtualMemory => f.write_str("vmem"),
            Self::Pages => f.write_str("pages"),
            Self::Gres { name, kind: None } => write!(f, "gres/{name}"),
            Self::Gres { name, kind: Some(kind) } => write!(f, "gres/{name}:{kind}"),
            Self::License(name) => write!(f, "license/{name}"),
            Self::BurstBuffer(name) => write!(f, "bb/{name}"),
            Self::FileSystem(name) => write!(f, "fs/{name}"),
            Self::Interconnect(name) => write!(f, "ic/{name}"),
        }
    }
}

/// A TRES string that cannot be read in full.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TresError {
    /// The resource is none that Slurm knows.
    #[error("\"{name}\" is no TRES{}", suggestion(.name))]
    Unknown {
        /// What stands in its place.
        name: String,
    },
    /// A resource that needs a name has none or a bad one.
    #[error("\"{0}\" needs a name after the slash, such as gres/gpu, of letters, digits, and . _ - @ +")]
    Name(String),
    /// The amount is missing.
    #[error("\"{0}\" has no amount: write {0}=NUMBER")]
    NoAmount(String),
    /// The amount cannot be read.
    #[error("amount of {tres}")]
    Amount {
        /// The resource.
        tres: Tres,
        /// Why not.
        #[source]
        source: QuantityError,
    },
    /// A resource stands there twice, so that it is unclear which amount holds.
    #[error("{0} is given twice")]
    Twice(Tres),
    /// Nothing stands between two commas, or after the last: a piece may be missing.
    #[error("an entry is empty: a comma too many, or a piece is missing")]
    EmptyEntry,
}

impl Classify for TresError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

fn suggestion(name: &str) -> String {
    let close = match name {
        "nodes" => "node",
        "cpus" | "core" | "cores" => "cpu",
        "memory" => "mem",
        "gpu" | "gpus" | "gres/gpus" => "gres/gpu",
        "licenses" | "license" => "license/NAME",
        _ => {
            return ": known are cpu, mem, node, billing, energy, vmem, pages, gres/, license/, bb/, fs/, ic/"
                .to_owned();
        }
    };
    format!(": did you mean {close}?")
}

/// Reads the name of a TRES, without an amount.
impl FromStr for Tres {
    type Err = TresError;

    fn from_str(text: &str) -> Result<Self, TresError> {
        let lower = text.trim().to_lowercase();
        let known = match lower.as_str() {
            "cpu" => Self::Cpu,
            "mem" => Self::Mem,
            "node" => Self::Node,
            "energy" => Self::Energy,
            "billing" => Self::Billing,
            "vmem" => Self::VirtualMemory,
            "pages" => Self::Pages,
            _ => return named(&lower),
        };
        Ok(known)
    }
}

fn named(lower: &str) -> Result<Tres, TresError> {
    let unknown = || TresError::Unknown { name: lower.to_owned() };
    let (family, rest) = lower.split_once('/').ok_or_else(unknown)?;
    if suggestion(lower).contains("did you mean") {
        return Err(unknown());
    }
    let legal = |name: &str| {
        !name.is_empty()
            && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '@' | '+'))
    };
    let bad = || TresError::Name(lower.to_owned());
    if family == "gres" {
        let (name, kind) = match rest.split_once(':') {
            Some((name, kind)) => (name, Some(kind)),
            None => (rest, None),
        };
        if !legal(name) || !kind.is_none_or(legal) {
            return Err(bad());
        }
        return Ok(Tres::Gres { name: name.to_owned(), kind: kind.map(str::to_owned) });
    }
    let make = match family {
        "license" => Tres::License,
        "bb" => Tres::BurstBuffer,
        "fs" => Tres::FileSystem,
        "ic" => Tres::Interconnect,
        _ => return Err(unknown()),
    };
    if !legal(rest) {
        return Err(bad());
    }
    Ok(make(rest.to_owned()))
}

/// Limits by TRES. A TRES that is not in it has no limit here.
pub type TresLimits = BTreeMap<Tres, Limit<u64>>;

/// Reads a TRES string such as `cpu=16,mem=32768,gres/gpu=8` or `gres/gpu:mi300x:4`.
///
/// An empty text is an empty map. `-1`, `none`, `unlimited` and `infinite` are [`Limit::Unset`], `parent` is
/// [`Limit::Parent`]. Counts take `K` `M` `G` `T` `P` (powers of 1024) in Slurm's spelling and no suffix
/// in SPUR's.
///
/// # Errors
/// [`TresError`] for anything that is not understood; no part of such a text is used.
pub fn parse_tres(text: &str, spelling: MemorySpelling) -> Result<TresLimits, TresError> {
    let mut limits = TresLimits::new();
    if text.trim().is_empty() {
        return Ok(limits);
    }
    for entry in text.split(',').map(str::trim) {
        if entry.is_empty() {
            return Err(TresError::EmptyEntry);
        }
        let (name, amount) = split_entry(entry)?;
        let tres: Tres = name.parse()?;
        let limit = parse_amount(&tres, amount, spelling)
            .map_err(|source| TresError::Amount { tres: tres.clone(), source })?;
        if limits.insert(tres.clone(), limit).is_some() {
            return Err(TresError::Twice(tres));
        }
    }
    Ok(limits)
}

/// `name=amount`, or sbatch's `gres/name:amount` and `gres/name:type:amount`.
fn split_entry(entry: &str) -> Result<(&str, &str), TresError> {
    if let Some((name, amount)) = entry.split_once('=') {
        return Ok((name.trim(), amount.trim()));
    }
    match entry.rsplit_once(':') {
        Some((name, amount)) if name.contains('/') && amount.starts_with(|c: char| c.is_ascii_digit()) => {
            Ok((name, amount))
        }
        _ => {
            entry.parse::<Tres>()?;
            Err(TresError::NoAmount(entry.to_owned()))
        }
    }
}

/// Reads one amount of `tres` into its [unit](Tres::unit).
///
/// # Errors
/// [`QuantityError`].
pub(crate) fn parse_amount(
    tres: &Tres,
    text: &str,
    spelling: MemorySpelling,
) -> Result<Limit<u64>, QuantityError> {
    match text.to_ascii_lowercase().as_str() {
        // The two large numbers are Slurm's INFINITE64 and NO_VAL64 (slurm/slurm.h).
        "-1" | "none" | "unlimited" | "infinite" | "18446744073709551615" | "18446744073709551614" => {
            return Ok(Limit::Unset);
        }
        "parent" => return Ok(Limit::Parent),
        _ => {}
    }
    let value = match tres.unit() {
        TresUnit::Millicores => Millicores::parse(text)?.0,
        TresUnit::Bytes if counts_bytes(tres, spelling) => parse_count(text, spelling)?,
        TresUnit::Bytes => Bytes::parse(text, spelling)?.0,
        TresUnit::Count => parse_count(text, spelling)?,
    };
    Ok(Limit::Value(value))
}

/// Whether a bare number is bytes. Slurm counts only `mem` and `bb/` in mebibytes
/// (`src/common/slurmdb_defs.c`, slurmdb_make_tres_string_from_simple).
fn counts_bytes(tres: &Tres, spelling: MemorySpelling) -> bool {
    spelling == MemorySpelling::Slurm && matches!(tres, Tres::VirtualMemory | Tres::FileSystem(_))
}

fn parse_count(text: &str, spelling: MemorySpelling) -> Result<u64, QuantityError> {
    let suffix = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(suffix);
    let scale = match (suffix.to_ascii_uppercase().as_str(), spelling) {
        ("", _) => Some(1),
        ("K", MemorySpelling::Slurm) => Some(1 << 10),
        ("M", MemorySpelling::Slurm) => Some(1 << 20),
        ("G", MemorySpelling::Slurm) => Some(1 << 30),
        ("T", MemorySpelling::Slurm) => Some(1 << 40),
        ("P", MemorySpelling::Slurm) => Some(1 << 50),
        _ => None,
    };
    match scale.and_then(|scale| scaled(number, scale)) {
        Some((value, true)) => in_range(value, text),
        _ => Err(QuantityError::Syntax {
            what: "count",
            text: text.to_owned(),
            expected: "a whole number, -1 for no limit",
        }),
    }
}

/// Writes TRES limits in a spelling, sorted, `-1` for an explicit [`Limit::Unset`]. SPUR's spelling is exact;
/// in Slurm's, CPUs are rounded down to whole ones and memory to MiB.
#[must_use]
pub fn format_tres(limits: &TresLimits, spelling: MemorySpelling) -> String {
    let entries = limits.iter().map(|(tres, limit)| {
        let amount = match limit {
            Limit::Unset => "-1".to_owned(),
            Limit::Parent => "parent".to_owned(),
            Limit::Value(value) => match (tres.unit(), spelling) {
                (TresUnit::Millicores, MemorySpelling::Slurm) => (value / 1000).to_string(),
                (TresUnit::Bytes, MemorySpelling::Slurm) if counts_bytes(tres, spelling) => value.to_string(),
                (TresUnit::Bytes, MemorySpelling::Slurm) => format!("{}M", Bytes(*value).mebibytes()),
                (TresUnit::Bytes, MemorySpelling::Spur) => spur_memory(*value),
                _ => tres.display_amount(*value),
            },
        };
        format!("{tres}={amount}")
    });
    entries.collect::<Vec<_>>().join(",")
}

fn spur_memory(bytes: u64) -> String {
    if bytes.is_multiple_of(Bytes::MB) {
        return (bytes / Bytes::MB).to_string();
    }
    if bytes.is_multiple_of(Bytes::MIB) {
        return format!("{}Mi", bytes / Bytes::MIB);
    }
    let digits = format!("{}.{:06}", bytes / Bytes::MB, bytes % Bytes::MB);
    digits.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemorySpelling::{Slurm, Spur};
    use proptest::prelude::*;

    fn gpu(kind: Option<&str>) -> Tres {
        Tres::Gres { name: "gpu".into(), kind: kind.map(Into::into) }
    }

    #[test]
    fn an_allocation_is_read_in_base_units() {
        let limits = parse_tres("cpu=16,mem=32768,gres/gpu=8", Spur).unwrap();
        assert_eq!(limits[&Tres::Cpu], Limit::Value(16_000));
        assert_eq!(limits[&Tres::Mem], Limit::Value(32_768_000_000));
        assert_eq!(limits[&gpu(None)], Limit::Value(8));
        let limits = parse_tres("mem=32768", Slurm).unwrap();
        assert_eq!(limits[&Tres::Mem], Limit::Value(32 << 30));
    }

    #[test]
    fn sbatch_style_and_types_with_dots_are_read() {
        let text = "gres/gpu:mi300x:4,gres/gpu:nvidia_a100_2g.20gb=3,GRES/GPU:8,license/matlab@server=2";
        let limits = parse_tres(text, Slurm).unwrap();
        assert_eq!(limits[&gpu(Some("mi300x"))], Limit::Value(4));
        assert_eq!(limits[&gpu(Some("nvidia_a100_2g.20gb"))], Limit::Value(3));
        assert_eq!(limits[&gpu(None)], Limit::Value(8));
        assert_eq!(limits[&Tres::License("matlab@server".into())], Limit::Value(2));
    }

    #[test]
    fn slurm_counts_file_systems_and_virtual_memory_in_bytes() {
        let text = "bb/x=10M,fs/disk=10737418240,vmem=1K";
        let limits = parse_tres(text, Slurm).unwrap();
        assert_eq!(limits[&Tres::BurstBuffer("x".into())], Limit::Value(10 << 20));
        assert_eq!(limits[&Tres::FileSystem("disk".into())], Limit::Value(10 << 30));
        assert_eq!(limits[&Tres::VirtualMemory], Limit::Value(1024));
        assert_eq!(parse_tres(&format_tres(&limits, Slurm), Slurm), Ok(limits));
        assert_eq!(
            parse_tres("fs/disk=10", Spur).unwrap()[&Tres::FileSystem("disk".into())],
            Limit::Value(10_000_000)
        );
    }

    #[test]
    fn unset_parent_and_zero_are_kept_apart() {
        let limits = parse_tres("cpu=-1,mem=parent,node=0,billing=NONE", Slurm).unwrap();
        assert_eq!(limits[&Tres::Cpu], Limit::Unset);
        assert_eq!(limits[&Tres::Mem], Limit::Parent);
        assert_eq!(limits[&Tres::Node], Limit::Value(0));
        assert_eq!(limits[&Tres::Billing], Limit::Unset);
        assert!(parse_tres("", Slurm).unwrap().is_empty());
    }

    #[test]
    fn what_is_not_understood_is_an_error_and_never_no_limit() {
        for text in [
            "nodes=10",
            "cpu",
            "node:2",
            "cpu=",
            "cpu=x",
            "cpu=1,,mem=2",
            "cpu=1,",
            "cpu=1,cpu=1",
            "gres/=1",
            "gres/gpu:=1",
            "gres=1",
            "=1",
            "mem=1X",
            "cpu=-2",
            "gpu=4",
            "gres/gpu=1.5",
            "foo/bar=1",
            "cpu=1=2",
        ] {
            assert!(parse_tres(text, Slurm).is_err(), "{text}");
        }
        let error = parse_tres("nodes=10", Slurm).unwrap_err();
        assert_eq!(error.to_string(), "\"nodes\" is no TRES: did you mean node?");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_equal(cpu in 0_u64..100_000, mem in 0_u64..(1 << 22), gpus in 0_u64..5000) {
            for (spelling, cpus, unit) in [(Slurm, cpu * 1000, Bytes::MIB), (Spur, cpu, Bytes::MB), (Spur, cpu, Bytes::MIB)] {
                let limits = TresLimits::from([
                    (Tres::Cpu, Limit::Value(cpus)),
                    (Tres::Mem, Limit::Value(mem * unit)),
                    (gpu(Some("mi300x")), Limit::Value(gpus)),
                    (gpu(None), Limit::Unset),
                ]);
                prop_assert_eq!(parse_tres(&format_tres(&limits, spelling), spelling), Ok(limits));
            }
        }
    }
}
