//! Which GPUs can help to load a model.
//!
//! A GPU below another PCIe switch loads at its full rate beside the one that runs the model, and
//! hands over what it loaded through NVLink. One below the same switch only shares the bandwidth
//! there is, and so do two below any other; so planners use at most one GPU per switch.

use super::problem::{NvLink, ResidencyProblem, ServerGpu};

/// The server, as the planners see it: GPUs by number.
pub(super) struct ServerTopology {
    /// The GPU that runs the model.
    pub(super) target: usize,
    /// Per GPU, µs per byte over its link to the target; none without one.
    pub(super) links: Vec<Option<f64>>,
    /// Per GPU, the first GPU below the same switch, which stands for the switch.
    pub(super) switches: Vec<usize>,
    /// Per GPU, its memory; infinite without a limit.
    memory: Vec<f64>,
}

impl ServerTopology {
    pub(super) fn from_problem(problem: &ResidencyProblem) -> Self {
        let target = problem.target_index();
        let name = |gpu: usize| problem.gpus.get(gpu).map_or("", |gpu| gpu.name.as_str());
        let link = |gpu: usize| {
            let (one, other) = (name(target), name(gpu));
            let joins =
                |link: &&NvLink| link.between == [one, other] || link.between == [other, one];
            problem.nvlinks.iter().find(joins).map(|link| 1e6 / link.bytes_per_second)
        };
        let switch = |gpu: &ServerGpu| {
            problem.gpus.iter().position(|other| other.switch == gpu.switch).unwrap_or(0)
        };
        Self {
            target,
            links: (0..problem.gpus.len()).map(link).collect(),
            switches: problem.gpus.iter().map(switch).collect(),
            memory: problem
                .gpus
                .iter()
                .map(|gpu| gpu.memory_bytes.unwrap_or(f64::INFINITY))
                .collect(),
        }
    }

    /// The GPUs that can help: of each other switch the one with the fastest link (of several, the
    /// one with the most memory), fastest first.
    pub(super) fn helper_gpus(&self) -> Vec<usize> {
        let own = self.switches[self.target];
        let helps = |(gpu, link): (usize, &Option<f64>)| {
            let link = link.filter(|_| self.switches[gpu] != own)?;
            Some((link, self.memory[gpu], gpu))
        };
        let mut found: Vec<_> = self.links.iter().enumerate().filter_map(helps).collect();
        found.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.total_cmp(&one.1)));
        let mut helpers: Vec<usize> = Vec::new();
        for (_, _, gpu) in found {
            if helpers.iter().all(|&other| self.switches[other] != self.switches[gpu]) {
                helpers.push(gpu);
            }
        }
        helpers
    }
}

/// GPUs and links of a server of the kind that the DeepPlan paper measures (AWS p3.8xlarge with
/// four GPUs): two GPUs below each PCIe switch, and an NVLink of 50 GB/s between any two.
pub fn deepplan_server(gpus: usize) -> (Vec<ServerGpu>, Vec<NvLink>) {
    let name = |gpu: usize| format!("gpu{gpu}");
    let made = |gpu: usize| ServerGpu {
        name: name(gpu),
        switch: (gpu / 2).to_string(),
        memory_bytes: None,
    };
    let pairs = (0..gpus).flat_map(|one| (one + 1..gpus).map(move |other| (one, other)));
    let link = |(one, other)| NvLink { between: [name(one), name(other)], bytes_per_second: 50e9 };
    ((0..gpus).map(made).collect(), pairs.map(link).collect())
}
