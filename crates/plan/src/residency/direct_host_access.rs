//! `direct-host-access`: leave layers on the host where that shortens the pipeline (Algorithm 1).
//!
//! A layer `i` that stalls is helped by leaving an earlier layer `j`, or itself, on the host: its own load
//! then starts sooner by the load time of `j`. The algorithm goes through the layers in order, and for one
//! that stalls through all `j` up to it, those with the smallest penalty (the paper's PerfDiff: how much
//! longer `j` runs from the host) first.
//!
//! The algorithm as printed follows its own estimate of the stall at `i` alone: it takes load time and
//! penalty off it, and plays the pipeline again only once the estimate is zero. Here, what a change does to
//! the whole run is computed before it is made (see [`super::change`]), and it is made only where the
//! result does not come later. A small penalty often is that of a small layer, which gains little; so
//! layers are then exchanged for better ones. A second plan, which starts with all layers on the host that
//! are quicker there than loaded and run (section 4.1), often ends up better; the quicker one is taken.
//! In the end, layers that gain nothing by being left on the host are loaded after all, as they would be
//! slower in every later run.

use tessera_core::Result;

use super::change::Change;
use super::memory::load_what_fits;
use super::problem::Problem;
use super::timeline::{Plan, Residency, simulate};
use super::{Planned, Strategy};
use crate::Limit;

/// How often layers are exchanged at most; after three or four rounds nothing changes any more.
const ROUNDS: usize = 8;

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
    let mut best = Planned::of(problem, plan.clone())?;
    let begun = Change::new(problem, plan)?;
    let cheapest = by_penalty(problem);
    let mut most_gained: Vec<Candidate> = by_penalty(problem);
    most_gained.sort_by(|one, other| one.per_load().total_cmp(&other.per_load()));
    let starts: [(Begin, _); 2] = [(shorten_stalls, cheapest), (leave_quicker, most_gained)];
    for (begin, candidates) in starts {
        let mut change = begun.clone();
        begin(&mut change, &candidates);
        exchange(&mut change, &candidates);
        load_again(&mut change, &candidates);
        // What was computed change by change is compared as it is simulated.
        best = best.or_quicker(Planned::of(problem, change.into_plan())?);
    }
    Ok(best)
}

/// How a plan is begun.
type Begin = fn(&mut Change<'_>, &[Candidate]);

/// A layer that can be left on the host.
struct Candidate {
    /// How much longer it runs then.
    penalty: f64,
    load_us: f64,
    layer: usize,
}

impl Candidate {
    /// The penalty per µs of load time that leaving it saves.
    fn per_load(&self) -> f64 {
        self.penalty / self.load_us
    }
}

/// The layers that can be left on the host, those with the smallest penalty first.
fn by_penalty(problem: &Problem) -> Vec<Candidate> {
    let layers = problem.layers.iter().enumerate();
    let candidate = |(layer, known): (usize, &super::Layer)| {
        Some(Candidate { penalty: known.penalty()?, load_us: known.load_us, layer })
    };
    let mut found: Vec<Candidate> = layers.filter_map(candidate).collect();
    found.sort_by(|one, other| one.penalty.total_cmp(&other.penalty));
    found
}

/// Goes through the layers that stall, and leaves those up to them on the host that make it shorter.
fn shorten_stalls(change: &mut Change<'_>, candidates: &[Candidate]) {
    for layer in 0..change.layers() {
        for candidate in candidates {
            // The others have larger penalties still.
            if change.stall(layer) <= 0.0 || change.stall(layer) < candidate.penalty {
                break;
            }
            let total = match candidate.layer <= layer && change.is_loaded_here(candidate.layer) {
                true => change.total_if_direct(candidate.layer),
                false => None,
            };
            if total.is_some_and(|total| is_no_later(total, change.total())) {
                change.leave(candidate.layer);
            }
        }
    }
}

/// Leaves all layers on the host that are quicker there than loaded and run.
fn leave_quicker(change: &mut Change<'_>, candidates: &[Candidate]) {
    for candidate in candidates {
        if candidate.penalty < candidate.load_us && change.is_loaded_here(candidate.layer) {
            change.leave(candidate.layer);
        }
    }
}

/// Leaves layers on the host, loads some, or exchanges one for another, as long as that gains time.
fn exchange(change: &mut Change<'_>, candidates: &[Candidate]) {
    for _ in 0..ROUNDS {
        let before = change.total();
        while let Some((total, layer)) = best_to_leave(change, candidates)
            && is_sooner(total, change.total())
        {
            change.leave(layer);
        }
        for layer in candidates.iter().rev().map(|candidate| candidate.layer) {
            if !change.is_direct(layer) || !change.fits(layer) {
                continue;
            }
            let known = change.total();
            change.load(layer);
            match best_to_leave(change, candidates) {
                Some((total, other)) if is_sooner(total, known.min(change.total())) => {
                    change.leave(other);
                }
                _ if is_sooner(change.total(), known) => {}
                _ => change.leave(layer),
            }
        }
        if !is_sooner(change.total(), before) {
            break;
        }
    }
}

/// The layer that is best left on the host next, and the total with it there.
fn best_to_leave(change: &Change<'_>, candidates: &[Candidate]) -> Option<(f64, usize)> {
    let loaded = candidates.iter().map(|candidate| candidate.layer);
    let totals = loaded
        .filter(|&layer| change.is_loaded_here(layer))
        .filter_map(|layer| Some((change.total_if_direct(layer)?, layer)));
    totals.min_by(|one, other| one.0.total_cmp(&other.0))
}

/// Loads what gains nothing on the host, unless it runs no slower from there.
fn load_again(change: &mut Change<'_>, candidates: &[Candidate]) {
    for candidate in candidates.iter().rev().filter(|candidate| candidate.penalty > 0.0) {
        let layer = candidate.layer;
        if change.is_direct(layer)
            && change.fits(layer)
            && change.total_if_loaded(layer).is_some_and(|total| is_no_later(total, change.total()))
        {
            change.load(layer);
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
