//! What each node is to do, from units, routes and what nodes report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tessera_cluster::wire::Assignment;
use tessera_cluster::{
    CandidateUnit, InstanceDetail, LinkTarget, PeerAddresses, UnitInstances, UnitReport, UnitState,
    read_document, write_document,
};
use tessera_core::Result;
use tessera_deploy::{TaskRoute, Unit, UnitId};

use super::node_table::KnownNode;
use super::observed::{input_node, placeable_nodes};
use super::task_blocks::TaskBlocks;

/// How long requests wait for a node that is away before they are refused.
const WAITING_PATIENCE: Duration = Duration::from_secs(6);

/// What is decided, of which every node gets its part.
pub(super) struct Decided<'a> {
    /// Every unit that runs or should.
    pub(super) units: &'a BTreeMap<UnitId, Arc<Unit>>,
    /// The routes that gateways serve, by task.
    pub(super) routes: &'a BTreeMap<String, Arc<TaskRoute>>,
    /// Whether it is known where units are; a controller that has just begun hears of that first,
    /// and until then nodes go on with what they know.
    pub(super) is_settled: bool,
    /// Routes of before, which requests may still be on.
    pub(super) earlier_routes: &'a [Arc<TaskRoute>],
    /// The tasks that may be placed anywhere.
    pub(super) task_blocks: &'a BTreeMap<String, Arc<TaskBlocks>>,
    /// The nodes that get nothing to do.
    pub(super) drained: &'a [String],
}

/// Documents that many nodes get: as long as one says the same it stays the same, so that nobody
/// has to compare, write or keep it for each of them.
#[derive(Default)]
pub(super) struct SharedDocuments {
    routes: Bytes,
    instances: Bytes,
    replies: Bytes,
    gateway_peers: Bytes,
    /// A list or a map of nothing.
    nothing: Option<(Bytes, Bytes)>,
}

impl SharedDocuments {
    fn refresh(known: &mut Bytes, value: &impl Serialize) -> Result<Bytes> {
        let written = write_document(value)?;
        if *known != written {
            *known = written;
        }
        Ok(known.clone())
    }

    fn nothing(&mut self) -> Result<(Bytes, Bytes)> {
        if self.nothing.is_none() {
            let (list, map) = (Vec::<u8>::new(), PeerAddresses::new());
            self.nothing = Some((write_document(&list)?, write_document(&map)?));
        }
        Ok(self.nothing.clone().unwrap_or_default())
    }
}

