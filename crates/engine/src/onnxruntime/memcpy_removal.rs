//! Takes copies between host and GPU out of an optimised block.
//!
//! Where some operators of a block run on the CPU and others on the GPU, ONNX Runtime puts copies
//! in between, also into the optimised form that it writes. Whoever loads that form puts them in
//! again.

use std::collections::HashMap;

use tessera_graph::onnx::GraphProto;

/// Removes the copies: who took a copy takes the original.
pub(super) fn remove_memcpy_nodes(graph: &mut GraphProto) {
    let is_copy = |op: &str| op == "MemcpyFromHost" || op == "MemcpyToHost";
    let mut originals: HashMap<String, String> = HashMap::new();
    for node in graph.node.iter().filter(|node| is_copy(node.op_type())) {
        if let ([input], [output]) = (&node.input[..], &node.output[..]) {
            let original = originals.get(input).unwrap_or(input).clone();
            originals.insert(output.clone(), original);
        }
    }
    // An output of the block keeps its name: its copy stays.
    originals.retain(|copy, _| !graph.output.iter().any(|output| output.name() == copy));
    if originals.is_empty() {
        return;
    }
    let removed = |node: &tessera_graph::onnx::NodeProto| {
        is_copy(node.op_type()) && node.output.iter().all(|output| originals.contains_key(output))
    };
    graph.node.retain(|node| !removed(node));
    for node in &mut graph.node {
        for input in &mut node.input {
            if let Some(original) = originals.get(input) {
                input.clone_from(original);
            }
        }
    }
}
