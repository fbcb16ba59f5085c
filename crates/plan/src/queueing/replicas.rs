//! How many replicas each block needs.
//!
//! Utilisation asks for its replicas block by block: its load over the target, rounded up. No plan
//! that meets the target has fewer of any block. Where the budget is too small for that, the
//! busiest block gets the next one until it does not fit: to make the busiest less busy, each plan
//! has to give it one more, so none within the budget has a lower peak.
//!
//! Latency asks for more where requests wait longest. Each further replica of a block saves less
//! waiting than the one before, so taking the one that saves most, again and again, gives the
//! fewest for a task, if all replicas cost the same. With several tasks that are too slow, no plan
//! has fewer than the neediest of them alone; where that many are enough for all, the plan is
//! proved as well.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

use super::consistency::require_count;
use super::load::{QueueingLoad, QueueingStep, block_loads, load_with, task_steps};
use super::problem::{QueueingBlock, QueueingProblem, ReplicaBudget};
use crate::{Planner, SearchLimit, Strategy};

/// How many replicas of each block there should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaPlan {
    /// Replicas by block.
    pub replicas: BTreeMap<String, u32>,
}

/// A plan, and what is known about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaSolution {
    /// The plan.
    pub plan: ReplicaPlan,
    /// What it takes.
    pub taken: ReplicaBudget,
    /// How busy they are.
    pub load: QueueingLoad,
    /// Which targets are not met, each with why.
    pub unmet: Vec<String>,
    /// Whether it is proved that no plan takes less and meets the same; or, where the budget is too
    /// small for the utilisation, that no plan within it has a less busy bottleneck. A plan that
    /// stays because of the hysteresis takes more and is not.
    pub proved: bool,
}

/// Finds the fewest replicas that meet the targets within the budget. With a previous plan none are
/// taken away before fewer would do for rates that are higher by the hysteresis.
#[derive(Clone, Copy, Debug, Default)]
pub struct FewestReplicas;

impl Strategy for FewestReplicas {
    fn name(&self) -> &str {
        "fewest"
    }

    fn one_line_summary(&self) -> &str {
        "the fewest replicas that meet utilisation and latency within the budget"
    }
}

impl Planner for FewestReplicas {
    type Problem = QueueingProblem;
    type Plan = ReplicaPlan;
    type Solution = ReplicaSolution;

    /// It has nothing to search for long, and asks for no limit.
    fn find_plan(
        &self,
        problem: &QueueingProblem,
        previous: Option<&ReplicaPlan>,
        _: &SearchLimit<'_>,
    ) -> Result<ReplicaSolution> {
        problem.check_consistency()?;
        let now = ReplicaNeeds::new(problem, 1.0);
        let (least, proved) = now.fewest_replicas();
        let Some(previous) = previous.and_then(|plan| previous_replicas(problem, plan)) else {
            return Ok(assemble_solution(&now, &least, proved));
        };
        let (reserve, _) = ReplicaNeeds::new(problem, 1.0 + problem.hysteresis).fewest_replicas();
        let most: Vec<u32> =
            least.iter().zip(&reserve).map(|(least, most)| *least.max(most)).collect();
        let is_enough =
            now.meets_targets(&previous) && now.total_price(&previous) <= now.total_price(&most);
        let stays: Vec<u32> = if is_enough {
            previous
        } else {
            let each = previous.iter().zip(&least).zip(&most);
            each.map(|((previous, least), most)| *previous.clamp(least, most)).collect()
        };
        let stays = if now.fits_budget(&stays) { stays } else { least.clone() };
        Ok(assemble_solution(&now, &stays, proved && stays == least))
    }
}

/// The fewest replicas; see [`FewestReplicas`].
pub fn plan_replicas(
    problem: &QueueingProblem,
    previous: Option<&ReplicaPlan>,
) -> Result<ReplicaSolution> {
    FewestReplicas.find_plan(problem, previous, &SearchLimit::none())
}

/// What a given plan brings. It is proved if the planner would have made it.
pub fn evaluate_replicas(
    problem: &QueueingProblem,
    given: &ReplicaPlan,
) -> Result<ReplicaSolution> {
    problem.check_consistency()?;
    let known = problem.block_numbers();
    if let Some(name) = given.replicas.keys().find(|name| !known.contains_key(name.as_str())) {
        return Err(Error::invalid(format!("replicas: there is no block \"{name}\"")));
    }
    let mut counts = Vec::with_capacity(problem.blocks.len());
    for block in &problem.blocks {
        let field = format!("replicas.{}", block.name);
        let missing = || Error::invalid(format!("{field}: missing"));
        counts.push(require_count(
            &field,
            given.replicas.get(&block.name).copied().ok_or_else(missing)?,
        )?);
    }
    let needs = ReplicaNeeds::new(problem, 1.0);
    let (least, proved) = needs.fewest_replicas();
    Ok(assemble_solution(&needs, &counts, proved && counts == least))
}

