//! The order of a block's outputs, from what computes them alone.
//!
//! With one output, the order in which it needs its inputs and nodes follows. With several, they
//! must be told apart first, and neither names nor the order in the file may play a part. Every
//! value gets a colour, the hash of how it is computed; inputs, which nothing computes, then get
//! the hash of how they are used, and so on until nothing more is told apart.

use std::collections::{BTreeSet, HashMap, HashSet};

use prost::Message;

use crate::infer::InferredTypes;
use crate::model::{Graph, NodeId, ValueId};
use crate::onnx::tensors;
use crate::weight_hashes::WeightHashes;

type ValueColour = [u8; 32];

/// Rounds after which values that still look alike are taken for alike.
const MOST_ROUNDS: usize = 8;

/// Sorts `outputs` of the block of the nodes that are `inside`.
pub(crate) fn sort_outputs(
    graph: &Graph,
    types: &InferredTypes,
    hashes: &WeightHashes,
    inside: &dyn Fn(NodeId) -> bool,
    outputs: &mut [ValueId],
) {
    let nodes = needed_nodes(graph, inside, outputs);
    let fixed: Vec<ValueColour> = nodes.iter().map(|&id| node_colour(graph, id)).collect();
    let mut colours: HashMap<ValueId, ValueColour> = HashMap::new();
    for value in nodes.iter().flat_map(|&id| graph.node(id).used_values()) {
        colours.entry(value).or_insert_with(|| leaf_colour(graph, types, hashes, value));
    }
    let mut distinct_before = 0;
    for _ in 0..MOST_ROUNDS {
        colour_forward(graph, &nodes, &fixed, &mut colours);
        let distinct = colours.values().collect::<HashSet<_>>().len();
        if distinct <= distinct_before {
            break;
        }
        distinct_before = distinct;
        colour_backward(graph, &nodes, &fixed, outputs, &mut colours);
    }
    outputs.sort_by_key(|value| colours.get(value).copied());
}

/// The nodes that the outputs need, in the graph's order: others leave no trace in a block.
fn needed_nodes(
    graph: &Graph,
    inside: &dyn Fn(NodeId) -> bool,
    outputs: &[ValueId],
) -> Vec<NodeId> {
    let mut needed = BTreeSet::new();
    let mut wanted = outputs.to_vec();
    while let Some(value) = wanted.pop() {
        let made = graph.producer(value);
        if let Some(node) = made.filter(|&id| inside(id) || graph.is_constant_node(id))
            && needed.insert(node)
        {
            wanted.extend(graph.node(node).used_values());
        }
    }
    needed.into_iter().collect()
}

fn hash_parts(parts: &[&[u8]]) -> ValueColour {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    *hasher.finalize().as_bytes()
}

/// The operator and its attributes.
fn node_colour(graph: &Graph, id: NodeId) -> ValueColour {
    let node = graph.node(id);
    let attributes: Vec<u8> =
        node.attributes.iter().flat_map(Message::encode_length_delimited_to_vec).collect();
    hash_parts(&[node.domain.as_bytes(), node.op_type.as_bytes(), &attributes])
}

/// A weight by its content, an input by its dtype.
fn leaf_colour(
    graph: &Graph,
    types: &InferredTypes,
    hashes: &WeightHashes,
    value: ValueId,
) -> ValueColour {
    match graph.weight(value) {
        Some(weight) => match hashes.get(value, weight) {
            Some(content) => {
                let described = format!("{:?}", weight.tensor_type());
                hash_parts(&[b"weight", described.as_bytes(), content.as_bytes()])
            }
            None => {
                let inline = tensors::inline_tensor(String::new(), weight).encode_to_vec();
                hash_parts(&[b"constant", &inline])
            }
        },
        None => {
            let dtype = types.get(value).map_or(0, |known| known.dtype.to_onnx());
            hash_parts(&[b"input", &dtype.to_le_bytes()])
        }
    }
}

/// Colours every value by what computes it.
fn colour_forward(
    graph: &Graph,
    nodes: &[NodeId],
    fixed: &[ValueColour],
    colours: &mut HashMap<ValueId, ValueColour>,
) {
    for (&id, fixed) in nodes.iter().zip(fixed) {
        let node = graph.node(id);
        let mut used: Vec<u8> = Vec::new();
        for input in &node.inputs {
            used.extend(input.and_then(|value| colours.get(&value)).unwrap_or(&[0; 32]));
        }
        for capture in &node.captures {
            used.extend(colours.get(capture).unwrap_or(&[0; 32]));
        }
        for (index, value) in node.outputs.iter().enumerate() {
            if let Some(value) = value {
                let before = colours.get(value).copied().unwrap_or_default();
                colours.insert(*value, hash_parts(&[fixed, &used, &index.to_le_bytes(), &before]));
            }
        }
    }
}

/// Colours every value by what uses it as well.
fn colour_backward(
    graph: &Graph,
    nodes: &[NodeId],
    fixed: &[ValueColour],
    outputs: &[ValueId],
    colours: &mut HashMap<ValueId, ValueColour>,
) {
    let mut uses: HashMap<ValueId, Vec<ValueColour>> = HashMap::new();
    let mut refined: HashMap<ValueId, ValueColour> = HashMap::new();
    let refine = |value: ValueId, uses: &HashMap<ValueId, Vec<ValueColour>>| {
        let mut list = uses.get(&value).cloned().unwrap_or_default();
        list.sort_unstable();
        let own = colours.get(&value).copied().unwrap_or_default();
        let leaves = [u8::from(outputs.contains(&value))];
        hash_parts(&[&own, &leaves, &list.concat()])
    };
    for (&id, fixed) in nodes.iter().zip(fixed).rev() {
        let node = graph.node(id);
        let mut made: Vec<u8> = Vec::new();
        for value in &node.outputs {
            let colour = value.map_or([0; 32], |value| refine(value, &uses));
            made.extend(colour);
            refined.extend(value.map(|value| (value, colour)));
        }
        let used = node.inputs.iter().copied().chain(node.captures.iter().copied().map(Some));
        for (index, value) in used.enumerate() {
            if let Some(value) = value {
                let colour = hash_parts(&[fixed, &made, &index.to_le_bytes()]);
                uses.entry(value).or_default().push(colour);
            }
        }
    }
    let leaves: Vec<ValueId> = uses.keys().filter(|v| !refined.contains_key(v)).copied().collect();
    for value in leaves {
        let colour = refine(value, &uses);
        refined.insert(value, colour);
    }
    colours.extend(refined);
}
