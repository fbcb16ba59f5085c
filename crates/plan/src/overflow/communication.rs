//! Comm+SD, section 4.3 of the paper, and what an executor that one can simulate adds to it.
//!
//! The paper's rule looks at one block at a time: to the CPU goes what is hardly slower there,
//! copies counted. It doesn't see that a device is busy, and so it may still move too much or too
//! little. Here its plan is one of several starts: the others are list schedules, which see busy
//! devices but no threshold. The simulator says which starts are best, and a local search goes on
//! from there. What today's runtimes do is kept where nothing beats it, so that the plan is never
//! worse than that.

use tessera_core::Result;

use super::executor::{execute_plan, first_come};
use super::graph::{EdgeEnd, OverflowGraph};
use super::list_scheduling::{OverflowSchedule, RankMode, list_schedule, upward_ranks};
use super::local_search::refine_schedules;
use super::paths::tail_bounds;
use super::plan::OverflowPlan;
use super::problem::{OverflowDevice, OverflowProblem};
use super::sequential::{all_on_gpu, sequential_plan};
use super::slowdown::light_on_cpu;
use super::solution::OverflowSolution;
use crate::{Planner, SearchLimit, Strategy};

/// Most rounds of Algorithm 1; the paper saw less than ten.
const ROUNDS: usize = 10;

/// The paper's rule and list schedules, improved by simulation.
pub(super) struct CommunicationSlowdown;

impl Strategy for CommunicationSlowdown {
    fn name(&self) -> &str {
        "communication"
    }

    fn one_line_summary(&self) -> &str {
        "slowdown, less what copies make too dear (Comm+SD, Algorithm 1), then improved by simulation"
    }
}

impl Planner for CommunicationSlowdown {
    type Problem = OverflowProblem;
    type Plan = OverflowPlan;
    type Solution = OverflowSolution;

    fn find_plan(
        &self,
        problem: &OverflowProblem,
        previous: Option<&OverflowPlan>,
        limit: &SearchLimit<'_>,
    ) -> Result<OverflowSolution> {
        let graph = OverflowGraph::new(problem)?;
        let plan = plan_by_simulation(&graph, problem.threshold_us, limit);
        Ok(OverflowSolution::new(problem, &graph, plan, previous))
    }
}

/// Algorithm 1 of the paper alone: per block, its device.
///
/// What is hardly slower on the CPU goes there, and comes back where its copies to and from the
/// other device make it slower than `threshold_us` after all; until nothing changes.
pub fn algorithm_1(problem: &OverflowProblem) -> Result<Vec<OverflowDevice>> {
    Ok(assign_devices(&OverflowGraph::new(problem)?, problem.threshold_us))
}

fn assign_devices(graph: &OverflowGraph, threshold_us: f64) -> Vec<OverflowDevice> {
    let mut devices = light_on_cpu(graph, threshold_us);
    for _ in 0..ROUNDS {
        let mut has_changed = false;
        for &block in &graph.order {
            let number = block as usize;
            let (device, times) = (devices[number], graph.times[number]);
            let fast = if times[0] < times[1] { OverflowDevice::Cpu } else { OverflowDevice::Gpu };
            if fast == device {
                continue;
            }
            let copy = |link: &EdgeEnd, to: OverflowDevice| {
                if devices[link.block as usize] == device { 0.0 } else { link.copy_us[to as usize] }
            };
            let inputs = graph.predecessors(number).iter().map(|link| copy(link, device));
            let outputs = graph.successors(number).iter().map(|link| copy(link, device.other()));
            let copies: f64 = inputs.chain(outputs).sum();
            if times[device as usize] + copies > times[fast as usize] + threshold_us {
                devices[number] = fast;
                has_changed = true;
            }
        }
        if !has_changed {
            break;
        }
    }
    devices
}

fn plan_by_simulation(
    graph: &OverflowGraph,
    threshold_us: f64,
    limit: &SearchLimit<'_>,
) -> OverflowPlan {
    let tails = tail_bounds(graph);
    let mut ends = vec![0.0; graph.len()];
    let mut starts: Vec<(f64, OverflowSchedule)> = initial_schedules(graph, &tails, threshold_us)
        .into_iter()
        .map(|schedule| (schedule.makespan(graph, &mut ends), schedule))
        .collect();
    starts.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    // What costs the same is nearly always the same.
    starts.dedup_by(|(a, _), (b, _)| a == b);
    let starts = starts.into_iter().map(|(_, schedule)| schedule).collect();
    let refined = refine_schedules(graph, &tails, starts, limit);
    let today = sequential_plan(graph);
    match refined {
        Some((makespan_us, best)) if makespan_us <= execute_plan(graph, &today).makespan_us => {
            OverflowPlan::in_order(best.devices, &best.order)
        }
        _ => today,
    }
}

/// Schedules that are good on some graphs: the best of them is not the same on all.
fn initial_schedules(
    graph: &OverflowGraph,
    tails: &[[f64; 2]],
    threshold_us: f64,
) -> Vec<OverflowSchedule> {
    let mut starts = Vec::new();
    let devices = assign_devices(graph, threshold_us);
    let times = first_come(graph, &devices);
    let mut order = graph.order.clone();
    order.sort_by(|a, b| times.start[*a as usize].total_cmp(&times.start[*b as usize]));
    starts.push(OverflowSchedule { devices, order });
    for rank in [RankMode::Mean, RankMode::Best] {
        let ranks = upward_ranks(graph, tails, rank);
        starts.push(list_schedule(graph, &ranks, None, None));
        starts.push(list_schedule(graph, &ranks, Some(tails), None));
        if rank == RankMode::Best {
            // Where copies are slow, moving nothing is best.
            starts.push(list_schedule(graph, &ranks, None, Some(&all_on_gpu(graph))));
        }
    }
    starts
}
