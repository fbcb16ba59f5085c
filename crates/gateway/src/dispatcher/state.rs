//! What the dispatcher keeps: the table, who waits, and what is on its way.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tessera_core::{Error, Result, Tensor};
use tessera_plan::{Log, Outcome, Route, UnitId};
use tessera_tensormq::{Deadline, Message, RequestId};

use super::HOME;
use super::admission::Load;
use super::request::{Flight, Flights, PartResult, Pending, Reply};
use super::statistics::Statistics;
use super::table::{TaskEntry, UnitEntry};
use crate::service::Refusal;

/// How often a part of a request is sent again.
const MOST_RETRIES: u32 = 1;

pub(super) struct State {
    tasks: BTreeMap<String, Arc<TaskEntry>>,
    statistics: HashMap<String, Arc<Statistics>>,
    generation: u64,
    /// Requests per table that they were accepted under.
    alive: BTreeMap<u64, usize>,
    requests: HashMap<RequestId, Pending>,
    /// Parts that wait to be sent, per task.
    queues: BTreeMap<String, VecDeque<(RequestId, usize)>>,
    flights: Flights,
    next_flight: u32,
    units: HashMap<UnitId, UnitState>,
    load: Load,
    waiting_bytes: usize,
    most_waiting: usize,
}

/// The instances of a unit.
#[derive(Default)]
struct UnitState {
    window: usize,
    up: Vec<InstanceState>,
    /// Why there is none, and will be none.
    unavailable: Option<String>,
}

struct InstanceState {
    name: String,
    in_flight: usize,
}

/// A message that is to be sent.
pub(super) struct Outgoing {
    pub(super) instance: String,
    pub(super) message: Message,
    pub(super) request: RequestId,
    pub(super) flight: u32,
}

/// Replies to requests, by number.
type Replies = Vec<(RequestId, Reply)>;

impl State {
    pub(super) fn new(cores: usize, most_waiting: usize) -> Self {
        Self {
            tasks: BTreeMap::new(),
            statistics: HashMap::new(),
            generation: 0,
            alive: BTreeMap::new(),
            requests: HashMap::new(),
            queues: BTreeMap::new(),
            flights: HashMap::new(),
            next_flight: 0,
            units: HashMap::new(),
            load: Load::new(cores),
            waiting_bytes: 0,
            most_waiting,
        }
    }

    pub(super) fn swap(&mut self, routes: Vec<Route>, units: HashMap<UnitId, UnitEntry>) -> u64 {
        let before = self.generation;
        self.generation += 1;
        self.load.forget(|task| routes.iter().any(|route| route.task == task));
        self.tasks.clear();
        for route in routes {
            let cost: Duration =
                route.steps.iter().filter_map(|step| Some(units.get(&step.unit)?.time)).sum();
            self.load.expect(&route.task, cost.as_secs_f64());
            let statistics = Arc::clone(self.statistics.entry(route.task.clone()).or_default());
            let entry = TaskEntry::new(route, statistics, self.generation);
            self.tasks.insert(entry.route.task.clone(), Arc::new(entry));
        }
        for (unit, entry) in units {
            self.units.entry(unit).or_default().window = entry.window.max(1);
        }
        before
    }

    pub(super) fn is_drained(&self, before: u64) -> bool {
        self.alive.range(..=before).all(|(_, &count)| count == 0)
            && (before != u64::MAX || self.flights.is_empty())
    }

    pub(super) fn uses(&self, unit: &UnitId) -> bool {
        self.tasks.values().any(|entry| entry.passes(unit))
            || self.requests.values().any(|pending| pending.entry.passes(unit))
            || self.units.get(unit).is_some_and(|unit| unit.up.iter().any(|i| i.in_flight > 0))
    }

    pub(super) fn instance_up(&mut self, unit: &UnitId, instance: &str) {
        let unit = self.units.entry(unit.clone()).or_default();
        unit.unavailable = None;
        unit.window = unit.window.max(1);
        if !unit.up.iter().any(|known| known.name == instance) {
            unit.up.push(InstanceState { name: instance.to_owned(), in_flight: 0 });
        }
    }

