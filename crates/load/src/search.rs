//! Which rates to try, to find the highest that a server sustains.

use std::str::FromStr;

use tessera_core::{Error, Result};

/// More steps than anyone waits for.
const MAX_STEPS: usize = 1000;

/// The rates of a sweep, in requests per second.
#[derive(Clone, Debug, PartialEq)]
pub enum SweepRates {
    /// These, one after the other.
    List(Vec<f64>),
    /// From the first to the second, in steps.
    Range {
        /// The first rate.
        start: f64,
        /// The rate not to go above.
        end: f64,
        /// From one rate to the next.
        step: f64,
    },
    /// Twice as much each time until it is too much, then halfway between what was sustained and
    /// what was not.
    Search {
        /// The first rate.
        start: f64,
        /// The rate not to go above.
        limit: f64,
        /// How near, as a share of the rate, the two must come.
        precision: f64,
    },
}

impl Default for SweepRates {
    fn default() -> Self {
        Self::Search { start: 10.0, limit: 1e6, precision: 0.05 }
    }
}

impl FromStr for SweepRates {
    type Err = Error;

    /// Reads `100,200,400`, `100:1000:100`, `auto`, `auto:START` or `auto:START:LIMIT`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!(
                "rates \"{text}\", expected RATE,RATE,… or START:END:STEP or auto[:START[:LIMIT]]"
            ))
        };
        let number = |text: &str| {
            let number = text.trim().parse::<f64>().ok();
            number.filter(|number| number.is_finite() && *number > 0.0).ok_or_else(wrong)
        };
        let parts: Vec<&str> = text.split(':').collect();
        let rates = match parts.as_slice() {
            ["auto"] => Self::default(),
            ["auto", start] => Self::Search { start: number(start)?, limit: 1e6, precision: 0.05 },
            ["auto", start, limit] => {
                Self::Search { start: number(start)?, limit: number(limit)?, precision: 0.05 }
            }
            [start, end, step] => {
                Self::Range { start: number(start)?, end: number(end)?, step: number(step)? }
            }
            [list] => Self::List(list.split(',').map(number).collect::<Result<_>>()?),
            _ => return Err(wrong()),
        };
        rates.check_rates()?;
        Ok(rates)
    }
}

impl SweepRates {
    pub(crate) fn check_rates(&self) -> Result<()> {
        let above_zero = |rate: f64| rate.is_finite() && rate > 0.0;
        let sound = match self {
            Self::List(rates) => {
                !rates.is_empty()
                    && rates.len() <= MAX_STEPS
                    && rates.iter().all(|&rate| above_zero(rate))
            }
            Self::Range { start, end, step } => {
                [*start, *end, *step].into_iter().all(above_zero)
                    && start <= end
                    && (end - start) / step <= MAX_STEPS as f64
            }
            Self::Search { start, limit, precision } => {
                [*start, *limit, *precision].into_iter().all(above_zero) && start <= limit
            }
        };
        if !sound {
            return Err(Error::usage(format!(
                "rates {self:?}: expected numbers above zero, from low to high, and at most \
                 {MAX_STEPS} steps"
            )));
        }
        Ok(())
    }
}

/// The state of a sweep: what to try next follows from what was sustained.
#[derive(Debug)]
pub(crate) struct RateSearch {
    rates: SweepRates,
    tried: usize,
    /// The highest rate that was sustained.
    low: Option<f64>,
    /// The lowest rate that was not.
    high: Option<f64>,
}

impl RateSearch {
    pub(crate) fn new(rates: &SweepRates) -> Self {
        Self { rates: rates.clone(), tried: 0, low: None, high: None }
    }

