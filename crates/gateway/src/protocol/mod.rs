//! What HTTP and gRPC share of the Open Inference Protocol: names, tensors as bytes, parameters,
//! and what is told of tasks.

mod classification;
mod datatype;
mod describe;
mod device_outputs;
mod input;
mod outputs;
mod parameters;
mod region_range;
mod response_parameters;
mod strings;
mod trace;
pub(crate) mod triton_wording;

pub use datatype::config_type_name;
pub(crate) use datatype::{datatype_name, is_json};
pub(crate) use describe::{
    BACKEND, ConfigTensor, MODEL_FILE, ModelConfig, PLATFORM, SERVER_NAME, SERVER_VERSION,
    TensorMetadata, collect_statistics, is_task_ready, list_repository, model_config,
    model_metadata, protocol_extensions,
};
pub(crate) use input::{InputHeader, check_unique_names, reshape_inputs, writable_bytes};
pub(crate) use outputs::{
    RequestedOutput, SelectedOutput, bytes_to_classify, check_requested, raw_bytes, select_outputs,
    tensor_on_host,
};
pub(crate) use parameters::{ParameterValue, ProtocolParameters};
pub(crate) use region_range::RegionRange;
pub(crate) use response_parameters::response_parameters;
pub(crate) use strings::decode_strings;
pub(crate) use trace::parse_traceparent;
