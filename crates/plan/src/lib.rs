//! Planners as pure functions: from tasks and what is known of their blocks to what runs where.

#![forbid(unsafe_code)]

mod check;
mod compose;
mod deployment;
mod fusion;
mod itinerary;
mod limit;
pub mod overflow;
pub mod placement;
pub mod queueing;
pub mod residency;
mod route;
pub mod sharing;

pub use compose::{Part, PartInput, compose};
pub use deployment::{
    Batching, BatchingChoice, Deployment, Isolation, PlannedTask, TaskSettings, Unit, UnitId,
    UnitSettings, deploy,
};
pub use itinerary::{ExitLeg, Leg, Log, Outcome, Record};
pub use limit::Limit;
pub use route::{Route, RouteExit, Step};
