//! The segments of models, beside them: from there they are cut anew without the files that they
//! came from. A model without is served as it is, and is never cut further.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tessera_core::{ContentHash, Error, Result};
use tessera_engine::FileMapping;
use tessera_graph::{Block, BlockGraph, ModelCut, RecutModel, SegmentedModel};

use crate::files::{self, ContentKind, io_error};
use crate::store::{Repository, check_model_name, model_record};

/// What the file has before its blocks, as JSON, after its length in eight bytes. The hash of all
/// that comes first.
#[derive(Serialize, Deserialize)]
struct SegmentsHeader {
    /// The model that was cut so.
    model: ContentHash,
    borders: Vec<usize>,
    graph: BlockGraph,
    /// How long each block is that follows.
    lengths: Vec<usize>,
}

impl Repository {
    /// Keeps the segments of the model that has this name.
    pub fn put_segments(&self, name: &str, cut: &ModelCut) -> Result<()> {
        let model = self.model_hash(name)?;
        let _writing = self.lock_to_write()?;
        self.write_segments(name, model, cut)
    }

    /// The segments of the model that has this name, where they are kept.
    pub fn read_segments(&self, name: &str) -> Result<Option<ModelCut>> {
        let model = self.model_hash(name)?;
        let path = self.segments_path(name);
        if !path.exists() {
            return Ok(None);
        }
        let mapping = FileMapping::map_file(&path)?;
        let read = parse_segments(mapping.as_ref(), model);
        read.map_err(|error| error.with_context(path.display().to_string()))
    }

    /// Has a name mean the same model cut elsewhere; its weights are here.
    pub fn put_recut(&self, name: &str, recut: &RecutModel, cut: &ModelCut) -> Result<ContentHash> {
        check_model_name(name)?;
        let _writing = self.lock_to_write()?;
        let model = self.write_graph(name, &recut.graph, recut.blocks.values())?;
        self.write_segments(name, model, cut)?;
        self.write_name(name, model)?;
        Ok(model)
    }

    fn write_segments(&self, name: &str, model: ContentHash, cut: &ModelCut) -> Result<()> {
        let programs: Vec<&Bytes> = cut.segments.blocks().map(Block::program).collect();
        let header = SegmentsHeader {
            model,
            borders: cut.borders.clone(),
            graph: cut.segments.graph().clone(),
            lengths: programs.iter().map(|program| program.len()).collect(),
        };
        let header = serde_json::to_vec(&header)
            .map_err(|error| Error::invalid(format!("model \"{name}\": {error}")))?;
        let mut content = (header.len() as u64).to_le_bytes().to_vec();
        content.extend(header);
        programs.iter().for_each(|program| content.extend_from_slice(program));
        content.splice(..0, *ContentHash::of_content(&content).as_bytes());
        files::write_atomically(self.root(), &self.segments_path(name), &content)
    }

    /// Forgets the segments of what had a name.
    pub(crate) fn remove_segments(&self, name: &str) -> Result<()> {
        let path = self.segments_path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io_error(&path, &error))
            }
            _ => Ok(()),
        }
    }

    fn segments_path(&self, name: &str) -> PathBuf {
        self.root().join("segments").join(Path::new(name))
    }

    /// Writes how blocks hang together, and the blocks.
    pub(crate) fn write_graph<'a>(
        &self,
        name: &str,
        graph: &BlockGraph,
        blocks: impl Iterator<Item = &'a Block>,
    ) -> Result<ContentHash> {
        for block in blocks {
            files::put_content(self.root(), ContentKind::Block, block.hash(), block.program())?;
        }
        let record = model_record(graph);
        let (hash, record) =
            record.map_err(|error| error.with_context(format!("model \"{name}\"")))?;
        files::put_content(self.root(), ContentKind::Model, hash, &record)?;
        Ok(hash)
    }
}

/// Reads the file; nothing where it is of another model than this one.
fn parse_segments(content: &[u8], model: ContentHash) -> Result<Option<ModelCut>> {
    let damaged = || Error::corrupt("no segments of a model; put the model again");
    let (hash, content) = content.split_first_chunk::<32>().ok_or_else(damaged)?;
    if ContentHash::of_content(content).as_bytes() != hash {
        return Err(damaged());
    }
    let (length, rest) = content.split_first_chunk().ok_or_else(damaged)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| damaged())?;
    let header = rest.get(..length).ok_or_else(damaged)?;
    let header: SegmentsHeader = serde_json::from_slice(header).map_err(|_| damaged())?;
    if header.model != model {
        return Ok(None);
    }
    let mut left = &rest[length..];
    let mut blocks = Vec::with_capacity(header.lengths.len());
    for length in header.lengths {
        let (program, after) = left.split_at_checked(length).ok_or_else(damaged)?;
        left = after;
        blocks.push(Block::parse_program(Bytes::copy_from_slice(program)).map_err(|_| damaged())?);
    }
    let segments = SegmentedModel::of_parts(header.graph, blocks).map_err(|_| damaged())?;
    Ok(Some(ModelCut { segments, borders: header.borders }))
}
