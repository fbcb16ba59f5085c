//! Writes nodes of a graph as a block, in its one form.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use prost::Message;
use tessera_core::{ContentHash, DType, Result};

use crate::block::{Block, INLINE_BYTES, IR_VERSION, WEIGHT_SUFFIX};
use crate::infer::InferredTypes;
use crate::model::{Graph, GraphNode, NodeId, ValueId, Weight};
use crate::onnx::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    TypeProto, ValueInfoProto, tensor_proto, tensors, type_proto,
};
use crate::operator_versions::lowest_equal_version;
use crate::weight_hashes::WeightHashes;
use crate::{body, operators, output_order};

/// The first opset in which `Cast` names dtypes by their numbers.
const CAST_BY_NUMBER: i64 = 6;

/// A block as it comes out of a graph.
pub(crate) struct ExtractedBlock {
    pub(crate) block: Block,
    /// The graph's value behind each input of the block.
    pub(crate) inputs: Vec<ValueId>,
    /// The graph's value behind each output of the block.
    pub(crate) outputs: Vec<ValueId>,
    /// The weights that are stored on their own.
    pub(crate) weights: Vec<(ContentHash, Bytes)>,
}

/// Writes the nodes of `graph` that are `inside`, and the constants they need, as a block.
pub(crate) fn extract_block(
    graph: &Graph,
    types: &InferredTypes,
    hashes: &WeightHashes,
    inside: &dyn Fn(NodeId) -> bool,
    mut outputs: Vec<ValueId>,
) -> Result<ExtractedBlock> {
    if outputs.len() > 1 {
        output_order::sort_outputs(graph, types, hashes, inside, &mut outputs);
    }
    let mut writer = BlockWriter {
        graph,
        types,
        hashes,
        inside,
        names: HashMap::new(),
        weight_names: HashMap::new(),
        values: 0,
        inputs: Vec::new(),
        weights: Vec::new(),
        opsets: BTreeMap::new(),
        has_short_floats: false,
        proto: GraphProto { name: Some("block".to_owned()), ..Default::default() },
    };
    for &output in &outputs {
        writer.write_value(output)?;
    }
    writer.finish_block(outputs)
}

struct BlockWriter<'a> {
    graph: &'a Graph,
    types: &'a InferredTypes,
    hashes: &'a WeightHashes,
    inside: &'a dyn Fn(NodeId) -> bool,
    /// Name in the block of each value met so far.
    names: HashMap<ValueId, String>,
    /// Name of each dense weight met so far, by what it is: one exporter writes those that are equal
    /// once, another as often as they are used.
    weight_names: HashMap<(DType, Vec<usize>, ContentHash), String>,
    values: usize,
    inputs: Vec<ValueId>,
    weights: Vec<(ContentHash, Bytes)>,
    opsets: BTreeMap<String, i64>,
    /// Whether a value has fewer than 32 bits, for which engines have few kernels.
    has_short_floats: bool,
    proto: GraphProto,
}

