//! Models as graphs of blocks: ONNX in; cut points, partition, content hashes, sharing, exits and
//! cost out. Pure: bytes go in and bytes come out, files are somebody else's business.

#![forbid(unsafe_code)]

mod balance;
mod block;
mod block_cost;
mod block_graph;
mod body;
pub mod builder;
mod constants;
pub mod cost;
mod cuts;
mod exits;
mod fuse;
pub mod infer;
mod model;
pub mod onnx;
mod operators;
mod order;
mod output_order;
mod partition;
mod share;

pub use block::{Block, BlockPort, WeightRef};
pub use block_cost::block_cost;
pub use block_graph::{BlockGraph, BlockNode, Port, Source, check_inputs};
pub use cuts::{Cut, CutPoints};
pub use exits::{Exit, ExitSpec, ScoreKind, normalised_entropy};
pub use fuse::fuse;
pub use infer::Types;
pub use model::{Graph, Node, NodeId, ValueId, Weight};
pub use onnx::read::{ExternalData, NoExternalData, read};
pub use partition::{Partition, Split, cut_points, partition, split};
pub use share::{Shared, SharedModel, share};
