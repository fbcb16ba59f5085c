//! A worker: an instance of a unit. It receives requests, puts them into batches, runs them, and sends
//! each on to where its path says.
//!
//! Several threads take turns at one inbox: whoever has it takes a batch and waits for a share of the
//! cores, then leaves the inbox to the next and runs. So nothing is handed from a thread that receives
//! to one that computes, and requests that come while there is no core free go into the batch.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tessera_core::{Device, Error, ErrorKind, Location, Result, Tensor};
use tessera_engine::to_host;
use tessera_graph::{ScoreKind, normalised_entropy};
use tessera_plan::{Batching, ExitLeg, Leg, Log, Outcome, Record};
use tessera_tensormq::{
    Address, Deadline, Inbox, InboxOptions, MOST_DEPTH, Message, Peers, Received, Wait,
};

use crate::batch;
use crate::cores::{Cores, Share};
use crate::given_up::GivenUp;
use crate::lock;
use crate::memory::Memory;
use crate::reach::on_host;
use crate::unit::LoadedUnit;

/// How often a worker that has nothing to do looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// How long those of one batch may be apart when they come to the next block.
const REUNITE: Duration = Duration::from_micros(300);

/// Most rows that parts of one request are put together to again.
const MOST_ROWS_OF_ONE: usize = 128;

/// What a worker works with.
pub struct WorkerParts {
    /// Its name, by which others send to it.
    pub name: String,
    /// What it runs.
    pub unit: LoadedUnit,
    /// Whether requests are put together.
    pub batching: Option<Batching>,
    /// Who gives out cores.
    pub cores: Arc<dyn Cores>,
    /// Memory for what it computes.
    pub memory: Arc<dyn Memory>,
    /// Who it sends to.
    pub peers: Arc<Peers>,
    /// How many requests may be computed at the same time.
    pub at_once: NonZeroUsize,
    /// The requests that nobody waits for any more.
    pub given_up: Arc<GivenUp>,
}

/// A worker that runs.
pub struct Worker {
    shared: Arc<Shared>,
    address: Address,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    parts: WorkerParts,
    door: Mutex<Door>,
    stopping: AtomicBool,
    /// Per thread, since when it computes, by the host's clock; 0 while it does not.
    busy: Vec<AtomicU64>,
    done: AtomicU64,
}

/// Where requests come in. One thread at a time.
struct Door {
    inbox: Inbox,
    /// Received, and not fit for the batch that was being put together.
    held: VecDeque<Item>,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pulse {
    /// For how long the longest run has been going on, in milliseconds; 0 while nothing runs.
    pub busy_ms: u64,
    /// Requests that were run.
    pub done: u64,
}

impl Worker {
    /// Starts the threads of a worker.
    pub fn start(parts: WorkerParts) -> Result<Self> {
        let options = InboxOptions { depth: MOST_DEPTH, ..InboxOptions::default() };
        let inbox = parts.peers.courier().inbox(&parts.name, &options)?;
        let mut address = inbox.address().clone();
        address.device = Some(parts.unit.device()).filter(|device| *device != Device::Cpu);
        let count = parts.at_once.get();
        let shared = Arc::new(Shared {
            door: Mutex::new(Door { inbox, held: VecDeque::new() }),
            stopping: AtomicBool::new(false),
            busy: (0..count).map(|_| AtomicU64::new(0)).collect(),
            done: AtomicU64::new(0),
            parts,
        });
        let mut worker = Self { shared, address, threads: Vec::with_capacity(count) };
        for thread in 0..count {
            let shared = Arc::clone(&worker.shared);
            let name = format!("block-{}", &shared.parts.name);
            let spawned =
                std::thread::Builder::new().name(name).spawn(move || while shared.turn(thread) {});
            let spawned = spawned.map_err(|error| Error::io("a thread for a block", &error))?;
            worker.threads.push(spawned);
        }
        Ok(worker)
    }

    /// Where to send to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What it is doing.
    pub fn pulse(&self) -> Pulse {
        let now = Deadline::now().nanoseconds();
        let since = self.shared.busy.iter().map(|busy| busy.load(Ordering::Relaxed));
        let longest = since.filter(|&since| since > 0).map(|since| now.saturating_sub(since)).max();
        Pulse {
            busy_ms: longest.map_or(0, |ns| (ns / 1_000_000).max(1)),
            done: self.shared.done.load(Ordering::Relaxed),
        }
    }

