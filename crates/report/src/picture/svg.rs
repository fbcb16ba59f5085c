//! A writer of SVG: shapes with the classes of the one style sheet.

use std::fmt::Write;

use crate::escape::escape_xml;
use crate::format::trim_zeros;
use crate::style::PICTURE_STYLE;

/// How many colours series have before they begin again.
pub(super) const COLOURS: usize = 6;

/// How wide a character is at most, in parts of the size of its text: for fitting without a font at
/// hand.
const CHARACTER_WIDTH: f64 = 0.6;

/// The size of plain text.
pub(super) const TEXT_SIZE: f64 = 12.0;

/// Where a text is, as seen from its point.
#[derive(Clone, Copy)]
pub(super) enum TextAnchor {
    Start,
    Middle,
    End,
}

/// A picture that is being drawn.
pub(super) struct Svg {
    title: String,
    width: f64,
    height: f64,
    body: String,
}

/// A picture as a part of a page, which brings the style sheet.
#[derive(Clone, Debug)]
pub struct InlineSvg(String);

impl InlineSvg {
    /// The picture as the page has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Svg {
    /// An empty picture with its title.
    pub(super) fn new(title: &str, width: f64, height: f64) -> Self {
        let mut picture = Self { title: title.to_owned(), width, height, body: String::new() };
        picture.text(20.0, 28.0, TextAnchor::Start, "title", &fit_text(title, width - 40.0, 16.0));
        picture
    }

