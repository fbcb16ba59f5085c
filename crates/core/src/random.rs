//! Random numbers that the same seed gives again.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "there is always a next one")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which must not be zero.
    pub fn next_below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number above zero, and at most one: its logarithm is finite.
    pub fn next_fraction(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// About normal: the sum of twelve uniform numbers, less six.
    pub fn next_normal(&mut self) -> f64 {
        (0..3)
            .map(|_| {
                let bits = self.next();
                (0..4).map(|part| ((bits >> (16 * part)) & 0xffff) as f64 / 65536.0).sum::<f64>()
            })
            .sum::<f64>()
            - 6.0
    }
}
