//! A catalogue of three blocks and a model with an exit, a site that runs nothing, and a store that
//! fails when told to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use tessera_core::{ContentHash, DType, Dim, Error, Result, TensorType};
use tessera_deploy::{Deployment, PlannedTask, TaskChange, Unit, UnitId};
use tessera_graph::{BlockGraph, BlockNode, Exit, ScoreKind, TensorPort, TensorSource};
use tokio::sync::broadcast;

use crate::store::{IntentChange, IntentStore, MemoryStore, StoredIntent};
use crate::{
    AppliedUnits, Catalogue, ContentHold, ExitStatus, InstanceReport, Manager, PingAnswer, Site,
    SiteFuture, TaskDefaults, TaskStatus, UnitStatus, UsedUnit, used_units,
};

fn port(name: &str, size: usize) -> TensorPort {
    let dims = vec![Dim::Symbol("N".to_owned()), Dim::Fixed(size)];
    TensorPort {
        name: name.to_owned(),
        tensor_type: TensorType::new(DType::F32, dims),
        is_row_wise: true,
        default: None,
    }
}

/// One block from `f32[N,from]` to `f32[N,to]`.
pub(crate) fn block(name: &str, from: usize, to: usize) -> BlockGraph {
    BlockGraph {
        inputs: vec![port("x", from)],
        blocks: vec![BlockNode {
            block: ContentHash::of_content(name.as_bytes()),
            inputs: vec![TensorSource::Input(0)],
            outputs: vec![port("y", to)],
        }],
        outputs: vec![(port("y", to), TensorSource::Block { block: 0, output: 0 })],
        exits: Vec::new(),
        row_obstacle: None,
        relies_on_dim_names: false,
    }
}

/// A model of a trunk, a rest, and an exit between them.
pub(crate) fn early() -> BlockGraph {
    let node = |name: &str, from, output: &str| BlockNode {
        block: ContentHash::of_content(name.as_bytes()),
        inputs: vec![from],
        outputs: vec![port(output, 4)],
    };
    let trunk = TensorSource::Block { block: 0, output: 0 };
    BlockGraph {
        inputs: vec![port("x", 4)],
        blocks: vec![
            node("trunk", TensorSource::Input(0), "t"),
            node("head", trunk, "exit_1"),
            node("rest", trunk, "y"),
        ],
        outputs: vec![(port("y", 4), TensorSource::Block { block: 2, output: 0 })],
        exits: vec![Exit {
            output: "exit_1".to_owned(),
            threshold: 0.5,
            scores: ScoreKind::Logits,
            head: 1,
            after: Some(0),
        }],
        row_obstacle: None,
        relies_on_dim_names: false,
    }
}

/// A block that joins two tensors.
fn join() -> BlockGraph {
    let mut graph = block("join", 4, 4);
    graph.inputs.push(port("x1", 4));
    graph.blocks[0].inputs.push(TensorSource::Input(1));
    graph
}

pub(super) struct FakeCatalogue(pub(super) Mutex<BTreeMap<String, BlockGraph>>);

impl Default for FakeCatalogue {
    fn default() -> Self {
        let models = [
            ("block1", block("block1", 3, 4)),
            ("block2", block("block2", 4, 4)),
            ("block3", block("block3", 4, 10)),
            ("wide", block("wide", 512, 10)),
            ("early", early()),
            ("join", join()),
        ];
        Self(Mutex::new(models.map(|(name, graph)| (name.to_owned(), graph)).into()))
    }
}

impl Catalogue for FakeCatalogue {
    fn find_graph(&self, name: &str) -> Result<BlockGraph> {
        let found = self.0.lock().unwrap().get(name).cloned();
        found.ok_or_else(|| Error::not_found(format!("there is no model \"{name}\"")))
    }

    fn hold_content(&self, _: &str, _: &[&str], _: &BlockGraph) -> Result<ContentHold> {
        Ok(Box::new(()))
    }
}

#[derive(Default)]
pub(super) struct FakeStore {
    kept: MemoryStore,
    pub(super) is_broken: AtomicBool,
}

impl IntentStore for FakeStore {
    fn load_intent(&self) -> Result<Option<StoredIntent>> {
        self.kept.load_intent()
    }

