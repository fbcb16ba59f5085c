//! What happens when, a row for each that does something.

use super::axis::{AxisKind, AxisScale, PlotFrame};
use super::svg::{Svg, TEXT_SIZE, TextAnchor, fit_text, text_width};
use crate::format::format_figure;

/// How wide the picture is.
const WIDTH: f64 = 960.0;

/// How high a row is, with the room below it.
const ROW: f64 = 30.0;

/// How high a bar is.
const BAR: f64 = 22.0;

/// Bars in rows over a common time.
pub struct GanttChart {
    /// What it shows.
    pub title: String,
    /// The unit of the time.
    pub unit: &'static str,
    /// From the top.
    pub rows: Vec<GanttRow>,
    /// What bars can be.
    pub kinds: Vec<GanttKind>,
}

/// One that does something.
pub struct GanttRow {
    /// Who it is.
    pub name: String,
    /// What it does.
    pub bars: Vec<GanttBar>,
}

/// Something that takes its time.
pub struct GanttBar {
    /// When it begins.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// What it is.
    pub label: String,
    /// Which of the kinds it is of.
    pub kind: usize,
}

/// What bars can be.
pub struct GanttKind {
    /// What it is called.
    pub name: String,
    /// How its bars look.
    pub style: GanttStyle,
}

/// How bars look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GanttStyle {
    /// The first colour.
    First,
    /// The second colour.
    Second,
    /// The third colour.
    Third,
    /// The fourth colour.
    Fourth,
    /// Pale and hatched.
    Waiting,
}

impl GanttStyle {
    /// The classes of its bars and of the text on them.
    fn css_classes(self) -> (&'static str, &'static str) {
        match self {
            Self::First => ("f0", "small on0"),
            Self::Second => ("f1", "small on1"),
            Self::Third => ("f2", "small on2"),
            Self::Fourth => ("f3", "small on3"),
            Self::Waiting => ("waiting", "small"),
        }
    }
}

impl GanttChart {
    /// The chart as a picture.
    pub fn to_svg(&self) -> String {
        let names = self.rows.iter().map(|row| text_width(&row.name, TEXT_SIZE));
        let left = 36.0 + names.fold(0.0, f64::max).clamp(20.0, 240.0);
        let mut picture = Svg::new(&self.title, WIDTH, 0.0);
        picture.add_hatching();
        let entries: Vec<(String, String)> = self
            .kinds
            .iter()
            .map(|kind| (kind.style.css_classes().0.to_owned(), kind.name.clone()))
            .collect();
        let top = picture.draw_legend(54.0, &entries) + 16.0;
        let bottom = top + ROW * self.rows.len().max(1) as f64 + 6.0;
        let frame = PlotFrame { left, right: WIDTH - 24.0, top, bottom };
        let bars = || self.rows.iter().flat_map(|row| &row.bars);
        let ends = bars().flat_map(|bar| [bar.start, bar.end]);
        let axis = AxisScale::new(AxisKind::FromZero, ends, (frame.left, frame.right));
        frame.draw_bottom(&mut picture, &axis, &format!("time ({})", self.unit));
        for (number, row) in self.rows.iter().enumerate() {
            let y = top + 6.0 + ROW * number as f64;
            let name = fit_text(&row.name, left - 30.0, TEXT_SIZE);
            picture.text(left - 10.0, y + BAR / 2.0 + 4.0, TextAnchor::End, "", &name);
            for bar in &row.bars {
                self.draw_bar(&mut picture, &axis, bar, y);
            }
        }
        picture.line((left, top), (left, bottom), "axis");
        picture.set_height(bottom + 52.0);
        picture.finish_svg()
    }

    fn draw_bar(&self, picture: &mut Svg, axis: &AxisScale, bar: &GanttBar, y: f64) {
        if !(bar.start.is_finite() && bar.end.is_finite() && bar.start <= bar.end) {
            return;
        }
        let kind = self.kinds.get(bar.kind);
        let (class, on) = kind.map_or(GanttStyle::First, |kind| kind.style).css_classes();
        let (from, to) = (axis.place_of(bar.start), axis.place_of(bar.end));
        // A gap between neighbours, but nothing so short that it can't be seen.
        let width = (to - from - 0.8).max(0.6);
        let what = kind.map_or("", |kind| &kind.name);
        let tip = format!(
            "{} ({what}): {} to {}, {} {}",
            bar.label,
            format_figure(bar.start),
            format_figure(bar.end),
            format_figure(bar.end - bar.start),
            self.unit
        );
        picture.rect((from, y), (width, BAR), class, &tip);
        let label = fit_text(&bar.label, width - 6.0, 11.0);
        if label.chars().count() > 1 || label == bar.label {
            let middle = from + width / 2.0;
            picture.text(middle, y + BAR / 2.0 + 4.0, TextAnchor::Middle, on, &label);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::assert_sound;
    use super::*;

    fn bar(start: f64, end: f64, label: &str, kind: usize) -> GanttBar {
        GanttBar { start, end, label: label.to_owned(), kind }
    }

    fn chart(bars: Vec<GanttBar>) -> GanttChart {
        let kind = |name: &str, style| GanttKind { name: name.to_owned(), style };
        GanttChart {
            title: "a & b".to_owned(),
            unit: "ms",
            rows: vec![GanttRow { name: "GPU <0>".to_owned(), bars }],
            kinds: vec![kind("computes", GanttStyle::First), kind("waits", GanttStyle::Waiting)],
        }
    }

    #[test]
    fn every_bar_is_there_with_its_times() {
        let picture = chart(vec![bar(0.0, 4.0, "one", 0), bar(4.0, 10.0, "two", 1)]).to_svg();
        assert_sound(&picture);
        assert!(picture.contains("<title>one (computes): 0 to 4, 4 ms</title>"), "{picture}");
        assert!(picture.contains("<title>two (waits): 4 to 10, 6 ms</title>"));
        assert!(picture.contains("GPU &lt;0&gt;") && picture.contains("time (ms)"));
    }

    #[test]
    fn a_chart_of_nothing_is_a_picture_too() {
        assert_sound(&chart(Vec::new()).to_svg());
        let empty =
            GanttChart { title: String::new(), unit: "s", rows: Vec::new(), kinds: Vec::new() };
        assert_sound(&empty.to_svg());
    }

    #[test]
    fn bars_that_make_no_sense_are_left_out() {
        let picture = chart(vec![
            bar(f64::NAN, 1.0, "no number", 0),
            bar(0.0, f64::INFINITY, "without end", 0),
            bar(3.0, 2.0, "backwards", 0),
            bar(1.0, 2.0, "of no kind", 9),
        ])
        .to_svg();
        assert_sound(&picture);
        assert!(picture.contains("of no kind"));
        for left_out in ["no number", "without end", "backwards"] {
            assert!(!picture.contains(left_out));
        }
    }
}
