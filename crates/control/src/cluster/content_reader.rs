//! The content of a cluster, as its controller reads it.

use tessera_core::{ContentHash, Result};

use super::content_service::ServedContent;

/// The content of a cluster, and what is known of it; called where waiting for a disk does no harm.
pub trait ContentReader: ServedContent {
    /// Bytes of a block's weights.
    fn weight_bytes(&self, block: ContentHash) -> Result<u64>;

    /// The hashes of a block's weights.
    fn block_weights(&self, block: ContentHash) -> Result<Vec<ContentHash>>;

    /// Where the cluster's object store is, where it has one.
    fn object_store(&self) -> Option<String> {
        None
    }
}
