//! What was launched on a GPU and is not done yet.
//!
//! A run returns when it is launched. Without a limit the GPU would have work for seconds, in small
//! runs; so it has one that it does and one that it does next, of all units of this process
//! together, and what comes meanwhile goes into batches. A unit in a process of its own has one:
//! others keep the GPU busy meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tessera_core::{Fence, Result, Tensor, lock};
use tessera_deploy::Isolation;
use tessera_engine::GpuSpan;

/// The runs of one GPU.
pub(super) struct GpuQueue {
    /// Runs that are under way at most.
    most_runs: usize,
    state: Mutex<GpuQueueState>,
    changed: Condvar,
    /// Held while a run is launched: there is one stream, and what is mixed there delays both.
    launch_lock: Mutex<()>,
}

#[derive(Default)]
struct GpuQueueState {
    /// Runs that are being launched.
    launching: usize,
    /// Those that are launched, oldest first.
    launched: VecDeque<LaunchedRun>,
    /// Those that are over, and were not counted yet.
    finished: Vec<LaunchedRun>,
}

/// How long a GPU worked for somebody.
#[derive(Default)]
pub(super) struct GpuTimeCounter {
    totals: Mutex<GpuTimeTotals>,
    /// By the rows of the batch, what the last run took.
    last_by_rows: Mutex<BTreeMap<usize, u64>>,
    /// Nanoseconds of the shortest run so far; 0 where there was none.
    shortest: AtomicU64,
}

/// How long a GPU worked, and how often.
#[derive(Clone, Copy, Default)]
pub(super) struct GpuTimeTotals {
    pub(super) nanoseconds: u64,
    /// How long launches took.
    pub(super) launch_nanoseconds: u64,
    pub(super) runs: u64,
}

impl GpuTimeCounter {
    /// All so far.
    pub(super) fn read_totals(&self) -> GpuTimeTotals {
        *lock(&self.totals)
    }

    /// Nanoseconds of the last run of so many rows; 0 where there was none.
    pub(super) fn last_run_nanoseconds(&self, rows: usize) -> u64 {
        lock(&self.last_by_rows).get(&rows).copied().unwrap_or(0)
    }

    /// The shortest run so far: what a run takes that waits for nothing.
    pub(super) fn shortest_run(&self) -> Option<Duration> {
        let shortest = self.shortest.load(Ordering::Relaxed);
        (shortest > 0).then(|| Duration::from_nanos(shortest))
    }

    fn add_run(&self, run: &LaunchedRun, nanoseconds: u64) {
        let mut all = lock(&self.totals);
        all.nanoseconds += nanoseconds;
        all.launch_nanoseconds += run.launch_nanoseconds;
        all.runs += 1;
        lock(&self.last_by_rows).insert(run.rows, nanoseconds);
        let shorter = |known| (known == 0 || nanoseconds < known).then_some(nanoseconds);
        self.shortest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, shorter).ok();
    }
}

/// A run that is launched.
struct LaunchedRun {
    span: Arc<GpuSpan>,
    time: Arc<GpuTimeCounter>,
    /// Nanoseconds that its launch took.
    launch_nanoseconds: u64,
    rows: usize,
    /// What it reads on the host, which must stay until it is done.
    _reads: Vec<Tensor>,
}

/// What was launched on a GPU.
pub(super) struct LaunchedWork<T> {
    pub(super) result: T,
    /// What it does for that.
    pub(super) span: Option<GpuSpan>,
    /// What it reads on the host meanwhile.
    pub(super) reads: Vec<Tensor>,
}

impl GpuQueueState {
    /// Puts the runs that are over aside.
    fn retire_finished(&mut self) {
        while self.launched.front().is_some_and(|run| run.span.is_done()) {
            self.finished.extend(self.launched.pop_front());
        }
    }
}

impl GpuQueue {
    /// That of a GPU, one for all units of this process.
    pub(super) fn of_gpu(number: u32, isolation: Isolation) -> Arc<Self> {
        static ALL: Mutex<BTreeMap<u32, Arc<GpuQueue>>> = Mutex::new(BTreeMap::new());
        let most_runs = match isolation {
            Isolation::Thread => 2,
            Isolation::Process => 1,
        };
        let new = || {
            let (state, changed, launch_lock) = Default::default();
            Arc::new(Self { most_runs, state, changed, launch_lock })
        };
        Arc::clone(lock(&ALL).entry(number).or_insert_with(new))
    }

    /// Counts the runs that are over, and lets go of what they read.
    ///
    /// That takes as long as a launch. So it is done while the GPU has something to do, and not
    /// when something is to be launched.
    pub(super) fn count_finished_runs(&self) {
        let mut state = lock(&self.state);
        state.retire_finished();
        let finished = std::mem::take(&mut state.finished);
        drop(state);
        for run in finished {
            if let Some(took) = run.span.elapsed_time() {
                run.time.add_run(&run, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
        }
    }

    /// Waits until there is room for another run.
    pub(super) fn wait_for_room(&self) -> Result<()> {
        self.wait_for_capacity(false)
    }

    fn wait_for_capacity(&self, takes_it: bool) -> Result<()> {
        let mut state = lock(&self.state);
        loop {
            state.retire_finished();
            if state.launching + state.launched.len() < self.most_runs {
                state.launching += usize::from(takes_it);
                return Ok(());
            }
            match state.launched.front().map(|run| Arc::clone(&run.span)) {
                Some(oldest) => {
                    drop(state);
                    oldest.wait_on_host()?;
                    state = lock(&self.state);
                }
                None => {
                    state =
                        self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                }
            }
        }
    }

    /// Launches a run of so many rows, once there is room. `time` gets how long the GPU takes for
    /// what `launch` puts into its stream.
    pub(super) fn launch_run<T>(
        &self,
        rows: usize,
        time: &Arc<GpuTimeCounter>,
        launch: impl FnOnce() -> Result<LaunchedWork<T>>,
    ) -> Result<T> {
        self.wait_for_capacity(true)?;
        let launching = lock(&self.launch_lock);
        let begun = Instant::now();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(launch));
        let launch_nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut state = lock(&self.state);
        drop(launching);
        state.launching -= 1;
        let result = match result {
            Ok(Ok(LaunchedWork { result, span, reads })) => {
                state.launched.extend(span.map(|span| LaunchedRun {
                    span: Arc::new(span),
                    time: Arc::clone(time),
                    launch_nanoseconds,
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
        self.count_finished_runs();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
