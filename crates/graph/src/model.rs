//! The graph of a model, indexed: values and nodes are numbers, bodies list what they capture.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use tessera_core::{ContentHash, DType, TensorType};

use crate::input_default::InputDefault;
use crate::onnx::{AttributeProto, MapOutput, SparseTensorProto};

/// A tensor of a graph, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

/// A node of a graph, by its place in the graph's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u32);

impl ValueId {
    /// The number, to index tables that have an entry per value.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// The number, to index tables that have an entry per node.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One operator of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphNode {
    /// Name, for messages; may be empty.
    pub name: String,
    /// Domain of the operator; empty for ONNX's own.
    pub domain: String,
    /// Operator.
    pub op_type: String,
    /// Inputs in the operator's order; `None` for one that is left out.
    pub inputs: Vec<Option<ValueId>>,
    /// Outputs in the operator's order; `None` for one that is left out.
    pub outputs: Vec<Option<ValueId>>,
    /// Outer values that the node's bodies (of `If`, `Loop`, `Scan`) use, each once.
    pub captures: Vec<ValueId>,
    /// Attributes sorted by name; bodies name their captures `@0`, `@1`, … by index.
    pub attributes: Vec<AttributeProto>,
}

impl GraphNode {
    /// The attribute of this name.
    pub fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.attributes.iter().find(|attribute| attribute.name() == name)
    }

    /// Every value that must exist before the node can run.
    pub fn used_values(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.inputs.iter().flatten().chain(&self.captures).copied()
    }

    /// Every value that the node computes.
    pub fn produced_values(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.outputs.iter().flatten().copied()
    }

    /// The node as messages name it: `node "conv1" (Conv)`.
    pub fn label(&self) -> String {
        let output =
            || self.produced_values().next().map_or(String::new(), |id| format!("#{}", id.0));
        let name = if self.name.is_empty() { output() } else { format!("\"{}\"", self.name) };
        format!("node {name} ({})", self.op_type)
    }
}

/// A constant of a model.
#[derive(Clone, Debug)]
pub enum Weight {
    /// Elements of fixed size, little-endian, row-major.
    Dense {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Vec<usize>,
        /// The elements.
        bytes: Bytes,
    },
    /// Strings.
    Strings {
        /// Shape.
        shape: Vec<usize>,
        /// The elements.
        strings: Vec<Bytes>,
    },
    /// A sparse tensor, kept as it was written.
    Sparse(Box<SparseTensorProto>),
}

impl Weight {
    /// Its type.
    pub fn tensor_type(&self) -> Option<TensorType> {
        let fixed = |shape: &[usize]| shape.iter().map(|&d| tessera_core::Dim::Fixed(d)).collect();
        match self {
            Self::Dense { dtype, shape, .. } => Some(TensorType::new(*dtype, fixed(shape))),
            Self::Strings { shape, .. } => Some(TensorType::new(DType::String, fixed(shape))),
            Self::Sparse(sparse) => {
                let dtype = DType::from_onnx(sparse.values.as_ref()?.data_type())?;
                let shape: Option<Vec<usize>> =
                    sparse.dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
                Some(TensorType::new(dtype, fixed(&shape?)))
            }
        }
    }

    /// Whether both are the same tensor; those that are large are when they lie in the same memory.
    fn is_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dense { bytes: own, .. }, Self::Dense { bytes: other, .. })
                if own.as_ptr() == other.as_ptr() && own.len() == other.len() =>
            {
                true
            }
            _ => {
                self.tensor_type() == other.tensor_type()
                    && self.content_hash() == other.content_hash()
            }
        }
    }

    /// Its size in bytes.
    pub fn byte_len(&self) -> usize {
        match self {
            Self::Dense { bytes, .. } => bytes.len(),
            Self::Strings { strings, .. } => strings.iter().map(Bytes::len).sum(),
            Self::Sparse(sparse) => prost::Message::encoded_len(sparse.as_ref()),
        }
    }

    /// Number of elements.
    pub fn element_count(&self) -> usize {
        match self {
            Self::Dense { shape, .. } | Self::Strings { shape, .. } => {
                tessera_core::element_count(shape).unwrap_or(0)
            }
            Self::Sparse(sparse) => {
                let dims = sparse.values.iter().flat_map(|values| &values.dims);
                let count = dims.copied().try_fold(1i64, i64::checked_mul);
                count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
            }
        }
    }

    /// The hash of the elements of a dense weight.
    pub fn content_hash(&self) -> Option<ContentHash> {
        match self {
            Self::Dense { bytes, .. } => Some(ContentHash::of_content(bytes)),
            _ => None,
        }
    }
}

/// The graph of a model: checked, functions inlined, nodes in an order in which they can run.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) names: Vec<String>,
    pub(crate) nodes: Vec<GraphNode>,
    pub(crate) inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
    /// The same, to look one up.
    output_set: HashSet<ValueId>,
    pub(crate) weights: HashMap<ValueId, Weight>,
    pub(crate) declared: HashMap<ValueId, TensorType>,
    pub(crate) opsets: BTreeMap<String, i64>,
    pub(crate) producer: Vec<Option<NodeId>>,
    pub(crate) consumers: Vec<Vec<NodeId>>,
    /// Per node, whether it is computed from constants alone.
    pub(crate) constant: Vec<bool>,
    /// What stands for inputs that a caller may leave out.
    pub(crate) optional: HashMap<ValueId, InputDefault>,
    /// Parameters that the file also lists as inputs: they stay what they are.
    pub(crate) fixed_inputs: Vec<ValueId>,
    /// Whether dimensions of inputs that have the same name must have the same size.
    pub(crate) relies_on_dim_names: bool,
    /// Outputs whose maps were taken off.
    pub(crate) map_outputs: Vec<MapOutput>,
}

