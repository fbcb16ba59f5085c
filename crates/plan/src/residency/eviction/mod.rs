//! Eviction: which instance of a model has to leave the GPU when there is no room for another.
//!
//! An instance that is evicted has to be loaded again when the next request for it comes. What that
//! costs is known (its reload time, as [`super::simulate_residency`] gives it for its plan), and
//! how often it will be paid can be guessed from how often there were requests. So the instance to
//! evict is the one whose reload time, times its rate of requests, is the least for the bytes that
//! it frees. The one that was used least recently, which the paper evicts, is often another.
//!
//! [`EvictionPolicy::choose_victims`] is the decision alone, for a runtime to call;
//! [`RequestRates`] is the guess that it needs. [`simulate_eviction`] simulates requests, to
//! compare policies.

mod problem;
mod rates;
mod simulator;
mod strategies;
mod victims;
mod workload;

pub use problem::{EvictionInstance, EvictionProblem, EvictionRequest};
pub use rates::RequestRates;
pub use simulator::{EvictionOutcome, simulate_eviction};
pub use strategies::{EvictionPolicy, eviction_policies};
pub use victims::ResidentInstance;
pub use workload::{draw_requests, random_eviction_problem};
