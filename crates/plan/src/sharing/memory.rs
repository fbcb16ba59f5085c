//! What a grouping costs: its units, their memory, and the hops between them.

use std::collections::BTreeMap;

use super::paths::{PathGroups, SharingPath, UnitKey, UnitSize};
use super::plan::{SharingMemory, SharingPlan, SharingUnit, TaskPlan};
use super::problem::SharingProblem;
use super::strategies::SharingStrategy;

/// The plan of a grouping. `bound` is what no grouping undercuts; none where that is proved.
pub(super) fn assemble_plan(
    problem: &SharingProblem,
    strategy: SharingStrategy,
    paths: &[SharingPath],
    groups: &[PathGroups],
    bound: Option<f64>,
) -> SharingPlan {
    let is_traditional = strategy == SharingStrategy::Traditional;
    let units = collect_units(problem, paths, groups, is_traditional);
    let memory = total_memory(&units, problem.context_bytes, strategy.is_one_process());
    let hops = paths.iter().zip(groups).map(|(path, groups)| path.hop_bytes * hop_count(groups));
    let cost = memory.total_bytes + hops.sum::<f64>();
    // The search leaves the one context of a single process out: it is the same for all groupings.
    let left_out = if strategy.is_one_process() { memory.context_bytes } else { 0.0 };
    let tasks = paths.iter().zip(groups).map(|(path, groups)| task_plan(problem, path, groups));
    SharingPlan {
        strategy,
        tasks: tasks.collect(),
        units,
        memory,
        cost_bytes: cost,
        bound_bytes: bound.map_or(cost, |bound| (bound + left_out).min(cost)),
        proved: bound.is_none(),
    }
}

fn hop_count(groups: &PathGroups) -> f64 {
    groups.len().saturating_sub(1) as f64
}

/// The units of all tasks: shared ones once, or, where `apart`, those of each task its own.
fn collect_units(
    problem: &SharingProblem,
    paths: &[SharingPath],
    groups: &[PathGroups],
    apart: bool,
) -> Vec<SharingUnit> {
    let mut found: BTreeMap<UnitKey, Vec<&SharingPath>> = BTreeMap::new();
    for (path, groups) in paths.iter().zip(groups) {
        for range in groups {
            let mut key = path.unit_key(range);
            key.own = key.own.or(apart.then_some(path.task));
            found.entry(key).or_default().push(path);
        }
    }
    let units = found.into_iter().map(|(key, users)| {
        let blocks = key.blocks.iter().map(|&block| &problem.blocks[block]);
        let size = blocks.clone().fold(UnitSize::default(), UnitSize::with_block);
        let own_count = users.first().map_or(0.0, |path| path.count);
        SharingUnit {
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

fn total_memory(units: &[SharingUnit], context_bytes: f64, is_one_process: bool) -> SharingMemory {
    let sum = |of: fn(&SharingUnit) -> f64| {
        units.iter().map(|unit| unit.instances * of(unit)).sum::<f64>()
    };
    let processes = if is_one_process { sum(|_| 1.0).min(1.0) } else { sum(|_| 1.0) };
    let context_bytes = processes * context_bytes;
    let weight_bytes = sum(|unit| unit.weight_bytes);
    let overhead_bytes = sum(|unit| unit.overhead_bytes);
    let total_bytes = context_bytes + weight_bytes + overhead_bytes;
    SharingMemory { processes, context_bytes, weight_bytes, overhead_bytes, total_bytes }
}

fn task_plan(problem: &SharingProblem, path: &SharingPath, groups: &PathGroups) -> TaskPlan {
    let task = &problem.tasks[path.task];
    let blocks = groups.iter().flat_map(|range| path.unit_key(range).blocks);
    let times: Option<f64> = blocks.map(|block| problem.blocks[block].time_us).sum();
    TaskPlan {
        task: task.name.clone(),
        units: groups.iter().map(|range| task.path[range.clone()].to_vec()).collect(),
        hops: groups.len().saturating_sub(1),
        time_us: times.map(|time| time + hop_count(groups) * problem.hop_us),
    }
}
