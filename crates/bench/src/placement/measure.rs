//! Planning with a clock beside it.

use std::time::{Duration, Instant};
use tessera_report::format_percent;

use serde::Serialize;
use tessera_command::{TimeLimit, flag_error};
use tessera_control::PlacementPlugin;
use tessera_core::Result;
use tessera_node::median_of_sorted;
use tessera_plan::SearchLimit;
use tessera_plan::placement::{
    PlacementOptions, PlacementProblem, PlacementSolution, PlacementStrategy,
    find_placement_strategy, plan_placement,
};

/// How often a quick plan is made.
const ROUNDS: usize = 7;

/// Milliseconds below which a plan is quick: one measurement of it says little.
const QUICK_MS: f64 = 50.0;

/// What a strategy made of a problem, and how long it took.
pub(crate) struct MeasuredPlan {
    pub(crate) planned: Result<PlacementSolution>,
    times_ms: Vec<f64>,
}

/// Figures from the least to the most.
#[derive(Clone, Serialize)]
pub(crate) struct TimeSpread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// How strategies are asked.
#[derive(Clone, Copy)]
pub(crate) struct StrategySettings {
    pub(crate) seed: u64,
    pub(crate) time_limit: Duration,
}

impl MeasuredPlan {
    /// Milliseconds for the plan, the median where it was made several times.
    pub(crate) fn plan_ms(&self) -> f64 {
        spread_of(self.times_ms.iter().copied()).map_or(0.0, |times| times.median)
    }

    /// The latency of the plan, where there is one.
    pub(crate) fn latency(&self) -> Option<f64> {
        self.planned.as_ref().ok().map(|planned| planned.latency_seconds)
    }
}

/// The strategy of this name, or the program at this path. A program's time begins with its first
/// use: it is chosen anew for each plan.
pub(crate) fn choose_strategy(
    name: &str,
    time_limit: Duration,
) -> Result<Box<dyn PlacementStrategy>> {
    if name.contains('/') {
        Ok(Box::new(PlacementPlugin::new(name, time_limit)))
    } else {
        let found = find_placement_strategy(name);
        Ok(Box::new(found.map_err(flag_error)?))
    }
}

/// Plans once.
pub(crate) fn plan_once(
    name: &str,
    problem: &PlacementProblem,
    settings: StrategySettings,
) -> (Result<PlacementSolution>, f64) {
    let chosen = match choose_strategy(name, settings.time_limit) {
        Ok(chosen) => chosen,
        Err(error) => return (Err(error), 0.0),
    };
    let limit = TimeLimit::new(settings.time_limit);
    let reached = || limit.is_reached();
    let options =
        PlacementOptions { previous: None, seed: settings.seed, limit: SearchLimit::new(&reached) };
    let start = Instant::now();
    let planned = plan_placement(chosen.as_ref(), problem, &options);
    (planned, start.elapsed().as_secs_f64() * 1e3)
}

/// Lets strategies plan in turns, those that are quick several times.
pub(crate) fn plan_in_turns(
    names: &[String],
    problem: &PlacementProblem,
    settings: StrategySettings,
) -> Vec<MeasuredPlan> {
    let mut all: Vec<MeasuredPlan> = Vec::with_capacity(names.len());
    for name in names {
        let (planned, took) = plan_once(name, problem, settings);
        all.push(MeasuredPlan { planned, times_ms: vec![took] });
    }
    for _ in 1..ROUNDS {
        for (name, measured) in names.iter().zip(&mut all) {
            if measured.plan_ms() < QUICK_MS {
                measured.times_ms.push(plan_once(name, problem, settings).1);
            }
        }
    }
    all
}

/// The least latency of a problem, where it can be proved in the time given: that of the plan of
/// `exact`, which may be among what was measured.
pub(crate) fn proved_optimum(
    names: &[String],
    measured: &[MeasuredPlan],
    problem: &PlacementProblem,
    settings: StrategySettings,
) -> Option<f64> {
    let proved = |planned: &PlacementSolution| planned.proved.then_some(planned.latency_seconds);
    match names.iter().position(|name| name == "exact") {
        Some(at) => measured.get(at)?.planned.as_ref().ok().and_then(proved),
        None => plan_once("exact", problem, settings).0.as_ref().ok().and_then(proved),
    }
}

/// How much longer than it has to a request takes, as a share.
pub(crate) fn relative_loss(latency: Option<f64>, optimum: Option<f64>) -> Option<f64> {
    let (latency, optimum) = (latency?, optimum?);
    (optimum > 0.0).then(|| latency / optimum - 1.0)
}

/// How far a plan may be from the optimum, where that is known; one that is proved is not at all.
pub(crate) fn optimality_gap(planned: &PlacementSolution) -> Option<f64> {
    if planned.proved { Some(0.0) } else { planned.optimality_gap().filter(|gap| gap.is_finite()) }
}

/// The median and the ends of figures; none where there are none.
pub(crate) fn spread_of(figures: impl Iterator<Item = f64>) -> Option<TimeSpread> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let (min, max) = (*figures.first()?, *figures.last()?);
    Some(TimeSpread { median: median_of_sorted(&figures)?, min, max })
}

/// The mean of figures; none where there are none.
pub(crate) fn mean_of(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let figures: Vec<f64> = figures.collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

/// The largest of figures; none where there are none.
pub(crate) fn worst_of(figures: impl Iterator<Item = f64>) -> Option<f64> {
    figures.max_by(f64::total_cmp)
}

/// A share as people write it; what is rounding is nothing.
pub(super) fn format_loss(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| {
        if share.abs() < 5e-6 { "0%".to_owned() } else { format_percent(share, 3) }
    })
}
