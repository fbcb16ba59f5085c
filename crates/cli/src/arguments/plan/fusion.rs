//! The command line of `tessera plan fusion`.

use std::path::PathBuf;

use clap::Args;

use super::search::{PlanInputs, SearchTime};

#[derive(Args)]
pub(crate) struct FusionArguments {
    #[command(flatten)]
    pub(crate) inputs: PlanInputs,
    /// How to group; all compares the strategies, help lists them [default: cheapest; for a problem
    /// with scenarios all]
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Option<String>,
    #[command(flatten)]
    pub(crate) search: SearchTime,
    /// Draw the memory of each strategy into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
