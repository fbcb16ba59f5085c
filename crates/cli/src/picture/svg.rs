//! A writer of SVG: shapes with classes, and one style sheet for all pictures.

use std::fmt::Write;

/// How many colours series have before they begin again.
pub(super) const COLOURS: usize = 6;

/// How wide a character is at most, in parts of the size of its text: for fitting without a font at hand.
const CHARACTER: f64 = 0.6;

/// The size of plain text.
pub(super) const TEXT: f64 = 12.0;

/// Where a text is, as seen from its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
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

/// Plain first, then what is different for readers with a dark screen. Colours are those of Okabe and Ito.
const STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif;fill:#1b1f24}\
.title{font-size:16px;font-weight:600}.pale{fill:#57606a}.small{font-size:11px}\
.paper{fill:#ffffff}.band{fill:#f3f4f6}.box{fill:#ffffff;stroke:#57606a}.empty{fill:#d8dee4}\
.grid{stroke:#e1e4e8;fill:none}.axis{stroke:#57606a;fill:none}\
.way,.series{stroke-width:2;fill:none}\
.waiting{fill:url(#hatch);stroke:#8c959f}.hatch{stroke:#8c959f}\
.f0{fill:#0072b2}.f1{fill:#e69f00}.f2{fill:#009e73}.f3{fill:#d55e00}.f4{fill:#cc79a7}.f5{fill:#56b4e9}\
.s0{stroke:#0072b2}.s1{stroke:#e69f00}.s2{stroke:#009e73}.s3{stroke:#d55e00}.s4{stroke:#cc79a7}.s5{stroke:#56b4e9}\
\
text.on0,text.on2,text.on3{fill:#ffffff}text.on1,text.on4,text.on5{fill:#1b1f24}\
@media(prefers-color-scheme:dark){\
text{fill:#e6edf3}.pale{fill:#9198a1}.paper{fill:#0d1117}.band{fill:#161b22}\
.box{fill:#0d1117;stroke:#9198a1}.empty{fill:#30363d}.grid{stroke:#262c36}.axis{stroke:#9198a1}\
.waiting{stroke:#6e7681}.hatch{stroke:#6e7681}\
.f0{fill:#3d9be0}.f2{fill:#2bb98f}.f3{fill:#ef7f3c}.f4{fill:#d99bbd}\
.s0{stroke:#3d9be0}.s2{stroke:#2bb98f}.s3{stroke:#ef7f3c}.s4{stroke:#d99bbd}\
text.on0,text.on1,text.on2,text.on3,text.on4,text.on5{fill:#0d1117}}";

impl Svg {
    /// An empty picture with its title.
    pub(super) fn new(title: &str, width: f64, height: f64) -> Self {
        let mut picture = Self { title: title.to_owned(), width, height, body: String::new() };
        picture.text(20.0, 28.0, Anchor::Start, "title", &fit(title, width - 40.0, 16.0));
        picture
    }

    /// A rectangle; the pointer on it shows the tip where there is one.
    pub(super) fn rect(&mut self, corner: (f64, f64), size: (f64, f64), class: &str, tip: &str) {
        let (x, y) = (number(corner.0), number(corner.1));
        let (width, height) = (number(size.0.max(0.0)), number(size.1.max(0.0)));
        let shape = format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" class=\"{class}\""
        );
        self.shape(&shape, "rect", tip);
    }

    /// A dot; the pointer on it shows the tip.
    pub(super) fn dot(&mut self, centre: (f64, f64), radius: f64, class: &str, tip: &str) {
        let (x, y, radius) = (number(centre.0), number(centre.1), number(radius));
        let shape = format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" class=\"{class}\"");
        self.shape(&shape, "circle", tip);
    }

    /// A line from one point to another.
    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(number);
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
            write!(steps, "{verb}{} {}", number(x), number(y)).ok();
        }
        let dashes = match dashes {
            "" => String::new(),
            pattern => format!(" stroke-dasharray=\"{pattern}\""),
        };
        self.push(&format!("<path d=\"{steps}\" class=\"{class}\"{dashes}/>"));
    }

    /// A closed and filled shape.
    pub(super) fn polygon(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> =
            points.iter().map(|&(x, y)| format!("{},{}", number(x), number(y))).collect();
        self.push(&format!("<polygon points=\"{}\" class=\"{class}\"/>", points.join(" ")));
    }

    /// A text at a point on its base line.
    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let (x, y, anchor) = (number(x), number(y), anchor.name());
        let text = escape(text);
        self.push(&format!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    /// A text that is read from below, around the middle of its left side.
    pub(super) fn upright(&mut self, x: f64, y: f64, text: &str) {
        let (x, y, text) = (number(x), number(y), escape(text));
        self.push(&format!(
            "<text transform=\"translate({x} {y}) rotate(-90)\" text-anchor=\"middle\" class=\"pale\">{text}</text>"
        ));
    }

    /// A row of what colours mean, each with its class; returns where it ends.
    pub(super) fn legend(&mut self, mut y: f64, entries: &[(String, String)]) -> f64 {
        let mut x = 20.0;
        for (class, name) in entries {
            let name = fit(name, self.width - 80.0, TEXT);
            let width = 30.0 + text_width(&name, TEXT);
            if x > 20.0 && x + width > self.width - 20.0 {
                (x, y) = (20.0, y + 20.0);
            }
            self.rect((x, y - 10.0), (12.0, 12.0), class, "");
            self.text(x + 18.0, y, Anchor::Start, "pale", &name);
            x += width;
        }
        y
    }

    /// Adds rules to the style sheet.
    pub(super) fn style(&mut self, rules: &str) {
        self.push(&format!("<style>{rules}</style>"));
    }

    /// Makes the picture so high.
    pub(super) fn set_height(&mut self, height: f64) {
        self.height = height;
    }

    /// The picture as a file.
    pub(super) fn finish(self) -> String {
        let (width, height) = (number(self.width), number(self.height));
        let (title, body) = (escape(&self.title), self.body);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n\
             <defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
             <line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" class=\"hatch\"/></pattern></defs>\n\
             <rect width=\"100%\" height=\"100%\" class=\"paper\"/>\n{body}</svg>\n"
        )
    }

    fn shape(&mut self, start: &str, name: &str, tip: &str) {
        let end = match tip {
            "" => "/>".to_owned(),
            tip => format!("><title>{}</title></{name}>", escape(tip)),
        };
        self.push(&format!("{start}{end}"));
    }

    fn push(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// A text as XML has it; what no XML may have is left out.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => {}
            other if other.is_control() => {}
            other => escaped.push(other),
        }
    }
    escaped
}

/// A coordinate: hundredths are enough, and what is no number is where the picture starts.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "-0" | "" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// About how wide a text is.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * CHARACTER
}

/// A text that is no wider than that: its end is left out where it has to be.
pub(super) fn fit(text: &str, width: f64, size: f64) -> String {
    let most = (width / (size * CHARACTER)).max(0.0) as usize;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    if kept.is_empty() { String::new() } else { format!("{}…", kept.trim_end()) }
}

/// A figure as short as it says what it is.
pub(super) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        let text = format!("{value:.2e}");
        // Only the digits before the exponent have zeros too many.
        return match text.split_once('e') {
            Some((digits, exponent)) => {
                format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.'))
            }
            None => text,
        };
    }
    let decimals = match size {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
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
    fn text_is_escaped_and_what_xml_forbids_left_out() {
        assert_eq!(escape("a<b> & \"c\"\u{0}\u{1b}"), "a&lt;b&gt; &amp; &quot;c&quot;");
        let mut picture = Svg::new("<script>&", 100.0, 50.0);
        picture.rect((0.0, 0.0), (1.0, 1.0), "f0", "tip < \"x\" & y");
        picture.text(0.0, 0.0, Anchor::End, "", "1 < 2 & \u{7}");
        let picture = picture.finish();
        assert_sound(&picture);
        assert!(!picture.contains("<script>"));
    }

    #[test]
    fn what_is_no_number_never_gets_into_a_picture() {
        let mut picture = Svg::new("figures", 100.0, 50.0);
        picture.rect((f64::NAN, f64::INFINITY), (f64::NAN, -1.0), "f0", "");
        picture.path(&[(f64::NAN, 1.0), (2.0, f64::NEG_INFINITY)], "s0", "");
        assert_sound(&picture.finish());
        assert_eq!(figure(f64::NAN), "–");
    }

    #[test]
    fn figures_are_short() {
        let cases = [
            (0.0, "0"),
            (0.25, "0.25"),
            (1.0, "1"),
            (12.345, "12.35"),
            (150.0, "150"),
            (1234.56, "1235"),
            (1e6, "1e6"),
            (2.5e-5, "2.5e-5"),
            (-3.0, "-3"),
        ];
        for (value, expected) in cases {
            assert_eq!(figure(value), expected, "{value}");
        }
    }

    #[test]
    fn long_text_is_cut_to_fit() {
        assert_eq!(fit("short", 100.0, 12.0), "short");
        assert_eq!(fit("a rather long name", 72.0, 12.0), "a rather…");
        assert_eq!(fit("x", 0.0, 12.0), "");
    }
}
