//! Axes: from figures to places, with ticks that people can read.

use super::svg::{Anchor, Svg, figure};

/// A range of figures and the range of places that it is drawn on.
pub(super) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

/// Where the figures of a picture are drawn: its edges, and the axes.
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Axis {
    /// An axis for these figures, from one place to another. What is no number is passed over; where
    /// nothing is left, it is from 0 to 1.
    pub(super) fn new(
        figures: impl Iterator<Item = f64>,
        logarithmic: bool,
        with_zero: bool,
        (from, to): (f64, f64),
    ) -> Self {
        let usable = |figure: &f64| figure.is_finite() && (!logarithmic || *figure > 0.0);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for figure in figures.filter(usable) {
            (low, high) = (low.min(figure), high.max(figure));
        }
        if low > high {
            (low, high) = if logarithmic { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if logarithmic {
            if high < low * 1.5 {
                (low, high) = (low / 2.0, high * 2.0);
            }
        } else {
            if with_zero {
                (low, high) = (low.min(0.0), high.max(0.0));
            }
            if high - low <= 1e-12 * high.abs().max(low.abs()) {
                let room = if high == 0.0 { 1.0 } else { high.abs() / 2.0 };
                (low, high) = if with_zero && low >= 0.0 {
                    (0.0, high + room)
                } else {
                    (low - room, high + room)
                };
            }
            let step = step(low, high, 5);
            (low, high) = ((low / step).floor() * step, (high / step - 1e-9).ceil() * step);
        }
        Self { low, high, logarithmic, from, to }
    }

    /// Where a figure is; what lies outside is at the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let scale = |value: f64| {
            if self.logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value }
        };
        let (low, high) = (scale(self.low), scale(self.high));
        let part = ((scale(value) - low) / (high - low)).clamp(0.0, 1.0);
        match part.is_nan() {
            true => self.from,
            false => self.from + part * (self.to - self.from),
        }
    }

    /// Whether a figure can be shown on it.
    pub(super) fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.logarithmic || value > 0.0)
    }

    /// Figures to mark on it.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.logarithmic {
            true => logarithmic_ticks(self.low, self.high),
            false => ticks(self.low, self.high, 5),
        }
    }
}

impl Frame {
    /// Draws the grid and the labels of an axis at the left side.
    pub(super) fn draw_left(&self, picture: &mut Svg, axis: &Axis, label: &str) {
        for tick in axis.ticks() {
            let y = axis.at(tick);
            picture.line((self.left, y), (self.right, y), "grid");
            picture.text(self.left - 8.0, y + 4.0, Anchor::End, "pale small", &figure(tick));
        }
        picture.line((self.left, self.top), (self.left, self.bottom), "axis");
        picture.upright(18.0, (self.top + self.bottom) / 2.0, label);
    }

    /// Draws the grid and the labels of an axis at the bottom.
    pub(super) fn draw_bottom(&self, picture: &mut Svg, axis: &Axis, label: &str) {
        for tick in axis.ticks() {
            let x = axis.at(tick);
            picture.line((x, self.top), (x, self.bottom), "grid");
            picture.text(x, self.bottom + 16.0, Anchor::Middle, "pale small", &figure(tick));
        }
        picture.line((self.left, self.bottom), (self.right, self.bottom), "axis");
        let middle = (self.left + self.right) / 2.0;
        picture.text(middle, self.bottom + 36.0, Anchor::Middle, "pale", label);
    }
}

/// A step of 1, 2 or 5 times a power of ten, such that there are about so many.
fn step(low: f64, high: f64, about: usize) -> f64 {
    let rough = (high - low) / about.max(1) as f64;
    if !(rough.is_finite() && rough > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(rough.log10().floor());
    let times = match rough / power {
        part if part < 1.5 => 1.0,
        part if part < 3.5 => 2.0,
        part if part < 7.5 => 5.0,
        _ => 10.0,
    };
    times * power
}

/// Round figures from `low` to `high`, about so many.
pub(super) fn ticks(low: f64, high: f64, about: usize) -> Vec<f64> {
    if !(low.is_finite() && high.is_finite() && low < high) {
        return Vec::new();
    }
    let step = step(low, high, about);
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    // A handful each time, whatever the figures are.
    let count = ((last - first).max(0.0) as usize).min(50);
    (0..=count).map(|number| (first + number as f64) * step).collect()
}

/// Powers of ten, and where there are few of them, twice and five times these.
fn logarithmic_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decades = high.log10() - low.log10();
    let times: &[f64] = match decades {
        decades if decades < 1.5 => &[1.0, 2.0, 3.0, 5.0],
        decades if decades < 3.5 => &[1.0, 3.0],
        _ => &[1.0],
    };
    let every = ((last - first) / 8).max(1) as usize;
    (first..=last)
        .step_by(every)
        .flat_map(|power| times.iter().map(move |times| times * 10f64.powi(power)))
        .filter(|tick| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(tick))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: &[f64], expected: &[f64]) -> bool {
        found.len() == expected.len()
            && found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-9)
    }

    #[test]
    fn ticks_are_round_figures_within_the_range() {
        assert!(close(&ticks(0.0, 10.0, 5), &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]));
        assert!(close(&ticks(0.0, 1.0, 5), &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]));
        assert!(close(&ticks(3.0, 21.0, 5), &[5.0, 10.0, 15.0, 20.0]));
        assert!(close(&ticks(-1.0, 1.0, 4), &[-1.0, -0.5, 0.0, 0.5, 1.0]));
        assert!(ticks(1.0, 1.0, 5).is_empty());
        assert!(ticks(f64::NAN, 1.0, 5).is_empty());
    }

    #[test]
    fn logarithmic_ticks_are_powers_of_ten_and_more_where_these_are_few() {
        assert!(close(&logarithmic_ticks(1.0, 10_000.0), &[1.0, 10.0, 100.0, 1000.0, 10_000.0]));
        assert!(close(&logarithmic_ticks(2.0, 20.0), &[2.0, 3.0, 5.0, 10.0, 20.0]));
        let many = logarithmic_ticks(1e-100, 1e100);
        assert!((5..=30).contains(&many.len()), "{many:?}");
    }

    #[test]
    fn an_axis_maps_its_ends_to_its_places_and_clamps_the_rest() {
        let axis = Axis::new([1.0, 9.0].into_iter(), false, true, (100.0, 200.0));
        assert_eq!(axis.at(0.0), 100.0);
        assert_eq!(axis.at(10.0), 200.0);
        assert_eq!(axis.at(1e300), 200.0);
        assert_eq!(axis.at(f64::NAN), 100.0);
        let axis = Axis::new([1.0, 100.0].into_iter(), true, false, (0.0, 2.0));
        assert!((axis.at(10.0) - 1.0).abs() < 1e-12);
        assert!(!axis.shows(0.0) && !axis.shows(f64::INFINITY) && axis.shows(1.0));
    }

    #[test]
    fn an_axis_without_figures_or_with_one_still_has_a_range() {
        for figures in [vec![], vec![f64::NAN], vec![5.0], vec![0.0], vec![-2.0], vec![1e300]] {
            for logarithmic in [false, true] {
                for with_zero in [false, true] {
                    let axis =
                        Axis::new(figures.iter().copied(), logarithmic, with_zero, (0.0, 10.0));
                    assert!(axis.low < axis.high, "{figures:?}");
                    assert!(!axis.ticks().is_empty(), "{figures:?} {logarithmic} {with_zero}");
                }
            }
        }
    }
}
