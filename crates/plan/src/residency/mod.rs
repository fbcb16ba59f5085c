//! Residency: which layers of a model are loaded into GPU memory, by which way, and which stay on
//! the host.
//!
//! A request for a model that is not on the GPU has to wait for its weights. Layers can run as soon
//! as their own weights are there; a layer whose weights are large and little used can run with
//! them left on the host, which also lets all later ones come sooner; and other GPUs can load parts
//! of the model and hand them over through NVLink. What is best follows from three times per layer:
//! to load it, to run it from GPU memory, and to run it from host memory (DeepPlan, EuroSys 2023).
//!
//! [`simulate_residency`] says what a [`ResidencyPlan`] costs; each [`ResidencyStrategy`] finds
//! one. [`eviction`] says which model has to go when there is no room for another.

mod change;
mod direct_host_access;
mod distribution;
pub mod eviction;
mod exact;
mod labels;
mod load_then_run;
mod memory;
mod parallel;
mod parallel_direct;
mod pipeline;
mod problem;
mod profile;
mod reassign;
mod relaxation;
mod search_model;
mod solution;
mod strategies;
mod timeline;
mod topology;

pub use direct_host_access::{DirectHostAccess, algorithm_1_as_printed};
pub use exact::ExactResidency;
pub use load_then_run::LoadThenRun;
pub use parallel::ParallelTransmission;
pub use parallel_direct::ParallelDirectHostAccess;
pub use pipeline::PipelinedLoading;
pub use problem::{NvLink, ResidencyLayer, ResidencyProblem, ServerGpu};
pub use profile::{named_profile, profile_names, random_residency_problem};
pub use solution::ResidencySolution;
pub use strategies::{
    ResidencyStrategy, find_residency_strategy, pipeline_us, residency_strategies,
};
pub use timeline::{
    ExecutedLayer, Residency, ResidencyPlan, ResidencyRun, TimeSpan, simulate_residency,
};
pub use topology::deepplan_server;
