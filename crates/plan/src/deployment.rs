//! A deployment: which blocks run as one, for whom and how, and the route of each task through them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_core::{ContentHash, Device, Dim, Error, Result, TensorType};
use tessera_graph::{BlockGraph, Source};

use crate::fusion;
use crate::route::{self, Route};

/// Most rows of one request where a task says nothing.
const MOST_ROWS: usize = 128;

/// What keeps a block apart from others.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Nothing: it runs on threads of the server.
    #[default]
    Thread,
    /// It has a process of its own.
    Process,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thread => "thread",
            Self::Process => "process",
        })
    }
}

impl std::str::FromStr for Isolation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "thread" => Ok(Self::Thread),
            "process" => Ok(Self::Process),
            _ => Err(Error::usage(format!("isolation \"{text}\", expected thread or process"))),
        }
    }
}

/// Requests that are at the same block go into one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Batching {
    /// Most rows of a batch.
    pub max_rows: usize,
    /// How long a request waits for others, as far as its deadline allows.
    pub max_wait: Duration,
}

/// Whether requests are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchingChoice {
    /// Where trying it out shows that it pays.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always.
    On(Batching),
}

/// How a task is to be served.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSettings {
    /// How long a request may take where the client says nothing.
    pub deadline: Duration,
    /// Whether an exit that was not certain enough may answer where the rest fails or takes too long.
    pub degrade: bool,
    /// What keeps its blocks apart.
    pub isolation: Isolation,
    /// How many instances of each of its blocks there are.
    pub replicas: usize,
    /// What its blocks run on.
    pub device: Device,
    /// Blocks that run on something else, by their number in its path.
    pub elsewhere: BTreeMap<usize, Device>,
    /// Whether requests are put together.
    pub batching: BatchingChoice,
    /// Most rows of one request.
    pub max_rows: usize,
}

impl TaskSettings {
    /// What a block of its path runs on.
    pub fn device_of(&self, block: usize) -> Device {
        self.elsewhere.get(&block).copied().unwrap_or(self.device)
    }
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            degrade: false,
            isolation: Isolation::Thread,
            replicas: 1,
            device: Device::Cpu,
            elsewhere: BTreeMap::new(),
            batching: BatchingChoice::Auto,
            max_rows: MOST_ROWS,
        }
    }
}

/// A task that is to be served.
#[derive(Clone, Debug)]
pub struct PlannedTask {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its path through blocks.
    pub graph: BlockGraph,
    /// How it is to be served.
    pub settings: TaskSettings,
}

/// The name of a unit: it follows from what it computes and how it runs. Units of the same name can
/// stand for each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnitId(pub String);

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a unit runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitSettings {
    /// What keeps it apart.
    pub isolation: Isolation,
    /// How many instances there are.
    pub replicas: usize,
    /// What it runs on.
    pub device: Device,
    /// Whether requests are put together.
    pub batching: BatchingChoice,
}

/// What runs as one: a block, or neighbouring blocks that nobody tells apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// Its name.
    pub id: UnitId,
    /// Its blocks, in order; more than one where they are fused.
    pub graph: BlockGraph,
    /// How it runs.
    pub settings: UnitSettings,
    /// The tasks that use it.
    pub tasks: Vec<String>,
    /// Whether the first dimension of everything that goes in and comes out is the same open one.
    pub is_batchable: bool,
}

impl Unit {
    /// The hashes of its blocks.
    pub fn blocks(&self) -> impl Iterator<Item = ContentHash> {
        self.graph.blocks.iter().map(|node| node.block)
    }
}

/// What is to run: the units, and the routes of tasks through them.
#[derive(Clone, Debug, Default)]
pub struct Deployment {
    /// The units, in the order in which tasks first use them.
    pub units: Vec<Unit>,
    /// The routes, in the order of the tasks.
    pub routes: Vec<Route>,
}

