//! Overflow to the CPU: which blocks of a model the CPU runs while the GPU is busy.
//!
//! Models with many branches, such as detectors, keep blocks waiting for the GPU while the CPU beside it
//! is idle. SIR+ (SYSTOR 2022) moves some of them over. Which ones, and what that brings, is decided
//! here: a [`Problem`] is a graph of blocks with a time on either device, a [`Strategy`] makes a [`Plan`]
//! of it, and [`simulate`] says what the plan costs.
//!
//! # The executor
//!
//! The simulator models the paper's concurrent executor:
//!
//! - **One queue per device.** A device runs one block at a time, without a break. A block joins its
//!   device's queue when all that it takes is in that device's memory. First come is first served, and
//!   of those that come at the same moment, the one that the problem lists first; unless the plan has an
//!   order, which the devices then keep, and wait where the next block isn't ready.
//! - **Chains are fused.** Taking a block from the queue costs the device `dispatch_us`. A block whose
//!   only input is made by a block of the same device that nobody else takes from runs right after it,
//!   past the queue, and pays nothing. In a plan with an order, that holds where the two are neighbours.
//! - **Copies don't keep devices busy.** What is made on one device and taken on the other is copied as
//!   soon as it is made, in `latency_us` and its bytes divided by the rate. Copies run beside everything
//!   else, also beside each other, as in constraint 5 of the paper. (Algorithm 1 prints data times rate;
//!   section 5 divides, and so does this.)
//! - **Inputs and results of the model are with the host**: a block on the GPU waits until its inputs are
//!   copied, and a run is over when the last result is back.
//!
//! A *sequential* plan is run as runtimes do without all this: one block after the other in the order of
//! the graph, each copy in between, no queue and so nothing to pay for one. It is what the other
//! strategies are compared with.
//!
//! ```
//! use tessera_plan::{Limit, overflow};
//!
//! let problem = overflow::random(40, 7);
//! let plan = |name| overflow::strategy(name)?.plan(&problem, None, &Limit::none());
//! let (before, after) = (plan("sequential")?, plan("communication")?);
//! assert!(after.makespan_us <= before.makespan_us);
//! let run = overflow::simulate(&problem, &after.plan)?;
//! assert_eq!(run.makespan_us, after.makespan_us);
//! # Ok::<(), tessera_core::Error>(())
//! ```

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

    /// What it does, in one line.
    fn about(&self) -> &'static str;

    /// Plans. A previous plan that still fits and is no worse than what is found is kept, so that nothing
    /// moves without a gain. A strategy that searches stops soon after `limit` says so, with the best
    /// plan that it has.
    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        limit: &Limit<'_>,
    ) -> Result<Planned>;
}

/// All strategies, from the simplest on.
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
        Error::usage(format!("strategy \"{name}\", expected one of {names}"))
    })
}
