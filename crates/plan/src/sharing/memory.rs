//! The memory of each kind of deployment.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use super::grouping;
use super::problem::{Block, Problem, Step, Task};
use super::strategy::Strategy;
use crate::Limit;

/// A deployment, and what it costs. In a file, the strategy and the units of each task are enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What kind it is.
    pub strategy: Strategy,
    /// The units; those that only differ in the weights of own blocks are one entry.
    #[serde(default)]
    pub units: Vec<Unit>,
    /// How each task goes through them; tasks of which there are none are left out.
    pub tasks: Vec<TaskPlan>,
    /// The memory.
    #[serde(default)]
    pub memory: Memory,
    /// The memory, and what the hops are worth.
    #[serde(default)]
    pub cost_bytes: f64,
    /// What no deployment of its kind can cost less than; as the cost where that is proved.
    #[serde(default)]
    pub bound_bytes: f64,
    /// Whether nothing of its kind costs less. False where a search was stopped.
    #[serde(default)]
    pub proved: bool,
}

/// Blocks that run as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// Its blocks.
    pub blocks: Vec<String>,
    /// Who uses it.
    pub tasks: Vec<String>,
    /// Whether each of its tasks has one of its own.
    pub own: bool,
    /// How many there are.
    pub instances: f64,
    /// Weights of each.
    pub weight_bytes: f64,
    /// What each needs besides.
    pub overhead_bytes: f64,
}

/// How a task goes through units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskPlan {
    /// The task.
    pub task: String,
    /// Its steps, in units.
    pub units: Vec<Vec<Step>>,
    /// Hops of a request.
    #[serde(default)]
    pub hops: usize,
    /// Time of a request that waits nowhere, where the times of all blocks are known.
    #[serde(default)]
    pub time_us: Option<f64>,
}

/// What memory is taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Processes.
    pub processes: f64,
    /// Of the processes.
    pub context_bytes: f64,
    /// Weights.
    pub weight_bytes: f64,
    /// What blocks need besides while they run.
    pub overhead_bytes: f64,
    /// All of it.
    pub total_bytes: f64,
}

impl Memory {
    /// What this saves against `other`, in percent; none where that takes nothing.
    pub fn saving_percent(&self, other: &Self) -> Option<f64> {
        (other.total_bytes > 0.0)
            .then(|| 100.0 * (other.total_bytes - self.total_bytes) / other.total_bytes)
    }
}

/// The deployment that `strategy` gives. A search starts from `previous`, so that of equals the one
/// that there is stays, and ends where `limit` says so.
pub fn plan(
    problem: &Problem,
    strategy: Strategy,
    previous: Option<&Plan>,
    limit: &Limit<'_>,
) -> Result<Plan> {
    problem.check()?;
    let paths = paths(problem)?;
    let single = || paths.iter().map(|path| path.singles()).collect::<Vec<_>>();
    let whole = || paths.iter().map(|path| path.whole()).collect::<Vec<_>>();
    let context = if strategy.is_one_process() { 0.0 } else { problem.context_bytes };
    let (groups, bound) = match strategy {
        Strategy::Traditional => (whole(), None),
        Strategy::PerBlock => (single(), None),
        Strategy::FusedShared => (fused(&paths, false), None),
        Strategy::Fused | Strategy::OneProcess => (fused(&paths, true), None),
        Strategy::Cheapest | Strategy::CheapestOneProcess => {
            let mut known = vec![fused(&paths, true), fused(&paths, false), whole(), single()];
            known.extend(previous.map(|plan| as_before(problem, &paths, plan)));
            let found = grouping::cheapest(problem, &paths, context, known, limit);
            (found.groups, (!found.proved).then_some(found.bound))
        }
    };
    Ok(assemble(problem, strategy, &paths, &groups, bound))
}

