//! A task's work and configuration, as JSON.

use serde_json::{Value, json};
use tessera_dispatch::{DurationTotal, TaskStatistics};

use crate::protocol::{BACKEND, ConfigTensor, MODEL_FILE, ModelConfig, PLATFORM};
use crate::service::TaskInfo;

/// What a task did.
pub(super) fn statistics_json(task: &TaskInfo, done: &TaskStatistics) -> Value {
    let total = |total: DurationTotal| json!({"count": total.count, "ns": total.nanoseconds});
    let batches: Vec<Value> = done
        .batches
        .iter()
        .map(|batch| {
            json!({
                "batch_size": batch.rows,
                "compute_input": total(batch.compute_input),
                "compute_infer": total(batch.compute_infer),
                "compute_output": total(batch.compute_output),
            })
        })
        .collect();
    json!({
        "name": task.name,
        "version": task.version,
        "last_inference": done.last_inference_ms,
        "inference_count": done.inferences,
        "execution_count": done.executions,
        "inference_stats": {
            "success": total(done.success),
            "fail": total(done.fail),
            "queue": total(done.queue),
            "compute_input": total(done.compute_input),
            "compute_infer": total(done.compute_infer),
            "compute_output": total(done.compute_output),
            // There is no cache; clients read the numbers all the same.
            "cache_hit": total(DurationTotal::default()),
            "cache_miss": total(DurationTotal::default()),
        },
        "response_stats": {},
        "batch_stats": batches,
        "memory_usage": [],
    })
}

/// The configuration of a task.
pub(super) fn config_json(config: &ModelConfig) -> Value {
    let inputs: Vec<Value> = config
        .input
        .iter()
        .map(|input| {
            let json = json!({
                "name": input.name,
                "data_type": input.data_type.1,
                "format": input.format.1,
                "dims": input.dims,
                "is_shape_tensor": false,
                "allow_ragged_batch": false,
                "optional": input.optional,
                "is_non_linear_format_io": false,
            });
            with_reshape(json, input)
        })
        .collect();
    let outputs: Vec<Value> = config
        .output
        .iter()
        .map(|output| {
            let json = json!({
                "name": output.name,
                "data_type": output.data_type.1,
                "dims": output.dims,
                "label_filename": output.label_filename,
                "is_shape_tensor": false,
                "is_non_linear_format_io": false,
            });
            with_reshape(json, output)
        })
        .collect();
    let mut json = json!({
        "name": config.name,
        "platform": PLATFORM,
        "backend": BACKEND,
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": config.max_batch_size,
        "input": inputs,
        "output": outputs,
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": true},
            "output_pinned_memory": {"enable": true},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": false,
        },
        "instance_group": instance_groups(config),
        "default_model_filename": MODEL_FILE,
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": false},
    });
    // Whether the key is there is what clients look at.
    if let (Some((rows, delay)), Some(fields)) = (config.batching, json.as_object_mut()) {
        fields.insert(
            "dynamic_batching".into(),
            json!({
                "preferred_batch_size": [rows],
                "max_queue_delay_microseconds": delay,
                "preserve_ordering": false,
                "priority_levels": 0,
                "default_priority_level": 0,
                "priority_queue_policy": {},
            }),
        );
    }
    json
}

/// What an element without dimensions is in the model itself.
fn with_reshape(mut json: Value, tensor: &ConfigTensor) -> Value {
    if let (Some(shape), Some(fields)) = (&tensor.reshape, json.as_object_mut()) {
        fields.insert("reshape".into(), json!({ "shape": shape }));
    }
    json
}

/// How many instances there are of what; nothing where that is not known.
fn instance_groups(config: &ModelConfig) -> Vec<Value> {
    let group = json!({
        "name": config.name,
        "kind": if config.gpu.is_some() { "KIND_GPU" } else { "KIND_CPU" },
        "count": config.instances,
        "gpus": config.gpu.into_iter().collect::<Vec<i32>>(),
        "secondary_devices": [],
        "profile": [],
        "passive": false,
        "host_policy": "",
    });
    (config.instances > 0).then_some(group).into_iter().collect()
}
