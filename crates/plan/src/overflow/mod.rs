//! Overflow to the CPU: which blocks of a model the CPU runs while the GPU is busy.
//!
//! Models with many branches, such as detectors, keep blocks waiting for the GPU while the CPU
//! beside it is idle. SIR+ (SYSTOR 2022) moves some of them over. Which ones, and what that brings,
//! is decided here: an [`OverflowProblem`] is a graph of blocks with a time on either device, an
//! [`OverflowStrategy`] makes an [`OverflowPlan`] of it, and [`simulate_overflow`] says what the
//! plan costs.
//!
//! # The executor
//!
//! The simulator models the paper's concurrent executor:
//!
//! - **One queue per device.** A device runs one block at a time, without a break. A block joins
//!   its device's queue when all that it takes is in that device's memory. First come is first
//!   served, and of those that come at the same moment, the one that the problem lists first;
//!   unless the plan has an order, which the devices then keep, and wait where the next block isn't
//!   ready.
//! - **Chains are fused.** Taking a block from the queue costs the device `dispatch_us`. A block
//!   whose only input is made by a block of the same device that nobody else takes from runs right
//!   after it, past the queue, and pays nothing. In a plan with an order, that holds where the two
//!   are neighbours.
//! - **Copies don't keep devices busy.** What is made on one device and taken on the other is
//!   copied as soon as it is made, in `latency_us` and its bytes divided by the rate. Copies run
//!   beside everything else, also beside each other, as in constraint 5 of the paper. (Algorithm 1
//!   prints data times rate; section 5 divides, and so does this.)
//! - **Inputs and results of the model are with the host**: a block on the GPU waits until its
//!   inputs are copied, and a run is over when the last result is back.
//!
//! A *sequential* plan is run as runtimes do without all this: one block after the other in the
//! order of the graph, each copy in between, no queue and so nothing to pay for one. It is what the
//! other strategies are compared with.
//!
//! ```
//! use tessera_plan::{SearchLimit, overflow};
//!
//! let problem = overflow::random_overflow_problem(40, 7);
//! let plan = |name| {
//!     overflow::find_overflow_strategy(name)?.find_plan(&problem, None, &SearchLimit::none())
//! };
//! let (before, after) = (plan("sequential")?, plan("communication")?);
//! assert!(after.makespan_us <= before.makespan_us);
//! let run = overflow::simulate_overflow(&problem, &after.plan)?;
//! assert_eq!(run.makespan_us, after.makespan_us);
//! # Ok::<(), tessera_core::Error>(())
//! ```

mod communication;
mod exact;
mod executor;
mod graph;
mod list_scheduling;
mod local_search;
mod paths;
mod plan;
mod problem;
mod queueing_delay;
mod random_problem;
mod sequential;
mod simulator;
mod slowdown;
mod solution;
mod strategies;

pub use communication::algorithm_1;
pub use plan::OverflowPlan;
pub use problem::{CopyRates, OverflowBlock, OverflowDevice, OverflowEdge, OverflowProblem};
pub use random_problem::random_overflow_problem;
pub use simulator::{ExecutedBlock, ExecutedCopy, OverflowRun, simulate_overflow};
pub use solution::OverflowSolution;
pub use strategies::{
    OverflowStrategy, find_overflow_strategy, overflow_strategies, sequential_us,
};
