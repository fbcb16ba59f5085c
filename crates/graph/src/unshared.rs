//! Why models with weights in common do not have the blocks in common that these are in.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use prost::Message;
use tessera_core::ContentHash;

use crate::block::Block;
use crate::onnx::{ModelProto, OperatorSetIdProto};
use crate::share::SharedPartitions;

/// Weights that two models have in common, in blocks that they have not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsharedWeights {
    /// The models, by number.
    pub models: (usize, usize),
    /// Their blocks.
    pub blocks: (ContentHash, ContentHash),
    /// Bytes of the weights.
    pub bytes: usize,
    /// What the blocks differ in.
    pub reason: String,
}

/// Finds such weights, the most bytes first.
pub fn find_unshared(shared: &SharedPartitions) -> Vec<UnsharedWeights> {
    let mut found = Vec::new();
    let blocks_of: Vec<Vec<ContentHash>> =
        shared.partitions.iter().map(|partition| partition.graph.distinct_blocks()).collect();
    for second in 1..blocks_of.len() {
        for first in 0..second {
            compare_models(shared, &blocks_of, (first, second), &mut found);
        }
    }
    found.sort_by_key(|unshared: &UnsharedWeights| std::cmp::Reverse(unshared.bytes));
    found
}

fn compare_models(
    shared: &SharedPartitions,
    blocks_of: &[Vec<ContentHash>],
    models: (usize, usize),
    found: &mut Vec<UnsharedWeights>,
) {
    let own = |model: usize, other: usize| {
        let others: HashSet<&ContentHash> = blocks_of[other].iter().collect();
        let blocks = &shared.partitions[model].blocks;
        let own = blocks_of[model].iter().filter(move |hash| !others.contains(hash));
        own.filter_map(|hash| blocks.get(hash)).collect::<Vec<&Block>>()
    };
    // The block of the second model that each weight is in.
    let seconds = own(models.1, models.0);
    let mut place_of: HashMap<ContentHash, usize> = HashMap::new();
    for (place, block) in seconds.iter().enumerate() {
        for weight in block.weights() {
            place_of.entry(weight.hash).or_insert(place);
        }
    }
    for block in own(models.0, models.1) {
        let mut bytes_at: BTreeMap<usize, usize> = BTreeMap::new();
        let mut seen = HashSet::new();
        for weight in block.weights().iter().filter(|weight| seen.insert(weight.hash)) {
            if let Some(&place) = place_of.get(&weight.hash) {
                *bytes_at.entry(place).or_default() += weight.byte_len;
            }
        }
        found.extend(bytes_at.into_iter().map(|(place, bytes)| UnsharedWeights {
            models,
            blocks: (block.hash(), seconds[place].hash()),
            bytes,
            reason: explain_difference(block, seconds[place]),
        }));
    }
}

/// What two blocks differ in, in words.
fn explain_difference(first: &Block, second: &Block) -> String {
    let decode = |block: &Block| ModelProto::decode(block.program().clone()).unwrap_or_default();
    let (first_model, second_model) = (decode(first), decode(second));
    let more = |a: &ModelProto, b: &ModelProto| {
        let (a, b) = (count_operators(a), count_operators(b));
        let more = a.into_iter().filter_map(|(name, count)| {
            let more = count - b.get(&name).copied().unwrap_or(0).min(count);
            (more > 0).then(|| format!("{more} {name}"))
        });
        more.take(4).collect::<Vec<_>>().join(", ")
    };
    let (only_first, only_second) =
        (more(&first_model, &second_model), more(&second_model, &first_model));
    if !only_first.is_empty() || !only_second.is_empty() {
        let side = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
        return format!("operators: {} against {}", side(&only_first), side(&only_second));
    }
    let hashes =
        |block: &Block| block.weights().iter().map(|weight| weight.hash).collect::<BTreeSet<_>>();
    let (first_weights, second_weights) = (hashes(first), hashes(second));
    let others = first_weights.difference(&second_weights).count();
    if others > 0 {
        return format!(
            "{others} of {} weights are others, and no cut point is between them and the rest",
            first_weights.len()
        );
    }
    let opsets = |model: &ModelProto| {
        let shown = |opset: &OperatorSetIdProto| {
            let domain = if opset.domain().is_empty() { "ai.onnx" } else { opset.domain() };
            format!("{domain} {}", opset.version())
        };
        model.opset_import.iter().map(shown).collect::<Vec<_>>().join(", ")
    };
    let (first_opsets, second_opsets) = (opsets(&first_model), opsets(&second_model));
    if first_opsets == second_opsets {
        "the same operators with other constants, attributes or order".to_owned()
    } else {
        format!("opset: {first_opsets} against {second_opsets}")
    }
}

fn count_operators(model: &ModelProto) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in model.graph.iter().flat_map(|graph| &graph.node) {
        *counts.entry(node.op_type().to_owned()).or_default() += 1;
    }
    counts
}
