//! `direct-host-access`: leave layers on the host where that shortens the pipeline (Algorithm 1).
//!
//! A layer `i` that stalls is helped by leaving an earlier layer `j`, or itself, on the host: its
//! own load then starts sooner by the load time of `j`. The algorithm goes through the layers in
//! order, and for one that stalls through all `j` up to it, those with the smallest penalty (the
//! paper's PerfDiff: how much longer `j` runs from the host) first.
//!
//! The algorithm as printed follows its own estimate of the stall at `i` alone: it takes load time
//! and penalty off it, and simulates the pipeline again only once the estimate is zero. Here, what
//! a change does to the whole run is computed before it is made (see [`super::change`]), and it is
//! made only where the result does not come later. A small penalty often is that of a small layer,
//! which gains little; so layers are then exchanged for better ones. A second plan, which starts
//! with all layers on the host that are quicker there than loaded and run (section 4.1), often ends
//! up better; the quicker one is taken. In the end, layers that gain nothing by being left on the
//! host are loaded after all, as they would be slower in every later run.

use tessera_core::Result;

use super::change::ResidencyChange;
use super::memory::load_what_fits;
use super::problem::ResidencyProblem;
use super::solution::ResidencySolution;
use super::timeline::{Residency, ResidencyPlan, simulate_residency};
use crate::{Planner, SearchLimit, Strategy};

/// How often layers are exchanged at most; after three or four rounds nothing changes any more.
const ROUNDS: usize = 8;

/// Leaves layers on the host where that shortens the pipeline.
pub struct DirectHostAccess;

impl Strategy for DirectHostAccess {
    fn name(&self) -> &str {
        "direct-host-access"
    }

    fn one_line_summary(&self) -> &str {
        "a pipeline that leaves layers on the host where that gains time (DeepPlan, Algorithm 1)"
    }
}

impl Planner for DirectHostAccess {
    type Problem = ResidencyProblem;
    type Plan = ResidencyPlan;
    type Solution = ResidencySolution;

    fn find_plan(
        &self,
        problem: &ResidencyProblem,
        previous: Option<&ResidencyPlan>,
        _limit: &SearchLimit<'_>,
    ) -> Result<ResidencySolution> {
        let planned = leave_layers(problem, load_what_fits(problem, true))?;
        let is_such = |plan: &ResidencyPlan| plan.pipelined && plan.loading_gpus(problem) == 1;
        Ok(planned.or_previous(problem, previous, is_such))
    }
}

/// Leaves layers on the host that `plan` loads through the target, where that gains time. Never
/// slower than `plan`.
pub(super) fn leave_layers(
    problem: &ResidencyProblem,
    plan: ResidencyPlan,
) -> Result<ResidencySolution> {
    let mut best = ResidencySolution::from_plan(problem, plan.clone())?;
    let begun = ResidencyChange::new(problem, plan)?;
    let cheapest = by_penalty(problem);
    let mut most_gained: Vec<HostCandidate> = by_penalty(problem);
    most_gained.sort_by(|one, other| one.per_load().total_cmp(&other.per_load()));
    let starts: [(BeginPlan, _); 2] = [(shorten_stalls, cheapest), (leave_quicker, most_gained)];
    for (begin, candidates) in starts {
        let mut change = begun.clone();
        begin(&mut change, &candidates);
        exchange_layers(&mut change, &candidates);
        load_again(&mut change, &candidates);
        // What was computed change by change is compared as it is simulated.
        best = best.or_quicker(ResidencySolution::from_plan(problem, change.into_plan())?);
    }
    Ok(best)
}

