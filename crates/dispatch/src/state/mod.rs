//! What the dispatcher keeps and decides: under one lock, and without waiting for anything.

mod outcome;

pub(crate) use outcome::RetryCause;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tessera_core::{Error, Result};
use tessera_deploy::{HopTiming, SourceRoute, UnitId};
use tessera_tensormq::{Message, RequestId};

use crate::admission::{AdmissionControl, RequestLoad};
use crate::inference::Refusal;
use crate::instances::{ChosenInstances, InstanceTable, TaskAvailability};
use crate::pending_request::{InferenceResult, PendingRequest};
use crate::request_parts::{PartInFlight, PartsInFlight, WaitingParts};
use crate::rest_watch::RestWatch;
use crate::routing_table::{RouteChange, RoutingTable, TaskEntry};
use crate::turns::TaskTurns;
use crate::unit_waits::UnitWaits;

/// Tasks, instances and requests.
pub(crate) struct DispatcherState {
    table: RoutingTable,
    instances: InstanceTable,
    admission: AdmissionControl,
    requests: HashMap<RequestId, PendingRequest>,
    /// Requests per table that they were accepted under.
    alive: BTreeMap<u64, usize>,
    waiting: WaitingParts,
    in_flight: PartsInFlight,
    turns: TaskTurns,
    rest_watch: RestWatch,
    /// How long requests waited at units; `None` where nobody else sends to them.
    unit_waits: Option<UnitWaits>,
    /// The inbox that replies come to.
    reply_inbox: String,
    /// Instances that could not be reached, and that nobody looks after yet.
    unreachable: Vec<(UnitId, String)>,
}

/// What a request asks of the cores and of memory. Those that end at an exit wait for nothing that
/// others of their task wait for.
fn request_load(entry: &TaskEntry, cost: f64, bytes: usize, ends_early: bool) -> RequestLoad<'_> {
    let task = if ends_early { &entry.exit_load_name } else { &entry.route.task };
    RequestLoad { task, weight: entry.route.weight, cost, bytes, waiting: 0.0 }
}

/// Why a request ends at an exit that was not certain enough.
const LATE_REST: &str = "what comes after the exit was late lately";

/// A message that is to be sent.
pub(crate) struct OutgoingMessage {
    pub(crate) instance: String,
    pub(crate) message: Message,
    pub(crate) request: RequestId,
    pub(crate) flight: u32,
}

/// Results of requests, by number.
pub(crate) type InferenceResults = Vec<(RequestId, InferenceResult)>;

impl DispatcherState {
    pub(crate) fn new(
        cores: usize,
        shares_units: bool,
        most_waiting_bytes: usize,
        reply_inbox: String,
    ) -> Self {
        Self {
            table: RoutingTable::default(),
            instances: InstanceTable::default(),
            admission: AdmissionControl::new(cores, most_waiting_bytes),
            requests: HashMap::new(),
            alive: BTreeMap::new(),
            waiting: WaitingParts::default(),
            in_flight: PartsInFlight::default(),
            turns: TaskTurns::default(),
            rest_watch: RestWatch::default(),
            unit_waits: shares_units.then(UnitWaits::default),
            reply_inbox,
            unreachable: Vec::new(),
        }
    }

    pub(crate) fn change_routes(&mut self, change: RouteChange) -> u64 {
        let RouteChange { routes, removed, units } = change;
        for task in removed.iter().chain(routes.iter().map(|route| &route.task)) {
            self.rest_watch.forget_task(task);
        }
        removed.iter().for_each(|task| self.admission.forget_task(task));
        self.instances.set_units(units);
        for route in &routes {
            let cost: Duration =
                route.steps.iter().map(|step| self.instances.run_time(&step.unit)).sum();
            self.admission.set_initial_cost(&route.task, cost.as_secs_f64());
        }
        let before = self.table.change_routes(routes, &removed);
        self.rebind_waiting();
        before
    }

    /// So many cores compute what is dispatched from now on.
    pub(crate) fn set_cores(&mut self, cores: usize) {
        self.admission.set_cores(cores);
    }

