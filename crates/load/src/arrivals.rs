//! When the requests of an open loop are due.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Random, Result};

/// How requests of an open loop follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// As if many clients that know nothing of each other sent them.
    #[default]
    Poisson,
    /// At even distances.
    Constant,
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Poisson => "poisson",
            Self::Constant => "constant",
        })
    }
}

impl FromStr for Arrivals {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "poisson" => Ok(Self::Poisson),
            "constant" => Ok(Self::Constant),
            _ => Err(Error::usage(format!("arrivals \"{text}\", expected poisson or constant"))),
        }
    }
}

/// The times at which requests are due, from the start of the run; it has no end.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalSchedule {
    arrivals: Arrivals,
    /// Seconds between two on average.
    gap: f64,
    /// Seconds from the start to the last one.
    at: f64,
    count: u64,
    random: Random,
}

impl ArrivalSchedule {
    /// A schedule of `rate` requests a second, which must be above zero.
    pub(crate) fn new(arrivals: Arrivals, rate: f64, seed: u64) -> Self {
        Self { arrivals, gap: 1.0 / rate, at: 0.0, count: 0, random: Random::new(seed) }
    }
}

impl Iterator for ArrivalSchedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.at = match self.arrivals {
            Arrivals::Poisson => self.at - self.random.next_fraction().ln() * self.gap,
            // Multiplied, not added up: the error of an hour's additions would show.
            Arrivals::Constant => self.count as f64 * self.gap,
        };
        self.count += 1;
        Duration::try_from_secs_f64(self.at).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_their_name() {
        let count = 100_000;
        let times: Vec<f64> = ArrivalSchedule::new(Arrivals::Poisson, 1000.0, 7)
            .take(count)
            .map(|time| time.as_secs_f64())
            .collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1e-3).abs() < 2e-5, "mean {mean}");
        // Exponential gaps deviate by as much as they measure.
        assert!((variance.sqrt() - 1e-3).abs() < 3e-5, "deviation {}", variance.sqrt());
    }

    #[test]
    fn the_same_seed_gives_the_same_arrivals_and_another_gives_others() {
        let take = |seed| ArrivalSchedule::new(Arrivals::Poisson, 50.0, seed).take(100);
        assert!(take(3).eq(take(3)));
        assert!(!take(3).eq(take(4)));
    }

    #[test]
    fn constant_arrivals_are_even_and_do_not_drift() {
        let mut schedule = ArrivalSchedule::new(Arrivals::Constant, 1000.0, 0);
        assert_eq!(schedule.next(), Some(Duration::ZERO));
        assert_eq!(schedule.next(), Some(Duration::from_millis(1)));
        let late = schedule.nth(3_599_997).map(|time| time.as_secs_f64()).unwrap();
        assert!((late - 3599.999).abs() < 1e-6, "{late}");
    }
}
