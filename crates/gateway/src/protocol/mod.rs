//! What HTTP and gRPC share of the Open Inference Protocol: names, tensors as bytes, parameters,
//! and what is told of tasks.

mod answer;
mod classification;
mod datatype;
mod describe;
mod input;
mod outputs;
mod parameters;
mod raw;
mod trace;

pub(crate) use answer::answer_parameters;
pub(crate) use datatype::datatype_name;
pub(crate) use describe::{
    ModelConfig, PLATFORM, SERVER_NAME, SERVER_VERSION, TensorMetadata, extensions, index,
    is_task_ready, model_config, model_metadata, statistics,
};
pub(crate) use input::{InputHeader, check_names, writable};
pub(crate) use outputs::{Output, Wanted, check_wanted, pick};
pub(crate) use parameters::{Parameter, Parameters};
pub(crate) use raw::{decode_strings, is_json, raw_bytes};
pub(crate) use trace::parse_traceparent;
