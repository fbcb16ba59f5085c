//! What a node does: the units that it runs, and the tasks that its gateway serves, as it is
//! assigned them.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_cluster::{
    NodeAssignment, PeerAddresses, TaskTraffic, TaskWay, UnitInstances, UnitReport, UnitState,
};
use tessera_core::{Device, Result, lock};
use tessera_deploy::{EntropyCounts, TaskRoute, Unit, UnitId};
use tessera_dispatch::{Dispatcher, RouteChange, TaskEntry, UnitEntry};
use tessera_node::{InstanceState, InstanceStatus, NodeEvent};
use tessera_probe::LinkProber;
use tessera_repository::Repository;
use tessera_telemetry::SystemSample;
use tessera_tensormq::{Address, Endpoint, TlsIdentity, Transport};
use tokio::sync::{Notify, mpsc};

use super::assignment_file::{AssignmentFile, KeptAssignment};
use super::candidates::Candidates;
use super::content_keeper::ContentKeeper;
use super::content_supply::ContentSupply;
use super::places_file::{PlacesFile, ReplyPlace};
use super::probed_peers::probe_peers;
use super::recent_times::RecentTimes;
use crate::gateway::DispatchPart;
use crate::host_memory::check_memory;
use crate::node::{NodePart, instance_window};
use crate::system_sample::SampledParts;

/// How long to wait before a unit that can't be started is tried again.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(5);

/// What a node does.
pub(super) struct NodeWorkload {
    pub(super) node: NodePart,
    pub(super) dispatch: Option<DispatchPart>,
    pub(super) endpoint: Endpoint,
    /// Who it is to other nodes, and whom it believes.
    pub(super) tls: TlsIdentity,
    pub(super) cores: NonZeroUsize,
    pub(super) repository: PathBuf,
    pub(super) file: AssignmentFile,
    pub(super) places: PlacesFile,
    pub(super) state: Mutex<WorkloadState>,
    /// Held while an assignment is carried out.
    pub(super) applying: Mutex<()>,
    /// Whether a controller has said, at some time, what there is to do.
    pub(super) is_assigned: Arc<AtomicBool>,
    /// Notified when units are to be started or stopped.
    pub(super) units_changed: Notify,
    /// Notified when there is something to report.
    pub(super) report_due: Notify,
    /// Takes assignments whose earlier requests are waited for.
    pub(super) draining: mpsc::UnboundedSender<DrainingTable>,
    /// Fetches what is not here.
    pub(super) content: Arc<ContentSupply>,
    /// Finds out how the links to other nodes are.
    pub(super) prober: Arc<LinkProber>,
    /// What could run here, and how long it takes.
    pub(super) candidates: Candidates,
    /// What stays in the repository.
    pub(super) content_keeper: ContentKeeper,
    /// How long units took lately.
    pub(super) recent_times: RecentTimes,
}

/// What a node is to do, and how far it is.
#[derive(Default)]
pub(super) struct WorkloadState {
    /// The highest epoch of a controller that was heard of.
    epoch: u64,
    pub(super) assignment: NodeAssignment,
    removed_nodes: Vec<String>,
    /// Whom others made known.
    peers: PeerAddresses,
    /// The units that are to run, and how they are.
    pub(super) units: BTreeMap<UnitId, AssignedUnit>,
    /// What the dispatcher sends to.
    instances: HashMap<UnitId, Vec<String>>,
    /// The number of the last assignment that is carried out, and before which nothing is left.
    pub(super) applied: u64,
    pub(super) drained: u64,
}

/// A unit that is to run.
pub(super) struct AssignedUnit {
    pub(super) unit: Arc<Unit>,
    pub(super) state: UnitState,
}

/// A table whose earlier requests are waited for.
pub(super) struct DrainingTable {
    pub(super) number: u64,
    /// The generation of the dispatcher's table before it; `None` where its routes did not change.
    pub(super) generation: Option<u64>,
}

