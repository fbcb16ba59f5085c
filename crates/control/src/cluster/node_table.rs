//! The nodes of a cluster: what they report, and what they were sent.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use tessera_cluster::wire::{Assignment, NodeDescription, NodeOrder, NodeState, Ping, node_order};
use tessera_cluster::{LinkEstimate, TaskTraffic, UnitProfile, UnitReport};
use tessera_core::{ContentHash, Error, Result, lock};
use tessera_deploy::UnitId;
use tokio::sync::{mpsc, watch};

/// Orders that may wait for a node: one that does not take them is away.
pub(crate) const ORDER_QUEUE: usize = 64;
/// How long a node may be away before what it ran is run elsewhere.
pub(crate) const AWAY_PATIENCE: Duration = Duration::from_secs(2);
/// A node that says nothing for so long is away.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_millis(2500);

/// How a node is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeStatus {
    /// What it is called.
    pub name: String,
    /// attached, away or drained; a node that is drained gets nothing to do.
    pub state: String,
    /// Seconds since it is attached or away.
    pub since_seconds: u64,
    /// Version of its program.
    pub version: String,
    /// What runs its units.
    pub engine: String,
    /// Cores that it computes on.
    pub cores: u32,
    /// Bytes of memory that it may use, and that are available.
    pub memory_bytes: u64,
    /// See `memory_bytes`.
    pub available_memory_bytes: u64,
    /// Bytes of storage that are available.
    pub available_storage_bytes: u64,
    /// Cores that nobody uses.
    pub idle_cores: f64,
    /// Its GPUs.
    pub gpus: Vec<String>,
    /// Milliseconds to it and back, on the stream.
    pub round_trip_ms: Option<f64>,
    /// Where clients reach its gateway, where it has one.
    pub http: Option<String>,
    /// See `http`.
    pub grpc: Option<String>,
    /// Units that run at it.
    pub units: Vec<String>,
}

impl NodeStatus {
    /// A node of which nothing is known but that it belongs to the cluster.
    pub(crate) fn never_attached(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: "away".to_owned(),
            since_seconds: 0,
            version: String::new(),
            engine: String::new(),
            cores: 0,
            memory_bytes: 0,
            available_memory_bytes: 0,
            available_storage_bytes: 0,
            idle_cores: 0.0,
            gpus: Vec::new(),
            round_trip_ms: None,
            http: None,
            grpc: None,
            units: Vec::new(),
        }
    }
}

/// Tells one stream of a node from the next.
pub(crate) type SessionId = u64;

/// The nodes, by name.
#[derive(Default)]
pub struct NodeTable {
    state: Mutex<TableState>,
    /// Counts what happened, so that others can wait for it.
    changes: watch::Sender<u64>,
    /// Counts what happened that something may follow of for what nodes are to do.
    news: watch::Sender<u64>,
}

#[derive(Default)]
struct TableState {
    nodes: BTreeMap<String, KnownNode>,
    next_session: SessionId,
    next_number: u64,
    /// Of the controller: nodes obey the highest that they have seen.
    epoch: u64,
    is_closed: bool,
}

/// A node that was attached at some time.
pub(crate) struct KnownNode {
    pub(crate) description: NodeDescription,
    pub(crate) node_state: NodeState,
    pub(crate) units: HashMap<UnitId, UnitReport>,
    /// The links from it.
    pub(crate) links: Vec<LinkEstimate>,
    /// Blocks that others may fetch from it.
    pub(crate) held_blocks: Arc<HashSet<ContentHash>>,
    /// How long units take that could run there.
    pub(crate) profiles: HashMap<UnitId, UnitProfile>,
    /// What its gateway has done, by task.
    pub(crate) traffic: HashMap<String, TaskTraffic>,
    rates: HashMap<String, RequestRate>,
    /// Since when requests of a task are under way and none is answered.
    stalled: HashMap<String, Instant>,
    recent_answers: HashMap<String, RecentAnswers>,
    /// What it was sent, all together.
    sent: Assignment,
    /// The assignments that it has carried out, and before whose routes no request is left.
    pub(crate) applied: u64,
    pub(crate) drained: u64,
    since: Instant,
    session: Option<AttachedSession>,
    round_trip: Option<Duration>,
    /// Whether it has said which units it runs, on this stream.
    has_reported: bool,
}

