//! A plan with how long it takes, and when the previous one is kept instead.

use serde::Serialize;
use tessera_core::Result;

use super::problem::ResidencyProblem;
use super::timeline::{ResidencyPlan, simulate_residency};

/// What a strategy found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResidencySolution {
    /// The plan.
    pub plan: ResidencyPlan,
    /// Time to the result, as simulated.
    pub total_us: f64,
    /// No plan is quicker than this, where that is known.
    pub bound_us: Option<f64>,
    /// Whether no plan is quicker than this one.
    pub proved: bool,
}

impl ResidencySolution {
    /// How much longer than the bound it may take, as a share of the bound.
    pub fn optimality_gap(&self) -> Option<f64> {
        let bound = self.bound_us.filter(|bound| *bound > 0.0)?;
        Some((self.total_us / bound - 1.0).max(0.0))
    }

    /// A plan, simulated.
    pub(super) fn from_plan(problem: &ResidencyProblem, plan: ResidencyPlan) -> Result<Self> {
        let total_us = simulate_residency(problem, &plan)?.total_us;
        Ok(Self { plan, total_us, bound_us: None, proved: false })
    }

    /// The quicker of two; this one where they are alike.
    pub(super) fn or_quicker(self, other: Self) -> Self {
        if other.total_us < self.total_us { other } else { self }
    }

    /// The previous plan instead, where the strategy could have made it and it is not slower.
    pub(super) fn or_previous(
        self,
        problem: &ResidencyProblem,
        previous: Option<&ResidencyPlan>,
        is_such: impl Fn(&ResidencyPlan) -> bool,
    ) -> Self {
        let Some(previous) = previous else { return self };
        // One that is not valid any more is no plan; why does not matter.
        match simulate_residency(problem, previous) {
            Ok(run) if run.total_us <= self.total_us && is_such(previous) => {
                Self { plan: previous.clone(), total_us: run.total_us, ..self }
            }
            _ => self,
        }
    }
}