    fn save_change(&self, change: &IntentChange) -> Result<()> {
        if self.is_broken.load(Ordering::SeqCst) {
            return Err(Error::corrupt("the disk is full"));
        }
        self.kept.save_change(change)
    }
}

pub(super) struct FakeSite {
    deployment: Mutex<Deployment>,
    stopped: Mutex<BTreeSet<String>>,
    /// Whether changes are refused.
    pub(super) refuses: AtomicBool,
    at_once: AtomicUsize,
    /// The most changes that there were at the same time.
    pub(super) most_at_once: AtomicUsize,
    /// The last task that a threshold was set of.
    pub(super) with_threshold: Mutex<Option<Arc<PlannedTask>>>,
    pub(super) events: broadcast::Sender<Arc<str>>,
}

impl FakeSite {
    fn new() -> Self {
        Self {
            deployment: Mutex::new(Deployment::new(true)),
            stopped: Mutex::default(),
            refuses: AtomicBool::new(false),
            at_once: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
            with_threshold: Mutex::default(),
            events: broadcast::channel(2).0,
        }
    }

    /// The tasks that run, each with its version.
    pub(super) fn versions(&self) -> Vec<(String, String)> {
        self.running().iter().map(|task| (task.name.clone(), task.version.clone())).collect()
    }

    /// The tasks that run.
    pub(super) fn running(&self) -> Vec<Arc<PlannedTask>> {
        self.deployment.lock().unwrap().planned_tasks().cloned().collect()
    }

    fn check(&self, name: &str) -> Result<()> {
        if self.deployment.lock().unwrap().find_unit(&UnitId(name.to_owned())).is_some() {
            Ok(())
        } else {
            Err(Error::not_found(format!("there is no unit \"{name}\"")))
        }
    }
}

impl Site for FakeSite {
    fn apply_tasks(
        &self,
        change: TaskChange,
        fusion: bool,
    ) -> SiteFuture<'_, Result<AppliedUnits>> {
        Box::pin(async move {
            let now = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_at_once.fetch_max(now, Ordering::SeqCst);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            self.at_once.fetch_sub(1, Ordering::SeqCst);
            if self.refuses.load(Ordering::SeqCst) {
                return Err(Error::full("there is no room"));
            }
            let mut deployment = self.deployment.lock().unwrap();
            let found = if deployment.fuses() == fusion {
                deployment.change_tasks(change)?
            } else {
                let (anew, found) = deployment.plan_anew(change, fusion)?;
                *deployment = anew;
                found
            };
            Ok(AppliedUnits {
                started: found.new_units.iter().map(|unit| unit.id.to_string()).collect(),
                stopped: found.removed_units.iter().map(ToString::to_string).collect(),
            })
        })
    }

    fn used_units(&self, tasks: &[&str]) -> Vec<UsedUnit> {
        used_units(&self.deployment.lock().unwrap(), tasks)
    }

    fn unit_statuses(&self) -> Vec<UnitStatus> {
        let stopped = self.stopped.lock().unwrap();
        let deployment = self.deployment.lock().unwrap();
        let status = |unit: &Arc<Unit>| UnitStatus {
            name: unit.id.0.clone(),
            blocks: unit.block_hashes().map(|hash| hash.to_string()).collect(),
            tasks: deployment.unit_tasks(&unit.id),
            isolation: unit.settings.isolation.to_string(),
            device: unit.settings.device.to_string(),
            node: None,
            weight_bytes: 7,
            max_batch_rows: None,
            instances: vec![InstanceReport {
                name: format!("{}.0", unit.id),
                state: if stopped.contains(&unit.id.0) { "stopped" } else { "up" }.to_owned(),
                reason: None,
                process: Some(1),
                restarts: 0,
                requests: 3,
                in_flight: 0,
                weights: None,
            }],
        };
        deployment.units().iter().map(status).collect()
    }

    fn task_statuses(&self) -> Vec<TaskStatus> {
        let exit = |exit: &Exit| ExitStatus {
            name: exit.output.clone(),
            threshold: exit.threshold,
            taken: 0,
        };
        let status = |task: &Arc<PlannedTask>| TaskStatus {
            name: task.name.clone(),
            version: task.version.clone(),
            state: "ready".to_owned(),
            reason: None,
            path: vec!["ab12".to_owned()],
            exits: task.graph.exits.iter().map(exit).collect(),
            in_flight: 0,
        };
        self.running().iter().map(status).collect()
    }

    fn ping_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<Vec<PingAnswer>>> {
        Box::pin(async move {
            self.check(unit)?;
            Ok(vec![PingAnswer {
                instance: format!("{unit}.0"),
                answered_ms: Some(0.25),
                error: None,
                busy_ms: 0,
                requests: 3,
            }])
        })
    }

    fn stop_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<()>> {
        Box::pin(async move {
            self.check(unit)?;
            self.stopped.lock().unwrap().insert(unit.to_owned());
            Ok(())
        })
    }

    fn start_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<()>> {
        Box::pin(async move {
            self.check(unit)?;
            self.stopped.lock().unwrap().remove(unit);
            Ok(())
        })
    }

    fn set_threshold(&self, task: &Arc<PlannedTask>, exit: &str) -> Result<()> {
        *self.with_threshold.lock().unwrap() = Some(Arc::clone(task));
        let known = task.graph.exits.iter().find(|known| known.output == exit);
        let threshold = known.map_or(f32::NAN, |known| known.threshold);
        self.deployment.lock().unwrap().set_threshold(&task.name, exit, threshold);
        Ok(())
    }

    fn subscribe_events(&self) -> broadcast::Receiver<Arc<str>> {
        self.events.subscribe()
    }
}

