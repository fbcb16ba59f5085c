//! The optimised form of a block, with its weights in a file that is mapped.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ort::AsPointer;
use ort::session::Session as OrtSession;
use ort::session::builder::{GraphOptimizationLevel, PrepackedWeights, SessionBuilder};
use prost::Message;
use tessera_core::{ContentHash, DType, Error, Result, Tensor};
use tessera_graph::WeightRef;
use tessera_graph::onnx::{ModelProto, NodeProto};

use super::external_weights::{MODEL_FILE, WEIGHTS_FILE, is_external, weight_content};
use super::ort_value::{OrtValue, check_status};
use super::session_builder::engine_error;
use super::weight_layout::{self, WeightLayout};
use super::{aligned_weights, blocked_layout, memcpy_removal};
use crate::weight_parts::WeightParts;
use crate::working_folder::working_folder_in;
use crate::{FileMapping, LoadOptions, Program, ProgramWeight, SharedFileMapping};

/// Constants up to this size stay in the optimised model; larger ones are references.
const INLINE_BYTES: usize = 1024;

/// Name of the file with the hash of the others.
const HASH_FILE: &str = "hash";

/// What ONNX Runtime made of a block, ready to be loaded any number of times.
pub(super) struct PreparedBlock {
    model: Vec<u8>,
    weights: Vec<(CString, Tensor)>,
    /// Length of the file that the weights came from.
    file_len: usize,
    /// What sessions make of weights for themselves, shared by all of them.
    packed: PrepackedWeights,
    mapping: Option<Arc<FileMapping>>,
}

impl PreparedBlock {
    /// The optimised form of a block, kept where the options say so.
    pub(super) fn prepare(
        builder: SessionBuilder,
        program: &Program,
        options: &LoadOptions,
        version: &str,
        target: ExecutionTarget<'_>,
    ) -> Result<Self> {
        match &options.cache {
            Some(cache) => Self::load_or_prepare(cache, version, builder, program, target),
            None => Self::prepare_uncached(builder, program, target),
        }
    }

    /// Optimises the block.
    ///
    /// The files go to a folder of their own that is gone when this returns; the mapping keeps the
    /// weights for as long as a session uses them.
    fn prepare_uncached(
        builder: SessionBuilder,
        program: &Program,
        on: ExecutionTarget<'_>,
    ) -> Result<Self> {
        let label = program.label();
        let folder = temporary_folder()?;
        Self::write_optimised(builder, program, folder.path(), on)?;
        Self::read_optimised(folder.path()).map_err(|error| error.with_context(&label))
    }

    /// The same, kept in a folder of `cache` for the next process that wants it.
    ///
    /// What is made depends on the block, the shapes of its inputs, the library and the machine. A
    /// folder gets its name when it is whole, so that whoever finds one finds all of it.
    fn load_or_prepare(
        cache: &Path,
        version: &str,
        builder: SessionBuilder,
        program: &Program,
        on: ExecutionTarget<'_>,
    ) -> Result<Self> {
        let label = program.label();
        let machine = match on {
            ExecutionTarget::Cpu => cpu_fingerprint().to_owned(),
            // With its weights in the order of their parts.
            ExecutionTarget::Cuda(settings, layout) => format!("{settings}-{layout}"),
        };
        let name = format!("{}-{version}-{machine}", program.key());
        let kept = cache.join(name);
        if is_intact(&kept)
            && let Ok(found) = Self::read_optimised(&kept)
        {
            return Ok(found);
        }
        std::fs::create_dir_all(cache)
            .map_err(|error| Error::from_io(cache.display(), &error).with_context(&label))?;
        let folder = working_folder_in(cache).map_err(|error| error.with_context(&label))?;
        Self::write_optimised(builder, program, folder.path(), on)?;
        std::fs::write(folder.path().join(HASH_FILE), hash_of(folder.path()).unwrap_or_default())
            .map_err(|error| Error::from_io(cache.display(), &error).with_context(&label))?;
        // Somebody else may have been quicker, or what is there may be damaged.
        if std::fs::rename(folder.path(), &kept).is_err() {
            std::fs::remove_dir_all(&kept).ok();
            if std::fs::rename(folder.path(), &kept).is_err() {
                return Self::read_optimised(folder.path())
                    .map_err(|error| error.with_context(&label));
            }
        }
        Self::read_optimised(&kept).map_err(|error| error.with_context(&label))
    }

