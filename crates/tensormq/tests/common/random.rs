//! Random numbers that are the same every time.

/// Xorshift.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn new(seed: u64, case: u64) -> Self {
        // Zero is the one state that it does not leave.
        let mut random = Self((seed ^ case.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1);
        // Neighbouring cases begin alike; after a few steps they don't.
        for _ in 0..8 {
            random.next();
        }
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`; 0 where there is none.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((self.next() >> 16) % bound.max(1) as u64) as usize
    }

    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}