/// A manager and what it works with.
pub(super) struct Setup {
    pub(super) manager: Manager,
    pub(super) site: Arc<FakeSite>,
    pub(super) store: Arc<FakeStore>,
    pub(super) catalogue: Arc<FakeCatalogue>,
}

impl Setup {
    pub(super) fn new() -> Self {
        Self::over(Arc::default(), Arc::default())
    }

    /// A server that starts with what another one has left.
    pub(super) fn over(store: Arc<FakeStore>, catalogue: Arc<FakeCatalogue>) -> Self {
        let site = Arc::new(FakeSite::new());
        let manager = Manager::new(
            Arc::clone(&store) as Arc<dyn IntentStore>,
            Arc::clone(&catalogue) as Arc<dyn Catalogue>,
            Arc::clone(&site) as Arc<dyn Site>,
            TaskDefaults::default(),
        );
        Self { manager, site, store, catalogue }
    }

    pub(super) fn router(&self) -> Router {
        crate::control_router(&self.manager)
    }

    /// The interface of a controller whose cluster has no nodes.
    pub(super) fn controller_router(&self) -> Router {
        let config = crate::RegistryConfig {
            cluster: "test".to_owned(),
            certificate_life: std::time::Duration::from_secs(3600),
        };
        let rows: Arc<dyn crate::RowStore> = Arc::new(crate::MemoryRows::default());
        let members = crate::MemberRegistry::open(Arc::clone(&rows), config).unwrap();
        let members = Arc::new(members);
        let site = crate::ClusterSite::start(crate::ClusterSiteParts {
            nodes: Arc::default(),
            members: Arc::clone(&members),
            rows,
            content: Arc::new(NoContent),
            placement: crate::PlacementChoice::from_name("exact").unwrap(),
        });
        crate::controller_router(&self.manager, &crate::ClusterAdmin::new(members, site))
    }
}

/// The content of a cluster that has none.
struct NoContent;

impl crate::ServedContent for NoContent {
    fn read_content(
        &self,
        _: &str,
        _: ContentHash,
        _: u64,
        _: usize,
    ) -> Result<crate::ContentSlice> {
        Err(Error::not_found("there is no content"))
    }

    fn content_tree(&self, _: &str, _: ContentHash) -> Result<Arc<tessera_core::ContentTree>> {
        Err(Error::not_found("there is no content"))
    }
}

impl crate::ContentReader for NoContent {
    fn weight_bytes(&self, _: ContentHash) -> Result<u64> {
        Err(Error::not_found("there is no content"))
    }

    fn block_weights(&self, _: ContentHash) -> Result<Vec<ContentHash>> {
        Err(Error::not_found("there is no content"))
    }
}
