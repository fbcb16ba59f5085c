//! Early exits: branches at the side of a model that can answer before its end.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use crate::model::{Graph, NodeId, ValueId};

/// An output that the user names as an exit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExitSpec {
    /// Name of the output.
    pub output: String,
    /// The exit is taken where the normalised entropy is at most this.
    pub threshold: f32,
}

/// What the elements of an exit's output are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoreKind {
    /// Scores of any size, to be passed through softmax.
    Logits,
    /// Probabilities: the branch ends in a softmax of its own.
    Probabilities,
}

/// A side exit of a block graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// Name of the output in the model's file.
    pub output: String,
    /// The exit is taken where the normalised entropy is at most this.
    pub threshold: f32,
    /// What the output's elements are.
    pub scores: ScoreKind,
    /// Index of the block that is the exit's head.
    pub head: usize,
    /// Index of the block from whose output the head hangs; `None` where it hangs off an input.
    pub after: Option<usize>,
}

/// How uncertain a classifier is: 0 for certain, 1 for no idea (addnn thesis, equation 2.3).
///
/// `scores` are those of one sample, an element per class.
///
/// Inlined, as the rest of this crate is compiled with little effort and requests pass this.
#[inline]
pub fn normalised_entropy(scores: &[f64], kind: ScoreKind) -> f64 {
    if scores.len() < 2 {
        return 0.0;
    }
    let (sum, entropy) = match kind {
        ScoreKind::Logits => entropy_of_logits(scores),
        ScoreKind::Probabilities => entropy_of_weights(scores),
    };
    // Garbage in (NaN, nothing positive) is as uncertain as can be: the exit is not taken.
    let normalised = entropy / (scores.len() as f64).ln();
    let is_known = normalised.is_finite() && sum.is_finite() && sum > 0.0;
    if is_known { normalised.clamp(0.0, 1.0) } else { 1.0 }
}

/// The sum of the exponentials beyond the highest score, and the entropy of their shares.
///
/// The logarithm of a share is the score itself less that of the sum: one exponential for each class
/// and a single logarithm.
#[inline]
fn entropy_of_logits(scores: &[f64]) -> (f64, f64) {
    let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut sum, mut weighted) = (0.0, 0.0);
    for score in scores {
        let weight = (score - highest).exp();
        sum += weight;
        // Minus infinity has no share, and no product.
        weighted += if weight == 0.0 { 0.0 } else { weight * (score - highest) };
    }
    (sum, sum.ln() - weighted / sum)
}

/// The sum of the weights, and the entropy of their shares; what is below 0 has none.
#[inline]
fn entropy_of_weights(weights: &[f64]) -> (f64, f64) {
    // What is no number stays what it is, unlike with `max`.
    let weights = || weights.iter().map(|&weight| if weight < 0.0 { 0.0 } else { weight });
    let sum: f64 = weights().sum();
    let shares = weights().map(|weight| weight / sum).filter(|&share| share > 0.0);
    (sum, shares.map(|share| -share * share.ln()).sum())
}

/// The branch of one exit.
pub(crate) struct ExitBranch {
    pub(crate) spec: ExitSpec,
    pub(crate) value: ValueId,
    pub(crate) scores: ScoreKind,
}

/// The branches of all exits, and which node belongs to which.
pub(crate) struct ExitBranches {
    pub(crate) branches: Vec<ExitBranch>,
    /// Per node, the branch it belongs to; `None` for the trunk.
    pub(crate) of_node: Vec<Option<usize>>,
}

