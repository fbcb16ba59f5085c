//! `pareto`: plans to choose from, where latency is not all that counts (section 8.2.3).
//!
//! Latency, the throughput of the busiest node, accuracy and energy are at odds: sooner exits save time
//! and cost right answers, the fastest node may draw the most, and spreading the layers over more nodes
//! lets more requests through while each takes longer. A front has the plans that no other plan beats in
//! all of these.
//!
//! It is walked along with [`Exact`]. Thresholds fix the accuracy, so each combination of them is a
//! problem of its own. That no node is busy for longer than so many seconds is a limit on the runs of
//! layers that fit there, like memory; so it is lowered step by step below what the last plan needed.
//! And energy adds up layer by layer and transfer by transfer as latency does; so any mix of the two is
//! a latency too, of slower nodes and slower links. For one model this finds every plan of the front of
//! latency and throughput, up to how many are wanted; with energy, those that some mix of it and latency
//! prefers. For several models, limits are on each of them and not on their sum: some are missed.

use tessera_core::Result;

use super::Exact;
use super::landscape::Landscape;
use super::outcome::{Outcome, evaluate};
use super::plan::Plan;
use super::strategy::{Options, Proposal, Strategy};
use super::thresholds;

/// A plan of a front, and what it would bring.
#[derive(Clone, Debug, PartialEq)]
pub struct FrontPoint {
    /// Where the layers go.
    pub plan: Plan,
    /// What it would bring.
    pub outcome: Outcome,
}

/// Finds a front. The plan that it proposes itself is the one with the least latency.
#[derive(Clone, Debug, PartialEq)]
pub struct Pareto {
    /// Most plans of a front.
    pub most: usize,
    /// How often a plan is looked for at most.
    pub searches: usize,
    /// Mixes of latency and energy that are tried between the two, for each limit of throughput.
    pub mixes: usize,
}

impl Default for Pareto {
    fn default() -> Self {
        Self { most: 64, searches: 2000, mixes: 3 }
    }
}

impl Strategy for Pareto {
    fn name(&self) -> &str {
        "pareto"
    }

    fn about(&self) -> &str {
        "a front of plans to choose from: latency, throughput, accuracy and energy; takes the quickest"
    }

    fn propose(&self, landscape: &Landscape<'_>, options: &Options<'_>) -> Result<Proposal> {
        let mut proposal = Exact.propose(landscape, options)?;
        let all = self.settings(landscape)?;
        let mut front = Front { points: Vec::new(), limit: options, left: 0 };
        front.add(landscape.problem, landscape.plan(proposal.nodes.clone()));
        for settings in &all {
            // What one combination leaves of its share goes to the others.
            front.left += (self.searches / all.len()).max(1);
            front.walk(&Landscape::new(landscape.problem, settings.clone(), None), self.mixes)?;
        }
        proposal.front = choose(front.points, self.most);
        Ok(proposal)
    }
}

impl Pareto {
    /// The thresholds to try. Those of models that need an accuracy are chosen by who calls this.
    fn settings(&self, landscape: &Landscape<'_>) -> Result<Vec<Vec<Vec<Option<usize>>>>> {
        let mut all: Vec<Vec<Vec<Option<usize>>>> = vec![Vec::new()];
        for (model, given) in landscape.models.iter().zip(&landscape.settings) {
            let settings = match model.least_accuracy {
                Some(_) => vec![given.clone()],
                None => thresholds::combinations(model)?,
            };
            all = thresholds::with_each(model, &all, &settings)?;
        }
        Ok(all)
    }
}

/// A front on the way.
struct Front<'a> {
    points: Vec<FrontPoint>,
    limit: &'a Options<'a>,
    /// How often a plan may still be looked for.
    left: usize,
}

