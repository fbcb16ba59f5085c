//! Planners as pure functions: from tasks and what is known of their blocks to what runs where.

#![forbid(unsafe_code)]

mod compose;
mod deployment;
mod fusion;
mod itinerary;
mod route;

pub use compose::{Part, PartInput, compose};
pub use deployment::{
    Batching, BatchingChoice, Deployment, Isolation, PlannedTask, TaskSettings, Unit, UnitId,
    UnitSettings, deploy,
};
pub use itinerary::{ExitLeg, Leg, Log, Outcome, Record};
pub use route::{Route, RouteExit, Step};
