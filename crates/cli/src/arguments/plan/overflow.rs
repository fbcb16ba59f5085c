//! The command line of `tessera plan overflow`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::seconds;

#[derive(Args)]
pub(crate) struct OverflowArguments {
    /// The problem, in YAML or JSON; - for standard input
    pub(crate) problem: Option<PathBuf>,
    /// How to plan; all compares the strategies, help lists them [default: communication; with --random
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