impl NodeWorkload {
    fn dispatcher(&self) -> Option<&Dispatcher> {
        self.dispatch.as_ref().map(|dispatch| &dispatch.dispatcher)
    }

    /// Takes up what it did last.
    pub(super) fn restore(&self) {
        let KeptAssignment { epoch, assignment, removed_nodes } = self.file.load();
        lock(&self.state).epoch = epoch;
        self.tls.set_removed_peers(removed_nodes.iter().cloned());
        lock(&self.state).removed_nodes = removed_nodes;
        let blocks = Repository::open(&self.repository).and_then(|found| found.whole_blocks());
        match blocks {
            Ok(blocks) => self.candidates.note_blocks(blocks),
            Err(error) => tracing::error!(%error, "what is in the repository is not known"),
        }
        if !assignment.is_empty() {
            tracing::info!(number = assignment.number, "going on with what was assigned last");
            self.carry_out(assignment);
        }
    }

    /// The highest epoch of a controller that was heard of.
    pub(super) fn highest_epoch(&self) -> u64 {
        lock(&self.state).epoch
    }

    /// Whether a controller of this epoch is obeyed: none is that began before another that was
    /// heard of, also by an earlier run of this node.
    pub(super) fn admit_epoch(&self, epoch: u64) -> bool {
        let before = {
            let mut state = lock(&self.state);
            let before = state.epoch;
            state.epoch = before.max(epoch);
            before
        };
        if epoch > before {
            self.keep_state();
        }
        epoch >= before
    }

    /// Carries out what a controller says. May wait for connections to others.
    pub(super) fn obey(&self, assignment: NodeAssignment) {
        self.carry_out(assignment);
        self.keep_state();
    }

    /// Refuses those who do not belong to the cluster any more, and nobody else; by the names in
    /// their certificates.
    pub(super) fn set_removed_nodes(&self, mut names: Vec<String>) {
        self.tls.set_removed_peers(names.iter().cloned());
        names.sort_unstable();
        let before = std::mem::replace(&mut lock(&self.state).removed_nodes, names.clone());
        if before != names {
            self.node.supervisor.announce_credentials();
            self.keep_state();
        }
    }

    fn keep_state(&self) {
        let kept = {
            let WorkloadState { epoch, assignment, removed_nodes, .. } = &*lock(&self.state);
            let (assignment, removed_nodes) = (assignment.clone(), removed_nodes.clone());
            KeptAssignment { epoch: *epoch, assignment, removed_nodes }
        };
        if let Err(error) = self.file.save(&kept) {
            tracing::error!(%error, "what a controller said is not kept for the next start");
        }
    }

    fn carry_out(&self, assignment: NodeAssignment) {
        let _applying = lock(&self.applying);
        let number = assignment.number;
        if assignment.peers.is_some() || assignment.replies.is_some() {
            let peers = {
                let known = &lock(&self.state).assignment;
                let peers = assignment.peers.as_ref().or(known.peers.as_ref());
                let replies = assignment.replies.as_ref().or(known.replies.as_ref());
                let both = peers.into_iter().chain(replies).flatten();
                both.map(|(name, address)| (name.clone(), address.clone())).collect()
            };
            self.set_peers(&peers);
        }
        self.hold_content(&assignment);
        let generation = self.set_routes(&assignment);
        if let Some(units) = &assignment.units {
            self.set_units(units);
        }
        if let Some(instances) = &assignment.instances {
            self.set_instances(instances);
        }
        if let Some(probed) = &assignment.probed {
            self.prober.set_peers(probe_peers(probed));
        }
        if let Some(candidates) = &assignment.candidates {
            self.candidates.set_wanted(candidates.clone());
        }
        {
            let mut state = lock(&self.state);
            state.assignment.merge(assignment);
            state.applied = number;
        }
        self.is_assigned.store(true, Ordering::Release);
        // Nobody waits for it any more where this fails.
        self.draining.send(DrainingTable { number, generation }).ok();
        self.report_due.notify_one();
    }

