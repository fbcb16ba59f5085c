//! Which layers stay on the host because the GPU's memory is short.

use super::problem::{ResidencyProblem, exceeds_memory};
use super::timeline::{Residency, ResidencyPlan};

/// The plan that loads all layers through the target, less those that do not fit: of these, the
/// ones that run the least longer per byte stay on the host.
pub(super) fn load_what_fits(problem: &ResidencyProblem, pipelined: bool) -> ResidencyPlan {
    let mut plan = ResidencyPlan::loading_all(problem, pipelined);
    let Some(memory) = problem.target_memory() else { return plan };
    let through = problem.target_index();
    let mut bytes: f64 = problem.layers.iter().map(|layer| layer.bytes).sum();
    let mut candidates: Vec<(f64, usize)> = problem
        .layers
        .iter()
        .enumerate()
        .filter_map(|(number, layer)| Some((layer.direct_penalty()? / layer.bytes, number)))
        .collect();
    candidates.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut left = Vec::new();
    for &(_, layer) in &candidates {
        if !exceeds_memory(bytes, memory) {
            break;
        }
        plan.layers[layer] = Residency::Direct;
        bytes -= problem.layers[layer].bytes;
        left.push(layer);
    }
    // The last one may have made room for some before it.
    for &layer in left.iter().rev() {
        if bytes + problem.layers[layer].bytes <= memory {
            plan.layers[layer] = Residency::Loaded { through };
            bytes += problem.layers[layer].bytes;
        }
    }
    plan
}

/// Whether all layers fit into the target's memory.
pub(super) fn all_fit(problem: &ResidencyProblem) -> bool {
    let bytes: f64 = problem.layers.iter().map(|layer| layer.bytes).sum();
    problem.target_memory().is_none_or(|memory| !exceeds_memory(bytes, memory))
}
