//! Axes: from figures to places, with ticks that people can read.

use super::svg::{Svg, TextAnchor};
use crate::format::{format_figure, trim_zeros};

/// How figures are laid out along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisKind {
    /// Evenly, over what there is.
    Linear,
    /// Evenly, with zero on it.
    FromZero,
    /// Every factor of ten as wide as the next.
    Logarithmic,
    /// Percentiles, every nine as wide as the next.
    Nines,
}

/// What an axis of a chart shows.
#[derive(Clone, Debug)]
pub struct ChartAxis {
    /// What is on it, with its unit.
    pub label: String,
    /// How it is laid out.
    pub kind: AxisKind,
}

/// A range of figures and the range of places that it is drawn on.
pub(super) struct AxisScale {
    low: f64,
    high: f64,
    kind: AxisKind,
    from: f64,
    to: f64,
}

/// Where the figures of a picture are drawn: its edges, and the axes.
pub(super) struct PlotFrame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl ChartAxis {
    /// An axis of this kind for what the label says.
    pub fn new(kind: AxisKind, label: impl Into<String>) -> Self {
        Self { label: label.into(), kind }
    }
}

impl AxisKind {
    /// Whether a figure can be shown on such an axis.
    fn can_show(self, value: f64) -> bool {
        value.is_finite()
            && match self {
                Self::Linear | Self::FromZero => true,
                // What is next to nothing has a logarithm, but no power of ten below it.
                Self::Logarithmic => value > 0.0 && value.is_normal(),
                Self::Nines => (0.0..100.0).contains(&value),
            }
    }

    /// The ends of an axis for figures of this range, where there are any.
    fn axis_ends(self, (low, high): (f64, f64)) -> (f64, f64) {
        let some = low <= high;
        match self {
            Self::Linear | Self::FromZero => {
                let (low, high) = if some { (low, high) } else { (0.0, 1.0) };
                linear_ends(low, high, self == Self::FromZero)
            }
            Self::Logarithmic => {
                let (low, high) = if some { (low, high) } else { (1.0, 10.0) };
                let (low, high) =
                    if high < low * 1.5 { (low / 2.0, high * 2.0) } else { (low, high) };
                (tick_below(low), tick_above(high))
            }
            Self::Nines => (0.0, if some { high.max(90.0) } else { 99.0 }),
        }
    }
}

impl AxisScale {
    /// An axis for these figures, from one place to another. What can't be shown is passed over;
    /// where nothing is left, it has a range all the same.
    pub(super) fn new(
        kind: AxisKind,
        figures: impl Iterator<Item = f64>,
        (from, to): (f64, f64),
    ) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for figure in figures.filter(|&figure| kind.can_show(figure)) {
            (low, high) = (low.min(figure), high.max(figure));
        }
        let (low, high) = kind.axis_ends((low, high));
        Self { low, high, kind, from, to }
    }

    /// Where a figure is; what lies outside is at the end.
    pub(super) fn place_of(&self, value: f64) -> f64 {
        let along = |value: f64| match self.kind {
            AxisKind::Linear | AxisKind::FromZero => value,
            AxisKind::Logarithmic => value.max(f64::MIN_POSITIVE).log10(),
            AxisKind::Nines => -(1.0 - value / 100.0).max(f64::MIN_POSITIVE).log10(),
        };
        let (low, high) = (along(self.low), along(self.high));
        let part = ((along(value) - low) / (high - low)).clamp(0.0, 1.0);
        if part.is_nan() { self.from } else { self.from + part * (self.to - self.from) }
    }

    /// Whether a figure can be shown on it.
    pub(super) fn can_show(&self, value: f64) -> bool {
        self.kind.can_show(value)
    }

    /// Figures to mark on it.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.kind {
            AxisKind::Linear | AxisKind::FromZero => round_ticks(self.low, self.high, 5),
            AxisKind::Logarithmic => logarithmic_ticks(self.low, self.high),
            AxisKind::Nines => [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999]
                .into_iter()
                .filter(|tick| *tick <= self.high * (1.0 + 1e-9))
                .collect(),
        }
    }

    /// What is written at a tick, as short as it can be: `0.5`, `20`, `50k`.
    fn tick_label(&self, tick: f64) -> String {
        match tick.abs() {
            _ if self.kind == AxisKind::Nines => trim_zeros(&format!("{tick:.6}")).to_owned(),
            size if (1e4..1e6).contains(&size) => format!("{}k", format_figure(tick / 1e3)),
            size if (1e6..1e9).contains(&size) => format!("{}M", format_figure(tick / 1e6)),
            _ => format_figure(tick),
        }
    }
}

