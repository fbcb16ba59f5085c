//! Planners as pure functions: from tasks and what is known of their blocks to what runs where.
//!
//! Every family of planners is a module: a problem, the plans for it, a simulator that says what a
//! plan costs, and strategies that find one. [`Planner`] is what all of these are, and a
//! [`StrategyRegistry`] lists those of a family. The README beside this explains it by the example
//! of placement, and says what to touch to add a strategy.

#![forbid(unsafe_code)]

mod limit;
pub mod overflow;
pub mod placement;
mod planner;
pub mod queueing;
mod registry;
pub mod residency;
pub mod sharing;
mod validation;

pub use limit::SearchLimit;
pub use planner::{Planner, Strategy};
pub use registry::StrategyRegistry;