/// What became of a task's last requests: earlier ones count less and less.
#[derive(Default)]
pub(crate) struct RecentAnswers {
    pub(crate) answered: f64,
    /// Those that left at exits, by name.
    pub(crate) exits: HashMap<String, f64>,
}

impl RecentAnswers {
    /// After so many others a request counts half.
    const HALF_LIFE: f64 = 20.0;

    fn update(&mut self, before: Option<&TaskTraffic>, now: &TaskTraffic) {
        let more = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0)) as f64;
        let answered = more(now.answered, before.map(|before| before.answered));
        let fades = 0.5f64.powf(answered / Self::HALF_LIFE);
        self.answered = self.answered * fades + answered;
        for (exit, taken) in &now.exits {
            let taken = more(*taken, before.and_then(|before| before.exits.get(exit).copied()));
            let known = self.exits.entry(exit.clone()).or_default();
            *known = *known * fades + taken;
        }
    }
}

/// How many requests come.
struct RequestRate {
    since: Instant,
    counted: u64,
    per_minute: f64,
}

impl RequestRate {
    /// How long requests are counted before they are counted anew.
    const WINDOW: Duration = Duration::from_secs(10);

    fn new(counted: u64, now: Instant) -> Self {
        Self { since: now, counted, per_minute: 0.0 }
    }

    fn update(&mut self, answered: u64, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        let more = answered.saturating_sub(self.counted);
        if passed >= Duration::from_millis(500) {
            self.per_minute = more as f64 * 60.0 / passed.as_secs_f64();
        }
        if passed >= Self::WINDOW || answered < self.counted {
            (self.since, self.counted) = (now, answered);
        }
    }
}

struct AttachedSession {
    id: SessionId,
    orders: mpsc::Sender<NodeOrder>,
    heard: Instant,
    /// The ping that it has not answered yet.
    pinged: Option<(u64, Instant)>,
    /// Whether it has said what it is: it is given nothing to do before.
    is_described: bool,
}

impl KnownNode {
    /// Whether it is there, and has said what it is.
    pub(crate) fn is_attached(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.is_described)
    }

    /// Whether it is there, or was a moment ago: a stream that breaks is no node that died.
    pub(crate) fn is_present(&self) -> bool {
        self.session.is_some() || self.since.elapsed() < AWAY_PATIENCE
    }

    /// Whether it is there and has said which units it runs.
    pub(crate) fn has_reported(&self) -> bool {
        self.is_attached() && self.has_reported
    }

    /// Whether it has been away for at least so long.
    pub(crate) fn is_away_for(&self, time: Duration) -> bool {
        self.session.is_none() && self.since.elapsed() >= time
    }

    /// How long a unit takes there by itself, where that is known.
    pub(crate) fn profile_of(&self, unit: &UnitId) -> Option<Duration> {
        self.profiles.get(unit)?.time.as_ref().ok().copied()
    }

    /// Whether it has said how long a unit takes there, or that it can't run it.
    pub(crate) fn has_profile(&self, unit: &UnitId) -> bool {
        self.profiles.contains_key(unit)
    }

    /// Whether the weights of a unit are there.
    pub(crate) fn has_at_hand(&self, unit: &UnitId) -> bool {
        self.profiles.get(unit).is_some_and(|profile| profile.at_hand)
    }

    /// Requests of a task that its gateway answers in a minute.
    pub(crate) fn requests_per_minute(&self, task: &str) -> f64 {
        self.rates.get(task).map_or(0.0, |rate| rate.per_minute)
    }

    /// Whether requests of a task were under way at its gateway for so long, and none was answered.
    pub(crate) fn is_stalled_for(&self, task: &str, time: Duration) -> bool {
        self.stalled.get(task).is_some_and(|since| since.elapsed() >= time)
    }

    /// What became of a task's last requests at its gateway.
    pub(crate) fn recent_answers(&self, task: &str) -> Option<&RecentAnswers> {
        self.recent_answers.get(task)
    }

    /// Its gateway says what it has done.
    pub(crate) fn take_traffic(&mut self, traffic: Vec<TaskTraffic>) {
        let now = Instant::now();
        let there: HashSet<&str> = traffic.iter().map(|known| known.task.as_str()).collect();
        self.rates.retain(|task, _| there.contains(task.as_str()));
        self.recent_answers.retain(|task, _| there.contains(task.as_str()));
        for known in &traffic {
            let rate = self.rates.entry(known.task.clone());
            rate.or_insert_with(|| RequestRate::new(known.answered, now))
                .update(known.answered, now);
        }
        self.stalled.retain(|task, _| there.contains(task.as_str()));
        for known in &traffic {
            let before = self.traffic.get(&known.task);
            let is_new = before.is_none_or(|before| before.answered != known.answered);
            if is_new || known.in_flight == 0 {
                self.stalled.remove(&known.task);
            } else {
                self.stalled.entry(known.task.clone()).or_insert(now);
            }
            self.recent_answers.entry(known.task.clone()).or_default().update(before, known);
        }
        self.traffic = traffic.into_iter().map(|known| (known.task.clone(), known)).collect();
    }

    /// The number of the last assignment that it was sent.
    pub(crate) fn last_number(&self) -> u64 {
        self.sent.number
    }
}

