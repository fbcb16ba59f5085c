//! What a placement would bring: the simulator, and the constraints.

use std::collections::BTreeSet;

use serde::Serialize;

use super::cost_model::{PlacementCostModel, move_seconds};
use super::plan::PlacementPlan;
use super::problem::PlacementProblem;

/// What a placement would bring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacementOutcome {
    /// Expected latency of a request (equation 6.12); the weighted mean where there are several
    /// models.
    pub latency_seconds: f64,
    /// How often neighbouring layers are on different nodes.
    pub splits: usize,
    /// Requests per second that the busiest node can bear; none where nothing takes any time.
    pub throughput_per_second: Option<f64>,
    /// Expected share of right answers, where it is known.
    pub accuracy: Option<f64>,
    /// Expected energy of a request, where nodes say what they draw.
    pub energy_joules: Option<f64>,
    /// Each model by itself.
    pub models: Vec<ModelOutcome>,
    /// Each node.
    pub nodes: Vec<NodeOutcome>,
}

/// What a placement would bring a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelOutcome {
    /// Its name.
    pub name: String,
    /// Expected latency.
    pub latency_seconds: f64,
    /// Of which is computing.
    pub compute_seconds: f64,
    /// Of which is transfers.
    pub transfer_seconds: f64,
    /// How often neighbouring layers are on different nodes.
    pub splits: usize,
    /// Expected share of right answers, where it is known.
    pub accuracy: Option<f64>,
}

/// What a placement would ask of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeOutcome {
    /// Its name.
    pub name: String,
    /// Memory of the layers there.
    pub memory_bytes: f64,
    /// Storage of the layers there.
    pub storage_bytes: f64,
    /// Seconds that it is expected to compute for a request.
    pub busy_seconds: f64,
}

/// What a placement would bring, whether or not it meets the constraints.
pub fn evaluate_placement(problem: &PlacementProblem, plan: &PlacementPlan) -> PlacementOutcome {
    let settings = plan.models.iter().map(|model| model.settings.clone()).collect();
    let cost_model = PlacementCostModel::new(problem, settings, None);
    let network = &cost_model.network;
    let mut busy = vec![0.0; network.nodes];
    let mut energy = 0.0;
    let mut models = Vec::with_capacity(plan.models.len());
    for ((model, chain), placed) in
        cost_model.models.iter().zip(&cost_model.chains).zip(&plan.models)
    {
        let (mut compute, mut transfers, mut splits) = (0.0, 0.0, 0);
        let mut at = chain.input;
        for (layer, &node) in placed.nodes.iter().enumerate() {
            if node != at {
                transfers += chain.entry_seconds(network, layer, at, node);
                let sending = problem.nodes[at].joules_per_byte_sent.unwrap_or(0.0);
                energy += chain.weight * chain.reach[layer] * chain.bits[layer] / 8.0 * sending;
                splits += usize::from(layer > 0);
                at = node;
            }
            let reply = chain.reply_seconds(node, layer);
            let time = chain.layer_seconds(node, layer) - reply;
            compute += time;
            transfers += reply;
            busy[node] += chain.weight * time;
            energy += chain.weight * time * problem.nodes[node].watts.unwrap_or(0.0);
        }
        models.push(ModelOutcome {
            name: model.name.clone(),
            latency_seconds: chain.expected_latency(network, &placed.nodes),
            compute_seconds: compute,
            transfer_seconds: transfers,
            splits,
            accuracy: model.accuracy_with(&placed.settings),
        });
    }
    let weights = cost_model.chains.iter().map(|chain| chain.weight);
    let accuracy: Option<f64> =
        models.iter().zip(weights).map(|(model, weight)| Some(model.accuracy? * weight)).sum();
    let nodes = resource_needs(problem, plan).into_iter().zip(&busy).zip(&problem.nodes);
    let busiest = busy.iter().copied().fold(0.0, f64::max);
    let knows_energy = problem
        .nodes
        .iter()
        .any(|node| node.watts.is_some() || node.joules_per_byte_sent.is_some());
    PlacementOutcome {
        latency_seconds: models
            .iter()
            .zip(&cost_model.chains)
            .map(|(model, chain)| chain.weight * model.latency_seconds)
            .sum(),
        splits: models.iter().map(|model| model.splits).sum(),
        throughput_per_second: (busiest > 0.0).then(|| 1.0 / busiest),
        accuracy,
        energy_joules: knows_energy.then_some(energy),
        nodes: nodes
            .map(|(((memory, storage), &busy), node)| NodeOutcome {
                name: node.name.clone(),
                memory_bytes: memory,
                storage_bytes: storage,
                busy_seconds: busy,
            })
            .collect(),
        models,
    }
}

