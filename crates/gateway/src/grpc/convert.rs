//! What is told of tasks, as the messages of gRPC.

use std::collections::HashMap;

use tessera_core::Result;

use super::generated as message;
use crate::protocol::{
    PLATFORM, Parameter, Parameters, TensorMetadata, model_config, model_metadata,
};
use crate::service::{Spent, TaskInfo, TaskStatistics};
use message::infer_parameter::ParameterChoice;

/// Parameters as gRPC has them; those without a value are not there.
pub(super) fn parameters(map: HashMap<String, message::InferParameter>) -> Parameters {
    map.into_iter()
        .filter_map(|(name, parameter)| {
            let value = match parameter.parameter_choice? {
                ParameterChoice::BoolParam(flag) => Parameter::Bool(flag),
                ParameterChoice::Int64Param(integer) => Parameter::Integer(integer.into()),
                ParameterChoice::Uint64Param(integer) => Parameter::Integer(integer.into()),
                ParameterChoice::DoubleParam(number) => Parameter::Float(number),
                ParameterChoice::StringParam(text) => Parameter::String(text),
            };
            Some((name, value))
        })
        .collect()
}

/// A parameter of a response.
pub(super) fn parameter(value: Parameter) -> message::InferParameter {
    let parameter_choice = match value {
        Parameter::Bool(flag) => Some(ParameterChoice::BoolParam(flag)),
        Parameter::Integer(integer) => i64::try_from(integer).ok().map(ParameterChoice::Int64Param),
        Parameter::Float(number) => Some(ParameterChoice::DoubleParam(number)),
        Parameter::String(text) => Some(ParameterChoice::StringParam(text)),
        Parameter::Other => None,
    };
    message::InferParameter { parameter_choice }
}

/// The metadata of a task.
pub(super) fn metadata(task: TaskInfo) -> Result<message::ModelMetadataResponse> {
    let metadata = model_metadata(task)?;
    Ok(message::ModelMetadataResponse {
        name: metadata.name,
        versions: metadata.versions,
        platform: metadata.platform.to_owned(),
        inputs: tensors(metadata.inputs),
        outputs: tensors(metadata.outputs),
    })
}

fn tensors(told: Vec<TensorMetadata>) -> Vec<message::model_metadata_response::TensorMetadata> {
    told.into_iter()
        .map(|tensor| message::model_metadata_response::TensorMetadata {
            name: tensor.name,
            datatype: tensor.datatype.to_owned(),
            shape: tensor.shape,
        })
        .collect()
}

/// The configuration of a task.
pub(super) fn config(task: TaskInfo) -> Result<message::ModelConfig> {
    use message::model_config::SchedulingChoice;
    use message::model_version_policy::{Latest, PolicyChoice};

    let config = model_config(task)?;
    let scheduling_choice = config.batching.map(|(rows, max_queue_delay_microseconds)| {
        SchedulingChoice::DynamicBatching(message::ModelDynamicBatching {
            preferred_batch_size: vec![rows],
            max_queue_delay_microseconds,
        })
    });
    let latest = PolicyChoice::Latest(Latest { num_versions: 1 });
    Ok(message::ModelConfig {
        name: config.name,
        platform: PLATFORM.to_owned(),
        backend: PLATFORM.to_owned(),
        version_policy: Some(message::ModelVersionPolicy { policy_choice: Some(latest) }),
        max_batch_size: config.max_batch_size,
        input: config
            .input
            .into_iter()
            .map(|input| message::ModelInput {
                name: input.name,
                data_type: input.data_type.0,
                dims: input.dims,
            })
            .collect(),
        output: config
            .output
            .into_iter()
            .map(|output| message::ModelOutput {
                name: output.name,
                data_type: output.data_type.0,
                dims: output.dims,
            })
            .collect(),
        scheduling_choice,
        model_transaction_policy: Some(message::ModelTransactionPolicy { decoupled: false }),
    })
}

/// What a task did.
pub(super) fn statistics(task: TaskInfo, done: &TaskStatistics) -> message::ModelStatistics {
    let spent = |spent: Spent| {
        Some(message::StatisticDuration { count: spent.count, ns: spent.nanoseconds })
    };
    message::ModelStatistics {
        name: task.name,
        version: task.version,
        last_inference: done.last_inference_ms,
        inference_count: done.inferences,
        execution_count: done.executions,
        inference_stats: Some(message::InferStatistics {
            success: spent(done.success),
            fail: spent(done.fail),
            queue: spent(done.queue),
            compute_input: spent(done.compute_input),
            compute_infer: spent(done.compute_infer),
            compute_output: spent(done.compute_output),
            // There is no cache; clients read the numbers all the same.
            cache_hit: spent(Spent::default()),
            cache_miss: spent(Spent::default()),
        }),
        batch_stats: Vec::new(),
    }
}
