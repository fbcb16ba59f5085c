//! The command line of `tessera plan residency`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::seconds;

#[derive(Args)]
pub(crate) struct ResidencyArguments {
    /// The problem, in YAML or JSON; - for standard input
    pub(crate) problem: Option<PathBuf>,
    /// Plan for the profile of a well-known model instead of a problem: bert-base
    #[arg(long, value_name = "NAME", conflicts_with = "problem")]
    pub(crate) shape: Option<String>,
    /// GPUs of the server, two below each PCIe switch, with NVLink between any two [default: 4 with --shape,
    /// 1 with --random]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=64),
        conflicts_with = "problem"
    )]
    pub(crate) gpus: Option<u64>,
    /// How to plan; all compares the strategies, help lists them [default: parallel-direct; with --random
    /// all]
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Option<String>,
    /// The plan so far, as --json prints it: it stays where no other is better
    #[arg(long, value_name = "PLAN")]
    pub(crate) previous: Option<PathBuf>,
    /// Judge this plan instead of making one
    #[arg(long, value_name = "PLAN", conflicts_with_all = ["strategy", "previous"])]
    pub(crate) plan: Option<PathBuf>,
    /// How long a strategy may search; the best plan so far is taken then
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) time_limit: Duration,
    /// Draw what the GPUs do when into this file; with --strategy all, how long each plan takes
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Plan so many random profiles instead of a problem, and print how the strategies did
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["problem", "shape", "previous", "plan", "svg"]
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
    /// Seed of the first random profile (the next one has the next seed), or of how the times of a shape
    /// vary (0: not at all)
    #[arg(long, default_value_t = 0, conflicts_with = "problem")]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