    pub(super) fn retire(&mut self, unit: &UnitId, instance: &str) {
        if let Some(unit) = self.units.get_mut(unit) {
            unit.up.retain(|known| known.name != instance);
        }
    }

    pub(super) fn is_passed(&self, instance: &str) -> bool {
        self.flights.values().any(|flight| flight.instances.iter().any(|passed| passed == instance))
    }

    pub(super) fn instance_down(
        &mut self,
        unit: &UnitId,
        instance: &str,
        why: &str,
        comes_back: bool,
    ) -> Replies {
        if let Some(state) = self.units.get_mut(unit) {
            state.up.retain(|known| known.name != instance);
            let is_used = self.tasks.values().any(|entry| entry.passes(unit));
            if state.up.is_empty() && !comes_back && !is_used {
                // Nobody asks for it any more.
                self.units.remove(unit);
            } else if state.up.is_empty() && !comes_back {
                state.unavailable = Some(format!("block {unit}: {why}"));
            }
        }
        let lost: Vec<(RequestId, u32)> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.instances.iter().any(|passed| passed == instance))
            .map(|(key, _)| *key)
            .collect();
        let mut replies: Replies = Vec::new();
        for (request, flight) in lost {
            replies.extend(self.lost(request, flight, why));
        }
        // Nothing that waits for a unit that will not be there is ever sent.
        if !comes_back {
            let stuck: Vec<(RequestId, String)> = self
                .requests
                .values()
                .filter_map(|pending| Some((pending.number, self.unavailable(&pending.entry)?)))
                .collect();
            for (number, why) in stuck {
                if !replies.iter().any(|(known, _)| *known == number) {
                    replies.extend(self.fail(number, Error::lost(why)));
                }
            }
        }
        replies
    }

    pub(super) fn tasks(&self) -> Vec<Arc<TaskEntry>> {
        self.tasks.values().cloned().collect()
    }

    pub(super) fn task(&self, name: &str, version: &str) -> Result<Arc<TaskEntry>> {
        let entry = self.tasks.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.tasks.keys().map(String::as_str).take(20).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Error::not_found(format!("unknown task \"{name}\", there is {known}"))
        })?;
        if !version.is_empty() && version != entry.route.version {
            return Err(Error::not_found(format!(
                "task \"{name}\" has no version \"{version}\", it has {}",
                entry.route.version
            )));
        }
        Ok(Arc::clone(entry))
    }

    /// Why a task gives no answer at all.
    pub(super) fn unavailable(&self, entry: &TaskEntry) -> Option<String> {
        let (steps, missing) = self.reach(entry);
        missing.filter(|_| steps == 0)
    }

    /// How many steps of a route can be made, and why no more. Where a later block will not be there, a
    /// task that may degrade still goes to the last exit before it.
    fn reach(&self, entry: &TaskEntry) -> (usize, Option<String>) {
        let steps = &entry.route.steps;
        let missing = steps.iter().enumerate().find_map(|(index, step)| {
            Some((index, self.units.get(&step.unit)?.unavailable.clone()?))
        });
        let Some((index, why)) = missing else {
            return (steps.len(), None);
        };
        let exit = steps[..index].iter().rposition(|step| step.exit.is_some());
        let reached = exit.filter(|_| entry.route.degrade).map_or(0, |exit| exit + 1);
        (reached, Some(why))
    }

    pub(super) fn in_flight(&self, task: &str) -> usize {
        self.requests.values().filter(|pending| pending.entry.route.task == task).count()
    }

    pub(super) fn at_instance(&self, instance: &str) -> usize {
        let mut all = self.units.values().flat_map(|unit| &unit.up);
        all.find(|known| known.name == instance).map_or(0, |known| known.in_flight)
    }

    pub(super) fn waiting(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// Refuses what can't be finished in time, or has no room to wait.
    pub(super) fn admit(
        &self,
        entry: &TaskEntry,
        rows: usize,
        bytes: usize,
        allowed: Duration,
    ) -> Result<(), Refusal> {
        let cost = self.load.cost(&entry.route.task) * rows as f64;
        self.load.admit(cost, allowed)?;
        if self.waiting_bytes > 0 && self.waiting_bytes + bytes > self.most_waiting {
            return Err(Refusal {
                error: Error::full(format!(
                    "{} MB of requests wait already",
                    self.waiting_bytes >> 20
                )),
                retry_after: Some(self.load.estimate(cost)),
            });
        }
        Ok(())
    }

    /// Takes a request in.
    pub(super) fn insert(&mut self, mut pending: Pending) {
        pending.cost = self.load.cost(&pending.entry.route.task) * pending.rows as f64;
        self.load.add(pending.cost);
        self.waiting_bytes += pending.bytes;
        *self.alive.entry(pending.entry.generation).or_default() += 1;
        let queue = self.queues.entry(pending.entry.route.task.clone()).or_default();
        queue.extend((0..pending.parts.len()).map(|part| (pending.number, part)));
        self.requests.insert(pending.number, pending);
    }

    /// Takes a request out, however it ended.
    pub(super) fn remove(&mut self, number: RequestId) -> Option<Pending> {
        let pending = self.requests.remove(&number)?;
        let computed = pending.parts.iter().all(|part| part.result.is_some()).then(|| {
            let nanoseconds: u64 = pending
                .records
                .iter()
                // A batch is computed once for all its rows.
                .map(|record| record.computed / record.batch.max(1) * record.rows)
                .sum();
            nanoseconds as f64 / 1e9
        });
        let per_row = computed.map(|seconds| seconds / pending.rows.max(1) as f64);
        self.load.remove(&pending.entry.route.task, pending.cost, per_row);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(pending.bytes);
        if let Some(count) = self.alive.get_mut(&pending.entry.generation) {
            *count -= 1;
            if *count == 0 {
                self.alive.remove(&pending.entry.generation);
            }
        }
        Some(pending)
    }

    /// Everything that can be sent now: the oldest first, as far as every instance on its way has room.
    pub(super) fn sendable(&mut self) -> (Vec<Outgoing>, Replies) {
        let (mut outgoing, mut replies) = (Vec::new(), Vec::new());
        loop {
            // What was given up meanwhile is in no queue's way.
            for queue in self.queues.values_mut() {
                while queue.front().is_some_and(|(number, part)| {
                    let part = self.requests.get(number).and_then(|p| p.parts.get(*part));
                    part.is_none_or(|part| part.result.is_some())
                }) {
                    queue.pop_front();
                }
            }
            self.queues.retain(|_, queue| !queue.is_empty());
            let mut heads: Vec<(u64, RequestId, usize, String)> = self
                .queues
                .iter()
                .filter_map(|(task, queue)| {
                    let &(number, part) = queue.front()?;
                    Some((self.requests.get(&number)?.accepted, number, part, task.clone()))
                })
                .collect();
            heads.sort_unstable_by_key(|(accepted, number, ..)| (*accepted, *number));
            let mut sent = false;
            for (_, number, part, task) in heads {
                let Some((instances, cut_short)) = self.places(number) else {
                    continue;
                };
                if let Some(queue) = self.queues.get_mut(&task) {
                    queue.pop_front();
                }
                match self.depart(number, part, instances, cut_short) {
                    Ok(departing) => outgoing.push(departing),
                    Err(error) => replies.extend(self.fail(number, error)),
                }
                sent = true;
            }
            if !sent {
                return (outgoing, replies);
            }
        }
    }

    /// An instance for each step that can be made, all with room, and why it can't be all of them; `None`
    /// where one has no room.
    fn places(&self, number: RequestId) -> Option<(Vec<String>, Option<String>)> {
        let entry = &self.requests.get(&number)?.entry;
        let (reached, missing) = self.reach(entry);
        let steps = &entry.route.steps[..reached];
        let mut chosen: HashMap<&UnitId, &str> = HashMap::new();
        for step in steps {
            if chosen.contains_key(&step.unit) {
                continue;
            }
            let unit = self.units.get(&step.unit)?;
            let best = unit.up.iter().min_by_key(|instance| instance.in_flight)?;
            if best.in_flight >= unit.window {
                return None;
            }
            chosen.insert(&step.unit, &best.name);
        }
        let names = steps.iter().map(|step| chosen.get(&step.unit).map(|&name| name.to_owned()));
        Some((names.collect::<Option<_>>()?, missing))
    }

    /// Sends a part of a request on its way.
    fn depart(
        &mut self,
        number: RequestId,
        part: usize,
        instances: Vec<String>,
        cut_short: Option<String>,
    ) -> Result<Outgoing> {
        let missing = || Error::lost("a request was given up");
        let pending = self.requests.get(&number).ok_or_else(missing)?;
        let legs = pending.entry.legs(&instances);
        let flight = self.next_flight;
        let log = Log {
            home: HOME.to_owned(),
            accepted: pending.accepted,
            sent: Deadline::now().nanoseconds(),
            part: flight,
            records: Vec::new(),
        }
        .encode();
        let path: Vec<&str> =
            legs.iter().map(String::as_str).chain(std::iter::once(log.as_str())).collect();
        let inputs = pending.parts.get(part).ok_or_else(missing)?.inputs.clone();
        let task = pending.entry.route.task.clone();
        let message = Message::new(number, &task, &path)?
            .with_deadline(pending.deadline)
            .with_trace(pending.trace.unwrap_or_default())
            .with_tensors(inputs);
        let instance = instances.first().cloned().ok_or_else(missing)?;
        self.next_flight = self.next_flight.wrapping_add(1);
        self.reserve(&instances, true);
        let departed = Flight { part, instances, task, cut_short };
        self.flights.insert((number, flight), departed);
        Ok(Outgoing { instance, message, request: number, flight })
    }

    /// Takes a place at each instance, or gives it back.
    fn reserve(&mut self, instances: &[String], takes: bool) {
        for unit in self.units.values_mut() {
            for known in unit.up.iter_mut().filter(|known| instances.contains(&known.name)) {
                known.in_flight =
                    if takes { known.in_flight + 1 } else { known.in_flight.saturating_sub(1) };
            }
        }
    }

    /// Whether a part of a request is on its way.
    pub(super) fn has_flights(&self, request: RequestId) -> bool {
        self.flights.keys().any(|(number, _)| *number == request)
    }

    fn land(&mut self, request: RequestId, flight: u32) -> Option<Flight> {
        let flight = self.flights.remove(&(request, flight))?;
        self.reserve(&flight.instances, false);
        Some(flight)
    }

    /// A flight that will not come home: its part is sent again, once.
    pub(super) fn lost(&mut self, request: RequestId, flight: u32, why: &str) -> Replies {
        let Some(flight) = self.land(request, flight) else {
            return Vec::new();
        };
        let Some(pending) = self.requests.get_mut(&request) else {
            return Vec::new();
        };
        let Some(part) = pending.parts.get_mut(flight.part).filter(|part| part.result.is_none())
        else {
            return Vec::new();
        };
        if part.tries >= MOST_RETRIES || pending.deadline.has_passed() {
            let error = Error::lost(format!("a block was lost: {why}"));
            return self.fail_part(request, flight.part, error);
        }
        part.tries += 1;
        pending.retries += 1;
        let (task, part) = (flight.task, flight.part);
        self.queues.entry(task).or_default().push_front((request, part));
        Vec::new()
    }

    /// A flight that did not begin, as its inputs can't be brought to where they are read.
    pub(super) fn not_sent(&mut self, request: RequestId, flight: u32, error: Error) -> Replies {
        match self.land(request, flight) {
            Some(flight) => self.fail_part(request, flight.part, error),
            None => Vec::new(),
        }
    }

    /// The reply to a request that went wrong: a degraded answer where there is one.
    fn fail(&self, number: RequestId, error: Error) -> Replies {
        let Some(pending) = self.requests.get(&number) else {
            return Vec::new();
        };
        let reply = pending.degraded(&error.to_string()).unwrap_or_else(|| {
            let task = &pending.entry.route.task;
            Err(error.within(format!("task \"{task}\"")).into())
        });
        vec![(number, reply)]
    }

    pub(super) fn degraded(&self, number: RequestId, why: &str) -> Option<Reply> {
        self.requests.get(&number)?.degraded(why)
    }

    /// A message came home.
    pub(super) fn came_home(
        &mut self,
        request: RequestId,
        outcome: Outcome,
        log: Log,
        tensors: Vec<Tensor>,
    ) -> Replies {
        if let Outcome::Standby(exit) = outcome {
            return self.stand_by(request, log.part, exit, tensors);
        }
        if let Outcome::Lost(instance) = &outcome {
            let why = format!("instance {instance} is gone");
            return self.lost(request, log.part, &why);
        }
        // A flight that was given up as lost may come home after all, and is as good as its successor;
        // but which part it was is not known any more.
        let Some(flight) = self.land(request, log.part) else {
            return Vec::new();
        };
        let Some(pending) = self.requests.get_mut(&request) else {
            return Vec::new();
        };
        pending.records.extend(log.records);
        let Some(part) = pending.parts.get_mut(flight.part).filter(|part| part.result.is_none())
        else {
            return Vec::new();
        };
        if let (Outcome::Done, Some(why)) = (&outcome, flight.cut_short) {
            return self.fail_part(request, flight.part, Error::lost(why));
        }
        match outcome {
            Outcome::Done => part.result = Some(PartResult { outputs: tensors, exit: None }),
            Outcome::Exit(exit) => {
                part.result = Some(PartResult { outputs: tensors, exit: Some(exit) });
            }
            Outcome::Late => {
                let error = Error::timed_out("the deadline passed on the way");
                return self.fail_part(request, flight.part, error);
            }
            Outcome::Failed(why) => {
                return self.fail_part(request, flight.part, Error::engine(why));
            }
            Outcome::Standby(_) | Outcome::Lost(_) => {}
        }
        if let Some(reply) = pending.answered() {
            return vec![(request, reply)];
        }
        // The last of several, of which another failed.
        match pending.is_over() {
            true => self.fail(request, Error::lost("a part of the request failed")),
            false => Vec::new(),
        }
    }

    /// A part that comes to no result. Where another part may still bring what a degraded answer needs,
    /// the request waits for it.
    fn fail_part(&mut self, number: RequestId, part: usize, error: Error) -> Replies {
        let Some(pending) = self.requests.get_mut(&number) else {
            return Vec::new();
        };
        if let Some(part) = pending.parts.get_mut(part) {
            part.has_failed = true;
        }
        match pending.entry.route.degrade && !pending.is_over() {
            true => Vec::new(),
            false => self.fail(number, error),
        }
    }

    /// Keeps the scores of an exit, should nothing better come.
    fn stand_by(
        &mut self,
        request: RequestId,
        flight: u32,
        exit: usize,
        tensors: Vec<Tensor>,
    ) -> Replies {
        let Some(part) = self.flights.get(&(request, flight)).map(|flight| flight.part) else {
            return Vec::new();
        };
        let Some(pending) = self.requests.get_mut(&request) else {
            return Vec::new();
        };
        if let (Some(part), Some(scores)) =
            (pending.parts.get_mut(part), tensors.into_iter().next())
        {
            part.standby = Some((exit, scores));
        }
        Vec::new()
    }
}
