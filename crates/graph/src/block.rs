//! A block in its one form, and its hash.
//!
//! The form forgets what does not matter and keeps what does. Values are numbered in the order in
//! which the outputs need them, so names of tensors and nodes and the order of independent nodes
//! leave no trace. Operators keep their attributes, and the block imports the lowest opset at which
//! each of them has the definition that the model meant, so that re-exporting with a newer opset
//! changes the hash only where a definition changed. Weights appear as hashes of their elements.
//! Shapes of inputs are not part of it: the same layers at another batch size are the same block.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use prost::Message;
use tessera_core::{ContentHash, DType, Error, Result};

use crate::infer::Types;
use crate::model::{Graph, NodeId, ValueId, Weight};
use crate::onnx::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    TypeProto, ValueInfoProto, tensor_proto, tensors, type_proto,
};
use crate::{body, operators, output_order};

/// Constants up to this size are part of the block's file; larger ones are stored on their own.
const INLINE_BYTES: usize = 4096;
/// The IR version that every block is written in; it has all features that blocks use.
pub(crate) const IR_VERSION: i64 = 10;
/// What follows the hash in the location of a weight; rten takes no other files for weights.
const WEIGHT_SUFFIX: &str = ".data";

/// An input or output of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPort {
    /// Name inside the block.
    pub name: String,
    /// Element type.
    pub dtype: DType,
}

/// A weight that a block uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightRef {
    /// Name inside the block.
    pub name: String,
    /// Hash of its elements.
    pub hash: ContentHash,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// Size in bytes.
    pub byte_len: usize,
}

impl WeightRef {
    /// The location under which the block's file refers to the weight.
    pub fn location(&self) -> String {
        format!("{}{WEIGHT_SUFFIX}", self.hash)
    }
}

/// A subgraph with references to its weights, in the one form that its hash is taken of.
#[derive(Clone, Debug)]
pub struct Block {
    hash: ContentHash,
    program: Bytes,
    inputs: Vec<BlockPort>,
    outputs: Vec<BlockPort>,
    weights: Vec<WeightRef>,
    operators: Vec<String>,
    node_count: usize,
}

impl Block {
    /// Reads a block from its file.
    pub fn parse(program: Bytes) -> Result<Self> {
        let model = ModelProto::decode(program.clone())
            .map_err(|error| Error::invalid(format!("not a block: {error}")))?;
        let graph = model.graph.unwrap_or_default();
        let port = |info: &ValueInfoProto| {
            let dtype = info
                .r#type
                .as_ref()
                .and_then(crate::onnx::read::tensor_type)
                .ok_or_else(|| Error::invalid(format!("port \"{}\" has no dtype", info.name())))?
                .dtype;
            Ok(BlockPort { name: info.name().to_owned(), dtype })
        };
        let mut operators: Vec<String> = Vec::new();
        for node in &graph.node {
            let shown = display_operator(node.domain(), node.op_type());
            if !operators.contains(&shown) {
                operators.push(shown);
            }
        }
        Ok(Self {
            hash: ContentHash::of(&program),
            program,
            inputs: graph.input.iter().map(port).collect::<Result<_>>()?,
            outputs: graph.output.iter().map(port).collect::<Result<_>>()?,
            weights: graph
                .initializer
                .iter()
                .filter_map(|t| weight_ref(t).transpose())
                .collect::<Result<_>>()?,
            operators,
            node_count: graph.node.len(),
        })
    }

    /// The hash, which is the block's name.
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    /// The ONNX file; weights are external data whose location is their hash.
    pub fn program(&self) -> &Bytes {
        &self.program
    }

    /// Inputs in order.
    pub fn inputs(&self) -> &[BlockPort] {
        &self.inputs
    }

    /// Outputs in order.
    pub fn outputs(&self) -> &[BlockPort] {
        &self.outputs
    }

    /// The weights that are stored on their own.
    pub fn weights(&self) -> &[WeightRef] {
        &self.weights
    }

