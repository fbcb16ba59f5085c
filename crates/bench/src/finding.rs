//! Something that was measured, and the bound that it must hold.

use serde::Serialize;
use tessera_core::Error;

/// Something that was measured, beside its bound.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// What was measured.
    pub(crate) what: String,
    /// How much it was.
    pub(crate) found: f64,
    /// Of what; nothing where it is a number of things.
    pub(crate) unit: &'static str,
    /// What it must hold.
    pub(crate) bound: Bound,
    /// Whether it did.
    pub(crate) held: bool,
    /// More about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
}

/// What a number must be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
    /// This and nothing else.
    Exactly(f64),
}

impl Finding {
    /// Something that must be so much or less.
    pub(crate) fn at_most(
        what: impl Into<String>,
        found: f64,
        limit: f64,
        unit: &'static str,
    ) -> Self {
        Self::with_bound(what, found, Bound::AtMost(limit), unit)
    }

    /// Something that must be so much or more.
    pub(crate) fn at_least(
        what: impl Into<String>,
        found: f64,
        limit: f64,
        unit: &'static str,
    ) -> Self {
        Self::with_bound(what, found, Bound::AtLeast(limit), unit)
    }

    /// A number of things that must be this one.
    pub(crate) fn exactly(what: impl Into<String>, found: usize, expected: usize) -> Self {
        Self::with_bound(what, found as f64, Bound::Exactly(expected as f64), "")
    }

    /// What could not be carried out to its end, most likely as there is no server left.
    pub(crate) fn cut_short(error: &Error) -> Self {
        Self::exactly("carried out", 0, 1).with_detail(error.to_string())
    }

    /// The same, with more to say about it.
    #[must_use]
    pub(crate) fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    fn with_bound(what: impl Into<String>, found: f64, bound: Bound, unit: &'static str) -> Self {
        let held = match bound {
            Bound::AtMost(limit) => found <= limit,
            Bound::AtLeast(limit) => found >= limit,
            Bound::Exactly(expected) => found == expected,
        };
        Self { what: what.into(), found, unit, bound, held, detail: String::new() }
    }

    /// What was measured, what was found, the bound, whether it held, and more about it.
    pub(crate) fn cells(&self) -> [String; 5] {
        let held = if self.held { "yes" } else { "NO" };
        let found = with_unit(self.found, self.unit);
        [self.what.clone(), found, self.bound_text(), held.to_owned(), self.detail.clone()]
    }

    fn bound_text(&self) -> String {
        match self.bound {
            Bound::AtMost(limit) => format!("at most {}", with_unit(limit, self.unit)),
            Bound::AtLeast(limit) => format!("at least {}", with_unit(limit, self.unit)),
            Bound::Exactly(expected) => with_unit(expected, self.unit),
        }
    }
}

fn with_unit(number: f64, unit: &str) -> String {
    match unit {
        "" => format!("{number:.0}"),
        "s" | "×" | "cores" => format!("{number:.2} {unit}"),
        _ => format!("{number:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_holds_up_to_its_limit() {
        assert!(Finding::at_most("slowest", 3.0, 3.0, "s").held);
        assert!(!Finding::at_most("slowest", 3.1, 3.0, "s").held);
        assert!(!Finding::at_most("slowest", f64::NAN, 3.0, "s").held);
        assert!(Finding::exactly("answers", 20, 20).held);
        assert!(!Finding::exactly("answers", 19, 20).held);
    }

    #[test]
    fn numbers_have_their_units() {
        let slow = Finding::at_most("slowest", 0.456, 3.0, "s").with_detail("of 9");
        assert_eq!(slow.cells(), ["slowest", "0.46 s", "at most 3.00 s", "yes", "of 9"]);
        let all = Finding::exactly("answers", 19, 20);
        assert_eq!(all.cells(), ["answers", "19", "20", "NO", ""]);
    }
}
