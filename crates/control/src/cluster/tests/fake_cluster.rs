//! A site over nodes that run nothing: they take assignments, and report what a test wants.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tessera_cluster::wire::{
    Assignment, GatewayDescription, NodeDescription, NodeOrder, NodeState, node_order,
};
use tessera_cluster::{
    InstanceDetail, LinkEstimate, NodeAssignment, TaskTraffic, TaskWay, UnitProfile, UnitReport,
    UnitState,
};
use tessera_core::{ContentHash, ContentTree, Error, Result, lock};
use tessera_deploy::{
    EntropyCounts, PlannedTask, TaskChange, TaskRoute, TaskSettings, Unit, UnitId,
};
use tessera_graph::BlockGraph;
use tokio::sync::{Notify, mpsc};

use super::super::content_reader::ContentReader;
use super::super::content_service::{ContentSlice, ServedContent};
use super::super::node_table::{NodeTable, SessionId};
use super::super::plan_status::TaskPlanStatus;
use super::super::{ClusterSite, ClusterSiteParts, PlacementChoice};
use crate::members::{MemberRegistry, RegistryConfig};
use crate::site::{AppliedUnits, Site};
use crate::store::{MemoryRows, RowStore};

/// Bytes of the weights of every block.
pub(super) const WEIGHT_BYTES: u64 = 1000;
/// How long a test waits for something.
const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster of fake nodes.
pub(super) struct FakeCluster {
    pub(super) site: ClusterSite,
    pub(super) rows: Arc<MemoryRows>,
    nodes: Arc<NodeTable>,
    fakes: Mutex<BTreeMap<String, Arc<FakeNode>>>,
}

/// What a node is told to say.
pub(super) struct FakeNode {
    name: String,
    session: SessionId,
    nodes: Arc<NodeTable>,
    assignment: Mutex<NodeAssignment>,
    /// How long a block takes there, in microseconds.
    block_us: AtomicU64,
    /// Whether units that it is to run are up at once; else they are starting.
    starts_units: AtomicBool,
    /// Whether the weights of what could run there are at hand.
    pub(super) has_weights: AtomicBool,
    /// How uncertain requests were, by the first block of a unit.
    entropies: Mutex<HashMap<ContentHash, EntropyCounts>>,
    available_memory: AtomicU64,
    available_storage: AtomicU64,
    changed: Notify,
}

impl FakeCluster {
    /// A cluster without nodes and tasks.
    pub(super) fn start() -> Self {
        Self::over(Arc::default())
    }

    /// With what another controller has kept.
    pub(super) fn over(rows: Arc<MemoryRows>) -> Self {
        let config = RegistryConfig {
            cluster: "test".to_owned(),
            certificate_life: Duration::from_secs(3600),
        };
        let store = Arc::clone(&rows) as Arc<dyn RowStore>;
        let members = Arc::new(MemberRegistry::open(Arc::clone(&store), config).unwrap());
        let nodes = Arc::<NodeTable>::default();
        let site = ClusterSite::start(ClusterSiteParts {
            nodes: Arc::clone(&nodes),
            members,
            rows: store,
            content: Arc::new(EvenContent),
            placement: PlacementChoice::from_name("exact").unwrap(),
        });
        Self { site, rows, nodes, fakes: Mutex::default() }
    }

    /// A node is attached, at which a block takes so long.
    pub(super) fn add_node(&self, name: &str, block_ms: f64, has_gateway: bool) -> Arc<FakeNode> {
        let (session, orders) = self.nodes.attach(name);
        let gateway = has_gateway.then(|| GatewayDescription {
            reply_inbox: format!("replies of {name}"),
            reply_address: json!({}).to_string().into_bytes().into(),
            ..GatewayDescription::default()
        });
        let description =
            NodeDescription { cores: 4, memory: 1 << 30, gateway, ..NodeDescription::default() };
        let node = Arc::new(FakeNode {
            name: name.to_owned(),
            session,
            nodes: Arc::clone(&self.nodes),
            assignment: Mutex::default(),
            block_us: AtomicU64::new((block_ms * 1e3) as u64),
            starts_units: AtomicBool::new(true),
            has_weights: AtomicBool::new(true),
            entropies: Mutex::default(),
            available_memory: AtomicU64::new(1 << 30),
            available_storage: AtomicU64::new(1 << 40),
            changed: Notify::new(),
        });
        tokio::spawn(Arc::clone(&node).obey(orders));
        self.nodes.describe(name, session, description);
        lock(&self.fakes).insert(name.to_owned(), Arc::clone(&node));
        node
    }

