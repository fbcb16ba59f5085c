//! Runs blocks: loads the graph of a model, runs it, takes exits, and measures.

#![forbid(unsafe_code)]

mod batch;
mod block_process;
mod buffers;
mod compare;
mod cores;
mod entropy;
mod given_up;
mod gpu_queue;
mod instance;
mod link;
mod load;
mod measure;
mod memory;
mod node;
mod probe;
mod reach;
mod run;
mod slot;
mod source;
mod unit;
mod worker;

pub use block_process::run_block;
pub use compare::{Difference, compare};
pub use cores::{Cores, MachineCores, Share};
pub use given_up::GivenUp;
pub use load::{LoadedModel, Loader};
pub use measure::{Summary, median, p99};
pub use memory::{DeviceMemory, HostMemory, Memory, PinnedMemory, SharedMemory};
pub use node::{InstanceStatus, Node, NodeEvent, NodeOptions, Pinged, UnitFacts};
pub use probe::Findings;
pub use run::{ExitTaken, RunOptions, RunResult};
pub use slot::InstanceState;
pub use source::ProgramSource;
pub use unit::LoadedUnit;
pub use worker::{Alone, GpuUse, LocalWorkers, Overseer, Pulse, Worker, WorkerParts};

/// Locks; a thread that panicked while it had the lock leaves what it guards usable.
fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
