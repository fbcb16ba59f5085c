//! A model that a client loads with a configuration or files of its own: stored in the repository,
//! and defined as a task.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tessera_control::{DeviceChoice, REPLICAS, ROWS, TaskDefinition, WAIT_MS};
use tessera_core::{Device, Dim, Error, ErrorKind, Result};
use tessera_deploy::{Batching, BatchingChoice};
use tessera_gateway::{LoadOverrides, config_type_name};
use tessera_graph::{BlockGraph, SharedModel, TensorPort, share_blocks};
use tessera_repository::unfinished_files::temporary_folder;
use tessera_repository::{
    ConfiguredTensor, ModelConfigFile, ModelDescription, ModelFile, ModelShapes, NamedFile,
    Repository,
};

use crate::repository_models::keep_segments;

/// Rows of a batch where a configuration names none, as batches are put together by themselves.
const USUAL_BATCH: u64 = 16;

/// The last GPU that intent can name.
const LAST_GPU: u32 = 999;

/// Puts what the client brings into the repository; returns the task that serves it.
pub(super) fn store_loaded_model(
    repository: &Path,
    name: &str,
    overrides: &LoadOverrides,
) -> Result<TaskDefinition> {
    let stored = store_model(repository, name, overrides);
    stored.map_err(|error| error.with_context(format_args!("model \"{name}\"")))
}

fn store_model(repository: &Path, name: &str, overrides: &LoadOverrides) -> Result<TaskDefinition> {
    tessera_repository::check_model_name(name)
        .map_err(|error| Error::invalid(error.to_string()))?;
    let Some(config) = &overrides.config else {
        return Err(Error::invalid("files are given without \"config\", expected both"));
    };
    let config = ModelConfigFile::parse_json(config)?;
    check_config(&config, name)?;
    let task = define_task(&config, name)?;
    let repository = Repository::open(repository)?;
    if overrides.files.is_empty() {
        let graph = repository.read_model(name)?;
        check_tensors(&config, &graph)?;
        let known = repository.read_description(name)?;
        let read_known = |file: &str| {
            let labels = known.labels.values().find(|labels| labels.file == file);
            labels.map(|labels| labels.labels.join("\n")).ok_or_else(|| missing_file(file))
        };
        let description = ModelDescription::from_config(&config, read_known)?;
        repository.put_description(name, &description)?;
        return Ok(task);
    }
    let read_given = |file: &str| {
        let content = overrides.files.get(file).ok_or_else(|| missing_file(file))?;
        String::from_utf8(content.to_vec())
            .map_err(|_| Error::invalid(format!("file \"{file}\" is no text")))
    };
    let description = ModelDescription::from_config(&config, read_given)?;
    let folder = temporary_folder()?;
    let path = write_files(folder.path(), &config, overrides)?;
    let file = NamedFile { name: name.to_owned(), path };
    let model = ModelFile::read_named(&file, &ModelShapes::default(), &[], &mut BTreeSet::new());
    // The client knows nothing of our folders.
    let unnamed = |error: Error| {
        let text = error.to_string().replace(&format!("{}/", folder.path().display()), "");
        Error::new(as_bad_request(error.kind()), text)
    };
    let model = model.map_err(unnamed)?;
    model.check_cuttable().map_err(unnamed)?;
    let view = SharedModel { graph: &model.graph, types: &model.types, exits: &model.exits };
    let views = [view];
    let shared = share_blocks(&views, &mut |_| {}).map_err(unnamed)?;
    let Some(partition) = shared.partitions.first() else {
        return Err(Error::engine("it was cut into nothing"));
    };
    check_tensors(&config, &partition.graph)?;
    repository.put_model(name, partition)?;
    keep_segments(&repository, name, &views[0], partition)?;
    repository.put_description(name, &description)?;
    Ok(task)
}

/// A model that makes no sense is the client's mistake here, whatever it is elsewhere.
fn as_bad_request(kind: ErrorKind) -> ErrorKind {
    match kind {
        ErrorKind::NotFound | ErrorKind::Usage | ErrorKind::Io => ErrorKind::Invalid,
        other => other,
    }
}

fn missing_file(file: &str) -> Error {
    Error::invalid(format!("the configuration names the file \"{file}\", which is not there"))
}

/// Refuses a configuration of something else.
fn check_config(config: &ModelConfigFile, name: &str) -> Result<()> {
    if !config.name.is_empty() && config.name != name {
        let message = format!("the configuration is one of \"{}\"", config.name);
        return Err(Error::invalid(message));
    }
    for (what, given, known) in [
        ("platform", &config.platform, "onnxruntime_onnx"),
        ("backend", &config.backend, "onnxruntime"),
    ] {
        if !given.is_empty() && given != known {
            let message = format!("{what} \"{given}\" is not there, expected \"{known}\"");
            return Err(Error::unsupported(message));
        }
    }
    Ok(())
}

