//! How figures change with another: a line for each series.

use super::axis::{AxisScale, ChartAxis, PlotFrame};
use super::svg::{COLOURS, InlineSvg, Svg, TextAnchor};
use crate::format::format_figure;
use crate::style::PICTURE_STYLE;

/// How large the picture is.
const SIZE: (f64, f64) = (720.0, 440.0);

/// What tells lines apart beside their colours.
const DASHES: [&str; 4] = ["", "8 4", "2 3", "10 3 2 3"];

/// Lines of more points than this have no dots on them: these would hide the line.
const MAX_DOTS: usize = 40;

/// Lines over a common axis.
pub struct LineChart {
    /// What it shows.
    pub title: String,
    /// What is on the horizontal axis.
    pub x: ChartAxis,
    /// What is on the vertical axis.
    pub y: ChartAxis,
    /// The lines.
    pub series: Vec<LineSeries>,
    /// A place along the horizontal axis to point out, and what it is.
    pub mark: Option<(f64, String)>,
}

/// A line.
pub struct LineSeries {
    /// What it is.
    pub name: String,
    /// Its points, from left to right. One that can't be shown is a gap.
    pub points: Vec<(f64, f64)>,
}

impl LineChart {
    /// The lines as a file.
    pub fn to_svg(&self) -> String {
        self.draw_chart().finish_svg()
    }

    /// The lines as a part of a page.
    pub fn to_inline_svg(&self) -> InlineSvg {
        self.draw_chart().finish_inline()
    }

    fn draw_chart(&self) -> Svg {
        let (width, height) = SIZE;
        let mut picture = Svg::new(&self.title, width, height);
        let entries: Vec<(String, String)> = self
            .series
            .iter()
            .enumerate()
            .map(|(number, series)| (format!("f{}", number % COLOURS), series.name.clone()))
            .collect();
        let top = picture.draw_legend(54.0, &entries) + 18.0;
        let frame = PlotFrame { left: 84.0, right: width - 24.0, top, bottom: height - 56.0 };
        let points = || self.series.iter().flat_map(|series| &series.points);
        let across = points().map(|point| point.0);
        let across = AxisScale::new(self.x.kind, across, (frame.left, frame.right));
        let upward = points().map(|point| point.1);
        let upward = AxisScale::new(self.y.kind, upward, (frame.bottom, frame.top));
        frame.draw_left(&mut picture, &upward, &self.y.label);
        frame.draw_bottom(&mut picture, &across, &self.x.label);
        self.draw_mark(&mut picture, &frame, &across);
        let shown = |point: &(f64, f64)| across.can_show(point.0) && upward.can_show(point.1);
        if !points().any(shown) {
            frame.draw_nothing(&mut picture);
        }
        for (number, series) in self.series.iter().enumerate() {
            let colour = number % COLOURS;
            let dashes = DASHES[number % DASHES.len()];
            for run in series.points.split(|point| !shown(point)).filter(|run| !run.is_empty()) {
                let places: Vec<(f64, f64)> =
                    run.iter().map(|&(x, y)| (across.place_of(x), upward.place_of(y))).collect();
                picture.path(&places, &format!("series s{colour}"), dashes);
                // A point between two gaps has no line to be seen by.
                if series.points.len() > MAX_DOTS && run.len() > 1 {
                    continue;
                }
                for (&place, &(x, y)) in places.iter().zip(run) {
                    let tip =
                        format!("{}: {} at {}", series.name, format_figure(y), format_figure(x));
                    picture.dot(place, 3.0, &format!("f{colour}"), &tip);
                }
            }
        }
        picture
    }

    fn draw_mark(&self, picture: &mut Svg, frame: &PlotFrame, across: &AxisScale) {
        let Some((at, name)) = self.mark.as_ref().filter(|(at, _)| across.can_show(*at)) else {
            return;
        };
        let x = across.place_of(*at);
        picture.line((x, frame.top), (x, frame.bottom), "mark");
        // On the side where there is room.
        let (x, anchor) = if x < (frame.left + frame.right) / 2.0 {
            (x + 6.0, TextAnchor::Start)
        } else {
            (x - 6.0, TextAnchor::End)
        };
        picture.text(x, frame.top + 12.0, anchor, "pale", name);
    }
}

