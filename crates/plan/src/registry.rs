//! The strategies of a family: listed once, found by name.
//!
//! Every family has one, in its `strategies.rs`. To add a strategy is a file with the strategy and
//! a line there; look-ups, errors and help follow.

use std::iter::Copied;
use std::slice::Iter;

use tessera_core::{Error, Result};

use crate::Strategy;

/// The strategies of a family, in the order in which they are shown: values of an enum, or
/// references to trait objects.
#[derive(Clone, Copy, Debug)]
pub struct StrategyRegistry<S: 'static> {
    /// What users call them: `strategy`, or `policy`.
    kind: &'static str,
    strategies: &'static [S],
}

impl<S: Strategy + Copy> StrategyRegistry<S> {
    /// These, each of which users call a `kind`.
    pub const fn new(kind: &'static str, strategies: &'static [S]) -> Self {
        Self { kind, strategies }
    }

    /// Each of them.
    pub fn iter(&self) -> Copied<Iter<'static, S>> {
        self.strategies.iter().copied()
    }

    /// The one of this name; the error names all.
    pub fn find_strategy(&self, name: &str) -> Result<S> {
        self.iter().find(|strategy| strategy.name() == name).ok_or_else(|| {
            let known: Vec<&str> = self.help_lines().map(|(name, _)| name).collect();
            let kind = self.kind;
            Error::usage(format!("{kind} \"{name}\", expected one of {}", known.join(", ")))
        })
    }

    /// The name of each, with what it does.
    pub fn help_lines(&self) -> impl Iterator<Item = (&'static str, &'static str)> + use<S> {
        self.strategies.iter().map(|strategy| (strategy.name(), strategy.one_line_summary()))
    }
}

impl<S: Strategy + Copy> IntoIterator for StrategyRegistry<S> {
    type Item = S;
    type IntoIter = Copied<Iter<'static, S>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
