//! Models of a repository as the control plane keeps them: cut so that they share blocks with those
//! that are served.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use tessera_control::{BroughtModel, ModelBlock, ModelStatus, ModelStore, StoredModel};
use tessera_core::{ContentHash, Error, ErrorKind, Result};
use tessera_graph::{
    AddedModel, BlockGraph, ModelCut, Partition, RecutModel, SharedModel, find_segments,
    share_blocks, share_with_stored,
};
use tessera_repository::{
    ContentKind, ContentName, ModelDescription, ModelFile, ModelShapes, NamedFile, Repository,
    model_record,
};

/// What is known of a model that comes in an archive, as this program writes it.
const DESCRIPTION_FILE: &str = "description.json";

/// The models of a repository.
pub(crate) struct RepositoryModels {
    repository: PathBuf,
}

/// A model that was cut, and what becomes of others.
struct CutModel {
    partition: Partition,
    cut: Option<ModelCut>,
    /// By name: what they are cut into, and where.
    recut: BTreeMap<String, (RecutModel, ModelCut)>,
}

impl RepositoryModels {
    pub(crate) fn new(repository: PathBuf) -> Self {
        Self { repository }
    }
}

impl ModelStore for RepositoryModels {
    fn make_folder(&self) -> Result<tempfile::TempDir> {
        Repository::open(&self.repository)?.make_temporary_folder()
    }

    fn put_model(&self, brought: &BroughtModel) -> Result<StoredModel> {
        let put = self.put_brought(brought);
        // Whoever brings it knows nothing of our folders.
        put.map_err(|error| {
            let folder = format!("{}/", brought.folder.display());
            let text = error.to_string().replace(&folder, "");
            Error::new(error.kind(), text).with_context(format_args!("model \"{}\"", brought.name))
        })
    }

    fn list_models(&self) -> Result<Vec<ModelStatus>> {
        let repository = Repository::open(&self.repository)?;
        let mut graphs = BTreeMap::new();
        for entry in repository.list_models()? {
            graphs.insert(entry.name, repository.read_graph(entry.hash)?);
        }
        let statuses = graphs.iter().map(|(name, graph)| {
            let hash = repository.model_hash(name)?.to_string();
            describe_model(&repository, name, hash, graph, &users_of_blocks(&graphs))
        });
        statuses.collect()
    }

    fn find_model(&self, name: &str) -> Result<ModelStatus> {
        let unknown = || Error::not_found(format!("there is no model \"{name}\""));
        let found = self.list_models()?.into_iter().find(|model| model.name == name);
        found.ok_or_else(unknown)
    }

    fn remove_model(&self, name: &str) -> Result<()> {
        Repository::open(&self.repository)?.remove_model(name)
    }
}

impl RepositoryModels {
    fn put_brought(&self, brought: &BroughtModel) -> Result<StoredModel> {
        let BroughtModel { name, folder, served, is_kept } = brought;
        let repository = Repository::open(&self.repository)?;
        let file = NamedFile { name: name.clone(), path: find_model_file(folder)? };
        let read = read_model(&file).map_err(as_bad_request)?;
        let mut stored = BTreeMap::new();
        // One that is replaced is not cut with itself.
        for model in served.iter().filter(|model| *model != name) {
            match repository.read_segments(model) {
                Ok(Some(cut)) => drop(stored.insert(model.clone(), cut)),
                Ok(None) => {}
                Err(error) => tracing::warn!(model, %error, "nothing can be shared with a model"),
            }
        }
        let description = read_description(&file.path, &read)?;
        let made = cut_model(&read, &stored)?;
        let status = made.describe(&repository, name, served)?;
        if *is_kept {
            made.keep(&repository, name)?;
            repository.put_description(name, &description)?;
        }
        Ok(StoredModel { is_kept: *is_kept, ..status })
    }
}

/// A model that makes no sense is the fault of whoever brings it.
fn as_bad_request(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Usage | ErrorKind::Io => Error::invalid(error.to_string()),
        _ => error,
    }
}

fn read_model(file: &NamedFile) -> Result<ModelFile> {
    let model = ModelFile::read_named(file, &ModelShapes::default(), &[], &mut BTreeSet::new())?;
    model.check_cuttable()?;
    Ok(model)
}

fn read_description(path: &Path, model: &ModelFile) -> Result<ModelDescription> {
    match std::fs::read(path.with_file_name(DESCRIPTION_FILE)) {
        Ok(text) => ModelDescription::from_json(&text)
            .map_err(|error| Error::invalid(format!("{DESCRIPTION_FILE}: {error}"))),
        Err(_) => model.description().map_err(as_bad_request),
    }
}

/// The one ONNX file in a folder.
fn find_model_file(folder: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| Error::from_io("a model that has come", &error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "onnx") {
            found.push(path);
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Error::invalid("there is no file *.onnx in the archive, expected one")),
        _ => Err(Error::invalid("there are several files *.onnx in the archive, expected one")),
    }
}

