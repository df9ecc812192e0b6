//! How long to wait after failures.

use std::time::Duration;

/// Twice as long after each failure in a row, from `first` to `most`, and up to half as long again by `spread`, so that
/// what failed together does not come back together.
pub(super) fn pause(first: Duration, most: Duration, failures: u32, spread: u64) -> Duration {
    let base = first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(most);
    let parts = u32::try_from(spread.wrapping_mul(37) % 50).unwrap_or(0);
    base.mul_f64(1.0 + f64::from(parts) / 100.0).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_are_spread() {
        let pause =
            |failures, spread| pause(Duration::from_secs(1), Duration::from_mins(5), failures, spread);
        assert_eq!(pause(1, 0), Duration::from_secs(1));
        assert_eq!(pause(4, 0), Duration::from_secs(8));
        assert_eq!(pause(u32::MAX, 49), Duration::from_mins(5));
        assert!(pause(4, 1) > pause(4, 0) && pause(4, 1) < pause(5, 0));
    }
}
