//! Residency: which layers of a model are loaded into GPU memory, by which way, and which stay on the host.
//!
//! A request for a model that is not on the GPU has to wait for its weights. Layers can run as soon as
//! their own weights are there; a layer whose weights are large and little used can run with them left on
//! the host, which also lets all later ones come sooner; and other GPUs can load parts of the model and
//! hand them over through NVLink. What is best follows from three times per layer: to load it, to run it
//! from GPU memory, and to run it from host memory (DeepPlan, EuroSys 2023).
//!
//! [`simulate`] says what a [`Plan`] costs; each [`Strategy`] finds one. [`eviction`] says which model has
//! to go when there is no room for another.

mod change;
mod dealing;
mod direct_host_access;
pub mod eviction;
mod exact;
mod labels;
mod load_then_run;
mod memory;
mod parallel;
mod parallel_direct;
mod pipeline;
mod problem;
mod reassign;
mod relaxation;
mod shape;
mod timeline;
mod topology;

pub use direct_host_access::{DirectHostAccess, algorithm_1_as_printed};
pub use exact::Exact;
pub use load_then_run::LoadThenRun;
pub use parallel::Parallel;
pub use parallel_direct::ParallelDirect;
pub use pipeline::Pipeline;
pub use problem::{Gpu, Layer, NvLink, Problem};
pub use shape::{random, shape, shapes};
pub use timeline::{Executed, Plan, Residency, Run, Span, simulate};
pub use topology::server;

use serde::Serialize;
use tessera_core::{Error, Result};

use crate::Limit;

/// A way to plan. The problem has passed its check.
pub trait Strategy: Sync {
    /// What users call it.
    fn name(&self) -> &'static str;

    /// What it does, in one line.
    fn about(&self) -> &'static str;

    /// A plan for a problem. A plan of this strategy that is still as good as any it finds is kept.
    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        limit: &Limit<'_>,
    ) -> Result<Planned>;
}

/// What a strategy found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Time to the result, as simulated.
    pub total_us: f64,
    /// No plan is quicker than this, where that is known.
    pub bound_us: Option<f64>,
    /// Whether no plan is quicker than this one.
    pub proved: bool,
}

impl Planned {
    /// How much longer than the bound it may take, as a share of the bound.
    pub fn gap(&self) -> Option<f64> {
        let bound = self.bound_us.filter(|bound| *bound > 0.0)?;
        Some((self.total_us / bound - 1.0).max(0.0))
    }

    fn of(problem: &Problem, plan: Plan) -> Result<Self> {
        let total_us = simulate(problem, &plan)?.total_us;
        Ok(Self { plan, total_us, bound_us: None, proved: false })
    }

    /// The quicker of two; this one where they are alike.
    fn or_quicker(self, other: Self) -> Self {
        if other.total_us < self.total_us { other } else { self }
    }

    /// The previous plan instead, where the strategy could have made it and it is not slower.
    fn or_previous(
        self,
        problem: &Problem,
        previous: Option<&Plan>,
        is_such: impl Fn(&Plan) -> bool,
    ) -> Self {
        let Some(previous) = previous else { return self };
        // One that is not valid any more is no plan; why does not matter.
        match simulate(problem, previous) {
            Ok(run) if run.total_us <= self.total_us && is_such(previous) => {
                Self { plan: previous.clone(), total_us: run.total_us, ..self }
            }
            _ => self,
        }
    }
}

/// All strategies, from the simplest on.
pub fn strategies() -> &'static [&'static dyn Strategy] {
    &[&LoadThenRun, &Pipeline, &DirectHostAccess, &Parallel, &ParallelDirect, &Exact]
}

/// The strategy of this name.
pub fn strategy(name: &str) -> Result<&'static dyn Strategy> {
    let found = strategies().iter().find(|strategy| strategy.name() == name);
    found.copied().ok_or_else(|| {
        let known: Vec<&str> = strategies().iter().map(|strategy| strategy.name()).collect();
        Error::usage(format!("strategy \"{name}\": expected one of {}", known.join(", ")))
    })
}
