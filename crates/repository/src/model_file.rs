//! Model files, and what lies beside them: external data, the manifest of exits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tessera_core::{Error, Result};
use tessera_engine::{FileMapping, SharedFileMapping};
use tessera_graph::onnx::without_map_outputs;
use tessera_graph::{
    CutPoints, ExitSpec, ExternalData, Graph, InferredTypes, MOST_UNIT_NODES, Partition, Split,
    TensorPort, ValueId, check_constants, fold_shapes, infer,
};

use crate::model_description::ModelDescription;
use crate::model_name::model_name_of;
use crate::model_set::{ModelShapes, NamedFile};
use crate::unfinished_files::write_whole;

/// How many blocks a model is cut into where nobody says.
const DEFAULT_BLOCKS: usize = 4;

/// A model that was read.
pub struct ModelFile {
    /// Where it is.
    pub path: PathBuf,
    name: String,
    /// What it computes.
    pub graph: Graph,
    /// The types of its values, as far as they can be told.
    pub types: InferredTypes,
    /// Its exits.
    pub exits: Vec<ExitSpec>,
    /// The files that it is in.
    mappings: Vec<Arc<FileMapping>>,
    external_files: BTreeMap<String, PathBuf>,
}

impl ModelFile {
    /// Reads a model; exits come from `exits` or, where there are none, from its manifest.
    pub fn read_file(
        path: &Path,
        shapes: &BTreeMap<String, Vec<usize>>,
        exits: &[ExitSpec],
    ) -> Result<Self> {
        let name = model_name_of(path);
        Self::read_inner(&NamedFile { name, path: path.to_path_buf() }, exits, &mut |_| {
            shapes.clone()
        })
    }

    /// Reads a model that has a name; its shapes are those of `shapes` that are its own. Notes which
    /// were used.
    pub fn read_named(
        file: &NamedFile,
        shapes: &ModelShapes,
        exits: &[ExitSpec],
        used: &mut BTreeSet<String>,
    ) -> Result<Self> {
        Self::read_inner(file, exits, &mut |graph| shapes.of_model(&file.name, graph, used))
    }

    fn read_inner(
        file: &NamedFile,
        exits: &[ExitSpec],
        shapes: &mut dyn FnMut(&Graph) -> BTreeMap<String, Vec<usize>>,
    ) -> Result<Self> {
        Self::read_model(file, exits, shapes).map_err(|error| {
            let (text, shown) = (error.to_string(), file.path.display().to_string());
            if text.starts_with(&shown) { error } else { error.with_context(shown) }
        })
    }

    fn read_model(
        NamedFile { name, path }: &NamedFile,
        exits: &[ExitSpec],
        shapes: &mut dyn FnMut(&Graph) -> BTreeMap<String, Vec<usize>>,
    ) -> Result<Self> {
        let mut folder = ModelFolder::beside_model(path);
        let file = folder.map_file(path)?;
        let graph = tessera_graph::read_model(file, &mut folder)?;
        let shapes = shapes(&graph);
        let types = infer::infer_types(&graph, &shapes)?;
        let graph = fold_shapes(graph, &types)?;
        let types = infer::infer_types(&graph, &shapes)?;
        check_constants(&graph, &types)?;
        let exits = match exits {
            [] => read_manifest(&manifest_path(path))?,
            _ => exits.to_vec(),
        };
        let (path, name) = (path.clone(), name.clone());
        let ModelFolder { mappings, external_files, .. } = folder;
        let model = Self { path, name, graph, types, exits, mappings, external_files };
        model.check_intact()?;
        Ok(model)
    }

    /// Fails where one of its files was cut short since it was read: what was made of it may be made
    /// of something else.
    pub fn check_intact(&self) -> Result<()> {
        let checked = self.mappings.iter().try_for_each(|mapping| mapping.check_intact());
        checked.map_err(|error| error.with_context(self.path.display()))
    }

    /// The files beside its own that its weights are in, by the names that it has for them.
    pub fn external_files(&self) -> &BTreeMap<String, PathBuf> {
        &self.external_files
    }

    /// Its cut points, with the branches of exits left aside.
    pub fn cut_points(&self) -> Result<CutPoints> {
        tessera_graph::cut_points(&self.graph, &self.types, &self.exits)
            .map_err(|error| error.with_context(self.path.display()))
    }

    /// Whether it can be cut at all; its weights are not touched.
    pub fn check_cuttable(&self) -> Result<()> {
        let checked = tessera_graph::check_outputs(&self.graph, &self.types);
        checked.map_err(|error| error.with_context(self.path.display()))?;
        self.cut_points().map(drop)
    }

    /// Cuts it as the user asks; else into a few blocks, enough that each exit has a block to hang
    /// off, or as many as it can be cut into.
    pub fn split_into_blocks(&self, split: Option<&Split>) -> Result<Partition> {
        let points = self.cut_points()?;
        // Blocks that engines load in seconds; twice as many as needed, as they are not all of a size.
        let loadable = self.graph.nodes().len().div_ceil(MOST_UNIT_NODES / 2);
        let wanted = DEFAULT_BLOCKS.max(self.exits.len() + 1).max(loadable);
        let wanted = wanted.min(points.cuts.len() + 1);
        let split = split.cloned().unwrap_or(Split::Blocks(wanted));
        let blocks = tessera_graph::split_into_chain(&self.graph, &self.types, &split, &self.exits);
        self.check_intact()?;
        blocks.map_err(|error| error.with_context(self.path.display()))
    }

