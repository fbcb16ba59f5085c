//! What is told of tasks, as the messages of gRPC.

use std::collections::HashMap;

use tessera_core::{Error, Result};

use super::generated as message;
use crate::protocol::{
    BACKEND, MODEL_FILE, PLATFORM, ParameterValue, ProtocolParameters, TensorMetadata,
    model_config, model_metadata,
};
use crate::service::{LoadOverrides, TaskInfo};
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

/// What a model is loaded with; parameters that are neither are between clients.
pub(super) fn read_overrides(
    map: HashMap<String, message::ModelRepositoryParameter>,
) -> Result<LoadOverrides> {
    use message::model_repository_parameter::ParameterChoice;

    let mut overrides = LoadOverrides::default();
    for (name, parameter) in map {
        match (name.strip_prefix("file:"), parameter.parameter_choice) {
            (None, Some(ParameterChoice::StringParam(config))) if name == "config" => {
                overrides.config = Some(config);
            }
            (None, _) if name == "config" => {
                return Err(Error::invalid("parameter \"config\" must be a string"));
            }
            (Some(file), Some(ParameterChoice::BytesParam(content))) => {
                overrides.files.insert(file.to_owned(), content);
            }
            (Some(_), _) => {
                return Err(Error::invalid(format!("parameter \"{name}\" must be bytes")));
            }
            (None, _) => {}
        }
    }
    Ok(overrides)
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
        properties: metadata
            .properties
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
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
    use message::model_instance_group::Kind;
    use message::model_version_policy::{Latest, PolicyChoice};

    let config = model_config(task)?;
    let scheduling_choice = config.batching.map(|(rows, max_queue_delay_microseconds)| {
        SchedulingChoice::DynamicBatching(message::ModelDynamicBatching {
            preferred_batch_size: vec![rows],
            max_queue_delay_microseconds,
            ..message::ModelDynamicBatching::default()
        })
    });
    let kind = if config.gpu.is_some() { Kind::Gpu } else { Kind::Cpu };
    let instance_group = (config.instances > 0).then(|| message::ModelInstanceGroup {
        name: config.name.clone(),
        kind: kind.into(),
        count: config.instances,
        gpus: config.gpu.into_iter().collect(),
        ..message::ModelInstanceGroup::default()
    });
    // As Triton says of every model; inputs are read into memory that units can read.
    let pinned = Some(message::model_optimization_policy::PinnedMemoryBuffer { enable: true });
    let latest = PolicyChoice::Latest(Latest { num_versions: 1 });
    Ok(message::ModelConfig {
        name: config.name,
        platform: PLATFORM.to_owned(),
        backend: BACKEND.to_owned(),
        version_policy: Some(message::ModelVersionPolicy { policy_choice: Some(latest) }),
        max_batch_size: config.max_batch_size,
        input: config
            .input
            .into_iter()
            .map(|input| message::ModelInput {
                name: input.name,
                data_type: input.data_type.0,
                format: input.format.0,
                dims: input.dims,
                reshape: input.reshape.map(|shape| message::ModelTensorReshape { shape }),
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
                reshape: output.reshape.map(|shape| message::ModelTensorReshape { shape }),
                label_filename: output.label_filename,
                ..message::ModelOutput::default()
            })
            .collect(),
        scheduling_choice,
        model_transaction_policy: Some(message::ModelTransactionPolicy { decoupled: false }),
        default_model_filename: MODEL_FILE.to_owned(),
        optimization: Some(message::ModelOptimizationPolicy {
            input_pinned_memory: pinned,
            output_pinned_memory: pinned,
            ..message::ModelOptimizationPolicy::default()
        }),
        instance_group: instance_group.into_iter().collect(),
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
        batch_stats: done
            .batches
            .iter()
            .map(|batch| message::InferBatchStatistics {
                batch_size: batch.rows,
                compute_input: total(batch.compute_input),
                compute_infer: total(batch.compute_infer),
                compute_output: total(batch.compute_output),
            })
            .collect(),
        ..message::ModelStatistics::default()
    }
}