/// Several pictures in one, two side by side.
pub fn combine_charts(pictures: &[LineChart]) -> String {
    let (width, height) = SIZE;
    let rows = pictures.len().div_ceil(2).max(1);
    let (wide, high) = (width * 2.0, height * rows as f64);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" \
         viewBox=\"0 0 {wide} {high}\">\n<style>{PICTURE_STYLE}</style>\n"
    );
    for (number, picture) in pictures.iter().enumerate() {
        let (x, y) = ((number % 2) as f64 * width, (number / 2) as f64 * height);
        let placed = format!("<svg x=\"{x}\" y=\"{y}\" ");
        text.push_str(&picture.to_inline_svg().as_str().replacen("<svg ", &placed, 1));
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::axis::AxisKind;
    use super::super::svg::tests::assert_sound;
    use super::*;

    fn lines(log_y: bool, points: Vec<(f64, f64)>) -> LineChart {
        LineChart {
            title: "latency & loss".to_owned(),
            x: ChartAxis::new(AxisKind::Linear, "nodes"),
            y: ChartAxis::new(
                if log_y { AxisKind::Logarithmic } else { AxisKind::FromZero },
                "latency (s)",
            ),
            series: vec![LineSeries { name: "exact <1>".to_owned(), points }],
            mark: None,
        }
    }

    #[test]
    fn a_line_goes_through_all_its_points() {
        let picture = lines(false, vec![(3.0, 1.0), (4.0, 2.0), (5.0, 1.5)]).to_svg();
        assert_sound(&picture);
        assert_eq!(picture.matches("<circle").count(), 3);
        assert_eq!(picture.matches("<path").count(), 1);
        assert!(picture.contains("<title>exact &lt;1&gt;: 2 at 4</title>"), "{picture}");
    }

    #[test]
    fn what_cannot_be_shown_is_a_gap() {
        let points = vec![(1.0, 1.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 0.0), (5.0, 3.0)];
        let picture = lines(true, points.clone()).to_svg();
        assert_sound(&picture);
        assert_eq!(picture.matches("<path").count(), 3, "zero has no logarithm");
        assert_eq!(lines(false, points).to_svg().matches("<path").count(), 2);
    }

    #[test]
    fn a_long_line_has_dots_where_it_could_not_be_seen_only() {
        let mut points: Vec<(f64, f64)> = (0..100).map(|x| (f64::from(x), 1.0)).collect();
        assert_eq!(lines(false, points.clone()).to_svg().matches("<circle").count(), 0);
        (points[49].1, points[51].1) = (f64::NAN, f64::NAN);
        assert_eq!(lines(false, points).to_svg().matches("<circle").count(), 1);
    }

    #[test]
    fn a_place_is_marked_on_the_side_where_there_is_room() {
        let mut chart = lines(false, vec![(0.0, 1.0), (10.0, 2.0)]);
        for (at, anchor) in [(2.0, "start"), (9.0, "end")] {
            chart.mark = Some((at, "here & now".to_owned()));
            let picture = chart.to_svg();
            assert_sound(&picture);
            assert_eq!(picture.matches("class=\"mark\"").count(), 1);
            let text = format!("text-anchor=\"{anchor}\" class=\"pale\">here &amp; now<");
            assert!(picture.contains(&text), "{picture}");
        }
        chart.mark = Some((f64::NAN, "nowhere".to_owned()));
        assert!(!chart.to_svg().contains("nowhere"));
    }

    #[test]
    fn several_pictures_are_one() {
        let one = || lines(false, vec![(1.0, 1.0)]);
        let picture = combine_charts(&[one(), one(), one()]);
        assert_sound(&picture);
        assert_eq!(picture.matches("<circle").count(), 3);
        assert!(picture.contains("viewBox=\"0 0 1440 880\""), "{picture}");
        assert!(picture.contains("<svg x=\"720\" y=\"0\" "));
        assert_sound(&combine_charts(&[]));
    }

    #[test]
    fn no_lines_are_a_picture_too() {
        for log_y in [false, true] {
            assert_sound(&lines(log_y, Vec::new()).to_svg());
            assert_sound(&lines(log_y, vec![(0.0, 0.0)]).to_svg());
            let nothing = LineChart { series: Vec::new(), ..lines(log_y, Vec::new()) };
            assert_sound(&nothing.to_svg());
        }
    }
}
