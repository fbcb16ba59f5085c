//! What a command of the one binary is given: flags that several have in common, files of inputs
//! and of problems, the user's interrupt, and a client of control planes.
//!
//! Below the commands and the benchmarks, which mount these flags among their own. What serves
//! knows nothing of it: a server is given values and a shutdown.

#![forbid(unsafe_code)]

mod byte_size;
mod control_client;
mod engine_arguments;
mod image_file;
pub mod inputs;
pub mod interrupt;
mod model_arguments;
pub mod npy;
mod parsers;
pub mod problem_file;
mod request_body;
mod time_limit;

pub use byte_size::parse_byte_size;
pub use control_client::{ControlClient, HttpMethod};
pub use engine_arguments::{CudaArguments, EngineArguments};
pub use model_arguments::{ModelArguments, RepositoryArgument, SplitArguments, parse_shapes};
pub use parsers::{flag_error, parse_engine, parse_isolation, parse_seconds};
pub use request_body::{RequestBody, Upload};
pub use time_limit::{TimeLimit, plan_timed};
