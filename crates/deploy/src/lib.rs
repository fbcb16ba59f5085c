//! What gateway and node agree on: which units there are, by which route a task's requests pass
//! them, and what a message says of its way.
//!
//! [`Deployment`] follows from tasks alone, and does nothing by itself. Who decides what the tasks
//! are, and where units should be, is elsewhere: in `control` and `plan`.

#![forbid(unsafe_code)]

mod accuracy_goal;
mod batching;
mod compose;
mod deployment;
mod entropy_counts;
mod fusion;
mod isolation;
mod residency_choice;
mod route;
mod shared_unit;
mod source_route;
mod subgraph;
mod symbol_table;
mod task;
mod unit;

pub use accuracy_goal::{AccuracyGoal, ThresholdChoice, ThresholdSetting};
pub use batching::{Batching, BatchingChoice};
pub use compose::{PathPart, PathPartInput, compose_path};
pub use deployment::{Deployment, DeploymentChange, DeploymentUndo, TaskChange};
pub use entropy_counts::EntropyCounts;
pub use isolation::Isolation;
pub use residency_choice::ResidencyChoice;
pub use route::{RouteExit, RouteStep, TaskRoute};
pub use source_route::{Hop, HopExit, HopTiming, HopView, MAX_HOPS, ReplyOutcome, SourceRoute};
pub use task::{PlannedTask, TaskSettings};
pub use unit::{Unit, UnitId, UnitSettings};