    /// Has ONNX Runtime optimise the block and write the result to `folder`.
    fn write_optimised(
        builder: SessionBuilder,
        program: &Program,
        folder: &Path,
        on: ExecutionTarget<'_>,
    ) -> Result<()> {
        let label = program.label();
        let fail = |error: ort::Error| engine_error(&label, &error);
        let model = folder.join(MODEL_FILE);
        let build = || -> ort::Result<SessionBuilder> {
            Ok(builder
                .with_optimization_level(GraphOptimizationLevel::All)?
                // Packing is done by whoever loads the result.
                .with_prepacking(false)?
                .with_optimized_model_path(&model)?
                .with_config_entry(
                    "session.optimized_model_external_initializers_file_name",
                    WEIGHTS_FILE,
                )?
                .with_config_entry(
                    "session.optimized_model_external_initializers_min_size_in_bytes",
                    INLINE_BYTES.to_string(),
                )?)
        };
        let mut builder = build().map_err(fail)?;
        let values = values_of_program(program).map_err(|error| error.into_error(&label))?;
        // The names and values live until the session below is gone.
        supply_weights(&mut builder, values.iter().map(|(name, value)| (name.as_c_str(), value)))
            .map_err(fail)?;
        let mut file = ModelProto::decode(program.file().clone())
            .map_err(|error| Error::invalid(format!("{label}: {error}")))?;
        if on == ExecutionTarget::Cpu {
            blocked_layout::enter_blocked_layout(&mut file);
        }
        let session = builder.commit_from_memory(&file.encode_to_vec()).map_err(fail)?;
        drop(session);
        drop(builder);
        drop(values);
        match on {
            ExecutionTarget::Cpu => Ok(()),
            ExecutionTarget::Cuda(_, layout) => aligned_weights::align_weights(folder, layout),
        }
        .map_err(|error| error.with_context(&label))
    }

    /// A session of a block as it is, with copies of its weights.
    pub(super) fn session_as_given(
        mut builder: SessionBuilder,
        program: &Program,
    ) -> Result<OrtSession, SessionError> {
        let values = values_of_program(program)?;
        let names_and_values = values.iter().map(|(name, value)| (name.as_c_str(), value));
        supply_weights(&mut builder, names_and_values)?;
        Ok(builder.commit_from_memory(program.file())?)
    }

