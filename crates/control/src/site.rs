//! What carries intent out: whoever runs units and answers requests.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;
use tessera_cluster::WeightReport;
use tessera_core::Result;
use tessera_deploy::{Deployment, PlannedTask, TaskChange};
use tessera_graph::BlockGraph;

/// A future that a site returns.
pub type SiteFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Finds what paths name.
pub trait Catalogue: Send + Sync + 'static {
    /// What `name` stands for: a model, `MODEL/NUMBER` for one block of it, or a block by its hash
    /// or the beginning of it. `NotFound` names it and what there is.
    fn find_graph(&self, name: &str) -> Result<BlockGraph>;

    /// Keeps what a task uses from being removed, until what is returned is dropped: `names` as its
    /// path has them, and the blocks that they stand for.
    fn hold_content(&self, task: &str, names: &[&str], graph: &BlockGraph) -> Result<ContentHold>;
}

/// What keeps content from being removed, for as long as it lives.
pub type ContentHold = Box<dyn std::any::Any + Send + Sync>;

/// What a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AppliedUnits {
    /// Units that were started.
    pub started: Vec<String>,
    /// Units that were stopped.
    pub stopped: Vec<String>,
}

/// A unit that a task uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedUnit {
    /// Its name.
    pub name: String,
    /// The hashes of its blocks; more than one where they are fused.
    pub blocks: Vec<String>,
}

/// The units that these tasks use, in the order in which requests pass them, each once.
pub fn used_units(deployment: &Deployment, tasks: &[&str]) -> Vec<UsedUnit> {
    let mut seen = HashSet::new();
    let steps =
        tasks.iter().filter_map(|task| deployment.find_route(task)).flat_map(|route| &route.steps);
    let units = steps.filter(|step| seen.insert(&step.unit)).filter_map(|step| {
        let unit = deployment.find_unit(&step.unit)?;
        let blocks = unit.block_hashes().map(|hash| hash.to_string()).collect();
        Some(UsedUnit { name: unit.id.to_string(), blocks })
    });
    units.collect()
}

/// How a unit is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnitStatus {
    /// The unit's name.
    pub name: String,
    /// The hashes of its blocks; more than one where they are fused.
    pub blocks: Vec<String>,
    /// The tasks that use it.
    pub tasks: Vec<String>,
    /// thread or process.
    pub isolation: String,
    /// What it runs on.
    pub device: String,
    /// The node that it runs at, in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Rows that are put together, where any are.
    pub max_batch_rows: Option<u64>,
    /// Its instances.
    pub instances: Vec<InstanceReport>,
}

/// How an instance of a unit is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstanceReport {
    /// Its name.
    pub name: String,
    /// starting, up, restarting, failed or stopped.
    pub state: String,
    /// Why it failed.
    pub reason: Option<String>,
    /// Its process, where it has one of its own.
    pub process: Option<u32>,
    /// How often it was started again.
    pub restarts: u64,
    /// Requests that it ran.
    pub requests: u64,
    /// Requests that are on their way to it or at it.
    pub in_flight: u64,
    /// Where its weights are, where it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightReport>,
}

/// How a task is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskStatus {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// ready, loading or unavailable.
    pub state: String,
    /// Why it does not answer.
    pub reason: Option<String>,
    /// The units that a request passes, in order.
    pub path: Vec<String>,
    /// Its exits: name, threshold, and how often each was taken.
    pub exits: Vec<ExitStatus>,
    /// Requests that wait or are on their way.
    pub in_flight: u64,
}

/// How an exit is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExitStatus {
    /// Name of its output.
    pub name: String,
    /// Taken where the normalised entropy is at most this.
    pub threshold: f32,
    /// How often it was taken.
    pub taken: u64,
}

/// The answer of one instance to a ping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PingAnswer {
    /// The instance.
    pub instance: String,
    /// How long it took to answer, in milliseconds.
    pub answered_ms: Option<f64>,
    /// Why there was no answer.
    pub error: Option<String>,
    /// For how long it has been computing, in milliseconds; 0 while it does not.
    pub busy_ms: u64,
    /// Requests that it ran.
    pub requests: u64,
}

/// Runs units and answers requests.
pub trait Site: Send + Sync + 'static {
    /// Makes what runs be what the tasks need after a change. Requests of tasks that stay are not
    /// disturbed; where it fails nothing has changed.
    fn apply_tasks(&self, change: TaskChange, fusion: bool)
    -> SiteFuture<'_, Result<AppliedUnits>>;

    /// Serves what was served before this process began. Whoever is away for now is no reason to
    /// leave a task out.
    fn adopt_tasks(
        &self,
        change: TaskChange,
        fusion: bool,
    ) -> SiteFuture<'_, Result<AppliedUnits>> {
        self.apply_tasks(change, fusion)
    }

    /// The units that these tasks use, in the order in which requests pass them, each once.
    fn used_units(&self, tasks: &[&str]) -> Vec<UsedUnit>;

    /// Every unit that runs or should.
    fn unit_statuses(&self) -> Vec<UnitStatus>;

    /// Every task.
    fn task_statuses(&self) -> Vec<TaskStatus>;

    /// Pings the instances of a unit, named as in [`UnitStatus`] or by the beginning of one hash.
    fn ping_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<Vec<PingAnswer>>>;

    /// Stops a unit until it is started again; tasks that need it answer with an error that says
    /// so.
    fn stop_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<()>>;

    /// Starts a unit that was stopped or has failed.
    fn start_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<()>>;

    /// Sets the threshold of an exit, at once, to what a task that is served has it at now; all
    /// else of the task is as it was.
    fn set_threshold(&self, task: &Arc<PlannedTask>, exit: &str) -> Result<()>;

    /// What happens from now on, each event a JSON object with a `kind`.
    fn subscribe_events(&self) -> tokio::sync::broadcast::Receiver<Arc<str>>;

    /// What was done in each second from now on, a JSON object each; `None` where requests are
    /// answered elsewhere.
    fn subscribe_reports(&self) -> Option<tokio::sync::broadcast::Receiver<Arc<str>>> {
        None
    }

    /// The instances that came and went, the newest first, as events; as far as they are kept.
    fn list_instance_events(&self) -> Vec<serde_json::Value> {
        Vec::new()
    }

    /// Requests that are worth a look, of all tasks or one, by how they ended; `None` as above.
    fn list_notable_requests(&self, _task: Option<&str>) -> Option<serde_json::Value> {
        None
    }
}