impl NodeTable {
    /// A table without nodes, for the orders of this epoch.
    pub fn new(epoch: u64) -> Self {
        let state = TableState { epoch, ..TableState::default() };
        Self { state: Mutex::new(state), ..Self::default() }
    }

    /// The number of its orders.
    pub(crate) fn epoch(&self) -> u64 {
        lock(&self.state).epoch
    }

    /// Changes whenever something has happened to a node.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Changes whenever something has happened that nodes may have to do something about.
    pub(crate) fn subscribe_news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    pub(crate) fn note_change(&self) {
        self.news.send_modify(|count| *count += 1);
        self.note_progress();
    }

    /// A node is further with what it is to do.
    pub(crate) fn note_progress(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Looks at the nodes.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&BTreeMap<String, KnownNode>) -> T) -> T {
        look(&lock(&self.state).nodes)
    }

    /// Commands nobody any more: every stream ends, and so does each that comes.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        for node in state.nodes.values_mut() {
            node.session = None;
        }
    }

    /// A node has opened its stream; one that it had before is closed.
    pub(crate) fn attach(&self, name: &str) -> (SessionId, mpsc::Receiver<NodeOrder>) {
        let (orders, waiting) = mpsc::channel(ORDER_QUEUE);
        let mut state = lock(&self.state);
        if state.is_closed {
            // Nobody sends on it.
            return (0, waiting);
        }
        state.next_session += 1;
        let (id, heard) = (state.next_session, Instant::now());
        let session = AttachedSession { id, orders, heard, pinged: None, is_described: false };
        let node = state.nodes.entry(name.to_owned()).or_insert_with(|| KnownNode {
            description: NodeDescription::default(),
            node_state: NodeState::default(),
            units: HashMap::new(),
            links: Vec::new(),
            held_blocks: Arc::default(),
            profiles: HashMap::new(),
            traffic: HashMap::new(),
            rates: HashMap::new(),
            stalled: HashMap::new(),
            recent_answers: HashMap::new(),
            sent: Assignment::default(),
            applied: 0,
            drained: 0,
            since: heard,
            session: None,
            round_trip: None,
            has_reported: false,
        });
        node.has_reported = false;
        node.session = Some(session);
        node.since = heard;
        // It is sent everything anew.
        node.sent = Assignment { number: node.sent.number, ..Assignment::default() };
        (id, waiting)
    }

    /// A node's stream has ended.
    pub(crate) fn detach(&self, name: &str, session: SessionId, reason: &str) {
        {
            let mut state = lock(&self.state);
            let Some(node) = state.nodes.get_mut(name) else { return };
            if node.session.as_ref().is_none_or(|attached| attached.id != session) {
                return;
            }
            node.session = None;
            node.since = Instant::now();
        }
        tracing::warn!(node = name, reason, "a node is away");
        self.note_change();
    }

    /// A node does not belong to the cluster any more.
    pub(crate) fn forget(&self, name: &str) {
        let gone = lock(&self.state).nodes.remove(name);
        drop(gone);
        self.note_change();
    }

    /// Changes what is known of a node, where this is still its stream.
    pub(crate) fn update(
        &self,
        name: &str,
        session: SessionId,
        change: impl FnOnce(&mut KnownNode),
    ) -> bool {
        let mut state = lock(&self.state);
        let Some(node) = state.nodes.get_mut(name) else { return false };
        match &mut node.session {
            Some(attached) if attached.id == session => attached.heard = Instant::now(),
            _ => return false,
        }
        change(node);
        true
    }

    /// A node says what it is.
    pub(crate) fn describe(&self, name: &str, session: SessionId, description: NodeDescription) {
        let known = self.update(name, session, |node| {
            if node.description.run_id != description.run_id {
                node.units.clear();
                node.links.clear();
                node.held_blocks = Arc::default();
                node.traffic.clear();
                node.rates.clear();
                node.stalled.clear();
                node.recent_answers.clear();
            }
            node.description = description;
            if let Some(attached) = &mut node.session {
                attached.is_described = true;
            }
        });
        if known {
            tracing::info!(node = name, "a node is attached");
            self.note_change();
        }
    }

    /// A node says how its units are; tells whether that is news to others.
    pub(crate) fn report_units(
        &self,
        name: &str,
        session: SessionId,
        units: HashMap<UnitId, UnitReport>,
    ) -> bool {
        let mut is_news = false;
        self.update(name, session, |node| {
            is_news = !node.has_reported || !are_equivalent(&node.units, &units);
            node.units = units;
            node.has_reported = true;
        });
        is_news
    }

    /// A node has answered a ping.
    pub(crate) fn note_pong(&self, name: &str, session: SessionId, number: u64) {
        self.update(name, session, |node| {
            let pinged = node.session.as_mut().and_then(|attached| attached.pinged.take());
            if let Some((_, at)) = pinged.filter(|(pinged, _)| *pinged == number) {
                node.round_trip = Some(at.elapsed());
            }
        });
    }

    /// Pings every node, and takes those for away that say nothing.
    pub(crate) fn ping_all(&self, number: u64) {
        let mut silent = Vec::new();
        {
            let mut state = lock(&self.state);
            let epoch = state.epoch;
            for (name, node) in &mut state.nodes {
                let Some(attached) = &mut node.session else { continue };
                if attached.heard.elapsed() > SILENCE_LIMIT {
                    silent.push((name.clone(), attached.id));
                    continue;
                }
                let order = node_order::Order::Ping(Ping { number });
                let sent = attached.orders.try_send(NodeOrder { epoch, order: Some(order) });
                if sent.is_ok() && attached.pinged.is_none() {
                    attached.pinged = Some((number, Instant::now()));
                }
            }
        }
        for (name, session) in silent {
            self.detach(&name, session, "it says nothing");
        }
    }

    /// Gives an order to a node.
    pub(crate) fn send_order(&self, name: &str, order: node_order::Order) -> Result<()> {
        let state = lock(&self.state);
        let away = || Error::lost(format!("node \"{name}\" is away"));
        let attached = state.nodes.get(name).and_then(|node| node.session.as_ref());
        let attached = attached.ok_or_else(away)?;
        let order = NodeOrder { epoch: state.epoch, order: Some(order) };
        attached.orders.try_send(order).map_err(|_| away())
    }

    /// Gives an order to every node that is there.
    pub(crate) fn send_to_all(&self, order: &node_order::Order) {
        let names: Vec<String> = lock(&self.state).nodes.keys().cloned().collect();
        for name in names {
            // One that is away hears it when it is back.
            self.send_order(&name, order.clone()).ok();
        }
    }

    /// Sends a node what is other than what it was sent before.
    pub(crate) fn assign(&self, name: &str, mut wanted: Assignment) {
        let mut state = lock(&self.state);
        let (epoch, number) = (state.epoch, state.next_number + 1);
        let Some(node) = state.nodes.get_mut(name).filter(|node| node.is_attached()) else {
            return;
        };
        let mut is_news = false;
        for (part, sent) in parts_of(&mut wanted).into_iter().zip(parts_of(&mut node.sent)) {
            match (&*part, &*sent) {
                (Some(new), Some(old)) if is_same(new, old) => *part = None,
                (Some(_), _) => is_news = true,
                (None, _) => {}
            }
        }
        if !is_news {
            return;
        }
        wanted.number = number;
        let Some(attached) = &node.session else { return };
        let order = node_order::Order::Assignment(wanted.clone());
        // One that takes no more orders is noticed by its silence.
        if attached.orders.try_send(NodeOrder { epoch, order: Some(order) }).is_ok() {
            for (part, sent) in parts_of(&mut wanted).into_iter().zip(parts_of(&mut node.sent)) {
                *sent = part.take().or(sent.take());
            }
            node.sent.number = number;
            state.next_number = number;
        }
    }

    /// How the nodes are.
    pub fn node_statuses(&self) -> Vec<NodeStatus> {
        self.read(|nodes| nodes.iter().map(|(name, node)| node_status(name, node)).collect())
    }
}

