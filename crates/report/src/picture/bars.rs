//! Figures side by side: a group of bars for each that is compared.

use super::axis::{AxisKind, AxisScale, PlotFrame};
use super::svg::{COLOURS, InlineSvg, Svg, TEXT_SIZE, TextAnchor, fit_text, text_width};
use crate::format::format_figure;

/// How high the picture is.
const HEIGHT: f64 = 420.0;

/// Bars in groups.
pub struct BarChart {
    /// What it shows.
    pub title: String,
    /// What is on the vertical axis, with its unit.
    pub y_label: String,
    /// The groups, from the left.
    pub groups: Vec<String>,
    /// What each group has a bar for, with the figure of each group.
    pub series: Vec<(String, Vec<f64>)>,
}

impl BarChart {
    /// Whether there is a figure for any bar.
    pub fn has_figures(&self) -> bool {
        self.series.iter().flat_map(|(_, figures)| figures).any(|figure| figure.is_finite())
    }

    /// The bars as a file.
    pub fn to_svg(&self) -> String {
        self.draw_chart().finish_svg()
    }

    /// The bars as a part of a page.
    pub fn to_inline_svg(&self) -> InlineSvg {
        self.draw_chart().finish_inline()
    }

    fn draw_chart(&self) -> Svg {
        let bars = self.series.len().max(1) as f64;
        let names = self.groups.iter().map(|name| text_width(name, TEXT_SIZE) + 12.0);
        let widest = names.fold(0.0, f64::max).min(160.0);
        let group = (bars * 26.0 + 24.0).max(widest);
        let width = (108.0 + group * self.groups.len() as f64).max(480.0);
        let mut picture = Svg::new(&self.title, width, HEIGHT);
        let entries: Vec<(String, String)> = self
            .series
            .iter()
            .enumerate()
            .map(|(number, (name, _))| (format!("f{}", number % COLOURS), name.clone()))
            .collect();
        let top = picture.draw_legend(54.0, &entries) + 18.0;
        let frame = PlotFrame { left: 84.0, right: width - 24.0, top, bottom: HEIGHT - 44.0 };
        let figures = self.series.iter().flat_map(|(_, figures)| figures).copied();
        let axis = AxisScale::new(AxisKind::FromZero, figures, (frame.bottom, frame.top));
        frame.draw_left(&mut picture, &axis, &self.y_label);
        let room = (frame.right - frame.left) / self.groups.len().max(1) as f64;
        let bar = ((room - 24.0) / bars).min(60.0);
        for (number, name) in self.groups.iter().enumerate() {
            let middle = frame.left + room * (number as f64 + 0.5);
            let shown = fit_text(name, room - 6.0, TEXT_SIZE);
            picture.text(middle, frame.bottom + 20.0, TextAnchor::Middle, "", &shown);
            for (of, (series, figures)) in self.series.iter().enumerate() {
                let Some(&value) = figures.get(number).filter(|value| value.is_finite()) else {
                    continue;
                };
                let x = middle + bar * (of as f64 - bars / 2.0);
                let (zero, end) = (axis.place_of(0.0), axis.place_of(value));
                let (y, height) = (zero.min(end), (zero - end).abs());
                let class = format!("f{}", of % COLOURS);
                let tip = format!("{name}, {series}: {}", format_figure(value));
                picture.rect((x + 1.0, y), (bar - 2.0, height), &class, &tip);
            }
        }
        let zero = axis.place_of(0.0);
        picture.line((frame.left, zero), (frame.right, zero), "axis");
        picture
    }
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::assert_sound;
    use super::*;

    fn bars(groups: &[&str], series: Vec<(String, Vec<f64>)>) -> BarChart {
        BarChart {
            title: "memory".to_owned(),
            y_label: "bytes (MB)".to_owned(),
            groups: groups.iter().map(|&name| name.to_owned()).collect(),
            series,
        }
    }

    #[test]
    fn there_is_a_bar_for_each_figure_of_each_group() {
        let series =
            vec![("one".to_owned(), vec![1.0, 2.0]), ("<two>".to_owned(), vec![3.0, -4.0])];
        let picture = bars(&["a & b", "c"], series).to_svg();
        assert_sound(&picture);
        assert!(picture.contains("<title>a &amp; b, one: 1</title>"), "{picture}");
        assert!(picture.contains("<title>c, &lt;two&gt;: -4</title>"));
        assert_eq!(picture.matches("</rect>").count(), 4);
    }

    #[test]
    fn figures_that_are_missing_or_none_have_no_bar() {
        let series = vec![("one".to_owned(), vec![f64::NAN, f64::INFINITY, 1.0])];
        let picture = bars(&["a", "b", "c", "d"], series).to_svg();
        assert_sound(&picture);
        assert_eq!(picture.matches("</rect>").count(), 1);
    }

    #[test]
    fn no_bars_are_a_picture_too() {
        assert_sound(&bars(&[], Vec::new()).to_svg());
        assert_sound(&bars(&["a"], Vec::new()).to_svg());
        assert_sound(&bars(&[], vec![("one".to_owned(), vec![1.0])]).to_svg());
    }
}
