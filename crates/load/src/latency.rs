//! Latencies: percentiles, their curve, and the correction for what a stall kept from being sent.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tessera_core::{Error, Result};

/// The longest latency that is told apart.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Bars of the histogram for each factor of ten.
const BINS_PER_DECADE: f64 = 20.0;

/// What a series of latencies comes to, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoadLatency {
    /// How many there were.
    pub count: u64,
    /// Their mean.
    pub mean_ms: f64,
    /// The one that half of them are below.
    pub p50_ms: f64,
    /// The one that 90 of 100 are below.
    pub p90_ms: f64,
    /// The one that 95 of 100 are below.
    pub p95_ms: f64,
    /// The one that 99 of 100 are below.
    pub p99_ms: f64,
    /// The one that 999 of 1000 are below.
    pub p99_9_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// One bar of the histogram of latencies; bars are equally wide on a logarithmic scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyBin {
    /// Where it begins.
    pub from_ms: f64,
    /// Where it ends.
    pub to_ms: f64,
    /// How many latencies are in it.
    pub count: u64,
}

/// One point of the curve of percentiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyPercentile {
    /// The share of latencies, of 100, that are at most this long.
    pub percentile: f64,
    /// The latency.
    pub latency_ms: f64,
}

impl LoadLatency {
    /// Sums up latencies; `None` where there are none.
    pub(crate) fn from_histogram(histogram: &Histogram<u64>) -> Option<Self> {
        if histogram.is_empty() {
            return None;
        }
        Some(Self {
            count: histogram.len(),
            mean_ms: histogram.mean() / 1e6,
            p50_ms: quantile_ms(histogram, 0.5),
            p90_ms: quantile_ms(histogram, 0.9),
            p95_ms: quantile_ms(histogram, 0.95),
            p99_ms: quantile_ms(histogram, 0.99),
            p99_9_ms: quantile_ms(histogram, 0.999),
            max_ms: histogram.max() as f64 / 1e6,
        })
    }
}

/// An empty histogram of nanoseconds, to three digits.
pub(crate) fn empty_histogram() -> Result<Histogram<u64>> {
    // A tenth of a microsecond is less than any clock can tell of a request over a network.
    Histogram::new_with_bounds(100, LONGEST_NS, 3)
        .map_err(|error| Error::invalid(format!("histogram: {error}")))
}

/// A time as histograms count it.
pub(crate) fn clamped_nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(LONGEST_NS)
}

/// The latency that `quantile` of them are below, in milliseconds; zero where there are none.
pub(crate) fn quantile_ms(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    if histogram.is_empty() {
        return 0.0;
    }
    // A bucket's upper end can be above all that is in it.
    histogram.value_at_quantile(quantile).min(histogram.max()) as f64 / 1e6
}

/// The latencies that clients would have seen, had they not waited for each other: for every
/// stall, those of the requests that the usual one, the median, would have had in its time.
pub(crate) fn correct_for_stalls(histogram: &Histogram<u64>) -> Histogram<u64> {
    histogram.clone_correct(histogram.value_at_quantile(0.5))
}

/// The histogram in bars, from the shortest latency to the longest.
pub(crate) fn histogram_bins(histogram: &Histogram<u64>) -> Vec<LatencyBin> {
    let edge = |index: i64| 10f64.powf(index as f64 / BINS_PER_DECADE);
    let mut bins: Vec<LatencyBin> = Vec::new();
    let mut last = 0;
    for recorded in histogram.iter_recorded() {
        let ms = (recorded.value_iterated_to() as f64 / 1e6).max(1e-6);
        let index = (ms.log10() * BINS_PER_DECADE).floor() as i64;
        // Bars without any latency are there too: a gap is to be seen as one.
        while bins.is_empty() || last < index {
            last = if bins.is_empty() { index } else { last + 1 };
            bins.push(LatencyBin { from_ms: edge(last), to_ms: edge(last + 1), count: 0 });
        }
        if let Some(bin) = bins.last_mut() {
            bin.count += recorded.count_at_value();
        }
    }
    bins
}

/// The curve of percentiles, as far as there are latencies to tell them apart.
pub(crate) fn percentile_curve(histogram: &Histogram<u64>) -> Vec<LatencyPercentile> {
    if histogram.is_empty() {
        return Vec::new();
    }
    // Ten points for each factor of ten of what is left above: 0, 20, … 90, 92, … 99 and so on.
    let most = histogram.len() as f64;
    let share = |step: i32| 1.0 - 10f64.powf(-f64::from(step) / 10.0);
    let shares = (0..=60).map(share).take_while(|share| 1.0 / (1.0 - share) <= most);
    shares
        .map(|share| LatencyPercentile {
            percentile: share * 100.0,
            latency_ms: quantile_ms(histogram, share),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 0.02, "{value}, expected about {expected}");
    }

    /// A server that answers in a millisecond, and once takes a second.
    fn stalled() -> Histogram<u64> {
        let mut histogram = empty_histogram().unwrap();
        for _ in 0..10_000 {
            histogram.saturating_record(clamped_nanoseconds(Duration::from_millis(1)));
        }
        histogram.saturating_record(clamped_nanoseconds(Duration::from_secs(1)));
        histogram
    }

    #[test]
    fn measured_latencies_hide_a_stall_and_corrected_ones_show_it() {
        let measured = LoadLatency::from_histogram(&stalled()).unwrap();
        near(measured.p99_ms, 1.0);
        near(measured.p99_9_ms, 1.0);
        near(measured.max_ms, 1000.0);
        // In the second of the stall, 999 more would have been sent and have waited for its rest.
        let corrected = LoadLatency::from_histogram(&correct_for_stalls(&stalled())).unwrap();
        near(corrected.count as f64, 11_000.0);
        near(corrected.p90_ms, 1.0);
        near(corrected.p95_ms, 450.0);
        near(corrected.p99_ms, 890.0);
        near(corrected.max_ms, 1000.0);
    }

    #[test]
    fn without_a_stall_the_correction_changes_nothing() {
        let mut even = empty_histogram().unwrap();
        (0..1000).for_each(|index| even.saturating_record(1_000_000 + index * 900));
        assert_eq!(
            LoadLatency::from_histogram(&correct_for_stalls(&even)),
            LoadLatency::from_histogram(&even)
        );
    }

    #[test]
    fn bins_hold_every_latency_once_and_show_gaps() {
        let bars = histogram_bins(&stalled());
        assert_eq!(bars.iter().map(|bin| bin.count).sum::<u64>(), 10_001);
        assert!(bars.windows(2).all(|pair| pair[0].to_ms == pair[1].from_ms));
        assert!(bars.len() > 55 && bars[1].count == 0, "{} bars", bars.len());
        assert!(histogram_bins(&empty_histogram().unwrap()).is_empty());
    }

    #[test]
    fn the_curve_rises_and_ends_where_single_latencies_decide() {
        let curve = percentile_curve(&stalled());
        assert!(curve.windows(2).all(|pair| pair[0].latency_ms <= pair[1].latency_ms));
        assert_eq!(curve.first().unwrap().percentile, 0.0);
        near(curve.last().unwrap().percentile, 99.99);
        assert_eq!(LoadLatency::from_histogram(&empty_histogram().unwrap()), None);
    }
}
