//! `tessera plan`: where blocks and weights should be.

mod eviction;
mod figures;
mod fusion;
mod overflow;
mod placement;
mod queueing;
mod residency;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tessera_core::Result;
use tessera_plan::Limit;

use crate::arguments::plan::PlanCommand;
use crate::time_limit::TimeLimit;
use crate::{output, problem_file};

pub(super) fn run(command: &PlanCommand) -> Result<()> {
    match command {
        PlanCommand::Placement(arguments) => placement::run(arguments),
        PlanCommand::Overflow(arguments) => overflow::run(arguments),
        PlanCommand::Residency(arguments) => residency::run(arguments),
        PlanCommand::Eviction(arguments) => eviction::run(arguments),
        PlanCommand::Fusion(arguments) => fusion::run(arguments),
        PlanCommand::Queueing(arguments) => queueing::run(arguments),
    }
}

/// Prints names with what they mean, one below the other.
fn list<'a>(known: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<()> {
    let known: Vec<(&str, &str)> = known.into_iter().collect();
    let width = known.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    known.iter().try_for_each(|(name, about)| output::print(&format!("{name:width$}  {about}")))
}

/// Plans within a time limit, and says how many milliseconds that took.
fn timed<T>(time_limit: Duration, plan: impl FnOnce(&Limit<'_>) -> Result<T>) -> Result<(T, f64)> {
    let limit = TimeLimit::new(time_limit);
    let reached = || limit.reached();
    let start = Instant::now();
    let planned = plan(&Limit::new(&reached))?;
    Ok((planned, start.elapsed().as_secs_f64() * 1e3))
}

/// Reads a plan: one by itself, or what `--json` printed.
pub(super) fn previous<T: DeserializeOwned>(path: &Path) -> Result<T> {
    #[derive(Deserialize)]
    struct Printed<T> {
        plan: T,
    }

    #[derive(Deserialize)]
    struct Probe {
        plan: Option<serde::de::IgnoredAny>,
    }

    let text = problem_file::text(path)?;
    let probe = problem_file::parse::<Probe>(path, &text);
    match probe.is_ok_and(|probe| probe.plan.is_some()) {
        true => problem_file::parse::<Printed<T>>(path, &text).map(|printed| printed.plan),
        false => problem_file::parse(path, &text),
    }
}