impl Graph {
    /// A graph of nothing, with these versions of operator domains.
    pub(crate) fn empty(opsets: BTreeMap<String, i64>) -> Self {
        Self {
            name: String::new(),
            names: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            output_set: HashSet::new(),
            weights: HashMap::new(),
            declared: HashMap::new(),
            opsets,
            producer: Vec::new(),
            consumers: Vec::new(),
            constant: Vec::new(),
            optional: HashMap::new(),
            fixed_inputs: Vec::new(),
            relies_on_dim_names: false,
            map_outputs: Vec::new(),
        }
    }

    /// Name that the file gives the graph.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The nodes, in an order in which they can run.
    pub fn nodes(&self) -> &[GraphNode] {
        &self.nodes
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &GraphNode {
        &self.nodes[id.index()]
    }

    /// Every node's id, in order.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// Number of values; ids are below it.
    pub fn value_count(&self) -> usize {
        self.names.len()
    }

    /// Every value's id.
    pub fn value_ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..self.names.len() as u32).map(ValueId)
    }

    /// Name of a value.
    pub fn value_name(&self, id: ValueId) -> &str {
        &self.names[id.index()]
    }

    /// The value of this name.
    pub fn find_value(&self, name: &str) -> Option<ValueId> {
        self.names.iter().position(|known| known == name).map(|index| ValueId(index as u32))
    }

    /// What a caller supplies, or may.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// What a caller gets.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The same, with these values as outputs too.
    #[must_use]
    pub fn with_outputs(mut self, values: impl IntoIterator<Item = ValueId>) -> Self {
        for value in values {
            self.add_output(value);
        }
        self
    }

    /// Makes a value an output; returns whether it was none before.
    pub(crate) fn add_output(&mut self, value: ValueId) -> bool {
        let is_new = self.output_set.insert(value);
        if is_new {
            self.outputs.push(value);
        }
        is_new
    }

    /// What stands for an input where a caller leaves it out; `None` where it has to be given.
    pub fn input_default(&self, id: ValueId) -> Option<&InputDefault> {
        self.optional.get(&id)
    }

    /// Parameters that the file also lists as inputs, as some exporters do for all of them. They
    /// stay what they are.
    pub fn fixed_inputs(&self) -> &[ValueId] {
        &self.fixed_inputs
    }

    /// Outputs that are sequences of maps in the file, and here the tensors that these are made of.
    pub fn map_outputs(&self) -> &[MapOutput] {
        &self.map_outputs
    }

    /// Whether dimensions of inputs that have the same name must have the same size: what was folded
    /// is right only then. Else the names are hints, as they are for engines.
    pub fn relies_on_dim_names(&self) -> bool {
        self.relies_on_dim_names
    }

    /// Whether the nodes of both are the same, and their constants.
    pub(crate) fn has_same_nodes(&self, other: &Self) -> bool {
        self.names == other.names
            && self.nodes == other.nodes
            && self.weights.keys().all(|id| {
                let (own, others) = (self.weights.get(id), other.weights.get(id));
                own.zip(others).is_some_and(|(own, other)| own.is_same_as(other))
            })
    }

    /// The constant behind a value, where it is one.
    pub fn weight(&self, id: ValueId) -> Option<&Weight> {
        self.weights.get(&id)
    }

    /// All constants.
    pub fn weights(&self) -> impl Iterator<Item = (ValueId, &Weight)> {
        self.weights.iter().map(|(&id, weight)| (id, weight))
    }

    /// The type that the file declares for a value.
    pub fn declared_type(&self, id: ValueId) -> Option<&TensorType> {
        self.declared.get(&id)
    }

    /// Version of each operator domain that the model imports; empty name for ONNX's own.
    pub fn opsets(&self) -> &BTreeMap<String, i64> {
        &self.opsets
    }

    /// The node that computes a value; `None` for inputs and weights.
    pub fn producer(&self, id: ValueId) -> Option<NodeId> {
        self.producer[id.index()]
    }

    /// The nodes that use a value, directly or in a body.
    pub fn consumers(&self, id: ValueId) -> &[NodeId] {
        &self.consumers[id.index()]
    }

    /// Whether a node is computed from constants alone.
    pub fn is_constant_node(&self, id: NodeId) -> bool {
        self.constant[id.index()]
    }

    /// Whether a value is a weight or computed from weights alone.
    pub fn is_constant(&self, id: ValueId) -> bool {
        self.weights.contains_key(&id)
            || self.producer(id).is_some_and(|node| self.is_constant_node(node))
    }

    /// Whether a value is an output of the model.
    pub fn is_output(&self, id: ValueId) -> bool {
        self.output_set.contains(&id)
    }

    /// Bytes of all constants.
    pub fn weight_bytes(&self) -> usize {
        self.weights.values().map(Weight::byte_len).sum()
    }
}
