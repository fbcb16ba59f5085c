//! The command line of `tessera plan eviction`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct EvictionArguments {
    /// The problem, in YAML or JSON; - for standard input
    pub(crate) problem: Option<PathBuf>,
    /// How to choose what leaves; all compares the policies, help lists them [default: reload-cost;
    /// with --random all]
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Draw so many requests from the rates [default: those of the problem; 10000 where it has
    /// none, 4000 with --random]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) requests: Option<u64>,
    /// Seed of the requests; with --random of the first workload, the next one has the next seed
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Draw how much time each policy loses into this file; with one policy, how often each
    /// instance is loaded
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Simulate so many random workloads instead of a problem, and print how the policies did
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["problem", "svg"]
    )]
    pub(crate) random: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
