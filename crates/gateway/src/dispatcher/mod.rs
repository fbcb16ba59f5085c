//! The dispatcher: it looks a task's route up, writes it into the request's messages, and waits for the
//! answer.
//!
//! All waiting is here: a request is sent to the blocks of its route only when each of them has room for
//! it, so that no block ever waits for another and no queue but this one grows. What can't be finished
//! in time is refused at once. A request ends in exactly one answer, whatever happens to blocks.

mod admission;
mod arriving;
mod request;
mod state;
mod statistics;
mod table;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tessera_core::{DType, Device, Error, Location, Result, Tensor, TensorMut, display_shape};
use tessera_graph::check_inputs;
use tessera_plan::{Log, Outcome, Record, Route, UnitId};
use tessera_tensormq::{
    Courier, Deadline, MOST_DEPTH, Message, Peers, Received, RequestId, TraceContext, Wait,
};
use tokio::sync::{Notify, oneshot};

use crate::service::{Answer, Refusal, Request, TaskStatistics};
use arriving::Arriving;
use request::{Pending, Reply};
use state::{Outgoing, State};
pub use table::{TaskEntry, UnitEntry};

/// The inbox that answers come to.
const HOME: &str = "home";

/// Makes memory for an input.
pub type MakeMemory = Arc<dyn Fn(DType, &[usize]) -> Result<TensorMut> + Send + Sync>;

/// Brings an input that is on a GPU to where an instance of another process reads it: one that reads
/// tensors on this device, or on the CPU where there is none.
pub type ShareInput = Arc<dyn Fn(Tensor, Option<Device>) -> Result<Tensor> + Send + Sync>;

/// What a dispatcher works with.
pub struct DispatcherOptions {
    /// The transport.
    pub courier: Courier,
    /// Who it sends to.
    pub peers: Arc<Peers>,
    /// Cores that blocks compute on: a first guess at how many requests are computed at once.
    pub cores: usize,
    /// Makes memory that blocks can read.
    pub memory: MakeMemory,
    /// Brings inputs to other processes.
    pub share: ShareInput,
    /// Most bytes of inputs that may wait.
    pub most_waiting: usize,
    /// Is told of every request that ended.
    pub observer: Arc<dyn Observer>,
}