impl BlockWriter<'_> {
    /// Writes what `value` needs and is not written yet, deepest first.
    fn write_value(&mut self, value: ValueId) -> Result<()> {
        enum WriteStep {
            Value(ValueId),
            Node(NodeId),
        }
        let mut steps = vec![WriteStep::Value(value)];
        while let Some(step) = steps.pop() {
            match step {
                WriteStep::Value(value) if self.names.contains_key(&value) => {}
                WriteStep::Value(value) => match self.graph.producer(value) {
                    Some(node) if (self.inside)(node) || self.graph.is_constant_node(node) => {
                        steps.push(WriteStep::Node(node));
                        let mut used: Vec<ValueId> = self.graph.node(node).used_values().collect();
                        used.reverse();
                        steps.extend(used.into_iter().map(WriteStep::Value));
                    }
                    _ => self.write_leaf(value)?,
                },
                WriteStep::Node(node) => {
                    let written = self.graph.node(node).produced_values().next();
                    if written.is_none_or(|value| !self.names.contains_key(&value)) {
                        self.write_node(node)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// An input or a weight.
    fn write_leaf(&mut self, value: ValueId) -> Result<()> {
        let Some(weight) = self.graph.weight(value) else {
            let name = format!("in{}", self.inputs.len());
            self.note_dtype(value);
            self.proto.input.push(self.describe_port(name.clone(), value)?);
            self.names.insert(value, name);
            self.inputs.push(value);
            return Ok(());
        };
        let mut name =
            format!("w{}", self.proto.initializer.len() + self.proto.sparse_initializer.len());
        if let (Weight::Dense { dtype, shape, .. }, Some(hash)) =
            (weight, self.hashes.get(value, weight))
        {
            let known = self.weight_names.entry((*dtype, shape.clone(), hash));
            let is_new = matches!(known, Entry::Vacant(_));
            name.clone_from(known.or_insert_with(|| name.clone()));
            if !is_new {
                self.names.insert(value, name);
                return Ok(());
            }
        }
        self.names.insert(value, name.clone());
        match weight {
            Weight::Sparse(sparse) => {
                let mut sparse = sparse.as_ref().clone();
                if let Some(values) = &mut sparse.values {
                    values.name = Some(name);
                }
                self.proto.sparse_initializer.push(sparse);
            }
            Weight::Dense { dtype, shape, bytes } if bytes.len() > INLINE_BYTES => {
                let hash = self
                    .hashes
                    .get(value, weight)
                    .unwrap_or_else(|| ContentHash::of_content(bytes));
                let entry = |key: &str, text: String| StringStringEntryProto {
                    key: Some(key.to_owned()),
                    value: Some(text),
                };
                self.proto.initializer.push(TensorProto {
                    name: Some(name),
                    dims: shape.iter().map(|&dim| dim as i64).collect(),
                    data_type: Some(dtype.to_onnx()),
                    data_location: Some(tensor_proto::DataLocation::External as i32),
                    external_data: vec![
                        entry("location", format!("{hash}{WEIGHT_SUFFIX}")),
                        entry("offset", "0".to_owned()),
                        entry("length", bytes.len().to_string()),
                    ],
                    ..Default::default()
                });
                self.weights.push((hash, bytes.clone()));
            }
            _ => self.proto.initializer.push(tensors::inline_tensor(name, weight)),
        }
        Ok(())
    }

    fn write_node(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id);
        let name_of = |value: &Option<ValueId>| match value {
            Some(value) => self.names.get(value).cloned().unwrap_or_default(),
            None => String::new(),
        };
        let input = node.inputs.iter().map(name_of).collect();
        let mut attribute = node.attributes.clone();
        if !node.captures.is_empty() {
            let captures: Vec<String> = node.captures.iter().map(|&v| name_of(&Some(v))).collect();
            body::restore_captures(&mut attribute, &captures);
        }
        self.import_node(node)?;
        let mut within = Vec::new();
        body::operators_within(&node.attributes, &mut within);
        for (domain, op) in within {
            self.import_operator(domain, op)?;
        }
        let mut output = Vec::with_capacity(node.outputs.len());
        for value in &node.outputs {
            output.push(match value {
                Some(value) => {
                    self.note_dtype(*value);
                    let name = format!("v{}", self.values);
                    self.values += 1;
                    self.names.insert(*value, name.clone());
                    name
                }
                None => String::new(),
            });
        }
        self.proto.node.push(NodeProto {
            input,
            output,
            op_type: Some(node.op_type.clone()),
            domain: (!node.domain.is_empty()).then(|| node.domain.clone()),
            attribute,
            ..Default::default()
        });
        Ok(())
    }

    fn note_dtype(&mut self, value: ValueId) {
        let dtype = self.types.get(value).map(|known| known.dtype);
        self.has_short_floats |= matches!(dtype, Some(DType::F16 | DType::BF16));
    }

    /// Raises the opset that the block imports to where this node's operator means the same.
    fn import_node(&mut self, node: &GraphNode) -> Result<()> {
        let (domain, op) = (node.domain.as_str(), node.op_type.as_str());
        let since = operators::since_version(domain, op, self.opset_of(domain))?;
        let values = node.used_values().chain(node.produced_values());
        let dtypes = values.map(|value| self.types.get(value).map(|known| known.dtype));
        let attributes = node.attributes.iter().map(|attribute| attribute.name());
        let lowest = lowest_equal_version(domain, op, since, attributes, dtypes);
        self.raise_opset(domain, lowest);
        Ok(())
    }

    /// Raises the opset that the block imports to where this operator has its definition.
    fn import_operator(&mut self, domain: &str, op: &str) -> Result<()> {
        let since = operators::since_version(domain, op, self.opset_of(domain))?;
        self.raise_opset(domain, since);
        Ok(())
    }

    fn opset_of(&self, domain: &str) -> i64 {
        self.graph.opsets().get(domain).copied().unwrap_or(1)
    }

    fn raise_opset(&mut self, domain: &str, since: i64) {
        let lowest = self.opsets.entry(domain.to_owned()).or_insert(since);
        *lowest = (*lowest).max(since);
    }

    fn finish_block(mut self, outputs: Vec<ValueId>) -> Result<ExtractedBlock> {
        let passed_on: HashSet<ValueId> = self.inputs.iter().copied().collect();
        for (index, &value) in outputs.iter().enumerate() {
            let known = self.names.get(&value).cloned().unwrap_or_default();
            let is_made = self.graph.producer(value).is_some() && !passed_on.contains(&value);
            let name = if is_made {
                known
            } else {
                // An input or weight that is passed through.
                let name = format!("out{index}");
                self.proto.node.push(NodeProto {
                    input: vec![known],
                    output: vec![name.clone()],
                    op_type: Some("Identity".to_owned()),
                    ..Default::default()
                });
                self.import_operator("", "Identity")?;
                name
            };
            let port = self.describe_port(name, value)?;
            self.proto.output.push(port);
        }
        // Every file must import ONNX's own opset, also where all operators are another's.
        let lowest = self.opsets.entry(String::new()).or_insert(1);
        // An engine without a kernel for short floats adds a `Cast`, whose attribute is a number only
        // from this opset on. All operators mean the same up to the model's opset.
        if self.has_short_floats {
            let own = self.graph.opsets().get("").copied().unwrap_or(1);
            *lowest = (*lowest).max(CAST_BY_NUMBER.min(own));
        }
        let model = ModelProto {
            ir_version: Some(IR_VERSION),
            opset_import: self
                .opsets
                .iter()
                .map(|(domain, version)| OperatorSetIdProto {
                    domain: Some(domain.clone()),
                    version: Some(*version),
                })
                .collect(),
            graph: Some(self.proto),
            ..Default::default()
        };
        let block = Block::parse_program(model.encode_to_vec().into())?;
        Ok(ExtractedBlock { block, inputs: self.inputs, outputs, weights: self.weights })
    }

    fn describe_port(&self, name: String, value: ValueId) -> Result<ValueInfoProto> {
        let dtype = self.types.require_type(self.graph, value)?.dtype;
        let tensor = type_proto::Tensor { elem_type: Some(dtype.to_onnx()), shape: None };
        Ok(ValueInfoProto {
            name: Some(name),
            r#type: Some(TypeProto {
                value: Some(type_proto::Value::TensorType(tensor)),
                ..Default::default()
            }),
            ..Default::default()
        })
    }
}
