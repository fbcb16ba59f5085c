//! Fusing: several blocks of a graph as one block, so that an engine optimises across their
//! borders.

use std::collections::{BTreeMap, HashMap};

use prost::Message;
use tessera_core::{ContentHash, Error, Result};

use crate::block::Block;
use crate::block_graph::{BlockGraph, BlockNode, TensorSource};
use crate::limits::MOST_UNIT_NODES;
use crate::onnx::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use crate::operator_versions::means_the_same;
use crate::operators::{self, canonical_domain};

/// The blocks of `graph` as one, and the graph that has that one alone.
///
/// Fails where two blocks mean different definitions of an operator, which no single block can say.
pub fn fuse_blocks(
    graph: &BlockGraph,
    block: &dyn Fn(ContentHash) -> Result<Block>,
) -> Result<(Block, BlockGraph)> {
    if !graph.exits.is_empty() {
        return Err(Error::unsupported("blocks with an exit between them can't be fused"));
    }
    let models = graph
        .blocks
        .iter()
        .map(|node| {
            ModelProto::decode(block(node.block)?.program().clone()).map_err(|error| {
                Error::invalid(format!("block {}: {error}", node.block.short_hex()))
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let nodes = models.iter().flat_map(|model| &model.graph).map(|graph| graph.node.len());
    let nodes: usize = nodes.sum();
    if nodes > MOST_UNIT_NODES {
        return Err(Error::unsupported(format!(
            "{nodes} nodes in one unit, expected at most {MOST_UNIT_NODES}"
        )));
    }
    let mut opsets = BTreeMap::new();
    for opset in models.iter().flat_map(|model| &model.opset_import) {
        let version = opsets.entry(canonical_domain(opset.domain()).to_owned()).or_insert(1);
        *version = opset.version().max(*version);
    }
    let mut fused = GraphProto { name: Some("block".to_owned()), ..Default::default() };
    let mut outputs: Vec<Vec<String>> = Vec::with_capacity(models.len());
    let mut inputs: Vec<Option<crate::onnx::ValueInfoProto>> = vec![None; graph.inputs.len()];
    for (index, (model, node)) in models.into_iter().zip(&graph.blocks).enumerate() {
        check_definitions(&model, &opsets)?;
        let part = model.graph.unwrap_or_default();
        let mut names = FusedNames { prefix: format!("b{index}"), known: HashMap::new() };
        for (port, source) in part.input.iter().zip(&node.inputs) {
            let name = match *source {
                TensorSource::Input(input) => {
                    let name = format!("in{input}");
                    if let Some(slot) = inputs.get_mut(input) {
                        slot.get_or_insert_with(|| {
                            let mut port = port.clone();
                            port.name = Some(name.clone());
                            port
                        });
                    }
                    name
                }
                TensorSource::Block { block, output } => {
                    outputs.get(block).and_then(|names| names.get(output)).cloned().ok_or_else(
                        || Error::invalid("a block uses what no earlier block computes"),
                    )?
                }
            };
            names.known.insert(port.name().to_owned(), name);
        }
        for mut tensor in part.initializer {
            tensor.name = Some(names.name_in_fused(tensor.name()));
            fused.initializer.push(tensor);
        }
        for mut sparse in part.sparse_initializer {
            if let Some(values) = &mut sparse.values {
                values.name = Some(names.name_in_fused(values.name()));
            }
            fused.sparse_initializer.push(sparse);
        }
        for mut node in part.node {
            names.rename_node(&mut node);
            fused.node.push(node);
        }
        outputs.push(part.output.iter().map(|port| names.name_in_fused(port.name())).collect());
        for (port, info) in part.output.into_iter().enumerate() {
            let wanted = graph.outputs.iter().position(|(_, source)| {
                *source == TensorSource::Block { block: index, output: port }
            });
            if wanted.is_some() {
                let mut info = info;
                info.name = Some(outputs[index][port].clone());
                fused.output.push(info);
            }
        }
    }
    // In the order in which the graph has them.
    let place = |name: &str| {
        graph.outputs.iter().position(|(_, source)| match *source {
            TensorSource::Block { block, output } => {
                outputs.get(block).and_then(|names| names.get(output)).is_some_and(|n| n == name)
            }
            TensorSource::Input(_) => false,
        })
    };
    fused.output.sort_by_key(|port| place(port.name()));
    if fused.output.len() != graph.outputs.len() || inputs.iter().any(Option::is_none) {
        return Err(Error::unsupported("an input or output that passes through no block"));
    }
    fused.input = inputs.into_iter().flatten().collect();
    let model = ModelProto {
        ir_version: Some(crate::block::IR_VERSION),
        opset_import: opsets
            .into_iter()
            .map(|(domain, version)| OperatorSetIdProto {
                domain: Some(domain),
                version: Some(version),
            })
            .collect(),
        graph: Some(fused),
        ..Default::default()
    };
    let block = Block::parse_program(model.encode_to_vec().into())?;
    let node = BlockNode {
        block: block.hash(),
        inputs: (0..graph.inputs.len()).map(TensorSource::Input).collect(),
        outputs: graph.outputs.iter().map(|(port, _)| port.clone()).collect(),
    };
    let whole = BlockGraph {
        inputs: graph.inputs.clone(),
        outputs: graph
            .outputs
            .iter()
            .enumerate()
            .map(|(output, (port, _))| (port.clone(), TensorSource::Block { block: 0, output }))
            .collect(),
        blocks: vec![node],
        exits: Vec::new(),
        row_obstacle: graph.row_obstacle.clone(),
        relies_on_dim_names: graph.relies_on_dim_names,
    };
    Ok((block, whole))
}

/// Whether every operator means at the joint opsets what it means at the model's own.
fn check_definitions(model: &ModelProto, joint: &BTreeMap<String, i64>) -> Result<()> {
    let own: HashMap<&str, i64> = model
        .opset_import
        .iter()
        .map(|opset| (canonical_domain(opset.domain()), opset.version()))
        .collect();
    let mut used = Vec::new();
    for node in model.graph.iter().flat_map(|graph| &graph.node) {
        used.push((canonical_domain(node.domain()), node.op_type()));
        crate::body::operators_within(&node.attribute, &mut used);
    }
    for (domain, op) in used {
        let at = |opset: Option<i64>| operators::since_version(domain, op, opset.unwrap_or(1));
        let (written, read) = (at(own.get(domain).copied())?, at(joint.get(domain).copied())?);
        if !means_the_same(domain, op, written, read) {
            return Err(Error::unsupported(format!(
                "blocks that mean different definitions of {op} can't be fused"
            )));
        }
    }
    Ok(())
}

/// New names for the values of one block.
struct FusedNames {
    prefix: String,
    known: HashMap<String, String>,
}

impl FusedNames {
    fn name_in_fused(&mut self, name: &str) -> String {
        if name.is_empty() {
            return String::new();
        }
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let new = format!("{}.{name}", self.prefix);
        self.known.insert(name.to_owned(), new.clone());
        new
    }

    fn rename_node(&mut self, node: &mut NodeProto) {
        for name in node.input.iter_mut().chain(&mut node.output) {
            *name = self.name_in_fused(name);
        }
        self.rename_captures(&mut node.attribute);
    }

    /// Bodies keep their own names, which start with a dot; all others are ours.
    fn rename_captures(&mut self, attributes: &mut [AttributeProto]) {
        for graph in attributes.iter_mut().flat_map(|a| a.g.iter_mut().chain(&mut a.graphs)) {
            for node in &mut graph.node {
                for name in &mut node.input {
                    if let Some(new) = self.known.get(name) {
                        new.clone_into(name);
                    }
                }
                self.rename_captures(&mut node.attribute);
            }
            for output in &mut graph.output {
                if let Some(new) = self.known.get(output.name()) {
                    output.name = Some(new.clone());
                }
            }
        }
    }
}