/// Is told what happens.
pub trait Observer: Send + Sync {
    /// A request has ended. Must not wait.
    fn ended(&self, ended: &Ended<'_>);
}

/// A request that has ended.
#[derive(Debug)]
pub struct Ended<'a> {
    /// The task.
    pub task: &'a str,
    /// Its version.
    pub version: &'a str,
    /// Our number of the request.
    pub request: RequestId,
    /// The client's name for it; may be empty.
    pub id: &'a str,
    /// Rows of its batch.
    pub rows: usize,
    /// When it was accepted, by the host's monotonic clock, in nanoseconds.
    pub accepted: u64,
    /// When it ended, by the same clock.
    pub ended: u64,
    /// What happened on its way, per part of it.
    pub records: &'a [Record],
    /// Per row, the exit that was taken.
    pub exits: &'a [Option<String>],
    /// How it ended.
    pub outcome: EndedAs<'a>,
    /// How often parts of it were sent again.
    pub retries: u32,
    /// The trace that it is part of.
    pub trace: Option<TraceContext>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub enum EndedAs<'a> {
    /// With an answer.
    Answered,
    /// With an answer of an exit that was not certain enough, and why.
    Degraded(&'a str),
    /// With an error.
    Failed(&'a Error),
    /// Refused, as it could not be finished in time.
    Refused(&'a Error),
    /// The client went away.
    GivenUp,
}

/// Takes requests to blocks and answers back.
#[derive(Clone)]
pub struct Dispatcher(Arc<Inner>);

struct Inner {
    peers: Arc<Peers>,
    memory: MakeMemory,
    share: ShareInput,
    observer: Arc<dyn Observer>,
    state: Mutex<State>,
    next: AtomicU64,
    /// The upper half of request numbers, another in every run of the server.
    run: u64,
    /// Rung when a request has ended.
    ended: Notify,
    is_closing: AtomicBool,
    /// Tells blocks that nobody waits for a request any more.
    give_up: OnceLock<Box<dyn Fn(RequestId) + Send + Sync>>,
}

impl Dispatcher {
    /// Starts a dispatcher without tasks, on the runtime that this is called on.
    pub fn start(options: DispatcherOptions) -> Result<Self> {
        let DispatcherOptions { courier, peers, cores, memory, share, most_waiting, observer } =
            options;
        let mut inbox = peers.inbox(HOME, MOST_DEPTH)?;
        peers.add(HOME, inbox.address().clone());
        let inner = Arc::new(Inner {
            peers,
            memory,
            share,
            observer,
            state: Mutex::new(State::new(cores, most_waiting)),
            next: AtomicU64::new(1),
            run: courier.id(),
            ended: Notify::new(),
            is_closing: AtomicBool::new(false),
            give_up: OnceLock::new(),
        });
        let receiver = Arc::downgrade(&inner);
        let arriving = Arriving::start(Arc::downgrade(&inner))?;
        tokio::spawn(async move {
            loop {
                let received =
                    match inbox.receive_async(Wait::at_most(Duration::from_secs(1))).await {
                        Ok(received) => received,
                        Err(error) => {
                            tracing::error!(%error, "answers can't be received any more");
                            return;
                        }
                    };
                let Some(inner) = receiver.upgrade() else {
                    return;
                };
                if let Some(Received::Message(message)) = received
                    && let Some(there) = arriving.take(message)
                {
                    inner.came_home(there, true);
                }
            }
        });
        Ok(Self(inner))
    }

    /// What is to be done where nobody waits any more for a request that is on its way. Set once.
    pub fn when_given_up(&self, what: impl Fn(RequestId) + Send + Sync + 'static) {
        self.0.give_up.get_or_init(|| Box::new(what));
    }

    /// Puts another table in place of the one there is. Requests that were accepted before keep theirs;
    /// the number that is returned tells [`Dispatcher::drained`] which those are.
    pub fn swap(&self, routes: Vec<Route>, units: HashMap<UnitId, UnitEntry>) -> u64 {
        let mut state = self.0.lock();
        let before = state.swap(routes, units);
        self.0.pump(state);
        before
    }

    /// Waits until every request is done that was accepted under the table `before` or an earlier one.
    pub async fn drained(&self, before: u64) {
        loop {
            let ended = self.0.ended.notified();
            if self.0.lock().is_drained(before) {
                return;
            }
            // Looked at again now and then, should a ring be missed.
            tokio::time::timeout(Duration::from_millis(200), ended).await.ok();
        }
    }

    /// Whether a unit is part of the table, or of one that a request still uses.
    pub fn uses(&self, unit: &UnitId) -> bool {
        self.0.lock().uses(unit)
    }

    /// An instance takes requests from now on. Connects to it first, which may take a moment.
    pub fn instance_up(&self, unit: &UnitId, instance: &str) {
        let mut tries = (0..3).map(|_| self.0.peers.sender(instance));
        if let Err(error) =
            tries.find(Result::is_ok).unwrap_or_else(|| self.0.peers.sender(instance))
        {
            // Whoever watches over it finds out, and starts another.
            tracing::error!(block = instance, %error, "an instance can't be reached");
            return;
        }
        let mut state = self.0.lock();
        state.instance_up(unit, instance);
        self.0.pump(state);
    }

    /// Sends an instance no more requests; what is on its way to it goes on.
    pub fn retire(&self, unit: &UnitId, instance: &str) {
        self.0.lock().retire(unit, instance);
    }

    /// Waits until nothing passes an instance any more.
    pub async fn retired(&self, instance: &str) {
        while self.0.lock().is_passed(instance) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// An instance is gone; what was on its way to it or through it is sent again.
    pub fn instance_down(&self, unit: &UnitId, instance: &str, why: &str, comes_back: bool) {
        let mut state = self.0.lock();
        let replies = state.instance_down(unit, instance, why, comes_back);
        self.0.deliver(&mut state, replies);
        self.0.pump(state);
    }

    /// A request is lost on its way: whatever comes of that try is no answer, and it is sent again.
    pub fn lost(&self, request: RequestId, part: u32) {
        let mut state = self.0.lock();
        let replies = state.lost(request, part, "a block failed to compute what others waited for");
        self.0.deliver(&mut state, replies);
        self.0.pump(state);
    }

    /// The tasks there are.
    pub fn tasks(&self) -> Vec<Arc<TaskEntry>> {
        self.0.lock().tasks()
    }

    /// One task.
    pub fn task(&self, name: &str, version: &str) -> Result<Arc<TaskEntry>> {
        self.0.lock().task(name, version)
    }

    /// Why a task does not answer; `None` where it does.
    pub fn unavailable(&self, task: &TaskEntry) -> Option<String> {
        self.0.lock().unavailable(task)
    }

    /// How many requests of a task wait or are on their way.
    pub fn in_flight(&self, task: &str) -> usize {
        self.0.lock().in_flight(task)
    }

    /// How many requests are on their way to or through an instance.
    pub fn at_instance(&self, instance: &str) -> usize {
        self.0.lock().at_instance(instance)
    }

    /// How many requests wait to be sent.
    pub fn waiting(&self) -> usize {
        self.0.lock().waiting()
    }

    /// What a task did.
    pub fn statistics(&self, name: &str) -> Result<TaskStatistics> {
        Ok(self.task(name, "")?.statistics())
    }

    /// Sets the threshold of an exit; requests that are accepted from now on use it.
    pub fn set_threshold(&self, task: &str, exit: &str, threshold: f32) -> Result<()> {
        self.task(task, "")?.set_threshold(exit, threshold)
    }

    /// Memory for an input.
    pub fn memory(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
        (self.0.memory)(dtype, shape)
    }

    /// Takes no more requests.
    pub fn close(&self) {
        self.0.is_closing.store(true, Ordering::Release);
    }

    /// Waits until no request is left.
    pub async fn idle(&self) {
        self.drained(u64::MAX).await;
    }

    /// Answers a request. Dropped before it is done, the request is given up.
    pub async fn infer(&self, request: Request) -> Result<Answer, Refusal> {
        let task = request.task.clone();
        let (number, answer, deadline, degrades_at) = self.0.accept(request)?;
        let guard = GiveUp { inner: &self.0, number };
        let mut answer = answer;
        if let Some(at) = degrades_at {
            let early = tokio::time::timeout(at.remaining(), &mut answer).await;
            if let Ok(result) = early {
                return finish(result, guard);
            }
            self.0.degrade(number, "the deadline was near");
        }
        match tokio::time::timeout(deadline.remaining(), answer).await {
            Ok(result) => finish(result, guard),
            Err(_) => {
                let error = Error::timed_out(format!(
                    "task \"{task}\": the deadline passed before there was an answer"
                ));
                self.0.end_late(number, &error);
                std::mem::forget(guard);
                Err(error.into())
            }
        }
    }
}

fn finish(
    result: Result<Reply, oneshot::error::RecvError>,
    guard: GiveUp<'_>,
) -> Result<Answer, Refusal> {
    // It has ended: there is nothing to give up.
    std::mem::forget(guard);
    result.unwrap_or_else(|_| Err(Error::lost("the dispatcher is gone").into()))
}

/// Gives a request up whose client went away.
struct GiveUp<'a> {
    inner: &'a Inner,
    number: RequestId,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        let pending = state.remove(self.number);
        if let Some(pending) = &pending {
            self.inner.observe(pending, EndedAs::GivenUp, &[]);
        }
        let is_on_its_way = pending.is_some() && state.has_flights(self.number);
        self.inner.pump(state);
        if is_on_its_way && let Some(give_up) = self.inner.give_up.get() {
            give_up(self.number);
        }
        self.inner.ended.notify_waiters();
    }
}

/// A request that was accepted: its number, its answer to come, its deadline, and when a degraded answer
/// is better than none.
type Accepted = (RequestId, oneshot::Receiver<Reply>, Deadline, Option<Deadline>);

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn accept(&self, request: Request) -> Result<Accepted, Refusal> {
        if self.is_closing.load(Ordering::Acquire) {
            return Err(Error::lost("the server is about to stop").into());
        }
        let entry = self.lock().task(&request.task, &request.version)?;
        let within = |error: Error| error.within(format!("task \"{}\"", request.task));
        let inputs = ordered(&entry.route, request.inputs).map_err(within)?;
        check_inputs(&entry.route.inputs, &inputs).map_err(within)?;
        let rows = rows(&entry.route, &inputs).map_err(within)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let number = RequestId(u128::from(self.run) << 64 | u128::from(number));
        let now = Deadline::now();
        let allowed = request.timeout.unwrap_or(entry.route.deadline);
        let deadline = Deadline::after(allowed);
        let (sender, answer) = oneshot::channel();
        let pending = Pending::new(
            number,
            request.id,
            Arc::clone(&entry),
            inputs,
            rows,
            now.nanoseconds(),
            deadline,
            request.trace,
            sender,
        )?;
        let mut state = self.lock();
        if let Some(why) = state.unavailable(&entry) {
            let error = within(Error::lost(why));
            self.observe(&pending, EndedAs::Failed(&error), &[]);
            return Err(error.into());
        }
        if let Err(refusal) = state.admit(&entry, rows, pending.bytes, allowed) {
            let refusal = Refusal { error: within(refusal.error), ..refusal };
            self.observe(&pending, EndedAs::Refused(&refusal.error), &[]);
            return Err(refusal);
        }
        state.insert(pending);
        self.pump(state);
        let degrades = entry.route.degrade && !entry.route.exits.is_empty();
        let degrades_at = degrades.then(|| {
            // Early enough to be there in time.
            let early = (allowed / 20).min(Duration::from_millis(20));
            Deadline::after(allowed.saturating_sub(early))
        });
        Ok((number, answer, deadline, degrades_at))
    }

    /// Sends what can be sent.
    fn pump<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        loop {
            let (outgoing, replies) = state.sendable();
            self.deliver(&mut state, replies);
            drop(state);
            let mut failed = false;
            for departing in outgoing {
                failed |= !self.send(departing);
            }
            if !failed {
                return;
            }
            // Those that failed leave room for others.
            state = self.lock();
        }
    }

