//! A model as a graph of blocks: what a repository stores and a node runs.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tessera_core::{ContentHash, Dim, Error, Result, Tensor, TensorType, display_shape};

use crate::exits::Exit;
use crate::input_default::InputDefault;
use crate::rows::RowObstacle;

/// A named place where a tensor enters or leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorPort {
    /// Name of the tensor in the model's file.
    pub name: String,
    /// Its type, as far as it is known.
    #[serde(rename = "type")]
    pub tensor_type: TensorType,
    /// Whether it is proved that each row of it follows from the same row of the model's inputs, and
    /// from nothing else: requests can be put together, row after row.
    #[serde(default)]
    pub is_row_wise: bool,
    /// What stands for it where a caller leaves it out; `None` where it has to be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<InputDefault>,
}

/// Where a tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorSource {
    /// An input of the model, by index.
    Input(usize),
    /// An output of a block.
    Block {
        /// Index of the block in the graph.
        block: usize,
        /// Index of the output of that block.
        output: usize,
    },
}

/// One use of a block in a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockNode {
    /// Which block.
    pub block: ContentHash,
    /// Where its inputs come from, in the block's order.
    pub inputs: Vec<TensorSource>,
    /// Its outputs, in the block's order.
    pub outputs: Vec<TensorPort>,
}

/// A model cut into blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockGraph {
    /// What a caller supplies.
    pub inputs: Vec<TensorPort>,
    /// The blocks in an order in which they can run.
    pub blocks: Vec<BlockNode>,
    /// What a caller gets, and from where; exits are not among them.
    pub outputs: Vec<(TensorPort, TensorSource)>,
    /// Side exits, in the order in which they are reached.
    pub exits: Vec<Exit>,
    /// Why some output is not row-wise, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_obstacle: Option<RowObstacle>,
    /// Whether dimensions of inputs that have the same name must have the same size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relies_on_dim_names: bool,
}

/// Checks tensors against the inputs that they are for; also whether dimensions of the same name have
/// the same size, where the model relies on that.
pub fn check_inputs(
    ports: &[TensorPort],
    inputs: &[Tensor],
    relies_on_dim_names: bool,
) -> Result<()> {
    if inputs.len() != ports.len() {
        let (found, expected) = (inputs.len(), ports.len());
        return Err(Error::usage(format!("{found} inputs, and the model expects {expected}")));
    }
    let mut sizes: HashMap<&str, (usize, &str)> = HashMap::new();
    for (port, tensor) in ports.iter().zip(inputs) {
        let expected = &port.tensor_type;
        if !expected.can_accept(tensor.dtype(), tensor.shape()) {
            return Err(Error::invalid(format!(
                "input \"{}\" expects {expected}, got {}",
                port.name,
                display_shape(tensor.dtype(), tensor.shape())
            )));
        }
        if !relies_on_dim_names {
            continue;
        }
        let dims = expected.dims.iter().flatten();
        for (dim, &size) in dims.zip(tensor.shape()) {
            let Dim::Symbol(symbol) = dim else {
                continue;
            };
            let (known, first) = *sizes.entry(symbol).or_insert((size, &port.name));
            if known != size {
                return Err(Error::invalid(format!(
                    "input \"{}\" has {symbol} = {size}, and input \"{first}\" has {known}",
                    port.name
                )));
            }
        }
    }
    Ok(())
}

impl BlockGraph {
    /// Whether requests can be put together in it, row after row.
    pub fn is_row_wise(&self) -> bool {
        let outputs = self.outputs.iter().map(|(port, _)| port);
        // A path that is composed of several may fix what was open.
        let is_open = |port: &TensorPort| {
            let first = port.tensor_type.dims.as_ref().and_then(|dims| dims.first());
            !matches!(first, None | Some(Dim::Fixed(_)))
        };
        self.inputs.iter().chain(outputs).all(|port| port.is_row_wise && is_open(port))
    }

    /// The blocks of the trunk and the heads of exits, each hash once, in order of first use.
    pub fn distinct_blocks(&self) -> Vec<ContentHash> {
        let mut seen = std::collections::HashSet::new();
        self.blocks.iter().map(|node| node.block).filter(|hash| seen.insert(*hash)).collect()
    }

    /// The exit whose head this block is.
    pub fn exit_of(&self, block: usize) -> Option<&Exit> {
        self.exits.iter().find(|exit| exit.head == block)
    }

    /// The port that a tensor comes from.
    pub fn source_port(&self, source: TensorSource) -> Option<&TensorPort> {
        match source {
            TensorSource::Input(index) => self.inputs.get(index),
            TensorSource::Block { block, output } => self.blocks.get(block)?.outputs.get(output),
        }
    }

    /// The type of the tensor that comes from `source`.
    pub fn source_type(&self, source: TensorSource) -> Option<&TensorType> {
        self.source_port(source).map(|port| &port.tensor_type)
    }

    /// Whether every source refers to an earlier block or to an input that exists.
    pub fn is_sound(&self) -> bool {
        let exists = |source: &TensorSource, before: usize| match *source {
            TensorSource::Input(index) => index < self.inputs.len(),
            TensorSource::Block { block, output } => {
                block < before && self.blocks.get(block).is_some_and(|b| output < b.outputs.len())
            }
        };
        self.blocks
            .iter()
            .enumerate()
            .all(|(index, node)| node.inputs.iter().all(|source| exists(source, index)))
            && self.outputs.iter().all(|(_, source)| exists(source, self.blocks.len()))
            && self.exits.iter().all(|exit| {
                exit.head < self.blocks.len()
                    && exit.after.is_none_or(|after| after < self.blocks.len())
            })
    }
}
