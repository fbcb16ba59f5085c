//! The scales of plots: from values to places, and where the ticks are.

/// How values are laid out along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Evenly, from zero.
    Linear,
    /// Every factor of ten as wide as the next.
    Logarithmic,
    /// Percentiles, every nine as wide as the next.
    Nines,
}

/// A scale over the values that are to be shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    /// From tick to tick, on a linear scale.
    step: f64,
}

impl Scale {
    /// A scale that has room for these values; those that it can't show don't count.
    pub(crate) fn new(kind: Kind, values: impl Iterator<Item = f64>) -> Option<Self> {
        let shown = values.filter(|&value| is_shown(kind, value));
        let bounds = shown.fold(None, |bounds: Option<(f64, f64)>, value| {
            Some(bounds.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        });
        let (low, high) = bounds?;
        let step = step(if high > 0.0 { high } else { 1.0 });
        let (low, high) = match kind {
            Kind::Linear => (0.0, (high / step).ceil().max(1.0) * step),
            Kind::Logarithmic => {
                let (low, high) = (round(low, false), round(high, true));
                (low, if high > low { high } else { low * 10.0 })
            }
            Kind::Nines => (0.0, high.max(90.0)),
        };
        Some(Self { kind, low, high, step })
    }

    /// Where a value is, between zero and one; `None` where it can't be shown.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        if !is_shown(self.kind, value) {
            return None;
        }
        let along = |value: f64| match self.kind {
            Kind::Linear => value,
            Kind::Logarithmic => value.log10(),
            Kind::Nines => -(1.0 - value / 100.0).log10(),
        };
        let (low, high) = (along(self.low), along(self.high));
        Some(((along(value) - low) / (high - low)).clamp(0.0, 1.0))
    }

    /// Values with a tick, and what is written there.
    pub(crate) fn ticks(&self) -> Vec<(f64, String)> {
        let values: Vec<f64> = match self.kind {
            Kind::Linear => {
                let count = (self.high / self.step).round() as usize;
                (0..=count).map(|index| index as f64 * self.step).collect()
            }
            Kind::Logarithmic => {
                let (first, last) =
                    (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
                let factors: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let decade = |power: i32| factors.iter().map(move |f| f * 10f64.powi(power));
                let within = self.low * 0.999..=self.high * 1.001;
                (first..=last).flat_map(decade).filter(|value| within.contains(value)).collect()
            }
            Kind::Nines => [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999]
                .into_iter()
                .filter(|value| *value <= self.high * 1.000_000_1)
                .collect(),
        };
        values.into_iter().map(|value| (value, label(value))).collect()
    }
}

fn is_shown(kind: Kind, value: f64) -> bool {
    value.is_finite()
        && match kind {
            Kind::Linear => true,
            Kind::Logarithmic => value > 0.0,
            Kind::Nines => (0.0..100.0).contains(&value),
        }
}

/// A step of 1, 2 or 5 times a power of ten that makes four to ten of them up to `high`.
fn step(high: f64) -> f64 {
    let rough = high / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    match rough / power {
        part if part < 1.5 => power,
        part if part < 3.5 => 2.0 * power,
        part if part < 7.5 => 5.0 * power,
        _ => 10.0 * power,
    }
}

/// The next of 1, 2 or 5 times a power of ten, above or below.
fn round(value: f64, up: bool) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    // What is a hair beyond a round value is that value.
    let near = |factor: &f64| match up {
        true => factor * power >= value * 0.999_999,
        false => factor * power <= value * 1.000_001,
    };
    let found = match up {
        true => [1.0, 2.0, 5.0, 10.0].into_iter().find(near),
        false => [5.0, 2.0, 1.0].into_iter().find(near),
    };
    found.unwrap_or(1.0) * power
}

/// A number as short as it can be: `0.5`, `20`, `50k`.
pub(crate) fn label(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(kind: Kind, values: &[f64]) -> Vec<String> {
        let scale = Scale::new(kind, values.iter().copied()).unwrap();
        scale.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        assert_eq!(labels(Kind::Linear, &[3.0, 97.0]), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(labels(Kind::Logarithmic, &[0.3, 4.0]), ["0.2", "0.5", "1", "2", "5"]);
        assert_eq!(
            labels(Kind::Logarithmic, &[0.01, 20_000.0]),
            ["0.01", "0.1", "1", "10", "100", "1000", "10k"]
        );
        assert_eq!(labels(Kind::Nines, &[0.0, 99.95]), ["0", "50", "90", "99", "99.9"]);
        assert!(Scale::new(Kind::Logarithmic, [0.0, f64::NAN].into_iter()).is_none());
    }

    #[test]
    fn values_are_placed_between_zero_and_one() {
        let scale = Scale::new(Kind::Logarithmic, [1.0, 100.0].into_iter()).unwrap();
        assert_eq!(scale.place(1.0), Some(0.0));
        assert!((scale.place(10.0).unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(scale.place(1e9), Some(1.0));
        assert_eq!(scale.place(0.0), None);
        let nines = Scale::new(Kind::Nines, [99.0].into_iter()).unwrap();
        assert!((nines.place(90.0).unwrap() - 0.5).abs() < 1e-9);
    }
}