    /// Whether all its threads are there still.
    pub fn is_alive(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Stops it: what it has begun it ends, what waits in its inbox it leaves.
    pub fn stop(self) {
        self.shared.stopping.store(true, Ordering::Release);
        for thread in self.threads {
            // One that panicked has told so.
            thread.join().ok();
        }
    }

    /// Leaves it alone: it is to stop, and nobody waits for it.
    pub fn abandon(self) {
        self.shared.stopping.store(true, Ordering::Release);
    }
}

/// A request at this worker.
struct Item {
    message: Message,
    leg: Leg,
    log: Log,
    inputs: Vec<Tensor>,
    rows: Option<usize>,
}

impl Shared {
    /// One batch, from the inbox to the next block; `false` when it is to stop.
    fn turn(&self, thread: usize) -> bool {
        let mut door = lock(&self.door);
        if self.stopping.load(Ordering::Acquire) {
            return false;
        }
        let Some(first) = self.next(&mut door, Wait::at_most(LOOK)) else {
            return true;
        };
        let mut batch = vec![first];
        self.reunite(&mut door, &mut batch);
        self.gather(&mut door, &mut batch);
        let since = batch.iter().map(|item| item.log.accepted).min().unwrap_or(0);
        let room = self.parts.unit.wait_for_room();
        let share = match room.and_then(|()| self.parts.cores.take(since)) {
            Ok(share) => share,
            Err(error) => {
                self.fail(batch, &error);
                return !self.stopping.load(Ordering::Acquire);
            }
        };
        self.top_up(&mut door, &mut batch);
        self.round(&mut door, &mut batch);
        drop(door);
        let started = Deadline::now().nanoseconds();
        self.busy[thread].store(started, Ordering::Relaxed);
        self.process(batch, share, started);
        self.busy[thread].store(0, Ordering::Relaxed);
        true
    }

    /// The next request that is in time.
    fn next(&self, door: &mut Door, wait: Wait) -> Option<Item> {
        loop {
            if let Some(item) = door.held.pop_front() {
                if let Some(item) = self.in_time(item) {
                    return Some(item);
                }
                continue;
            }
            match door.inbox.receive(wait)? {
                Received::Message(message) => {
                    if let Some(item) = self.read(message).and_then(|item| self.in_time(item)) {
                        return Some(item);
                    }
                }
                // Whoever waits for what can't be read learns from its sender's end.
                _ => continue,
            }
        }
    }

    /// Reads what a message asks for; one that makes no sense goes home.
    fn read(&self, message: Message) -> Option<Item> {
        let parsed = {
            let mut path = message.path();
            let leg = path.next().map(Leg::parse);
            let log = path.last().map(Log::parse);
            leg.zip(log)
        };
        let (leg, log) = match parsed {
            Some((Ok(leg), Ok(log))) => (leg, log),
            // Without a log there is nobody to tell.
            Some((Err(_), Ok(log))) => {
                let outcome = Outcome::Failed("the path of a message can't be read".to_owned());
                self.home(&message, &log, &outcome, Vec::new());
                return None;
            }
            _ => return None,
        };
        let inputs: Option<Vec<Tensor>> =
            leg.inputs.iter().map(|&index| message.tensors().get(index).cloned()).collect();
        let Some(inputs) = inputs else {
            let outcome = Outcome::Failed("a message has fewer tensors than its path".to_owned());
            self.home(&message, &log, &outcome, Vec::new());
            return None;
        };
        let rows = batch::rows(&inputs);
        Some(Item { message, leg, log, inputs, rows })
    }

    /// Drops a request whose deadline has passed, or that nobody waits for any more.
    fn in_time(&self, item: Item) -> Option<Item> {
        let is_late = item.message.deadline().is_some_and(Deadline::has_passed);
        if is_late || self.parts.given_up.has(item.message.request()) {
            self.home(&item.message, &item.log, &Outcome::Late, Vec::new());
            return None;
        }
        Some(item)
    }

    /// Most rows of a batch that begins with this request.
    fn most_rows(&self, first: &Item) -> usize {
        match (first.rows, self.parts.batching) {
            (None, _) => 0,
            (Some(_), Some(batching)) => batching.max_rows,
            (Some(_), None) => MOST_ROWS_OF_ONE,
        }
    }

