//! The hashes of a graph's weights, each taken once and on all cores.

use std::collections::HashMap;

use tessera_core::ContentHash;

use crate::block::INLINE_BYTES;
use crate::model::{Graph, ValueId, Weight};

/// Hashes of a graph's weights, each taken once.
pub(crate) struct WeightHashes(HashMap<ValueId, ContentHash>);

impl WeightHashes {
    /// Hashes every dense weight, on as many threads as there are cores.
    pub(crate) fn of_graph(graph: &Graph) -> Self {
        let weights: Vec<(ValueId, &Weight)> =
            graph.weights().filter(|(_, weight)| weight.byte_len() > INLINE_BYTES).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            let mut hashes = Vec::new();
            loop {
                let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some((id, weight)) = weights.get(index) else {
                    return hashes;
                };
                if let Some(hash) = weight.content_hash() {
                    hashes.push((*id, hash));
                }
            }
        };
        let hashes = std::thread::scope(|scope| {
            let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut hashes = work();
            // A worker can't panic; were it to, its hashes would be taken when needed.
            hashes.extend(workers.into_iter().filter_map(|w| w.join().ok()).flatten());
            hashes
        });
        Self(hashes.into_iter().collect())
    }

    /// Hashes that are known, of weights that may not be here.
    pub(crate) fn of_known(known: impl IntoIterator<Item = (ValueId, ContentHash)>) -> Self {
        Self(known.into_iter().collect())
    }

    pub(crate) fn get(&self, id: ValueId, weight: &Weight) -> Option<ContentHash> {
        self.0.get(&id).copied().or_else(|| weight.content_hash())
    }
}
