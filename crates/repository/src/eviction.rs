//! Making room: blocks that nobody needs at the moment are removed, and can be had again.

use std::collections::{HashMap, HashSet};
use std::fs;

use tessera_core::{ContentHash, Result};

use crate::files::{self, ContentKind, content_path, io_error};
use crate::store::Repository;

/// What [`Repository::evict_blocks`] removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictedContent {
    /// The blocks.
    pub blocks: Vec<ContentHash>,
    /// Bytes of them and of their weights.
    pub bytes: u64,
}

impl Repository {
    /// The hashes of all blocks that are here.
    pub fn list_blocks(&self) -> Result<Vec<ContentHash>> {
        let blocks = files::list_content(self.root(), ContentKind::Block)?;
        Ok(blocks.into_iter().map(|(hash, ..)| hash).collect())
    }

    /// Removes blocks, those first that come first, each with the weights that no other block has,
    /// until there is room. What a model needs stays, and what another process holds.
    ///
    /// Waits for writers to finish and keeps new ones out while it works.
    pub fn evict_blocks(
        &self,
        blocks: &[ContentHash],
        mut has_room: impl FnMut() -> bool,
    ) -> Result<EvictedContent> {
        let lock = files::lock_file(self.root())?;
        lock.lock().map_err(|error| io_error(&self.root().join("lock"), &error))?;
        let needed = self.blocks_of_others()?;
        let mut uses: HashMap<ContentHash, usize> = HashMap::new();
        for hash in self.list_blocks()? {
            for weight in self.distinct_weights(hash)? {
                *uses.entry(weight).or_default() += 1;
            }
        }
        let mut evicted = EvictedContent::default();
        for &hash in blocks.iter().filter(|hash| !needed.contains(hash)) {
            if has_room() {
                break;
            }
            if !content_path(self.root(), ContentKind::Block, hash).exists() {
                continue;
            }
            let weights = self.distinct_weights(hash)?;
            // First, so that nothing is left of which a part is missing.
            evicted.bytes += self.remove_content(ContentKind::Block, hash)?;
            evicted.blocks.push(hash);
            for weight in weights {
                let count = uses.entry(weight).or_default();
                *count = count.saturating_sub(1);
                if *count == 0 {
                    evicted.bytes += self.remove_content(ContentKind::Weight, weight)?;
                }
            }
        }
        Ok(evicted)
    }

    /// What models need, and processes beside this one.
    fn blocks_of_others(&self) -> Result<HashSet<ContentHash>> {
        let own = std::process::id().to_string();
        let held = self.held_content(false)?.into_iter().filter(|user| user.process != own);
        let mut needed: HashSet<ContentHash> = held.flat_map(|user| user.content.blocks).collect();
        for entry in self.list_models()? {
            needed.extend(self.read_graph(entry.hash)?.distinct_blocks());
        }
        Ok(needed)
    }

    fn distinct_weights(&self, block: ContentHash) -> Result<HashSet<ContentHash>> {
        Ok(self.read_block(block)?.weights().iter().map(|weight| weight.hash).collect())
    }

    /// Removes some content where it is there; returns its bytes.
    fn remove_content(&self, kind: ContentKind, hash: ContentHash) -> Result<u64> {
        let path = content_path(self.root(), kind, hash);
        let Ok(found) = fs::metadata(&path) else { return Ok(0) };
        fs::remove_file(&path).map_err(|error| io_error(&path, &error))?;
        Ok(found.len())
    }
}
