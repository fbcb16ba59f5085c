//! Comm+SD, section 4.3 of the paper, and what an executor that one can simulate adds to it.
//!
//! The paper's rule looks at one block at a time: to the CPU goes what is hardly slower there, copies
//! counted. It doesn't see that a device is busy, and so it may still move too much or too little. Here
//! its plan is one of several starts: the others are list schedules, which see busy devices but no
//! threshold. The simulator says which starts are best, and a local search goes on from there. What
//! today's runtimes do is kept where nothing beats it, so that the plan is never worse than that.

use tessera_core::Result;

use super::Strategy;
use super::executor::{execute, first_come};
use super::graph::{Graph, Link};
use super::list::{Rank, Schedule, list, ranks};
use super::paths::tails;
use super::planned::{Plan, Planned};
use super::problem::{Device, Problem};
use super::refine::refine;
use super::sequential::{all_on_gpu, baseline};
use super::slowdown::light_on_cpu;
use crate::Limit;

/// Most rounds of Algorithm 1; the paper saw less than ten.
const ROUNDS: usize = 10;

/// The paper's rule and list schedules, improved by simulation.
pub(super) struct Communication;

impl Strategy for Communication {
    fn name(&self) -> &'static str {
        "communication"
    }

    fn about(&self) -> &'static str {
        "slowdown, less what copies make too dear (Comm+SD, Algorithm 1), then improved by simulation"
    }

    fn plan(
        &self,
        problem: &Problem,
        previous: Option<&Plan>,
        limit: &Limit<'_>,
    ) -> Result<Planned> {
        let graph = Graph::new(problem)?;
        let plan = plan(&graph, problem.threshold_us, limit);
        Ok(Planned::new(problem, &graph, plan, previous))
    }
}

/// Algorithm 1 of the paper alone: per block, its device.
///
/// What is hardly slower on the CPU goes there, and comes back where its copies to and from the other
/// device make it slower than `threshold_us` after all; until nothing changes.
pub fn algorithm_1(problem: &Problem) -> Result<Vec<Device>> {
    Ok(devices(&Graph::new(problem)?, problem.threshold_us))
}

fn devices(graph: &Graph, threshold_us: f64) -> Vec<Device> {
    let mut devices = light_on_cpu(graph, threshold_us);
    for _ in 0..ROUNDS {
        let mut has_changed = false;
        for &block in &graph.order {
            let number = block as usize;
            let (device, times) = (devices[number], graph.times[number]);
            let fast = if times[0] < times[1] { Device::Cpu } else { Device::Gpu };
            if fast == device {
                continue;
            }
            let copy = |link: &Link, to: Device| match devices[link.block as usize] == device {
                true => 0.0,
                false => link.copy_us[to as usize],
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

fn plan(graph: &Graph, threshold_us: f64, limit: &Limit<'_>) -> Plan {
    let tails = tails(graph);
    let mut ends = vec![0.0; graph.len()];
    let mut starts: Vec<(f64, Schedule)> = starts(graph, &tails, threshold_us)
        .into_iter()
        .map(|schedule| (schedule.makespan(graph, &mut ends), schedule))
        .collect();
    starts.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    // What costs the same is nearly always the same.
    starts.dedup_by(|(a, _), (b, _)| a == b);
    let starts = starts.into_iter().map(|(_, schedule)| schedule).collect();
    let refined = refine(graph, &tails, starts, limit);
    let today = baseline(graph);
    match refined {
        Some((makespan_us, best)) if makespan_us <= execute(graph, &today).makespan_us => {
            Plan::in_order(best.devices, &best.order)
        }
        _ => today,
    }
}

/// Schedules that are good on some graphs: the best of them is not the same on all.
fn starts(graph: &Graph, tails: &[[f64; 2]], threshold_us: f64) -> Vec<Schedule> {
    let mut starts = Vec::new();
    let devices = devices(graph, threshold_us);
    let times = first_come(graph, &devices);
    let mut order = graph.order.clone();
    order.sort_by(|a, b| times.start[*a as usize].total_cmp(&times.start[*b as usize]));
    starts.push(Schedule { devices, order });
    for rank in [Rank::Mean, Rank::Best] {
        let ranks = ranks(graph, tails, rank);
        starts.push(list(graph, &ranks, None, None));
        starts.push(list(graph, &ranks, Some(tails), None));
        if rank == Rank::Best {
            // Where copies are slow, moving nothing is best.
            starts.push(list(graph, &ranks, None, Some(&all_on_gpu(graph))));
        }
    }
    starts
}