    fn joins(&self, batch: &[Item], item: &Item) -> bool {
        let Some(first) = batch.first() else {
            return false;
        };
        let total: usize = batch.iter().filter_map(|item| item.rows).sum();
        let may =
            self.parts.batching.is_some() || item.message.request() == first.message.request();
        let fits = item.rows.is_some_and(|rows| total + rows <= self.most_rows(first));
        may && fits && batch::fit(&first.inputs, &item.inputs)
    }

    /// Waits a moment for those that were in one batch at the block before: they are on their way.
    ///
    /// A GPU is told quickly what to do, and takes the first of them at once; so batches would fall apart from block
    /// to block.
    fn reunite(&self, door: &mut Door, batch: &mut Vec<Item>) {
        let Some(first) = batch.first() else { return };
        let together = first.log.records.last().map_or(0, |record| record.batch as usize);
        let most = together.min(self.most_rows(first));
        if self.parts.unit.device() == Device::Cpu || self.parts.batching.is_none() {
            return;
        }
        let until = Deadline::after(REUNITE);
        loop {
            self.top_up(door, batch);
            let total: usize = batch.iter().filter_map(|item| item.rows).sum();
            if total >= most || !door.held.is_empty() || until.has_passed() {
                return;
            }
            let Some(item) = self.next(door, Wait::Until(until)) else { return };
            match self.joins(batch, &item) {
                true => batch.push(item),
                false => door.held.push_back(item),
            }
        }
    }

    /// Waits for others, for as long as it was told and every deadline allows.
    fn gather(&self, door: &mut Door, batch: &mut Vec<Item>) {
        self.top_up(door, batch);
        let Some(batching) = self.parts.batching.filter(|batching| !batching.max_wait.is_zero())
        else {
            return;
        };
        let patience = Deadline::after(batching.max_wait);
        loop {
            let total: usize = batch.iter().filter_map(|item| item.rows).sum();
            if total >= batching.max_rows || batch.iter().any(|item| item.rows.is_none()) {
                return;
            }
            // Half of the time that is left is for waiting, the rest for the run.
            let tightest = batch.iter().filter_map(|item| item.message.deadline()).min();
            let until = match tightest {
                Some(deadline) => patience.min(Deadline::after(deadline.remaining() / 2)),
                None => patience,
            };
            if until.has_passed() || !door.held.is_empty() {
                return;
            }
            let Some(item) = self.next(door, Wait::Until(until)) else {
                return;
            };
            if self.joins(batch, &item) {
                batch.push(item);
            } else {
                door.held.push_back(item);
            }
        }
    }

    /// Adds what is there.
    fn top_up(&self, door: &mut Door, batch: &mut Vec<Item>) {
        let is_one = batch.first().is_none_or(|first| first.rows.is_none());
        if is_one {
            return;
        }
        let mut held = std::mem::take(&mut door.held);
        while let Some(item) = held.pop_front() {
            match self.joins(batch, &item) {
                true => batch.push(item),
                false => door.held.push_back(item),
            }
        }
        // What was held back stays in front of what comes.
        while door.held.len() < MOST_DEPTH as usize {
            let Some(received) = door.inbox.try_receive() else {
                return;
            };
            let Received::Message(message) = received else {
                continue;
            };
            let Some(item) = self.read(message).and_then(|item| self.in_time(item)) else {
                continue;
            };
            if self.joins(batch, &item) {
                batch.push(item);
            } else {
                door.held.push_back(item);
                return;
            }
        }
    }

    /// Leaves the last requests of a batch for the next one, so that it has a power of two of rows.
    ///
    /// On a GPU, algorithms are chosen and memory is laid out when a number of rows comes first: there should
    /// be few.
    fn round(&self, door: &mut Door, batch: &mut Vec<Item>) {
        if self.parts.unit.device() == Device::Cpu || batch.iter().any(|item| item.rows.is_none()) {
            return;
        }
        let mut total: usize = batch.iter().filter_map(|item| item.rows).sum();
        while batch.len() > 1 && !total.is_power_of_two() {
            let Some(last) = batch.pop() else { return };
            total -= last.rows.unwrap_or(0);
            door.held.push_front(last);
        }
    }

