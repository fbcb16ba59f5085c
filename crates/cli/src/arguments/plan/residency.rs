//! The command line of `tessera plan residency`.

use std::path::PathBuf;

use clap::Args;

use super::search::{PlanInputs, SearchTime};

#[derive(Args)]
pub(crate) struct ResidencyArguments {
    #[command(flatten)]
    pub(crate) inputs: PlanInputs,
    /// Plan for the profile of a well-known model instead of a problem: bert-base
    #[arg(long, value_name = "NAME", conflicts_with = "problem")]
    pub(crate) profile: Option<String>,
    /// GPUs of the server, two below each PCIe switch, with NVLink between any two [default: 4 with
    /// --profile, 1 with --random]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=64),
        conflicts_with = "problem"
    )]
    pub(crate) gpus: Option<u64>,
    /// How to plan; all compares the strategies, help lists them [default: parallel-direct; with
    /// --random all]
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Option<String>,
    #[command(flatten)]
    pub(crate) search: SearchTime,
    /// Draw what the GPUs do when into this file; with --strategy all, how long each plan takes
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Plan so many random profiles instead of a problem, and print how the strategies did
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["problem", "profile", "previous", "plan", "svg"]
    )]
    pub(crate) random: Option<u64>,
    /// Layers of a random profile
    #[arg(
        long,
        value_name = "L",
        default_value_t = 199,
        value_parser = clap::value_parser!(u64).range(1..=100_000),
        requires = "random"
    )]
    pub(crate) layers: u64,
    /// Seed of the first random profile (the next one has the next seed), or of how the times of a
    /// profile vary (0: not at all)
    #[arg(long, default_value_t = 0, conflicts_with = "problem")]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
