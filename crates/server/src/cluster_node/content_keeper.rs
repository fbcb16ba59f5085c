//! What stays in a node's repository: what runs here, and what could. Other processes can't remove
//! that, and the node itself removes what nobody has needed for a while when storage runs low.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_cluster::CandidateUnit;
use tessera_core::{ContentHash, Result, lock};
use tessera_deploy::Unit;
use tessera_repository::{
    ContentHolder, ContentKind, ContentName, ContentUse, EvictedContent, HeldContent, Repository,
};

/// Parts of the file system: storage is low where less is available, nothing is left to wait for
/// where it is less than that, and there is room again at so much.
const LOW_SHARE: f64 = 0.10;
const SCARCE_SHARE: f64 = 0.02;
const ROOM_SHARE: f64 = 0.15;
/// How long content must not have been needed to be removed where storage is low.
const UNNEEDED_TIME: Duration = Duration::from_secs(600);

/// Knows what of a node's repository is needed.
pub(super) struct ContentKeeper {
    repository: PathBuf,
    holder: Arc<ContentHolder>,
    state: Mutex<KeeperState>,
}

struct KeeperState {
    /// What nobody else can remove.
    held: Option<HeldContent>,
    held_blocks: HashSet<ContentHash>,
    /// Blocks that run here, or are to be at hand.
    needed: HashSet<ContentHash>,
    /// Until when others were needed; since the start where it is not known.
    needed_until: HashMap<ContentHash, Instant>,
    started: Instant,
}

impl ContentKeeper {
    /// A keeper that holds nothing yet.
    pub(super) fn new(repository: &Path) -> Result<Self> {
        let holder = Repository::open(repository)?.begin_holding()?;
        let state = KeeperState {
            held: None,
            held_blocks: HashSet::new(),
            needed: HashSet::new(),
            needed_until: HashMap::new(),
            started: Instant::now(),
        };
        Ok(Self { repository: repository.to_path_buf(), holder, state: Mutex::new(state) })
    }

    /// Holds what these units are made of, those that run and those that could, and nothing else.
    pub(super) fn hold_units(&self, units: &[Unit], candidates: &[CandidateUnit]) -> Result<()> {
        let at_hand = candidates.iter().filter(|candidate| candidate.prefetch);
        let needed = units.iter().chain(at_hand.map(|candidate| &candidate.unit));
        let possible = candidates.iter().map(|candidate| &candidate.unit);
        let needed = needed.flat_map(Unit::block_hashes).collect();
        self.hold_blocks(needed, possible.flat_map(Unit::block_hashes).collect())
    }

    /// The same for blocks that are needed, and others that may be.
    fn hold_blocks(
        &self,
        needed: HashSet<ContentHash>,
        mut blocks: HashSet<ContentHash>,
    ) -> Result<()> {
        blocks.extend(&needed);
        let mut state = lock(&self.state);
        let now = Instant::now();
        let before = std::mem::replace(&mut state.needed, needed);
        state.needed_until.extend(before.into_iter().map(|hash| (hash, now)));
        if state.held_blocks == blocks {
            return Ok(());
        }
        let content = ContentUse {
            task: "units of a cluster".to_owned(),
            models: Vec::new(),
            blocks: blocks.iter().copied().collect(),
        };
        // What was held before goes when this is there.
        state.held = Some(self.holder.hold_content(&content)?);
        state.held_blocks = blocks;
        Ok(())
    }

    /// Blocks that may be removed, those first that nobody has needed for the longest.
    fn unneeded_blocks(
        &self,
        repository: &Repository,
        least: Duration,
    ) -> Result<Vec<ContentHash>> {
        let all = repository.list_blocks()?;
        let state = lock(&self.state);
        let until = |hash: &ContentHash| state.needed_until.get(hash).copied();
        let until = |hash: &ContentHash| until(hash).unwrap_or(state.started);
        let is_unneeded =
            |hash: &ContentHash| !state.needed.contains(hash) && until(hash).elapsed() >= least;
        let mut found: Vec<ContentHash> = all.into_iter().filter(is_unneeded).collect();
        found.sort_by_key(until);
        Ok(found)
    }