/// Plans how `tasks` are served together.
///
/// Blocks that several tasks have in common, on the same device, are one unit. With `fuse`, neighbouring blocks that the
/// same tasks use in the same way are one unit, too.
pub fn deploy(tasks: &[PlannedTask], fuse: bool) -> Result<Deployment> {
    let mut deployment = Deployment::default();
    let mut known: HashMap<UnitId, usize> = HashMap::new();
    let groups = fusion::groups(tasks, fuse);
    for (task, groups) in tasks.iter().zip(groups) {
        let within = |error: Error| error.within(format!("task \"{}\"", task.name));
        if !task.graph.is_sound() {
            return Err(within(Error::invalid("its path uses what no earlier block computes")));
        }
        let mut placed = Vec::with_capacity(groups.len());
        for range in groups {
            let (graph, inputs, outputs) = fusion::part(&task.graph, range.clone());
            let device = task.settings.device_of(range.start);
            let id = unit_id(&graph, device);
            let index = *known.entry(id.clone()).or_insert_with(|| {
                deployment.units.push(Unit {
                    id,
                    is_batchable: is_batchable(&graph),
                    graph,
                    settings: UnitSettings {
                        isolation: task.settings.isolation,
                        replicas: task.settings.replicas,
                        device,
                        batching: task.settings.batching,
                    },
                    tasks: Vec::new(),
                });
                deployment.units.len() - 1
            });
            let unit = &mut deployment.units[index];
            join(&mut unit.settings, &task.settings);
            if !unit.tasks.contains(&task.name) {
                unit.tasks.push(task.name.clone());
            }
            placed.push(route::Placed { unit: unit.id.clone(), range, inputs, outputs });
        }
        deployment.routes.push(route::route(task, &placed).map_err(within)?);
    }
    name(&mut deployment);
    Ok(deployment)
}

/// Gives units that run in another way another name: they can't stand for each other.
fn name(deployment: &mut Deployment) {
    for unit in &mut deployment.units {
        let UnitSettings { isolation, replicas: _, device: _, batching } = &unit.settings;
        let mut hasher = blake3::Hasher::new();
        hasher.update(unit.id.0.as_bytes());
        hasher.update(format!("{isolation} {batching:?}").as_bytes());
        let named = UnitId(hasher.finalize().to_hex().as_str()[..12].to_owned());
        let steps = deployment.routes.iter_mut().filter(|route| unit.tasks.contains(&route.task));
        for step in steps.flat_map(|route| &mut route.steps).filter(|step| step.unit == unit.id) {
            step.unit = named.clone();
        }
        unit.id = named;
    }
}

/// A unit that tasks share is as apart as any of them wants it, and as many as the one that wants most.
fn join(unit: &mut UnitSettings, task: &TaskSettings) {
    unit.isolation = unit.isolation.max(task.isolation);
    unit.replicas = unit.replicas.max(task.replicas);
    unit.batching = unit.batching.max(task.batching);
}

/// A name that follows from blocks, wiring, types and what it runs on, and from no names of tensors.
fn unit_id(graph: &BlockGraph, device: Device) -> UnitId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(device.to_string().as_bytes());
    let mut symbols = BTreeMap::new();
    for port in &graph.inputs {
        write_type(&mut hasher, &port.tensor_type, &mut symbols);
    }
    let source = |hasher: &mut blake3::Hasher, source: &Source| {
        let (kind, a, b) = match *source {
            Source::Input(index) => (0u8, index, 0),
            Source::Block { block, output } => (1, block, output),
        };
        hasher.update(&[kind]);
        hasher.update(&(a as u64).to_le_bytes());
        hasher.update(&(b as u64).to_le_bytes());
    };
    for node in &graph.blocks {
        hasher.update(node.block.as_bytes());
        for from in &node.inputs {
            source(&mut hasher, from);
        }
        hasher.update(&(node.outputs.len() as u64).to_le_bytes());
    }
    for (_, from) in &graph.outputs {
        source(&mut hasher, from);
    }
    UnitId(hasher.finalize().to_hex().as_str()[..12].to_owned())
}

fn write_type(
    hasher: &mut blake3::Hasher,
    known: &TensorType,
    symbols: &mut BTreeMap<String, u64>,
) {
    hasher.update(known.dtype.to_string().as_bytes());
    let Some(dims) = &known.dims else {
        hasher.update(&[255]);
        return;
    };
    hasher.update(&[dims.len() as u8]);
    for dim in dims {
        let (kind, value) = match dim {
            Dim::Fixed(size) => (0u8, *size as u64),
            Dim::Symbol(name) => {
                let next = symbols.len() as u64;
                (1, *symbols.entry(name.clone()).or_insert(next))
            }
            Dim::Unknown => (2, 0),
        };
        hasher.update(&[kind]);
        hasher.update(&value.to_le_bytes());
    }
}

/// The open first dimension that all of these have in common.
pub(crate) fn batch_symbol<'a>(types: impl Iterator<Item = &'a TensorType>) -> Option<&'a str> {
    let mut symbol = None;
    for known in types {
        match known.dims.as_ref()?.first()? {
            Dim::Symbol(name) if symbol.is_none_or(|seen| seen == name) => {
                symbol = Some(name.as_str());
            }
            _ => return None,
        }
    }
    symbol
}

fn is_batchable(graph: &BlockGraph) -> bool {
    let inputs = graph.inputs.iter().map(|port| &port.tensor_type);
    let outputs = graph.outputs.iter().map(|(port, _)| &port.tensor_type);
    batch_symbol(inputs.chain(outputs)).is_some()
}
