//! What is told of tasks, as the messages of gRPC.

use std::collections::HashMap;

use tessera_core::Result;

use super::generated as message;
use crate::protocol::{
    PLATFORM, ParameterValue, ProtocolParameters, TensorMetadata, model_config, model_metadata,
};
use crate::service::TaskInfo;
use message::infer_parameter::ParameterChoice;
use tessera_dispatch::{DurationTotal, TaskStatistics};

/// Parameters as gRPC has them; those without a value are not there.
pub(super) fn read_parameters(map: HashMap<String, message::InferParameter>) -> ProtocolParameters {
    map.into_iter()
        .filter_map(|(name, parameter)| {
            let value = match parameter.parameter_choice? {
                ParameterChoice::BoolParam(flag) => ParameterValue::Bool(flag),
                ParameterChoice::Int64Param(integer) => ParameterValue::Integer(integer.into()),
                ParameterChoice::Uint64Param(integer) => ParameterValue::Integer(integer.into()),
                ParameterChoice::DoubleParam(number) => ParameterValue::Float(number),
                ParameterChoice::StringParam(text) => ParameterValue::String(text),
            };
            Some((name, value))
        })
        .collect()
}

/// A parameter of a response.
pub(super) fn write_parameter(value: ParameterValue) -> message::InferParameter {
    let parameter_choice = match value {
        ParameterValue::Bool(flag) => Some(ParameterChoice::BoolParam(flag)),
        ParameterValue::Integer(integer) => {
            i64::try_from(integer).ok().map(ParameterChoice::Int64Param)
        }
        ParameterValue::Float(number) => Some(ParameterChoice::DoubleParam(number)),
        ParameterValue::String(text) => Some(ParameterChoice::StringParam(text)),
        ParameterValue::Other => None,
    };
    message::InferParameter { parameter_choice }
}

/// The metadata of a task.
pub(super) fn metadata_message(task: TaskInfo) -> Result<message::ModelMetadataResponse> {
    let metadata = model_metadata(task)?;
    Ok(message::ModelMetadataResponse {
        name: metadata.name,
        versions: metadata.versions,
        platform: metadata.platform.to_owned(),
        inputs: tensor_metadata(metadata.inputs),
        outputs: tensor_metadata(metadata.outputs),
        ..message::ModelMetadataResponse::default()
    })
}

fn tensor_metadata(
    tensors: Vec<TensorMetadata>,
) -> Vec<message::model_metadata_response::TensorMetadata> {
    tensors
        .into_iter()
        .map(|tensor| message::model_metadata_response::TensorMetadata {
            name: tensor.name,
            datatype: tensor.datatype.to_owned(),
            shape: tensor.shape,
        })
        .collect()
}

/// The configuration of a task.
pub(super) fn config_message(task: TaskInfo) -> Result<message::ModelConfig> {
    use message::model_config::SchedulingChoice;
    use message::model_version_policy::{Latest, PolicyChoice};

    let config = model_config(task)?;
    let scheduling_choice = config.batching.map(|(rows, max_queue_delay_microseconds)| {
        SchedulingChoice::DynamicBatching(message::ModelDynamicBatching {
            preferred_batch_size: vec![rows],
            max_queue_delay_microseconds,
            ..message::ModelDynamicBatching::default()
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
                optional: input.optional,
                ..message::ModelInput::default()
            })
            .collect(),
        output: config
            .output
            .into_iter()
            .map(|output| message::ModelOutput {
                name: output.name,
                data_type: output.data_type.0,
                dims: output.dims,
                ..message::ModelOutput::default()
            })
            .collect(),
        scheduling_choice,
        model_transaction_policy: Some(message::ModelTransactionPolicy { decoupled: false }),
        ..message::ModelConfig::default()
    })
}

/// What a task did.
pub(super) fn statistics_message(
    task: TaskInfo,
    done: &TaskStatistics,
) -> message::ModelStatistics {
    let total = |total: DurationTotal| {
        Some(message::StatisticDuration { count: total.count, ns: total.nanoseconds })
    };
    message::ModelStatistics {
        name: task.name,
        version: task.version,
        last_inference: done.last_inference_ms,
        inference_count: done.inferences,
        execution_count: done.executions,
        inference_stats: Some(message::InferStatistics {
            success: total(done.success),
            fail: total(done.fail),
            queue: total(done.queue),
            compute_input: total(done.compute_input),
            compute_infer: total(done.compute_infer),
            compute_output: total(done.compute_output),
            // There is no cache; clients read the numbers all the same.
            cache_hit: total(DurationTotal::default()),
            cache_miss: total(DurationTotal::default()),
        }),
        ..message::ModelStatistics::default()
    }
}
