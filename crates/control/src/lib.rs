//! The control plane: which tasks there should be, how they are kept and carried out, and the REST
//! interface to them. It neither runs blocks nor answers requests: a [`Site`] does.

#![forbid(unsafe_code)]

mod api;
mod change;
mod intent;
mod json;
mod manager;
mod names;
mod openapi;
mod place;
mod plugin;
mod read;
mod resolve;
mod site;
mod state;
mod store;
#[cfg(test)]
mod tests;

pub use api::{router, routes};
pub use change::{Changed, Fused};
pub use intent::{DeviceChoice, Step, StepInput, System, Task, TaskPath};
pub use json::read_json;
pub use manager::{Defaults, Manager, Restored};
pub use names::check_name;
pub use openapi::openapi;
pub use plugin::Plugin;
pub use site::{
    Applied, BlockStatus, Catalogue, Doing, ExitStatus, InstanceReport, PingAnswer, Site,
    TaskStatus,
};
pub use store::{MemoryStore, RedbStore, Store, Stored, TaskVersion};
