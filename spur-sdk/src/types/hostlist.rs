//! Lists of hosts in Slurm's bracket notation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::{Classify, ErrorKind};

/// The most hosts that one list may name. Slurm's own limit is `MAX_RANGE` = 64 k per bracket.
const MAX_HOSTS: usize = 1 << 17;

/// The longest name of a host, in bytes (RFC 1035).
const MAX_NAME: usize = 255;

/// A list of hosts that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostlistError {
    /// A bracket is not closed, closed twice, or opened inside another.
    #[error("the brackets of \"{0}\" do not match")]
    Brackets(String),
    /// What stands in a bracket is no list of numbers and ranges.
    #[error("\"{0}\" is no range: write [1-8], [01-08,12]")]
    Range(String),
    /// A host's name is empty or holds a character that none has.
    #[error("\"{0}\" is no host name")]
    Name(String),
    /// It names too many hosts.
    #[error("the list names more than {MAX_HOSTS} hosts")]
    TooMany,
}

impl Classify for HostlistError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

/// A list of hosts, such as `gpu[01-08],login1` or `rack[1-2]node[01-16]-ib`.
///
/// Reading expands it, in the order given, with repetitions kept; [`Display`](fmt::Display) folds it again:
/// sorted, each host once, ranges over the last number of a name.
///
/// ```
/// let list: spur_sdk::Hostlist = "gpu[08-10],login,gpu09".parse()?;
/// assert_eq!(list.hosts(), ["gpu08", "gpu09", "gpu10", "login", "gpu09"]);
/// assert_eq!(list.to_string(), "gpu[08-10],login");
/// # Ok::<(), spur_sdk::HostlistError>(())
/// ```
///
/// Source: `man scontrol`, "hostlist expressions"; `src/common/hostlist.c`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hostlist(Vec<String>);

impl Hostlist {
    /// The hosts, in the order given.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.0
    }

    /// The hosts, owned.
    #[must_use]
    pub fn into_hosts(self) -> Vec<String> {
        self.0
    }
}

impl FromIterator<String> for Hostlist {
    fn from_iter<I: IntoIterator<Item = String>>(hosts: I) -> Self {
        Self(hosts.into_iter().collect())
    }
}

impl FromStr for Hostlist {
    type Err = HostlistError;

    fn from_str(text: &str) -> Result<Self, HostlistError> {
        let text = text.trim();
        // `(null)` is how Slurm prints a list that is not set.
        if text.is_empty() || text == "(null)" {
            return Ok(Self::default());
        }
        let mut hosts = Vec::new();
        for word in split_words(text)? {
            expand(word.trim(), &mut hosts)?;
        }
        Ok(Self(hosts))
    }
}

/// Splits at commas outside brackets.
fn split_words(text: &str) -> Result<Vec<&str>, HostlistError> {
    let mut words = Vec::new();
    let mut inside = false;
    let mut start = 0;
    for (at, c) in text.char_indices() {
        match c {
            '[' | ']' if inside == (c == '[') => return Err(HostlistError::Brackets(text.to_owned())),
            '[' => inside = true,
            ']' => inside = false,
            ',' if !inside => {
                words.extend(text.get(start..at));
                start = at.saturating_add(1);
            }
            _ => {}
        }
    }
    if inside {
        return Err(HostlistError::Brackets(text.to_owned()));
    }
    words.extend(text.get(start..));
    Ok(words)
}

fn expand(word: &str, hosts: &mut Vec<String>) -> Result<(), HostlistError> {
    let legal = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if word.is_empty() {
        return Err(HostlistError::Name(word.to_owned()));
    }
    let mut heads = vec![String::new()];
    let mut rest = word;
    while let Some((literal, tail)) = rest.split_once('[') {
        let (ranges, after) = tail.split_once(']').ok_or_else(|| HostlistError::Brackets(word.to_owned()))?;
        if !legal(literal) {
            return Err(HostlistError::Name(word.to_owned()));
        }
        let numbers = expand_ranges(ranges)?;
        // Longer than a host name may be (RFC 1035), and the bound on what many brackets in a row can cost.
        if heads.first().map_or(0, String::len).saturating_add(literal.len()) > MAX_NAME {
            return Err(HostlistError::Name(word.to_owned()));
        }
        if heads.len().saturating_mul(numbers.len()).saturating_add(hosts.len()) > MAX_HOSTS {
            return Err(HostlistError::TooMany);
        }
        heads = heads
            .iter()
            .flat_map(|head| numbers.iter().map(move |number| format!("{head}{literal}{number}")))
            .collect();
        rest = after;
    }
    if !legal(rest) {
        return Err(HostlistError::Name(word.to_owned()));
    }
    if hosts.len().saturating_add(heads.len()) > MAX_HOSTS {
        return Err(HostlistError::TooMany);
    }
    hosts.extend(heads.into_iter().map(|head| head + rest));
    Ok(())
}

