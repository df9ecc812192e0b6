//! Numbers that look random and are the same each time.

/// A small generator of pseudo-random numbers.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        // Spreads small seeds, and keeps away from zero, where the generator would stay.
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `sides`.
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        // Xorshift; Marsaglia, 2003.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % sides.max(1)
    }
}