    /// Has requests that were accepted before pass the routes of now, where those only lead through
    /// other units: what they were to pass may be gone. Parts that are on their way stay on it.
    fn rebind_waiting(&mut self) {
        let generation = self.table.generation();
        for pending in self.requests.values_mut() {
            if self.table.is_current(&pending.entry) {
                continue;
            }
            let route = &pending.entry.route;
            let Ok(entry) = self.table.find_task(&route.task, &route.version) else { continue };
            if !entry.route.answers_like(route) {
                continue;
            }
            pending.entry = entry;
            if !self.in_flight.has_request(pending.number) {
                let alive = self.alive.entry(pending.generation).or_default();
                *alive = alive.saturating_sub(1);
                pending.generation = generation;
                *self.alive.entry(generation).or_default() += 1;
            }
        }
        self.alive.retain(|_, count| *count > 0);
    }

    /// Whether requests of a task are still served in this way.
    pub(crate) fn is_current(&self, entry: &Arc<TaskEntry>) -> bool {
        self.table.is_current(entry)
    }

    pub(crate) fn is_drained(&self, before: u64) -> bool {
        self.alive.range(..=before).all(|(_, &count)| count == 0)
            && (before != u64::MAX || self.in_flight.is_empty())
    }

    pub(crate) fn uses_unit(&self, unit: &UnitId) -> bool {
        self.table.passes_unit(unit)
            || self.requests.values().any(|pending| pending.entry.passes_unit(unit))
            || self.instances.is_unit_busy(unit)
    }

    pub(crate) fn instance_up(&mut self, unit: &UnitId, instance: &str) {
        self.instances.add_instance(unit, instance);
    }

    pub(crate) fn retire_instance(&mut self, unit: &UnitId, instance: &str) {
        self.instances.retire_instance(unit, instance);
    }

    pub(crate) fn is_instance_passed(&self, instance: &str) -> bool {
        self.in_flight.is_instance_passed(instance)
    }

    pub(crate) fn instance_down(
        &mut self,
        unit: &UnitId,
        instance: &str,
        reason: &str,
        comes_back: bool,
    ) -> InferenceResults {
        if comes_back {
            self.instances.retire_instance(unit, instance);
        } else {
            let is_unit_used = self.table.passes_unit(unit);
            self.instances.remove_instance(unit, instance, reason, is_unit_used);
        }
        let mut results: InferenceResults = Vec::new();
        for (request, flight) in self.in_flight.flights_through(instance) {
            results.extend(self.retry_part(request, flight, RetryCause::InstanceLost, reason));
        }
        // Nothing that waits for a unit that will not be there is ever sent.
        if !comes_back {
            let stuck: Vec<(RequestId, String)> = self
                .requests
                .values()
                .filter_map(|pending| {
                    Some((pending.number, self.unavailable_reason(&pending.entry)?))
                })
                .collect();
            for (number, reason) in stuck {
                if !results.iter().any(|(known, _)| *known == number) {
                    results.extend(self.fail_request(number, Error::lost(reason)));
                }
            }
        }
        results
    }

    pub(crate) fn list_tasks(&self) -> Vec<Arc<TaskEntry>> {
        self.table.list_tasks()
    }

    pub(crate) fn find_task(&self, name: &str, version: &str) -> Result<Arc<TaskEntry>> {
        self.table.find_task(name, version)
    }

    /// Why a task gives no answer at all.
    pub(crate) fn unavailable_reason(&self, entry: &TaskEntry) -> Option<String> {
        self.instances.unavailable_reason(entry)
    }

    pub(crate) fn task_availability(&self, entry: &TaskEntry) -> TaskAvailability {
        self.instances.task_availability(entry)
    }

    pub(crate) fn task_in_flight(&self, task: &str) -> usize {
        self.requests.values().filter(|pending| pending.entry.route.task == task).count()
    }

    pub(crate) fn instance_in_flight(&self, instance: &str) -> usize {
        self.instances.instance_in_flight(instance)
    }

    pub(crate) fn queue_length(&self) -> usize {
        self.waiting.count_parts()
    }

    /// Whether a part of a request is on its way.
    pub(crate) fn has_flights(&self, request: RequestId) -> bool {
        self.in_flight.has_request(request)
    }

