//! The repository as what others fetch content from.

use std::path::PathBuf;
use std::sync::Arc;

use tessera_control::{ContentReader, ContentSlice, ServedContent};
use tessera_core::{ContentHash, ContentTree, Result};
use tessera_repository::{ContentKind, ContentName, Repository, TreeCache};

/// Reads content of a repository.
pub(crate) struct RepositoryContent {
    repository: PathBuf,
    trees: TreeCache,
    object_store: Option<String>,
}

impl RepositoryContent {
    pub(crate) fn new(repository: PathBuf) -> Self {
        Self { repository, trees: TreeCache::default(), object_store: None }
    }

    /// The same, with an object store that has it, too.
    pub(crate) fn with_object_store(self, object_store: Option<String>) -> Self {
        Self { object_store, ..self }
    }
}

impl ServedContent for RepositoryContent {
    fn read_content(
        &self,
        kind: &str,
        hash: ContentHash,
        offset: u64,
        most: usize,
    ) -> Result<ContentSlice> {
        let name = ContentName { kind: ContentKind::from_name(kind)?, hash };
        let read = Repository::open(&self.repository)?.read_content_range(name, offset, most)?;
        Ok(ContentSlice { total: read.total, bytes: read.bytes.into() })
    }

    fn content_tree(&self, kind: &str, hash: ContentHash) -> Result<Arc<ContentTree>> {
        let name = ContentName { kind: ContentKind::from_name(kind)?, hash };
        self.trees.tree_of(&Repository::open(&self.repository)?, name)
    }
}

impl ContentReader for RepositoryContent {
    fn weight_bytes(&self, block: ContentHash) -> Result<u64> {
        Ok(Repository::open(&self.repository)?.read_block(block)?.weight_bytes() as u64)
    }

    fn block_weights(&self, block: ContentHash) -> Result<Vec<ContentHash>> {
        let weights = Repository::open(&self.repository)?.weights_of(block)?;
        Ok(weights.into_iter().map(|weight| weight.hash).collect())
    }

    fn object_store(&self) -> Option<String> {
        self.object_store.clone()
    }
}
