//! How long something took lately, finely enough that milliseconds can be told apart.

/// Times are told apart by so many steps for each doubling: by 3%.
const STEP_BITS: u32 = 5;
/// Nanoseconds below two to the power of this are one (8 µs), and so are those above the other (137
/// s).
const FIRST_BITS: u32 = 13;
const LAST_BITS: u32 = 37;
const BUCKETS: usize = ((LAST_BITS - FIRST_BITS) as usize) << STEP_BITS;

/// Counts times, and forgets them after a while: those of two periods are there, of which the last
/// one goes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlidingHistogram {
    now: Vec<u32>,
    before: Vec<u32>,
}

fn bucket_of(nanoseconds: u64) -> usize {
    let time = nanoseconds.clamp(1 << FIRST_BITS, (1 << LAST_BITS) - 1);
    let exponent = time.ilog2();
    let step = (time >> (exponent - STEP_BITS)) & ((1 << STEP_BITS) - 1);
    (((exponent - FIRST_BITS) as usize) << STEP_BITS) + step as usize
}

/// The middle of a bucket, in milliseconds.
fn middle_ms(bucket: usize) -> f64 {
    let exponent = FIRST_BITS as usize + (bucket >> STEP_BITS);
    let step = (bucket & ((1 << STEP_BITS) - 1)) as f64;
    let steps = f64::from(1 << STEP_BITS);
    (1.0 + (step + 0.5) / steps) * (1_u64 << exponent) as f64 / 1e6
}

impl SlidingHistogram {
    /// Counts a time.
    pub(crate) fn count_time(&mut self, nanoseconds: u64) {
        if self.now.is_empty() {
            self.now.resize(BUCKETS, 0);
        }
        if let Some(count) = self.now.get_mut(bucket_of(nanoseconds)) {
            *count = count.saturating_add(1);
        }
    }

    /// A period is over: those before it are forgotten.
    pub(crate) fn end_period(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.now.is_empty() && self.before.is_empty()
    }

    /// The time that a share of all is not above, in milliseconds; `None` where there are none.
    pub(crate) fn quantile_ms(&self, share: f64) -> Option<f64> {
        let count = |bucket: usize| {
            let of = |counts: &[u32]| u64::from(counts.get(bucket).copied().unwrap_or(0));
            of(&self.now) + of(&self.before)
        };
        let all: u64 = (0..BUCKETS).map(count).sum();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        let found = (0..BUCKETS).find(|&bucket| {
            below += count(bucket);
            below >= wanted
        });
        found.map(middle_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_within_three_percent() {
        for nanoseconds in [9_000, 123_456, 1_000_000, 21_300_000, 999_999_999, 60_000_000_000] {
            let mut histogram = SlidingHistogram::default();
            histogram.count_time(nanoseconds);
            let found = histogram.quantile_ms(0.5).unwrap() * 1e6;
            assert!((found / nanoseconds as f64 - 1.0).abs() < 0.03, "{nanoseconds}: {found}");
        }
        let mut histogram = SlidingHistogram::default();
        histogram.count_time(0);
        histogram.count_time(u64::MAX);
        assert!(histogram.quantile_ms(0.5).unwrap() < 0.01);
        assert!(histogram.quantile_ms(1.0).unwrap() > 130_000.0);
    }

    #[test]
    fn what_is_two_periods_old_is_forgotten() {
        let mut histogram = SlidingHistogram::default();
        assert_eq!(histogram.quantile_ms(0.5), None);
        (0..99).for_each(|_| histogram.count_time(1_000_000));
        histogram.end_period();
        histogram.count_time(50_000_000);
        let around = |share, expected: f64| {
            let found = histogram.quantile_ms(share).unwrap();
            assert!((found / expected - 1.0).abs() < 0.03, "{found}, expected {expected}");
        };
        around(0.99, 1.0);
        around(1.0, 50.0);
        histogram.end_period();
        assert!(histogram.quantile_ms(0.0).unwrap() > 45.0);
        histogram.end_period();
        assert!(histogram.is_empty());
    }
}
