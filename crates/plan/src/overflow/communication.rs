//! Comm+SD.

use tessera_core::Result;

use super::Strategy;
use super::executor::{execute, first_come};
use super::graph::{Graph, Link};
use super::list::{Rank, Schedule, list, ranks};
use super::paths::tails;
use super::planned::{Plan, Planned};
use super::problem::{Device, Problem};
use super::sequential::{all_on_gpu, baseline};
use super::slowdown::light_on_cpu;
use crate::Limit;

/// Most rounds of Algorithm 1; the paper saw less than ten.
const ROUNDS: usize = 10;

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

/// Algorithm 1 of the paper.
pub fn algorithm_1(problem: &Problem) -> Result<Vec<Device>> {
    Ok(devices(&Graph::new(problem)?, problem.threshold_us))
}

fn devices(graph: &Graph, threshold_us: f64) -> Vec<Device> {
    let mut devices = light_on_cpu(graph, threshold_us);
    for _ in 0..ROUNDS {
        let mut changed = false;
        for &block in &graph.order {
            let number = block as usize;
            let (device, [cpu, gpu]) = (devices[number], graph.times[number]);
            let fast = if cpu < gpu { Device::Cpu } else { Device::Gpu };
            if fast == device {
                continue;
            }
            let copy = |link: &Link, to: Device| match devices[link.block as usize] == device {
                true => 0.0,
                false => link.copy_us[to as usize],
            };
            let inputs = graph.predecessors(number).iter().map(|link| copy(link, device));
            let outputs = graph.successors(number).iter().map(|link| copy(link, device.other()));
            let copies: f64 = inputs.sum::<f64>() + outputs.sum::<f64>();
            let times = graph.times[number];
            if times[device as usize] + copies > times[fast as usize] + threshold_us {
                devices[number] = fast;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    devices
}

fn plan(graph: &Graph, threshold_us: f64, limit: &Limit<'_>) -> Plan {
    let tails = tails(graph);
    let mut ends = vec![0.0; graph.len()];
    let mut cands: Vec<(f64, Schedule, String)> = Vec::new();
    let mut add = |s: Schedule, n: String| {
        let m = s.makespan(graph, &mut ends);
        cands.push((m, s, n));
    };
    let d = devices(graph, threshold_us);
    let t = first_come(graph, &d);
    let mut order = graph.order.clone();
    order.sort_by(|a, b| t.start[*a as usize].total_cmp(&t.start[*b as usize]));
    add(Schedule { devices: d.clone(), order }, format!("alg1 fifo"));
    for rank in [Rank::Mean, Rank::Best] {
        let r = ranks(graph, &tails, rank);
        for ahead in [None, Some(tails.as_slice())] {
            add(list(graph, &r, ahead, None), format!("list {} {}", rank as u8, ahead.is_some()));
        }
        if rank == Rank::Mean {
            continue;
        }
        add(list(graph, &r, None, Some(&d)), format!("alg1 {}", rank as u8));
        let c: Vec<Device> = (0..graph.len())
            .map(|b| if graph.can_run(b, Device::Cpu) { Device::Cpu } else { Device::Gpu })
            .collect();
        add(list(graph, &r, None, Some(&c)), format!("cpu {}", rank as u8));
        let c: Vec<Device> = all_on_gpu(graph);
        add(list(graph, &r, None, Some(&c)), format!("gpu {}", rank as u8));
    }
    if std::env::var("SHOW").is_ok() {
        println!("seq {:.0}", execute(graph, &baseline(graph)).makespan_us);
        for c in &cands {
            println!("  {:.0} {}", c.0, c.2);
        }
    }
    cands.sort_by(|a, b| a.0.total_cmp(&b.0));
    cands.dedup_by(|a, b| a.0 == b.0);
    let k: usize = std::env::var("STARTS").map_or(3, |v| v.parse().unwrap());
    cands.truncate(k);
    let mut best = (f64::INFINITY, Plan::first_come(vec![]));
    let k = cands.len();
    for (m, s, _) in cands {
        let s = if std::env::var("NOREF").is_ok() {
            s
        } else {
            super::refine::refine(graph, s, limit, k)
        };
        let m2 = s.makespan(graph, &mut ends);
        if std::env::var("SHOW").is_ok() {
            println!("{m} -> {m2}");
        }
        if m2 < best.0 {
            best = (m2, Plan::in_order(s.devices, &s.order));
        }
    }
    let base = baseline(graph);
    let b = execute(graph, &base).makespan_us;
    if b < best.0 {
        return base;
    }
    best.1
}
