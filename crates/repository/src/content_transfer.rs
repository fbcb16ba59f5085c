//! Content that goes from one repository to another: what it is called, and reading it in parts.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use tessera_core::{ContentHash, ContentTree, Error, Result};
use tessera_engine::{FileMapping, SharedFileMapping};

use crate::files::{self, ContentKind, content_path, io_error};
use crate::store::Repository;

/// How the names of files begin that are parts of some content.
pub(crate) const IMPORT_PREFIX: &str = "import-";

/// A part of some content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// The length of all of it.
    pub total: u64,
    /// What is there from the offset on, as much as was asked for or less.
    pub bytes: Vec<u8>,
}

/// Content that a repository lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentName {
    /// What it is.
    pub kind: ContentKind,
    /// Its hash.
    pub hash: ContentHash,
}

impl fmt::Display for ContentName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} {}", self.kind.display_name(), self.hash.short_hex())
    }
}

impl ContentKind {
    /// The kind of this name: `block`, `weight` or `model`.
    pub fn from_name(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|kind| kind.display_name() == name);
        found.ok_or_else(|| {
            Error::invalid(format!(
                "\"{name}\" is no kind of content, expected block, weight or model"
            ))
        })
    }
}

impl Repository {
    /// At most so many bytes of some content, from an offset on.
    pub fn read_content_range(
        &self,
        name: ContentName,
        offset: u64,
        most: usize,
    ) -> Result<ContentRange> {
        let path = content_path(self.root(), name.kind, name.hash);
        let read = || -> std::io::Result<ContentRange> {
            let mut file = File::open(&path)?;
            let total = file.metadata()?.len();
            file.seek(SeekFrom::Start(offset))?;
            let left = usize::try_from(total.saturating_sub(offset)).unwrap_or(usize::MAX);
            let mut bytes = Vec::with_capacity(left.min(most));
            file.take(most as u64).read_to_end(&mut bytes)?;
            Ok(ContentRange { total, bytes })
        };
        read().map_err(|error| io_error(&path, &error).with_context(name.to_string()))
    }

    /// Whether some content is there. Whoever loads it checks it.
    pub fn has_content(&self, name: ContentName) -> bool {
        content_path(self.root(), name.kind, name.hash).exists()
    }

    /// The weights of a block, each once; the block itself is here.
    pub fn weights_of(&self, block: ContentHash) -> Result<Vec<ContentName>> {
        let block = self.read_block(block)?;
        let weights = block.weights().iter().map(|weight| weight.hash);
        let weights: BTreeSet<ContentHash> = weights.collect();
        let name = |hash| ContentName { kind: ContentKind::Weight, hash };
        Ok(weights.into_iter().map(name).collect())
    }

    /// The weights of a block that are not here, each once; the block itself is.
    pub fn missing_weights(&self, block: ContentHash) -> Result<Vec<ContentName>> {
        let weights = self.weights_of(block)?;
        Ok(weights.into_iter().filter(|weight| !self.has_content(*weight)).collect())
    }

    /// The blocks that are here with all of their weights. What is damaged is left out.
    pub fn whole_blocks(&self) -> Result<Vec<ContentHash>> {
        let blocks = files::list_content(self.root(), ContentKind::Block)?;
        let is_whole = |hash: &ContentHash| {
            self.missing_weights(*hash).is_ok_and(|missing| missing.is_empty())
        };
        Ok(blocks.into_iter().map(|(hash, ..)| hash).filter(is_whole).collect())
    }

    /// The length of some content.
    pub fn content_length(&self, name: ContentName) -> Result<u64> {
        let path = content_path(self.root(), name.kind, name.hash);
        let found = fs::metadata(&path);
        let found = found.map_err(|error| io_error(&path, &error).with_context(name.to_string()));
        Ok(found?.len())
    }

    /// What the ranges of some content are checked with; an error where the content is not what its
    /// name says.
    pub fn read_content_tree(&self, name: ContentName) -> Result<ContentTree> {
        self.map_content(name).map(|(_, tree)| tree)
    }

    /// Some content, mapped and checked, with what its ranges are checked with.
    pub fn map_content(&self, name: ContentName) -> Result<(Bytes, ContentTree)> {
        // There is nothing to map in a file without bytes.
        let bytes = if self.content_length(name)? == 0 {
            Bytes::new()
        } else {
            let path = content_path(self.root(), name.kind, name.hash);
            let mapping = FileMapping::map_file(&path);
            let mapping = mapping.map_err(|error| error.with_context(name.to_string()))?;
            Bytes::from_owner(SharedFileMapping(Arc::new(mapping)))
        };
        let tree = ContentTree::of_content(&bytes);
        if tree.content_hash() == name.hash {
            return Ok((bytes, tree));
        }
        Err(Error::corrupt(format!("{name}: the file was cut short or altered")))
    }
}
