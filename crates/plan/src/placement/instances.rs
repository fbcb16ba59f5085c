//! Files of problems whose optimum is known, to measure strategies by.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::problem::{ExitSetting, MigrationCost, PlacementLayer, PlacementNode, PlacementProblem};

/// Problems with the same layers, or each with its own. Fields that are not known are passed over:
/// such files come from other programs.
#[derive(Clone, Debug, Deserialize)]
pub struct PlacementInstances {
    /// The layers of all instances that have none of their own.
    #[serde(default, deserialize_with = "layers")]
    pub layers: Vec<PlacementLayer>,
    /// The problems.
    pub instances: Vec<PlacementInstance>,
}

/// A problem, and what is known about its optimum.
#[derive(Clone, Debug, Deserialize)]
pub struct PlacementInstance {
    /// Where layers can be.
    #[serde(deserialize_with = "nodes")]
    pub nodes: Vec<PlacementNode>,
    /// Bits per second from each node to each other.
    pub throughput_bits_per_second: Vec<Vec<Option<f64>>>,
    /// Milliseconds that each transfer takes beside that.
    pub latency_ms: Vec<Vec<Option<f64>>>,
    /// Its own layers.
    #[serde(default, deserialize_with = "layers")]
    pub layers: Vec<PlacementLayer>,
    /// The least latency that any plan has.
    #[serde(default)]
    pub optimum_seconds: Option<f64>,
    /// How often neighbouring layers are on different nodes in a plan with that latency.
    #[serde(default)]
    pub optimum_splits: Option<usize>,
}

impl PlacementInstances {
    /// The instances as problems, each with the optimum where that is known.
    pub fn iter_problems(&self) -> impl Iterator<Item = (PlacementProblem, Option<f64>)> + '_ {
        self.instances.iter().map(|instance| {
            let layers = if instance.layers.is_empty() { &self.layers } else { &instance.layers };
            let problem = PlacementProblem {
                nodes: instance.nodes.clone(),
                throughput_bits_per_second: instance.throughput_bits_per_second.clone(),
                latency_ms: instance.latency_ms.clone(),
                layers: layers.clone(),
                models: Vec::new(),
                moving: MigrationCost::default(),
            };
            (problem, instance.optimum_seconds)
        })
    }
}

/// A node as [`PlacementNode`] is, with fields that are not known passed over.
#[derive(Deserialize)]
#[serde(remote = "PlacementNode")]
struct OpenNode {
    name: String,
    #[serde(default)]
    tier: u32,
    #[serde(default)]
    input: bool,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    flops_per_second: Option<f64>,
    #[serde(default)]
    memory_bytes: Option<f64>,
    #[serde(default)]
    storage_bytes: Option<f64>,
    #[serde(default)]
    watts: Option<f64>,
    #[serde(default)]
    joules_per_byte_sent: Option<f64>,
}

/// A layer as [`PlacementLayer`] is, with fields that are not known passed over.
#[derive(Deserialize)]
#[serde(remote = "PlacementLayer")]
struct OpenLayer {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    block: Option<String>,
    #[serde(default)]
    flops: f64,
    #[serde(default)]
    times_ms: BTreeMap<String, f64>,
    #[serde(default)]
    memory_bytes: f64,
    #[serde(default)]
    storage_bytes: f64,
    #[serde(default)]
    input_bytes: Option<f64>,
    #[serde(default)]
    output_bytes: Option<f64>,
    #[serde(default)]
    execution_probability: Option<f64>,
    #[serde(default)]
    exit: Vec<ExitSetting>,
}

fn nodes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PlacementNode>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct RemoteNode(#[serde(with = "OpenNode")] PlacementNode);
    let all = Vec::<RemoteNode>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|one| one.0).collect())
}

fn layers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PlacementLayer>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct RemoteLayer(#[serde(with = "OpenLayer")] PlacementLayer);
    let all = Vec::<RemoteLayer>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|one| one.0).collect())
}
