//! Residency: where the weights of units are, and when they come and go.
//!
//! A budget bounds what weights take of a memory. What is asked for comes, what is not leaves, and
//! nobody else notices: requests wait for the weights of their own unit alone. The books are in
//! one place per node ([`WeightManager`]); each instance has its end of them ([`UnitWeights`]),
//! through which its runs keep weights where they are.

mod ledger;
mod manager;
mod process_weights;
mod status;
mod unit_weights;
mod weight_managers;

use std::sync::mpsc::Receiver;
use std::time::Duration;

use tessera_core::{ContentHash, Error};
use tessera_tensormq::Deadline;

pub(crate) use manager::{
    InstanceWeightRooms, ManagedRoom, WeightManager, WeightRoom, WeightRooms,
};
pub(crate) use process_weights::{ProcessWeightRooms, ProcessWeights};
pub use status::{WeightPlace, WeightStatus, WeightUse};
pub(crate) use unit_weights::{UnitWeights, WeightHolder, WeightLease};
pub(crate) use weight_managers::WeightManagers;
pub use weight_managers::{GpuBudget, WeightLimits};

/// Weights that are loaded as one, and shared by all in a process that have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightPart {
    pub(crate) hash: ContentHash,
    pub(crate) bytes: u64,
}

/// What somebody sends, by a deadline; `None` where nothing came.
fn receive_by<T>(receiver: &Receiver<T>, deadline: Option<Deadline>) -> Option<T> {
    match deadline {
        None => receiver.recv().ok(),
        Some(deadline) => receiver.recv_timeout(deadline.remaining()).ok(),
    }
}

/// Who has the smallest is served first: the deadline, by the host's clock.
fn queue_order(deadline: Option<Deadline>) -> u64 {
    deadline.map_or(u64::MAX, Deadline::nanoseconds)
}

fn no_room_before_others(time: Duration) -> Error {
    Error::timed_out(format!(
        "its weights would not be there in time: those of others come first, for {} ms \
         (--host-memory, --gpu-memory)",
        time.as_millis()
    ))
}

fn no_room_in_time() -> Error {
    Error::timed_out("there was no room for its weights in time (--host-memory, --gpu-memory)")
}
