//! The command line of `tessera plan`.

pub(crate) mod eviction;
pub(crate) mod fusion;
pub(crate) mod overflow;
pub(crate) mod placement;
pub(crate) mod queueing;
pub(crate) mod residency;
mod search;

use clap::{Args, Subcommand};

use super::admin::AdminArguments;
use eviction::EvictionArguments;
use fusion::FusionArguments;
use overflow::OverflowArguments;
use placement::PlacementArguments;
use queueing::QueueingArguments;
use residency::ResidencyArguments;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct PlanArguments {
    #[command(subcommand)]
    pub(crate) planner: Option<PlanCommand>,
    #[command(flatten)]
    pub(crate) cluster: ClusterPlanArguments,
}

#[derive(Args)]
pub(crate) struct ClusterPlanArguments {
    /// What the planner of a running cluster would do with its tasks, and why
    #[arg(long, required = true)]
    pub(crate) cluster: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum PlanCommand {
    /// Place the layers of models on nodes, from the device to the cloud
    ///
    /// For the least expected latency of a request, within the nodes' memory and storage. Layers
    /// never go back to a lower tier, and a node's layers of a model are neighbours.
    Placement(PlacementArguments),
    /// Move light blocks from a busy GPU to the CPU
    ///
    /// For the least time until a graph of blocks is through, with copies between the two.
    Overflow(OverflowArguments),
    /// Decide which layers are loaded into GPU memory, and which are read from the host
    ///
    /// For the least time until the first result of a model that is not on the GPU yet.
    Residency(ResidencyArguments),
    /// Decide which models leave GPU memory when another one needs room
    Eviction(EvictionArguments),
    /// Group neighbouring blocks of tasks into processes
    ///
    /// For the least memory, where tasks share some of their blocks.
    Fusion(FusionArguments),
    /// Find the bottleneck among blocks, and how many replicas each needs
    Queueing(QueueingArguments),
}