/// How a plan is begun.
type BeginPlan = fn(&mut ResidencyChange<'_>, &[HostCandidate]);

/// A layer that can be left on the host.
struct HostCandidate {
    /// How much longer it runs then.
    penalty: f64,
    load_us: f64,
    layer: usize,
}

impl HostCandidate {
    /// The penalty per µs of load time that leaving it saves.
    fn per_load(&self) -> f64 {
        self.penalty / self.load_us
    }
}

/// The layers that can be left on the host, those with the smallest penalty first.
fn by_penalty(problem: &ResidencyProblem) -> Vec<HostCandidate> {
    let layers = problem.layers.iter().enumerate();
    let candidate = |(layer, known): (usize, &super::ResidencyLayer)| {
        Some(HostCandidate { penalty: known.direct_penalty()?, load_us: known.load_us, layer })
    };
    let mut found: Vec<HostCandidate> = layers.filter_map(candidate).collect();
    found.sort_by(|one, other| one.penalty.total_cmp(&other.penalty));
    found
}

/// Goes through the layers that stall, and leaves those up to them on the host that make it
/// shorter.
fn shorten_stalls(change: &mut ResidencyChange<'_>, candidates: &[HostCandidate]) {
    for layer in 0..change.layer_count() {
        for candidate in candidates {
            // The others have larger penalties still.
            if change.stall_us(layer) <= 0.0 || change.stall_us(layer) < candidate.penalty {
                break;
            }
            let total = if candidate.layer <= layer && change.is_loaded_here(candidate.layer) {
                change.total_if_direct(candidate.layer)
            } else {
                None
            };
            if total.is_some_and(|total| is_no_later(total, change.total_us())) {
                change.leave_on_host(candidate.layer);
            }
        }
    }
}

/// Leaves all layers on the host that are quicker there than loaded and run.
fn leave_quicker(change: &mut ResidencyChange<'_>, candidates: &[HostCandidate]) {
    for candidate in candidates {
        if candidate.penalty < candidate.load_us && change.is_loaded_here(candidate.layer) {
            change.leave_on_host(candidate.layer);
        }
    }
}

/// Leaves layers on the host, loads some, or exchanges one for another, as long as that gains time.
fn exchange_layers(change: &mut ResidencyChange<'_>, candidates: &[HostCandidate]) {
    for _ in 0..ROUNDS {
        let before = change.total_us();
        while let Some((total, layer)) = best_to_leave(change, candidates)
            && is_sooner(total, change.total_us())
        {
            change.leave_on_host(layer);
        }
        for layer in candidates.iter().rev().map(|candidate| candidate.layer) {
            if !change.is_direct(layer) || !change.fits_memory(layer) {
                continue;
            }
            let known = change.total_us();
            change.load_layer(layer);
            match best_to_leave(change, candidates) {
                Some((total, other)) if is_sooner(total, known.min(change.total_us())) => {
                    change.leave_on_host(other);
                }
                _ if is_sooner(change.total_us(), known) => {}
                _ => change.leave_on_host(layer),
            }
        }
        if !is_sooner(change.total_us(), before) {
            break;
        }
    }
}

/// The layer that is best left on the host next, and the total with it there.
fn best_to_leave(
    change: &ResidencyChange<'_>,
    candidates: &[HostCandidate],
) -> Option<(f64, usize)> {
    let loaded = candidates.iter().map(|candidate| candidate.layer);
    let totals = loaded
        .filter(|&layer| change.is_loaded_here(layer))
        .filter_map(|layer| Some((change.total_if_direct(layer)?, layer)));
    totals.min_by(|one, other| one.0.total_cmp(&other.0))
}

/// Loads what gains nothing on the host, unless it runs no slower from there.
fn load_again(change: &mut ResidencyChange<'_>, candidates: &[HostCandidate]) {
    for candidate in candidates.iter().rev().filter(|candidate| candidate.penalty > 0.0) {
        let layer = candidate.layer;
        if change.is_direct(layer)
            && change.fits_memory(layer)
            && change
                .total_if_loaded(layer)
                .is_some_and(|total| is_no_later(total, change.total_us()))
        {
            change.load_layer(layer);
        }
    }
}

/// Sooner by more than rounding.
fn is_sooner(total: f64, known: f64) -> bool {
    total < known * (1.0 - 1e-12)
}

/// No later, but for rounding.
fn is_no_later(total: f64, known: f64) -> bool {
    total <= known * (1.0 + 1e-12)
}

/// The paper's Algorithm 1 to the letter, for comparison.
pub fn algorithm_1_as_printed(problem: &ResidencyProblem) -> Result<ResidencyPlan> {
    let mut plan = load_what_fits(problem, true);
    let stalls = |plan: &ResidencyPlan| -> Result<Vec<f64>> {
        Ok(simulate_residency(problem, plan)?.layers.iter().map(|layer| layer.stall_us).collect())
    };
    let mut known = stalls(&plan)?;
    let candidates = by_penalty(problem);
    for layer in 0..problem.layers.len() {
        if known[layer] <= 0.0 {
            continue;
        }
        for candidate in &candidates {
            if candidate.layer > layer || plan.layers[candidate.layer] == Residency::Direct {
                continue;
            }
            if known[layer] < candidate.penalty {
                break;
            }
            plan.layers[candidate.layer] = Residency::Direct;
            known[layer] -= candidate.load_us + candidate.penalty;
            if known[layer] <= 0.0 {
                known = stalls(&plan)?;
                break;
            }
        }
    }
    Ok(plan)
}