    fn read_optimised(folder: &Path) -> Result<Self> {
        let (model, weights) = (folder.join(MODEL_FILE), folder.join(WEIGHTS_FILE));
        let bytes = std::fs::read(model).map_err(|error| {
            Error::from_io("the optimised form that ONNX Runtime wrote", &error)
        })?;
        let mut proto = ModelProto::decode(bytes.as_slice()).map_err(|error| {
            Error::engine(format!("the optimised form that ONNX Runtime wrote: {error}"))
        })?;
        let graph = proto.graph.get_or_insert_default();
        blocked_layout::leave_blocked_layout(graph);
        memcpy_removal::remove_memcpy_nodes(graph);
        let mapping = if weights.exists() {
            Some(Arc::new(FileMapping::map_watched_file(&weights)?))
        } else {
            None
        };
        let file = mapping.as_ref().map_or_else(Bytes::new, |mapping| {
            Bytes::from_owner(SharedFileMapping(Arc::clone(mapping)))
        });
        let mut found = Vec::new();
        for tensor in graph.initializer.iter().filter(|tensor| is_external(tensor)) {
            let wrong = |what: &str| {
                Error::engine(format!("optimised weight \"{}\": {what}", tensor.name()))
            };
            let dtype = DType::from_onnx(tensor.data_type()).ok_or_else(|| wrong("no dtype"))?;
            let shape: Vec<usize> =
                tensor.dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).collect();
            let name = CString::new(tensor.name()).map_err(|_| wrong("a zero byte in its name"))?;
            found.push((name, Tensor::from_bytes(dtype, &shape, weight_content(tensor, &file)?)?));
        }
        inline_weights_of_bodies(&mut graph.node, &file)?;
        Ok(Self {
            model: proto.encode_to_vec(),
            weights: found,
            file_len: file.len(),
            packed: PrepackedWeights::new(),
            mapping,
        })
    }

    /// Fails where the file of its weights is not what it was.
    pub(super) fn check_intact(&self) -> Result<()> {
        self.mapping.as_ref().map_or(Ok(()), |mapping| mapping.check_intact())
    }

    /// Lets go of pages for now: those of weights that sessions have packed are not needed again.
    pub(super) fn release_pages(&self) {
        if let Some(mapping) = &self.mapping {
            mapping.release_pages();
        }
    }

    /// Where sessions keep what they make of weights for themselves.
    pub(super) fn packed_weights(&self) -> &PrepackedWeights {
        &self.packed
    }

    /// The model as it is.
    pub(super) fn model(&self) -> &[u8] {
        &self.model
    }

    /// The operators that it consists of, with those of bodies.
    pub(super) fn operators(&self) -> Vec<String> {
        fn add_operators(nodes: &[NodeProto], found: &mut Vec<String>) {
            for node in nodes {
                found.push(node.op_type().to_owned());
                let bodies = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
                bodies.for_each(|body| add_operators(&body.node, found));
            }
        }
        let mut found = Vec::new();
        if let Ok(ModelProto { graph: Some(graph), .. }) = ModelProto::decode(&self.model[..]) {
            add_operators(&graph.node, &mut found);
        }
        found
    }

    /// The model with operators that wait for the parts in which its weights come, and these.
    pub(super) fn awaiting_model(&self, layout: WeightLayout) -> (Vec<u8>, WeightParts) {
        let whole = || (self.model.clone(), WeightParts::whole(self.file_len));
        let Ok(mut model) = ModelProto::decode(&self.model[..]) else { return whole() };
        let parts = weight_layout::wait_for_parts(&mut model, layout, self.file_len);
        (model.encode_to_vec(), parts)
    }

    /// The file of its weights, where it has one.
    pub(super) fn weight_file(&self) -> Option<&Arc<FileMapping>> {
        self.mapping.as_ref()
    }

    /// The weights, by name.
    pub(super) fn weights(&self) -> &[(CString, Tensor)] {
        &self.weights
    }

    /// Makes a session that uses our memory for every weight; it and the values must not outlive
    /// this.
    pub(super) fn session_over_own(
        &self,
        builder: SessionBuilder,
    ) -> Result<(OrtSession, Vec<OrtValue>), SessionError> {
        self.session_over(builder, &self.model, &self.weights)
    }

    /// Makes a session that has copies of all weights, wherever its operators need them.
    pub(super) fn session_with_copies(
        &self,
        mut builder: SessionBuilder,
    ) -> Result<OrtSession, SessionError> {
        let values = self.weights.iter().map(|(_, tensor)| OrtValue::over_tensor(tensor));
        let values = values.collect::<ort::Result<Vec<_>>>()?;
        let names = self.weights.iter().map(|(name, _)| name.as_c_str());
        // The session reads them while it is made, and not again.
        supply_weights(&mut builder, names.zip(&values))?;
        Ok(builder.commit_from_memory(&self.model)?)
    }

    /// Makes a session of a form of the model over weights that are these, in memory that outlives
    /// it, with values for them that must live as long as it does.
    pub(super) fn session_over(
        &self,
        builder: SessionBuilder,
        model: &[u8],
        weights: &[(CString, Tensor)],
    ) -> Result<(OrtSession, Vec<OrtValue>), SessionError> {
        // ONNX Runtime insists that the file of the weights is there. It need not hold anything: no
        // weight is read from it.
        let folder = temporary_folder().map_err(SessionError::Io)?;
        std::fs::File::create(folder.path().join(WEIGHTS_FILE))
            .and_then(|file| file.set_len(self.file_len as u64))
            .map_err(|error| SessionError::Io(Error::from_io("a temporary file", &error)))?;
        let mut builder = builder
            .with_config_entry(
                "session.model_external_initializers_file_folder_path",
                folder.path().to_string_lossy(),
            )
            .map_err(ort::Error::from)?;
        let values = weights
            .iter()
            .map(|(name, tensor)| {
                let value = OrtValue::over_tensor(tensor)?;
                // SAFETY: the name is copied; the shared session keeps the value as long as it
                // lives.
                check_status(unsafe {
                    (ort::api().AddInitializer)(builder.ptr_mut(), name.as_ptr(), value.as_ptr())
                })?;
                Ok(value)
            })
            .collect::<ort::Result<Vec<_>>>()?;
        let session = builder.commit_from_memory(model)?;
        Ok((session, values))
    }
}

