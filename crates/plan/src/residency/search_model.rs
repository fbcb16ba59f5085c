//! A problem as the search for the quickest plan sees it: options per layer, and streams.

use super::problem::{ResidencyLayer, ResidencyProblem};
use super::timeline::{Residency, ResidencyPlan};
use super::topology::ServerTopology;

/// Plans closer than this count as equally quick.
pub(super) const TOLERANCE: f64 = 1e-10;

/// An option for a layer: one way to bring its weights.
pub(super) struct LayerOption {
    pub(super) residency: Residency,
    /// Time to run.
    pub(super) running: f64,
    /// The streams that it takes: which, for how long, and how much later the weights are there.
    pub(super) streams: Vec<(usize, f64, f64)>,
    /// Bytes in the target's memory.
    pub(super) bytes: f64,
}

/// The problem, as the search sees it. Stream 0 is the target's load stream; each helper has two
/// more, one to load and one to forward.
pub(super) struct ResidencySearchModel {
    /// Per layer, the options there are.
    pub(super) layers: Vec<Vec<LayerOption>>,
    pub(super) streams: usize,
    /// Bytes that the target holds; infinite without a limit.
    pub(super) memory: f64,
}

impl ResidencySearchModel {
    pub(super) fn from_problem(problem: &ResidencyProblem) -> Self {
        let server = ServerTopology::from_problem(problem);
        let helpers = server.helper_gpus();
        let options = |layer: &ResidencyLayer| {
            let loaded = |through: usize, streams: Vec<(usize, f64, f64)>| LayerOption {
                residency: Residency::Loaded { through },
                running: layer.in_memory_us,
                streams,
                bytes: layer.bytes,
            };
            if layer.bytes <= 0.0 {
                return vec![loaded(server.target, Vec::new())];
            }
            let mut options = vec![loaded(server.target, vec![(0, layer.load_us, 0.0)])];
            for (number, &helper) in helpers.iter().enumerate() {
                let forward = layer.bytes * server.links[helper].unwrap_or(0.0);
                let (load, migrate) = (1 + 2 * number, 2 + 2 * number);
                let streams = vec![(load, layer.load_us, forward), (migrate, forward, 0.0)];
                options.push(loaded(helper, streams));
            }
            if let Some(running) = layer.direct_time() {
                let residency = Residency::Direct;
                options.push(LayerOption { residency, running, streams: Vec::new(), bytes: 0.0 });
            }
            options
        };
        let bytes: f64 = problem.layers.iter().map(|layer| layer.bytes).sum();
        let memory = problem.target_memory().filter(|&memory| memory < bytes);
        Self {
            layers: problem.layers.iter().map(options).collect(),
            streams: 1 + 2 * helpers.len(),
            memory: memory.unwrap_or(f64::INFINITY),
        }
    }

    /// The plan of an option for each layer, by number.
    pub(super) fn chosen_plan(&self, chosen: &[usize]) -> ResidencyPlan {
        let residency = |(options, &option): (&Vec<LayerOption>, &usize)| options[option].residency;
        ResidencyPlan {
            layers: self.layers.iter().zip(chosen).map(residency).collect(),
            pipelined: true,
        }
    }
}
