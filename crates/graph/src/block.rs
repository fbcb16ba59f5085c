//! A block in its one form, and its hash.
//!
//! The form forgets what does not matter and keeps what does. Values are numbered in the order in
//! which the outputs need them, so names of tensors and nodes and the order of independent nodes
//! leave no trace. Operators keep their attributes, and the block imports the lowest opset at which
//! each of them has the definition that the model meant, so that re-exporting with a newer opset
//! changes the hash only where a definition changed. Weights appear as hashes of their elements.
//! Shapes of inputs are not part of it: the same layers at another batch size are the same block.

use std::collections::HashSet;

use bytes::Bytes;
use prost::Message;
use tessera_core::{ContentHash, DType, Error, Result};

use crate::onnx::{ModelProto, NodeProto, TensorProto, ValueInfoProto, tensor_proto, tensors};

/// Constants up to this size are part of the block's file; larger ones are stored on their own.
pub(crate) const INLINE_BYTES: usize = 4096;
/// The IR version that every block is written in; it has all features that blocks use.
pub(crate) const IR_VERSION: i64 = 10;
/// What follows the hash in the location of a weight; rten takes no other files for weights.
pub(crate) const WEIGHT_SUFFIX: &str = ".data";

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
    has_loops: bool,
    node_count: usize,
    constant_count: usize,
}

impl Block {
    /// Reads a block from its file.
    pub fn parse_program(program: Bytes) -> Result<Self> {
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
        let mut known = HashSet::new();
        for node in &graph.node {
            if known.insert((node.domain(), node.op_type())) {
                operators.push(display_operator(node.domain(), node.op_type()));
            }
        }
        Ok(Self {
            hash: ContentHash::of_content(&program),
            program,
            inputs: graph.input.iter().map(port).collect::<Result<_>>()?,
            outputs: graph.output.iter().map(port).collect::<Result<_>>()?,
            weights: graph
                .initializer
                .iter()
                .filter_map(|t| weight_ref(t).transpose())
                .collect::<Result<_>>()?,
            operators,
            has_loops: graph.node.iter().any(has_loop),
            node_count: graph.node.len(),
            constant_count: graph.initializer.len() + graph.sparse_initializer.len(),
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

    /// Whether some of it is run as often as its values say, which may be without end.
    pub fn has_loops(&self) -> bool {
        self.has_loops
    }

    /// How many nodes it has.
    pub fn node_count(&self) -> usize {
        self.node_count
    }

    /// How many weights it has, with those that are part of its file.
    pub fn constant_count(&self) -> usize {
        self.constant_count
    }

    /// Bytes of the weights that are stored on their own.
    pub fn weight_bytes(&self) -> usize {
        self.weights.iter().map(|weight| weight.byte_len).sum()
    }
}

/// Whether a node is a loop, or has one in its bodies.
fn has_loop(node: &NodeProto) -> bool {
    let graphs =
        || node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
    node.op_type() == "Loop" || graphs().flat_map(|graph| &graph.node).any(has_loop)
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
