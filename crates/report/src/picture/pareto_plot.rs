//! Plans to choose from: what one objective costs of another.

use super::axis::{AxisKind, AxisScale, PlotFrame};
use super::svg::{Svg, TEXT_SIZE, TextAnchor, text_width};
use crate::format::format_figure;

/// How large the picture is.
const SIZE: (f64, f64) = (720.0, 460.0);

/// How many shades there are.
const SHADES: usize = 5;

/// Plans as points.
pub struct ParetoPlot {
    /// What it shows.
    pub title: String,
    /// What is on the horizontal axis, with its unit.
    pub x_label: String,
    /// What is on the vertical axis, with its unit.
    pub y_label: String,
    /// What the colours stand for, with its unit, where points have one.
    pub colour_label: String,
    /// The plans.
    pub points: Vec<ParetoPoint>,
}

/// A plan.
pub struct ParetoPoint {
    /// Where it is from the left.
    pub x: f64,
    /// Where it is from the bottom.
    pub y: f64,
    /// What its colour stands for.
    pub colour: Option<f64>,
    /// What the pointer shows of it.
    pub tip: String,
}

/// From the least to the most: told apart by lightness alone, on white as on black.
const COLOURS: [&str; SHADES] = ["#440154", "#3b528b", "#21918c", "#5ec962", "#e0c72b"];

impl ParetoPlot {
    /// The front as a picture.
    pub fn to_svg(&self) -> String {
        let (width, height) = SIZE;
        let mut picture = Svg::new(&self.title, width, height);
        let colours = self.points.iter().filter_map(|point| point.colour);
        let colours: Vec<f64> = colours.filter(|colour| colour.is_finite()).collect();
        let low = colours.iter().copied().fold(f64::INFINITY, f64::min);
        let high = colours.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let top =
            if colours.is_empty() { 48.0 } else { self.draw_colour_scale(&mut picture, low, high) };
        let frame = PlotFrame { left: 84.0, right: width - 24.0, top, bottom: height - 56.0 };
        let (left, right) = (frame.left, frame.right);
        let across = AxisScale::new(
            AxisKind::FromZero,
            self.points.iter().map(|point| point.x),
            (left, right),
        );
        let upward = AxisScale::new(
            AxisKind::FromZero,
            self.points.iter().map(|point| point.y),
            (frame.bottom, frame.top),
        );
        frame.draw_left(&mut picture, &upward, &self.y_label);
        frame.draw_bottom(&mut picture, &across, &self.x_label);
        for point in &self.points {
            if !(across.can_show(point.x) && upward.can_show(point.y)) {
                continue;
            }
            let shade = point.colour.filter(|colour| colour.is_finite()).map(|colour| {
                let part = if high > low { (colour - low) / (high - low) } else { 1.0 };
                ((part * SHADES as f64) as usize).min(SHADES - 1)
            });
            let class = shade.map_or("f0".to_owned(), |shade| format!("shade{shade} rim"));
            picture.dot(
                (across.place_of(point.x), upward.place_of(point.y)),
                6.0,
                &class,
                &point.tip,
            );
        }
        picture.finish_svg()
    }

    /// What the shades mean; returns where it ends.
    fn draw_colour_scale(&self, picture: &mut Svg, low: f64, high: f64) -> f64 {
        let rules = COLOURS.iter().enumerate();
        let rules: String =
            rules.map(|(shade, colour)| format!(".shade{shade}{{fill:{colour}}}")).collect();
        picture.add_style(&format!("{rules}.rim{{stroke:#8c959f}}"));
        let first = if high > low { 0 } else { SHADES - 1 };
        let mut x = 20.0;
        picture.text(x, 54.0, TextAnchor::Start, "pale", &format!("{}:", self.colour_label));
        x += text_width(&self.colour_label, TEXT_SIZE) + 16.0;
        for shade in first..SHADES {
            let value = low + (high - low) * (shade as f64 + 0.5) / SHADES as f64;
            picture.rect((x, 44.0), (12.0, 12.0), &format!("shade{shade}"), "");
            picture.text(x + 18.0, 54.0, TextAnchor::Start, "pale", &format_figure(value));
            x += 66.0;
        }
        72.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::assert_sound;
    use super::*;

    fn front(points: Vec<ParetoPoint>) -> ParetoPlot {
        ParetoPlot {
            title: "front".to_owned(),
            x_label: "latency (ms)".to_owned(),
            y_label: "throughput (1/s)".to_owned(),
            colour_label: "accuracy".to_owned(),
            points,
        }
    }

    fn point(x: f64, y: f64, colour: Option<f64>) -> ParetoPoint {
        ParetoPoint { x, y, colour, tip: "a < b".to_owned() }
    }

    #[test]
    fn every_plan_is_a_point_in_the_shade_of_its_figure() {
        let picture = front(vec![
            point(1.0, 2.0, Some(0.8)),
            point(2.0, 3.0, Some(0.9)),
            point(3.0, 3.0, None),
        ]);
        let picture = picture.to_svg();
        assert_sound(&picture);
        assert_eq!(picture.matches("<circle").count(), 3);
        assert_eq!(picture.matches("class=\"shade0 rim\"").count(), 1);
        assert_eq!(picture.matches("class=\"shade4 rim\"").count(), 1);
        assert_eq!(picture.matches("<title>a &lt; b</title>").count(), 3);
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        let points = vec![
            point(f64::NAN, 1.0, Some(1.0)),
            point(1.0, f64::INFINITY, Some(f64::NAN)),
            point(1.0, 1.0, Some(f64::NAN)),
        ];
        let picture = front(points).to_svg();
        assert_sound(&picture);
        assert_eq!(picture.matches("<circle").count(), 1);
        assert_sound(&front(Vec::new()).to_svg());
    }
}
