//! Fusion: neighbouring blocks that no task tells apart run as one.
//!
//! A hop between them would share nothing, and costs a queue, memory for what is handed over, and
//! what the engine could have optimised across the border. An exit between two blocks keeps them
//! apart, as a request may leave there, and so does another device or node.
//!
//! What is known of all tasks is kept from change to change: a task that comes or goes is compared
//! with the neighbours of its own blocks, however many tasks there are.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use tessera_core::Dim;
use tessera_graph::TensorSource;

use crate::subgraph::extract_subgraph;
use crate::task::PlannedTask;

/// A task, by a number that no other ever has.
pub(crate) type TaskNumber = u64;

/// A block, the types of what goes into it, and what it runs on, as a hash: what a session is made
/// for.
type BlockKey = [u8; 16];

/// How the blocks of a run hang together and what it gives, without names, as a hash.
type RunKey = [u8; 16];

/// How many tasks use something, and which: by a hash, as a block may have a thousand users, and be
/// compared with a thousand others.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct TaskSet {
    count: usize,
    hash: u128,
}

impl TaskSet {
    fn insert(&mut self, task: TaskNumber) {
        self.count += 1;
        self.hash ^= hash_task(task);
    }

    fn remove(&mut self, task: TaskNumber) {
        self.count -= 1;
        self.hash ^= hash_task(task);
    }
}

fn hash_task(task: TaskNumber) -> u128 {
    u128::from_le_bytes(short_hash(&blake3::hash(&task.to_le_bytes())))
}

fn short_hash(hash: &blake3::Hash) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&hash.as_bytes()[..16]);
    short
}

/// Two blocks that follow each other in a path, without an exit between them.
#[derive(Default)]
struct BlockPair {
    tasks: BTreeSet<TaskNumber>,
    /// Whether all who use one of them use the other.
    has_same_users: bool,
}

/// Several blocks after each other that have the same users.
struct BlockRun {
    first: BlockKey,
    tasks: BTreeSet<TaskNumber>,
    /// Whether all who use its blocks have the same run: wired alike, giving the same.
    is_fused: bool,
}

/// What is known of the path of a task.
struct IndexedPath {
    task: Arc<PlannedTask>,
    blocks: Vec<BlockKey>,
    runs: Vec<(Range<usize>, Option<RunKey>)>,
    groups: Vec<Range<usize>>,
}

/// Which tasks use which blocks, and which of those are one unit.
pub(crate) struct FusionIndex {
    fuses: bool,
    users: HashMap<BlockKey, TaskSet>,
    pairs: HashMap<(BlockKey, BlockKey), BlockPair>,
    pairs_of: HashMap<BlockKey, HashSet<(BlockKey, BlockKey)>>,
    runs: HashMap<RunKey, BlockRun>,
    runs_from: HashMap<BlockKey, HashSet<RunKey>>,
    paths: HashMap<TaskNumber, IndexedPath>,
}

impl FusionIndex {
    /// An index of no tasks. Without `fuses` every block is a unit of its own.
    pub(crate) fn new(fuses: bool) -> Self {
        Self {
            fuses,
            users: HashMap::new(),
            pairs: HashMap::new(),
            pairs_of: HashMap::new(),
            runs: HashMap::new(),
            runs_from: HashMap::new(),
            paths: HashMap::new(),
        }
    }

    /// The runs of a task's blocks that are one unit each.
    pub(crate) fn groups_of(&self, task: TaskNumber) -> &[Range<usize>] {
        self.paths.get(&task).map_or(&[], |path| &path.groups)
    }

    /// Takes tasks out and others in; returns those whose groups are others now, the new ones
    /// among them.
    pub(crate) fn change_tasks(
        &mut self,
        removed: &[TaskNumber],
        added: &[(TaskNumber, Arc<PlannedTask>)],
    ) -> BTreeSet<TaskNumber> {
        let (mut blocks, mut runs) = (HashSet::new(), HashSet::new());
        for &number in removed {
            self.remove_path(number, &mut blocks, &mut runs);
        }
        for (number, task) in added {
            self.add_path(*number, task, &mut blocks);
        }
        let mut changed: BTreeSet<TaskNumber> = added.iter().map(|(number, _)| *number).collect();
        if !self.fuses {
            return changed;
        }
        let rejoined = self.compare_pairs(&blocks);
        for &number in changed.union(&rejoined).copied().collect::<Vec<_>>().iter() {
            self.find_runs(number, &mut runs);
        }
        for block in &blocks {
            runs.extend(self.runs_from.get(block).into_iter().flatten());
        }
        let decided = self.decide_runs(&runs);
        for number in rejoined.union(&decided) {
            if !changed.contains(number) && self.find_groups(*number) {
                changed.insert(*number);
            }
        }
        for (number, _) in added {
            self.find_groups(*number);
        }
        changed
    }

