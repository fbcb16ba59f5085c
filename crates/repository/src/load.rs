//! Reading content, never believing it before its hash was checked.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use tessera_core::{ContentHash, Error, Result, Tensor, lock};
use tessera_engine::{FileMapping, Program, ProgramWeight, SharedFileMapping};
use tessera_graph::{Block, WeightRef};

use crate::files::{ContentKind, content_path};
use crate::store::{MappedWeight, Repository};

impl Repository {
    /// A block with its weights, mapped and checked.
    pub fn load_program(&self, hash: ContentHash) -> Result<Program> {
        let with_context = |error: Error| error.with_context(format!("block {}", hash.short_hex()));
        let block = self.read_block(hash)?;
        let weights = block
            .weights()
            .iter()
            .map(|reference| self.load_weight(reference))
            .collect::<Result<Vec<_>>>()
            .map_err(with_context)?;
        Program::new(block, weights)
    }

    /// A block without its weights.
    pub fn read_block(&self, hash: ContentHash) -> Result<Block> {
        let bytes = self.read_checked(ContentKind::Block, hash)?;
        Block::parse_program(bytes.into())
            .map_err(|error| error.with_context(format!("block {}", hash.short_hex())))
    }

    fn load_weight(&self, reference: &WeightRef) -> Result<ProgramWeight> {
        let mapping = self.map_weight(reference.hash)?;
        let bytes = Bytes::from_owner(SharedFileMapping(Arc::clone(&mapping)));
        let tensor =
            Tensor::from_bytes(reference.dtype, &reference.shape, bytes).map_err(|error| {
                error.with_context(format!("weight {}", reference.hash.short_hex()))
            })?;
        Ok(ProgramWeight { tensor, mapping: Some(mapping) })
    }

    /// Maps a weight; one that is mapped already is shared, and was checked then.
    fn map_weight(&self, hash: ContentHash) -> Result<MappedWeight> {
        let table = || lock(&self.mapped_weights);
        let is_intact = |known: &MappedWeight| known.check_intact().is_ok();
        if let Some(known) = table().get(&hash).and_then(Weak::upgrade).filter(is_intact) {
            return Ok(known);
        }
        let path = content_path(self.root(), ContentKind::Weight, hash);
        let mapping = FileMapping::map_file(&path)
            .map_err(|error| content_error(ContentKind::Weight, hash, error))?;
        check_hash(ContentKind::Weight, hash, mapping.as_ref())?;
        let mapping = Arc::new(mapping);
        let mut table = table();
        table.retain(|_, known| known.strong_count() > 0);
        if let Some(known) = table.get(&hash).and_then(Weak::upgrade).filter(is_intact) {
            return Ok(known);
        }
        table.insert(hash, Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// The bytes of some content, checked.
    pub(crate) fn read_checked(&self, kind: ContentKind, hash: ContentHash) -> Result<Vec<u8>> {
        let path = content_path(self.root(), kind, hash);
        let bytes = std::fs::read(&path)
            .map_err(|error| content_error(kind, hash, Error::from_io(path.display(), &error)))?;
        check_hash(kind, hash, &bytes)?;
        Ok(bytes)
    }
}

fn content_error(kind: ContentKind, hash: ContentHash, error: Error) -> Error {
    error.with_context(format!("{} {}", kind.display_name(), hash.short_hex()))
}

/// Refuses content that is not what its name says.
pub(crate) fn check_hash(kind: ContentKind, hash: ContentHash, bytes: &[u8]) -> Result<()> {
    let found = ContentHash::of_content(bytes);
    if found == hash {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "{} {}: the file was cut short or altered: its {} bytes have the hash {}",
        kind.display_name(),
        hash.short_hex(),
        bytes.len(),
        found.short_hex()
    )))
}
