//! Files of problems whose optimum is known, to measure strategies by.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::problem::{ExitSetting, Layer, Moving, Node, Problem};

/// Problems with the same layers, or each with its own. Fields that are not known are passed over: such
/// files come from other programs.
#[derive(Clone, Debug, Deserialize)]
pub struct Instances {
    /// The layers of all instances that have none of their own.
    #[serde(default, deserialize_with = "layers")]
    pub layers: Vec<Layer>,
    /// The problems.
    pub instances: Vec<Instance>,
}

/// A problem, and what is known about its optimum.
#[derive(Clone, Debug, Deserialize)]
pub struct Instance {
    /// Where layers can be.
    #[serde(deserialize_with = "nodes")]
    pub nodes: Vec<Node>,
    /// Bits per second from each node to each other.
    pub throughput_bits_per_second: Vec<Vec<Option<f64>>>,
    /// Milliseconds that each transfer takes beside that.
    pub latency_ms: Vec<Vec<Option<f64>>>,
    /// Its own layers.
    #[serde(default, deserialize_with = "layers")]
    pub layers: Vec<Layer>,
    /// The least latency that any plan has.
    #[serde(default)]
    pub optimum_seconds: Option<f64>,
    /// How often neighbouring layers are on different nodes in a plan with that latency.
    #[serde(default)]
    pub optimum_splits: Option<usize>,
}

impl Instances {
    /// The instances as problems, each with the optimum where that is known.
    pub fn problems(&self) -> impl Iterator<Item = (Problem, Option<f64>)> + '_ {
        self.instances.iter().map(|instance| {
            let layers = match instance.layers.is_empty() {
                true => &self.layers,
                false => &instance.layers,
            };
            let problem = Problem {
                nodes: instance.nodes.clone(),
                throughput_bits_per_second: instance.throughput_bits_per_second.clone(),
                latency_ms: instance.latency_ms.clone(),
                layers: layers.clone(),
                models: Vec::new(),
                moving: Moving::default(),
            };
            (problem, instance.optimum_seconds)
        })
    }
}

/// A node as [`Node`] is, with fields that are not known passed over.
#[derive(Deserialize)]
#[serde(remote = "Node")]
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

/// A layer as [`Layer`] is, with fields that are not known passed over.
#[derive(Deserialize)]
#[serde(remote = "Layer")]
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

fn nodes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Node>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct One(#[serde(with = "OpenNode")] Node);
    let all = Vec::<One>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|one| one.0).collect())
}

fn layers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Layer>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct One(#[serde(with = "OpenLayer")] Layer);
    let all = Vec::<One>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|one| one.0).collect())
}
