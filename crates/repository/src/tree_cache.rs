//! What ranges are checked with, for whoever serves content: found out when it is asked for, and
//! remembered for a while.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tessera_core::{ContentTree, RANGE_BYTES, Result, lock};

use crate::content_transfer::ContentName;
use crate::store::Repository;

/// How many ranges are remembered: 2 MB, for 64 GiB of content.
const MOST_RANGES: u64 = (64 << 30) / RANGE_BYTES;

/// The trees of what was asked for last.
#[derive(Default)]
pub struct TreeCache(Mutex<VecDeque<(ContentName, Arc<ContentTree>)>>);

impl TreeCache {
    /// The tree of some content. All of it is read where it was not asked for lately.
    pub fn tree_of(&self, repository: &Repository, name: ContentName) -> Result<Arc<ContentTree>> {
        let known = {
            let known = lock(&self.0);
            known.iter().find(|(known, _)| *known == name).map(|(_, tree)| Arc::clone(tree))
        };
        if let Some(tree) = known {
            return Ok(tree);
        }
        let tree = Arc::new(repository.read_content_tree(name)?);
        let mut known = lock(&self.0);
        known.push_back((name, Arc::clone(&tree)));
        let ranges = |known: &VecDeque<(ContentName, Arc<ContentTree>)>| {
            known.iter().map(|(_, tree)| tree.range_count()).sum::<u64>()
        };
        while known.len() > 1 && ranges(&known) > MOST_RANGES {
            known.pop_front();
        }
        Ok(tree)
    }
}