    /// Its inputs, with `shapes` for those that are open; the model itself stays as it is.
    pub fn inputs_with_shapes(
        &self,
        shapes: &BTreeMap<String, Vec<usize>>,
    ) -> Result<Vec<TensorPort>> {
        let types = infer::infer_types(&self.graph, shapes)
            .map_err(|error| error.with_context(self.path.display()))?;
        let port = |&id: &ValueId| {
            Some(TensorPort {
                name: self.graph.value_name(id).to_owned(),
                tensor_type: types.get(id)?.clone(),
                is_row_wise: false,
                default: self.graph.input_default(id).cloned(),
            })
        };
        Ok(self.graph.inputs().iter().filter_map(port).collect())
    }

    /// The model without the maps of its outputs, as a file beside which its external data is not;
    /// `None` where it has no such outputs.
    pub fn file_without_maps(&self) -> Result<Option<tempfile::NamedTempFile>> {
        if self.graph.map_outputs().is_empty() {
            return Ok(None);
        }
        let failed = |error: std::io::Error| Error::from_io(self.path.display(), &error);
        let file = Bytes::from_owner(FileMapping::map_file(&self.path)?);
        let Some(plain) = without_map_outputs(file)? else {
            return Ok(None);
        };
        let mut copy = tempfile::Builder::new().suffix(".onnx").tempfile().map_err(failed)?;
        copy.write_all(&plain).map_err(failed)?;
        Ok(Some(copy))
    }

    /// The same model, which also gives the tensors at which it is cut.
    #[must_use]
    pub fn with_cuts_as_outputs(&self, cuts: &CutPoints) -> Self {
        let cuts = cuts.cuts.iter().map(|cut| cut.tensor);
        Self {
            path: self.path.clone(),
            name: self.name.clone(),
            graph: self.graph.clone().with_outputs(cuts),
            types: self.types.clone(),
            exits: self.exits.clone(),
            mappings: self.mappings.clone(),
            external_files: self.external_files.clone(),
        }
    }

    /// The type of a value, as users see it.
    pub fn type_of(&self, id: ValueId) -> String {
        self.types.get(id).map_or("?".to_owned(), ToString::to_string)
    }

    /// What lies beside it: labels of classes, and formats of images.
    pub fn description(&self) -> Result<ModelDescription> {
        let first = self.graph.outputs().first().map(|&id| self.graph.value_name(id));
        ModelDescription::beside_model(&self.path, first)
    }

    /// The name to keep the model under.
    pub fn name(&self) -> String {
        self.name.clone()
    }
}

/// The files in a model's folder, each mapped once.
struct ModelFolder {
    folder: PathBuf,
    open: HashMap<String, Bytes>,
    mappings: Vec<Arc<FileMapping>>,
    external_files: BTreeMap<String, PathBuf>,
}

impl ModelFolder {
    fn beside_model(path: &Path) -> Self {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_path_buf();
        let (open, mappings, external_files) = Default::default();
        Self { folder, open, mappings, external_files }
    }

    fn map_file(&mut self, path: &Path) -> Result<Bytes> {
        let mapping = Arc::new(FileMapping::map_file(path)?);
        self.mappings.push(Arc::clone(&mapping));
        Ok(Bytes::from_owner(SharedFileMapping(mapping)))
    }
}

impl ExternalData for ModelFolder {
    fn open_file(&mut self, location: &str) -> Result<Bytes> {
        if let Some(known) = self.open.get(location) {
            return Ok(known.clone());
        }
        let path = self.folder.join(location);
        let missing = |error: std::io::Error| {
            Error::from_io(format!("external data \"{location}\" ({})", path.display()), &error)
        };
        // A link must not lead out of the folder either.
        let (real, folder) =
            (path.canonicalize().map_err(missing)?, self.folder.canonicalize().map_err(missing)?);
        if !real.starts_with(&folder) {
            return Err(Error::invalid(format!(
                "external data \"{location}\" points outside the model's folder, expected a file inside"
            )));
        }
        let bytes = self.map_file(&real)?;
        self.open.insert(location.to_owned(), bytes.clone());
        self.external_files.insert(location.to_owned(), real);
        Ok(bytes)
    }
}

/// Where the exits of a model are listed: `resnet152.exits.json` beside `resnet152.onnx`.
pub fn manifest_path(model: &Path) -> PathBuf {
    model.with_extension("exits.json")
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ExitManifest {
    exits: Vec<ExitSpec>,
}

fn read_manifest(path: &Path) -> Result<Vec<ExitSpec>> {
    match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::from_io(path.display(), &error)),
        Ok(_) => {}
    }
    let text = FileMapping::map_file(path)?;
    let manifest: ExitManifest = serde_json::from_slice(text.as_ref())
        .map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
    Ok(manifest.exits)
}

/// Writes the manifest of a model's exits.
pub fn write_manifest(model: &Path, exits: Vec<ExitSpec>) -> Result<()> {
    let text = serde_json::to_string_pretty(&ExitManifest { exits })
        .map_err(|error| Error::invalid(format!("manifest: {error}")))?;
    write_whole(&manifest_path(model), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_file_has_a_name_that_a_repository_takes() {
        for (file, expected) in [
            ("resnet50.onnx", "resnet50"),
            ("my model (v2).onnx", "my model (v2)"),
            ("a/b/größe.onnx", "größe"),
            ("模型.onnx", "模型"),
            ("50%.onnx", "50%"),
            ("a\nb\u{1b}.onnx", "a%0Ab%1B"),
            ("\u{202e}.onnx", "%E2%80%AE"),
            (".hidden.onnx", "hidden"),
            ("...", "model"),
            ("", "model"),
            (&format!("{}.onnx", "模".repeat(100)), &"模".repeat(85)),
            (&format!("{}.onnx", "a".repeat(200)), &"a".repeat(128)),
        ] {
            let name = model_name_of(Path::new(file));
            assert_eq!(name, expected, "{file}");
            assert!(crate::check_model_name(&name).is_ok(), "{name}");
        }
    }
}
