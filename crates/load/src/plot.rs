//! Plots as SVG, in the colours of the page that they are on.

use crate::page::escape;
use crate::scale::{Kind, Scale, label};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;

/// What an axis shows.
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    pub(crate) kind: Kind,
}

/// Values that belong together, joined by a line.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// A break in the line where there is no value.
    pub(crate) points: Vec<(f64, Option<f64>)>,
    /// Marks every value, for lines of few.
    pub(crate) dots: bool,
}

/// A bar of a histogram.
pub(crate) struct Bar {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) height: f64,
}

/// A plot.
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
    pub(crate) bars: Vec<Bar>,
    /// A value along x to point out, and what it is.
    pub(crate) mark: Option<(f64, String)>,
}

/// The scales of a plot, in pixels.
struct Area {
    x: Scale,
    y: Scale,
}

impl Area {
    fn x(&self, value: f64) -> Option<f64> {
        self.x.place(value).map(|place| LEFT + place * (WIDTH - LEFT - RIGHT))
    }

    fn y(&self, value: f64) -> Option<f64> {
        self.y.place(value).map(|place| HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM))
    }

    fn point(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        Some((self.x(x)?, self.y(y)?))
    }
}

impl Plot {
    /// A plot without anything in it yet.
    pub(crate) fn new(title: &'static str, x: Axis, y: Axis) -> Self {
        Self { title, x, y, lines: Vec::new(), bars: Vec::new(), mark: None }
    }

    pub(crate) fn svg(&self) -> String {
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escape(self.title)
        );
        text(&mut svg, LEFT, 20.0, "title", self.title);
        match self.area() {
            None => text(&mut svg, WIDTH / 2.0, HEIGHT / 2.0, "middle", "nothing to show"),
            Some(area) => {
                self.axes(&area, &mut svg);
                self.draw_bars(&area, &mut svg);
                self.draw_mark(&area, &mut svg);
                for (index, line) in self.lines.iter().enumerate() {
                    draw_line(line, index, &area, &mut svg);
                }
                self.legend(&mut svg);
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn area(&self) -> Option<Area> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let xs = points().map(|point| point.0);
        let xs = xs.chain(self.bars.iter().flat_map(|bar| [bar.from, bar.to]));
        let ys = points().filter_map(|point| point.1);
        let ys = ys.chain(self.bars.iter().map(|bar| bar.height));
        Some(Area { x: Scale::new(self.x.kind, xs)?, y: Scale::new(self.y.kind, ys)? })
    }

    fn axes(&self, area: &Area, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, label) in area.x.ticks() {
            if let Some(x) = area.x(value) {
                segment(svg, "grid", (x, TOP), (x, bottom));
                text(svg, x, bottom + 16.0, "middle", &label);
            }
        }
        for (value, label) in area.y.ticks() {
            if let Some(y) = area.y(value) {
                segment(svg, "grid", (LEFT, y), (right, y));
                text(svg, LEFT - 6.0, y + 4.0, "end", &label);
            }
        }
        segment(svg, "axis", (LEFT, bottom), (right, bottom));
        segment(svg, "axis", (LEFT, TOP), (LEFT, bottom));
        text(svg, (LEFT + right) / 2.0, HEIGHT - 10.0, "middle", self.x.label);
        let middle = (TOP + bottom) / 2.0;
        line(
            svg,
            format_args!(
                "<text class=\"middle\" transform=\"translate(14 {middle:.1}) rotate(-90)\">{}\
                 </text>",
                escape(self.y.label)
            ),
        );
    }

    fn draw_bars(&self, area: &Area, svg: &mut String) {
        let bottom = HEIGHT - BOTTOM;
        for bar in &self.bars {
            let places = (area.x(bar.from), area.x(bar.to), area.y(bar.height));
            let (Some(from), Some(to), Some(top)) = places else { continue };
            let hint = format!("{} to {}: {}", short(bar.from), short(bar.to), short(bar.height));
            line(
                svg,
                format_args!(
                    "<rect class=\"bar\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                     height=\"{:.1}\"><title>{}</title></rect>",
                    (to - from - 1.0).max(0.5),
                    (bottom - top).max(0.0),
                    escape(&hint)
                ),
            );
        }
    }

    fn draw_mark(&self, area: &Area, svg: &mut String) {
        let Some((value, name)) = &self.mark else { return };
        let Some(x) = area.x(*value) else { return };
        segment(svg, "mark", (x, TOP), (x, HEIGHT - BOTTOM));
        // On the side where there is room.
        let (at, class) = if x < WIDTH / 2.0 { (x + 5.0, "start") } else { (x - 5.0, "end") };
        text(svg, at, TOP + 12.0, class, name);
    }

    fn legend(&self, svg: &mut String) {
        if self.lines.len() < 2 {
            return;
        }
        let mut right = WIDTH - RIGHT;
        for (index, entry) in self.lines.iter().enumerate().rev() {
            text(svg, right, 20.0, "end", entry.name);
            // As wide as letters of this size are, about.
            right -= entry.name.chars().count() as f64 * 6.6 + 6.0;
            segment(svg, colour(index), (right - 16.0, 16.0), (right, 16.0));
            right -= 30.0;
        }
    }
}

fn draw_line(drawn: &Line, index: usize, area: &Area, svg: &mut String) {
    let colour = colour(index);
    let mut path = String::new();
    let mut joined = false;
    for &(x, y) in &drawn.points {
        let Some((left, top)) = y.and_then(|y| area.point(x, y)) else {
            joined = false;
            continue;
        };
        let command = if joined { 'L' } else { 'M' };
        path.push_str(&format!("{command}{left:.1} {top:.1} "));
        joined = true;
    }
    line(svg, format_args!("<path class=\"{colour}\" d=\"{}\"/>", path.trim_end()));
    // A value between two gaps has no line to be seen by.
    let dotted = drawn.dots || drawn.points.len() < 3;
    for &(x, y) in drawn.points.iter().filter(|_| dotted) {
        let Some(y) = y else { continue };
        if let Some((left, top)) = area.point(x, y) {
            let hint = escape(&format!("{}: {} at {}", drawn.name, short(y), short(x)));
            line(
                svg,
                format_args!(
                    "<circle class=\"{colour}\" cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"3.5\">\
                     <title>{hint}</title></circle>"
                ),
            );
        }
    }
}

/// A value with three digits or so.
fn short(value: f64) -> String {
    let digits = if value.abs() >= 100.0 { 1.0 } else { 1000.0 };
    label((value * digits).round() / digits)
}

fn colour(index: usize) -> &'static str {
    ["line-a", "line-b", "line-c"][index % 3]
}

fn segment(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    line(
        svg,
        format_args!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        ),
    );
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, content: &str) {
    line(
        svg,
        format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
            escape(content)
        ),
    );
}

fn line(svg: &mut String, content: std::fmt::Arguments<'_>) {
    svg.push_str(&content.to_string());
    svg.push('\n');
}