impl PlotFrame {
    /// Draws the grid and the labels of an axis at the left side.
    pub(super) fn draw_left(&self, picture: &mut Svg, axis: &AxisScale, label: &str) {
        for tick in axis.ticks() {
            let (y, shown) = (axis.place_of(tick), axis.tick_label(tick));
            picture.line((self.left, y), (self.right, y), "grid");
            picture.text(self.left - 8.0, y + 4.0, TextAnchor::End, "pale small", &shown);
        }
        picture.line((self.left, self.top), (self.left, self.bottom), "axis");
        picture.upright_text(18.0, (self.top + self.bottom) / 2.0, label);
    }

    /// Draws the grid and the labels of an axis at the bottom.
    pub(super) fn draw_bottom(&self, picture: &mut Svg, axis: &AxisScale, label: &str) {
        for tick in axis.ticks() {
            let (x, shown) = (axis.place_of(tick), axis.tick_label(tick));
            // Where the other axis is, the grid would be drawn over it.
            if x > self.left {
                picture.line((x, self.top), (x, self.bottom), "grid");
            }
            picture.text(x, self.bottom + 16.0, TextAnchor::Middle, "pale small", &shown);
        }
        picture.line((self.left, self.bottom), (self.right, self.bottom), "axis");
        let middle = (self.left + self.right) / 2.0;
        picture.text(middle, self.bottom + 36.0, TextAnchor::Middle, "pale", label);
    }

    /// Says that there is nothing, where there would be something.
    pub(super) fn draw_nothing(&self, picture: &mut Svg) {
        let middle = ((self.left + self.right) / 2.0, (self.top + self.bottom) / 2.0);
        picture.text(middle.0, middle.1, TextAnchor::Middle, "pale", "nothing to show");
    }
}

/// The ends of an axis that is laid out evenly: round figures with some room between them.
fn linear_ends(low: f64, high: f64, with_zero: bool) -> (f64, f64) {
    // What is next to nothing is nothing: no step is small enough for it.
    let [mut low, mut high] = [low, high].map(|end| if end.is_normal() { end } else { 0.0 });
    if with_zero {
        (low, high) = (low.min(0.0), high.max(0.0));
    }
    if high - low <= 1e-12 * high.abs().max(low.abs()) {
        let room = if high == 0.0 { 1.0 } else { high.abs() / 2.0 };
        (low, high) =
            if with_zero && low >= 0.0 { (0.0, high + room) } else { (low - room, high + room) };
    }
    let step = tick_step(low, high, 5);
    ((low / step).floor() * step, (high / step - 1e-9).ceil() * step)
}

/// A step of 1, 2 or 5 times a power of ten, such that there are about so many.
fn tick_step(low: f64, high: f64, about: usize) -> f64 {
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
pub(super) fn round_ticks(low: f64, high: f64, about: usize) -> Vec<f64> {
    if !(low.is_finite() && high.is_finite() && low < high) {
        return Vec::new();
    }
    let step = tick_step(low, high, about);
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    // A handful each time, whatever the figures are.
    let count = ((last - first).max(0.0) as usize).min(50);
    (0..=count).map(|number| (first + number as f64) * step).collect()
}

/// Powers of ten, and where there are few of them, twice and five times these.
fn logarithmic_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let times: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = ((last - first) / 8).max(1) as usize;
    (first..=last)
        .step_by(every)
        .flat_map(|power| times.iter().map(move |times| times * 10f64.powi(power)))
        .filter(|tick| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(tick))
        .collect()
}

/// The next of 1, 2 or 5 times a power of ten at or below a figure.
fn tick_below(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    // What is a hair beyond a round figure is that figure.
    let below = |times: &f64| times * power <= value * 1.000_001;
    [5.0, 2.0].into_iter().find(below).unwrap_or(1.0) * power
}

