//! Opening a repository, and putting models into it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{ContentHash, Error, Result, escape_unshown, is_plain_name};
use tessera_engine::FileMapping;
use tessera_graph::{BlockGraph, Partition};

use crate::files::{self, ContentKind, io_error};
use crate::model_description::ModelDescription;
use crate::unfinished_files::unfinished_prefix;

/// Where holders have their folders.
pub(crate) const HOLDS_FOLDER: &str = "holds";

const FOLDERS: [&str; 5] = ["blocks", "weights", "models", "names", "tmp"];
/// Most bytes of a file's name.
pub(crate) const LONGEST_FILE_NAME: usize = 255;
const REPOSITORY_FORMAT: &str = "tessera repository 1\n";

/// A repository that is open.
pub struct Repository {
    root: PathBuf,
    /// Weights that are mapped and were checked, for as long as somebody uses them.
    pub(crate) mapped_weights: Mutex<HashMap<ContentHash, Weak<FileMapping>>>,
}

/// A model in a repository.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ModelEntry {
    /// Its name.
    pub name: String,
    /// The hash of its graph of blocks.
    pub hash: ContentHash,
}

impl Repository {
    /// Opens the repository at `root`.
    pub fn open(root: &Path) -> Result<Self> {
        let path = root.join("format");
        match fs::read_to_string(&path) {
            Ok(found) if found == REPOSITORY_FORMAT => {}
            Ok(found) => {
                return Err(Error::unsupported(format!(
                    "{}: \"{}\", expected \"{}\"",
                    path.display(),
                    found.trim().chars().take(60).collect::<String>(),
                    REPOSITORY_FORMAT.trim()
                )));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::not_found(format!("{}: no repository there", root.display())));
            }
            Err(error) => return Err(io_error(&path, &error)),
        }
        Ok(Self { root: root.to_path_buf(), mapped_weights: Mutex::new(HashMap::new()) })
    }

    /// Opens the repository at `root`, and makes it first where there is none.
    pub fn open_or_create(root: &Path) -> Result<Self> {
        if root.join("format").exists() {
            return Self::open(root);
        }
        // Somebody else may be making it right now, or have been killed while making it: what is
        // there already may be ours.
        let is_ours = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            FOLDERS.contains(&name)
                || ["format", "lock", "descriptions", HOLDS_FOLDER].contains(&name)
        };
        if !files::read_folder(root)?.iter().all(is_ours) {
            return Err(Error::usage(format!(
                "{}: not empty and no repository, expected either",
                root.display()
            )));
        }
        for folder in FOLDERS {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).map_err(|error| io_error(&folder, &error))?;
        }
        files::write_atomically(root, &root.join("format"), REPOSITORY_FORMAT.as_bytes())?;
        Self::open(root)
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A folder for what is brought; removed when it is dropped, or by an interrupt.
    pub fn make_temporary_folder(&self) -> Result<tempfile::TempDir> {
        let folder = self.root.join("tmp");
        tempfile::Builder::new()
            .prefix(&unfinished_prefix())
            .tempdir_in(&folder)
            .map_err(|error| io_error(&folder, &error))
    }

    /// Stores a model under `name`, in place of the one that had it; returns its hash.
    pub fn put_model(&self, name: &str, partition: &Partition) -> Result<ContentHash> {
        check_model_name(name)?;
        let _writing = self.lock_to_write()?;
        for (hash, bytes) in &partition.weights {
            files::put_content(&self.root, ContentKind::Weight, *hash, bytes)?;
        }
        let hash = self.write_graph(name, &partition.graph, partition.blocks.values())?;
        self.write_name(name, hash)?;
        Ok(hash)
    }

    /// Last of all the name: who sees it finds everything behind it.
    pub(crate) fn write_name(&self, name: &str, model: ContentHash) -> Result<()> {
        files::write_atomically(&self.root, &self.name_path(name), format!("{model}\n").as_bytes())
    }

    /// Has a name mean the model of this hash, whose record and blocks are here, in place of the
    /// one that had it.
    pub fn put_name(&self, name: &str, model: ContentHash) -> Result<()> {
        check_model_name(name)?;
        let _writing = self.lock_to_write()?;
        for block in self.read_graph(model)?.distinct_blocks() {
            self.read_block(block)
                .map_err(|error| error.with_context(format!("model \"{name}\"")))?;
        }
        self.write_name(name, model)
    }

    /// Keeps what is known of a model beside its content, in place of what was.
    pub fn put_description(&self, name: &str, description: &ModelDescription) -> Result<()> {
        check_model_name(name)?;
        let _writing = self.lock_to_write()?;
        let path = self.description_path(name);
        if *description == ModelDescription::default() {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(io_error(&path, &error))
                }
                _ => Ok(()),
            };
        }
        let text = description.to_json();
        let text = text.map_err(|error| error.with_context(format!("model \"{name}\"")))?;
        files::write_atomically(&self.root, &path, &text)
    }

    /// What is known of a model beside its content; nothing where nobody has said anything.
    pub fn read_description(&self, name: &str) -> Result<ModelDescription> {
        check_model_name(name)?;
        let path = self.description_path(name);
        match fs::read(&path) {
            Ok(text) => ModelDescription::from_json(&text)
                .map_err(|error| error.with_context(path.display().to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(ModelDescription::default())
            }
            Err(error) => Err(io_error(&path, &error)),
        }
    }

    /// Forgets a name, unless a server that runs uses it; its content stays until
    /// [`Repository::collect_garbage`].
    pub fn remove_model(&self, name: &str) -> Result<()> {
        check_model_name(name)?;
        let _writing = self.lock_to_write()?;
        self.check_unused(name)?;
        let path = self.name_path(name);
        fs::remove_file(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => self.unknown_model(name),
            _ => io_error(&path, &error),
        })?;
        // There is none for most.
        fs::remove_file(self.description_path(name)).ok();
        self.remove_segments(name)
    }

    /// All models, by name.
    pub fn list_models(&self) -> Result<Vec<ModelEntry>> {
        self.model_names()?
            .into_iter()
            .map(|name| Ok(ModelEntry { hash: self.model_hash(&name)?, name }))
            .collect()
    }

    /// The names of all models.
    pub(crate) fn model_names(&self) -> Result<Vec<String>> {
        let paths = files::read_folder(&self.root.join("names"))?;
        let name = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
        Ok(paths.iter().filter_map(name).filter(|name| check_model_name(name).is_ok()).collect())
    }

    /// The graph of blocks of the model of this name.
    pub fn read_model(&self, name: &str) -> Result<BlockGraph> {
        check_model_name(name)?;
        self.read_graph(self.model_hash(name)?)
            .map_err(|error| error.with_context(format!("model \"{name}\"")))
    }

    /// The graph of blocks of this hash.
    pub fn read_graph(&self, hash: ContentHash) -> Result<BlockGraph> {
        let bytes = self.read_checked(ContentKind::Model, hash)?;
        let graph: BlockGraph = serde_json::from_slice(&bytes)
            .map_err(|error| Error::invalid(format!("model {}: {error}", hash.short_hex())))?;
        if !graph.is_sound() {
            return Err(Error::invalid(format!(
                "model {}: a block uses what no earlier block computes",
                hash.short_hex()
            )));
        }
        Ok(graph)
    }

    /// The hash of the model of this name.
    pub fn model_hash(&self, name: &str) -> Result<ContentHash> {
        check_model_name(name)?;
        let path = self.name_path(name);
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => self.unknown_model(name),
            _ => io_error(&path, &error),
        })?;
        text.trim().parse().map_err(|_| {
            Error::corrupt(format!("{}: expected the hash of a model in it", path.display()))
        })
    }

    fn unknown_model(&self, name: &str) -> Error {
        let known = self.model_names().unwrap_or_default();
        let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
        Error::not_found(format!(
            "no model \"{name}\" in {}, which has {known}",
            self.root.display()
        ))
    }

    fn name_path(&self, name: &str) -> PathBuf {
        self.root.join("names").join(name)
    }

    fn description_path(&self, name: &str) -> PathBuf {
        self.root.join("descriptions").join(name)
    }

    pub(crate) fn lock_to_write(&self) -> Result<File> {
        let file = files::lock_file(&self.root)?;
        file.lock_shared().map_err(|error| io_error(&self.root.join("lock"), &error))?;
        Ok(file)
    }
}

/// How blocks hang together in a model, as it is kept, and the hash under which that is.
pub fn model_record(graph: &BlockGraph) -> Result<(ContentHash, Vec<u8>)> {
    let record =
        serde_json::to_vec_pretty(graph).map_err(|error| Error::invalid(error.to_string()))?;
    Ok((ContentHash::of_content(&record), record))
}

/// Refuses what can't be a model's name, which is also a file's.
pub fn check_model_name(name: &str) -> Result<()> {
    if is_plain_name(name) && name.len() <= LONGEST_FILE_NAME {
        return Ok(());
    }
    Err(Error::usage(format!(
        "\"{}\" is no name for a model, expected 1 to 128 characters ({LONGEST_FILE_NAME} bytes) \
         without / and control characters, of which a dot is not the first",
        escape_unshown(name)
    )))
}

pub(crate) type MappedWeight = Arc<FileMapping>;