/// What the units of `given` cost with the figures of `problem`. Its bound is that of all groupings
/// with as many processes; the error names the task whose path it does not follow.
pub fn judge(problem: &Problem, given: &Plan, limit: &Limit<'_>) -> Result<Plan> {
    problem.check()?;
    let paths = paths(problem)?;
    let groups = paths.iter().map(|path| {
        let task = &problem.tasks[path.task];
        groups_in(given, task).ok_or_else(|| {
            let path: Vec<String> = task.path.iter().map(Step::to_string).collect();
            let path = path.join(", ");
            let name = &task.name;
            Error::invalid(format!("plan: task \"{name}\": expected units that make up {path}"))
        })
    });
    let groups: Vec<Groups> = groups.collect::<Result<_>>()?;
    let context = if given.strategy.is_one_process() { 0.0 } else { problem.context_bytes };
    let found = grouping::cheapest(problem, &paths, context, vec![groups.clone()], limit);
    let mut plan = assemble(problem, given.strategy, &paths, &groups, Some(found.bound));
    plan.proved = plan.bound_bytes >= plan.cost_bytes * (1.0 - 1e-9);
    Ok(plan)
}

/// The grouping of a plan, for the paths that are as they were then; the others in single blocks.
fn as_before(problem: &Problem, paths: &[Path], plan: &Plan) -> Vec<Groups> {
    let before = |path: &Path| groups_in(plan, &problem.tasks[path.task]);
    paths.iter().map(|path| before(path).unwrap_or_else(|| path.singles())).collect()
}

/// How a plan groups the path of `task`; none where it does not have that path.
fn groups_in(plan: &Plan, task: &Task) -> Option<Groups> {
    let known = plan.tasks.iter().find(|known| known.task == task.name)?;
    let is_same = known.units.iter().all(|unit| !unit.is_empty())
        && known.units.iter().flatten().eq(&task.path);
    let ends = known.units.iter().scan(0, |end, unit| {
        *end += unit.len();
        Some(*end - unit.len()..*end)
    });
    is_same.then(|| ends.collect())
}

fn assemble(
    problem: &Problem,
    strategy: Strategy,
    paths: &[Path],
    groups: &[Groups],
    bound: Option<f64>,
) -> Plan {
    let is_traditional = strategy == Strategy::Traditional;
    let units = units(problem, paths, groups, is_traditional);
    let memory = memory(&units, problem.context_bytes, strategy.is_one_process());
    let hops = paths.iter().zip(groups).map(|(path, groups)| path.hop_bytes * hops(groups));
    let cost = memory.total_bytes + hops.sum::<f64>();
    // The search leaves the one context of a single process out: it is the same for all groupings.
    let left_out = if strategy.is_one_process() { memory.context_bytes } else { 0.0 };
    let tasks = paths.iter().zip(groups).map(|(path, groups)| task_plan(problem, path, groups));
    Plan {
        strategy,
        tasks: tasks.collect(),
        units,
        memory,
        cost_bytes: cost,
        bound_bytes: bound.map_or(cost, |bound| (bound + left_out).min(cost)),
        proved: bound.is_none(),
    }
}

/// The units of a path, as ranges of its steps.
pub(super) type Groups = Vec<Range<usize>>;

fn hops(groups: &Groups) -> f64 {
    groups.len().saturating_sub(1) as f64
}

/// A task that there is, with blocks by number.
pub(super) struct Path {
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

impl Path {
    fn singles(&self) -> Groups {
        (0..self.steps.len()).map(|at| at..at + 1).collect()
    }

    fn whole(&self) -> Groups {
        std::iter::once(0..self.steps.len()).collect()
    }