impl Front<'_> {
    /// Goes along the throughput from that of the quickest plan on.
    fn walk(&mut self, landscape: &Landscape<'_>, mixes: usize) -> Result<()> {
        let several = landscape.chains.len() > 1;
        let mut busiest = f64::INFINITY;
        loop {
            let Some(quickest) = self.search(landscape, busiest, 0.0)? else { return Ok(()) };
            if let Some(energy) = quickest.energy_joules {
                self.mix(landscape, busiest, quickest.latency_seconds, energy, mixes)?;
            }
            let Some(throughput) = quickest.throughput_per_second else { return Ok(()) };
            let needed = (1.0 / throughput).min(busiest);
            // Sums of several models can't be limited exactly: by more, so that it comes to an end.
            busiest = needed * if several { 0.95 } else { 1.0 - 1e-9 };
        }
    }

    /// Looks for plans with less energy: at the other end, and in between.
    fn mix(
        &mut self,
        landscape: &Landscape<'_>,
        busiest: f64,
        latency: f64,
        energy: f64,
        mixes: usize,
    ) -> Result<()> {
        if energy <= 0.0 || latency <= 0.0 {
            return Ok(());
        }
        let least = self.search(landscape, busiest, latency / energy * 1e4)?;
        let Some((slowest, least)) =
            least.and_then(|o| Some((o.latency_seconds, o.energy_joules?)))
        else {
            return Ok(());
        };
        let mut gaps = vec![((latency, energy), (slowest, least))];
        for _ in 0..mixes {
            // The widest gap first, as shares of the whole.
            let width = |((one, _), (other, _)): &((f64, f64), (f64, f64))| other - one;
            let widest = (0..gaps.len())
                .max_by(|&one, &other| width(&gaps[one]).total_cmp(&width(&gaps[other])));
            let Some(gap) = widest.map(|at| gaps.swap_remove(at)) else { break };
            let ((quick, more), (slow, less)) = gap;
            if slow - quick <= 1e-9 * slow || more - less <= 1e-9 * more {
                continue;
            }
            let found = self.search(landscape, busiest, (slow - quick) / (more - less))?;
            let Some((at, joules)) =
                found.and_then(|o| Some((o.latency_seconds, o.energy_joules?)))
            else {
                break;
            };
            gaps.push(((quick, more), (at, joules)));
            gaps.push(((at, joules), (slow, less)));
        }
        Ok(())
    }

    /// The plan with the least latency and `price` times energy, where no node is busy for longer than
    /// `busiest` for a request. None where there is no such plan, or no time to look for it.
    fn search(
        &mut self,
        landscape: &Landscape<'_>,
        busiest: f64,
        price: f64,
    ) -> Result<Option<Outcome>> {
        if self.left == 0 || self.limit.limit.reached() {
            return Ok(None);
        }
        self.left -= 1;
        let mut priced = landscape.clone();
        for chain in &mut priced.chains {
            // Before prices are put on: it is the time that counts.
            chain.shorten(busiest / chain.weight);
        }
        if price > 0.0 {
            priced.price_energy(price);
        }
        let nodes = match Exact.propose(&priced, self.limit) {
            Ok(proposal) => proposal.nodes,
            // The bound that was asked for can't be met, or not in time: the front ends here.
            Err(_) => return Ok(None),
        };
        Ok(Some(self.add(landscape.problem, landscape.plan(nodes))))
    }

    /// Adds a plan where no other beats it, and takes those away that it beats.
    fn add(&mut self, problem: &super::Problem, plan: Plan) -> Outcome {
        let outcome = evaluate(problem, &plan);
        merge(&mut self.points, FrontPoint { plan, outcome: outcome.clone() });
        outcome
    }
}

/// Adds a point to a front, unless one of it is as good in all that counts.
pub(super) fn merge(front: &mut Vec<FrontPoint>, point: FrontPoint) {
    let costs = costs(&point.outcome);
    if front.iter().any(|other| no_worse(&self::costs(&other.outcome), &costs)) {
        return;
    }
    front.retain(|other| !no_worse(&costs, &self::costs(&other.outcome)));
    front.push(point);
}

/// What counts, as costs: the lower the better. What is not known counts as the same for all.
fn costs(outcome: &Outcome) -> [f64; 4] {
    [
        outcome.latency_seconds,
        outcome.throughput_per_second.map_or(0.0, |throughput| 1.0 / throughput),
        outcome.accuracy.map_or(0.0, |accuracy| 1.0 - accuracy),
        outcome.energy_joules.unwrap_or(0.0),
    ]
}

/// Whether one is as good as the other in all that counts, up to how sums are rounded.
fn no_worse(one: &[f64; 4], other: &[f64; 4]) -> bool {
    one.iter().zip(other).all(|(one, other)| *one <= other * (1.0 + 1e-12))
}

/// The front by latency; of more than are wanted, those that are the farthest from their neighbours.
pub(super) fn choose(mut front: Vec<FrontPoint>, most: usize) -> Vec<FrontPoint> {
    let order = |one: &FrontPoint, other: &FrontPoint| {
        let [one, other] = [one, other].map(|point| costs(&point.outcome));
        one.partial_cmp(&other).unwrap_or(std::cmp::Ordering::Equal)
    };
    front.sort_by(order);
    while front.len() > most.max(2) {
        let costs: Vec<[f64; 4]> = front.iter().map(|point| costs(&point.outcome)).collect();
        let crowded = crowding(&costs).into_iter().enumerate();
        let least = crowded.min_by(|(_, one), (_, other)| one.total_cmp(other));
        let Some((at, _)) = least else { break };
        front.remove(at);
    }
    front
}

/// How far each point's neighbours are apart in each of the costs, as shares of the whole range, summed
/// up. The first and the last in any of them are infinitely far.
fn crowding(costs: &[[f64; 4]]) -> Vec<f64> {
    let mut distance = vec![0.0; costs.len()];
    for axis in 0..4 {
        let mut order: Vec<usize> = (0..costs.len()).collect();
        order.sort_by(|&one, &other| costs[one][axis].total_cmp(&costs[other][axis]));
        let ends = order.first().zip(order.last());
        let range = ends.map_or(0.0, |(&low, &high)| costs[high][axis] - costs[low][axis]);
        if range <= 0.0 {
            continue;
        }
        for (place, &at) in order.iter().enumerate() {
            let inner =
                place.checked_sub(1).and_then(|low| Some((order[low], *order.get(place + 1)?)));
            distance[at] += match inner {
                Some((low, high)) => (costs[high][axis] - costs[low][axis]) / range,
                None => f64::INFINITY,
            };
        }
    }
    distance
}
