//! Runs blocks: loads the graph of a model, runs it, takes exits, and measures.

#![forbid(unsafe_code)]

mod buffers;
mod compare;
mod load;
mod measure;
mod run;
mod source;

pub use compare::{Difference, compare};
pub use load::{LoadedModel, Loader};
pub use measure::{Summary, median, p99};
pub use run::{ExitTaken, RunOptions, RunResult};
pub use source::ProgramSource;