fn expand_ranges(ranges: &str) -> Result<Vec<String>, HostlistError> {
    let mut numbers = Vec::new();
    for range in ranges.split(',').map(str::trim) {
        let bad = || HostlistError::Range(range.to_owned());
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| -> Result<u64, HostlistError> {
            if text.is_empty() || text.len() > 18 || !text.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad());
            }
            text.parse().map_err(|_| bad())
        };
        let (first, last) = (number(low)?, number(high)?);
        let count = last.checked_sub(first).ok_or_else(bad)?;
        if usize::try_from(count).map_or(true, |count| count.saturating_add(numbers.len()) >= MAX_HOSTS) {
            return Err(HostlistError::TooMany);
        }
        numbers.extend((first..=last).map(|n| padded(n, low.len())));
    }
    Ok(numbers)
}

/// What stands before and after the last number of a name.
type Shape<'a> = (&'a str, &'a str);

/// The last number of a name and how many digits it is written with.
type Numbered = (u64, usize);

fn shape(host: &str) -> Option<(Shape<'_>, Numbered)> {
    let end = host.rfind(|c: char| c.is_ascii_digit())?.saturating_add(1);
    let start = host.get(..end)?.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at.saturating_add(1));
    let digits = host.get(start..end)?;
    // Longer numbers are left as they are: a range over them could not be read back.
    let number = if digits.len() > 18 { None } else { digits.parse().ok() }?;
    Some(((host.get(..start)?, host.get(end..)?), (number, digits.len())))
}

impl fmt::Display for Hostlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbered: BTreeMap<Shape<'_>, BTreeSet<Numbered>> = BTreeMap::new();
        let mut words = BTreeSet::new();
        for host in &self.0 {
            match shape(host) {
                Some((shape, number)) => {
                    numbered.entry(shape).or_default().insert(number);
                }
                None => {
                    words.insert((host.as_str(), host.clone()));
                }
            }
        }
        for ((before, after), numbers) in numbered {
            let ranges = ranges(&numbers);
            let word = if numbers.len() == 1 { ranges } else { format!("[{ranges}]") };
            words.insert((before, format!("{before}{word}{after}")));
        }
        let words: Vec<_> = words.into_iter().map(|(_, word)| word).collect();
        f.write_str(&words.join(","))
    }
}

fn ranges(numbers: &BTreeSet<Numbered>) -> String {
    // First number, the digits that it is written with, last number.
    let mut runs: Vec<(u64, usize, u64)> = Vec::new();
    for &(number, digits) in numbers {
        match runs.last_mut() {
            // A range is written out with the width of its first number, so only what that gives belongs to it.
            Some((_, width, last))
                if last.checked_add(1) == Some(number) && padded(number, *width).len() == digits =>
            {
                *last = number;
            }
            _ => runs.push((number, digits, number)),
        }
    }
    let text = runs.iter().map(|&(first, width, last)| {
        if first == last {
            padded(first, width)
        } else {
            format!("{}-{}", padded(first, width), padded(last, width))
        }
    });
    text.collect::<Vec<_>>().join(",")
}

fn padded(number: u64, width: usize) -> String {
    format!("{number:0width$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(text: &str) -> Vec<String> {
        text.parse::<Hostlist>().unwrap().into_hosts()
    }

    #[test]
    fn brackets_expand_with_their_padding() {
        assert_eq!(hosts("gpu[08-11]"), ["gpu08", "gpu09", "gpu10", "gpu11"]);
        assert_eq!(hosts("g-04-02,g-05-[01,03]"), ["g-04-02", "g-05-01", "g-05-03"]);
        assert_eq!(hosts("r[1-2]n[1-2]-ib"), ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]);
        assert_eq!(hosts("n[9-11]"), ["n9", "n10", "n11"]);
        assert!(hosts("(null)").is_empty() && hosts("").is_empty());
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in
            ["a[1", "a1]", "a[[1]]", "a[]", "a[x]", "a[3-1]", "a,,b", "a[1-2", "a b", ",", "a[1--2]", "a[1-]"]
        {
            assert!(text.parse::<Hostlist>().is_err(), "{text}");
        }
        for text in ["a[1-99999999]", "a[1-999]b[1-999]", "a[0-999999999999999999]"] {
            assert_eq!(text.parse::<Hostlist>(), Err(HostlistError::TooMany), "{text}");
        }
    }

    #[test]
    fn a_run_across_a_change_of_width_folds_so_that_it_reads_back() {
        let list: Hostlist = ["n099", "n100", "n98", "n99"].map(String::from).into_iter().collect();
        let again = hosts(&list.to_string());
        assert_eq!(again.iter().collect::<BTreeSet<_>>(), list.hosts().iter().collect());
    }

    proptest! {
        #[test]
        fn folding_and_expanding_again_gives_the_same_hosts(names in proptest::collection::vec("[a-c]{0,2}[0-9]{0,3}[-]?[a-b0-9]{1,2}", 0..40)) {
            let list: Hostlist = names.iter().cloned().collect();
            let again: BTreeSet<_> = hosts(&list.to_string()).into_iter().collect();
            prop_assert_eq!(again, names.into_iter().collect::<BTreeSet<_>>());
        }
    }
}
