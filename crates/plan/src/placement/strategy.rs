//! What a strategy is, and what is done with what it proposes.

use tessera_core::{Error, Result};

use super::landscape::{self, Landscape};
use super::outcome::{evaluate, moved, violation};
use super::pareto::{self, FrontPoint};
use super::plan::Plan;
use super::problem::Problem;
use super::{Cloud, DeviceOnly, Exact, FirstFit, Genetic, Pareto, thresholds};
use crate::Limit;

/// A way to find a placement.
pub trait Strategy {
    /// What it is called.
    fn name(&self) -> &str;

    /// What it does, in one line.
    fn about(&self) -> &str;

    /// Proposes where the layers go. The landscape knows what moving away from the previous plan costs.
    fn propose(&self, landscape: &Landscape<'_>, options: &Options<'_>) -> Result<Proposal>;
}

/// What planning depends on beside the problem.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Where the layers are today.
    pub previous: Option<&'a Plan>,
    /// For strategies that draw lots.
    pub seed: u64,
    /// When to stop searching.
    pub limit: Limit<'a>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { previous: None, seed: 0, limit: Limit::none() }
    }
}

/// What a strategy proposes.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// For each model, the node of each layer.
    pub nodes: Vec<Vec<usize>>,
    /// No plan has a lower weighted latency (with what moving costs), where the strategy can tell.
    pub bound_seconds: Option<f64>,
    /// Plans to choose from, where the strategy has several objectives.
    pub front: Vec<FrontPoint>,
}

/// A plan, and what is known about it.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Where the layers go.
    pub plan: Plan,
    /// Its weighted latency.
    pub latency_seconds: f64,
    /// What moving to it costs a request, shared by those until the next plan.
    pub moving_seconds: f64,
    /// Whether it is the previous plan.
    pub kept: bool,
    /// No plan is better than this, latency and moving together, where the strategy can tell.
    pub bound_seconds: Option<f64>,
    /// Whether it is proved that no plan is better.
    pub proved: bool,
    /// Plans to choose from, where the strategy has several objectives.
    pub front: Vec<FrontPoint>,
}

impl Planned {
    /// How far the plan may be from the optimum, as a share of its cost; none where nothing is known.
    pub fn gap(&self) -> Option<f64> {
        let cost = self.latency_seconds + self.moving_seconds;
        let bound = self.bound_seconds?;
        Some(if cost > 0.0 { ((cost - bound) / cost).max(0.0) } else { 0.0 })
    }
}

/// How far apart costs are that count as equal: sums are rounded.
const SAME: f64 = 1e-12;

/// Plans with a strategy: the problem is checked, thresholds are chosen where an accuracy is asked for,
/// the previous plan is kept unless changing pays, and the proposal is checked.
pub fn plan(strategy: &dyn Strategy, problem: &Problem, options: &Options<'_>) -> Result<Planned> {
    problem.check()?;
    let models = problem.models();
    // Moving costs something even where the previous plan can't stay as it is.
    let previous = options.previous;
    let mut best: Option<(f64, Plan)> = None;
    let mut front = Vec::new();
    let mut bound = Some(f64::INFINITY);
    let mut refused = None;
    for settings in thresholds::choices(&models)? {
        landscape::check_settings(&models, &settings)?;
        let landscape = Landscape::new(problem, settings, previous);
        let proposal = match strategy.propose(&landscape, options) {
            Ok(proposal) => proposal,
            Err(error) => {
                refused.get_or_insert(error);
                continue;
            }
        };
        bound = bound.and_then(|bound| Some(bound.min(proposal.bound_seconds?)));
        let proposed = landscape.plan(proposal.nodes);
        if let Some(broken) = violation(problem, &proposed) {
            return Err(Error::invalid(format!("{}: {broken}", strategy.name())));
        }
        let cost = cost(problem, previous, &proposed);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, proposed));
        }
        proposal.front.into_iter().for_each(|point| pareto::merge(&mut front, point));
    }
    let Some((cost, mut plan)) = best else {
        return Err(refused.unwrap_or_else(|| {
            Error::invalid(format!("{}: nothing to propose", strategy.name()))
        }));
    };
    let mut kept = false;
    if let Some(previous) = previous.filter(|plan| violation(problem, plan).is_none()) {
        let stays = evaluate(problem, previous).latency_seconds;
        if cost >= stays * (1.0 - problem.moving.least_gain) - SAME * stays {
            plan = previous.clone();
            kept = true;
        }
    }
    let latency_seconds = evaluate(problem, &plan).latency_seconds;
    let moving_seconds = previous.map_or(0.0, |previous| moved(problem, previous, &plan).1);
    let total = latency_seconds + moving_seconds;
    let front = pareto::choose(front, Pareto::default().most);
    // A bound is summed up in another order than the plan.
    let proved = bound.is_some_and(|bound| total <= bound * (1.0 + SAME));
    Ok(Planned { plan, latency_seconds, moving_seconds, kept, bound_seconds: bound, proved, front })
}

fn cost(problem: &Problem, previous: Option<&Plan>, plan: &Plan) -> f64 {
    let moving = previous.map_or(0.0, |previous| moved(problem, previous, plan).1);
    evaluate(problem, plan).latency_seconds + moving
}

/// All strategies that are built in.
pub fn strategies() -> Vec<Box<dyn Strategy>> {
    vec![
        Box::new(Exact),
        Box::new(Genetic::default()),
        Box::new(Genetic::thesis()),
        Box::new(FirstFit),
        Box::new(Cloud),
        Box::new(DeviceOnly),
        Box::new(Pareto::default()),
    ]
}

/// The strategy of that name.
pub fn strategy(name: &str) -> Result<Box<dyn Strategy>> {
    let known = strategies();
    let names: Vec<String> = known.iter().map(|strategy| strategy.name().to_owned()).collect();
    known.into_iter().find(|strategy| strategy.name() == name).ok_or_else(|| {
        Error::usage(format!("strategy \"{name}\", expected one of {}", names.join(", ")))
    })
}
