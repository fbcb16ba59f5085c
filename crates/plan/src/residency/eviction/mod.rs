//! Eviction: which instance of a model has to leave the GPU when there is no room for another.
//!
//! An instance that is evicted has to be loaded again when the next request for it comes. What that costs
//! is known (its reload time, as [`super::simulate`] gives it for its plan), and how often it will be paid
//! can be guessed from how often there were requests. So the instance to evict is the one whose reload
//! time, times its rate of requests, is the least for the bytes that it frees. The one that was used least
//! recently, which the paper evicts, is often another.
//!
//! [`Policy::evict`] is the decision alone, for a runtime to call; [`Rates`] is the guess that it needs.
//! [`simulate`] plays requests through, to compare policies.

mod policy;
mod problem;
mod rates;
mod simulator;
mod workload;

pub use policy::{Policy, Resident};
pub use problem::{Instance, Problem, Request};
pub use rates::Rates;
pub use simulator::{Outcome, simulate};
pub use workload::{draw, random};
