//! Where the blocks to load come from.

use tessera_core::{ContentHash, Error, Result, Tensor};
use tessera_engine::{Program, ProgramWeight};
use tessera_graph::Partition;

/// Something that has blocks with their weights.
pub trait ProgramSource {
    /// The block of this hash, with its weights.
    fn fetch_program(&self, hash: ContentHash) -> Result<Program>;
}

impl ProgramSource for Partition {
    fn fetch_program(&self, hash: ContentHash) -> Result<Program> {
        let missing = |what: &str, hash: ContentHash| {
            Error::not_found(format!("{what} {} is not part of the model", hash.short_hex()))
        };
        let block = self.blocks.get(&hash).ok_or_else(|| missing("block", hash))?;
        let weights = block
            .weights()
            .iter()
            .map(|reference| {
                let bytes = self
                    .weights
                    .get(&reference.hash)
                    .ok_or_else(|| missing("weight", reference.hash))?;
                let tensor = Tensor::from_bytes(reference.dtype, &reference.shape, bytes.clone())?;
                Ok(ProgramWeight { tensor, mapping: None })
            })
            .collect::<Result<_>>()?;
        Program::new(block.clone(), weights)
    }
}

impl ProgramSource for tessera_repository::Repository {
    fn fetch_program(&self, hash: ContentHash) -> Result<Program> {
        Self::load_program(self, hash)
    }
}
