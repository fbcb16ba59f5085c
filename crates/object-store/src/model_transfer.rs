//! Models that go to a store and come from there, with all that they need.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use tessera_core::{ContentHash, Error, ErrorKind, Result};
use tessera_repository::{
    ContentFetcher, ContentKind, ContentName, ContentSource, ModelDescription, Repository,
    check_model_name,
};

use crate::blob_store::read_whole;
use crate::object_store::ObjectStore;

/// Largest file of a name, and of a description.
const LARGEST_NAME: u64 = 1024;
const LARGEST_DESCRIPTION: u64 = 64 << 20;

/// A model that was put into a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PushedModel {
    /// What it is called.
    pub model: String,
    /// Blocks, weights and records that were not there before.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
}

/// A model that was fetched from a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PulledModel {
    /// What it is called.
    pub model: String,
    /// Blocks, weights and records that were not here before.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
}

impl ObjectStore {
    /// The models that are there.
    pub fn list_models(&self) -> Result<Vec<String>> {
        let names = self.blobs.list_names("names").map_err(|error| self.named(error))?;
        Ok(names.into_iter().filter(|name| check_model_name(name).is_ok()).collect())
    }

    /// Whether a model of a repository is there as it is here, with all that it needs.
    pub fn has_model(&self, repository: &Repository, model: &str) -> Result<bool> {
        let hash = match repository.model_hash(model) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            found => found?,
        };
        let found = match self.find_model(model) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            found => found?,
        };
        // Its name came last.
        Ok(found == hash && self.read_description(model)? == repository.read_description(model)?)
    }

    /// Puts a model there, with what it needs and is not there; its name comes last.
    pub fn push_model(
        &self,
        repository: &Repository,
        model: &str,
        progress: &dyn Fn(u64),
    ) -> Result<PushedModel> {
        let graph = repository.read_model(model)?;
        let blocks = graph.distinct_blocks();
        let mut names = BTreeSet::new();
        for block in &blocks {
            names.extend(repository.weights_of(*block)?);
        }
        let hash = repository.model_hash(model)?;
        let block = |hash: &ContentHash| ContentName { kind: ContentKind::Block, hash: *hash };
        let record = ContentName { kind: ContentKind::Model, hash };
        let mut pushed = PushedModel { model: model.to_owned(), files: 0, bytes: 0 };
        let all = names.into_iter().chain(blocks.iter().map(block)).chain([record]);
        for name in all {
            let bytes = self.put_content(repository, name)?;
            pushed.files += usize::from(bytes > 0);
            pushed.bytes += bytes;
            progress(bytes);
        }
        let description = repository.read_description(model)?.to_json()?;
        let named = format!("{hash}\n");
        self.blobs
            .replace(&format!("descriptions/{model}"), description.into())
            .and_then(|()| self.blobs.replace(&format!("names/{model}"), named.into()))
            .map_err(|error| self.named(error))?;
        Ok(pushed)
    }

    /// Fetches a model with all that it needs and is not here; its name comes last.
    pub fn pull_model(
        self: &Arc<Self>,
        repository: &Repository,
        fetcher: &ContentFetcher,
        model: &str,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<PulledModel> {
        let pulling = Pulling::new(self, repository, fetcher, progress);
        let hash = pulling.pull_blocks(model)?;
        pulling.pull_weights(hash)?;
        pulling.keep_name(model, hash)?;
        Ok(pulling.pulled(model))
    }

    /// The same without its weights, which whoever runs it fetches from there.
    pub fn pull_graph(
        self: &Arc<Self>,
        repository: &Repository,
        fetcher: &ContentFetcher,
        model: &str,
    ) -> Result<PulledModel> {
        let pulling = Pulling::new(self, repository, fetcher, &|_| ());
        let hash = pulling.pull_blocks(model)?;
        pulling.keep_name(model, hash)?;
        Ok(pulling.pulled(model))
    }

    fn find_model(&self, model: &str) -> Result<ContentHash> {
        check_model_name(model)?;
        let named = read_whole(&*self.blobs, &format!("names/{model}"), LARGEST_NAME);
        let Some(named) = named.map_err(|error| self.named(error))? else {
            let known = self.list_models()?.join(", ");
            let known = if known.is_empty() { "nothing".to_owned() } else { known };
            let name = self.source_name();
            return Err(Error::not_found(format!(
                "no model \"{model}\" in {name}, which has {known}"
            )));
        };
        let hash = String::from_utf8_lossy(&named).trim().parse();
        hash.map_err(|_| {
            let name = self.source_name();
            Error::corrupt(format!("{name}: names/{model}: expected the hash of a model in it"))
        })
    }

    fn read_description(&self, model: &str) -> Result<ModelDescription> {
        let path = format!("descriptions/{model}");
        let read = read_whole(&*self.blobs, &path, LARGEST_DESCRIPTION);
        let read = read.map_err(|error| self.named(error))?;
        read.map_or_else(
            || Ok(ModelDescription::default()),
            |text| ModelDescription::from_json(&text).map_err(|error| self.named(error)),
        )
    }
}

/// A model that is being fetched.
struct Pulling<'a> {
    store: &'a Arc<ObjectStore>,
    repository: &'a Repository,
    fetcher: &'a ContentFetcher,
    progress: &'a (dyn Fn(u64) + Sync),
    files: AtomicU64,
    bytes: AtomicU64,
}

impl<'a> Pulling<'a> {
    fn new(
        store: &'a Arc<ObjectStore>,
        repository: &'a Repository,
        fetcher: &'a ContentFetcher,
        progress: &'a (dyn Fn(u64) + Sync),
    ) -> Self {
        let (files, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { store, repository, fetcher, progress, files, bytes }
    }

    fn pull_blocks(&self, model: &str) -> Result<ContentHash> {
        let hash = self.store.find_model(model)?;
        self.fetch(&[ContentName { kind: ContentKind::Model, hash }])?;
        let blocks = self.repository.read_graph(hash)?.distinct_blocks();
        let block = |hash| ContentName { kind: ContentKind::Block, hash };
        let blocks: Vec<ContentName> = blocks.into_iter().map(block).collect();
        self.fetch(&blocks)?;
        Ok(hash)
    }

    fn pull_weights(&self, hash: ContentHash) -> Result<()> {
        let mut weights = BTreeSet::new();
        for block in self.repository.read_graph(hash)?.distinct_blocks() {
            weights.extend(self.repository.missing_weights(block)?);
        }
        self.fetch(&weights.into_iter().collect::<Vec<_>>())
    }

    fn keep_name(&self, model: &str, hash: ContentHash) -> Result<()> {
        self.repository.put_description(model, &self.store.read_description(model)?)?;
        self.repository.put_name(model, hash)
    }

    fn fetch(&self, names: &[ContentName]) -> Result<()> {
        let missing = names.iter().copied().filter(|name| !self.repository.has_content(*name));
        let missing: Vec<ContentName> = missing.collect();
        let sources = |_| vec![Arc::clone(self.store) as Arc<dyn ContentSource>];
        let note = |name| {
            let bytes = self.repository.content_length(name).unwrap_or_default();
            self.files.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            (self.progress)(bytes);
        };
        self.fetcher.fetch_all(self.repository, &missing, &sources, &note)
    }

    fn pulled(&self, model: &str) -> PulledModel {
        PulledModel {
            model: model.to_owned(),
            files: self.files.load(Ordering::Relaxed) as usize,
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}