/// What every node is to do.
pub(super) fn node_assignments(
    decided: &Decided<'_>,
    nodes: &BTreeMap<String, KnownNode>,
    shared: &mut SharedDocuments,
) -> Result<Vec<(String, Assignment)>> {
    let reports = current_reports(nodes);
    let next_units = next_units(decided);
    let routes: Vec<&TaskRoute> = decided.routes.values().map(|route| &**route).collect();
    let mut gateway_peers = PeerAddresses::new();
    // Those after the first, too: whether they are there is found out by asking.
    let steps = all_routes(decided).flat_map(|route| &route.steps);
    steps.for_each(|step| add_instances(&mut gateway_peers, &reports, &step.unit));
    let instances = unit_instances(decided, nodes, &reports);
    let routes = SharedDocuments::refresh(&mut shared.routes, &routes)?;
    let instances = SharedDocuments::refresh(&mut shared.instances, &instances)?;
    let replies = SharedDocuments::refresh(&mut shared.replies, &reply_addresses(nodes))?;
    let gateway_peers = SharedDocuments::refresh(&mut shared.gateway_peers, &gateway_peers)?;
    let (no_list, no_map) = shared.nothing()?;
    let mut units_by_node: HashMap<&str, Vec<&Unit>> = HashMap::new();
    for unit in decided.units.values() {
        units_by_node
            .entry(unit.settings.node.as_deref().unwrap_or_default())
            .or_default()
            .push(unit);
    }
    let choices = Choices::new(decided, nodes);
    let assign = |(name, node): (&String, &KnownNode)| {
        let own = units_by_node.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let has_gateway = node.description.gateway.is_some();
        let peers = if has_gateway {
            // What comes after its own units is among them.
            gateway_peers.clone()
        } else if own.is_empty() {
            no_map.clone()
        } else {
            let mut peers = PeerAddresses::new();
            let next = own.iter().filter_map(|unit| next_units.get(&unit.id)).flatten();
            next.for_each(|next| add_instances(&mut peers, &reports, next));
            write_document(&peers)?
        };
        let replies = if own.is_empty() { no_map.clone() } else { replies.clone() };
        let units = if own.is_empty() { no_list.clone() } else { write_document(&own)? };
        let is_open = choices.is_open(name);
        let (probed, candidates) = if is_open {
            let candidates = choices.candidates_of(name);
            (write_document(&choices.probed_by(name))?, write_document(&candidates)?)
        } else {
            (no_list.clone(), no_list.clone())
        };
        let is_known = decided.is_settled;
        let assignment = Assignment {
            number: 0,
            units: Some(units),
            peers: is_known.then_some(peers),
            replies: is_known.then_some(replies),
            routes: has_gateway.then(|| routes.clone()),
            instances: (has_gateway && is_known).then(|| instances.clone()),
            probed: Some(probed),
            candidates: Some(candidates),
        };
        Ok((name.clone(), assignment))
    };
    nodes.iter().filter(|(_, node)| node.is_attached()).map(assign).collect()
}

/// What nodes have to find out, so that tasks can be placed.
struct Choices<'a> {
    /// Where something can be placed; empty where there is nothing to choose.
    open: Vec<(&'a str, &'a KnownNode)>,
    candidates: BTreeMap<&'a UnitId, &'a Arc<Unit>>,
    /// The nodes that have weights at hand, by unit.
    inputs: HashMap<&'a UnitId, BTreeSet<String>>,
}

impl<'a> Choices<'a> {
    fn new(decided: &Decided<'a>, nodes: &'a BTreeMap<String, KnownNode>) -> Self {
        let mut open = placeable_nodes(nodes, decided.drained);
        let is_goal = |blocks: &Arc<TaskBlocks>| blocks.task.settings.accuracy_goal.is_some();
        let is_alone = open.len() < 2 && !decided.task_blocks.values().any(is_goal);
        if is_alone || decided.task_blocks.is_empty() {
            open.clear();
        }
        let (mut candidates, mut inputs) = (BTreeMap::new(), HashMap::new());
        for blocks in decided.task_blocks.values().filter(|_| !open.is_empty()) {
            let input = input_node(blocks, nodes);
            for unit in &blocks.units {
                candidates.insert(&unit.id, unit);
                let known: &mut BTreeSet<String> = inputs.entry(&unit.id).or_default();
                known.extend(input.clone());
            }
        }
        Self { open, candidates, inputs }
    }

    fn is_open(&self, node: &str) -> bool {
        self.open.iter().any(|(name, _)| *name == node)
    }

    /// Whom a node probes the links to.
    fn probed_by(&self, node: &str) -> Vec<LinkTarget> {
        let others = self.open.iter().filter(|(name, _)| *name != node);
        let targets = others.filter_map(|(name, known)| {
            let probe = known.description.probe.as_ref()?;
            let (address, key) = (probe.address.clone(), probe.key.clone());
            Some(LinkTarget { node: (*name).to_owned(), address, key })
        });
        targets.collect()
    }

    /// What could run at a node. Where requests come in, its weights are at hand: it is what is left
    /// when links get bad.
    fn candidates_of(&self, node: &str) -> Vec<CandidateUnit> {
        let candidate = |(id, unit): (&&UnitId, &&Arc<Unit>)| CandidateUnit {
            unit: Unit::clone(unit),
            prefetch: self.inputs.get(id).is_some_and(|inputs| inputs.contains(node)),
        };
        self.candidates.iter().map(candidate).collect()
    }
}

