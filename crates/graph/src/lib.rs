//! Models as graphs of blocks: ONNX in; cut points, partition, content hashes, sharing, exits and
//! cost out. Pure: bytes go in and bytes come out, files are somebody else's business.

#![forbid(unsafe_code)]

mod balance;
mod block;
mod block_cost;
mod block_graph;
mod block_writer;
mod body;
pub mod builder;
mod constants;
pub mod cost;
mod cuts;
mod exits;
mod fold_shapes;
mod fuse;
mod gelu_form;
mod graph_links;
pub mod infer;
mod input_default;
mod limits;
mod model;
mod normal_form;
pub mod onnx;
mod operator_versions;
mod operators;
mod output_order;
mod partition;
mod precision;
mod recomputed;
mod rows;
mod run_forecast;
mod segments;
mod share;
mod size_estimate;
mod topological_order;
mod trunk_order;
mod unshared;
mod weight_hashes;

pub use block::{Block, BlockPort, WeightRef};
pub use block_cost::block_cost;
pub use block_graph::{BlockGraph, BlockNode, TensorPort, TensorSource, check_inputs};
pub use cuts::{Cut, CutPoints};
pub use exits::{Exit, ExitSpec, ScoreKind, normalised_entropy};
pub use fold_shapes::fold_shapes;
pub use fuse::fuse_blocks;
pub use infer::InferredTypes;
pub use input_default::InputDefault;
pub use limits::{LONGEST_NAME, MOST_PORTS, MOST_UNIT_NODES, check_constants};
pub use model::{Graph, GraphNode, NodeId, ValueId, Weight};
pub use onnx::external::{ExternalData, NoExternalData};
pub use onnx::read::read_model;
pub use partition::{
    Partition, Split, check_outputs, cut_points, partition_graph, split_into_chain,
};
pub use precision::Precision;
pub use rows::{RowObstacle, RowProof, prove_rows};
pub use run_forecast::RunForecast;
pub use segments::{
    AddedModel, ModelCut, RecutModel, SegmentedModel, find_segments, share_with_stored,
};
pub use share::{SharedModel, SharedPartitions, share_blocks};
pub use unshared::{UnsharedWeights, find_unshared};
