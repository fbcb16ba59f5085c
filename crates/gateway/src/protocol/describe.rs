//! What clients are told of the server and of tasks: metadata, configuration, statistics, index.

use std::collections::BTreeMap;

use serde::Serialize;
use tessera_core::{Device, Dim, Result};
use tessera_graph::TensorPort;

use super::datatype::{config_datatype, datatype_name};
use crate::service::{InferenceService, TaskInfo, TaskState};
use tessera_dispatch::TaskStatistics;

/// The server's name.
pub(crate) const SERVER_NAME: &str = "tessera";
/// The server's version.
pub(crate) const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");
/// What runs a task, as Triton calls it for the models that are served here: clients compare it.
pub(crate) const PLATFORM: &str = "onnxruntime_onnx";
/// The same as the back end of a configuration.
pub(crate) const BACKEND: &str = "onnxruntime";
/// What a model's file is called where its configuration says nothing else.
pub(crate) const MODEL_FILE: &str = "model.onnx";
/// The extensions of the protocol that are there on any machine, by the names that clients look
/// for.
const EXTENSIONS: &[&str] = &[
    "classification",
    "model_repository",
    "model_configuration",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

/// The extensions of the protocol that are there, by the names that clients look for.
pub(crate) fn protocol_extensions() -> Vec<&'static str> {
    // Looked for once: the driver is opened by the first who asks.
    let on_gpu = tessera_cuda::is_cuda_available().then_some("cuda_shared_memory");
    EXTENSIONS.iter().copied().chain(on_gpu).collect()
}

/// What a client must know to call a task.
#[derive(Debug, Serialize)]
pub(crate) struct ModelMetadata {
    pub(crate) name: String,
    pub(crate) versions: Vec<String>,
    pub(crate) platform: &'static str,
    pub(crate) inputs: Vec<TensorMetadata>,
    pub(crate) outputs: Vec<TensorMetadata>,
    pub(crate) properties: BTreeMap<&'static str, String>,
}

/// What a client must know of an input or an output.
#[derive(Debug, Serialize)]
pub(crate) struct TensorMetadata {
    pub(crate) name: String,
    pub(crate) datatype: &'static str,
    pub(crate) shape: Vec<i64>,
}

/// The configuration of a task, as Triton's clients read it.
#[derive(Debug)]
pub(crate) struct ModelConfig {
    pub(crate) name: String,
    pub(crate) max_batch_size: i32,
    pub(crate) input: Vec<ConfigTensor>,
    pub(crate) output: Vec<ConfigTensor>,
    /// The batch that is waited for and the microseconds it is waited for, where requests are
    /// put together.
    pub(crate) batching: Option<(i32, u64)>,
    /// Instances of each unit; 0 where that is not known.
    pub(crate) instances: i32,
    /// The GPU that they run on.
    pub(crate) gpu: Option<i32>,
}