/// Cuts a model so that it shares blocks with those that are there.
fn cut_model(model: &ModelFile, stored: &BTreeMap<String, ModelCut>) -> Result<CutModel> {
    let view = SharedModel { graph: &model.graph, types: &model.types, exits: &model.exits };
    let cuts: Vec<&ModelCut> = stored.values().collect();
    let added = match share_with_stored(&view, &cuts) {
        Ok(added) => added,
        Err(error) if error.kind() == ErrorKind::Unsupported => return cut_alone(&view),
        Err(error) => return Err(as_bad_request(error)),
    };
    model.check_intact()?;
    let AddedModel { partition, cut, recut } = added;
    let own: HashSet<ContentHash> = partition.graph.distinct_blocks().into_iter().collect();
    let mut others = BTreeMap::new();
    for ((name, known), borders) in stored.iter().zip(recut) {
        let Some(borders) = borders else { continue };
        let made = known.segments.cut_after(&borders)?;
        // It is not cut for nothing.
        if made.graph.blocks.iter().any(|node| own.contains(&node.block)) {
            let cut = ModelCut { segments: known.segments.clone(), borders };
            others.insert(name.clone(), (made, cut));
        }
    }
    Ok(CutModel { partition, cut: Some(cut), recut: others })
}

fn cut_alone(view: &SharedModel<'_>) -> Result<CutModel> {
    let shared = share_blocks(std::slice::from_ref(view), &mut |_| {}).map_err(as_bad_request)?;
    let partition = shared.partitions.into_iter().next();
    let partition = partition.ok_or_else(|| Error::engine("it was cut into nothing"))?;
    Ok(CutModel { partition, cut: None, recut: BTreeMap::new() })
}

impl CutModel {
    /// Writes it, and what others are cut into.
    fn keep(&self, repository: &Repository, name: &str) -> Result<()> {
        repository.put_model(name, &self.partition)?;
        if let Some(cut) = &self.cut {
            repository.put_segments(name, cut)?;
        }
        for (other, (recut, cut)) in &self.recut {
            repository.put_recut(other, recut, cut)?;
            tracing::info!(model = other, with = name, "cut further, for what they have in common");
        }
        Ok(())
    }

    fn describe(
        &self,
        repository: &Repository,
        name: &str,
        served: &[String],
    ) -> Result<StoredModel> {
        let mut graphs = BTreeMap::new();
        for other in served.iter().filter(|other| *other != name) {
            let graph = match self.recut.get(other) {
                Some((recut, _)) => recut.graph.clone(),
                // One that is gone shares nothing.
                None => match repository.read_model(other) {
                    Ok(graph) => graph,
                    Err(_) => continue,
                },
            };
            graphs.insert(other.clone(), graph);
        }
        let users = users_of_blocks(&graphs);
        let graph = &self.partition.graph;
        let blocks = graph.blocks.iter().map(|node| {
            let block = self.partition.blocks.get(&node.block);
            let shared_with = users.get(&node.block).cloned().unwrap_or_default();
            ModelBlock {
                hash: node.block.to_string(),
                weight_bytes: block.map_or(0, |block| block.weight_bytes() as u64),
                shared_with: shared_with.into_iter().collect(),
            }
        });
        let weights = self.partition.weights.iter();
        let is_new = |hash: &ContentHash| {
            !repository.has_content(ContentName { kind: ContentKind::Weight, hash: *hash })
        };
        let new = weights.filter(|(hash, _)| is_new(hash)).map(|(_, bytes)| bytes.len() as u64);
        let blocks: Vec<ModelBlock> = blocks.collect();
        let shared = distinct(&blocks).filter(|block| !block.shared_with.is_empty());
        Ok(StoredModel {
            new_weight_bytes: new.sum(),
            shared_weight_bytes: shared.map(|block| block.weight_bytes).sum(),
            recut: self.recut.keys().cloned().collect(),
            model: ModelStatus {
                name: name.to_owned(),
                hash: model_record(graph)?.0.to_string(),
                weight_bytes: self.partition.weight_bytes() as u64,
                exits: exits_of(graph),
                blocks,
            },
            is_kept: false,
        })
    }
}

/// Per block, the models that have it.
fn users_of_blocks(
    graphs: &BTreeMap<String, BlockGraph>,
) -> HashMap<ContentHash, BTreeSet<String>> {
    let mut users: HashMap<ContentHash, BTreeSet<String>> = HashMap::new();
    for (name, graph) in graphs {
        for block in graph.distinct_blocks() {
            users.entry(block).or_default().insert(name.clone());
        }
    }
    users
}

fn describe_model(
    repository: &Repository,
    name: &str,
    hash: String,
    graph: &BlockGraph,
    users: &HashMap<ContentHash, BTreeSet<String>>,
) -> Result<ModelStatus> {
    let mut blocks = Vec::with_capacity(graph.blocks.len());
    for node in &graph.blocks {
        let others = users.get(&node.block).into_iter().flatten().filter(|user| *user != name);
        blocks.push(ModelBlock {
            hash: node.block.to_string(),
            weight_bytes: repository.read_block(node.block)?.weight_bytes() as u64,
            shared_with: others.cloned().collect(),
        });
    }
    let weight_bytes = distinct(&blocks).map(|block| block.weight_bytes).sum();
    Ok(ModelStatus { name: name.to_owned(), hash, weight_bytes, exits: exits_of(graph), blocks })
}

/// Each block once.
fn distinct(blocks: &[ModelBlock]) -> impl Iterator<Item = &ModelBlock> {
    let mut seen = HashSet::new();
    blocks.iter().filter(move |block| seen.insert(&block.hash))
}

fn exits_of(graph: &BlockGraph) -> Vec<String> {
    graph.exits.iter().map(|exit| exit.output.clone()).collect()
}

/// Has a repository know the segments of a model that it has under this name, so that it can be cut
/// further for others.
pub(crate) fn keep_segments(
    repository: &Repository,
    name: &str,
    model: &SharedModel<'_>,
    partition: &Partition,
) -> Result<()> {
    match find_segments(model, partition)? {
        Some(cut) => repository.put_segments(name, &cut),
        None => Ok(()),
    }
}
