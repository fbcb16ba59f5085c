//! Intent: which tasks there should be, as `PUT /v1/system` takes it and the store keeps it.
//!
//! The document of BlockFlow is one of these; what is richer has the same fields. Reading is in
//! `intent_reader.rs`, as every problem of a document is told at once.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Display};

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, SerializeMap, Serializer};
use tessera_core::Device;
use tessera_deploy::{Batching, BatchingChoice, Isolation, ResidencyChoice, ThresholdSetting};
use tessera_identity::NodeName;

/// Which tasks there should be.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct System {
    /// The blocks that paths may name, where the document lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Vec<String>>,
    /// The tasks, by name.
    pub tasks: BTreeMap<String, TaskDefinition>,
    /// Whether neighbouring blocks that nobody tells apart run as one.
    pub fusion: bool,
    /// What keeps the units of tasks apart that say nothing themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

impl Default for System {
    fn default() -> Self {
        Self { blocks: None, tasks: BTreeMap::new(), fusion: true, isolation: None }
    }
}

impl System {
    /// These tasks, with the server's defaults.
    pub fn new(tasks: BTreeMap<String, TaskDefinition>) -> Self {
        Self { tasks, ..Self::default() }
    }

    /// The blocks that the document lists and no task uses.
    pub fn unused_blocks(&self) -> Vec<String> {
        let Some(blocks) = &self.blocks else { return Vec::new() };
        let used: HashSet<&str> =
            self.tasks.values().flat_map(TaskDefinition::block_names).collect();
        blocks.iter().filter(|block| !used.contains(block.as_str())).cloned().collect()
    }

    /// What it says of all tasks together.
    pub fn settings(&self) -> SystemSettings {
        let Self { blocks, tasks: _, fusion, isolation } = self;
        SystemSettings { blocks: blocks.clone(), fusion: *fusion, isolation: *isolation }
    }
}

/// What a system says of all tasks together.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SystemSettings {
    /// The blocks that paths may name, where the document lists them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Vec<String>>,
    /// Whether neighbouring blocks that nobody tells apart run as one.
    pub fusion: bool,
    /// What keeps the units of tasks apart that say nothing themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

impl<'de> Deserialize<'de> for System {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let document = serde_json::Value::deserialize(deserializer)?;
        Self::from_json(&document).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for TaskDefinition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let document = serde_json::Value::deserialize(deserializer)?;
        Self::from_json(&document).map_err(serde::de::Error::custom)
    }
}

/// What a client can call.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TaskDefinition {
    /// What a request passes.
    #[serde(flatten)]
    pub path: TaskPath,
    /// Thresholds of exits that differ from those of the models, and that stay.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exits: BTreeMap<String, f32>,
    /// The thresholds of each exit that may be chosen for `least_accuracy`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub thresholds: BTreeMap<String, Vec<ThresholdSetting>>,
    /// Share of right answers where no exit is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Share of right answers that it must have: thresholds are chosen for it, in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_accuracy: Option<f64>,
    /// How long a request may take where the client says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Whether an exit that was not certain enough may answer where the rest fails.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub degrade: bool,
    /// How much of the cores it gets beside others that want them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// What keeps its units apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// How many instances of each of its units there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<usize>,
    /// What its blocks run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceChoice>,
    /// The nodes that its blocks run at, in a cluster; where it does not say they are placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeChoice>,
    /// The node that its requests come from, in a cluster; where it does not say, the gateway that
    /// answers the most of them.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub input_node: Option<NodeName>,
    /// Whether requests are put together.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_batching")]
    pub batching: Option<BatchingChoice>,
    /// Most rows of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<usize>,
    /// Where the weights of its units are to be while nobody uses them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residency: Option<ResidencyChoice>,
}

impl TaskDefinition {
    /// A task that passes this, with the server's defaults.
    pub fn new(path: TaskPath) -> Self {
        Self {
            path,
            exits: BTreeMap::new(),
            thresholds: BTreeMap::new(),
            accuracy: None,
            least_accuracy: None,
            deadline_ms: None,
            degrade: false,
            weight: None,
            isolation: None,
            replicas: None,
            device: None,
            node: None,
            input_node: None,
            batching: None,
            max_rows: None,
            residency: None,
        }
    }