/// The next of 1, 2 or 5 times a power of ten at or above a figure.
fn tick_above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let above = |times: &f64| times * power >= value * 0.999_999;
    [1.0, 2.0, 5.0].into_iter().find(above).unwrap_or(10.0) * power
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
        assert!(close(&round_ticks(0.0, 10.0, 5), &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]));
        assert!(close(&round_ticks(0.0, 1.0, 5), &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]));
        assert!(close(&round_ticks(3.0, 21.0, 5), &[5.0, 10.0, 15.0, 20.0]));
        assert!(close(&round_ticks(-1.0, 1.0, 4), &[-1.0, -0.5, 0.0, 0.5, 1.0]));
        assert!(round_ticks(1.0, 1.0, 5).is_empty());
        assert!(round_ticks(f64::NAN, 1.0, 5).is_empty());
    }

    #[test]
    fn logarithmic_ticks_are_powers_of_ten_and_more_where_these_are_few() {
        assert!(close(&logarithmic_ticks(1.0, 10_000.0), &[1.0, 10.0, 100.0, 1000.0, 10_000.0]));
        assert!(close(&logarithmic_ticks(2.0, 20.0), &[2.0, 5.0, 10.0, 20.0]));
        let many = logarithmic_ticks(1e-100, 1e100);
        assert!((5..=30).contains(&many.len()), "{many:?}");
    }

    #[test]
    fn ticks_cover_the_figures_and_have_short_labels() {
        let labels = |kind, figures: &[f64]| -> Vec<String> {
            let axis = AxisScale::new(kind, figures.iter().copied(), (0.0, 1.0));
            axis.ticks().into_iter().map(|tick| axis.tick_label(tick)).collect()
        };
        assert_eq!(labels(AxisKind::FromZero, &[3.0, 97.0]), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(labels(AxisKind::Logarithmic, &[0.3, 4.0]), ["0.2", "0.5", "1", "2", "5"]);
        assert_eq!(
            labels(AxisKind::Logarithmic, &[0.01, 20_000.0]),
            ["0.01", "0.1", "1", "10", "100", "1000", "10k"]
        );
        assert_eq!(labels(AxisKind::Nines, &[0.0, 99.95]), ["0", "50", "90", "99", "99.9"]);
        assert_eq!(labels(AxisKind::FromZero, &[4e6])[1], "1M");
    }

    #[test]
    fn an_axis_maps_its_ends_to_its_places_and_clamps_the_rest() {
        let axis = AxisScale::new(AxisKind::FromZero, [1.0, 9.0].into_iter(), (100.0, 200.0));
        assert_eq!(axis.place_of(0.0), 100.0);
        assert_eq!(axis.place_of(10.0), 200.0);
        assert_eq!(axis.place_of(1e300), 200.0);
        assert_eq!(axis.place_of(f64::NAN), 100.0);
        let axis = AxisScale::new(AxisKind::Logarithmic, [1.0, 100.0].into_iter(), (0.0, 2.0));
        assert!((axis.place_of(10.0) - 1.0).abs() < 1e-12);
        assert_eq!([1.0, 1e9].map(|value| axis.place_of(value)), [0.0, 2.0]);
        assert!(!axis.can_show(0.0) && !axis.can_show(f64::INFINITY) && axis.can_show(1.0));
        let nines = AxisScale::new(AxisKind::Nines, [99.0].into_iter(), (0.0, 1.0));
        assert!((nines.place_of(90.0) - 0.5).abs() < 1e-9);
        assert!(nines.can_show(0.0) && !nines.can_show(100.0));
    }

    #[test]
    fn an_axis_without_figures_or_with_one_still_has_a_range() {
        let small = f64::from_bits(1);
        let all =
            [vec![], vec![f64::NAN], vec![5.0], vec![0.0], vec![-2.0], vec![1e300], vec![small]];
        for figures in all {
            for kind in
                [AxisKind::Linear, AxisKind::FromZero, AxisKind::Logarithmic, AxisKind::Nines]
            {
                let axis = AxisScale::new(kind, figures.iter().copied(), (0.0, 10.0));
                assert!(axis.low < axis.high, "{figures:?} {kind:?}");
                assert!(!axis.ticks().is_empty(), "{figures:?} {kind:?}");
            }
        }
    }
}
