//! How figures are spread: a bar for each range of them.

use super::axis::{AxisKind, AxisScale, ChartAxis, PlotFrame};
use super::svg::{InlineSvg, Svg};
use crate::format::format_figure;

/// How large the picture is.
const SIZE: (f64, f64) = (720.0, 380.0);

/// Bars over ranges of figures.
pub struct HistogramChart {
    /// What it shows.
    pub title: String,
    /// What the ranges are of.
    pub x: ChartAxis,
    /// What is on the vertical axis, with its unit.
    pub y_label: String,
    /// The bars, from the left.
    pub bars: Vec<HistogramBar>,
}

/// A bar.
pub struct HistogramBar {
    /// Where its range begins.
    pub from: f64,
    /// Where its range ends.
    pub to: f64,
    /// How much of all is within.
    pub height: f64,
}

impl HistogramChart {
    /// The histogram as a file.
    pub fn to_svg(&self) -> String {
        self.draw_chart().finish_svg()
    }

    /// The histogram as a part of a page.
    pub fn to_inline_svg(&self) -> InlineSvg {
        self.draw_chart().finish_inline()
    }

    fn draw_chart(&self) -> Svg {
        let (width, height) = SIZE;
        let mut picture = Svg::new(&self.title, width, height);
        let frame = PlotFrame { left: 84.0, right: width - 24.0, top: 48.0, bottom: height - 56.0 };
        let ends = self.bars.iter().flat_map(|bar| [bar.from, bar.to]);
        let across = AxisScale::new(self.x.kind, ends, (frame.left, frame.right));
        let heights = self.bars.iter().map(|bar| bar.height);
        let upward = AxisScale::new(AxisKind::FromZero, heights, (frame.bottom, frame.top));
        frame.draw_left(&mut picture, &upward, &self.y_label);
        frame.draw_bottom(&mut picture, &across, &self.x.label);
        let mut drawn = false;
        for bar in &self.bars {
            let ends = across.can_show(bar.from) && across.can_show(bar.to);
            if !ends || !upward.can_show(bar.height) {
                continue;
            }
            let (from, to) = (across.place_of(bar.from), across.place_of(bar.to));
            let top = upward.place_of(bar.height);
            let tip = format!(
                "{} to {}: {}",
                format_figure(bar.from),
                format_figure(bar.to),
                format_figure(bar.height)
            );
            // A gap between neighbours, but nothing so narrow that it can't be seen.
            let size = ((to - from - 1.0).max(0.5), frame.bottom - top);
            picture.rect((from, top), size, "f0", &tip);
            drawn = true;
        }
        if !drawn {
            frame.draw_nothing(&mut picture);
        }
        picture
    }
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::assert_sound;
    use super::*;

    fn histogram(bars: &[(f64, f64, f64)]) -> HistogramChart {
        let bar = |&(from, to, height): &(f64, f64, f64)| HistogramBar { from, to, height };
        HistogramChart {
            title: "latency & more".to_owned(),
            x: ChartAxis::new(AxisKind::Logarithmic, "latency (ms)"),
            y_label: "answers (%)".to_owned(),
            bars: bars.iter().map(bar).collect(),
        }
    }

    #[test]
    fn every_range_is_a_bar() {
        let picture = histogram(&[(1.0, 2.0, 55.5), (2.0, 15.0, 44.5)]).to_svg();
        assert_sound(&picture);
        assert_eq!(picture.matches("</rect>").count(), 2);
        assert!(picture.contains("<title>1 to 2: 55.5</title>"), "{picture}");
        assert!(!picture.contains("nothing to show"));
    }

    #[test]
    fn a_histogram_of_nothing_says_so() {
        for bars in [&[][..], &[(0.0, 0.0, f64::NAN)]] {
            let picture = histogram(bars).to_svg();
            assert_sound(&picture);
            assert!(picture.contains("nothing to show"));
        }
    }
}