    /// A task that serves a whole model.
    pub fn of_model(model: impl Into<String>) -> Self {
        Self::new(TaskPath::Model(model.into()))
    }

    /// Whether it says something of each of its blocks, in their order.
    pub(crate) fn tells_blocks_apart(&self) -> bool {
        matches!(self.device, Some(DeviceChoice::Each(_)))
            || matches!(self.node, Some(NodeChoice::Each(_)))
    }

    /// What its path names, with repetitions.
    pub(crate) fn block_names(&self) -> impl Iterator<Item = &str> {
        let none: &[PathStep] = &[];
        let (model, steps) = match &self.path {
            TaskPath::Model(model) => (Some(model.as_str()), none),
            TaskPath::Path(steps) => (None, steps.as_slice()),
        };
        model.into_iter().chain(steps.iter().map(|step| step.block.as_str()))
    }
}

/// What a request of a task passes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskPath {
    /// Steps, in order.
    Path(Vec<PathStep>),
    /// A whole model.
    Model(String),
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// Its name, by which later steps refer to it; the block's where the document gives none.
    pub name: String,
    /// What it runs: a model, `MODEL/NUMBER`, or a block by its hash or the beginning of it.
    pub block: String,
    /// Where its inputs come from; `None` for the step before it.
    pub inputs: Option<Vec<StepInput>>,
    /// What its blocks run on, where that is not what the task says.
    pub device: Option<DeviceChoice>,
}

/// What is chosen for the blocks of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockChoice<T> {
    /// The same for all of them.
    All(T),
    /// One for each block, in their order.
    Each(Vec<T>),
}

/// What blocks run on.
pub type DeviceChoice = BlockChoice<Device>;

/// The nodes that blocks run at.
pub type NodeChoice = BlockChoice<NodeName>;

impl<T: Display> Serialize for BlockChoice<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All(one) => serializer.collect_str(one),
            Self::Each(each) => serializer.collect_seq(each.iter().map(T::to_string)),
        }
    }
}

impl PathStep {
    /// A step that runs `block` on what the step before it gives.
    pub fn from_block(block: impl Into<String>) -> Self {
        let block = block.into();
        Self { name: block.clone(), block, inputs: None, device: None }
    }
}

impl Serialize for PathStep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_plain = self.name == self.block;
        if is_plain && self.inputs.is_none() && self.device.is_none() {
            return serializer.serialize_str(&self.block);
        }
        let mut object = serializer.serialize_map(None)?;
        if !is_plain {
            object.serialize_entry("name", &self.name)?;
        }
        object.serialize_entry("block", &self.block)?;
        if let Some(inputs) = &self.inputs {
            object.serialize_entry("inputs", inputs)?;
        }
        if let Some(device) = &self.device {
            object.serialize_entry("device", device)?;
        }
        object.end()
    }
}

/// Where an input of a step comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepInput {
    /// An input of the task, by number: `$0`.
    Task(usize),
    /// An output of a step: `left` for its first, `left.1` for its second.
    Step {
        /// Name of the step.
        name: String,
        /// Number of its output.
        output: usize,
    },
}

impl Display for StepInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(number) => write!(f, "${number}"),
            Self::Step { name, output: 0 } => f.write_str(name),
            Self::Step { name, output } => write!(f, "{name}.{output}"),
        }
    }
}

impl Serialize for StepInput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn as_text<S: Serializer>(name: &Option<NodeName>, serializer: S) -> Result<S::Ok, S::Error> {
    match name {
        None => serializer.serialize_none(),
        Some(name) => serializer.collect_str(name),
    }
}

fn as_batching<S: Serializer>(
    choice: &Option<BatchingChoice>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match choice {
        None => serializer.serialize_none(),
        Some(BatchingChoice::Auto) => serializer.serialize_str("auto"),
        Some(BatchingChoice::Off) => serializer.serialize_str("off"),
        Some(BatchingChoice::On(Batching { max_rows, max_wait })) => {
            let wait = u64::try_from(max_wait.as_millis()).unwrap_or(u64::MAX);
            let mut object = serializer.serialize_map(Some(2))?;
            object.serialize_entry("max_rows", max_rows)?;
            object.serialize_entry("max_wait_ms", &wait)?;
            object.end()
        }
    }
}
