//! Runs units: loads the graph of a model, runs it, takes exits, and measures.

#![forbid(unsafe_code)]

mod batch;
mod buffer_pool;
mod calibration;
mod cancelled;
mod compare;
mod device_transfer;
mod entropy;
mod executor;
mod instance;
mod instance_slot;
mod kept_places;
mod latency_summary;
mod memory;
mod model_loader;
mod model_run;
mod permits;
mod process_limits;
mod process_network;
mod process_permits;
mod process_protocol;
mod profiled_blocks;
mod program_source;
mod residency;
mod run_limits;
mod run_memory;
mod run_watch;
mod start_forecast;
mod start_progress;
mod substitute_weights;
mod supervisor;
mod unit;
mod unit_blocks;
mod unit_process;
mod whole_model;
mod worker;

pub use calibration::Calibration;
pub use cancelled::CancelledRequests;
pub use compare::{OutputDifference, compare_output};
pub use executor::{DeviceMemory, DeviceUse, PinnedMemory, UnitMemory, UnitResources};
pub use instance_slot::InstanceState;
pub use kept_places::InstancePlace;
pub use latency_summary::{LatencySummary, median_of_sorted, p99_of_sorted};
pub use memory::{HostMemory, SharedHostMemory, TensorMemory};
pub use model_loader::{LoadedModel, ModelLoader};
pub use model_run::{ExitPolicy, ExitTaken, RunResult};
pub use permits::{CorePermit, CorePermits, MachineCorePermits};
pub use program_source::ProgramSource;
pub use residency::{GpuBudget, WeightLimits, WeightPlace, WeightStatus, WeightUse};
pub use run_limits::RunLimits;
pub use run_memory::RunMemory;
pub use run_watch::RunWatch;
pub use start_forecast::StartForecast;
pub use supervisor::{
    DetachedInstances, InstanceStatus, NodeEvent, NodeOptions, NodeSupervisor, PingResult,
    UnitFacts,
};
pub use unit::LoadedUnit;
pub use unit_process::run_unit_process;
pub use whole_model::WholeModel;
pub use worker::{Heartbeat, LocalWorkers, LossReporter, NoLossReporter, Worker, WorkerParts};
