//! A worker: an instance of a unit. It receives requests, puts them into batches, runs them, and sends
//! each on to where its path says.
//!
//! Several threads take turns at one inbox: whoever has it takes a batch and waits for a share of the
//! cores, then leaves the inbox to the next and runs. So nothing is handed from a thread that receives
//! to one that computes, and requests that come while there is no core free go into the batch.

mod ahead;
mod answered;
mod door;
mod exit;
mod local;
mod onward;
mod process;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tessera_core::{Device, Error, Result};
use tessera_engine::{Copies, copies, is_shared};
use tessera_plan::Batching;
use tessera_tensormq::{Address, Deadline, MOST_DEPTH, Peers, RequestId, Wait};

use crate::cores::{Cores, Share};
use crate::given_up::GivenUp;
use crate::lock;
use crate::memory::Memory;
use crate::unit::LoadedUnit;
use door::Door;
pub use local::LocalWorkers;

/// How often a worker that has nothing to do looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);

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
    /// The workers of this process.
    pub local: Arc<LocalWorkers>,
    /// Who is told of requests that were sent on and are lost.
    pub overseer: Arc<dyn Overseer>,
}

/// Is told of requests that go on through other blocks, and must not be answered by them any more.
pub trait Overseer: Send + Sync {
    /// Requests, each with the number of its try. Calls `then` once whoever waits for them knows.
    fn lost(&self, requests: Vec<(RequestId, u32)>, then: Box<dyn FnOnce() + Send>);
}

/// For workers that send nothing to other processes: nothing that they send can get lost.
pub struct Alone;

impl Overseer for Alone {
    fn lost(&self, _: Vec<(RequestId, u32)>, then: Box<dyn FnOnce() + Send>) {
        then();
    }
}

impl WorkerParts {
    fn gpu_use(&self) -> GpuUse {
        if self.unit.device() == Device::Cpu {
            return GpuUse::default();
        }
        let time = self.unit.gpu_time();
        GpuUse {
            nanoseconds: time.nanoseconds,
            told_nanoseconds: time.told_nanoseconds,
            runs: time.runs,
            played: self.unit.played(),
            weight_bytes: self.unit.weight_bytes() as u64,
            pool_bytes: self.memory.gpu_bytes(),
            copies: copies(),
        }
    }
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
    /// Whether one of its threads has a batch and waits for more of it, or for room to run it.
    gathering: AtomicBool,
    /// Whether requests may be sent on before the GPU is told to compute what they carry.
    is_ahead: AtomicBool,
    /// Whether answers may be sent before the GPU has computed them.
    answers_ahead: AtomicBool,
    /// Per thread, since when it computes, by the host's clock; 0 while it does not.
    busy: Vec<AtomicU64>,
    done: AtomicU64,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pulse {
    /// For how long the longest run has been going on, in milliseconds; 0 while nothing runs.
    pub busy_ms: u64,
    /// Requests that were run.
    pub done: u64,
    /// What it did on a GPU.
    #[serde(default)]
    pub gpu: GpuUse,
}

/// What a worker did on a GPU, and what it has there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GpuUse {
    /// Nanoseconds that the GPU worked for it.
    pub nanoseconds: u64,
    /// Nanoseconds that a thread told the GPU what to do.
    pub told_nanoseconds: u64,
    /// In how many runs.
    pub runs: u64,
    /// How many runs of its blocks were played from a recording.
    #[serde(default)]
    pub played: u64,
    /// Bytes of its weights there.
    pub weight_bytes: u64,
    /// Bytes of the buffers that it hands over to others there.
    pub pool_bytes: u64,
    /// Copies of its process, which other workers may share.
    pub copies: Copies,
}

impl Worker {
    /// Starts the threads of a worker.
    pub fn start(parts: WorkerParts) -> Result<Self> {
        let inbox = parts.peers.inbox(&parts.name, MOST_DEPTH)?;
        let mut address = inbox.address().clone();
        address.device = Some(parts.unit.device()).filter(|device| *device != Device::Cpu);
        let count = parts.at_once.get();
        let shared = Arc::new(Shared {
            door: Mutex::new(Door::new(inbox)),
            stopping: AtomicBool::new(false),
            gathering: AtomicBool::new(false),
            is_ahead: AtomicBool::new(is_shared(parts.unit.device())),
            answers_ahead: AtomicBool::new(true),
            busy: (0..count).map(|_| AtomicU64::new(0)).collect(),
            done: AtomicU64::new(0),
            parts,
        });
        shared.parts.local.add(&shared);
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
            gpu: self.shared.parts.gpu_use(),
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
        self.gathering.store(true, Ordering::Relaxed);
        self.reunite(&mut door, &mut batch);
        self.gather(&mut door, &mut batch);
        let since = batch.iter().map(|item| item.log.accepted).min().unwrap_or(0);
        let room = self.parts.unit.wait_for_room();
        let share = match room.and_then(|()| self.share(since)) {
            Ok(share) => share,
            Err(error) => {
                self.gathering.store(false, Ordering::Relaxed);
                drop(door);
                self.fail(batch, &error);
                return !self.stopping.load(Ordering::Acquire);
            }
        };
        self.top_up(&mut door, &mut batch);
        self.round(&mut door, &mut batch);
        self.gathering.store(false, Ordering::Relaxed);
        drop(door);
        let started = Deadline::now().nanoseconds();
        self.busy[thread].store(started, Ordering::Relaxed);
        self.process(batch, share, started);
        self.busy[thread].store(0, Ordering::Relaxed);
        true
    }

    /// A share of the cores to run on.
    ///
    /// Asking the node for one takes as long as telling a GPU what to do: so those on a GPU don't.
    fn share(&self, since: u64) -> Result<Share> {
        match self.parts.unit.device() {
            Device::Cpu => self.parts.cores.take(since),
            Device::Cuda(_) => Ok(Share::none()),
        }
    }
}