    /// Makes room where storage is low, as far as there is something that is not needed; `share` is
    /// how much of the storage is available.
    pub(super) fn make_room(&self, share: impl Fn() -> f64) -> Result<EvictedContent> {
        let available = share();
        if available >= LOW_SHARE {
            return Ok(EvictedContent::default());
        }
        let least = if available < SCARCE_SHARE { Duration::ZERO } else { UNNEEDED_TIME };
        let repository = Repository::open(&self.repository)?;
        let unneeded = self.unneeded_blocks(&repository, least)?;
        if unneeded.is_empty() {
            return Ok(EvictedContent::default());
        }
        repository.evict_blocks(&unneeded, || share() >= ROOM_SHARE)
    }

    pub(super) fn has_block(&self, hash: ContentHash) -> bool {
        let repository = Repository::open(&self.repository);
        repository
            .is_ok_and(|found| found.has_content(ContentName { kind: ContentKind::Block, hash }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tessera_core::DType;
    use tessera_graph::builder::GraphBuilder;
    use tessera_graph::{NoExternalData, Split, infer, onnx, split_into_chain};

    use super::*;

    /// Blocks of a model that has no name here.
    fn store_blocks(folder: &Path) -> Vec<ContentHash> {
        let mut builder = GraphBuilder::new("chain");
        let mut value = builder.add_input("x", DType::F32, [1, 4]);
        for layer in 0..3u8 {
            let w = builder.add_weight("w", &[4, 4], vec![f32::from(layer); 16]);
            value = builder.add_node("MatMul", &[&value, &w], []);
        }
        builder.add_output(&value);
        let graph = onnx::read::from_proto(builder.build_model(), &mut NoExternalData).unwrap();
        let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
        let partition = split_into_chain(&graph, &types, &Split::Every, &[]).unwrap();
        let repository = Repository::open_or_create(folder).unwrap();
        repository.put_model("chain", &partition).unwrap();
        let blocks = repository.read_model("chain").unwrap().distinct_blocks();
        repository.remove_model("chain").unwrap();
        blocks
    }

    #[test]
    fn what_nobody_needed_for_a_while_goes_when_storage_is_low_and_what_runs_stays() {
        let folder = tempfile::tempdir().unwrap();
        let blocks = store_blocks(folder.path());
        let repository = Repository::open(folder.path()).unwrap();
        let keeper = ContentKeeper::new(folder.path()).unwrap();
        let there = || blocks.iter().map(|hash| keeper.has_block(*hash)).collect::<Vec<bool>>();
        let some = |range: std::ops::Range<usize>| blocks[range].iter().copied().collect();
        keeper.hold_blocks(some(0..2), some(2..3)).unwrap();
        // Nothing that is held is garbage to others.
        assert_eq!(repository.collect_garbage(false).unwrap().blocks, 0);
        keeper.make_room(|| 0.5).unwrap();
        // It may have been needed a moment ago, as far as this run knows.
        keeper.make_room(|| 0.05).unwrap();
        assert_eq!(there(), [true, true, true]);
        let evicted = keeper.make_room(|| 0.01).unwrap();
        assert_eq!(evicted.blocks, [blocks[2]]);
        assert!(evicted.bytes > 64, "its weights go with it: {evicted:?}");
        assert_eq!(there(), [true, true, false]);
        keeper.hold_blocks(some(0..1), some(0..0)).unwrap();
        assert_eq!(repository.collect_garbage(false).unwrap().blocks, 1);
        assert_eq!(there(), [true, false, false]);
        assert_eq!(keeper.make_room(|| 0.0).unwrap(), EvictedContent::default());
        // One that is about to be fetched keeps nobody from collecting, and a part of it stays.
        keeper.hold_blocks(some(0..2), some(0..0)).unwrap();
        let name = ContentName { kind: ContentKind::Block, hash: blocks[1] };
        drop(repository.begin_import(name).unwrap());
        assert_eq!(repository.collect_garbage(false).unwrap().unfinished, 0);
        drop(keeper);
        let collected = repository.collect_garbage(false).unwrap();
        assert_eq!((collected.blocks, collected.unfinished), (1, 1));
    }
}
