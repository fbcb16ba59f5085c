//! The command line of `tessera plan queueing`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct QueueingArguments {
    /// The problem, in YAML or JSON; - for standard input
    pub(crate) problem: PathBuf,
    /// How busy a block may be [default: what the problem says, or 0.7]
    #[arg(long, value_name = "SHARE")]
    pub(crate) utilisation: Option<f64>,
    /// The plan so far, as --json prints it: replicas go when fewer would do for somewhat more
    /// requests
    #[arg(long, value_name = "PLAN")]
    pub(crate) previous: Option<PathBuf>,
    /// Judge this plan instead of making one
    #[arg(long, value_name = "PLAN", conflicts_with = "previous")]
    pub(crate) plan: Option<PathBuf>,
    /// Draw how busy each block is, before and after, into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