/// What moving from one plan to another costs a request, and how many layers move.
pub fn moving_cost(
    problem: &PlacementProblem,
    from: &PlacementPlan,
    to: &PlacementPlan,
) -> (usize, f64) {
    let models = problem.all_models();
    let weights: f64 = models.iter().map(|model| model.weight).sum();
    let (mut layers, mut seconds) = (0, 0.0);
    for (model, (old, new)) in models.iter().zip(from.models.iter().zip(&to.models)) {
        for (layer, (old, new)) in model.layers.iter().zip(old.nodes.iter().zip(&new.nodes)) {
            if old != new {
                layers += 1;
                seconds += model.weight / weights * move_seconds(problem, layer.storage_bytes);
            }
        }
    }
    (layers, seconds)
}

/// Memory and storage that a placement asks of each node; a block that is there twice counts once.
fn resource_needs(problem: &PlacementProblem, plan: &PlacementPlan) -> Vec<(f64, f64)> {
    let mut needs = vec![(0.0, 0.0); problem.nodes.len()];
    let mut blocks: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); problem.nodes.len()];
    let models = problem.all_models();
    for (model, placed) in models.iter().zip(&plan.models) {
        for (layer, &node) in model.layers.iter().zip(&placed.nodes) {
            let new = layer.block.as_deref().is_none_or(|block| blocks[node].insert(block));
            if new {
                needs[node].0 += layer.memory_bytes;
                needs[node].1 += layer.storage_bytes;
            }
        }
    }
    needs
}

/// The first constraint that a plan breaks, in one line; none where it meets all.
pub fn find_violation(problem: &PlacementProblem, plan: &PlacementPlan) -> Option<String> {
    let models = problem.all_models();
    if plan.models.len() != models.len() {
        return Some(format!("{} models, expected {}", plan.models.len(), models.len()));
    }
    let name = |node: usize| problem.nodes[node].name.as_str();
    for (model, placed) in models.iter().zip(&plan.models) {
        let of =
            if problem.models.is_empty() { String::new() } else { format!(" of {}", model.name) };
        if placed.nodes.len() != model.layers.len() || placed.settings.len() != model.layers.len() {
            return Some(format!(
                "{} layers{of}, expected {}",
                placed.nodes.len(),
                model.layers.len()
            ));
        }
        if let Some(layer) = placed.nodes.iter().position(|&node| node >= problem.nodes.len()) {
            return Some(format!("layer {layer}{of} is on a node that is not there"));
        }
        for (layer, (described, setting)) in model.layers.iter().zip(&placed.settings).enumerate() {
            let there = setting.map_or(described.exit.is_empty(), |at| at < described.exit.len());
            if !there {
                return Some(format!("layer {layer}{of} has no such setting of its exit"));
            }
        }
        if let (Some(least), Some(accuracy)) =
            (model.least_accuracy, model.accuracy_with(&placed.settings))
            && accuracy < least - 1e-12
        {
            return Some(format!("{}: accuracy {accuracy}, below {least}", model.name));
        }
        let mut left = vec![false; problem.nodes.len()];
        let input = problem.input_of(model);
        let leaving = model.leaving_by_layer(&placed.settings);
        let mut at = input;
        for (layer, &node) in placed.nodes.iter().enumerate() {
            let before = (layer > 0).then(|| placed.nodes[layer - 1]);
            if let Some(before) = before.filter(|&before| before != node) {
                if problem.nodes[node].tier < problem.nodes[before].tier {
                    return Some(format!(
                        "layer {layer}{of} is on {}, in a lower tier than {} with the layer before it (constraint 6.4)",
                        name(node),
                        name(before)
                    ));
                }
                left[before] = true;
                if left[node] {
                    return Some(format!(
                        "layer {layer}{of} is on {} again: a node's layers must be contiguous (constraint 6.3)",
                        name(node)
                    ));
                }
            }
            let has_link = |from: usize, to: usize| {
                from == to
                    || problem.throughput_bits_per_second[from][to].is_some_and(|rate| rate > 0.0)
            };
            if node != at {
                if !has_link(at, node) {
                    return Some(format!(
                        "layer {layer}{of} is on {}, to which {} has no connection",
                        name(node),
                        name(at)
                    ));
                }
                at = node;
            }
            if model.reply_bytes.is_some() && leaving[layer] > 0.0 && !has_link(node, input) {
                return Some(format!(
                    "layer {layer}{of} is on {}, which has no connection to {} for its answers",
                    name(node),
                    name(input)
                ));
            }
        }
    }
    for (node, (memory, storage)) in problem.nodes.iter().zip(resource_needs(problem, plan)) {
        let over = |needed: f64, there: Option<f64>| {
            // Sums of large figures are rounded, in one order here and in another there.
            there.filter(|there| needed > there * (1.0 + 1e-12))
        };
        if let Some(there) = over(memory, node.memory_bytes) {
            return Some(format!(
                "{} has {there} bytes of memory, its layers need {memory} (constraint 6.1)",
                node.name
            ));
        }
        if let Some(there) = over(storage, node.storage_bytes) {
            return Some(format!(
                "{} has {there} bytes of storage, its layers need {storage} (constraint 6.1)",
                node.name
            ));
        }
    }
    None
}