    pub(super) fn unit(&self, range: &Range<usize>) -> UnitKey {
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
pub(super) struct Size {
    weights: f64,
    overhead: f64,
}

impl Size {
    /// With one block more.
    pub(super) fn with(self, block: &Block) -> Self {
        let overhead = self.overhead.max(block.overhead_bytes);
        Self { weights: self.weights + block.bytes, overhead }
    }

    pub(super) fn total(self) -> f64 {
        self.weights + self.overhead
    }
}

/// The paths of the tasks that there are.
fn paths(problem: &Problem) -> Result<Vec<Path>> {
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
            Ok(Path {
                task: at,
                steps: steps.collect::<Result<_>>()?,
                whole: task.whole.as_deref().map(number).transpose()?,
                count: task.count,
                hop_bytes: problem.hop_price_bytes * problem.hop_us * per_second,
            })
        })
        .collect()
}

/// Neighbours that no task tells apart, fused: shared ones, and with `own` those of a single task too.
fn fused(paths: &[Path], own: bool) -> Vec<Groups> {
    let mut users: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut pairs: HashMap<(usize, usize), usize> = HashMap::new();
    for (number, path) in paths.iter().enumerate() {
        for &(block, _) in path.steps.iter().filter(|(_, own)| !own) {
            users.entry(block).or_default().push(number);
        }
        for pair in path.steps.windows(2) {
            if let [(first, false), (second, false)] = *pair {
                *pairs.entry((first, second)).or_default() += 1;
            }
        }
    }
    // A shared block that one task alone uses is as good as its own.
    let is_alone = |path: &Path, block: usize| {
        path.count == 1.0 && users.get(&block).is_some_and(|users| users.len() == 1)
    };
    let joins = |path: &Path, at: usize| match (path.steps[at], path.steps[at + 1]) {
        ((first, false), (second, false)) => {
            let count = |block: usize| users.get(&block).map(Vec::len);
            let together = pairs.get(&(first, second)).copied();
            together == count(first) && together == count(second)
        }
        ((_, true), (_, true)) => own,
        ((block, false), _) | (_, (block, false)) => own && is_alone(path, block),
    };
    paths
        .iter()
        .map(|path| {
            let mut groups: Groups = Vec::new();
            for at in 0..path.steps.len() {
                match groups.last_mut() {
                    Some(group) if joins(path, at - 1) => group.end = at + 1,
                    _ => groups.push(at..at + 1),
                }
            }
            groups
        })
        .collect()
}

/// The units of all tasks: shared ones once, or, where `apart`, those of each task its own.
fn units(problem: &Problem, paths: &[Path], groups: &[Groups], apart: bool) -> Vec<Unit> {
    let mut found: BTreeMap<UnitKey, Vec<&Path>> = BTreeMap::new();
    for (path, groups) in paths.iter().zip(groups) {
        for range in groups {
            let mut key = path.unit(range);
            key.own = key.own.or(apart.then_some(path.task));
            found.entry(key).or_default().push(path);
        }
    }
    let units = found.into_iter().map(|(key, users)| {
        let blocks = key.blocks.iter().map(|&block| &problem.blocks[block]);
        let size = blocks.clone().fold(Size::default(), Size::with);
        let own_count = users.first().map_or(0.0, |path| path.count);
        Unit {
            blocks: blocks.map(|block| block.name.clone()).collect(),
            tasks: users.iter().map(|path| problem.tasks[path.task].name.clone()).collect(),
            own: key.own.is_some(),
            instances: if key.own.is_some() { own_count } else { 1.0 },
            weight_bytes: size.weights,
            overhead_bytes: size.overhead,
        }
    });
    units.collect()
}

fn memory(units: &[Unit], context_bytes: f64, is_one_process: bool) -> Memory {
    let sum =
        |of: fn(&Unit) -> f64| units.iter().map(|unit| unit.instances * of(unit)).sum::<f64>();
    let processes = match is_one_process {
        true => sum(|_| 1.0).min(1.0),
        false => sum(|_| 1.0),
    };
    let context_bytes = processes * context_bytes;
    let weight_bytes = sum(|unit| unit.weight_bytes);
    let overhead_bytes = sum(|unit| unit.overhead_bytes);
    let total_bytes = context_bytes + weight_bytes + overhead_bytes;
    Memory { processes, context_bytes, weight_bytes, overhead_bytes, total_bytes }
}

fn task_plan(problem: &Problem, path: &Path, groups: &Groups) -> TaskPlan {
    let task = &problem.tasks[path.task];
    let blocks = groups.iter().flat_map(|range| path.unit(range).blocks);
    let times: Option<f64> = blocks.map(|block| problem.blocks[block].time_us).sum();
    TaskPlan {
        task: task.name.clone(),
        units: groups.iter().map(|range| task.path[range.clone()].to_vec()).collect(),
        hops: groups.len().saturating_sub(1),
        time_us: times.map(|time| time + hops(groups) * problem.hop_us),
    }
}
