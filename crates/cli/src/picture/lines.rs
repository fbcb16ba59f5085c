//! How figures change with another: a line for each series.

use super::axis::{Axis, Frame};
use super::svg::{COLOURS, Svg, figure};

/// How large the picture is.
const SIZE: (f64, f64) = (720.0, 440.0);

/// What tells lines apart beside their colours.
const DASHES: [&str; 4] = ["", "8 4", "2 3", "10 3 2 3"];

/// Lines over a common axis.
pub(crate) struct Lines {
    /// What it shows.
    pub(crate) title: String,
    /// What is on the horizontal axis, with its unit.
    pub(crate) x_label: String,
    /// What is on the vertical axis, with its unit.
    pub(crate) y_label: String,
    /// Whether the vertical axis has a step for each factor of ten.
    pub(crate) log_y: bool,
    /// The lines.
    pub(crate) series: Vec<Series>,
}

/// A line.
pub(crate) struct Series {
    /// What it is.
    pub(crate) name: String,
    /// Its points, from left to right. One that can't be shown is a gap.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Lines {
    /// The lines as a picture.
    pub(crate) fn svg(&self) -> String {
        let (width, height) = SIZE;
        let mut picture = Svg::new(&self.title, width, height);
        let entries: Vec<(String, String)> = self
            .series
            .iter()
            .enumerate()
            .map(|(number, series)| (format!("f{}", number % COLOURS), series.name.clone()))
            .collect();
        let top = picture.legend(54.0, &entries) + 18.0;
        let frame = Frame { left: 84.0, right: width - 24.0, top, bottom: height - 56.0 };
        let points = || self.series.iter().flat_map(|series| &series.points);
        let across =
            Axis::new(points().map(|point| point.0), false, false, (frame.left, frame.right));
        let upward = Axis::new(
            points().map(|point| point.1),
            self.log_y,
            !self.log_y,
            (frame.bottom, frame.top),
        );
        frame.draw_left(&mut picture, &upward, &self.y_label);
        frame.draw_bottom(&mut picture, &across, &self.x_label);
        for (number, series) in self.series.iter().enumerate() {
            let colour = number % COLOURS;
            let dashes = DASHES[number % DASHES.len()];
            let shown = |point: &(f64, f64)| across.shows(point.0) && upward.shows(point.1);
            for run in series.points.split(|point| !shown(point)).filter(|run| !run.is_empty()) {
                let places: Vec<(f64, f64)> =
                    run.iter().map(|&(x, y)| (across.at(x), upward.at(y))).collect();
                picture.path(&places, &format!("series s{colour}"), dashes);
                for (&place, &(x, y)) in places.iter().zip(run) {
                    let tip = format!("{}: {} at {}", series.name, figure(y), figure(x));
                    picture.dot(place, 3.0, &format!("f{colour}"), &tip);
                }
            }
        }
        picture.finish()
    }
}

/// Several pictures in one, two side by side.
pub(crate) fn together(pictures: &[Lines]) -> String {
    let (width, height) = SIZE;
    let rows = pictures.len().div_ceil(2).max(1);
    let (wide, high) = (width * 2.0, height * rows as f64);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" viewBox=\"0 0 {wide} {high}\">\n"
    );
    for (number, picture) in pictures.iter().enumerate() {
        let (x, y) = ((number % 2) as f64 * width, (number / 2) as f64 * height);
        text.push_str(&picture.svg().replacen("<svg ", &format!("<svg x=\"{x}\" y=\"{y}\" "), 1));
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::assert_sound;
    use super::*;

    fn lines(log_y: bool, points: Vec<(f64, f64)>) -> Lines {
        Lines {
            title: "latency & loss".to_owned(),
            x_label: "nodes".to_owned(),
            y_label: "latency (s)".to_owned(),
            log_y,
            series: vec![Series { name: "exact <1>".to_owned(), points }],
        }
    }

    #[test]
    fn a_line_goes_through_all_its_points() {
        let picture = lines(false, vec![(3.0, 1.0), (4.0, 2.0), (5.0, 1.5)]).svg();
        assert_sound(&picture);
        assert_eq!(picture.matches("<circle").count(), 3);
        assert_eq!(picture.matches("<path").count(), 1);
        assert!(picture.contains("<title>exact &lt;1&gt;: 2 at 4</title>"), "{picture}");
    }

    #[test]
    fn what_cannot_be_shown_is_a_gap() {
        let points = vec![(1.0, 1.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 0.0), (5.0, 3.0)];
        let picture = lines(true, points.clone()).svg();
        assert_sound(&picture);
        assert_eq!(picture.matches("<path").count(), 3, "zero has no logarithm");
        assert_eq!(lines(false, points).svg().matches("<path").count(), 2);
    }

    #[test]
    fn several_pictures_are_one() {
        let one = || lines(false, vec![(1.0, 1.0)]);
        let picture = together(&[one(), one(), one()]);
        assert_sound(&picture);
        assert_eq!(picture.matches("<circle").count(), 3);
        assert!(picture.contains("viewBox=\"0 0 1440 880\""), "{picture}");
        assert!(picture.contains("<svg x=\"720\" y=\"0\" "));
        assert_sound(&together(&[]));
    }

    #[test]
    fn no_lines_are_a_picture_too() {
        for log_y in [false, true] {
            assert_sound(&lines(log_y, Vec::new()).svg());
            assert_sound(&lines(log_y, vec![(0.0, 0.0)]).svg());
            let nothing = Lines { series: Vec::new(), ..lines(log_y, Vec::new()) };
            assert_sound(&nothing.svg());
        }
    }
}