    /// Sends a message, and returns whether it is either on its way or to be sent again.
    fn send(&self, departing: Outgoing) -> bool {
        let Outgoing { instance, message, request, flight } = departing;
        let message = match self.within_reach(&instance, message) {
            Ok(message) => message,
            Err(error) => {
                let mut state = self.lock();
                let replies = state.not_sent(request, flight, error);
                self.deliver(&mut state, replies);
                return false;
            }
        };
        if let Err(not_sent) = self.peers.send(&instance, message, Wait::No) {
            let mut state = self.lock();
            let why = format!("instance {instance}: {}", not_sent.error);
            let replies = state.lost(request, flight, &why);
            self.deliver(&mut state, replies);
            // What is sent again goes out with whatever happens next: at the latest when the instance
            // is back.
        }
        true
    }

    /// The same message with tensors that its receiver can read: what a client has on a GPU is handed over
    /// as it is within the process alone, to blocks that run on one.
    fn within_reach(&self, instance: &str, mut message: Message) -> Result<Message> {
        let is_on_host = |tensor: &Tensor| tensor.location() == Location::Host;
        if message.tensors().iter().all(is_on_host) || self.peers.is_here_on_gpu(instance) {
            return Ok(message);
        }
        let device = self.peers.device_of(instance);
        let tensors = message.take_tensors().into_iter().map(|tensor| match is_on_host(&tensor) {
            true => Ok(tensor),
            false => (self.share)(tensor, device),
        });
        let tensors = tensors.collect::<Result<_>>()?;
        Ok(message.with_tensors(tensors))
    }

