//! Medians and the like, of times that were measured.

use std::time::Duration;

use serde::Serialize;

/// What a series of times comes to, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencySummary {
    /// How many there were.
    pub count: usize,
    /// The one in the middle.
    pub median_ms: f64,
    /// The shortest.
    pub min_ms: f64,
    /// The one that 99 of 100 are below.
    pub p99_ms: f64,
}

impl LatencySummary {
    /// Sums up `times`; `None` where there are none.
    pub fn from_times(times: &[Duration]) -> Option<Self> {
        let mut sorted: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        sorted.sort_by(f64::total_cmp);
        let first = *sorted.first()?;
        Some(Self {
            count: sorted.len(),
            median_ms: median_of_sorted(&sorted)?,
            min_ms: first,
            p99_ms: p99_of_sorted(&sorted)?,
        })
    }
}

/// The middle of sorted values; of an even number, the mean of the two in the middle.
pub fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// The one of sorted values that 99 of 100 are below.
pub fn p99_of_sorted(sorted: &[f64]) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * 0.99).ceil() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median_of_sorted(&[]), None);
        assert_eq!(median_of_sorted(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median_of_sorted(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
    }
}