    /// The rate to try next; `None` at the end.
    pub(crate) fn next_rate(&self) -> Option<f64> {
        if self.tried > MAX_STEPS {
            return None;
        }
        match &self.rates {
            SweepRates::List(rates) => rates.get(self.tried).copied(),
            SweepRates::Range { start, end, step } => {
                let rate = start + self.tried as f64 * step;
                // A little more than the end is the end, written in floating point.
                Some(rate).filter(|rate| *rate <= end + step * 1e-6)
            }
            SweepRates::Search { start, limit, precision } => match (self.low, self.high) {
                (None, None) => Some(*start),
                (Some(low), None) => Some((low * 2.0).min(*limit)).filter(|_| low < *limit),
                // Not even the first: the search goes down, but not for ever.
                (None, Some(high)) => Some(high / 2.0).filter(|rate| *rate > start / 1000.0),
                (Some(low), Some(high)) => {
                    Some((low + high) / 2.0).filter(|_| high > low * (1.0 + precision))
                }
            },
        }
    }

    /// Notes whether a rate was sustained.
    pub(crate) fn observe_rate(&mut self, rate: f64, sustained: bool) {
        self.tried += 1;
        if sustained {
            self.low = Some(self.low.map_or(rate, |low| low.max(rate)));
        } else {
            self.high = Some(self.high.map_or(rate, |high| high.min(rate)));
        }
    }
}

/// The highest of the rates that is sustained, by asking about one after the other.
pub fn find_saturation(
    rates: &SweepRates,
    mut sustained: impl FnMut(f64) -> bool,
) -> Result<Option<f64>> {
    rates.check_rates()?;
    let mut search = RateSearch::new(rates);
    while let Some(rate) = search.next_rate() {
        search.observe_rate(rate, sustained(rate));
    }
    Ok(search.low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks about a server that sustains up to `capacity`; the answer and the rates asked about.
    fn found(rates: &SweepRates, capacity: f64) -> (Option<f64>, Vec<f64>) {
        let mut asked = Vec::new();
        let saturation = find_saturation(rates, |rate| {
            asked.push(rate);
            rate <= capacity
        });
        (saturation.unwrap(), asked)
    }

    #[test]
    fn the_search_comes_within_its_precision_of_the_capacity() {
        for capacity in [0.7, 9.0, 10.0, 137.0, 4321.0, 99_999.0] {
            let (saturation, asked) = found(&SweepRates::default(), capacity);
            let saturation = saturation.unwrap();
            assert!(saturation <= capacity && saturation * 1.06 >= capacity, "{saturation}");
            assert!(asked.len() < 25, "{asked:?}");
            // The server is never asked for more than twice what it can do, nor ten at first.
            assert!(asked.iter().all(|&rate| rate <= (capacity * 2.0).max(10.0)), "{asked:?}");
        }
    }

    #[test]
    fn the_search_ends_at_its_limit_and_where_nothing_is_sustained() {
        let rates = SweepRates::Search { start: 10.0, limit: 100.0, precision: 0.05 };
        assert_eq!(found(&rates, 1e9), (Some(100.0), vec![10.0, 20.0, 40.0, 80.0, 100.0]));
        let (saturation, asked) = found(&rates, 0.0);
        assert_eq!(saturation, None);
        assert!(asked.len() < 12, "{asked:?}");
    }

    #[test]
    fn a_list_and_a_range_are_tried_whole() {
        let list = "100,400, 200".parse().unwrap();
        assert_eq!(found(&list, 250.0), (Some(200.0), vec![100.0, 400.0, 200.0]));
        let range = "0.1:0.5:0.1".parse().unwrap();
        let (saturation, asked) = found(&range, 0.35);
        assert_eq!(asked.len(), 5);
        assert!((saturation.unwrap() - 0.3).abs() < 1e-9);
    }

    #[test]
    fn rates_that_make_no_sense_are_refused() {
        for text in ["", "0", "1,x", "5:1:1", "1:2:0", "1:2", "auto:0", "auto:9:5", "1:1e9:1"] {
            assert!(text.parse::<SweepRates>().is_err(), "{text}");
        }
        assert_eq!("auto".parse::<SweepRates>().unwrap(), SweepRates::default());
        let expected = SweepRates::Search { start: 5.0, limit: 50.0, precision: 0.05 };
        assert_eq!("auto:5:50".parse::<SweepRates>().unwrap(), expected);
    }
}
