//! A unit: what runs as one, and the name that says when two can stand for each other.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tessera_core::{ContentHash, Device, Dim, TensorType};
use tessera_graph::{BlockGraph, TensorSource};

use crate::batching::BatchingChoice;
use crate::isolation::Isolation;
use crate::residency_choice::ResidencyChoice;

/// The name of a unit: it follows from what it computes and how it runs. Units of the same name can
/// stand for each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnitId(pub String);

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a unit runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitSettings {
    /// What keeps it apart.
    pub isolation: Isolation,
    /// How many instances there are.
    pub replicas: usize,
    /// What it runs on.
    pub device: Device,
    /// The node that it runs at; `None` where there is one host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether requests are put together.
    pub batching: BatchingChoice,
    /// Where its weights are to be while nobody uses them.
    #[serde(default)]
    pub residency: ResidencyChoice,
}

/// What runs as one: a block, or neighbouring blocks that nobody tells apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// Its name.
    pub id: UnitId,
    /// Its blocks, in order; more than one where they are fused.
    pub graph: BlockGraph,
    /// How it runs.
    pub settings: UnitSettings,
    /// Whether requests can be put together: each row of what comes out follows from the same row of
    /// what goes in, and from nothing else.
    pub is_batchable: bool,
    /// Whether a task passes it whose rows may leave at exits, and so travel one by one.
    pub takes_single_rows: bool,
}

impl Unit {
    /// The hashes of its blocks.
    pub fn block_hashes(&self) -> impl Iterator<Item = ContentHash> {
        self.graph.blocks.iter().map(|node| node.block)
    }
}

/// A name that follows from blocks, wiring, types, what it runs on and where, and from no names of
/// tensors.
pub(crate) fn unit_id(graph: &BlockGraph, device: Device, node: Option<&str>) -> UnitId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(device.to_string().as_bytes());
    hasher.update(node.map_or(&[][..], str::as_bytes));
    let mut symbols = BTreeMap::new();
    for port in &graph.inputs {
        hash_tensor_type(&mut hasher, &port.tensor_type, &mut symbols);
    }
    let source = |hasher: &mut blake3::Hasher, source: &TensorSource| {
        let (kind, a, b) = match *source {
            TensorSource::Input(index) => (0u8, index, 0),
            TensorSource::Block { block, output } => (1, block, output),
        };
        hasher.update(&[kind]);
        hasher.update(&(a as u64).to_le_bytes());
        hasher.update(&(b as u64).to_le_bytes());
    };
    for node in &graph.blocks {
        hasher.update(node.block.as_bytes());
        for from in &node.inputs {
            source(&mut hasher, from);
        }
        hasher.update(&(node.outputs.len() as u64).to_le_bytes());
    }
    for (_, from) in &graph.outputs {
        source(&mut hasher, from);
    }
    UnitId(hasher.finalize().to_hex().as_str()[..12].to_owned())
}

fn hash_tensor_type(
    hasher: &mut blake3::Hasher,
    known: &TensorType,
    symbols: &mut BTreeMap<String, u64>,
) {
    hasher.update(known.dtype.to_string().as_bytes());
    let Some(dims) = &known.dims else {
        hasher.update(&[255]);
        return;
    };
    hasher.update(&[dims.len() as u8]);
    for dim in dims {
        let (kind, value) = match dim {
            Dim::Fixed(size) => (0u8, *size as u64),
            Dim::Symbol(name) => {
                let next = symbols.len() as u64;
                (1, *symbols.entry(name.clone()).or_insert(next))
            }
            Dim::Unknown => (2, 0),
        };
        hasher.update(&[kind]);
        hasher.update(&value.to_le_bytes());
    }
}