/// An input or an output in a configuration.
#[derive(Debug)]
pub(crate) struct ConfigTensor {
    pub(crate) name: String,
    /// The element type: its number over gRPC, its name over HTTP.
    pub(crate) data_type: (i32, &'static str),
    /// Without the dimension of the batch. Never empty: what has none is one element, and its own
    /// shape is `reshape`.
    pub(crate) dims: Vec<i64>,
    /// The shape without that of the batch, where it is not `dims`.
    pub(crate) reshape: Option<Vec<i64>>,
    /// How an image is laid out: number over gRPC, name over HTTP.
    pub(crate) format: (i32, &'static str),
    /// The file with the labels of classes; empty where there is none.
    pub(crate) label_filename: String,
    /// Whether a request may leave it out.
    pub(crate) optional: bool,
}

/// A line of the repository's index.
#[derive(Debug, Serialize)]
pub(crate) struct IndexEntry {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) version: String,
    pub(crate) state: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
}

/// The metadata of a task.
pub(crate) fn model_metadata(task: TaskInfo) -> Result<ModelMetadata> {
    let batched = task.max_batch_size > 0;
    let tensors = |kind: &str, ports: &[TensorPort]| -> Result<Vec<TensorMetadata>> {
        ports
            .iter()
            .map(|port| {
                let datatype = datatype_name(port.tensor_type.dtype).map_err(|error| {
                    error.with_context(format_args!("{kind} \"{}\"", port.name))
                })?;
                let mut shape = dimension_sizes(port, batched);
                if let (true, Some(first)) = (batched, shape.first_mut()) {
                    *first = -1;
                }
                Ok(TensorMetadata { name: port.name.clone(), datatype, shape })
            })
            .collect()
    };
    Ok(ModelMetadata {
        inputs: tensors("input", &task.inputs)?,
        outputs: tensors("output", &task.outputs)?,
        properties: BTreeMap::from([("max_batch_size", task.max_batch_size.to_string())]),
        name: task.name,
        versions: vec![task.version],
        platform: PLATFORM,
    })
}

/// The configuration of a task.
pub(crate) fn model_config(task: TaskInfo) -> Result<ModelConfig> {
    let batched = task.max_batch_size > 0;
    let tensors = |kind: &str, ports: &[TensorPort]| -> Result<Vec<ConfigTensor>> {
        ports
            .iter()
            .map(|port| {
                let data_type = config_datatype(port.tensor_type.dtype).map_err(|error| {
                    error.with_context(format_args!("{kind} \"{}\"", port.name))
                })?;
                let mut dims: Vec<i64> =
                    dimension_sizes(port, batched).into_iter().skip(usize::from(batched)).collect();
                let reshape = dims.is_empty().then(Vec::new);
                if dims.is_empty() {
                    dims.push(1);
                }
                let labels = task.description.labels.get(&port.name);
                Ok(ConfigTensor {
                    name: port.name.clone(),
                    data_type,
                    dims,
                    reshape,
                    format: image_format(task.description.formats.get(&port.name)),
                    label_filename: labels.map(|labels| labels.file.clone()).unwrap_or_default(),
                    optional: port.default.is_some(),
                })
            })
            .collect()
    };
    Ok(ModelConfig {
        input: tensors("input", &task.inputs)?,
        output: tensors("output", &task.outputs)?,
        name: task.name,
        max_batch_size: clamp_size(task.max_batch_size),
        batching: task.batching.map(|(rows, delay)| {
            (clamp_size(rows), u64::try_from(delay.as_micros()).unwrap_or(u64::MAX))
        }),
        instances: clamp_size(task.description.instances),
        gpu: match task.description.device {
            Device::Cuda(number) => i32::try_from(number).ok(),
            Device::Cpu => None,
        },
    })
}

/// What a task did, or every task that is loaded for the empty name.
pub(crate) fn collect_statistics(
    service: &dyn InferenceService,
    name: &str,
    version: &str,
) -> Result<Vec<(TaskInfo, TaskStatistics)>> {
    if !name.is_empty() {
        let task = service.find_task(name, version)?;
        let statistics = service.task_statistics(name)?;
        return Ok(vec![(task, statistics)]);
    }
    let is_served = |task: &TaskInfo| !matches!(task.state, TaskState::Unavailable(_));
    let loaded = service.list_tasks().into_iter().filter(is_served);
    // A task may go while we ask; the others are told all the same.
    Ok(loaded
        .filter_map(|task| {
            let statistics = service.task_statistics(&task.name).ok()?;
            Some((task, statistics))
        })
        .collect())
}

/// Whether a task answers; one that is not there does not.
pub(crate) fn is_task_ready(service: &dyn InferenceService, name: &str, version: &str) -> bool {
    service.find_task(name, version).is_ok_and(|task| task.state == TaskState::Ready)
}

/// Every task there is, or those that answer.
pub(crate) fn list_repository(service: &dyn InferenceService, only_ready: bool) -> Vec<IndexEntry> {
    let tasks = service.list_tasks().into_iter();
    tasks
        .filter(|task| !only_ready || task.state == TaskState::Ready)
        .map(|task| {
            let (state, reason) = match task.state {
                TaskState::Ready => ("READY", String::new()),
                TaskState::Loading(reason) => ("LOADING", reason),
                TaskState::Unavailable(reason) => ("UNAVAILABLE", reason),
            };
            IndexEntry { name: task.name, version: task.version, state, reason }
        })
        .collect()
}

/// The sizes of a port's dimensions, -1 for those that are not fixed. Of an unknown rank the
/// protocol knows nothing: it is told as one open dimension beside that of the batch.
fn dimension_sizes(port: &TensorPort, batched: bool) -> Vec<i64> {
    let size = |dim: &Dim| dim.fixed_size().and_then(|size| i64::try_from(size).ok()).unwrap_or(-1);
    match &port.tensor_type.dims {
        Some(dims) => dims.iter().map(size).collect(),
        None => vec![-1; 1 + usize::from(batched)],
    }
}

/// Number and name of how an image is laid out.
fn image_format(format: Option<&String>) -> (i32, &'static str) {
    match format.map(String::as_str) {
        Some("FORMAT_NHWC") => (1, "FORMAT_NHWC"),
        Some("FORMAT_NCHW") => (2, "FORMAT_NCHW"),
        _ => (0, "FORMAT_NONE"),
    }
}

fn clamp_size(size: usize) -> i32 {
    i32::try_from(size).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tessera_core::{DType, ErrorKind, TensorType};

    use super::*;

    fn task(max_batch_size: usize, dtype: DType) -> TaskInfo {
        let dims = vec![Dim::Symbol("n".into()), Dim::Fixed(3), Dim::Unknown];
        let tensor_type = TensorType::new(dtype, dims);
        TaskInfo {
            name: "t".into(),
            version: "1".into(),
            state: TaskState::Ready,
            inputs: vec![TensorPort {
                name: "x".into(),
                tensor_type,
                is_row_wise: true,
                default: None,
            }],
            outputs: vec![TensorPort {
                name: "y".into(),
                tensor_type: TensorType::of_any_shape(DType::String),
                is_row_wise: true,
                default: None,
            }],
            max_batch_size,
            batching: Some((8, Duration::from_millis(2))),
            description: Arc::default(),
        }
    }

    #[test]
    fn dims_are_never_empty() {
        let mut scalar = task(8, DType::F32);
        scalar.inputs[0].tensor_type = TensorType::new(DType::F32, vec![Dim::Unknown]);
        let config = model_config(scalar.clone()).unwrap();
        assert_eq!((&config.input[0].dims, &config.input[0].reshape), (&vec![1], &Some(vec![])));
        assert_eq!(config.output[0].reshape, None);
        scalar.max_batch_size = 0;
        scalar.inputs[0].tensor_type = TensorType::new(DType::F32, vec![]);
        assert_eq!(model_config(scalar).unwrap().input[0].dims, [1]);
    }

    #[test]
    fn the_dimension_of_the_batch_is_in_the_metadata_and_not_in_the_configuration() {
        let metadata = model_metadata(task(8, DType::F32)).unwrap();
        assert_eq!(metadata.inputs[0].shape, [-1, 3, -1]);
        assert_eq!(metadata.outputs[0].shape, [-1, -1]);
        let config = model_config(task(8, DType::F32)).unwrap();
        assert_eq!(config.input[0].dims, [3, -1]);
        assert_eq!(config.output[0].dims, [-1]);
        assert_eq!(config.batching, Some((8, 2000)));
    }

    #[test]
    fn without_a_batch_both_have_every_dimension() {
        let metadata = model_metadata(task(0, DType::I8)).unwrap();
        assert_eq!(metadata.inputs[0].shape, [-1, 3, -1]);
        assert_eq!(metadata.outputs[0].shape, [-1]);
        let config = model_config(task(0, DType::I8)).unwrap();
        assert_eq!(config.input[0].dims, [-1, 3, -1]);
        assert_eq!(config.input[0].data_type, (6, "TYPE_INT8"));
        assert_eq!(config.output[0].data_type, (13, "TYPE_STRING"));
    }

    #[test]
    fn memory_of_gpus_is_an_extension_where_there_is_one() {
        let extensions = protocol_extensions();
        assert!(extensions.contains(&"system_shared_memory"));
        assert_eq!(extensions.contains(&"cuda_shared_memory"), tessera_cuda::is_cuda_available());
    }

    #[test]
    fn a_dtype_that_the_protocol_does_not_know_names_the_input() {
        let error = model_metadata(task(0, DType::I4)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().starts_with("input \"x\": "), "{error}");
    }
}