    /// Refuses what can't be finished in time, or has no room to wait. Where an exit may answer,
    /// what can be finished up to there ends there.
    pub(crate) fn admit_request(
        &self,
        pending: &mut PendingRequest,
        allowed: Duration,
    ) -> Result<(), Refusal> {
        let (entry, bytes) = (&pending.entry, pending.bytes);
        // A batch without rows takes a run as well.
        let cost = self.admission.expected_cost(&entry.route.task) * pending.rows.max(1) as f64;
        let exit_cost = |step: usize| cost * self.instances.computing_share(entry, step + 1);
        let suspended = self.rest_watch.ending_step(&entry.route.task);
        let refused = match suspended {
            Some(_) => None,
            None => {
                let waiting = self.expected_wait(entry, entry.route.steps.len());
                let load = RequestLoad { waiting, ..request_load(entry, cost, bytes, false) };
                match self.admission.admit_request(&load, allowed) {
                    Ok(()) => {
                        (pending.cost, pending.is_exit_load) = (cost, false);
                        return Ok(());
                    }
                    Err(refusal) => Some(refusal),
                }
            }
        };
        let step = suspended.or_else(|| entry.last_exit_step().filter(|_| entry.may_degrade()));
        let Some(step) = step else { return refused.map_or(Ok(()), Err) };
        let cost = exit_cost(step);
        let waiting = self.expected_wait(entry, step + 1);
        let load = RequestLoad { waiting, ..request_load(entry, cost, bytes, true) };
        self.admission.admit_request(&load, allowed)?;
        pending.ends_early = refused.map(|refusal| refusal.error.to_string());
        (pending.cost, pending.is_exit_load) = (cost, true);
        Ok(())
    }

    /// How long others waited lately at the first units of a route, in seconds.
    fn expected_wait(&self, entry: &TaskEntry, steps: usize) -> f64 {
        let Some(waits) = &self.unit_waits else { return 0.0 };
        let steps = entry.route.steps.iter().take(steps);
        waits.expected_wait(steps.map(|step| &step.unit), Instant::now())
    }

    /// Learns how long a request waited at units.
    fn note_unit_waits(&mut self, timings: &[HopTiming]) {
        let Some(waits) = &mut self.unit_waits else { return };
        let now = Instant::now();
        for timing in timings {
            if let Some(unit) = self.instances.unit_of(&timing.instance) {
                // Weights are there for whoever comes next.
                let waited = timing.waited.saturating_sub(timing.loading);
                waits.note_wait(unit, Duration::from_nanos(waited), now);
            }
        }
        waits.forget_old(now);
    }

    /// Takes a request in.
    pub(crate) fn insert_request(&mut self, mut pending: PendingRequest) {
        let task = &pending.entry.route.task;
        let load = request_load(&pending.entry, pending.cost, pending.bytes, pending.is_exit_load);
        let share = self.admission.share_time(&load);
        pending.turn = self.turns.take_turn(task, pending.accepted, share);
        self.admission.add_request(&load);
        pending.generation = self.table.generation();
        *self.alive.entry(pending.generation).or_default() += 1;
        self.waiting.push_request(task, pending.number, pending.parts.len());
        self.requests.insert(pending.number, pending);
    }

    /// Takes a request out, however it ended.
    pub(crate) fn remove_request(&mut self, number: RequestId) -> Option<PendingRequest> {
        let pending = self.requests.remove(&number)?;
        // What a row takes is not learnt from none.
        let computed = pending.computed_seconds().filter(|_| pending.rows > 0);
        let per_row = computed.map(|all| all / pending.rows as f64);
        let load = request_load(&pending.entry, pending.cost, pending.bytes, pending.is_exit_load);
        if self.admission.remove_request(&load, per_row) {
            self.turns.forget_task(&pending.entry.route.task);
        }
        if let Some(count) = self.alive.get_mut(&pending.generation) {
            *count -= 1;
            if *count == 0 {
                self.alive.remove(&pending.generation);
            }
        }
        Some(pending)
    }

