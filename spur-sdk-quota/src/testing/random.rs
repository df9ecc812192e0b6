//! Numbers that look random and are the same for the same seed.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A small generator of numbers for tests: the same seed gives the same numbers on every machine. Not for secrets.
///
/// Source: [SplitMix64](https://prng.di.unimi.it/splitmix64.c).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 when that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number().checked_rem(end).unwrap_or(0)
    }

    /// Whether something happens that does in so many of a thousand cases.
    pub fn happens(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    /// A time within a range, in whole milliseconds.
    pub fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let milliseconds = |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (start, end) = (milliseconds(range.start()), milliseconds(range.end()));
        let span = end.saturating_sub(start).saturating_add(1);
        Duration::from_millis(start.saturating_add(self.below(span)))
    }

    /// One of some things; `None` if there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let at = self.below(u64::try_from(from.len()).unwrap_or(u64::MAX));
        from.get(usize::try_from(at).unwrap_or(0))
    }

    /// Another generator, whose numbers have nothing to do with those that follow here.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_numbers_of_the_reference() {
        let mut random = Random::new(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| random.number()).collect();
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn what_is_drawn_lies_within_its_range() {
        let mut random = Random::new(7);
        let (start, end) = (Duration::from_millis(3), Duration::from_millis(5));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            seen.insert(random.duration(&(start..=end)));
        }
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|time| (start..=end).contains(time)));
        assert_eq!(random.below(0), 0);
        assert_eq!(random.pick::<u8>(&[]), None);
        assert!(!random.happens(0) && random.happens(1000));
    }
}