/// The documents of an assignment.
fn parts_of(assignment: &mut Assignment) -> [&mut Option<Bytes>; 7] {
    let Assignment { number: _, units, peers, routes, instances, probed, candidates, replies } =
        assignment;
    [units, peers, routes, instances, probed, candidates, replies]
}

/// Whether documents say the same: many nodes have one and the same.
fn is_same(a: &Bytes, b: &Bytes) -> bool {
    a.len() == b.len() && (a.as_ptr() == b.as_ptr() || a == b)
}

/// Whether reports are the same but for what is counted.
fn are_equivalent(a: &HashMap<UnitId, UnitReport>, b: &HashMap<UnitId, UnitReport>) -> bool {
    let alike = |(unit, report): (&UnitId, &UnitReport)| {
        a.get(unit).is_some_and(|known| {
            let places = |report: &UnitReport| {
                let instances = report.instances.iter();
                instances
                    .map(|instance| (instance.name.clone(), instance.address.clone()))
                    .collect::<Vec<_>>()
            };
            (&known.state, known.window, known.run_time)
                == (&report.state, report.window, report.run_time)
                && places(known) == places(report)
        })
    };
    a.len() == b.len() && b.iter().all(alike)
}

fn node_status(name: &str, node: &KnownNode) -> NodeStatus {
    let NodeDescription { version, engine, cores, memory, gpus, gateway, .. } = &node.description;
    let mut units: Vec<String> = node.units.keys().map(ToString::to_string).collect();
    units.sort_unstable();
    let gateway = gateway.as_ref();
    NodeStatus {
        name: name.to_owned(),
        state: if node.is_attached() { "attached" } else { "away" }.to_owned(),
        since_seconds: node.since.elapsed().as_secs(),
        version: version.clone(),
        engine: engine.clone(),
        cores: *cores,
        memory_bytes: *memory,
        available_memory_bytes: node.node_state.available_memory,
        available_storage_bytes: node.node_state.available_storage,
        idle_cores: node.node_state.idle_cores,
        gpus: gpus.clone(),
        round_trip_ms: node.round_trip.map(|time| time.as_secs_f64() * 1e3),
        http: gateway.map(|gateway| gateway.http.clone()),
        grpc: gateway.map(|gateway| gateway.grpc.clone()),
        units,
    }
}

/// A list of names as the order that says who does not belong to the cluster any more.
pub(crate) fn removed_nodes_order(certificate_names: Vec<String>) -> node_order::Order {
    node_order::Order::RemovedNodes(tessera_cluster::wire::RemovedNodes { certificate_names })
}

/// The reports of a node's units, from what it sent.
pub(crate) fn read_unit_reports(document: &[u8]) -> Result<HashMap<UnitId, UnitReport>> {
    let reports: Vec<UnitReport> = tessera_cluster::read_document("reports of units", document)?;
    Ok(reports.into_iter().map(|report| (report.unit.clone(), report)).collect())
}