/// The report of each unit by the node that it runs at, where that is there.
pub(super) fn current_reports(
    nodes: &BTreeMap<String, KnownNode>,
) -> HashMap<&UnitId, &UnitReport> {
    nodes.values().filter(|node| node.is_present()).flat_map(|node| &node.units).collect()
}

fn all_routes<'a>(decided: &'a Decided<'_>) -> impl Iterator<Item = &'a Arc<TaskRoute>> {
    decided.routes.values().chain(decided.earlier_routes)
}

/// Where replies go, by the names of inboxes.
fn reply_addresses(nodes: &BTreeMap<String, KnownNode>) -> PeerAddresses {
    let gateways = nodes.values().filter(|node| node.is_present());
    let gateways = gateways.filter_map(|node| node.description.gateway.as_ref());
    let addresses = gateways.filter_map(|gateway| {
        let address: Value = read_document("an address", &gateway.reply_address).ok()?;
        Some((gateway.reply_inbox.clone(), address))
    });
    addresses.collect()
}

/// The units that requests go to after each.
fn next_units(decided: &Decided<'_>) -> HashMap<UnitId, BTreeSet<UnitId>> {
    let mut next: HashMap<UnitId, BTreeSet<UnitId>> = HashMap::new();
    for route in all_routes(decided) {
        for pair in route.steps.windows(2) {
            let [before, after] = pair else { continue };
            next.entry(before.unit.clone()).or_default().insert(after.unit.clone());
        }
    }
    next
}

fn add_instances(
    peers: &mut PeerAddresses,
    reports: &HashMap<&UnitId, &UnitReport>,
    unit: &UnitId,
) {
    let instances = reports.get(unit).into_iter().flat_map(|report| &report.instances);
    for InstanceDetail { name, address, .. } in instances {
        if let Some(address) = address {
            peers.insert(name.clone(), address.clone());
        }
    }
}

/// The instances of every unit of the routes.
fn unit_instances(
    decided: &Decided<'_>,
    nodes: &BTreeMap<String, KnownNode>,
    reports: &HashMap<&UnitId, &UnitReport>,
) -> Vec<UnitInstances> {
    let used: BTreeSet<&UnitId> =
        decided.routes.values().flat_map(|route| &route.steps).map(|step| &step.unit).collect();
    used.into_iter().map(|unit| instances_of(decided, nodes, reports, unit)).collect()
}

fn instances_of(
    decided: &Decided<'_>,
    nodes: &BTreeMap<String, KnownNode>,
    reports: &HashMap<&UnitId, &UnitReport>,
    unit: &UnitId,
) -> UnitInstances {
    let node = decided.units.get(unit).and_then(|unit| unit.settings.node.clone());
    let known = node.as_ref().and_then(|name| nodes.get(name));
    let cores = known.map_or(0, |known| known.description.cores as usize);
    let Some(report) = reports.get(unit) else {
        let name = node.as_deref().unwrap_or_default();
        // What it ran may be run elsewhere before long: until then requests wait.
        let is_gone = nodes.get(name).is_none_or(|node| node.is_away_for(WAITING_PATIENCE));
        let reason = is_gone.then(|| format!("node \"{name}\" is away"));
        return UnitInstances {
            unit: unit.clone(),
            window: 1,
            run_time: Duration::ZERO,
            instances: Vec::new(),
            unavailable: reason,
            node,
            cores,
        };
    };
    let up = report.instances.iter().filter(|instance| instance.address.is_some());
    UnitInstances {
        unit: unit.clone(),
        window: report.window,
        run_time: report.run_time,
        instances: up.map(|instance| instance.name.clone()).collect(),
        unavailable: match &report.state {
            UnitState::Failed(reason) => Some(reason.clone()),
            UnitState::Starting | UnitState::Up => None,
        },
        node,
        cores,
    }
}