    /// A node dies.
    pub(super) fn kill(&self, name: &str) {
        let node = lock(&self.fakes).remove(name).unwrap();
        self.nodes.detach(name, node.session, "it was killed");
    }

    /// What is known of the links between two nodes, both ways.
    pub(super) fn set_link(&self, names: [&str; 2], megabits: f64, round_trip_ms: u64) {
        let link = |to: &str| LinkEstimate {
            to: to.to_owned(),
            round_trip: Some(Duration::from_millis(round_trip_ms)),
            bits_per_second: Some(megabits * 1e6),
            probe_bytes: 0,
            is_cut: megabits == 0.0,
            is_filtered: false,
        };
        for (from, to) in [(names[0], names[1]), (names[1], names[0])] {
            let session = lock(&self.fakes)[from].session;
            self.nodes.update(from, session, |node| {
                node.links.retain(|known| known.to != to);
                node.links.push(link(to));
            });
        }
        self.nodes.note_change();
    }

    /// Probes between two nodes are filtered, and nothing else has told anything.
    pub(super) fn filter_link(&self, names: [&str; 2]) {
        self.set_link(names, 1.0, 1);
        for (from, to) in [(names[0], names[1]), (names[1], names[0])] {
            let session = lock(&self.fakes)[from].session;
            self.nodes.update(from, session, |node| {
                for link in node.links.iter_mut().filter(|link| link.to == to) {
                    (link.round_trip, link.bits_per_second) = (None, None);
                    link.is_filtered = true;
                }
            });
        }
        self.nodes.note_change();
    }

    /// What the gateway of a node says of a task.
    pub(super) fn set_traffic(&self, node: &str, task: &str, answered: u64, in_flight: u64) {
        self.set_way(node, task, answered, in_flight, None);
    }

    /// The same, with how long requests are on their way to their units and back.
    pub(super) fn set_way(
        &self,
        node: &str,
        task: &str,
        answered: u64,
        in_flight: u64,
        least: Option<Duration>,
    ) {
        let session = lock(&self.fakes)[node].session;
        let (exits, route) = (BTreeMap::new(), self.route(node, task));
        let units = route.into_iter().flat_map(|route| route.steps).map(|step| step.unit);
        let way = least.map(|least| TaskWay { units: units.collect(), least });
        let traffic = TaskTraffic { task: task.to_owned(), answered, exits, in_flight, way };
        self.nodes.update(node, session, |node| node.take_traffic(vec![traffic]));
    }

    /// A task of this path comes, or is another.
    pub(super) async fn put(
        &self,
        name: &str,
        graph: BlockGraph,
        settings: TaskSettings,
    ) -> Result<AppliedUnits> {
        self.put_task(&planned(name, graph, settings)).await
    }

    /// A task comes, or is another.
    pub(super) async fn put_task(&self, task: &Arc<PlannedTask>) -> Result<AppliedUnits> {
        let change = TaskChange { put: vec![Arc::clone(task)], removed: Vec::new() };
        self.site.apply_tasks(change, true).await
    }

    /// What the gateway of a node serves under a name.
    pub(super) fn route(&self, node: &str, task: &str) -> Option<TaskRoute> {
        let node = Arc::clone(lock(&self.fakes).get(node)?);
        let assignment = lock(&node.assignment);
        let routes = assignment.routes.iter().flatten();
        routes.into_iter().find(|route| route.task == task).cloned()
    }

    /// The nodes that the units of a task's route run at.
    pub(super) fn places(&self, task: &str) -> Vec<String> {
        let state = lock(&self.site.0.state);
        let Some(route) = state.routes.get(task) else { return Vec::new() };
        let nodes = route.steps.iter().filter_map(|step| state.units.get(&step.unit));
        nodes.filter_map(|unit| unit.settings.node.clone()).collect()
    }

    /// What is planned for a task.
    pub(super) fn plan_of(&self, task: &str) -> Option<TaskPlanStatus> {
        self.site.plan_status().tasks.into_iter().find(|known| known.task == task)
    }

    /// Waits until all units of a task are at a node.
    pub(super) async fn wait_at(&self, task: &str, node: &str) {
        let what = format!("{task} is at {node}");
        wait_for(&what, || {
            let places = self.places(task);
            !places.is_empty() && places.iter().all(|at| at == node)
        })
        .await;
    }
}

/// A task as the manager hands it on.
pub(super) fn planned(name: &str, graph: BlockGraph, settings: TaskSettings) -> Arc<PlannedTask> {
    let (name, version) = (name.to_owned(), "1".to_owned());
    Arc::new(PlannedTask { name, version, graph, settings })
}