/// The replicas of a plan; none where it lacks a block.
fn previous_replicas(problem: &QueueingProblem, plan: &ReplicaPlan) -> Option<Vec<u32>> {
    let counts = problem.blocks.iter().map(|block| plan.replicas.get(&block.name).copied());
    counts.map(|count| count.filter(|&count| count > 0)).collect()
}

fn assemble_solution(needs: &ReplicaNeeds<'_>, replicas: &[u32], proved: bool) -> ReplicaSolution {
    let problem = needs.problem;
    let load = load_with(problem, replicas);
    let mut unmet = Vec::new();
    for block in &load.blocks {
        if block.utilisation > problem.utilisation * (1.0 + SAME) {
            let (name, is, target) = (&block.block, block.utilisation, problem.utilisation);
            unmet.push(format!("block \"{name}\": utilisation {is:.2}, more than {target:.2}"));
        }
    }
    for task in &load.tasks {
        let Some(target) = task.target_us else { continue };
        if task.latency_us.is_some_and(|latency| latency <= target * (1.0 + SAME)) {
            continue;
        }
        let (name, wanted, least) = (&task.task, target / 1e3, task.unloaded_us / 1e3);
        unmet.push(match (task.unloaded_us >= target, task.latency_us) {
            (true, _) => format!(
                "task \"{name}\": it takes {least:.2} ms without any waiting, more than {wanted:.2} ms"
            ),
            (false, Some(latency)) => format!(
                "task \"{name}\": {:.2} ms, more than {wanted:.2} ms",
                latency / 1e3
            ),
            (false, None) => format!(
                "task \"{name}\": a queue on its path grows without end"
            ),
        });
    }
    let names = problem.blocks.iter().map(|block| block.name.clone());
    ReplicaSolution {
        plan: ReplicaPlan { replicas: names.zip(replicas.iter().copied()).collect() },
        taken: problem.resources_taken(replicas),
        load,
        unmet,
        proved,
    }
}

/// Figures that differ by less, relatively, are the same.
const SAME: f64 = 1e-9;

/// What the tasks need at some multiple of their rates.
struct ReplicaNeeds<'a> {
    problem: &'a QueueingProblem,
    loads: Vec<f64>,
    steps: Vec<Vec<QueueingStep>>,
    /// How long the requests of each task may wait; none where that can't be met or is not asked
    /// for.
    patience: Vec<Option<f64>>,
    /// What a replica of each block costs.
    prices: Vec<f64>,
}

impl<'a> ReplicaNeeds<'a> {
    fn new(problem: &'a QueueingProblem, scale: f64) -> Self {
        let (loads, steps) = (block_loads(problem), task_steps(problem));
        let patience = problem.tasks.iter().zip(&steps).map(|(task, steps)| {
            let served =
                steps.iter().map(|step| step.reach * problem.blocks[step.block].alone_us());
            let left = task.latency_us? - task.transfer_us - served.sum::<f64>();
            (left > 0.0).then_some(left)
        });
        Self {
            problem,
            patience: patience.collect(),
            steps,
            loads: loads.into_iter().map(|load| load * scale).collect(),
            prices: replica_prices(problem),
        }
    }

    /// The fewest replicas, and whether that is proved.
    fn fewest_replicas(&self) -> (Vec<u32>, bool) {
        let (start, is_whole) = self.for_utilisation();
        let late: Vec<usize> =
            (0..self.patience.len()).filter(|&task| self.lateness(task, &start) > 0.0).collect();
        if !is_whole || late.is_empty() {
            return (start, true);
        }
        let mut found = self.for_latency(start.clone(), &late);
        self.trim_replicas(&mut found, &start);
        let blocks = &self.problem.blocks;
        let is_even = self.problem.budget.is_none()
            || blocks
                .windows(2)
                .all(|pair| (pair[0].cores, pair[0].bytes) == (pair[1].cores, pair[1].bytes));
        let is_even = is_even && blocks.iter().all(QueueingBlock::is_simple);
        let alone =
            late.iter().map(|&task| self.total_price(&self.for_latency(start.clone(), &[task])));
        let bound = alone.fold(0.0, f64::max);
        let proved = is_even
            && self.meets_targets(&found)
            && self.total_price(&found) <= bound * (1.0 + SAME);
        (found, proved)
    }

    /// The replicas that the utilisation asks for, or as many of them as fit; says whether all do.
    fn for_utilisation(&self) -> (Vec<u32>, bool) {
        let needed = self.loads.iter().map(|load| {
            // What is a hair above a whole number is that number.
            let needed = load / self.problem.utilisation;
            (needed * (1.0 - SAME)).ceil().max(1.0) as u32
        });
        let needed: Vec<u32> = needed.collect();
        if self.fits_budget(&needed) {
            return (needed, true);
        }
        let mut replicas = vec![1; needed.len()];
        loop {
            let busy = |block: usize| self.loads[block] / f64::from(replicas[block]);
            let all = 0..replicas.len();
            let Some(busiest) = all.reduce(|a, b| if busy(b) > busy(a) { b } else { a }) else {
                return (replicas, false);
            };
            replicas[busiest] += 1;
            if !self.fits_budget(&replicas) {
                replicas[busiest] -= 1;
                return (replicas, false);
            }
        }
    }

