//! Model files, what lies beside them, and writing files whole.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tessera_core::{Error, Result};
use tessera_engine::Mapping;
use tessera_graph::{CutPoints, ExitSpec, ExternalData, Graph, Partition, Types, ValueId, infer};

use crate::arguments::SplitArguments;
use crate::interrupt;

/// A model that was read.
pub(crate) struct ModelFile {
    pub(crate) path: PathBuf,
    pub(crate) graph: Graph,
    pub(crate) types: Types,
    pub(crate) exits: Vec<ExitSpec>,
}

impl ModelFile {
    /// Reads a model; exits come from `exits` or, where there are none, from its manifest.
    pub(crate) fn read(
        path: &Path,
        shapes: &BTreeMap<String, Vec<usize>>,
        exits: &[ExitSpec],
    ) -> Result<Self> {
        Self::read_inner(path, shapes, exits).map_err(|error| {
            let (text, shown) = (error.to_string(), path.display().to_string());
            if text.starts_with(&shown) { error } else { error.within(shown) }
        })
    }

    fn read_inner(
        path: &Path,
        shapes: &BTreeMap<String, Vec<usize>>,
        exits: &[ExitSpec],
    ) -> Result<Self> {
        let file = Bytes::from_owner(Mapping::open(path)?);
        let graph = tessera_graph::read(file, &mut Folder::beside(path))?;
        let types = infer::infer(&graph, shapes)?;
        let exits = match exits {
            [] => read_manifest(&manifest_path(path))?,
            _ => exits.to_vec(),
        };
        Ok(Self { path: path.to_path_buf(), graph, types, exits })
    }

    /// Its cut points, with the branches of exits left aside.
    pub(crate) fn points(&self) -> Result<CutPoints> {
        tessera_graph::cut_points(&self.graph, &self.types, &self.exits)
            .map_err(|error| error.within(self.path.display()))
    }

    /// Cuts it as the user asks.
    pub(crate) fn split(&self, arguments: &SplitArguments) -> Result<Partition> {
        let how = arguments.split(&self.points()?, self.exits.len());
        tessera_graph::split(&self.graph, &self.types, &how, &self.exits)
            .map_err(|error| error.within(self.path.display()))
    }

    /// The type of a value, as users see it.
    pub(crate) fn type_of(&self, id: ValueId) -> String {
        self.types.get(id).map_or("?".to_owned(), ToString::to_string)
    }

    /// The name to keep the model under: the file's, without its ending.
    pub(crate) fn name(&self) -> String {
        name_of(&self.path)
    }
}

/// The name to keep a model under: the file's, without its ending, and with a dash for what a
/// repository takes for no part of a name.
pub(crate) fn name_of(path: &Path) -> String {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.@+".contains(c);
    let name: String = stem.chars().map(|c| if fits(c) { c } else { '-' }).take(128).collect();
    match name.trim_start_matches('.') {
        "" => "model".to_owned(),
        name => name.to_owned(),
    }
}

/// The files in a model's folder, each mapped once.
struct Folder {
    folder: PathBuf,
    open: HashMap<String, Bytes>,
}

impl Folder {
    fn beside(path: &Path) -> Self {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_path_buf();
        Self { folder, open: HashMap::new() }
    }
}

impl ExternalData for Folder {
    fn open(&mut self, location: &str) -> Result<Bytes> {
        if let Some(known) = self.open.get(location) {
            return Ok(known.clone());
        }
        let path = self.folder.join(location);
        let missing = |error: std::io::Error| {
            Error::io(format!("external data \"{location}\" ({})", path.display()), &error)
        };
        // A link must not lead out of the folder either.
        let (real, folder) =
            (path.canonicalize().map_err(missing)?, self.folder.canonicalize().map_err(missing)?);
        if !real.starts_with(&folder) {
            return Err(Error::invalid(format!(
                "external data \"{location}\" points outside the model's folder, expected a file inside"
            )));
        }
        let bytes = Bytes::from_owner(Mapping::open(&real)?);
        self.open.insert(location.to_owned(), bytes.clone());
        Ok(bytes)
    }
}

/// Where the exits of a model are listed: `resnet152.exits.json` beside `resnet152.onnx`.
pub(crate) fn manifest_path(model: &Path) -> PathBuf {
    model.with_extension("exits.json")
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    exits: Vec<ExitSpec>,
}

fn read_manifest(path: &Path) -> Result<Vec<ExitSpec>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(path.display(), &error)),
    };
    let manifest: Manifest = serde_json::from_str(&text)
        .map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
    Ok(manifest.exits)
}

/// Writes the manifest of a model's exits.
pub(crate) fn write_manifest(model: &Path, exits: Vec<ExitSpec>) -> Result<()> {
    let text = serde_json::to_string_pretty(&Manifest { exits })
        .map_err(|error| Error::invalid(format!("manifest: {error}")))?;
    write_whole(&manifest_path(model), text.as_bytes())
}

/// Writes a file that appears whole or not at all.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let fail = |error: &std::io::Error| Error::io(path.display(), error);
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    interrupt::watch(folder);
    let mut file = tempfile::Builder::new()
        .prefix(&interrupt::mark())
        .tempfile_in(folder)
        .map_err(|error| fail(&error))?;
    file.write_all(content).map_err(|error| fail(&error))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let readable = std::fs::Permissions::from_mode(0o644);
        file.as_file().set_permissions(readable).map_err(|error| fail(&error))?;
    }
    file.persist(path).map_err(|error| fail(&error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_file_has_a_name_that_a_repository_takes() {
        for (file, expected) in [
            ("resnet50.onnx", "resnet50"),
            ("my model (v2).onnx", "my-model--v2-"),
            ("a/b/größe.onnx", "gr--e"),
            (".hidden.onnx", "hidden"),
            ("...", "model"),
            ("", "model"),
        ] {
            let name = name_of(Path::new(file));
            assert_eq!(name, expected, "{file}");
            assert!(tessera_repository::check_name(&name).is_ok(), "{name}");
        }
    }
}
