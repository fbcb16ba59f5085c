//! Overflow
mod communication;
mod exact;
mod executor;
mod graph;
mod list;
mod paths;
mod planned;
mod problem;
mod queueing_delay;
mod random;
mod refine;
mod sequential;
mod simulator;
mod slowdown;

use tessera_core::{Error, Result};

pub use communication::algorithm_1;
pub use planned::{Plan, Planned};
pub use problem::{Block, Device, Edge, Problem, Rates};
pub use random::random;
pub use simulator::{Copied, Executed, Run, simulate};

use crate::Limit;

/// A way of planning.
pub trait Strategy {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// What it does, in a line.
    fn about(&self) -> &'static str;

    /// Plans.
    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        limit: &Limit<'_>,
    ) -> Result<Planned>;
}

/// All strategies.
pub fn strategies() -> [&'static dyn Strategy; 5] {
    [
        &sequential::Sequential,
        &queueing_delay::QueueingDelay,
        &slowdown::Slowdown,
        &communication::Communication,
        &exact::Exact,
    ]
}

/// The strategy of this name.
pub fn strategy(name: &str) -> Result<&'static dyn Strategy> {
    let known = strategies();
    known.into_iter().find(|strategy| strategy.name() == name).ok_or_else(|| {
        let names = known.map(Strategy::name).join(", ");
        Error::usage(format!("no strategy \"{name}\", expected one of {names}"))
    })
}
