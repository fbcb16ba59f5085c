//! The open loop: requests are due by a schedule, whether or not others were answered.
//!
//! A thread of its own hands them out, because the timers of the runtime tell milliseconds and
//! requests may be due every 50 µs. Workers, each with a connection, take them in the order in
//! which they were due. There is always one more worker than is busy, up to a limit; past it,
//! requests wait, and since latency counts from when they were due, the wait is in it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, lock};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::arrivals::ArrivalSchedule;
use crate::client::LoadClient;
use crate::exchange::{Exchange, ExchangeOutcome};
use crate::session::LoadSession;

/// How much earlier than due the thread wakes: Linux lets a sleep last about 50 µs longer.
const WAKE_EARLY: Duration = Duration::from_micros(60);

/// The longest sleep of the thread, so that it sees a stop soon.
const MAX_SLEEP: Duration = Duration::from_millis(50);

/// A request that is due.
struct Arrival {
    due: Instant,
    /// When it was handed out.
    queued: Instant,
    turn: usize,
}

/// The workers at work; they end when this is dropped.
pub(crate) struct OpenLoop {
    backlog: Arc<Backlog>,
}

/// What the thread and the workers share.
struct Backlog {
    session: Arc<LoadSession>,
    queue: Mutex<VecDeque<Arrival>>,
    /// One permit for each request in the queue.
    waiting: Semaphore,
    workers: Mutex<OpenLoopWorkers>,
    max_workers: usize,
    idle: AtomicUsize,
    /// Requests that were handed out.
    issued: AtomicU64,
    /// Those of them that ended.
    ended: AtomicU64,
    /// The schedule is at its end.
    over: AtomicBool,
}

#[derive(Default)]
struct OpenLoopWorkers {
    set: JoinSet<()>,
    closed: bool,
}

impl OpenLoop {
    /// Hands out requests by `schedule` from `start` until the end of the window.
    pub(crate) fn start_workers(
        session: &Arc<LoadSession>,
        schedule: ArrivalSchedule,
        start: Instant,
        max_workers: usize,
    ) -> Result<Self> {
        let backlog = Arc::new(Backlog {
            session: Arc::clone(session),
            queue: Mutex::default(),
            waiting: Semaphore::new(0),
            workers: Mutex::default(),
            max_workers,
            idle: AtomicUsize::new(0),
            issued: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        add_worker(&backlog);
        let open_loop = Self { backlog: Arc::clone(&backlog) };
        std::thread::Builder::new()
            .name("arrivals".to_owned())
            .spawn(move || hand_out(&backlog, schedule, start))
            .map_err(|error| Error::from_io("start a thread", &error))?;
        Ok(open_loop)
    }

    /// Whether all requests were handed out and have ended.
    pub(crate) fn is_over(&self) -> bool {
        // In this order: what is issued after the end was seen is none.
        self.backlog.over.load(Ordering::SeqCst)
            && self.backlog.ended.load(Ordering::SeqCst)
                == self.backlog.issued.load(Ordering::SeqCst)
    }

    /// Ends all workers, in the middle of a request too.
    pub(crate) async fn cancel_workers(&mut self) {
        let mut workers = self.backlog.close_and_take_workers();
        workers.shutdown().await;
    }
}

impl Drop for OpenLoop {
    /// Workers hold the backlog that holds them: without this they would outlive a run that is
    /// dropped half-way.
    fn drop(&mut self) {
        drop(self.backlog.close_and_take_workers());
    }
}

impl Backlog {
    /// Lets nothing more begin, and gives the workers that are left.
    fn close_and_take_workers(&self) -> JoinSet<()> {
        self.session.closing.store(true, Ordering::SeqCst);
        self.waiting.close();
        let mut workers = lock(&self.workers);
        workers.closed = true;
        std::mem::take(&mut workers.set)
    }

    fn push(&self, arrival: Arrival) {
        self.session.count_issued(arrival.due);
        self.issued.fetch_add(1, Ordering::SeqCst);
        lock(&self.queue).push_back(arrival);
        self.waiting.add_permits(1);
    }

    fn pop(&self) -> Option<Arrival> {
        lock(&self.queue).pop_front()
    }
}

/// The body of the thread.
fn hand_out(backlog: &Backlog, schedule: ArrivalSchedule, start: Instant) {
    let end = backlog.session.window.end;
    for (turn, offset) in schedule.enumerate() {
        let Some(due) = start.checked_add(offset) else { break };
        if end.is_some_and(|end| due >= end) || !wait_until(due, &backlog.session) {
            break;
        }
        backlog.push(Arrival { due, queued: Instant::now(), turn });
    }
    backlog.over.store(true, Ordering::SeqCst);
}

/// Sleeps until just before, and gives way to other threads for what is left; whether the run
/// still goes on then.
fn wait_until(due: Instant, session: &LoadSession) -> bool {
    loop {
        if session.is_closing() {
            return false;
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        match left.checked_sub(WAKE_EARLY) {
            Some(sleep) if !sleep.is_zero() => std::thread::sleep(sleep.min(MAX_SLEEP)),
            _ => std::thread::yield_now(),
        }
    }
}

/// Adds a worker, unless there are as many as may be.
fn add_worker(backlog: &Arc<Backlog>) {
    let mut workers = lock(&backlog.workers);
    if !workers.closed && workers.set.len() < backlog.max_workers {
        backlog.idle.fetch_add(1, Ordering::SeqCst);
        workers.set.spawn(run_worker(Arc::clone(backlog)));
    }
}

/// Boxed, because a worker starts others like itself.
fn run_worker(backlog: Arc<Backlog>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let session = Arc::clone(&backlog.session);
        let mut client = LoadClient::new(Arc::clone(&session));
        while let Ok(permit) = backlog.waiting.acquire().await {
            permit.forget();
            if backlog.idle.fetch_sub(1, Ordering::SeqCst) == 1 {
                add_worker(&backlog);
            }
            if let Some(Arrival { due, queued, turn }) = backlog.pop() {
                let until = due + session.timeout;
                // One that waited for too long is not sent any more, as its client is gone.
                let exchange = if Instant::now() < until {
                    client.send_request(turn, until).await
                } else {
                    Exchange::unanswered(ExchangeOutcome::Timeout, None)
                };
                session.record_exchange(due, queued, exchange);
                backlog.ended.fetch_add(1, Ordering::SeqCst);
            }
            backlog.idle.fetch_add(1, Ordering::SeqCst);
        }
    })
}
