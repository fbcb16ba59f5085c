//! Planning with a clock beside it.

use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_control::Plugin;
use tessera_core::{Error, Result};
use tessera_node::median;
use tessera_plan::Limit;
use tessera_plan::placement::{Options, Planned, Problem, Strategy, plan, strategy};

use crate::time_limit::TimeLimit;

/// How often a quick plan is made.
const ROUNDS: usize = 7;

/// Milliseconds below which a plan is quick: one measurement of it says little.
const QUICK_MS: f64 = 50.0;

/// What a strategy made of a problem, and how long it took.
pub(super) struct Measured {
    pub(super) planned: Result<Planned>,
    times_ms: Vec<f64>,
}

/// Figures from the least to the most.
#[derive(Clone, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// How strategies are asked.
#[derive(Clone, Copy)]
pub(super) struct Asking {
    pub(super) seed: u64,
    pub(super) time_limit: Duration,
}

impl Measured {
    /// Milliseconds for the plan, the median where it was made several times.
    pub(super) fn plan_ms(&self) -> f64 {
        spread(self.times_ms.iter().copied()).map_or(0.0, |times| times.median)
    }

    /// The latency of the plan, where there is one.
    pub(super) fn latency(&self) -> Option<f64> {
        self.planned.as_ref().ok().map(|planned| planned.latency_seconds)
    }
}

/// The strategy of this name, or the program at this path. A program's time begins with its first use:
/// it is chosen anew for each plan.
pub(super) fn choose(name: &str, time_limit: Duration) -> Result<Box<dyn Strategy>> {
    match name.contains('/') {
        true => Ok(Box::new(Plugin::new(name, time_limit))),
        false => strategy(name).map_err(|error| Error::usage(format!("--{error}"))),
    }
}

/// Plans once.
pub(super) fn once(name: &str, problem: &Problem, asking: Asking) -> (Result<Planned>, f64) {
    let chosen = match choose(name, asking.time_limit) {
        Ok(chosen) => chosen,
        Err(error) => return (Err(error), 0.0),
    };
    let limit = TimeLimit::new(asking.time_limit);
    let reached = || limit.reached();
    let options = Options { previous: None, seed: asking.seed, limit: Limit::new(&reached) };
    let start = Instant::now();
    let planned = plan(chosen.as_ref(), problem, &options);
    (planned, start.elapsed().as_secs_f64() * 1e3)
}

/// Lets strategies plan in turns, those that are quick several times.
pub(super) fn in_turns(names: &[String], problem: &Problem, asking: Asking) -> Vec<Measured> {
    let mut all: Vec<Measured> = Vec::with_capacity(names.len());
    for name in names {
        let (planned, took) = once(name, problem, asking);
        all.push(Measured { planned, times_ms: vec![took] });
    }
    for _ in 1..ROUNDS {
        for (name, measured) in names.iter().zip(&mut all) {
            if measured.plan_ms() < QUICK_MS {
                measured.times_ms.push(once(name, problem, asking).1);
            }
        }
    }
    all
}

/// The least latency of a problem, where it can be proved in the time given: that of the plan of `exact`,
/// which may be among what was measured.
pub(super) fn optimum(
    names: &[String],
    measured: &[Measured],
    problem: &Problem,
    asking: Asking,
) -> Option<f64> {
    let proved = |planned: &Planned| planned.proved.then_some(planned.latency_seconds);
    match names.iter().position(|name| name == "exact") {
        Some(at) => measured.get(at)?.planned.as_ref().ok().and_then(proved),
        None => once("exact", problem, asking).0.as_ref().ok().and_then(proved),
    }
}

/// How much longer than it has to a request takes, as a share.
pub(super) fn loss(latency: Option<f64>, optimum: Option<f64>) -> Option<f64> {
    let (latency, optimum) = (latency?, optimum?);
    (optimum > 0.0).then(|| latency / optimum - 1.0)
}

/// How far a plan may be from the optimum, where that is known; one that is proved is not at all.
pub(super) fn gap(planned: &Planned) -> Option<f64> {
    match planned.proved {
        true => Some(0.0),
        false => planned.gap().filter(|gap| gap.is_finite()),
    }
}

/// The median and the ends of figures; none where there are none.
pub(super) fn spread(figures: impl Iterator<Item = f64>) -> Option<Spread> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let (min, max) = (*figures.first()?, *figures.last()?);
    Some(Spread { median: median(&figures)?, min, max })
}

/// The mean of figures; none where there are none.
pub(super) fn mean(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let figures: Vec<f64> = figures.collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

/// The largest of figures; none where there are none.
pub(super) fn worst(figures: impl Iterator<Item = f64>) -> Option<f64> {
    figures.max_by(f64::total_cmp)
}

/// A share as people write it; what is rounding is nothing.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| match share.abs() < 5e-6 {
        true => "0%".to_owned(),
        false => format!("{:.3}%", share * 100.0),
    })
}
