//! Where the exit of a task is that may answer instead of the rest: at the node that requests come
//! from, so that it answers whatever link is cut.

use std::collections::BTreeMap;

use tessera_graph::BlockGraph;
use tessera_plan::placement::{ModelPlan, PlacementProblem};

/// What is said of a time that nobody has measured: nothing is placed there.
pub(super) const UNKNOWN_MS: f64 = 1e9;
/// Milliseconds that it is said to take longer anywhere else: more than could be gained there.
const ELSEWHERE_MS: f64 = 1e6;

/// Has what the first exit of a model needs be at the node that its requests come from, where it
/// fits; says why where it does not.
pub(super) fn keep_exit_at_input(
    problem: &mut PlacementProblem,
    number: usize,
    graph: &BlockGraph,
) -> Option<String> {
    let layers = first_exit_layers(graph)?;
    let input = problem.input_of(&problem.models[number]);
    let (node, model) = (&problem.nodes[input], &mut problem.models[number]);
    let is_known = |time: Option<&f64>| time.is_some_and(|time| *time < UNKNOWN_MS);
    let needed: BTreeMap<_, f64> = model.layers[..layers]
        .iter()
        .map(|layer| (layer.block.as_deref(), layer.memory_bytes))
        .collect();
    let needed: f64 = needed.values().sum();
    let there = node.memory_bytes.unwrap_or(f64::INFINITY);
    if needed > there {
        return Some(format!(
            "its exit can't be at {}, where requests come in: it needs {:.1} MB there, and {:.1} \
             are left",
            node.name,
            needed / 1e6,
            there / 1e6
        ));
    }
    if !model.layers[..layers].iter().all(|layer| is_known(layer.times_ms.get(&node.name))) {
        // How long it takes there is found out first.
        return None;
    }
    for layer in &mut model.layers[..layers] {
        let others = layer.times_ms.iter_mut().filter(|(name, _)| **name != node.name);
        others.filter(|(_, time)| **time < UNKNOWN_MS).for_each(|(_, time)| *time += ELSEWHERE_MS);
    }
    None
}

/// Why a plan has the exit elsewhere, where it does though it would fit.
pub(super) fn elsewhere_reason(
    problem: &PlacementProblem,
    number: usize,
    graph: &BlockGraph,
    plan: &ModelPlan,
) -> Option<String> {
    let layers = first_exit_layers(graph)?;
    let input = problem.input_of(&problem.models[number]);
    let is_there = plan.nodes[..layers].iter().all(|node| *node == input);
    let name = &problem.nodes[input].name;
    (!is_there).then(|| {
        format!(
            "its exit is not at {name}, where requests come in: other tasks need the room there"
        )
    })
}

/// How many blocks there are up to the first exit, its head among them.
fn first_exit_layers(graph: &BlockGraph) -> Option<usize> {
    graph.exits.iter().map(|exit| exit.head + 1).min()
}