    fn add_path(
        &mut self,
        number: TaskNumber,
        task: &Arc<PlannedTask>,
        touched: &mut HashSet<BlockKey>,
    ) {
        let blocks: Vec<BlockKey> =
            (0..task.graph.blocks.len()).map(|index| block_key(task, index)).collect();
        let groups = (0..blocks.len()).map(|at| at..at + 1).collect();
        if self.fuses {
            for block in blocks.iter().copied().collect::<HashSet<_>>() {
                self.users.entry(block).or_default().insert(number);
                touched.insert(block);
            }
            for pair in block_pairs(task, &blocks) {
                self.pairs.entry(pair).or_default().tasks.insert(number);
                self.pairs_of.entry(pair.0).or_default().insert(pair);
                self.pairs_of.entry(pair.1).or_default().insert(pair);
            }
        }
        let task = Arc::clone(task);
        self.paths.insert(number, IndexedPath { task, blocks, runs: Vec::new(), groups });
    }

    fn remove_path(
        &mut self,
        number: TaskNumber,
        touched: &mut HashSet<BlockKey>,
        touched_runs: &mut HashSet<RunKey>,
    ) {
        let Some(path) = self.paths.remove(&number) else { return };
        if !self.fuses {
            return;
        }
        for pair in block_pairs(&path.task, &path.blocks) {
            let Some(known) = self.pairs.get_mut(&pair) else { continue };
            known.tasks.remove(&number);
            if known.tasks.is_empty() {
                self.pairs.remove(&pair);
                remove_from(&mut self.pairs_of, &pair.0, &pair);
                remove_from(&mut self.pairs_of, &pair.1, &pair);
            }
        }
        self.leave_runs(number, &path.runs, touched_runs);
        for block in path.blocks.into_iter().collect::<HashSet<_>>() {
            touched.insert(block);
            if let Some(users) = self.users.get_mut(&block) {
                users.remove(number);
                if users.count == 0 {
                    self.users.remove(&block);
                }
            }
        }
    }

    /// Compares the neighbours of blocks whose users are others now; returns the tasks in which two
    /// blocks came together or were parted.
    fn compare_pairs(&mut self, blocks: &HashSet<BlockKey>) -> BTreeSet<TaskNumber> {
        let mut rejoined = BTreeSet::new();
        for &pair in blocks.iter().filter_map(|block| self.pairs_of.get(block)).flatten() {
            let has_same_users = self.users.get(&pair.0) == self.users.get(&pair.1);
            if let Some(known) = self.pairs.get_mut(&pair)
                && known.has_same_users != has_same_users
            {
                known.has_same_users = has_same_users;
                rejoined.extend(&known.tasks);
            }
        }
        rejoined
    }

    /// Finds the runs of a task anew.
    fn find_runs(&mut self, number: TaskNumber, touched: &mut HashSet<RunKey>) {
        let Some(path) = self.paths.get_mut(&number) else { return };
        let before = std::mem::take(&mut path.runs);
        let (task, blocks) = (Arc::clone(&path.task), path.blocks.clone());
        self.leave_runs(number, &before, touched);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for index in 0..blocks.len() {
            let joins = index > 0 && is_joinable(&task, index) && {
                let pair = self.pairs.get(&(blocks[index - 1], blocks[index]));
                pair.is_some_and(|pair| pair.has_same_users)
            };
            match ranges.last_mut() {
                Some(run) if joins => run.end = index + 1,
                _ => ranges.push(index..index + 1),
            }
        }
        let mut runs = Vec::with_capacity(ranges.len());
        for range in ranges {
            // One block is a unit, whatever others do.
            let key = (range.len() > 1).then(|| run_key(&task, &blocks, range.clone()));
            if let Some(key) = key {
                let first = blocks[range.start];
                let new = || BlockRun { first, tasks: BTreeSet::new(), is_fused: false };
                self.runs.entry(key).or_insert_with(new).tasks.insert(number);
                self.runs_from.entry(first).or_default().insert(key);
                touched.insert(key);
            }
            runs.push((range, key));
        }
        if let Some(path) = self.paths.get_mut(&number) {
            path.runs = runs;
        }
    }

    fn leave_runs(
        &mut self,
        number: TaskNumber,
        runs: &[(Range<usize>, Option<RunKey>)],
        touched: &mut HashSet<RunKey>,
    ) {
        for key in runs.iter().filter_map(|(_, key)| *key) {
            let Some(run) = self.runs.get_mut(&key) else { continue };
            run.tasks.remove(&number);
            touched.insert(key);
            if run.tasks.is_empty() {
                let first = run.first;
                self.runs.remove(&key);
                remove_from(&mut self.runs_from, &first, &key);
            }
        }
    }

