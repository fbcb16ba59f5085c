//! What a GPU was told to do and has not done yet.
//!
//! A run returns when the GPU knows what to do. Without a limit it would know for seconds ahead, in small runs; so it
//! has one that it does and one that it does next, of all blocks of this process together, and what comes
//! meanwhile goes into batches. A block in a process of its own has one: others keep the GPU busy meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use tessera_core::{Device, Event, Result, Tensor};
use tessera_engine::Span;
use tessera_plan::Isolation;

use crate::lock;

/// The runs of one GPU.
pub(crate) struct GpuQueue {
    /// Runs that are under way at most.
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
    /// Held while the GPU is told of a run: there is one stream, and what is mixed there delays both.
    telling: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Runs that the GPU is being told of.
    coming: usize,
    /// Those that it knows, oldest first.
    known: VecDeque<Run>,
    /// Those that are over, and were not counted yet.
    over: Vec<Run>,
}

/// How long a GPU worked for somebody.
#[derive(Default)]
pub(crate) struct GpuTime {
    all: Mutex<GpuTimes>,
    /// By the rows of the batch, what the last run took.
    last: Mutex<BTreeMap<usize, u64>>,
}

/// How long a GPU worked, and how often.
#[derive(Clone, Copy, Default)]
pub(crate) struct GpuTimes {
    pub(crate) nanoseconds: u64,
    /// How long it took to tell it what to do.
    pub(crate) told_nanoseconds: u64,
    pub(crate) runs: u64,
}

impl GpuTime {
    /// All so far.
    pub(crate) fn read(&self) -> GpuTimes {
        *lock(&self.all)
    }

    /// Nanoseconds of the last run of so many rows; 0 where there was none.
    pub(crate) fn of(&self, rows: usize) -> u64 {
        lock(&self.last).get(&rows).copied().unwrap_or(0)
    }

    fn add(&self, run: &Run, nanoseconds: u64) {
        let mut all = lock(&self.all);
        all.nanoseconds += nanoseconds;
        all.told_nanoseconds += run.told;
        all.runs += 1;
        lock(&self.last).insert(run.rows, nanoseconds);
    }
}

/// A run that the GPU knows.
struct Run {
    span: Arc<Span>,
    time: Arc<GpuTime>,
    /// Nanoseconds that it took to tell it.
    told: u64,
    rows: usize,
    /// What it reads on the host, which must stay until it is done.
    _reads: Vec<Tensor>,
}

/// What a GPU was told.
pub(crate) struct Told<T> {
    pub(crate) result: T,
    /// What it does for that.
    pub(crate) span: Option<Span>,
    /// What it reads on the host meanwhile.
    pub(crate) reads: Vec<Tensor>,
}

impl State {
    /// Puts the runs that are over aside.
    fn tidy(&mut self) {
        while self.known.front().is_some_and(|run| run.span.is_done()) {
            self.over.extend(self.known.pop_front());
        }
    }
}

impl GpuQueue {
    /// That of a device; `None` for the CPU, where a run is over when it returns.
    pub(crate) fn of(device: Device, isolation: Isolation) -> Option<Arc<Self>> {
        static ALL: Mutex<BTreeMap<u32, Arc<GpuQueue>>> = Mutex::new(BTreeMap::new());
        let Device::Cuda(number) = device else { return None };
        let most = match isolation {
            Isolation::Thread => 2,
            Isolation::Process => 1,
        };
        let new = || {
            let (state, changed, telling) = Default::default();
            Arc::new(Self { most, state, changed, telling })
        };
        Some(Arc::clone(lock(&ALL).entry(number).or_insert_with(new)))
    }

    /// Counts the runs that are over, and lets go of what they read.
    ///
    /// That takes as long as telling the GPU a run. So it is done while the GPU has something to do, and not when it is to be told.
    pub(crate) fn tidy(&self) {
        let mut state = lock(&self.state);
        state.tidy();
        let over = std::mem::take(&mut state.over);
        drop(state);
        for run in over {
            if let Some(took) = run.span.duration() {
                run.time.add(&run, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
        }
    }

    /// Waits until there is room for another run.
    pub(crate) fn wait_for_room(&self) -> Result<()> {
        self.wait(false)
    }

    fn wait(&self, takes_it: bool) -> Result<()> {
        let mut state = lock(&self.state);
        loop {
            state.tidy();
            if state.coming + state.known.len() < self.most {
                state.coming += usize::from(takes_it);
                return Ok(());
            }
            match state.known.front().map(|run| Arc::clone(&run.span)) {
                Some(oldest) => {
                    drop(state);
                    oldest.wait()?;
                    state = lock(&self.state);
                }
                None => {
                    state =
                        self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                }
            }
        }
    }

    /// Has the GPU be told of a run of so many rows, once there is room. `time` gets how long the GPU takes for what
    /// `tell` says.
    pub(crate) fn run<T>(
        &self,
        rows: usize,
        time: &Arc<GpuTime>,
        tell: impl FnOnce() -> Result<Told<T>>,
    ) -> Result<T> {
        self.wait(true)?;
        let telling = lock(&self.telling);
        let begun = Instant::now();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(tell));
        let told = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut state = lock(&self.state);
        drop(telling);
        state.coming -= 1;
        let result = match result {
            Ok(Ok(Told { result, span, reads })) => {
                state.known.extend(span.map(|span| Run {
                    span: Arc::new(span),
                    time: Arc::clone(time),
                    told,
                    rows,
                    _reads: reads,
                }));
                Ok(Ok(result))
            }
            Ok(Err(error)) => Ok(Err(error)),
            Err(panic) => Err(panic),
        };
        drop(state);
        self.changed.notify_all();
        self.tidy();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