/// Waits until something is so.
pub(super) async fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl FakeNode {
    /// How long a block takes there from now on.
    pub(super) fn set_block_ms(&self, block_ms: f64) {
        self.block_us.store((block_ms * 1e3) as u64, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// Bytes of memory that are left there.
    pub(super) fn set_memory(&self, available: u64) {
        self.available_memory.store(available, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// Bytes of storage that are left there.
    pub(super) fn set_storage(&self, available: u64) {
        self.available_storage.store(available, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// Whether units that it is to run are up.
    pub(super) fn set_starts_units(&self, starts: bool) {
        self.starts_units.store(starts, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// So many more requests were so uncertain at a head that runs there.
    pub(super) fn count_entropies(&self, head: ContentHash, entropy: f64, more: u64) {
        let step = EntropyCounts::step_of(entropy);
        lock(&self.entropies).entry(head).or_default().0[step] += more;
        self.changed.notify_one();
    }

    /// The units that it is to run.
    pub(super) fn units(&self) -> Vec<Unit> {
        lock(&self.assignment).units.clone().unwrap_or_default()
    }

    async fn obey(self: Arc<Self>, mut orders: mpsc::Receiver<NodeOrder>) {
        self.report();
        loop {
            tokio::select! {
                order = orders.recv() => match order.and_then(|order| order.order) {
                    None => return,
                    Some(node_order::Order::Ping(ping)) => {
                        self.nodes.note_pong(&self.name, self.session, ping.number);
                    }
                    Some(node_order::Order::Assignment(assignment)) => self.take(&assignment),
                    Some(_) => {}
                },
                () = self.changed.notified() => self.report(),
            }
        }
    }

    fn take(&self, assignment: &Assignment) {
        lock(&self.assignment).merge(NodeAssignment::from_wire(assignment).unwrap());
        self.nodes.update(&self.name, self.session, |node| {
            (node.applied, node.drained) = (assignment.number, assignment.number);
        });
        self.report();
        self.nodes.note_progress();
    }

    fn report(&self) {
        let assignment = lock(&self.assignment).clone();
        let units = assignment.units.unwrap_or_default().into_iter();
        let units: HashMap<UnitId, UnitReport> =
            units.map(|unit| (unit.id.clone(), self.unit_report(&unit))).collect();
        let candidates = assignment.candidates.unwrap_or_default().into_iter();
        let time = Duration::from_micros(self.block_us.load(Ordering::SeqCst));
        let at_hand = self.has_weights.load(Ordering::SeqCst);
        let profiles = candidates.map(|candidate| {
            let unit = candidate.unit.id;
            (unit.clone(), UnitProfile { unit, time: Ok(time), at_hand })
        });
        let profiles: HashMap<UnitId, UnitProfile> = profiles.collect();
        self.nodes.update(&self.name, self.session, |node| {
            node.profiles = profiles;
            node.node_state = NodeState {
                available_memory: self.available_memory.load(Ordering::SeqCst),
                available_storage: self.available_storage.load(Ordering::SeqCst),
                idle_cores: 4.0,
            };
        });
        self.nodes.report_units(&self.name, self.session, units);
        self.nodes.note_change();
    }

    fn unit_report(&self, unit: &Unit) -> UnitReport {
        let is_up = self.starts_units.load(Ordering::SeqCst);
        let instance = InstanceDetail {
            name: format!("{}.{}", unit.id, self.name),
            state: "up".to_owned(),
            reason: None,
            address: Some(json!({})),
            process: None,
            restarts: 0,
            requests: 0,
            weights: None,
        };
        UnitReport {
            unit: unit.id.clone(),
            state: if is_up { UnitState::Up } else { UnitState::Starting },
            instances: if is_up { vec![instance] } else { Vec::new() },
            window: 1,
            run_time: Duration::ZERO,
            recent_time: None,
            entropies: lock(&self.entropies)
                .get(&unit.graph.blocks[0].block)
                .copied()
                .unwrap_or_default(),
            weight_bytes: WEIGHT_BYTES,
            max_batch_rows: None,
        }
    }
}

/// Content of which only the sizes are known.
struct EvenContent;

impl ServedContent for EvenContent {
    fn read_content(&self, _: &str, _: ContentHash, _: u64, _: usize) -> Result<ContentSlice> {
        Err(Error::not_found("there is no content"))
    }

    fn content_tree(&self, _: &str, _: ContentHash) -> Result<Arc<ContentTree>> {
        Err(Error::not_found("there is no content"))
    }
}

impl ContentReader for EvenContent {
    fn block_weights(&self, _: ContentHash) -> Result<Vec<ContentHash>> {
        Ok(Vec::new())
    }

    fn weight_bytes(&self, _: ContentHash) -> Result<u64> {
        Ok(WEIGHT_BYTES)
    }
}
