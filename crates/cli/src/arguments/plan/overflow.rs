//! The command line of `tessera plan overflow`.

use std::path::PathBuf;

use clap::Args;

use super::search::{PlanInputs, SearchTime};

#[derive(Args)]
pub(crate) struct OverflowArguments {
    #[command(flatten)]
    pub(crate) inputs: PlanInputs,
    /// How to plan; all compares the strategies, help lists them [default: communication; with
    /// --random all]
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Option<String>,
    #[command(flatten)]
    pub(crate) search: SearchTime,
    /// Draw what the devices do when into this file; with --strategy all, how long each plan takes
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Plan so many random graphs instead of a problem, and print how the strategies did
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["problem", "previous", "plan", "svg"]
    )]
    pub(crate) random: Option<u64>,
    /// Blocks of a random graph
    #[arg(
        long,
        value_name = "B",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000),
        requires = "random"
    )]
    pub(crate) blocks: u64,
    /// Seed of the first random graph; the next one has the next seed
    #[arg(long, default_value_t = 0, requires = "random")]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