    /// A message came back; its tensors are there, or else not even though its deadline has passed.
    fn came_home(&self, mut message: Message, is_there: bool) {
        let (request, tensors) = (message.request(), message.take_tensors());
        let parsed = {
            let mut path = message.path();
            let outcome = path.next().map(Outcome::parse);
            outcome.zip(path.next().map(Log::parse))
        };
        drop(message);
        let Some((Ok(outcome), Ok(log))) = parsed else {
            tracing::error!(%request, "an answer can't be read");
            return;
        };
        let (outcome, tensors) = match is_there {
            true => (outcome, tensors.into_iter().map(Tensor::unheld).collect()),
            false => (Outcome::Late, Vec::new()),
        };
        let mut state = self.lock();
        let replies = state.came_home(request, outcome, log, tensors);
        self.deliver(&mut state, replies);
        self.pump(state);
    }

    /// Ends requests whose answers are there.
    fn deliver(&self, state: &mut State, replies: Vec<(RequestId, Reply)>) {
        for (number, reply) in replies {
            let Some(mut pending) = state.remove(number) else {
                continue;
            };
            match &reply {
                Ok(answer) => {
                    let outcome = match &answer.degraded {
                        Some(why) => EndedAs::Degraded(why),
                        None => EndedAs::Answered,
                    };
                    self.observe(&pending, outcome, &answer.exits);
                }
                Err(refusal) => self.observe(&pending, EndedAs::Failed(&refusal.error), &[]),
            }
            if let Some(answer) = pending.answer.take() {
                // A client that went away needs no answer.
                drop(answer.send(reply));
            }
            self.ended.notify_waiters();
        }
    }

