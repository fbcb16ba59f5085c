//! The command line of `tessera plan placement`.

use std::path::PathBuf;

use clap::Args;

use super::search::SearchTime;

#[derive(Args)]
pub(crate) struct PlacementArguments {
    /// The problem, in YAML or JSON; - for standard input
    pub(crate) problem: Option<PathBuf>,
    /// How to plan: a name, or the path of an executable that reads the problem as JSON and writes
    /// a plan; all compares the built-in ones, help lists them
    #[arg(long, default_value = "exact", value_name = "NAME|PATH")]
    pub(crate) strategy: String,
    /// Seed of strategies that draw lots
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Where the layers are today, as --json prints it: changing that plan then has to pay
    #[arg(long, value_name = "PLAN")]
    pub(crate) previous: Option<PathBuf>,
    /// Judge this plan instead of making one
    #[arg(long, value_name = "PLAN", conflicts_with = "strategy")]
    pub(crate) plan: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) search: SearchTime,
    /// Draw the plan into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