    /// Has what is needed stay in the repository, before anything of it is fetched.
    fn hold_content(&self, newer: &NodeAssignment) {
        if newer.units.is_none() && newer.candidates.is_none() {
            return;
        }
        let (units, candidates) = {
            let known = &lock(&self.state).assignment;
            let units = newer.units.as_ref().or(known.units.as_ref());
            let candidates = newer.candidates.as_ref().or(known.candidates.as_ref());
            (units.cloned().unwrap_or_default(), candidates.cloned().unwrap_or_default())
        };
        if let Err(error) = self.content_keeper.hold_units(&units, &candidates) {
            tracing::error!(%error, "what is needed may be removed from the repository");
        }
    }

    /// Makes known whom units send to, and forgets the others.
    fn set_peers(&self, peers: &PeerAddresses) {
        let supervisor = &self.node.supervisor;
        let before = lock(&self.state).peers.clone();
        for name in before.keys().filter(|name| !peers.contains_key(*name)) {
            supervisor.forget_remote_peer(name);
        }
        let (mut known, mut moved) = (PeerAddresses::new(), Vec::new());
        for (name, value) in peers {
            let address: Address = match serde_json::from_value(value.clone()) {
                Ok(address) => address,
                Err(error) => {
                    tracing::error!(name, %error, "an address is not understood");
                    continue;
                }
            };
            if before.get(name) != Some(value) {
                // Our own are known already.
                if supervisor.instance_address(name).as_ref() == Some(&address) {
                    continue;
                }
                supervisor.add_remote_peer(name, address);
                if before.contains_key(name) {
                    moved.push(name.clone());
                }
            }
            known.insert(name.clone(), value.clone());
        }
        lock(&self.state).peers = known;
        self.replace_instances(&moved);
    }

    /// Instances were started again where others of the same names were: what those had is lost.
    fn replace_instances(&self, names: &[String]) {
        let Some(dispatcher) = self.dispatcher() else { return };
        let found: Vec<(UnitId, String)> = {
            let state = lock(&self.state);
            let all = state.instances.iter().flat_map(|(unit, instances)| {
                instances.iter().map(move |instance| (unit.clone(), instance.clone()))
            });
            all.filter(|(_, instance)| names.contains(instance)).collect()
        };
        for (unit, instance) in found {
            dispatcher.instance_down(&unit, &instance, "it was started again", true);
            dispatcher.instance_up(&unit, &instance);
        }
    }

    /// Has the gateway serve these routes; returns the generation of the table before.
    fn set_routes(&self, assignment: &NodeAssignment) -> Option<u64> {
        let dispatcher = self.dispatcher()?;
        let (known, entries) = {
            let state = lock(&self.state);
            let instances = assignment.instances.as_ref().or(state.assignment.instances.as_ref());
            let entries = instances.into_iter().flatten().map(unit_entry).collect();
            (state.assignment.routes.clone().unwrap_or_default(), entries)
        };
        let routes = assignment.routes.as_deref().unwrap_or(&known);
        let is_other =
            |route: &&TaskRoute| known.iter().find(|old| old.task == route.task) != Some(route);
        let changed: Vec<Arc<TaskRoute>> =
            routes.iter().filter(is_other).cloned().map(Arc::new).collect();
        let is_gone = |old: &&TaskRoute| !routes.iter().any(|route| route.task == old.task);
        let removed: Vec<String> =
            known.iter().filter(is_gone).map(|route| route.task.clone()).collect();
        let is_same = changed.is_empty() && removed.is_empty();
        let change = RouteChange { routes: changed, removed, units: entries };
        if is_same && assignment.instances.is_none() {
            return None;
        }
        let before = dispatcher.change_routes(change);
        (!is_same).then_some(before)
    }

