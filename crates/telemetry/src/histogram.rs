//! How often something was how large.

/// Seconds that a request takes: 1 ms to a minute.
pub(crate) const REQUEST_BUCKETS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0];

/// Seconds that a request spends in a unit: 10 µs to 10 s.
pub(crate) const UNIT_BUCKETS: &[f64] = &[
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
    0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];

/// Rows of a batch.
pub(crate) const BATCH_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// Counts values by how large they are. A count may be a fraction, see
/// [`Histogram::observe_value`].
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// Per bound, what is above the one before it and not above itself; then what is above all.
    counts: Vec<f64>,
    sum: f64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0.0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts `value`; as a `share` of once where several will tell of the same thing.
    pub(crate) fn observe_value(&mut self, value: f64, share: f64) {
        let place = self.bounds.partition_point(|&bound| bound < value);
        if let Some(count) = self.counts.get_mut(place) {
            *count += share;
        }
        self.sum += value * share;
    }

    /// Every bound, infinity last, with how many values are not above it.
    pub(crate) fn cumulative_counts(&self) -> impl Iterator<Item = (f64, f64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0.0_f64, |total, (bound, count)| {
            *total += *count;
            Some((bound, *total))
        })
    }

    /// All values together.
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_a_bound_is_not_above_it() {
        let mut histogram = Histogram::new(BATCH_BUCKETS);
        for value in [1.0, 2.0, 3.0, 128.0, 129.0] {
            histogram.observe_value(value, 1.0);
        }
        let cumulative: Vec<(f64, f64)> = histogram.cumulative_counts().collect();
        assert_eq!(cumulative[..3], [(1.0, 1.0), (2.0, 2.0), (4.0, 3.0)]);
        assert_eq!(cumulative[7..], [(128.0, 4.0), (f64::INFINITY, 5.0)]);
        assert_eq!(histogram.sum(), 263.0);
    }

    #[test]
    fn bounds_grow() {
        for bounds in [REQUEST_BUCKETS, UNIT_BUCKETS, BATCH_BUCKETS] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
    }
}