/// Finds the nodes that each exit alone needs.
pub(crate) fn find_branches(graph: &Graph, specs: &[ExitSpec]) -> Result<ExitBranches> {
    let mut branches = Vec::with_capacity(specs.len());
    let mut by_value = HashMap::new();
    for spec in specs {
        let outputs = || {
            let names: Vec<&str> = graph.outputs().iter().map(|&id| graph.value_name(id)).collect();
            names.join(", ")
        };
        let value = graph.outputs().iter().copied().find(|&id| graph.value_name(id) == spec.output);
        let value = value.ok_or_else(|| {
            Error::usage(format!(
                "exit \"{}\" is no output of the model, expected one of: {}",
                spec.output,
                outputs()
            ))
        })?;
        if !(0.0..=1.0).contains(&spec.threshold) {
            return Err(Error::usage(format!(
                "exit \"{}\": threshold {}, expected 0 to 1",
                spec.output, spec.threshold
            )));
        }
        if by_value.insert(value, branches.len()).is_some() {
            return Err(Error::usage(format!("exit \"{}\" is named twice", spec.output)));
        }
        let ends_in = graph.producer(value).map(|node| graph.node(node).op_type.as_str());
        let scores = match ends_in {
            Some("Softmax") => ScoreKind::Probabilities,
            _ => ScoreKind::Logits,
        };
        branches.push(ExitBranch { spec: spec.clone(), value, scores });
    }
    if !branches.is_empty() && branches.len() == graph.outputs().len() {
        return Err(Error::usage("every output is named as an exit, expected one that is not"));
    }
    let of_node = assign_branches(graph, &by_value);
    for (index, branch) in branches.iter().enumerate() {
        let head = graph.producer(branch.value).filter(|node| of_node[node.index()] == Some(index));
        if head.is_none() {
            return Err(Error::usage(format!(
                "exit \"{}\" is no branch of its own: the rest of the model uses what computes it",
                branch.spec.output
            )));
        }
    }
    Ok(ExitBranches { branches, of_node })
}

/// Per node, the exit that everything it computes leads to.
fn assign_branches(graph: &Graph, exits: &HashMap<ValueId, usize>) -> Vec<Option<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum NodeDestination {
        Nowhere,
        Exit(usize),
        Trunk,
    }
    let join = |a: NodeDestination, b: NodeDestination| match (a, b) {
        (NodeDestination::Nowhere, other) | (other, NodeDestination::Nowhere) => other,
        (a, b) if a == b => a,
        _ => NodeDestination::Trunk,
    };
    let mut leads = vec![NodeDestination::Nowhere; graph.nodes().len()];
    for (index, node) in graph.nodes().iter().enumerate().rev() {
        for value in node.produced_values() {
            if graph.is_output(value) {
                let here = exits
                    .get(&value)
                    .map_or(NodeDestination::Trunk, |&exit| NodeDestination::Exit(exit));
                leads[index] = join(leads[index], here);
            }
            for &NodeId(next) in graph.consumers(value) {
                leads[index] = join(leads[index], leads[next as usize]);
            }
        }
    }
    let branch = |leads| {
        if let NodeDestination::Exit(exit) = leads { Some(exit) } else { None }
    };
    leads.into_iter().map(branch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_one_for_no_idea_and_zero_for_certainty() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(normalised_entropy(&[1.0; 10], ScoreKind::Logits), 1.0));
        assert!(near(normalised_entropy(&[0.25; 4], ScoreKind::Probabilities), 1.0));
        assert!(normalised_entropy(&[100.0, 0.0, 0.0], ScoreKind::Logits) < 1e-9);
        assert!(near(normalised_entropy(&[1.0, 0.0, 0.0], ScoreKind::Probabilities), 0.0));
        // −(0.9 ln 0.9 + 0.1 ln 0.1) / ln 2
        let expected = -(0.9f64 * 0.9f64.ln() + 0.1 * 0.1f64.ln()) / 2f64.ln();
        assert!(near(normalised_entropy(&[0.9, 0.1], ScoreKind::Probabilities), expected));
    }

    #[test]
    fn scores_that_are_no_numbers_never_take_an_exit() {
        for scores in [[f64::NAN, 1.0], [f64::INFINITY, 1.0], [f64::NEG_INFINITY; 2]] {
            assert_eq!(normalised_entropy(&scores, ScoreKind::Logits), 1.0);
        }
        for scores in [[0.0, 0.0], [f64::INFINITY, 1.0], [f64::NAN, 1.0]] {
            assert_eq!(normalised_entropy(&scores, ScoreKind::Probabilities), 1.0);
        }
    }
}