    /// The distinct operators, in order of first use.
    pub fn operators(&self) -> &[String] {
        &self.operators
    }

    /// How many nodes it has.
    pub fn node_count(&self) -> usize {
        self.node_count
    }

    /// Bytes of the weights that are stored on their own.
    pub fn weight_bytes(&self) -> usize {
        self.weights.iter().map(|weight| weight.byte_len).sum()
    }
}

fn display_operator(domain: &str, op: &str) -> String {
    if domain.is_empty() { op.to_owned() } else { format!("{domain}.{op}") }
}

fn weight_ref(tensor: &TensorProto) -> Result<Option<WeightRef>> {
    if tensor.data_location() != tensor_proto::DataLocation::External {
        return Ok(None);
    }
    let (dtype, shape) = tensors::dtype_and_shape(tensor)?;
    let location = tensor.external_data.iter().find(|entry| entry.key() == "location");
    let location = location
        .ok_or_else(|| Error::invalid(format!("weight \"{}\" has no location", tensor.name())))?
        .value();
    let hash = location.strip_suffix(WEIGHT_SUFFIX).unwrap_or(location).parse()?;
    let byte_len = tensors::expected_bytes(tensor)?;
    Ok(Some(WeightRef { name: tensor.name().to_owned(), hash, dtype, shape, byte_len }))
}

/// Hashes of a graph's weights, each taken once.
pub(crate) struct WeightHashes(HashMap<ValueId, ContentHash>);

impl WeightHashes {
    /// Hashes every dense weight, on as many threads as there are cores.
    pub(crate) fn of(graph: &Graph) -> Self {
        let weights: Vec<(ValueId, &Weight)> =
            graph.weights().filter(|(_, weight)| weight.byte_len() > INLINE_BYTES).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            let mut hashes = Vec::new();
            loop {
                let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some((id, weight)) = weights.get(index) else {
                    return hashes;
                };
                if let Some(hash) = weight.content_hash() {
                    hashes.push((*id, hash));
                }
            }
        };
        let hashes = std::thread::scope(|scope| {
            let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut hashes = work();
            // A worker can't panic; were it to, its hashes would be taken when needed.
            hashes.extend(workers.into_iter().filter_map(|w| w.join().ok()).flatten());
            hashes
        });
        Self(hashes.into_iter().collect())
    }

    pub(crate) fn get(&self, id: ValueId, weight: &Weight) -> Option<ContentHash> {
        self.0.get(&id).copied().or_else(|| weight.content_hash())
    }
}

/// A block as it comes out of a graph.
pub(crate) struct Extracted {
    pub(crate) block: Block,
    /// The graph's value behind each input of the block.
    pub(crate) inputs: Vec<ValueId>,
    /// The graph's value behind each output of the block.
    pub(crate) outputs: Vec<ValueId>,
    /// The weights that are stored on their own.
    pub(crate) weights: Vec<(ContentHash, Bytes)>,
}

/// Writes the nodes of `graph` that are `inside`, and the constants they need, as a block.
pub(crate) fn extract(
    graph: &Graph,
    types: &Types,
    hashes: &WeightHashes,
    inside: &dyn Fn(NodeId) -> bool,
    mut outputs: Vec<ValueId>,
) -> Result<Extracted> {
    if outputs.len() > 1 {
        output_order::sort(graph, types, hashes, inside, &mut outputs);
    }
    let mut writer = Writer {
        graph,
        types,
        hashes,
        inside,
        names: HashMap::new(),
        values: 0,
        inputs: Vec::new(),
        weights: Vec::new(),
        opsets: BTreeMap::new(),
        proto: GraphProto { name: Some("block".to_owned()), ..Default::default() },
    };
    for &output in &outputs {
        writer.visit(output)?;
    }
    writer.finish(outputs)
}

