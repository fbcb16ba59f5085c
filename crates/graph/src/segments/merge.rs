//! What each of several segments computes again becomes one where they are joined.

use std::collections::{HashMap, HashSet};

use prost::Message;

use crate::onnx::{GraphProto, NodeProto, TensorProto};
use crate::operators::{canonical_domain, is_cheap};

/// Merges constants that are equal, and nodes that segments compute again, each for itself: cheap
/// ones that follow from what comes in from outside. Values of segment N are called `bN.…`.
pub(super) fn merge_recomputed(graph: &mut GraphProto) {
    let mut renamed = merge_constants(&mut graph.initializer);
    let outputs: HashSet<String> =
        graph.output.iter().map(|output| output.name().to_owned()).collect();
    let mut light: HashSet<String> = graph.input.iter().map(|i| i.name().to_owned()).collect();
    light.extend(graph.initializer.iter().map(|tensor| tensor.name().to_owned()));
    let mut first: HashMap<Vec<u8>, NodeProto> = HashMap::new();
    let mut kept = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        rename_inputs(&mut node, &renamed);
        let is_light = is_recomputable(&node)
            && node.input.iter().all(|name| name.is_empty() || light.contains(name));
        if is_light {
            light.extend(node.output.iter().cloned());
            let is_given = node.output.iter().any(|name| outputs.contains(name));
            let known = first.entry(meaning_of(&node)).or_insert_with(|| node.clone());
            if !is_given && segment_of(known) != segment_of(&node) {
                renamed.extend(node.output.iter().cloned().zip(known.output.iter().cloned()));
                continue;
            }
        }
        kept.push(node);
    }
    graph.node = kept;
}

/// Keeps one of the constants that are equal; returns the names of the others, with that one's.
fn merge_constants(tensors: &mut Vec<TensorProto>) -> HashMap<String, String> {
    let mut first: HashMap<Vec<u8>, String> = HashMap::new();
    let mut renamed = HashMap::new();
    tensors.retain(|tensor| {
        let content = TensorProto { name: None, ..tensor.clone() }.encode_to_vec();
        let known = first.entry(content).or_insert_with(|| tensor.name().to_owned());
        let is_first = known.as_str() == tensor.name();
        if !is_first {
            renamed.insert(tensor.name().to_owned(), known.clone());
        }
        is_first
    });
    renamed
}

fn rename_inputs(node: &mut NodeProto, renamed: &HashMap<String, String>) {
    for name in &mut node.input {
        if let Some(new) = renamed.get(name) {
            name.clone_from(new);
        }
    }
    for attribute in &mut node.attribute {
        for body in attribute.g.iter_mut().chain(&mut attribute.graphs) {
            rename_captures(body, renamed);
        }
    }
}

/// Names of a body's own begin otherwise than ours.
fn rename_captures(body: &mut GraphProto, renamed: &HashMap<String, String>) {
    body.node.iter_mut().for_each(|node| rename_inputs(node, renamed));
    for output in &mut body.output {
        if let Some(new) = renamed.get(output.name()) {
            output.name = Some(new.clone());
        }
    }
}

fn is_recomputable(node: &NodeProto) -> bool {
    let has_body = node.attribute.iter().any(|a| a.g.is_some() || !a.graphs.is_empty());
    is_cheap(canonical_domain(node.domain()), node.op_type()) && !has_body
}

/// What a node computes, whatever it is called.
fn meaning_of(node: &NodeProto) -> Vec<u8> {
    // As many results as it has, without their names.
    let output = node.output.iter().map(|name| name.is_empty().to_string()).collect();
    NodeProto { name: None, doc_string: None, output, ..node.clone() }.encode_to_vec()
}

/// The beginning of the names that a segment's values have.
fn segment_of(node: &NodeProto) -> Option<&str> {
    let name = node.output.iter().find(|name| !name.is_empty())?;
    name.split_once('.').map(|(segment, _)| segment)
}
