//! Prometheus' text format, as far as it is read here: names, labels and values.

/// A sample of the exposition format: a value, and what it is of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PrometheusSample {
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    /// It may be NaN or infinite: the format has both.
    pub(crate) value: f64,
}

impl PrometheusSample {
    /// The value of a label.
    pub(crate) fn label_value(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Reads a page. Lines that are not understood are passed over: the page is somebody else's, and
/// most of it is of no interest here.
pub(crate) fn parse_samples(text: &str) -> Vec<PrometheusSample> {
    text.lines().filter_map(parse_sample).collect()
}

/// `NAME{LABEL="VALUE",…} NUMBER`, with a time at the end or without.
fn parse_sample(text: &str) -> Option<PrometheusSample> {
    let text = text.trim();
    let end = text.find(|c: char| !is_name_character(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let rest = rest.trim_start();
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Vec::new(), rest),
    };
    // "NaN", "+Inf" and exponents are known to Rust too.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(PrometheusSample { name: name.to_owned(), labels, value })
}

type PrometheusLabels = Vec<(String, String)>;

/// The labels up to the closing brace, and what follows it.
fn parse_labels(text: &str) -> Option<(PrometheusLabels, &str)> {
    let mut labels = Vec::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once('=')?;
        let name = name.trim();
        if name.is_empty() || !name.chars().all(is_name_character) {
            return None;
        }
        let (value, after) = parse_quoted(after.trim_start().strip_prefix('"')?)?;
        labels.push((name.to_owned(), value));
        let after = after.trim_start();
        // A comma may follow the last one too.
        rest = match after.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if after.starts_with('}') => after,
            None => return None,
        };
    }
}

/// The text up to the closing quote, and what follows it.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.chars();
    loop {
        match characters.next()? {
            '"' => return Some((value, characters.as_str())),
            '\\' => match characters.next()? {
                'n' => value.push('\n'),
                other @ ('"' | '\\') => value.push(other),
                // No escape: both stand for themselves.
                other => value.extend(['\\', other]),
            },
            other => value.push(other),
        }
    }
}

fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == ':'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> f64 {
        parse_samples(text).first().unwrap_or_else(|| panic!("nothing read of {text}")).value
    }

    #[test]
    fn names_labels_and_values_are_read() {
        let page = "# HELP a A thing\n# TYPE a counter\na{x=\"1\",y=\"two\"} 3.5\n\n  b 4\n";
        let samples = parse_samples(page);
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].name.as_str(), samples[0].value), ("a", 3.5));
        assert_eq!(
            (samples[0].label_value("x"), samples[0].label_value("y")),
            (Some("1"), Some("two"))
        );
        assert_eq!(samples[0].label_value("z"), None);
        let rest = PrometheusSample { name: "b".to_owned(), labels: Vec::new(), value: 4.0 };
        assert_eq!(samples[1], rest);
    }

    #[test]
    fn labels_may_hold_anything() {
        let odd = r#"a:b { x = "q\"b\\s\nl} 7,=é" , y="\t", } 8"#;
        let samples = parse_samples(odd);
        assert_eq!(samples[0].name, "a:b");
        assert_eq!(samples[0].label_value("x"), Some("q\"b\\s\nl} 7,=é"));
        assert_eq!(samples[0].label_value("y"), Some("\\t"));
        assert_eq!(samples[0].value, 8.0);
        assert_eq!(parse_samples("a{} 1")[0].labels, []);
    }

    #[test]
    fn numbers_come_in_many_forms() {
        assert_eq!(value("a 1.5e3"), 1500.0);
        assert_eq!(value("a 2E-02"), 0.02);
        assert_eq!(value("a\t-7"), -7.0);
        assert_eq!(value("a +Inf"), f64::INFINITY);
        assert_eq!(value("a{b=\"c\"} -Inf"), f64::NEG_INFINITY);
        assert!(value("a NaN").is_nan());
        // A time, and an exemplar.
        assert_eq!(value("a 5 1395066363000"), 5.0);
        assert_eq!(value("a 6 # {trace=\"x\"} 0.67"), 6.0);
    }

    #[test]
    fn what_is_not_understood_is_passed_over() {
        let wrong = [
            "",
            "   ",
            "# a 1",
            "a",
            "a one",
            "1a 1",
            "{x=\"1\"} 1",
            "a{x=\"1\" 1",
            "a{x=\"1} 1",
            "a{x=\"1\\",
            "a{x=1} 1",
            "a{=\"1\"} 1",
            "a{x=\"1\" y=\"2\"} 1",
            "a{x=\"1\"}",
            "<html>",
        ];
        for text in wrong {
            assert_eq!(parse_samples(text), [], "{text}");
        }
        assert_eq!(parse_samples(&format!("{}\na 1", wrong.join("\n"))).len(), 1);
    }
}