    /// Everything that can be sent now, as far as every instance on its way has room: those first
    /// whose turn comes first.
    pub(crate) fn take_sendable(&mut self) -> (Vec<OutgoingMessage>, InferenceResults) {
        let (mut outgoing, mut results) = (Vec::new(), Vec::new());
        let now = Instant::now();
        loop {
            // What was cancelled meanwhile is in no queue's way.
            self.waiting.drop_finished(|number, part| {
                let part = self.requests.get(&number).and_then(|p| p.parts.get(part));
                part.is_none_or(|part| part.result.is_some())
            });
            let next = self.waiting.next_parts().filter_map(|(task, number, part)| {
                Some((self.requests.get(&number)?.turn, number, part, task.to_owned()))
            });
            let mut heads: Vec<(u64, RequestId, usize, String)> = next.collect();
            heads.sort_unstable_by_key(|(turn, number, ..)| (*turn, *number));
            let mut sent = false;
            for (_, number, part, task) in heads {
                let Some(chosen) = self.choose_instances(number) else {
                    continue;
                };
                if chosen.cut_short.is_none() {
                    self.rest_watch.note_try(&task, now);
                }
                self.waiting.take_next(&task);
                match self.dispatch_part(number, part, chosen) {
                    Ok(departing) => outgoing.push(departing),
                    Err(error) => results.extend(self.fail_request(number, error)),
                }
                sent = true;
            }
            if !sent {
                return (outgoing, results);
            }
        }
    }

    fn choose_instances(&self, number: RequestId) -> Option<ChosenInstances> {
        let pending = self.requests.get(&number)?;
        let entry = &pending.entry;
        if !entry.may_degrade() {
            return self.instances.choose_instances(entry, None);
        }
        let task = &entry.route.task;
        if let Some(reason) = &pending.ends_early {
            let steps = entry.last_exit_step().map(|step| (step + 1, reason.clone()));
            return self.instances.choose_instances(entry, steps);
        }
        if let Some(in_reach) = self.instances.steps_in_reach(entry) {
            return self.instances.choose_instances(entry, Some(in_reach));
        }
        let Some(step) = self.rest_watch.ending_step(task) else {
            return self.instances.choose_instances(entry, None);
        };
        let to_exit = || {
            let steps = Some((step + 1, LATE_REST.to_owned()));
            self.instances.choose_instances(entry, steps)
        };
        if self.rest_watch.is_try_due(task, Instant::now()) {
            // Where those that were tried before have all places, there is nothing to try.
            return self.instances.choose_instances(entry, None).or_else(to_exit);
        }
        to_exit()
    }

    /// Sends a part of a request on its way.
    fn dispatch_part(
        &mut self,
        number: RequestId,
        part: usize,
        chosen: ChosenInstances,
    ) -> Result<OutgoingMessage> {
        let ChosenInstances { names: instances, cut_short } = chosen;
        let missing = || Error::lost("a request was cancelled");
        let pending = self.requests.get(&number).ok_or_else(missing)?;
        let flight = self.in_flight.next_flight();
        let hops = pending.entry.route_hops(&instances);
        let turn = pending.turn.saturating_sub(pending.accepted);
        let route = SourceRoute::write(&self.reply_inbox, flight, &hops)?.with_turn(turn);
        let inputs = pending.parts.get(part).ok_or_else(missing)?.inputs.clone();
        let (task, deadline) = (pending.entry.route.task.clone(), pending.deadline);
        let message = Message::new(number, &task, route.as_bytes())?
            .with_accepted(pending.accepted)
            .with_deadline(pending.deadline)
            .with_trace(pending.trace.unwrap_or_default())
            .with_tensors(inputs);
        let instance = instances.first().cloned().ok_or_else(missing)?;
        self.instances.reserve_places(&instances);
        self.in_flight
            .add_part(number, PartInFlight { part, instances, task, cut_short, deadline });
        Ok(OutgoingMessage { instance, message, request: number, flight })
    }

    /// A flight has ended, whatever came of it; `None` where it had ended before.
    fn end_flight(&mut self, request: RequestId, flight: u32) -> Option<PartInFlight> {
        let flight = self.in_flight.remove_part(request, flight)?;
        self.instances.release_places(&flight.instances);
        Some(flight)
    }
}