/// The task that a configuration asks for; what it does not say is as the server has it.
fn define_task(config: &ModelConfigFile, name: &str) -> Result<TaskDefinition> {
    let mut task = TaskDefinition::of_model(name);
    // What is kept has to be readable as intent.
    let check = |what: &str, count: u64, range: &RangeInclusive<u64>| {
        let (least, most) = (range.start(), range.end());
        let count = usize::try_from(count).ok().filter(|_| range.contains(&count));
        count.ok_or_else(|| Error::invalid(format!("{what} must be {least} to {most}")))
    };
    match (config.max_batch_size, &config.batching) {
        (Some(0), _) => task.batching = Some(BatchingChoice::Off),
        (rows, batching) => {
            task.max_rows = rows.map(|rows| check("max_batch_size", rows, &ROWS)).transpose()?;
            if let Some(batching) = batching {
                let preferred = batching.preferred_rows.iter().copied().max();
                let most = preferred.or(rows).unwrap_or(USUAL_BATCH);
                // Intent knows whole milliseconds.
                let wait_ms = batching.max_delay_us.saturating_add(500) / 1000;
                if !WAIT_MS.contains(&wait_ms) {
                    return Err(Error::invalid(format!(
                        "max_queue_delay_microseconds must be at most {}",
                        WAIT_MS.end() * 1000
                    )));
                }
                task.batching = Some(BatchingChoice::On(Batching {
                    max_rows: check("preferred_batch_size", most, &ROWS)?,
                    max_wait: Duration::from_millis(wait_ms),
                }));
            }
        }
    }
    if let Some(instances) = &config.instances {
        task.replicas = Some(check("count of an instance_group", instances.count, &REPLICAS)?);
        task.device = match instances.kind.as_str() {
            "KIND_CPU" => Some(DeviceChoice::All(Device::Cpu)),
            "KIND_GPU" => {
                let gpu = instances.gpu.unwrap_or(0);
                if gpu > LAST_GPU {
                    return Err(Error::invalid(format!("there is no GPU {gpu}")));
                }
                Some(DeviceChoice::All(Device::Cuda(gpu)))
            }
            _ => None,
        };
    }
    Ok(task)
}

/// Refuses tensors that the model does not have, or has in another way.
fn check_tensors(config: &ModelConfigFile, graph: &BlockGraph) -> Result<()> {
    let outputs: Vec<TensorPort> = graph.outputs.iter().map(|(port, _)| port.clone()).collect();
    for (kind, given, ports) in
        [("input", &config.inputs, &graph.inputs), ("output", &config.outputs, &outputs)]
    {
        for tensor in given {
            let Some(port) = ports.iter().find(|port| port.name == tensor.name) else {
                let known: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
                return Err(Error::invalid(format!(
                    "it has no {kind} \"{}\", it has {}",
                    tensor.name,
                    known.join(", ")
                )));
            };
            check_tensor(tensor, port)
                .map_err(|error| error.with_context(format_args!("{kind} \"{}\"", tensor.name)))?;
        }
    }
    Ok(())
}

fn check_tensor(tensor: &ConfiguredTensor, port: &TensorPort) -> Result<()> {
    let expected = config_type_name(port.tensor_type.dtype)?;
    if !tensor.data_type.is_empty() && tensor.data_type != expected {
        let message = format!(
            "data_type {} in the configuration, the model has {expected}",
            tensor.data_type
        );
        return Err(Error::invalid(message));
    }
    let dims = port.tensor_type.dims.as_deref().unwrap_or_default();
    // With or without that of the batch; what has another rank is reshaped.
    let offset = match dims.len().checked_sub(tensor.dims.len()) {
        Some(offset @ (0 | 1)) => offset,
        _ => return Ok(()),
    };
    let is_other = |(dim, &given): (&Dim, &i64)| {
        let fixed = dim.fixed_size().and_then(|size| i64::try_from(size).ok());
        fixed.is_some_and(|size| given >= 0 && given != size)
    };
    if dims[offset..].iter().zip(&tensor.dims).any(is_other) {
        return Err(Error::invalid(format!(
            "dims {:?} in the configuration, the model has {}",
            tensor.dims, port.tensor_type
        )));
    }
    Ok(())
}

/// Writes the files of a model; returns where the model is among them.
fn write_files(
    folder: &Path,
    config: &ModelConfigFile,
    overrides: &LoadOverrides,
) -> Result<PathBuf> {
    let wanted = if config.model_file.is_empty() { "model.onnx" } else { &config.model_file };
    let mut newest: Option<(u64, PathBuf)> = None;
    for (file, content) in &overrides.files {
        let relative = Path::new(file);
        let is_inside = relative.components().all(|part| matches!(part, Component::Normal(_)));
        if file.is_empty() || !is_inside || file.contains('\0') {
            return Err(Error::invalid(format!("file \"{file}\" is outside the model's folder")));
        }
        let path = folder.join(relative);
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            std::fs::write(&path, content)
        };
        write().map_err(|error| Error::from_io(format!("file \"{file}\""), &error))?;
        let version = relative.parent().and_then(|parent| parent.to_str()?.parse::<u64>().ok());
        let is_model = relative.file_name() == Some(wanted.as_ref());
        if let (Some(version), true) = (version, is_model)
            && newest.as_ref().is_none_or(|(known, _)| *known < version)
        {
            newest = Some((version, path));
        }
    }
    newest.map(|(_, path)| path).ok_or_else(|| {
        Error::invalid(format!("there is no file \"VERSION/{wanted}\", expected file:1/{wanted}"))
    })
}