    /// Has the gateway send to these instances.
    fn set_instances(&self, wanted: &[UnitInstances]) {
        let Some(dispatcher) = self.dispatcher() else { return };
        let before = std::mem::take(&mut lock(&self.state).instances);
        let mut known = HashMap::with_capacity(wanted.len());
        for UnitInstances { unit, instances, unavailable, .. } in wanted {
            let own = self.own_instances(unit);
            let instances = own.as_ref().unwrap_or(instances);
            let had = before.get(unit).map_or(&[][..], Vec::as_slice);
            for instance in instances.iter().filter(|name| !had.contains(name)) {
                // Those that others send to are not connected to from here.
                if self.node.supervisor.instance_address(instance).is_some() {
                    dispatcher.instance_up(unit, instance);
                } else {
                    dispatcher.add_instance(unit, instance);
                }
            }
            let reason = unavailable.as_deref().unwrap_or("it is gone");
            for instance in had.iter().filter(|name| !instances.contains(name)) {
                dispatcher.instance_down(unit, instance, reason, unavailable.is_none());
            }
            if instances.is_empty() && unavailable.is_some() {
                dispatcher.instance_down(unit, "", reason, false);
            }
            known.insert(unit.clone(), instances.clone());
        }
        for (unit, instances) in &before {
            if known.contains_key(unit) {
                continue;
            }
            for instance in instances {
                dispatcher.retire_instance(unit, instance);
            }
        }
        lock(&self.state).instances = known;
        let cores: BTreeMap<&str, usize> =
            wanted.iter().filter_map(|unit| Some((unit.node.as_deref()?, unit.cores))).collect();
        if !cores.is_empty() {
            dispatcher.set_cores(cores.into_values().sum());
        }
    }

    /// The instances of a unit that is to run here, which nobody knows better; `None` for others.
    fn own_instances(&self, unit: &UnitId) -> Option<Vec<String>> {
        let is_own = lock(&self.state).units.contains_key(unit);
        is_own.then(|| self.node.supervisor.ready_instances(unit))
    }

    /// Notes what is to run; whoever waits for that starts and stops it.
    fn set_units(&self, units: &[Unit]) {
        let mut state = lock(&self.state);
        let mut before = std::mem::take(&mut state.units);
        for unit in units {
            let known = before.remove(&unit.id).filter(|known| *known.unit == *unit);
            let assigned = known.unwrap_or_else(|| AssignedUnit {
                unit: Arc::new(unit.clone()),
                state: UnitState::Starting,
            });
            state.units.insert(unit.id.clone(), assigned);
        }
        drop(state);
        self.provide_memory(units);
        self.units_changed.notify_one();
    }

    /// Has inputs of its gateway be in memory that these units can read.
    fn provide_memory(&self, units: &[Unit]) {
        if let Some(dispatch) = &self.dispatch {
            dispatch.memory.provide_for(units.iter());
        }
    }

    /// Something has happened to an instance of this node.
    pub(super) fn note_event(&self, event: &NodeEvent) {
        if let Some(dispatcher) = self.dispatcher() {
            match event {
                NodeEvent::Up { unit, instance } if dispatcher.uses_unit(unit) => {
                    dispatcher.instance_up(unit, instance);
                    let mut state = lock(&self.state);
                    let known = state.instances.entry(unit.clone()).or_default();
                    if !known.contains(instance) {
                        known.push(instance.clone());
                    }
                }
                NodeEvent::Down { unit, instance, reason, comes_back }
                    if dispatcher.uses_unit(unit) =>
                {
                    dispatcher.instance_down(unit, instance, reason, *comes_back);
                    if let Some(known) = lock(&self.state).instances.get_mut(unit) {
                        known.retain(|name| name != instance);
                    }
                }
                NodeEvent::Lost { request, part } => dispatcher.retry_part(*request, *part),
                NodeEvent::Up { .. } | NodeEvent::Down { .. } => {}
            }
        }
        self.places.changed.notify_one();
        self.report_due.notify_one();
    }

    /// Where replies to its gateway come to, where it has one that other hosts reach.
    pub(super) fn reply_place(&self) -> Option<ReplyPlace> {
        let address = self.dispatcher()?.reply_address();
        Some(ReplyPlace { inbox: address.inbox.clone(), port: address.port_of(Transport::TCP)? })
    }

