//! The command line of `tessera plan fusion`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::seconds;

#[derive(Args)]
pub(crate) struct FusionArguments {
    /// The problem, in YAML or JSON; - for standard input
    pub(crate) problem: Option<PathBuf>,
    /// How to group; all compares the strategies, help lists them [default: cheapest; for a problem with
    /// scenarios all]
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Option<String>,
    /// The plan so far, as --json prints it: it stays where no other is cheaper
    #[arg(long, value_name = "PLAN")]
    pub(crate) previous: Option<PathBuf>,
    /// Judge this plan instead of making one
    #[arg(long, value_name = "PLAN", conflicts_with_all = ["strategy", "previous"])]
    pub(crate) plan: Option<PathBuf>,
    /// How long a strategy may search; the best plan so far is taken then
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) time_limit: Duration,
    /// Draw the memory of each strategy into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
