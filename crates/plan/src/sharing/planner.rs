//! Planning with a strategy, and judging a plan of somebody else's.

use tessera_core::{Error, Result};

use super::fused_groups::fused_groups;
use super::grouping;
use super::memory::assemble_plan;
use super::paths::{PathGroups, SharingPath, task_paths};
use super::plan::SharingPlan;
use super::problem::{SharingProblem, SharingStep, SharingTask};
use super::strategies::{GroupingRule, SharingStrategy};
use crate::{Planner, SearchLimit};

impl Planner for SharingStrategy {
    type Problem = SharingProblem;
    type Plan = SharingPlan;
    type Solution = SharingPlan;

    /// A search starts from `previous`, so that of equals the one that there is stays.
    fn find_plan(
        &self,
        problem: &SharingProblem,
        previous: Option<&SharingPlan>,
        limit: &SearchLimit<'_>,
    ) -> Result<SharingPlan> {
        problem.check_consistency()?;
        let paths = task_paths(problem)?;
        let single = || paths.iter().map(|path| path.single_blocks()).collect::<Vec<_>>();
        let whole = || paths.iter().map(|path| path.whole_model()).collect::<Vec<_>>();
        let context = if self.is_one_process() { 0.0 } else { problem.context_bytes };
        let (groups, bound) = match self.grouping_rule() {
            GroupingRule::WholeModels => (whole(), None),
            GroupingRule::SingleBlocks => (single(), None),
            GroupingRule::FusedShared => (fused_groups(&paths, false), None),
            GroupingRule::Fused => (fused_groups(&paths, true), None),
            GroupingRule::Cheapest => {
                let mut known = vec![
                    fused_groups(&paths, true),
                    fused_groups(&paths, false),
                    whole(),
                    single(),
                ];
                known.extend(previous.map(|plan| previous_groups(problem, &paths, plan)));
                let found = grouping::cheapest_grouping(problem, &paths, context, known, limit);
                (found.groups, (!found.proved).then_some(found.bound))
            }
        };
        Ok(assemble_plan(problem, *self, &paths, &groups, bound))
    }
}

/// The deployment that `strategy` gives. A search starts from `previous`, and ends where `limit`
/// says so.
pub fn plan_sharing(
    problem: &SharingProblem,
    strategy: SharingStrategy,
    previous: Option<&SharingPlan>,
    limit: &SearchLimit<'_>,
) -> Result<SharingPlan> {
    strategy.find_plan(problem, previous, limit)
}

/// What the units of `given` cost with the figures of `problem`. Its bound is that of all groupings
/// with as many processes; the error names the task whose path it does not follow.
pub fn evaluate_sharing(
    problem: &SharingProblem,
    given: &SharingPlan,
    limit: &SearchLimit<'_>,
) -> Result<SharingPlan> {
    problem.check_consistency()?;
    let paths = task_paths(problem)?;
    let groups = paths.iter().map(|path| {
        let task = &problem.tasks[path.task];
        groups_in(given, task).ok_or_else(|| {
            let path: Vec<String> = task.path.iter().map(SharingStep::to_string).collect();
            let path = path.join(", ");
            let name = &task.name;
            Error::invalid(format!("plan: task \"{name}\": expected units that make up {path}"))
        })
    });
    let groups: Vec<PathGroups> = groups.collect::<Result<_>>()?;
    let context = if given.strategy.is_one_process() { 0.0 } else { problem.context_bytes };
    let found = grouping::cheapest_grouping(problem, &paths, context, vec![groups.clone()], limit);
    let mut plan = assemble_plan(problem, given.strategy, &paths, &groups, Some(found.bound));
    plan.proved = plan.bound_bytes >= plan.cost_bytes * (1.0 - 1e-9);
    Ok(plan)
}

/// The grouping of a plan, for the paths that are as they were then; the others in single blocks.
fn previous_groups(
    problem: &SharingProblem,
    paths: &[SharingPath],
    plan: &SharingPlan,
) -> Vec<PathGroups> {
    let before = |path: &SharingPath| groups_in(plan, &problem.tasks[path.task]);
    paths.iter().map(|path| before(path).unwrap_or_else(|| path.single_blocks())).collect()
}

/// How a plan groups the path of `task`; none where it does not have that path.
fn groups_in(plan: &SharingPlan, task: &SharingTask) -> Option<PathGroups> {
    let known = plan.tasks.iter().find(|known| known.task == task.name)?;
    let is_same = known.units.iter().all(|unit| !unit.is_empty())
        && known.units.iter().flatten().eq(&task.path);
    let ends = known.units.iter().scan(0, |end, unit| {
        *end += unit.len();
        Some(*end - unit.len()..*end)
    });
    is_same.then(|| ends.collect())
}
