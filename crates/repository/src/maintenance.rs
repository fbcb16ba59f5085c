//! What a repository holds, what is wrong with it, and removing what no model needs.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use serde::Serialize;
use tessera_core::{ContentHash, Result};
use tessera_engine::FileMapping;

use crate::content_transfer::{ContentName, IMPORT_PREFIX};
use crate::files::{self, ContentKind, io_error};
use crate::load;
use crate::store::Repository;

/// How much there is in a repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepositoryUsage {
    /// Models that have a name.
    pub models: usize,
    /// Blocks.
    pub blocks: usize,
    /// Weights.
    pub weights: usize,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Bytes of everything.
    pub total_bytes: u64,
}

/// What [`Repository::collect_garbage`] removed, or would remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Graphs of blocks that no name leads to.
    pub models: usize,
    /// Blocks that no model uses.
    pub blocks: usize,
    /// Weights that no block uses.
    pub weights: usize,
    /// Files that writers left behind.
    pub unfinished: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Something that is wrong with a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepositoryProblem {
    /// What is wrong, in one line.
    pub message: String,
}

impl Repository {
    /// How much there is.
    pub fn measure_usage(&self) -> Result<RepositoryUsage> {
        let mut usage =
            RepositoryUsage { models: self.model_names()?.len(), ..RepositoryUsage::default() };
        for kind in ContentKind::ALL {
            let found = files::list_content(self.root(), kind)?;
            let bytes: u64 = found.iter().map(|(_, _, length)| length).sum();
            usage.total_bytes += bytes;
            match kind {
                ContentKind::Block => usage.blocks = found.len(),
                ContentKind::Weight => {
                    usage.weights = found.len();
                    usage.weight_bytes = bytes;
                }
                ContentKind::Model => {}
            }
        }
        Ok(usage)
    }

    /// Checks every file against its hash and every reference; calls `progress` with bytes done.
    pub fn verify_integrity(
        &self,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<RepositoryProblem>> {
        let mut problems = Vec::new();
        for kind in ContentKind::ALL {
            for (hash, path, length) in files::list_content(self.root(), kind)? {
                let sound = FileMapping::map_file(&path)
                    .and_then(|mapping| load::check_hash(kind, hash, mapping.as_ref()));
                problems.extend(
                    sound.err().map(|error| RepositoryProblem { message: error.to_string() }),
                );
                progress(length);
            }
        }
        let mut note = |error: tessera_core::Error| {
            let message = error.to_string();
            if !problems.iter().any(|known| message.ends_with(&known.message)) {
                problems.push(RepositoryProblem { message });
            }
        };
        for name in self.model_names()? {
            match self.read_model(&name) {
                Err(error) => note(error),
                Ok(graph) => {
                    for hash in graph.distinct_blocks() {
                        if let Err(error) = self.load_program(hash) {
                            note(error.with_context(format!("model \"{name}\"")));
                        }
                    }
                }
            }
        }
        Ok(problems)
    }

    /// Removes what neither a model needs nor a server that runs; with `pretend`, only says what it
    /// would remove.
    ///
    /// Waits for writers to finish and keeps new ones out while it works.
    pub fn collect_garbage(&self, pretend: bool) -> Result<GcReport> {
        let lock = files::lock_file(self.root())?;
        lock.lock().map_err(|error| io_error(&self.root().join("lock"), &error))?;
        let needed = self.needed_content(pretend)?;
        let mut report = GcReport::default();
        for kind in ContentKind::ALL {
            for (hash, path, length) in files::list_content(self.root(), kind)? {
                if needed.contains(&(kind, hash)) {
                    continue;
                }
                match kind {
                    ContentKind::Block => report.blocks += 1,
                    ContentKind::Weight => report.weights += 1,
                    ContentKind::Model => report.models += 1,
                }
                report.bytes += length;
                if !pretend {
                    fs::remove_file(&path).map_err(|error| io_error(&path, &error))?;
                }
            }
        }
        for path in files::read_folder(&self.root().join("tmp"))? {
            if is_import_of(&path, &needed) {
                continue;
            }
            report.unfinished += 1;
            report.bytes += fs::metadata(&path).map_or(0, |found| found.len());
            if !pretend {
                fs::remove_file(&path).map_err(|error| io_error(&path, &error))?;
            }
        }
        Ok(report)
    }

    /// What models need, and servers that run.
    fn needed_content(&self, pretend: bool) -> Result<HashSet<(ContentKind, ContentHash)>> {
        let mut needed: HashSet<(ContentKind, ContentHash)> = HashSet::new();
        let held = self.held_content(!pretend)?;
        let held: HashSet<ContentHash> =
            held.into_iter().flat_map(|user| user.content.blocks).collect();
        let mut blocks: HashSet<ContentHash> = HashSet::new();
        for &hash in &held {
            needed.insert((ContentKind::Block, hash));
            // A node may hold what it is about to fetch.
            if self.has_content(ContentName { kind: ContentKind::Block, hash }) {
                blocks.insert(hash);
            }
        }
        for entry in self.list_models()? {
            needed.insert((ContentKind::Model, entry.hash));
            // A model that can't be read stops the collection: what it needs can't be known.
            blocks.extend(self.read_graph(entry.hash)?.distinct_blocks());
        }
        for hash in blocks {
            needed.insert((ContentKind::Block, hash));
            let weights = self.read_block(hash)?;
            needed.extend(weights.weights().iter().map(|w| (ContentKind::Weight, w.hash)));
        }
        Ok(needed)
    }
}

/// Whether a file is a part of some content that is needed, and is being fetched.
fn is_import_of(path: &Path, needed: &HashSet<(ContentKind, ContentHash)>) -> bool {
    let content = |name: &str| {
        let (kind, hash) = name.strip_prefix(IMPORT_PREFIX)?.split_once('-')?;
        Some((ContentKind::from_name(kind).ok()?, hash.parse().ok()?))
    };
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(content).is_some_and(|content| needed.contains(&content))
}