    /// Runs a batch and sends each request on.
    fn process(&self, batch: Vec<Item>, mut share: Share, started: u64) {
        let deadline = batch.iter().filter_map(|item| item.message.deadline()).max();
        let wait = deadline.map_or(Wait::at_most(Duration::from_secs(10)), Wait::Until);
        let rows: Vec<usize> = batch.iter().map(|item| item.rows.unwrap_or(1)).collect();
        let total: usize = rows.iter().sum();
        let mut computed = 0;
        let run = || -> Result<Vec<Vec<Tensor>>> {
            let inputs = self.join(&batch, wait)?;
            let memory = &*self.parts.memory;
            let begun = Deadline::now().nanoseconds();
            let outputs = self.parts.unit.run(share.cores(), &inputs, memory, wait)?;
            computed = Deadline::now().nanoseconds().saturating_sub(begun);
            share.finish();
            batch::split(&outputs, &rows)
        };
        let outputs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err(Error::engine("the block panicked")));
        match outputs {
            Ok(outputs) => {
                for ((item, outputs), rows) in batch.into_iter().zip(outputs).zip(rows) {
                    let time = Time { started, computed, batch: total, rows };
                    // Before it is sent on: whoever has the answer may ask for the count.
                    self.done.fetch_add(1, Ordering::Relaxed);
                    self.onward(item, outputs, time);
                }
                // Not before it is sent on: whoever computes next would take the core that this needs,
                // and the request would wait for milliseconds.
                drop(share);
            }
            // One request may have spoilt it for the others.
            Err(error) if batch.len() > 1 && error.kind() != ErrorKind::TimedOut => {
                drop(share);
                for item in batch {
                    match self.parts.cores.take(item.log.accepted) {
                        Ok(share) => self.process(vec![item], share, started),
                        Err(error) => self.fail(vec![item], &error),
                    }
                }
            }
            Err(error) => self.fail(batch, &error),
        }
    }

    /// The inputs of a batch.
    fn join(&self, batch: &[Item], wait: Wait) -> Result<Vec<Tensor>> {
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        (0..first.inputs.len())
            .map(|input| {
                let parts: Vec<&Tensor> = batch.iter().map(|item| &item.inputs[input]).collect();
                batch::join(&parts, &*self.parts.memory, wait)
            })
            .collect()
    }

    /// Sends a request to its next leg, or home.
    fn onward(&self, item: Item, outputs: Vec<Tensor>, time: Time) {
        let Item { mut message, leg, mut log, inputs, .. } = item;
        drop(inputs);
        let mut tensors = message.take_tensors();
        if let Some(exit) = &leg.exit {
            let leaves = match confident(exit, &outputs) {
                Ok(leaves) => leaves,
                Err(error) => {
                    let outcome = Outcome::Failed(error.to_string());
                    return self.home(&message, &log, &outcome, Vec::new());
                }
            };
            if leaves {
                self.record(&mut log, time);
                return self.home(&message, &log, &Outcome::Exit(exit.number), outputs);
            }
            if exit.standby {
                self.home(&message, &log, &Outcome::Standby(exit.number), outputs);
            }
        } else {
            tensors.extend(outputs);
        }
        let kept: Option<Vec<Tensor>> =
            leg.keep.iter().map(|&index| tensors.get(index).cloned()).collect();
        drop(tensors);
        let Some(kept) = kept else {
            let outcome = Outcome::Failed("a block gave fewer outputs than its path".to_owned());
            return self.home(&message, &log, &outcome, Vec::new());
        };
        self.record(&mut log, time);
        let steps = message.path().count();
        if steps <= 2 {
            return self.home(&message, &log, &Outcome::Done, kept);
        }
        let text = log.encode();
        let path: Vec<&str> =
            message.path().skip(1).take(steps - 2).chain([text.as_str()]).collect();
        let Some(next) = path.first().and_then(|step| Leg::parse(step).ok()) else {
            let outcome = Outcome::Failed("the path of a message can't be read".to_owned());
            return self.home(&message, &log, &outcome, Vec::new());
        };
        let kept = match self.stays(&next.instance, &kept) {
            true => Ok(kept),
            false => on_host(kept),
        };
        let sent = kept.and_then(|kept| {
            let onward = like(&message, &path)?.with_tensors(kept);
            Ok(self.parts.peers.send(&next.instance, onward, until(&message))?)
        });
        if let Err(error) = sent {
            let outcome = match error.kind() {
                ErrorKind::TimedOut => Outcome::Late,
                ErrorKind::Lost => Outcome::Lost(next.instance),
                _ => Outcome::Failed(error.to_string()),
            };
            self.home(&message, &log, &outcome, Vec::new());
        }
    }

