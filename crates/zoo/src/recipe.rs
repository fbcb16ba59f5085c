//! What to make: an architecture, and how it is laid out.

use tessera_graph::onnx::ModelProto;

use crate::Architecture;

/// What to make: an architecture, where its weights come from, and how it is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The architecture.
    pub architecture: Architecture,
    /// Where the weights come from that are not shared.
    pub seed: u64,
    /// The stages that it has in common with siblings.
    pub shared_stages: Option<SharedStages>,
    /// Whether it has a side exit.
    pub exits: bool,
    /// The size of the first dimension of inputs and outputs.
    pub batch: BatchSize,
    /// Whether batch normalisation is a node of its own, instead of folded into convolutions.
    pub batch_norm: bool,
    /// The length of sequences; `None` for the one that the architecture is known for.
    pub sequence: Option<usize>,
}

/// The stages that a model has in common with its siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedStages {
    /// Where the weights of the common stages come from.
    pub seed: u64,
    /// How many stages are common, from the first.
    pub stages: usize,
}

/// The size of the first dimension of inputs and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// This size. Sequences have a fixed length too.
    Fixed(usize),
    /// Any size, named `batch`. Sequences have any length too, named `sequence`.
    Symbolic,
}

/// A model made from a recipe.
#[derive(Clone, Debug, PartialEq)]
pub struct ZooModel {
    /// The model.
    pub model: ModelProto,
    /// Its side exits: the output and the confidence threshold of each.
    pub exits: Vec<(String, f32)>,
    /// How many stages it has.
    pub stages: usize,
}

impl Recipe {
    /// The plain model: seed 0, nothing shared, no exits, batch 1, normalisation folded, and
    /// sequences of the length that the architecture is known for.
    pub fn new(architecture: Architecture) -> Self {
        Self {
            architecture,
            seed: 0,
            shared_stages: None,
            exits: false,
            batch: BatchSize::Fixed(1),
            batch_norm: false,
            sequence: None,
        }
    }
}
