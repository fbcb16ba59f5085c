//! Flags that planners have in common.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tessera_command::parse_seconds;

/// What a planner starts from.
#[derive(Args)]
pub(crate) struct PlanInputs {
    /// The problem, in YAML or JSON; - for standard input
    pub(crate) problem: Option<PathBuf>,
    /// The plan so far, as --json prints it: it stays where no other is better
    #[arg(long, value_name = "PLAN")]
    pub(crate) previous: Option<PathBuf>,
    /// Judge this plan instead of making one
    #[arg(long, value_name = "PLAN", conflicts_with_all = ["strategy", "previous"])]
    pub(crate) plan: Option<PathBuf>,
}

/// How long a planner searches.
#[derive(Args)]
pub(crate) struct SearchTime {
    /// How long a strategy may search; the best plan so far is taken then
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) time_limit: Duration,
}
