//! Takes requests to units: admission, routing, who waits, and what is on its way.
//!
//! The [`Dispatcher`] is what front ends call. It knows the routes of tasks and the instances of
//! units, and nothing of the protocol that a request came by.
//!
//! `dispatcher` acts: it accepts, sends, receives and answers. `state` decides, under one lock and
//! without waiting for anything, by what it keeps of tasks, instances and requests.

#![forbid(unsafe_code)]

mod admission;
mod device_tensors;
mod dispatcher;
mod early_reply;
mod inference;
mod instances;
mod least_way;
mod pending_request;
mod request_parts;
mod rest_watch;
mod routing_table;
mod state;
mod statistics;
mod turns;
mod unit_waits;

pub use device_tensors::ExportInput;
pub use dispatcher::{AllocateInput, Dispatcher, DispatcherOptions};
pub use inference::{InferenceRequest, InferenceResponse, Refusal};
pub use instances::TaskAvailability;
pub use routing_table::{RouteChange, TaskEntry, UnitEntry};
pub use statistics::{BatchStatistics, DurationTotal, TaskStatistics};