    /// Answers from an exit that was not certain enough, where there is one for every row.
    fn degrade(&self, number: RequestId, why: &str) {
        let mut state = self.lock();
        if let Some(reply) = state.degraded(number, why) {
            self.deliver(&mut state, vec![(number, reply)]);
            self.pump(state);
        }
    }

    /// A request whose deadline has passed.
    fn end_late(&self, number: RequestId, error: &Error) {
        let mut state = self.lock();
        if let Some(pending) = state.remove(number) {
            self.observe(&pending, EndedAs::Failed(error), &[]);
        }
        self.pump(state);
        self.ended.notify_waiters();
    }

    fn observe(&self, pending: &Pending, outcome: EndedAs<'_>, exits: &[Option<String>]) {
        let ended = Ended {
            task: &pending.entry.route.task,
            version: &pending.entry.route.version,
            request: pending.number,
            id: &pending.id,
            rows: pending.rows,
            accepted: pending.accepted,
            ended: Deadline::now().nanoseconds(),
            records: &pending.records,
            exits,
            outcome,
            retries: pending.retries,
            trace: pending.trace,
        };
        pending.entry.note(&ended);
        self.observer.ended(&ended);
    }
}

/// Inputs in the order of the route.
fn ordered(route: &Route, inputs: Vec<(String, Tensor)>) -> Result<Vec<Tensor>> {
    let names = || {
        let names: Vec<&str> = route.inputs.iter().map(|port| port.name.as_str()).collect();
        names.join(", ")
    };
    let mut found: Vec<Option<Tensor>> = vec![None; route.inputs.len()];
    for (name, tensor) in inputs {
        let Some(index) = route.inputs.iter().position(|port| port.name == name) else {
            return Err(Error::invalid(format!("unknown input \"{name}\", expected {}", names())));
        };
        if found[index].replace(tensor).is_some() {
            return Err(Error::invalid(format!("input \"{name}\" is there twice")));
        }
    }
    let missing = found.iter().position(Option::is_none);
    match missing {
        Some(index) => {
            let port = &route.inputs[index];
            Err(Error::invalid(format!(
                "input \"{}\" is missing, expected {}",
                port.name, port.tensor_type
            )))
        }
        None => Ok(found.into_iter().flatten().collect()),
    }
}

/// The rows of a request.
fn rows(route: &Route, inputs: &[Tensor]) -> Result<usize> {
    if route.max_rows == 0 {
        return Ok(1);
    }
    let first = inputs.first();
    let rows = first.and_then(|input| input.shape().first()).copied().unwrap_or(1);
    if rows == 0 {
        let shown = first.map(|input| display_shape(input.dtype(), input.shape()));
        return Err(Error::invalid(format!("a batch without rows: {}", shown.unwrap_or_default())));
    }
    if rows > route.max_rows {
        return Err(Error::invalid(format!(
            "a batch of {rows} rows, expected at most {}",
            route.max_rows
        )));
    }
    Ok(rows)
}
