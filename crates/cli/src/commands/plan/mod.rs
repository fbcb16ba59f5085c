//! `tessera plan`: where blocks and weights should be.

mod cluster;
mod eviction;
mod fusion;
mod outline;
mod overflow;
mod placement;
mod queueing;
mod residency;

use std::path::Path;

use crate::arguments::plan::{PlanArguments, PlanCommand};
use outline::run_planner;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tessera_command::problem_file;
use tessera_core::Result;

pub(super) fn run_plan(arguments: &PlanArguments) -> Result<()> {
    let Some(planner) = &arguments.planner else {
        return cluster::show_cluster_plan(&arguments.cluster);
    };
    match planner {
        PlanCommand::Placement(arguments) => run_planner(arguments),
        PlanCommand::Overflow(arguments) => run_planner(arguments),
        PlanCommand::Residency(arguments) => run_planner(arguments),
        PlanCommand::Eviction(arguments) => run_planner(arguments),
        PlanCommand::Fusion(arguments) => run_planner(arguments),
        PlanCommand::Queueing(arguments) => queueing::plan_queueing(arguments),
    }
}

/// What is known about a better plan.
fn format_proof(proved: bool, gap: Option<f64>) -> String {
    match (proved, gap) {
        (true, _) => "optimal".to_owned(),
        (false, Some(gap)) => format!("within {:.1}%", gap * 100.0),
        (false, None) => "-".to_owned(),
    }
}

/// Reads a plan: one by itself, or what `--json` printed.
pub(super) fn read_previous_plan<T: DeserializeOwned>(path: &Path) -> Result<T> {
    #[derive(Deserialize)]
    struct PrintedPlan<T> {
        plan: T,
    }

    #[derive(Deserialize)]
    struct HasPlanField {
        plan: Option<serde::de::IgnoredAny>,
    }

    let text = problem_file::read_text(path)?;
    let probe = problem_file::parse_text::<HasPlanField>(path, &text);
    if probe.is_ok_and(|probe| probe.plan.is_some()) {
        problem_file::parse_text::<PrintedPlan<T>>(path, &text).map(|printed| printed.plan)
    } else {
        problem_file::parse_text(path, &text)
    }
}
