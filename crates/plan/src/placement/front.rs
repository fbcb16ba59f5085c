//! A front: plans of which none is beaten by another in all that counts.

use super::outcome::PlacementOutcome;
use super::plan::PlacementPlan;

/// Most plans of a front, where nobody says otherwise.
pub(super) const MOST_POINTS: usize = 64;

/// A plan of a front, and what it would bring.
#[derive(Clone, Debug, PartialEq)]
pub struct FrontPoint {
    /// Where the layers go.
    pub plan: PlacementPlan,
    /// What it would bring.
    pub outcome: PlacementOutcome,
}

/// Adds a point to a front, unless one of it is as good in all that counts.
pub(super) fn merge_point(front: &mut Vec<FrontPoint>, point: FrontPoint) {
    let costs = outcome_costs(&point.outcome);
    if front.iter().any(|other| is_no_worse(&outcome_costs(&other.outcome), &costs)) {
        return;
    }
    front.retain(|other| !is_no_worse(&costs, &outcome_costs(&other.outcome)));
    front.push(point);
}

/// What counts, as costs: the lower the better. What is not known counts as the same for all.
fn outcome_costs(outcome: &PlacementOutcome) -> [f64; 4] {
    [
        outcome.latency_seconds,
        outcome.throughput_per_second.map_or(0.0, |throughput| 1.0 / throughput),
        outcome.accuracy.map_or(0.0, |accuracy| 1.0 - accuracy),
        outcome.energy_joules.unwrap_or(0.0),
    ]
}

/// Whether one is as good as the other in all that counts, up to how sums are rounded.
fn is_no_worse(one: &[f64; 4], other: &[f64; 4]) -> bool {
    one.iter().zip(other).all(|(one, other)| *one <= other * (1.0 + 1e-12))
}

/// The front by latency; of more than are wanted, those that are the farthest from their
/// neighbours.
pub(super) fn thin_front(mut front: Vec<FrontPoint>, most: usize) -> Vec<FrontPoint> {
    let order = |one: &FrontPoint, other: &FrontPoint| {
        let [one, other] = [one, other].map(|point| outcome_costs(&point.outcome));
        one.partial_cmp(&other).unwrap_or(std::cmp::Ordering::Equal)
    };
    front.sort_by(order);
    while front.len() > most.max(2) {
        let costs: Vec<[f64; 4]> =
            front.iter().map(|point| outcome_costs(&point.outcome)).collect();
        let crowded = crowding_distances(&costs).into_iter().enumerate();
        let least = crowded.min_by(|(_, one), (_, other)| one.total_cmp(other));
        let Some((at, _)) = least else { break };
        front.remove(at);
    }
    front
}

/// How far each point's neighbours are apart in each of the costs, as shares of the whole range,
/// summed up. The first and the last in any of them are infinitely far.
fn crowding_distances(costs: &[[f64; 4]]) -> Vec<f64> {
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