    /// A rectangle; the pointer on it shows the tip where there is one.
    pub(super) fn rect(&mut self, corner: (f64, f64), size: (f64, f64), class: &str, tip: &str) {
        let (x, y) = (format_coordinate(corner.0), format_coordinate(corner.1));
        let (width, height) =
            (format_coordinate(size.0.max(0.0)), format_coordinate(size.1.max(0.0)));
        let shape = format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" class=\"{class}\""
        );
        self.push_shape(&shape, "rect", tip);
    }

    /// A dot; the pointer on it shows the tip.
    pub(super) fn dot(&mut self, centre: (f64, f64), radius: f64, class: &str, tip: &str) {
        let (x, y, radius) =
            (format_coordinate(centre.0), format_coordinate(centre.1), format_coordinate(radius));
        let shape = format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" class=\"{class}\"");
        self.push_shape(&shape, "circle", tip);
    }

    /// A line from one point to another.
    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(format_coordinate);
        self.push(&format!(
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" class=\"{class}\"/>"
        ));
    }

    /// Lines from point to point, dashed with this pattern where it has one.
    pub(super) fn path(&mut self, points: &[(f64, f64)], class: &str, dashes: &str) {
        let mut steps = String::new();
        for (at, &(x, y)) in points.iter().enumerate() {
            let verb = if at == 0 { 'M' } else { 'L' };
            // Writing to a text can't fail.
            write!(steps, "{verb}{} {}", format_coordinate(x), format_coordinate(y)).ok();
        }
        let dashes = match dashes {
            "" => String::new(),
            pattern => format!(" stroke-dasharray=\"{pattern}\""),
        };
        self.push(&format!("<path d=\"{steps}\" class=\"{class}\"{dashes}/>"));
    }

    /// A closed and filled shape.
    pub(super) fn polygon(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points
            .iter()
            .map(|&(x, y)| format!("{},{}", format_coordinate(x), format_coordinate(y)))
            .collect();
        self.push(&format!("<polygon points=\"{}\" class=\"{class}\"/>", points.join(" ")));
    }

    /// A text at a point on its base line.
    pub(super) fn text(&mut self, x: f64, y: f64, anchor: TextAnchor, class: &str, text: &str) {
        let (x, y, anchor) = (format_coordinate(x), format_coordinate(y), anchor.name());
        let text = escape_xml(text);
        self.push(&format!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    /// A text that is read from below, around the middle of its left side.
    pub(super) fn upright_text(&mut self, x: f64, y: f64, text: &str) {
        let (x, y, text) = (format_coordinate(x), format_coordinate(y), escape_xml(text));
        self.push(&format!(
            "<text transform=\"translate({x} {y}) rotate(-90)\" text-anchor=\"middle\" \
             class=\"pale\">{text}</text>"
        ));
    }

    /// A row of what colours mean, each with its class; returns where it ends.
    pub(super) fn draw_legend(&mut self, mut y: f64, entries: &[(String, String)]) -> f64 {
        let mut x = 20.0;
        for (class, name) in entries {
            let name = fit_text(name, self.width - 80.0, TEXT_SIZE);
            let width = 30.0 + text_width(&name, TEXT_SIZE);
            if x > 20.0 && x + width > self.width - 20.0 {
                (x, y) = (20.0, y + 20.0);
            }
            self.rect((x, y - 10.0), (12.0, 12.0), class, "");
            self.text(x + 18.0, y, TextAnchor::Start, "pale", &name);
            x += width;
        }
        y
    }

    /// Adds rules to the style sheet.
    pub(super) fn add_style(&mut self, rules: &str) {
        self.push(&format!("<style>{rules}</style>"));
    }

    /// Adds the class `waiting`, which is pale and hatched.
    pub(super) fn add_hatching(&mut self) {
        self.add_style(
            ".waiting{fill:url(#hatch);stroke:#8c959f}.hatch{stroke:#8c959f}\
             @media(prefers-color-scheme:dark){.waiting,.hatch{stroke:#6e7681}}",
        );
        self.push(
            "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" \
             patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
             <line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" class=\"hatch\"/></pattern></defs>",
        );
    }

    /// Makes the picture so high.
    pub(super) fn set_height(&mut self, height: f64) {
        self.height = height;
    }

    /// The picture as a file.
    pub(super) fn finish_svg(self) -> String {
        self.into_element(&format!("<style>{PICTURE_STYLE}</style>\n"))
    }

    /// The picture as a part of a page.
    pub(super) fn finish_inline(self) -> InlineSvg {
        InlineSvg(self.into_element(""))
    }

    fn into_element(self, style: &str) -> String {
        let (width, height) = (format_coordinate(self.width), format_coordinate(self.height));
        let (title, body) = (escape_xml(&self.title), self.body);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{title}</title>\n{style}\
             <rect width=\"100%\" height=\"100%\" class=\"paper\"/>\n{body}</svg>\n"
        )
    }

    fn push_shape(&mut self, start: &str, name: &str, tip: &str) {
        let end = match tip {
            "" => "/>".to_owned(),
            tip => format!("><title>{}</title></{name}>", escape_xml(tip)),
        };
        self.push(&format!("{start}{end}"));
    }

    fn push(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

impl TextAnchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// A coordinate: hundredths are enough, and what is no number is where the picture starts.
fn format_coordinate(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.2}");
    match trim_zeros(&text) {
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// About how wide a text is.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * CHARACTER_WIDTH
}

/// A text that is no wider than that: its end is left out where it has to be.
pub(super) fn fit_text(text: &str, width: f64, size: f64) -> String {
    let most = (width / (size * CHARACTER_WIDTH)).max(0.0) as usize;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    if kept.is_empty() { String::new() } else { format!("{}…", kept.trim_end()) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Checks what every picture must be: balanced tags, no figure that is none, no open ampersand.
    pub(in super::super) fn assert_sound(picture: &str) {
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
        for wrong in ["NaN", "inf"] {
            assert!(!picture.contains(wrong), "{wrong} in {picture}");
        }
        let mut open: Vec<&str> = Vec::new();
        for tag in picture.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("not closed: {tag}"));
            let name = tag.split([' ', '/']).find(|part| !part.is_empty()).unwrap_or_default();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{picture}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        }
        assert!(open.is_empty(), "{open:?}");
        for (at, _) in picture.match_indices('&') {
            let known = ["&amp;", "&lt;", "&gt;", "&quot;"];
            assert!(known.iter().any(|name| picture[at..].starts_with(name)), "{picture}");
        }
    }

    #[test]
    fn text_in_a_picture_means_nothing_but_itself() {
        let mut picture = Svg::new("<script>&", 100.0, 50.0);
        picture.rect((0.0, 0.0), (1.0, 1.0), "f0", "tip < \"x\" & y");
        picture.text(0.0, 0.0, TextAnchor::End, "", "1 < 2 & \u{7}");
        let picture = picture.finish_svg();
        assert_sound(&picture);
        assert!(!picture.contains("<script>"));
    }

    #[test]
    fn what_is_no_number_never_gets_into_a_picture() {
        let mut picture = Svg::new("figures", 100.0, 50.0);
        picture.rect((f64::NAN, f64::INFINITY), (f64::NAN, -1.0), "f0", "");
        picture.path(&[(f64::NAN, 1.0), (2.0, f64::NEG_INFINITY)], "s0", "");
        assert_sound(&picture.finish_svg());
    }

    #[test]
    fn long_text_is_cut_to_fit() {
        assert_eq!(fit_text("short", 100.0, 12.0), "short");
        assert_eq!(fit_text("a rather long name", 72.0, 12.0), "a rather…");
        assert_eq!(fit_text("x", 0.0, 12.0), "");
    }
}
