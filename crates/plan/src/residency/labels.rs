//! The search of [`super::exact`]: partial plans by their clocks, layer by layer.

use super::relaxation::LagrangianBound;
use super::search_model::{LayerOption, ResidencySearchModel, TOLERANCE};
use crate::SearchLimit;

/// What a search found.
pub(super) struct LabelSearchResult {
    /// The number of the option of each layer; none where nothing is quicker than what was known.
    pub(super) chosen: Option<Vec<usize>>,
    /// Its time to the result; infinite without one.
    pub(super) total_us: f64,
    /// No plan is quicker, nor than what was known.
    pub(super) bound_us: f64,
}

/// Partial plans that end at the same layer. Each has its clocks in a row: when its layers have
/// run, when each stream is free, and the bytes that are loaded.
struct LabelFront {
    clocks: Vec<f64>,
    bounds: Vec<f64>,
    /// Where each comes from, as a place in the history.
    places: Vec<u32>,
}

/// A step back to the partial plan that one was made of.
struct LabelStep {
    before: u32,
    option: u8,
}

/// Finds the quickest plan that is quicker than `known`.
pub(super) fn search_labels(
    model: &ResidencySearchModel,
    bound: &LagrangianBound,
    known: f64,
    limit: &SearchLimit<'_>,
) -> LabelSearchResult {
    let width = model.streams + 2;
    let goal = known * (1.0 - TOLERANCE);
    let clamps = ClockClamps::from_model(model);
    let mut left_out = f64::INFINITY;
    let mut history: Vec<LabelStep> = Vec::new();
    let start = bound.soonest_end(0, 0.0, &vec![0.0; model.streams], 0.0);
    let mut front =
        LabelFront { clocks: vec![0.0; width], bounds: vec![start], places: vec![u32::MAX] };
    let most = most_at_a_time(model);
    for (layer, options) in model.layers.iter().enumerate() {
        let is_late = limit.is_reached();
        let mut next = LabelFront { clocks: Vec::new(), bounds: Vec::new(), places: Vec::new() };
        let mut steps: Vec<LabelStep> = Vec::new();
        for (number, clocks) in front.clocks.chunks_exact(width).enumerate() {
            for (choice, option) in options.iter().enumerate() {
                let mut clocks = clocks.to_vec();
                advance_clocks(option, &mut clocks);
                if clocks[width - 1] > model.memory * (1.0 + 1e-9) {
                    continue;
                }
                clamps.clamp_clocks(layer + 1, &mut clocks);
                let (streams, bytes) = (&clocks[1..width - 1], clocks[width - 1]);
                let soonest =
                    bound.soonest_end(layer + 1, clocks[0], streams, bytes).max(clocks[0]);
                if soonest >= goal {
                    continue;
                }
                next.clocks.extend_from_slice(&clocks);
                next.bounds.push(soonest.max(front.bounds[number]));
                next.places.push(steps.len() as u32);
                steps.push(LabelStep { before: front.places[number], option: choice as u8 });
            }
        }
        let most = if is_late { 16 } else { most };
        let kept = undominated_labels(&next, width, model.memory.is_finite(), most, &mut left_out);
        front = LabelFront { clocks: Vec::new(), bounds: Vec::new(), places: Vec::new() };
        for &one in &kept {
            front.clocks.extend_from_slice(&next.clocks[one * width..(one + 1) * width]);
            front.bounds.push(next.bounds[one]);
            front.places.push(history.len() as u32);
            let step = &steps[next.places[one] as usize];
            history.push(LabelStep { before: step.before, option: step.option });
        }
    }
    let ends = front.clocks.chunks_exact(width).map(|clocks| clocks[0]);
    let best = ends.enumerate().min_by(|one, other| one.1.total_cmp(&other.1));
    let total_us = best.map_or(f64::INFINITY, |(_, total)| total);
    let chosen = best.map(|(number, _)| {
        let mut place = front.places[number];
        let mut chosen = Vec::with_capacity(model.layers.len());
        while let Some(step) = history.get(place as usize) {
            chosen.push(usize::from(step.option));
            place = step.before;
        }
        chosen.reverse();
        chosen
    });
    LabelSearchResult { chosen, total_us, bound_us: total_us.min(known).min(left_out) }
}

/// How many partial plans are followed at a time: as many as can be compared quickly.
fn most_at_a_time(model: &ResidencySearchModel) -> usize {
    match (model.streams, model.memory.is_finite()) {
        (1, false) => 50_000,
        (1, true) => 20_000,
        _ => 4_000,
    }
}

