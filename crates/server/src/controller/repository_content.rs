//! The repository as what nodes fetch content from.

use std::path::PathBuf;

use tessera_control::{ContentReader, ContentSlice};
use tessera_core::{ContentHash, Result};
use tessera_repository::{ContentKind, ContentName, Repository};

/// Reads content of a repository.
pub(super) struct RepositoryContent {
    repository: PathBuf,
}

impl RepositoryContent {
    pub(super) fn new(repository: PathBuf) -> Self {
        Self { repository }
    }
}

impl ContentReader for RepositoryContent {
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

    fn weight_bytes(&self, block: ContentHash) -> Result<u64> {
        Ok(Repository::open(&self.repository)?.read_block(block)?.weight_bytes() as u64)
    }
}
