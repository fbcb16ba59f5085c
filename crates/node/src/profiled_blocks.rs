//! What was found out of blocks that could run here, by themselves.

use std::collections::HashMap;
use std::time::Duration;

use tessera_core::ContentHash;
use tessera_deploy::{Batching, BatchingChoice, Unit};

use crate::calibration::Calibration;

/// How long blocks take here.
#[derive(Default)]
pub(crate) struct ProfiledBlocks(HashMap<ContentHash, Calibration>);

impl ProfiledBlocks {
    /// A unit of one block was tried.
    pub(crate) fn add_profile(&mut self, unit: &Unit, calibration: Calibration) {
        if let [node] = &unit.graph.blocks[..] {
            self.0.insert(node.block, calibration);
        }
    }

    /// What follows for a unit; `None` where one of its blocks was not tried.
    pub(crate) fn calibration_of(&self, unit: &Unit) -> Option<Calibration> {
        let blocks = unit.block_hashes().map(|hash| self.0.get(&hash).copied());
        let blocks: Vec<Calibration> = blocks.collect::<Option<_>>()?;
        let time: Duration = blocks.iter().map(|block| block.time).sum();
        let batching = match unit.settings.batching {
            BatchingChoice::On(batching) if unit.is_batchable => Some(batching),
            BatchingChoice::Auto if unit.is_batchable => {
                // Together they pay where each does.
                let each: Option<Vec<Batching>> =
                    blocks.iter().map(|block| block.batching).collect();
                each.and_then(|each| each.into_iter().min_by_key(|batching| batching.max_rows))
            }
            _ => None,
        };
        Some(Calibration { time, batching })
    }
}
