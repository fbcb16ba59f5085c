//! The paths of tasks by the numbers of their blocks, and the units that they can be cut into.

use std::collections::HashMap;
use std::ops::Range;

use tessera_core::{Error, Result};

use super::problem::{SharingBlock, SharingProblem};

/// The units of a path, as ranges of its steps.
pub(super) type PathGroups = Vec<Range<usize>>;

/// A task that there is, with blocks by number.
pub(super) struct SharingPath {
    /// The task's number.
    pub(super) task: usize,
    /// Block, and whether it is own.
    pub(super) steps: Vec<(usize, bool)>,
    pub(super) whole: Option<usize>,
    pub(super) count: f64,
    /// What a hop of all of them is worth.
    pub(super) hop_bytes: f64,
}

/// What tells units apart: the task, where they are its own, and the blocks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnitKey {
    pub(super) own: Option<usize>,
    pub(super) blocks: Vec<usize>,
}

impl SharingPath {
    /// A unit per block.
    pub(super) fn single_blocks(&self) -> PathGroups {
        (0..self.steps.len()).map(|at| at..at + 1).collect()
    }

    /// One unit for all.
    pub(super) fn whole_model(&self) -> PathGroups {
        std::iter::once(0..self.steps.len()).collect()
    }

    pub(super) fn unit_key(&self, range: &Range<usize>) -> UnitKey {
        let steps = &self.steps[range.clone()];
        let own = steps.iter().any(|&(_, own)| own).then_some(self.task);
        let blocks = match self.whole.filter(|_| range.len() == self.steps.len()) {
            Some(whole) => vec![whole],
            None => steps.iter().map(|&(block, _)| block).collect(),
        };
        UnitKey { own, blocks }
    }
}

/// Memory of blocks that run as one.
#[derive(Clone, Copy, Default)]
pub(super) struct UnitSize {
    pub(super) weights: f64,
    pub(super) overhead: f64,
}

impl UnitSize {
    /// With one block more.
    pub(super) fn with_block(self, block: &SharingBlock) -> Self {
        let overhead = self.overhead.max(block.overhead_bytes);
        Self { weights: self.weights + block.bytes, overhead }
    }

    pub(super) fn total_bytes(self) -> f64 {
        self.weights + self.overhead
    }
}

/// The paths of the tasks that there are.
pub(super) fn task_paths(problem: &SharingProblem) -> Result<Vec<SharingPath>> {
    let numbers: HashMap<&str, usize> =
        problem.blocks.iter().enumerate().map(|(at, block)| (block.name.as_str(), at)).collect();
    let number = |name: &str| {
        let number = numbers.get(name).copied();
        number.ok_or_else(|| Error::invalid(format!("there is no block \"{name}\"")))
    };
    let tasks = problem.tasks.iter().enumerate().filter(|(_, task)| task.count > 0.0);
    tasks
        .map(|(at, task)| {
            let steps = task.path.iter().map(|step| Ok((number(&step.block)?, step.own)));
            let per_second = task.count * task.rate_per_second;
            Ok(SharingPath {
                task: at,
                steps: steps.collect::<Result<_>>()?,
                whole: task.whole.as_deref().map(number).transpose()?,
                count: task.count,
                hop_bytes: problem.hop_price_bytes * problem.hop_us * per_second,
            })
        })
        .collect()
}
