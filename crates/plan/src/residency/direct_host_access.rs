//! `direct-host-access`: leave layers on the host where that shortens the pipeline (Algorithm 1).
//!
//! A layer `i` that stalls is helped by leaving an earlier layer `j`, or itself, on the host: its own load
//! then starts sooner by the load time of `j`. The algorithm goes through the layers in order, and for one
//! that stalls through all `j` up to it, those with the smallest penalty (the paper's PerfDiff: how much
//! longer `j` runs from the host) first.
//!
//! The algorithm as printed follows its own estimate of the stall at `i` alone: it takes load time and
//! penalty off it, and plays the pipeline again only once the estimate is zero. Stalls between `j` and `i`
//! are not in that estimate, and later layers keep stalls that are long gone where it never gets to zero;
//! so it goes on changing layers that gain nothing, and can end up slower than the pipeline it began with.
//! Here, what a change does to the whole run is computed before it is made (see [`super::change`]), and
//! it is made only where the result does not come later. In the end, layers that gain nothing by being
//! left on the host are loaded after all, as they would be slower in every later run.

use tessera_core::Result;

use super::change::Change;
use super::memory::load_what_fits;
use super::problem::Problem;
use super::timeline::{Plan, Residency, simulate};
use super::{Planned, Strategy};
use crate::Limit;

/// Leaves layers on the host where that shortens the pipeline.
pub struct DirectHostAccess;

impl Strategy for DirectHostAccess {
    fn name(&self) -> &'static str {
        "direct-host-access"
    }

    fn about(&self) -> &'static str {
        "a pipeline that leaves layers on the host where that gains time (DeepPlan, Algorithm 1)"
    }

    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        _limit: &Limit<'_>,
    ) -> Result<Planned> {
        let planned = leave_layers(problem, load_what_fits(problem, true))?;
        let is_such = |plan: &Plan| plan.pipelined && plan.gpus(problem) == 1;
        Ok(planned.or_previous(problem, previous, is_such))
    }
}

/// Leaves layers on the host that `plan` loads through the target, where that gains time. Never slower
/// than `plan`.
pub(super) fn leave_layers(problem: &Problem, plan: Plan) -> Result<Planned> {
    let begun = Planned::of(problem, plan.clone())?;
    let mut change = Change::new(problem, plan)?;
    let candidates = by_penalty(problem);
    for layer in 0..problem.layers.len() {
        for &(penalty, candidate) in &candidates {
            // The others have larger penalties still.
            if change.stall(layer) <= 0.0 || change.stall(layer) < penalty {
                break;
            }
            if candidate > layer || !change.is_loaded_here(candidate) {
                continue;
            }
            if change.total_if_direct(candidate).is_some_and(|total| is_no_later(total, &change)) {
                change.leave(candidate);
            }
        }
    }
    for &(_, candidate) in candidates.iter().rev() {
        if change.is_direct(candidate)
            && change.fits(candidate)
            && change.total_if_loaded(candidate).is_some_and(|total| is_no_later(total, &change))
        {
            change.load(candidate);
        }
    }
    // What was computed change by change is compared once more as it is simulated.
    Ok(begun.or_quicker(Planned::of(problem, change.into_plan())?))
}

fn is_no_later(total: f64, change: &Change<'_>) -> bool {
    total <= change.total() * (1.0 + 1e-12)
}

/// The layers that can be left on the host, with their penalties, smallest first.
fn by_penalty(problem: &Problem) -> Vec<(f64, usize)> {
    let layers = problem.layers.iter().enumerate();
    let mut found: Vec<(f64, usize)> =
        layers.filter_map(|(number, layer)| Some((layer.penalty()?, number))).collect();
    found.sort_by(|one, other| one.0.total_cmp(&other.0));
    found
}

/// The paper's Algorithm 1 to the letter, for comparison; it may be slower than the pipeline.
pub fn algorithm_1_as_printed(problem: &Problem) -> Result<Plan> {
    let mut plan = load_what_fits(problem, true);
    let stalls = |plan: &Plan| -> Result<Vec<f64>> {
        Ok(simulate(problem, plan)?.layers.iter().map(|layer| layer.stall_us).collect())
    };
    let mut known = stalls(&plan)?;
    let candidates = by_penalty(problem);
    for layer in 0..problem.layers.len() {
        if known[layer] <= 0.0 {
            continue;
        }
        for &(penalty, candidate) in &candidates {
            if candidate > layer || plan.layers[candidate] == Residency::Direct {
                continue;
            }
            if known[layer] < penalty {
                break;
            }
            plan.layers[candidate] = Residency::Direct;
            known[layer] -= problem.layers[candidate].load_us + penalty;
            if known[layer] <= 0.0 {
                known = stalls(&plan)?;
                break;
            }
        }
    }
    Ok(plan)
}