    /// Adds the replica that saves most waiting for what it costs, until no task of `late` is late
    /// or nothing fits.
    fn for_latency(&self, mut replicas: Vec<u32>, late: &[usize]) -> Vec<u32> {
        loop {
            let late: Vec<usize> =
                late.iter().copied().filter(|&task| self.lateness(task, &replicas) > 0.0).collect();
            // What all requests of late tasks wait less, by block.
            let mut gains = vec![0.0; replicas.len()];
            for &task in &late {
                let lateness = self.lateness(task, &replicas);
                for step in &self.steps[task] {
                    let wait = |count: u32| self.waiting_time(step.block, count);
                    let count = replicas[step.block];
                    // What is more than a task needs is no gain for it, unless it is the only one.
                    let gain = step.reach * (wait(count) - wait(count + 1));
                    gains[step.block] += if late.len() > 1 { gain.min(lateness) } else { gain };
                }
            }
            let mut best: Option<(f64, usize)> = None;
            for (block, gain) in gains.into_iter().enumerate().filter(|(_, gain)| *gain > 0.0) {
                replicas[block] += 1;
                let worth = gain / self.prices[block];
                if self.fits_budget(&replicas) && best.is_none_or(|(most, _)| worth > most) {
                    best = Some((worth, block));
                }
                replicas[block] -= 1;
            }
            let Some((_, block)) = best else {
                return replicas;
            };
            replicas[block] += 1;
        }
    }

    /// Takes replicas away, the dearest first, that no target needs.
    fn trim_replicas(&self, replicas: &mut [u32], least: &[u32]) {
        if !self.meets_targets(replicas) {
            return;
        }
        let mut order: Vec<usize> = (0..replicas.len()).collect();
        order.sort_by(|&a, &b| self.prices[b].total_cmp(&self.prices[a]));
        for block in order {
            while replicas[block] > least[block] {
                replicas[block] -= 1;
                if !self.meets_targets(replicas) {
                    replicas[block] += 1;
                    break;
                }
            }
        }
    }

    fn waiting_time(&self, block: usize, replicas: u32) -> f64 {
        let wait = self.problem.blocks[block].wait_us(self.loads[block], replicas);
        wait.unwrap_or(f64::INFINITY)
    }

    /// How much longer the requests of a task wait than they may.
    fn lateness(&self, task: usize, replicas: &[u32]) -> f64 {
        let Some(patience) = self.patience[task] else {
            return 0.0;
        };
        let steps = self.steps[task].iter().filter(|step| step.reach > 0.0);
        let waits: f64 = steps
            .map(|step| step.reach * self.waiting_time(step.block, replicas[step.block]))
            .sum();
        if waits <= patience * (1.0 + SAME) { 0.0 } else { waits - patience }
    }

    fn meets_targets(&self, replicas: &[u32]) -> bool {
        let target = self.problem.utilisation * (1.0 + SAME);
        let pairs = self.loads.iter().zip(replicas);
        self.fits_budget(replicas)
            && pairs.into_iter().all(|(load, &count)| *load <= f64::from(count) * target)
            && (0..self.patience.len()).all(|task| self.lateness(task, replicas) <= 0.0)
    }

    fn fits_budget(&self, replicas: &[u32]) -> bool {
        let Some(budget) = self.problem.budget else {
            return true;
        };
        let taken = self.problem.resources_taken(replicas);
        let within = |taken: Option<f64>, limit: Option<f64>| match (taken, limit) {
            (Some(taken), Some(limit)) => taken <= limit * (1.0 + SAME),
            _ => true,
        };
        within(taken.replicas.map(f64::from), budget.replicas.map(f64::from))
            && within(taken.cores, budget.cores)
            && within(taken.bytes, budget.bytes)
    }

    fn total_price(&self, replicas: &[u32]) -> f64 {
        let pairs = self.prices.iter().zip(replicas);
        pairs.map(|(price, &count)| price * f64::from(count)).sum()
    }
}

/// What a replica of each block costs: its shares of the budget, or one where there is none.
fn replica_prices(problem: &QueueingProblem) -> Vec<f64> {
    let budget = problem.budget.unwrap_or_default();
    let share = |is: f64, of: Option<f64>| of.filter(|of| *of > 0.0).map_or(0.0, |of| is / of);
    let prices = problem.blocks.iter().map(|block| {
        let price = share(1.0, budget.replicas.map(f64::from))
            + share(block.cores, budget.cores)
            + share(block.bytes, budget.bytes);
        // What takes nothing of the budget is still better not there.
        price.max(1e-9)
    });
    let prices: Vec<f64> = prices.collect();
    if budget == ReplicaBudget::default() { vec![1.0; prices.len()] } else { prices }
}
