//! `pareto`: plans to choose from, where latency is not all that counts (section 8.2.3).
//!
//! Latency, the throughput of the busiest node, accuracy and energy are at odds: sooner exits save
//! time and cost right answers, the fastest node may draw the most, and spreading the layers over
//! more nodes lets more requests through while each takes longer. A front has the plans that no
//! other plan beats in all of these.
//!
//! It is walked along with [`ExactPlacement`]. Thresholds fix the accuracy, so each combination of
//! them is a problem of its own. That no node is busy for longer than so many seconds is a limit on
//! the runs of layers that fit there, like memory; so it is lowered step by step below what the
//! last plan needed. And energy adds up layer by layer and transfer by transfer as latency does; so
//! any mix of the two is a latency too, of slower nodes and slower links. For one model this finds
//! every plan of the front of latency and throughput, up to how many are wanted; with energy, those
//! that some mix of it and latency prefers. For several models, limits are on each of them and not
//! on their sum: some are missed.

use tessera_core::Result;

use super::ExactPlacement;
use super::cost_model::PlacementCostModel;
use super::front::{FrontPoint, MOST_POINTS, merge_point, thin_front};
use super::outcome::{PlacementOutcome, evaluate_placement};
use super::plan::PlacementPlan;
use super::strategy::{PlacementOptions, PlacementProposal, PlacementStrategy};
use super::thresholds;
use crate::Strategy;

/// Finds a front. The plan that it proposes itself is the one with the least latency.
#[derive(Clone, Debug, PartialEq)]
pub struct ParetoPlacement {
    /// Most plans of a front.
    pub most: usize,
    /// How often a plan is looked for at most.
    pub searches: usize,
    /// Mixes of latency and energy that are tried between the two, for each limit of throughput.
    pub mixes: usize,
}

impl ParetoPlacement {
    /// Enough for a picture.
    pub const DEFAULT: Self = Self { most: MOST_POINTS, searches: 2000, mixes: 3 };
}

impl Default for ParetoPlacement {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Strategy for ParetoPlacement {
    fn name(&self) -> &str {
        "pareto"
    }

    fn one_line_summary(&self) -> &str {
        "a front of plans to choose from: latency, throughput, accuracy and energy; takes the quickest"
    }
}

impl PlacementStrategy for ParetoPlacement {
    fn propose_placement(
        &self,
        cost_model: &PlacementCostModel<'_>,
        options: &PlacementOptions<'_>,
    ) -> Result<PlacementProposal> {
        let mut proposal = ExactPlacement.propose_placement(cost_model, options)?;
        let all = self.settings_to_try(cost_model)?;
        let mut front = ParetoSearch { points: Vec::new(), limit: options, left: 0 };
        front.add_plan(cost_model.problem, cost_model.plan_with_nodes(proposal.nodes.clone()));
        for settings in &all {
            // What one combination leaves of its share goes to the others.
            front.left += (self.searches / all.len()).max(1);
            front.walk_throughput(
                &PlacementCostModel::new(cost_model.problem, settings.clone(), None),
                self.mixes,
            )?;
        }
        proposal.front = thin_front(front.points, self.most);
        Ok(proposal)
    }
}

impl ParetoPlacement {
    /// The thresholds to try. Those of models that need an accuracy are chosen by who calls this.
    fn settings_to_try(
        &self,
        cost_model: &PlacementCostModel<'_>,
    ) -> Result<Vec<Vec<Vec<Option<usize>>>>> {
        let mut all: Vec<Vec<Vec<Option<usize>>>> = vec![Vec::new()];
        for (model, given) in cost_model.models.iter().zip(&cost_model.settings) {
            let settings = match model.least_accuracy {
                Some(_) => vec![given.clone()],
                None => thresholds::setting_combinations(model)?,
            };
            all = thresholds::with_each(model, &all, &settings)?;
        }
        Ok(all)
    }
}

/// A front on the way.
struct ParetoSearch<'a> {
    points: Vec<FrontPoint>,
    limit: &'a PlacementOptions<'a>,
    /// How often a plan may still be looked for.
    left: usize,
}

impl ParetoSearch<'_> {
    /// Goes along the throughput from that of the quickest plan on.
    fn walk_throughput(&mut self, cost_model: &PlacementCostModel<'_>, mixes: usize) -> Result<()> {
        let several = cost_model.chains.len() > 1;
        let mut busiest = f64::INFINITY;
        loop {
            let Some(quickest) = self.search_plan(cost_model, busiest, 0.0)? else { return Ok(()) };
            if let Some(energy) = quickest.energy_joules {
                self.mix_energy(cost_model, busiest, quickest.latency_seconds, energy, mixes)?;
            }
            let Some(throughput) = quickest.throughput_per_second else { return Ok(()) };
            let needed = (1.0 / throughput).min(busiest);
            // Sums of several models can't be limited exactly: by more, so that it comes to an end.
            busiest = needed * if several { 0.95 } else { 1.0 - 1e-9 };
        }
    }

    /// Looks for plans with less energy: at the other end, and in between.
    fn mix_energy(
        &mut self,
        cost_model: &PlacementCostModel<'_>,
        busiest: f64,
        latency: f64,
        energy: f64,
        mixes: usize,
    ) -> Result<()> {
        if energy <= 0.0 || latency <= 0.0 {
            return Ok(());
        }
        let least = self.search_plan(cost_model, busiest, latency / energy * 1e4)?;
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
            let found = self.search_plan(cost_model, busiest, (slow - quick) / (more - less))?;
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

    /// The plan with the least latency and `price` times energy, where no node is busy for longer
    /// than `busiest` for a request. None where there is no such plan, or no time to look for it.
    fn search_plan(
        &mut self,
        cost_model: &PlacementCostModel<'_>,
        busiest: f64,
        price: f64,
    ) -> Result<Option<PlacementOutcome>> {
        if self.left == 0 || self.limit.limit.is_reached() {
            return Ok(None);
        }
        self.left -= 1;
        let mut priced = cost_model.clone();
        for chain in &mut priced.chains {
            // Before prices are put on: it is the time that counts.
            chain.limit_busy_seconds(busiest / chain.weight);
        }
        if price > 0.0 {
            priced.price_energy(price);
        }
        let nodes = match ExactPlacement.propose_placement(&priced, self.limit) {
            Ok(proposal) => proposal.nodes,
            // The bound that was asked for can't be met, or not in time: the front ends here.
            Err(_) => return Ok(None),
        };
        Ok(Some(self.add_plan(cost_model.problem, cost_model.plan_with_nodes(nodes))))
    }

    /// Adds a plan where no other beats it, and takes those away that it beats.
    fn add_plan(
        &mut self,
        problem: &super::PlacementProblem,
        plan: PlacementPlan,
    ) -> PlacementOutcome {
        let outcome = evaluate_placement(problem, &plan);
        merge_point(&mut self.points, FrontPoint { plan, outcome: outcome.clone() });
        outcome
    }
}
