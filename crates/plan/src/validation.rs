//! Figures of problems: what is refused, and how it is said.

use std::collections::HashSet;

use tessera_core::{Error, Result};

/// What no figure of a problem exceeds: above it, somebody slipped.
const LARGEST_FIGURE: f64 = 1e18;

/// A figure that is a number from zero on, and not absurd.
pub(crate) fn require_figure(field: &str, value: f64) -> Result<f64> {
    if (0.0..=LARGEST_FIGURE).contains(&value) {
        Ok(value)
    } else {
        Err(Error::invalid(format!("{field}: {value}, expected a number from 0 to 1e18")))
    }
}

/// A figure above zero.
pub(crate) fn require_positive(field: &str, value: f64) -> Result<f64> {
    if value > 0.0 && value <= LARGEST_FIGURE {
        Ok(value)
    } else {
        Err(Error::invalid(format!("{field}: {value}, expected a number above 0, at most 1e18")))
    }
}

/// A share or a probability.
pub(crate) fn require_fraction(field: &str, value: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(Error::invalid(format!("{field}: {value}, expected a number from 0 to 1")))
    }
}

/// Names that tell things apart: none empty, none there twice.
pub(crate) fn require_unique_names<'a>(
    field: &str,
    names: impl Iterator<Item = &'a str>,
) -> Result<()> {
    let mut seen = HashSet::new();
    for (number, name) in names.enumerate() {
        if name.is_empty() {
            return Err(Error::invalid(format!("{field}[{number}].name: empty")));
        }
        if !seen.insert(name) {
            return Err(Error::invalid(format!(
                "{field}[{number}].name: \"{name}\" is there twice"
            )));
        }
    }
    Ok(())
}
