//! A worker: an instance of a unit. It receives requests, puts them into batches, runs them, and
//! sends each on to where its path says.
//!
//! Several threads take turns at one inbox: whoever has it takes a batch and waits for a permit to
//! use cores, then leaves the inbox to the next and runs. So nothing is handed from a thread that
//! receives to one that computes, and requests that come while there is no core free go into the
//! batch.

pub(crate) mod batch_item;
mod batcher;
pub(crate) mod context;
pub(crate) mod exit;
pub(crate) mod forward;
mod heartbeat;
pub(crate) mod local_workers;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tessera_core::{Device, Error, ErrorKind, Result, lock};
use tessera_deploy::{Batching, EntropyCounts};
use tessera_tensormq::{
    Address, Deadline, InboxInterrupter, MAX_INBOX_DEPTH, Message, Peers, Wait,
};

use crate::batch::can_share_batch;
use crate::cancelled::CancelledRequests;
use crate::executor::{BatchFailure, BatchRun, ExecutedBatch};
use crate::permits::CorePermit;
use crate::unit::LoadedUnit;
use batch_item::{BatchItem, BatchTiming, ExecutedRequest, RequestEntropy};
use batcher::Batcher;
use context::WorkerContext;
pub use context::{LossReporter, NoLossReporter};
pub use heartbeat::Heartbeat;
use local_workers::LocalWorker;
pub use local_workers::LocalWorkers;

/// How long a batch whose requests have no deadline may wait for memory.
const WAIT_WITHOUT_DEADLINE: Duration = Duration::from_secs(10);

/// What a worker works with.
pub struct WorkerParts {
    /// Its name, by which others send to it.
    pub name: String,
    /// What it runs.
    pub unit: LoadedUnit,
    /// Whether requests are put together.
    pub batching: Option<Batching>,
    /// Who it sends to.
    pub peers: Arc<Peers>,
    /// How many requests may be computed at the same time.
    pub most_concurrent_runs: NonZeroUsize,
    /// The requests that nobody waits for any more.
    pub cancelled: Arc<CancelledRequests>,
    /// The workers of this process.
    pub local_workers: Arc<LocalWorkers>,
    /// Who is told of requests that were sent on and are lost.
    pub loss_reporter: Arc<dyn LossReporter>,
}

/// A worker that runs.
pub struct Worker {
    shared: Arc<WorkerInner>,
    address: Address,
    threads: Vec<JoinHandle<()>>,
}

struct WorkerInner {
    context: WorkerContext,
    unit: LoadedUnit,
    batcher: Mutex<Batcher>,
    /// Most rows of a batch that is put together of several requests.
    most_batch_rows: usize,
    is_stopping: AtomicBool,
    /// Ends the waiting for requests.
    interrupter: InboxInterrupter,
    /// Whether one of its threads has a batch and waits for more of it, or for room to run it.
    is_gathering: AtomicBool,
    /// Per thread, since when it computes, by the host's clock; 0 while it does not.
    busy_since: Vec<AtomicU64>,
    done: AtomicU64,
    /// How long those took together, in microseconds.
    run_us: AtomicU64,
    /// How many were how uncertain, by the steps of [`EntropyCounts`].
    entropies: [AtomicU64; EntropyCounts::STEPS],
}

impl Worker {
    /// Starts the threads of a worker.
    pub fn spawn_threads(parts: WorkerParts) -> Result<Self> {
        let WorkerParts { name, unit, batching, peers, .. } = parts;
        let inbox = peers.create_inbox(&name, MAX_INBOX_DEPTH)?;
        let mut address = inbox.address().clone();
        address.device = unit.executor().reading_device();
        let count = parts.most_concurrent_runs.get();
        let policy = unit.executor().batch_policy();
        let shared = Arc::new(WorkerInner {
            interrupter: inbox.interrupter(),
            batcher: Mutex::new(Batcher::new(inbox, batching, policy)),
            most_batch_rows: batching.map_or(0, |batching| batching.max_rows),
            unit,
            context: WorkerContext {
                name,
                peers,
                cancelled: parts.cancelled,
                local_workers: parts.local_workers,
                loss_reporter: parts.loss_reporter,
            },
            is_stopping: AtomicBool::new(false),
            is_gathering: AtomicBool::new(false),
            busy_since: (0..count).map(|_| AtomicU64::new(0)).collect(),
            done: AtomicU64::new(0),
            run_us: AtomicU64::new(0),
            entropies: std::array::from_fn(|_| AtomicU64::new(0)),
        });
        let local: Arc<dyn LocalWorker> = Arc::<WorkerInner>::clone(&shared);
        let context = &shared.context;
        context.local_workers.add_worker(&context.name, Arc::downgrade(&local));
        let mut worker = Self { shared, address, threads: Vec::with_capacity(count) };
        for thread in 0..count {
            let shared = Arc::clone(&worker.shared);
            let name = format!("unit-{}", &shared.context.name);
            let spawned = std::thread::Builder::new()
                .name(name)
                .spawn(move || while shared.serve_batch(thread) {});
            let spawned =
                spawned.map_err(|error| Error::from_io("a thread for an instance", &error))?;
            worker.threads.push(spawned);
        }
        Ok(worker)
    }