struct Writer<'a> {
    graph: &'a Graph,
    types: &'a Types,
    hashes: &'a WeightHashes,
    inside: &'a dyn Fn(NodeId) -> bool,
    /// Name in the block of each value met so far.
    names: HashMap<ValueId, String>,
    values: usize,
    inputs: Vec<ValueId>,
    weights: Vec<(ContentHash, Bytes)>,
    opsets: BTreeMap<String, i64>,
    proto: GraphProto,
}

impl Writer<'_> {
    /// Writes what `value` needs and is not written yet, deepest first.
    fn visit(&mut self, value: ValueId) -> Result<()> {
        enum Step {
            Value(ValueId),
            Node(NodeId),
        }
        let mut steps = vec![Step::Value(value)];
        while let Some(step) = steps.pop() {
            match step {
                Step::Value(value) if self.names.contains_key(&value) => {}
                Step::Value(value) => match self.graph.producer(value) {
                    Some(node) if (self.inside)(node) || self.graph.is_constant_node(node) => {
                        steps.push(Step::Node(node));
                        let mut used: Vec<ValueId> = self.graph.node(node).uses().collect();
                        used.reverse();
                        steps.extend(used.into_iter().map(Step::Value));
                    }
                    _ => self.leaf(value)?,
                },
                Step::Node(node) => {
                    let written = self.graph.node(node).makes().next();
                    if written.is_none_or(|value| !self.names.contains_key(&value)) {
                        self.node(node)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// An input or a weight.
    fn leaf(&mut self, value: ValueId) -> Result<()> {
        let Some(weight) = self.graph.weight(value) else {
            let name = format!("in{}", self.inputs.len());
            self.proto.input.push(self.port(name.clone(), value)?);
            self.names.insert(value, name);
            self.inputs.push(value);
            return Ok(());
        };
        let name =
            format!("w{}", self.proto.initializer.len() + self.proto.sparse_initializer.len());
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
                let hash = self.hashes.get(value, weight).unwrap_or_else(|| ContentHash::of(bytes));
                let entry = |key: &str, text: String| StringStringEntryProto {
                    key: Some(key.to_owned()),
                    value: Some(text),
                };
                self.proto.initializer.push(TensorProto {
                    name: Some(name),
                    dims: shape.iter().map(|&dim| dim as i64).collect(),
                    data_type: Some(dtype.onnx()),
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

    fn node(&mut self, id: NodeId) -> Result<()> {
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
        let mut used = vec![(node.domain.as_str(), node.op_type.as_str())];
        body::operators_within(&node.attributes, &mut used);
        for (domain, op) in used {
            self.import(domain, op)?;
        }
        let mut output = Vec::with_capacity(node.outputs.len());
        for value in &node.outputs {
            output.push(match value {
                Some(value) => {
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

    /// Raises the opset that the block imports to where this operator has its definition.
    fn import(&mut self, domain: &str, op: &str) -> Result<()> {
        let opset = self.graph.opsets().get(domain).copied().unwrap_or(1);
        let since = operators::since_version(domain, op, opset)?;
        let lowest = self.opsets.entry(domain.to_owned()).or_insert(since);
        *lowest = (*lowest).max(since);
        Ok(())
    }

    fn finish(mut self, outputs: Vec<ValueId>) -> Result<Extracted> {
        for (index, &value) in outputs.iter().enumerate() {
            let known = self.names.get(&value).cloned().unwrap_or_default();
            let is_made = self.graph.producer(value).is_some() && !self.inputs.contains(&value);
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
                self.import("", "Identity")?;
                name
            };
            let port = self.port(name, value)?;
            self.proto.output.push(port);
        }
        // Every file must import ONNX's own opset, also where all operators are another's.
        self.opsets.entry(String::new()).or_insert(1);
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
        let block = Block::parse(model.encode_to_vec().into())?;
        Ok(Extracted { block, inputs: self.inputs, outputs, weights: self.weights })
    }

    fn port(&self, name: String, value: ValueId) -> Result<ValueInfoProto> {
        let dtype = self.types.known(self.graph, value)?.dtype;
        let tensor = type_proto::Tensor { elem_type: Some(dtype.onnx()), shape: None };
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