    /// Whether tensors stay on their GPU on the way to an instance: within the process, and to another one that
    /// can open the memory that they are in and reads them there.
    fn stays(&self, instance: &str, tensors: &[Tensor]) -> bool {
        let peers = &self.parts.peers;
        let device = peers.device_of(instance);
        let reaches = |tensor: &Tensor| match tensor.location() {
            Location::Cuda(number) => {
                let pooled = tensor.region().is_some_and(|(region, _)| region.pooled().is_some());
                pooled && device == Some(Device::Cuda(number))
            }
            _ => true,
        };
        peers.is_here(instance) || tensors.iter().all(reaches)
    }

    /// Writes down what happened here.
    fn record(&self, log: &mut Log, time: Time) {
        let now = Deadline::now().nanoseconds();
        let here = now.saturating_sub(time.started);
        log.records.push(Record {
            instance: self.parts.name.clone(),
            started: time.started,
            waited: time.started.saturating_sub(log.sent),
            computed: time.computed,
            overhead: here.saturating_sub(time.computed),
            batch: time.batch as u64,
            rows: time.rows as u64,
        });
        log.sent = now;
    }

    fn fail(&self, batch: Vec<Item>, error: &Error) {
        let outcome = match error.kind() {
            ErrorKind::TimedOut => Outcome::Late,
            _ => Outcome::Failed(error.to_string()),
        };
        for item in batch {
            self.home(&item.message, &item.log, &outcome, Vec::new());
        }
    }

    /// Tells whoever waits for the answer.
    fn home(&self, message: &Message, log: &Log, outcome: &Outcome, tensors: Vec<Tensor>) {
        let (outcome, tensors) = match on_host(tensors) {
            Ok(tensors) => (outcome.clone(), tensors),
            Err(error) => (Outcome::Failed(error.to_string()), Vec::new()),
        };
        let sent = like(message, &[&outcome.encode(), &log.encode()])
            .map(|answer| answer.with_tensors(tensors))
            .and_then(|answer| Ok(self.parts.peers.send(&log.home, answer, until(message))?));
        if let Err(error) = sent {
            // Whoever waited is gone, or has given up.
            let (block, request) = (&self.parts.name, message.request());
            tracing::debug!(task = message.task(), %block, %request, %error, "no answer sent");
        }
    }
}

/// When a batch began to run, how long it was computed, how many rows it had, and the request of them.
#[derive(Clone, Copy)]
struct Time {
    started: u64,
    computed: u64,
    batch: usize,
    rows: usize,
}

/// A message of the same request with another path.
fn like(message: &Message, path: &[&str]) -> Result<Message> {
    let mut like =
        Message::new(message.request(), message.task(), path)?.with_trace(message.trace());
    if let Some(deadline) = message.deadline() {
        like = like.with_deadline(deadline);
    }
    Ok(like)
}

/// Until when it makes sense to try to send: a little past the deadline, so that this can be told.
fn until(message: &Message) -> Wait {
    const GRACE: Duration = Duration::from_secs(1);
    let left = message.deadline().map_or(Duration::from_secs(30), Deadline::remaining);
    Wait::at_most(left + GRACE)
}

/// Whether every row of a request is certain enough to leave.
fn confident(exit: &ExitLeg, outputs: &[Tensor]) -> Result<bool> {
    let scores = outputs.first().ok_or_else(|| Error::engine("an exit gave no scores"))?;
    let scores = to_host(scores)?.settled()?;
    let values = scores
        .to_f64()
        .ok_or_else(|| Error::unsupported(format!("an exit has scores of {}", scores.dtype())))?;
    let classes = scores.shape().last().copied().unwrap_or(1).max(1);
    let kind: ScoreKind = exit.scores;
    let highest =
        values.chunks(classes).map(|row| normalised_entropy(row, kind)).fold(0.0, f64::max);
    Ok(highest <= f64::from(exit.threshold))
}
