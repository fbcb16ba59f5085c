//! A bound on what any plan can reach from any point of it on.
//!
//! A run ends no sooner than all layers have run, and for every layer and every stream no sooner
//! than the stream has brought the layer's weights and this and all later layers have run. Any
//! average of these times is a bound, too, and in it every layer can be decided on its own: its
//! time to run counts with the weight of the conditions up to it, its time in a stream with that of
//! the conditions from it on. The weights that make the bound highest are found step by step
//! (Lagrangian relaxation); the memory's limit comes in with a price per byte.

use super::search_model::{LayerOption, ResidencySearchModel};

/// How the average is made up, and what it says.
pub(super) struct LagrangianBound {
    /// Per layer, the weight of the time at which the layers before it have run; one more for the
    /// end.
    running: Vec<f64>,
    /// Per layer and stream, the weight of the time at which the stream is free.
    streams: Vec<Vec<f64>>,
    /// Price of a byte, in µs.
    price: f64,
    /// Per layer, what it and the later ones add at least.
    rest: Vec<f64>,
    memory: f64,
}

impl LagrangianBound {
    /// The soonest end of a plan whose layers before `layer` are decided.
    pub(super) fn soonest_end(
        &self,
        layer: usize,
        running: f64,
        streams: &[f64],
        bytes: f64,
    ) -> f64 {
        let weights = &self.streams[layer];
        let loading: f64 = weights.iter().zip(streams).map(|(weight, clock)| weight * clock).sum();
        let paid = if self.price > 0.0 { self.price * (bytes - self.memory) } else { 0.0 };
        self.running[layer] * running + loading + paid + self.rest[layer]
    }
}

/// Weights of the conditions, before they are summed up.
#[derive(Clone)]
struct ConditionWeights {
    /// Of the condition that all layers have run.
    running: f64,
    /// Per layer and stream.
    streams: Vec<Vec<f64>>,
    price: f64,
}

/// How many steps are made towards the best weights.
const STEPS: usize = 400;

/// The best bound that was found. Every step also gives a choice of options, which is shown to
/// `seen` and may be a good plan.
pub(super) fn best_bound(
    model: &ResidencySearchModel,
    goal: f64,
    mut seen: impl FnMut(&[usize]) -> f64,
) -> LagrangianBound {
    let count = model.layers.len();
    let streams = model.streams;
    let conditions = 1 + count * streams;
    let even = 1.0 / conditions as f64;
    let mut weights =
        ConditionWeights { running: even, streams: vec![vec![even; streams]; count], price: 0.0 };
    let mut goal = goal;
    let mut mean_ends: Option<ConditionEnds> = None;
    let mut best: Option<(f64, LagrangianBound)> = None;
    let mut pace = 1.0;
    let mut idle = 0;
    for _ in 0..STEPS {
        let (bound, chosen) = relax_layers(model, &weights);
        let reached = bound.soonest_end(0, 0.0, &vec![0.0; streams], 0.0);
        goal = goal.min(seen(&chosen));
        let is_better = best.as_ref().is_none_or(|(known, _)| reached > *known);
        if is_better {
            idle = 0;
            best = Some((reached, bound));
        } else {
            idle += 1;
            if idle == 10 {
                (pace, idle) = (pace * 0.7, 0);
            }
        }
        if goal - reached <= 1e-12 * goal {
            break;
        }
        let ends = condition_ends(model, &chosen);
        let mean = mean_ends.get_or_insert_with(|| ends.clone());
        mean.mix_in(&ends, 0.3);
        climb_weights(model, &mut weights, mean, pace * (goal - reached));
    }
    best.map_or_else(|| relax_layers(model, &weights).0, |(_, bound)| bound)
}

