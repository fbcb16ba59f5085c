//! Blocks, how long they take, and the tasks that go through them.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

/// Tasks that share blocks, and how often they are called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueingProblem {
    /// The blocks.
    pub blocks: Vec<QueueingBlock>,
    /// The tasks.
    pub tasks: Vec<QueueingTask>,
    /// How busy a block may be.
    #[serde(default = "default_utilisation")]
    pub utilisation: f64,
    /// How much more all tasks may send before a plan is too small that was just large enough: as
    /// long as fewer replicas would not do for this, none are taken away.
    #[serde(default = "default_hysteresis")]
    pub hysteresis: f64,
    /// What all replicas together may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<ReplicaBudget>,
}

fn default_utilisation() -> f64 {
    0.7
}

fn default_hysteresis() -> f64 {
    0.1
}

/// A block, and what it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueingBlock {
    /// Its name.
    pub name: String,
    /// How long it runs for a request, in the mean.
    pub time_us: f64,
    /// What it is busy with besides for each request: receiving and sending, say.
    #[serde(default)]
    pub overhead_us: f64,
    /// Coefficient of variation of its time: deviation over mean. A network takes about the same
    /// time for each request (the thesis measured 0.06), so it is 0 where nothing is said.
    #[serde(default)]
    pub variation: f64,
    /// A batch that it can run, where that is quicker than one request after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<QueueingBatch>,
    /// How many of it there are.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Cores that each takes.
    #[serde(default)]
    pub cores: f64,
    /// Memory that each takes.
    #[serde(default)]
    pub bytes: f64,
}

fn one() -> u32 {
    1
}

/// Requests that run together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueingBatch {
    /// How many at most.
    pub size: u32,
    /// How long that many run.
    pub time_us: f64,
}

/// What clients call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueingTask {
    /// Its name.
    pub name: String,
    /// Requests to it.
    pub rate_per_second: f64,
    /// Its blocks in order.
    pub path: Vec<String>,
    /// By block, the share of the requests which get there that leave behind it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub exits: BTreeMap<String, f64>,
    /// What a request takes besides: to the first block, and back from the last.
    #[serde(default)]
    pub transfer_us: f64,
    /// How long a request may take in the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
}

/// What all replicas together may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaBudget {
    /// How many there may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Their cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<f64>,
    /// Their memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
}

impl QueueingTask {
    /// Per step of its path, the share of its requests that get there.
    pub(super) fn reach_by_step(&self) -> Vec<f64> {
        let shares = self.path.iter().scan(1.0, |share, block| {
            let here = *share;
            *share *= 1.0 - self.exits.get(block).copied().unwrap_or(0.0);
            Some(here)
        });
        shares.collect()
    }
}

impl QueueingProblem {
    /// What these replicas take.
    pub(super) fn resources_taken(&self, replicas: &[u32]) -> ReplicaBudget {
        let sum = |of: fn(&QueueingBlock) -> f64| -> f64 {
            let pairs = self.blocks.iter().zip(replicas);
            pairs.map(|(block, &count)| of(block) * f64::from(count)).sum()
        };
        let all = replicas.iter().fold(0_u32, |all, &count| all.saturating_add(count));
        ReplicaBudget {
            replicas: Some(all),
            cores: Some(sum(|block| block.cores)),
            bytes: Some(sum(|block| block.bytes)),
        }
    }

    /// Blocks by name.
    pub(super) fn block_numbers(&self) -> HashMap<&str, usize> {
        let names = self.blocks.iter().map(|block| block.name.as_str());
        names.enumerate().map(|(number, name)| (name, number)).collect()
    }
}