    /// Where to send to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What it is doing.
    pub fn current_heartbeat(&self) -> Heartbeat {
        let now = Deadline::now().nanoseconds();
        let since = self.shared.busy_since.iter().map(|busy| busy.load(Ordering::Relaxed));
        let runs = self.shared.unit.executor().unit_runs();
        let longest = since.filter(|&since| since > 0).map(|since| now.saturating_sub(since)).max();
        Heartbeat {
            busy_ms: longest.map_or(0, |ns| (ns / 1_000_000).max(1)),
            overdue_ms: runs.longest_overdue().map_or(0, |time| time.as_millis() as u64),
            done: self.shared.done.load(Ordering::Relaxed),
            run_us: self.shared.run_us.load(Ordering::Relaxed),
            device: self.shared.unit.executor().device_use(),
            entropies: EntropyCounts(std::array::from_fn(|step| {
                self.shared.entropies[step].load(Ordering::Relaxed)
            })),
        }
    }

    /// Whether all its threads are there still.
    pub fn is_alive(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Stops it: what it has begun it ends, what waits in its inbox it leaves. A run that takes
    /// longer than `patience` is ended; one that does not end even then is left alone.
    pub fn stop_and_join(self, patience: Duration) {
        self.shared.request_stop();
        if !self.wait_for_threads(patience) {
            self.shared.unit.executor().unit_runs().end_all();
            if !self.wait_for_threads(patience) {
                tracing::warn!(instance = self.shared.context.name, "a run of it does not end");
                drop(self.abandon());
                return;
            }
        }
        for thread in self.threads {
            // One that panicked has told so.
            thread.join().ok();
        }
    }

    /// Whether all threads end within this time.
    fn wait_for_threads(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            if self.threads.iter().all(JoinHandle::is_finished) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Leaves it alone: it is to stop, and nobody waits for it.
    pub fn stop_without_waiting(self) {
        self.shared.request_stop();
    }

    /// Leaves it alone, and gives the cores of its runs to others. Returns the threads, of which
    /// those go on whose runs do not end.
    pub fn abandon(self) -> Vec<JoinHandle<()>> {
        self.shared.request_stop();
        let runs = self.shared.unit.executor().unit_runs();
        runs.end_all();
        runs.abandon_all();
        self.threads
    }

    /// Gives memory back that nothing needs at the moment.
    pub fn release_idle_memory(&self) {
        self.shared.unit.executor().release_idle_memory();
    }
}

impl WorkerInner {
    fn request_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.interrupter.interrupt();
    }

    /// One batch, from the inbox to the next unit; `false` when it is to stop.
    fn serve_batch(&self, thread: usize) -> bool {
        let mut batcher = lock(&self.batcher);
        if self.is_stopping.load(Ordering::Acquire) {
            return false;
        }
        let Some(first) = batcher.next_request(&self.context, Wait::Forever) else {
            return true;
        };
        let mut batch = vec![first];
        self.is_gathering.store(true, Ordering::Relaxed);
        batcher.collect_batch(&self.context, &mut batch);
        let permit = self.acquire_permit(&batch);
        if permit.is_ok() {
            batcher.complete_batch(&self.context, &mut batch);
        }
        self.is_gathering.store(false, Ordering::Relaxed);
        drop(batcher);
        match permit {
            Ok(permit) => {
                let started = Deadline::now().nanoseconds();
                self.busy_since[thread].store(started, Ordering::Relaxed);
                self.run_and_hand_on(batch, permit, started);
                self.busy_since[thread].store(0, Ordering::Relaxed);
                true
            }
            Err(error) => {
                if error.kind() == ErrorKind::Corrupt {
                    self.stop_for_damage(&error);
                } else {
                    self.context.fail_batch(batch, &error);
                }
                !self.is_stopping.load(Ordering::Acquire)
            }
        }
    }

    /// Waits for the right to run a batch; those come first whose turn does.
    fn acquire_permit(&self, batch: &[BatchItem]) -> Result<CorePermit> {
        let turn = |item: &BatchItem| item.message.accepted().saturating_add(item.route.turn());
        let since = batch.iter().map(turn).min().unwrap_or(0);
        let deadlines = batch.iter().map(|item| item.message.deadline());
        // Where one has none there is somebody who waits.
        let deadline = deadlines.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
        let permit = self.unit.executor().acquire_permit(since, deadline)?;
        if self.unit.executor().weights_leave() {
            self.prefetch_next(batch, deadline);
        }
        Ok(permit)
    }

    /// Has the weights of those come who are next, while these requests run here.
    fn prefetch_next(&self, batch: &[BatchItem], deadline: Option<Deadline>) {
        let mut last = None;
        for next in batch.iter().filter_map(BatchItem::next_instance) {
            if last.replace(next) != Some(next)
                && let Some(worker) = self.context.local_workers.find_worker(next)
            {
                worker.prefetch_weights(deadline);
            }
        }
    }

    /// Runs a batch and hands each of its requests on.
    fn run_and_hand_on(&self, batch: Vec<BatchItem>, mut permit: CorePermit, started: u64) {
        let executor = self.unit.executor();
        let deadline = batch.iter().filter_map(|item| item.message.deadline()).max();
        let wait = deadline.map_or(Wait::at_most(WAIT_WITHOUT_DEADLINE), Wait::Until);
        let rows: Vec<usize> = batch.iter().map(|item| item.rows.unwrap_or(1)).collect();
        let has_deadlines = batch.iter().all(|item| item.message.deadline().is_some());
        let run = BatchRun {
            context: &self.context,
            batch: &batch,
            rows: &rows,
            started,
            wait,
            latest_deadline: deadline.filter(|_| has_deadlines),
        };
        match executor.run_batch(&run, &mut permit) {
            Ok(ExecutedBatch { results, timing, afterwards }) => {
                // Before it is sent on: whoever has the answer may ask for the count.
                let took = Deadline::now().nanoseconds().saturating_sub(started) / 1000;
                self.run_us.fetch_add(took * batch.len() as u64, Ordering::Relaxed);
                self.done.fetch_add(batch.len() as u64, Ordering::Relaxed);
                results.iter().flatten().for_each(|(_, entropy)| self.count_entropy(entropy));
                let all = batch.into_iter().zip(results).zip(&rows);
                let executed = all.filter_map(|((item, result), &rows)| {
                    let (outputs, entropy) = result?;
                    let timing = BatchTiming { rows, ..timing };
                    Some(ExecutedRequest { item: BatchItem { entropy, ..item }, outputs, timing })
                });
                executor.hand_on(&self.context, executed.collect());
                // Not before it is sent on: whoever computes next would take the core that this
                // needs, and the request would wait for milliseconds.
                drop(permit);
                if let Some(afterwards) = afterwards {
                    afterwards(&self.context);
                }
            }
            Err(failure) => {
                drop(permit);
                self.handle_failed_batch(batch, failure, started);
            }
        }
    }

    /// Its weights are not what they were. Nothing is answered: requests go to whoever comes after
    /// it.
    fn stop_for_damage(&self, error: &Error) {
        tracing::error!(instance = self.context.name, %error, "its weights are not whole");
        self.request_stop();
    }

    /// Notes how uncertain a request was, for whoever chooses thresholds.
    fn count_entropy(&self, entropy: &Option<RequestEntropy>) {
        if let Some(Ok(entropy)) = entropy {
            self.entropies[EntropyCounts::step_of(*entropy)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs the requests of a batch one by one where one may have spoilt it for the others; else
    /// says that they failed.
    fn handle_failed_batch(&self, batch: Vec<BatchItem>, failure: BatchFailure, started: u64) {
        let BatchFailure { error, sent_early } = failure;
        if error.kind() == ErrorKind::Corrupt {
            return self.stop_for_damage(&error);
        }
        if let Some(sent) = sent_early {
            let unsent = batch.into_iter().zip(sent).filter(|(_, is_sent)| !is_sent);
            return self.context.fail_batch(unsent.map(|(item, _)| item).collect(), &error);
        }
        if batch.len() <= 1 || error.kind() == ErrorKind::TimedOut {
            return self.context.fail_batch(batch, &error);
        }
        for item in batch {
            let alone = vec![item];
            match self.acquire_permit(&alone) {
                Ok(permit) => self.run_and_hand_on(alone, permit, started),
                Err(error) => self.context.fail_batch(alone, &error),
            }
        }
    }
}

impl LocalWorker for WorkerInner {
    fn device(&self) -> Device {
        self.unit.device()
    }

    fn most_batch_rows(&self) -> usize {
        self.most_batch_rows
    }

    fn is_free(&self) -> bool {
        match self.batcher.try_lock() {
            Ok(mut batcher) => !batcher.has_waiting(&self.context),
            Err(TryLockError::Poisoned(_)) => false,
            // One of its threads waits there for something to come, or has a batch that waits for
            // room.
            Err(TryLockError::WouldBlock) => !self.is_gathering.load(Ordering::Relaxed),
        }
    }

    fn prefetch_weights(&self, deadline: Option<Deadline>) {
        self.unit.executor().prefetch_weights(deadline);
    }

    fn run_on_this_thread(&self, messages: Vec<Message>) {
        let run_here = |batch: Vec<BatchItem>| {
            let started = Deadline::now().nanoseconds();
            match self.acquire_permit(&batch) {
                Ok(permit) => self.run_and_hand_on(batch, permit, started),
                Err(error) => self.context.fail_batch(batch, &error),
            }
        };
        let mut together: Vec<BatchItem> = Vec::new();
        for message in messages {
            let Some(item) = self.context.take_in_request(message) else { continue };
            let first = together.first();
            if first.is_none_or(|first| can_share_batch(&first.inputs, &item.inputs)) {
                together.push(item);
            } else {
                run_here(vec![item]);
            }
        }
        if !together.is_empty() {
            run_here(together);
        }
    }
}
