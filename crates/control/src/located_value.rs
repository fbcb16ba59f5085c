//! A value of a document together with where it stands, so that every problem names its field.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::Value;
use tessera_core::{Error, Result};

use crate::names::shorten_name;

/// So many problems are told; who has more starts with these.
const MOST_PROBLEMS: usize = 10;

/// What is wrong with a document: all of it, not just the first.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<String>);

impl Problems {
    pub(crate) fn add_problem(&mut self, at: &str, what: impl Display) {
        let at = if at.is_empty() { "the document" } else { at };
        self.0.push(format!("{at}: {what}"));
    }

    pub(crate) fn into_result(self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(Error::usage(join_problems(self.0)))
    }
}

/// Problems in one line.
pub(crate) fn join_problems(mut problems: Vec<String>) -> String {
    let more = problems.len().saturating_sub(MOST_PROBLEMS);
    problems.truncate(MOST_PROBLEMS);
    if more > 0 {
        problems.push(format!("and {more} more"));
    }
    problems.join("; ")
}

/// A value, and where in its document it is: `tasks.task1.path[2]`.
#[derive(Clone, Debug)]
pub(crate) struct LocatedValue<'a> {
    pub(crate) path: String,
    pub(crate) value: &'a Value,
}

impl<'a> LocatedValue<'a> {
    pub(crate) fn at_root(value: &'a Value) -> Self {
        Self { path: String::new(), value }
    }

    /// Where a field of this object is.
    pub(crate) fn field_path(&self, name: &str) -> String {
        let dot = if self.path.is_empty() { "" } else { "." };
        format!("{}{dot}{}", self.path, shorten_name(name))
    }

    pub(crate) fn get_field(&self, name: &str) -> Option<Self> {
        self.value.get(name).map(|value| Self { path: self.field_path(name), value })
    }

    /// Whether this is an object; fields that are not expected are problems.
    pub(crate) fn is_object_of(&self, expected: &[&str], problems: &mut Problems) -> bool {
        let Value::Object(fields) = self.value else {
            self.report_unexpected("an object", problems);
            return false;
        };
        for name in fields.keys().filter(|name| !expected.contains(&name.as_str())) {
            let what = format!("unknown field, expected one of {}", expected.join(", "));
            problems.add_problem(&self.field_path(name), what);
        }
        true
    }

    /// The fields of an object whose names are free.
    pub(crate) fn object_entries(&self, problems: &mut Problems) -> Vec<(&'a str, Self)> {
        let Value::Object(fields) = self.value else {
            self.report_unexpected("an object", problems);
            return Vec::new();
        };
        let entry = |(name, value): (&'a String, &'a Value)| {
            (name.as_str(), Self { path: self.field_path(name), value })
        };
        fields.iter().map(entry).collect()
    }

    pub(crate) fn array_items(&self, problems: &mut Problems) -> Vec<Self> {
        let Value::Array(values) = self.value else {
            self.report_unexpected("an array", problems);
            return Vec::new();
        };
        let item = |(number, value): (usize, &'a Value)| Self {
            path: format!("{}[{number}]", self.path),
            value,
        };
        values.iter().enumerate().map(item).collect()
    }

    pub(crate) fn expect_text(&self, expected: &str, problems: &mut Problems) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.report_unexpected(expected, problems);
        }
        text
    }

    pub(crate) fn expect_boolean(&self, problems: &mut Problems) -> Option<bool> {
        let boolean = self.value.as_bool();
        if boolean.is_none() {
            self.report_unexpected("true or false", problems);
        }
        boolean
    }

    /// An integer, which may be written as 5, 5.0 or 5e0.
    pub(crate) fn expect_integer(
        &self,
        range: RangeInclusive<u64>,
        problems: &mut Problems,
    ) -> Option<u64> {
        let whole = |number: f64| {
            // Ranges end far below 2^53, where this is exact.
            (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)
        };
        let integer = self.value.as_u64().or_else(|| self.value.as_f64().and_then(whole));
        let integer = integer.filter(|integer| range.contains(integer));
        if integer.is_none() {
            self.report_unexpected(
                &format!("an integer from {} to {}", range.start(), range.end()),
                problems,
            );
        }
        integer
    }

    /// The threshold of an exit.
    pub(crate) fn expect_threshold(&self, problems: &mut Problems) -> Option<f32> {
        match self.value.as_f64() {
            Some(threshold) if (0.0..=1.0).contains(&threshold) => Some(threshold as f32),
            Some(_) => {
                problems
                    .add_problem(&self.path, format!("threshold {}, expected 0 to 1", self.value));
                None
            }
            None => {
                self.report_unexpected("a number from 0 to 1", problems);
                None
            }
        }
    }

    /// A share, of what is named.
    pub(crate) fn expect_share(&self, what: &str, problems: &mut Problems) -> Option<f64> {
        match self.value.as_f64() {
            Some(share) if (0.0..=1.0).contains(&share) => Some(share),
            Some(_) => {
                let problem = format!("{what} of {}, expected 0 to 1", self.value);
                problems.add_problem(&self.path, problem);
                None
            }
            None => {
                self.report_unexpected("a number from 0 to 1", problems);
                None
            }
        }
    }

    /// This is something else than it should be.
    pub(crate) fn report_unexpected(&self, expected: &str, problems: &mut Problems) {
        let found = match self.value {
            Value::Array(_) => "an array".to_owned(),
            Value::Object(_) => "an object".to_owned(),
            Value::String(text) => format!("\"{}\"", shorten_name(text)),
            simple => simple.to_string(),
        };
        problems.add_problem(&self.path, format!("{found}, expected {expected}"));
    }
}