/// Decides every layer on its own under the weights.
fn relax_layers(
    model: &ResidencySearchModel,
    weights: &ConditionWeights,
) -> (LagrangianBound, Vec<usize>) {
    let count = model.layers.len();
    let mut running = vec![0.0; count + 1];
    running[0] = weights.running;
    for layer in 0..count {
        running[layer + 1] = running[layer] + weights.streams[layer].iter().sum::<f64>();
    }
    let mut streams = vec![vec![0.0; model.streams]; count + 1];
    let mut rest = vec![0.0; count + 1];
    let mut chosen = vec![0; count];
    for layer in (0..count).rev() {
        for stream in 0..model.streams {
            streams[layer][stream] = streams[layer + 1][stream] + weights.streams[layer][stream];
        }
        let cost = |option: &LayerOption| {
            let loading = option.streams.iter().map(|&(stream, time, tail)| {
                time * streams[layer][stream] + tail * weights.streams[layer][stream]
            });
            option.running * running[layer + 1]
                + loading.sum::<f64>()
                + weights.price * option.bytes
        };
        let mut least = f64::INFINITY;
        for (number, option) in model.layers[layer].iter().enumerate() {
            let cost = cost(option);
            if cost < least {
                (least, chosen[layer]) = (cost, number);
            }
        }
        rest[layer] = rest[layer + 1] + least;
    }
    (LagrangianBound { running, streams, price: weights.price, rest, memory: model.memory }, chosen)
}

/// When each condition is met by the options that were chosen, on average over the steps.
#[derive(Clone)]
struct ConditionEnds {
    running: f64,
    streams: Vec<Vec<f64>>,
    bytes: f64,
}

impl ConditionEnds {
    fn mix_in(&mut self, new: &Self, part: f64) {
        let mix = |old: &mut f64, new: f64| *old += part * (new - *old);
        mix(&mut self.running, new.running);
        mix(&mut self.bytes, new.bytes);
        let all = self.streams.iter_mut().flatten();
        all.zip(new.streams.iter().flatten()).for_each(|(old, new)| mix(old, *new));
    }
}

fn condition_ends(model: &ResidencySearchModel, chosen: &[usize]) -> ConditionEnds {
    let count = model.layers.len();
    let option = |layer: usize| &model.layers[layer][chosen[layer]];
    let mut after = vec![0.0; count + 1];
    for layer in (0..count).rev() {
        after[layer] = after[layer + 1] + option(layer).running;
    }
    let mut clocks = vec![0.0; model.streams];
    let mut streams: Vec<Vec<f64>> = Vec::with_capacity(count);
    let mut bytes = 0.0;
    for (layer, &choice) in chosen.iter().enumerate() {
        let option = &model.layers[layer][choice];
        bytes += option.bytes;
        let mut tails = vec![0.0; model.streams];
        for &(stream, time, tail) in &option.streams {
            clocks[stream] += time;
            tails[stream] = tail;
        }
        let end = |stream: usize| clocks[stream] + tails[stream] + after[layer];
        streams.push((0..model.streams).map(end).collect());
    }
    ConditionEnds { running: after[0], streams, bytes }
}

/// Moves weight to the conditions that are met last, so that the bound gains about `gain`.
fn climb_weights(
    model: &ResidencySearchModel,
    weights: &mut ConditionWeights,
    ends: &ConditionEnds,
    gain: f64,
) {
    // The mean is what the bound is; conditions that end later gain weight by a factor.
    let flat = || ends.streams.iter().flatten().zip(weights.streams.iter().flatten());
    let mean =
        weights.running * ends.running + flat().map(|(end, weight)| end * weight).sum::<f64>();
    let spread = weights.running * (ends.running - mean).powi(2)
        + flat().map(|(end, weight)| (end - mean).powi(2) * weight).sum::<f64>();
    if spread > 0.0 {
        let step = gain / spread;
        let factor = |end: f64| ((end - mean) * step).clamp(-3.0, 3.0).exp();
        weights.running *= factor(ends.running);
        let mut sum = weights.running;
        for (ends, weights) in ends.streams.iter().zip(&mut weights.streams) {
            for (end, weight) in ends.iter().zip(weights) {
                *weight *= factor(*end);
                sum += *weight;
            }
        }
        weights.running /= sum;
        weights.streams.iter_mut().flatten().for_each(|weight| *weight /= sum);
    }
    if model.memory.is_finite() {
        let short = ends.bytes - model.memory;
        if short != 0.0 {
            weights.price = (weights.price + gain / short).max(0.0);
        }
    }
}
