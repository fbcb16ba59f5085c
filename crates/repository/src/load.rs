//! Reading content, never believing it before its hash was checked.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use tessera_core::{ContentHash, Error, Result, Tensor};
use tessera_engine::{Mapping, Program, ProgramWeight, SharedMapping};
use tessera_graph::{Block, WeightRef};

use crate::files::{Kind, content_path};
use crate::store::{Mapped, Repository};

impl Repository {
    /// A block with its weights, mapped and checked.
    pub fn program(&self, hash: ContentHash) -> Result<Program> {
        let within = |error: Error| error.within(format!("block {}", hash.short()));
        let block = self.block(hash)?;
        let weights = block
            .weights()
            .iter()
            .map(|reference| self.weight(reference))
            .collect::<Result<Vec<_>>>()
            .map_err(within)?;
        Program::new(block, weights)
    }

    /// A block without its weights.
    pub fn block(&self, hash: ContentHash) -> Result<Block> {
        let bytes = self.read_checked(Kind::Block, hash)?;
        Block::parse(bytes.into()).map_err(|error| error.within(format!("block {}", hash.short())))
    }

    fn weight(&self, reference: &WeightRef) -> Result<ProgramWeight> {
        let mapping = self.map_weight(reference.hash)?;
        let bytes = Bytes::from_owner(SharedMapping(Arc::clone(&mapping)));
        let tensor = Tensor::from_bytes(reference.dtype, &reference.shape, bytes)
            .map_err(|error| error.within(format!("weight {}", reference.hash.short())))?;
        Ok(ProgramWeight { tensor, mapping: Some(mapping) })
    }

    /// Maps a weight; one that is mapped already is shared, and was checked then.
    fn map_weight(&self, hash: ContentHash) -> Result<Mapped> {
        let table = || self.mapped.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = table().get(&hash).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let path = content_path(self.root(), Kind::Weight, hash);
        let mapping = Mapping::open(&path).map_err(|error| missing(Kind::Weight, hash, error))?;
        check(Kind::Weight, hash, mapping.as_ref())?;
        let mapping = Arc::new(mapping);
        let mut table = table();
        table.retain(|_, known| known.strong_count() > 0);
        if let Some(known) = table.get(&hash).and_then(Weak::upgrade) {
            return Ok(known);
        }
        table.insert(hash, Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// The bytes of some content, checked.
    pub(crate) fn read_checked(&self, kind: Kind, hash: ContentHash) -> Result<Vec<u8>> {
        let path = content_path(self.root(), kind, hash);
        let bytes = std::fs::read(&path)
            .map_err(|error| missing(kind, hash, Error::io(path.display(), &error)))?;
        check(kind, hash, &bytes)?;
        Ok(bytes)
    }
}

fn missing(kind: Kind, hash: ContentHash, error: Error) -> Error {
    error.within(format!("{} {}", kind.word(), hash.short()))
}

/// Refuses content that is not what its name says.
pub(crate) fn check(kind: Kind, hash: ContentHash, bytes: &[u8]) -> Result<()> {
    let found = ContentHash::of(bytes);
    if found == hash {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "{} {}: the file was cut short or altered: its {} bytes have the hash {}",
        kind.word(),
        hash.short(),
        bytes.len(),
        found.short()
    )))
}