    /// How its units are.
    pub(super) fn unit_reports(&self) -> Vec<UnitReport> {
        let statuses = self.node.supervisor.instance_statuses();
        let state = lock(&self.state);
        let report = |(id, assigned): (&UnitId, &AssignedUnit)| {
            let facts = self.node.supervisor.unit_facts(id);
            let own = statuses.iter().filter(|status| status.unit == *id);
            let mut entropies = EntropyCounts::default();
            own.clone().for_each(|status| entropies.add_counts(&status.heartbeat.entropies));
            let calibration = facts.as_ref().map(|facts| facts.calibration);
            UnitReport {
                unit: id.clone(),
                state: assigned.state.clone(),
                instances: own
                    .map(|status| self.instance_detail(status, assigned.unit.settings.device))
                    .collect(),
                window: instance_window(&assigned.unit, calibration.as_ref(), self.cores),
                run_time: calibration.as_ref().map_or(Duration::ZERO, |known| known.time),
                recent_time: self.recent_times.time_of(id),
                entropies,
                weight_bytes: facts.map_or(0, |facts| facts.weight_bytes as u64),
                max_batch_rows: calibration
                    .and_then(|known| known.batching)
                    .map(|batching| batching.max_rows as u64),
            }
        };
        state.units.iter().map(report).collect()
    }

    fn instance_detail(
        &self,
        status: &InstanceStatus,
        device: Device,
    ) -> tessera_cluster::InstanceDetail {
        let (state, reason) = crate::standalone::describe_state(&status.state);
        let is_up = status.state == InstanceState::Up;
        let address = self.node.supervisor.instance_address(&status.instance);
        tessera_cluster::InstanceDetail {
            name: status.instance.clone(),
            state,
            reason,
            address: address
                .filter(|_| is_up)
                .and_then(|address| serde_json::to_value(address).ok()),
            process: status.process,
            restarts: status.restarts,
            requests: status.heartbeat.done,
            weights: crate::standalone::weight_report(status, device),
        }
    }

    /// What its gateway has done for each task.
    pub(super) fn task_traffic(&self) -> Vec<TaskTraffic> {
        let Some(dispatcher) = self.dispatcher() else { return Vec::new() };
        let traffic = |entry: &Arc<TaskEntry>| {
            let exits = entry.list_exits().into_iter().map(|(name, _, taken)| (name, taken));
            TaskTraffic {
                task: entry.route.task.clone(),
                answered: entry.statistics().success.count,
                exits: exits.collect(),
                in_flight: dispatcher.task_in_flight(&entry.route.task) as u64,
                way: entry.least_way().map(|least| TaskWay {
                    units: entry.route.steps.iter().map(|step| step.unit.clone()).collect(),
                    least,
                }),
            }
        };
        dispatcher.list_tasks().iter().map(traffic).collect()
    }

    /// All of it at this moment, as telemetry shows it.
    pub(super) fn take_sample(&self) -> SystemSample {
        let units = lock(&self.state);
        let units = units.units.values().map(|assigned| Arc::clone(&assigned.unit));
        SampledParts {
            node: &self.node,
            dispatcher: self.dispatcher(),
            units: units.map(|unit| (unit.id.clone(), unit)).collect(),
            copied_bytes: self.endpoint.copied_bytes(),
        }
        .take_sample()
    }

    /// How much more its repository can take.
    pub(super) fn available_storage(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.repository);
        found.map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Starts one unit, whose content is there, where there is memory for it; may take its time.
    pub(super) fn start_unit(&self, unit: &Arc<Unit>) -> Result<()> {
        check_memory(&self.node.supervisor.forecast_start(std::slice::from_ref(unit))?)?;
        self.node.supervisor.start_unit(unit)
    }
}

fn unit_entry(instances: &UnitInstances) -> (UnitId, UnitEntry) {
    let entry = UnitEntry { window: instances.window, time: instances.run_time };
    (instances.unit.clone(), entry)
}
