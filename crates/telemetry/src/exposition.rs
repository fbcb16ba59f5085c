//! Prometheus' text format, version 0.0.4.
//!
//! Our own few lines: the crates that write it make up names by rules of theirs (`_total`, units),
//! and Triton's names follow none of them.

use std::fmt::Write;

use crate::histogram::Histogram;

/// Media type of the format.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Names and values of labels.
pub(crate) type MetricLabels<'a> = &'a [(&'a str, &'a str)];

/// What a metric is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MetricKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// See [`Histogram`].
    Histogram,
}

/// The text, written metric by metric.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    text: String,
}

impl Exposition {
    /// Begins a metric. All its series follow, since the format wants them in one group.
    pub(crate) fn begin_family<'a>(
        &'a mut self,
        name: &'a str,
        kind: MetricKind,
        help: &str,
    ) -> MetricFamily<'a> {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string can't fail, here and below.
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
        MetricFamily { text: &mut self.text, name }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// One metric, to be written series by series.
pub(crate) struct MetricFamily<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl MetricFamily<'_> {
    pub(crate) fn write_value(&mut self, labels: MetricLabels<'_>, value: f64) {
        self.write_line("", labels, None, value);
    }

    pub(crate) fn write_histogram(&mut self, labels: MetricLabels<'_>, histogram: &Histogram) {
        let mut count = 0.0;
        for (bound, total) in histogram.cumulative_counts() {
            self.write_line("_bucket", labels, Some(bound), total);
            count = total;
        }
        self.write_line("_sum", labels, None, histogram.sum());
        self.write_line("_count", labels, None, count);
    }

    fn write_line(
        &mut self,
        suffix: &str,
        labels: MetricLabels<'_>,
        bound: Option<f64>,
        value: f64,
    ) {
        let text = &mut *self.text;
        text.push_str(self.name);
        text.push_str(suffix);
        let mut between = '{';
        for &(name, value) in labels {
            text.push(between);
            text.push_str(name);
            text.push_str("=\"");
            push_escaped(text, value);
            text.push('"');
            between = ',';
        }
        if let Some(bound) = bound {
            text.push(between);
            if bound.is_finite() {
                write!(text, "le=\"{bound}\"").ok();
            } else {
                text.push_str("le=\"+Inf\"");
            }
            between = ',';
        }
        if between == ',' {
            text.push('}');
        }
        writeln!(text, " {value}").ok();
    }
}

/// A label's value may hold anything, these three escaped.
fn push_escaped(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}