    /// Decides anew whether runs are fused; returns the tasks of those that are otherwise now.
    fn decide_runs(&mut self, runs: &HashSet<RunKey>) -> BTreeSet<TaskNumber> {
        let mut decided = BTreeSet::new();
        for key in runs {
            let Some(run) = self.runs.get_mut(key) else { continue };
            // Whoever has the run uses its first block.
            let users = self.users.get(&run.first).map_or(0, |users| users.count);
            let is_fused = run.tasks.len() == users;
            if run.is_fused != is_fused {
                run.is_fused = is_fused;
                decided.extend(&run.tasks);
            }
        }
        decided
    }

    /// Finds the groups of a task anew; returns whether they are others than before.
    fn find_groups(&mut self, number: TaskNumber) -> bool {
        let Some(path) = self.paths.get_mut(&number) else { return false };
        let runs = &self.runs;
        let is_fused = |key: &Option<RunKey>| {
            key.and_then(|key| runs.get(&key)).is_some_and(|run| run.is_fused)
        };
        let groups: Vec<Range<usize>> = path
            .runs
            .iter()
            .flat_map(|(range, key)| match is_fused(key) {
                true => vec![range.clone()],
                false => range.clone().map(|at| at..at + 1).collect(),
            })
            .collect();
        let is_other = groups != path.groups;
        path.groups = groups;
        is_other
    }
}

fn remove_from<K: std::hash::Hash + Eq, V: std::hash::Hash + Eq>(
    map: &mut HashMap<K, HashSet<V>>,
    key: &K,
    value: &V,
) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}

/// Whether a block may be one unit with the one before it, as far as its own task is concerned.
fn is_joinable(task: &PlannedTask, index: usize) -> bool {
    task.graph.exit_of(index).is_none()
        && task.graph.exit_of(index - 1).is_none()
        && task.settings.device_of(index) == task.settings.device_of(index - 1)
        && task.settings.node_of(index) == task.settings.node_of(index - 1)
}

fn block_pairs(task: &PlannedTask, blocks: &[BlockKey]) -> HashSet<(BlockKey, BlockKey)> {
    let joinable = (1..blocks.len()).filter(|&index| is_joinable(task, index));
    joinable.map(|index| (blocks[index - 1], blocks[index])).collect()
}

fn block_key(task: &PlannedTask, index: usize) -> BlockKey {
    let graph = &task.graph;
    let node = &graph.blocks[index];
    let mut hasher = blake3::Hasher::new();
    hasher.update(node.block.as_bytes());
    hasher.update(task.settings.device_of(index).to_string().as_bytes());
    hasher.update(task.settings.node_of(index).map_or(&[][..], |node| node.as_bytes()));
    let mut symbols: Vec<&str> = Vec::new();
    for &source in &node.inputs {
        let Some(known) = graph.source_type(source) else {
            hasher.update(&[0]);
            continue;
        };
        hasher.update(&[1]);
        hasher.update(known.dtype.to_string().as_bytes());
        let Some(dims) = &known.dims else { continue };
        hasher.update(&(dims.len() as u64 + 1).to_le_bytes());
        for dim in dims {
            let (kind, value) = match dim {
                Dim::Fixed(size) => (1u8, *size),
                // What a dimension is called is no part of a block.
                Dim::Symbol(name) => {
                    let number = symbols.iter().position(|seen| seen == name);
                    (
                        2,
                        number.unwrap_or_else(|| {
                            symbols.push(name);
                            symbols.len() - 1
                        }),
                    )
                }
                Dim::Unknown => (3, 0),
            };
            hasher.update(&[kind]);
            hasher.update(&(value as u64).to_le_bytes());
        }
    }
    short_hash(&hasher.finalize())
}

fn run_key(task: &PlannedTask, blocks: &[BlockKey], run: Range<usize>) -> RunKey {
    let (part, _, _) = extract_subgraph(&task.graph, run.clone());
    let mut hasher = blake3::Hasher::new();
    let mut hash_sources = |sources: &mut dyn Iterator<Item = TensorSource>| {
        for source in sources {
            let (kind, at, output) = match source {
                TensorSource::Input(index) => (1u64, index, 0),
                TensorSource::Block { block, output } => (2, block, output),
            };
            for number in [kind, at as u64, output as u64] {
                hasher.update(&number.to_le_bytes());
            }
        }
        hasher.update(&0u64.to_le_bytes());
    };
    for node in &part.blocks {
        hash_sources(&mut node.inputs.iter().copied());
    }
    hash_sources(&mut part.outputs.iter().map(|(_, source)| *source));
    blocks[run].iter().for_each(|block| {
        hasher.update(block);
    });
    short_hash(&hasher.finalize())
}