/// Moves the clocks on by one layer.
fn advance_clocks(option: &LayerOption, clocks: &mut [f64]) {
    let mut arrival = 0.0_f64;
    for &(stream, time, _) in &option.streams {
        // A helper's second stream forwards what its first has loaded.
        clocks[1 + stream] = clocks[1 + stream].max(arrival) + time;
        arrival = clocks[1 + stream];
    }
    clocks[0] = clocks[0].max(arrival) + option.running;
    if let Some(bytes) = clocks.last_mut() {
        *bytes += option.bytes;
    }
}

/// From when on an earlier clock makes no difference, so that partial plans that differ in nothing
/// else are the same.
struct ClockClamps {
    /// Per layer, how far a target's load stream may lag behind the run and still never be waited
    /// for; none where nothing is left to load.
    lead: Vec<Option<f64>>,
    /// Per layer, the shortest load time from it on.
    shortest: Vec<f64>,
    /// Per layer, the most that can still be loaded.
    bytes: Vec<f64>,
    memory: f64,
}

impl ClockClamps {
    fn from_model(model: &ResidencySearchModel) -> Self {
        let count = model.layers.len();
        let mut made = Self {
            lead: vec![None; count + 1],
            shortest: vec![f64::INFINITY; count + 1],
            bytes: vec![0.0; count + 1],
            memory: model.memory,
        };
        for (layer, options) in model.layers.iter().enumerate().rev() {
            let quickest =
                options.iter().map(|option| option.running).fold(f64::INFINITY, f64::min);
            let own = options[0].streams.first().map(|&(_, load, _)| load);
            let load = own.unwrap_or(0.0);
            let later = made.lead[layer + 1].map(|lead| lead + quickest - load);
            made.lead[layer] = match (own, later) {
                (Some(load), Some(later)) => Some(later.min(-load)),
                (Some(load), None) => Some(-load),
                (None, later) => later,
            };
            made.shortest[layer] = made.shortest[layer + 1].min(own.unwrap_or(f64::INFINITY));
            made.bytes[layer] = made.bytes[layer + 1] + options[0].bytes;
        }
        made
    }

    fn clamp_clocks(&self, layer: usize, clocks: &mut [f64]) {
        let last = clocks.len() - 1;
        match self.lead[layer] {
            Some(lead) => {
                clocks[1] = clocks[1].max(clocks[0] + lead);
                for helper in (2..last).step_by(2) {
                    clocks[helper + 1] =
                        clocks[helper + 1].max(clocks[helper] + self.shortest[layer]);
                }
            }
            None => clocks[1..last].fill(0.0),
        }
        clocks[last] = if self.memory.is_finite() {
            clocks[last].max(self.memory - self.bytes[layer])
        } else {
            0.0
        };
    }
}

/// The partial plans that no other is as good as in all clocks; at most `most`, those with the best
/// bounds. `left_out` is lowered to the best bound of those beyond.
fn undominated_labels(
    front: &LabelFront,
    width: usize,
    has_memory: bool,
    most: usize,
    left_out: &mut f64,
) -> Vec<usize> {
    let row = |one: usize| &front.clocks[one * width..(one + 1) * width];
    let mut order: Vec<usize> = (0..front.bounds.len()).collect();
    order.sort_by(|&one, &other| compare_clocks(row(one), row(other)));
    let mut kept: Vec<usize> = Vec::new();
    if width == 3 && !has_memory {
        let mut earliest = f64::INFINITY;
        for one in order {
            let loading = row(one)[1];
            if loading < earliest - 1e-13 * row(one)[0] {
                earliest = loading;
                kept.push(one);
            }
        }
    } else {
        for one in order {
            let own = row(one);
            let slack = 1e-13 * own[0];
            let is_dominated = kept
                .iter()
                .rev()
                .any(|&other| row(other).iter().zip(own).all(|(a, b)| *a <= *b + slack));
            if !is_dominated {
                kept.push(one);
            }
        }
    }
    if kept.len() > most {
        kept.sort_by(|&one, &other| front.bounds[one].total_cmp(&front.bounds[other]));
        *left_out = kept[most..].iter().map(|&one| front.bounds[one]).fold(*left_out, f64::min);
        kept.truncate(most);
    }
    kept
}

fn compare_clocks(one: &[f64], other: &[f64]) -> std::cmp::Ordering {
    let mut pairs = one.iter().zip(other);
    pairs
        .find_map(|(a, b)| Some(a.total_cmp(b)).filter(|order| order.is_ne()))
        .unwrap_or(std::cmp::Ordering::Equal)
}