/// The weights of a block by name, as values that must not outlive it.
fn values_of_program(program: &Program) -> Result<Vec<(CString, OrtValue)>, SessionError> {
    let weights = program.block().weights().iter().zip(program.weights());
    let value = |(reference, weight): (&WeightRef, &ProgramWeight)| {
        let name = CString::new(reference.name.as_str())
            .map_err(|_| SessionError::Io(Error::invalid("a name with a zero byte in it")))?;
        Ok((name, OrtValue::over_tensor(&weight.tensor)?))
    };
    weights.map(value).collect()
}

/// Puts the weights of bodies back into the model: weights can be supplied to a graph, not to its
/// bodies.
fn inline_weights_of_bodies(nodes: &mut [NodeProto], file: &Bytes) -> Result<()> {
    let attributes = nodes.iter_mut().flat_map(|node| &mut node.attribute);
    for body in attributes.flat_map(|a| a.g.iter_mut().chain(&mut a.graphs)) {
        for tensor in body.initializer.iter_mut().filter(|tensor| is_external(tensor)) {
            tensor.raw_data = Some(weight_content(tensor, file)?);
            tensor.data_location = None;
            tensor.external_data.clear();
        }
        inline_weights_of_bodies(&mut body.node, file)?;
    }
    Ok(())
}

/// Why a session was not made.
pub(super) enum SessionError {
    Io(Error),
    Engine(ort::Error),
}

impl SessionError {
    /// As an error about the block that `label` names.
    pub(super) fn into_error(self, label: &str) -> Error {
        match self {
            Self::Engine(error) => engine_error(label, &error),
            Self::Io(error) => error.with_context(label),
        }
    }
}

/// What a block is optimised for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ExecutionTarget<'a> {
    /// The CPU of this machine.
    Cpu,
    /// A GPU, with what tells its settings apart, and how it is to have the weights.
    Cuda(&'a str, WeightLayout),
}

impl From<ort::Error> for SessionError {
    fn from(error: ort::Error) -> Self {
        Self::Engine(error)
    }
}

/// The hash of a prepared block's files; `None` where they can't be read.
fn hash_of(folder: &Path) -> Option<String> {
    let model = ContentHash::of_content(&std::fs::read(folder.join(MODEL_FILE)).ok()?);
    let weights = folder.join(WEIGHTS_FILE);
    let weights = if weights.exists() {
        ContentHash::of_content(FileMapping::map_file(&weights).ok()?.as_ref()).to_string()
    } else {
        String::new()
    };
    Some(format!("{model} {weights}"))
}

/// Whether a prepared block is as it was written: what lies on a disk may be damaged.
fn is_intact(folder: &Path) -> bool {
    let stored = std::fs::read_to_string(folder.join(HASH_FILE)).ok();
    stored.is_some_and(|stored| !stored.is_empty() && Some(stored) == hash_of(folder))
}

/// What tells CPUs apart, as far as the layout of weights depends on it.
fn cpu_fingerprint() -> &'static str {
    static CPU: OnceLock<String> = OnceLock::new();
    CPU.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags =
            text.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
        let fingerprint = format!("{} {}", std::env::consts::ARCH, flags.unwrap_or_default());
        ContentHash::of_content(fingerprint.as_bytes()).short_hex()
    })
}

fn temporary_folder() -> Result<tempfile::TempDir> {
    working_folder_in(&std::env::temp_dir())
}

/// Supplies the weights that a model refers to as external data, in place of files.
///
/// The values must outlive the session that `builder` builds.
fn supply_weights<'a>(
    builder: &mut SessionBuilder,
    weights: impl Iterator<Item = (&'a CStr, &'a OrtValue)>,
) -> ort::Result<()> {
    let (names, values): (Vec<_>, Vec<_>) =
        weights.map(|(name, value)| (name.as_ptr(), value.as_ptr().cast_const())).unzip();
    if names.is_empty() {
        return Ok(());
    }
    // SAFETY: the names are copied, there is a value for each, and the values outlive the session,
    // as the caller promises.
    check_status(unsafe {
        (ort::api().AddExternalInitializers)(
            builder.ptr_mut(),
            names.as_ptr(),
            values.as_ptr(),
            names.len(),
        )
    })
}
