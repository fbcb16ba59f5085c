//! Runs under way in this process: each has a time until which it makes sense, and is ended when
//! that has passed. One that does not end counts as stuck.
//!
//! The cores of a run that takes long are given to others, too, long before: whoever was alone when
//! it began has all of them, and nobody knows how long it will take.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, lock};
use tessera_engine::RunTerminator;

use crate::permits::PermitRevoker;

/// A run may take this long, whatever runs of the unit took before.
const SHORTEST_LIMIT: Duration = Duration::from_secs(10);
/// Else as many times what the longest before it took.
const TIMES_THE_LONGEST: u32 = 100;
/// Nothing may take longer than this.
const LONGEST_LIMIT: Duration = Duration::from_secs(600);
/// For so long a run has its cores for itself. From then on others may begin on them, and the
/// system has all of them take turns.
const ALONE_TIME: Duration = Duration::from_secs(1);

/// The runs of a process.
#[derive(Default)]
pub struct RunWatch {
    runs: Mutex<HashMap<u64, WatchedRun>>,
    next_number: AtomicU64,
    /// How long a run may take; `None`: as follows from runs before it.
    limit: Option<Duration>,
}

/// What ends the runs of some sessions.
pub(crate) type RunTerminators = Arc<[Arc<dyn RunTerminator>]>;

struct WatchedRun {
    owner: u64,
    begun: Instant,
    until: Instant,
    was_ended: bool,
    terminators: RunTerminators,
    permit: Option<PermitRevoker>,
}

/// The runs of one unit, as the watch knows them.
pub(crate) struct UnitRuns {
    watch: Arc<RunWatch>,
    owner: u64,
    /// Nanoseconds that the longest run took that was not ended.
    longest: AtomicU64,
}

impl RunWatch {
    /// A watch over runs that may take so long; `None`: as follows from the runs before.
    pub fn new(limit: Option<Duration>) -> Self {
        Self { limit, ..Self::default() }
    }

    fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends the runs whose time has passed, and has others run beside those that take long. To be
    /// called several times a second.
    pub fn end_overdue_runs(&self) {
        let now = Instant::now();
        let mut shared = Vec::new();
        for run in lock(&self.runs).values_mut() {
            if run.until <= now {
                run.end();
            }
            if now.duration_since(run.begun) >= ALONE_TIME {
                shared.extend(run.permit.take());
            }
        }
        // Not under the lock: others begin at once.
        shared.iter().for_each(PermitRevoker::revoke);
    }
}

impl WatchedRun {
    fn end(&mut self) {
        self.was_ended = true;
        self.terminators.iter().for_each(|terminator| terminator.terminate_run());
    }
}

impl UnitRuns {
    pub(crate) fn new(watch: Arc<RunWatch>) -> Self {
        let owner = watch.next_number();
        Self { watch, owner, longest: AtomicU64::new(0) }
    }

    /// How long the next run may take, whoever waits for it.
    fn longest_allowed(&self) -> Duration {
        let longest = Duration::from_nanos(self.longest.load(Ordering::Relaxed));
        let usual = longest.saturating_mul(TIMES_THE_LONGEST);
        self.watch.limit.unwrap_or(usual.clamp(SHORTEST_LIMIT, LONGEST_LIMIT))
    }

    /// Watches a run from now on, for which somebody waits for so long at most.
    pub(crate) fn begin_run(
        &self,
        patience: Option<Duration>,
        terminators: RunTerminators,
        permit: Option<PermitRevoker>,
    ) -> WatchedRunGuard<'_> {
        let begun = Instant::now();
        let allowed = self.longest_allowed();
        let allowed = patience.map_or(allowed, |patience| patience.min(allowed));
        let number = self.watch.next_number();
        let run = WatchedRun {
            owner: self.owner,
            begun,
            until: begun + allowed,
            was_ended: false,
            terminators,
            permit,
        };
        lock(&self.watch.runs).insert(number, run);
        WatchedRunGuard { runs: self, number, begun }
    }

    /// For how long a run has gone on beyond its time, where one has.
    pub(crate) fn longest_overdue(&self) -> Option<Duration> {
        let now = Instant::now();
        let runs = lock(&self.watch.runs);
        let mine = runs.values().filter(|run| run.owner == self.owner);
        mine.filter_map(|run| now.checked_duration_since(run.until)).max()
    }

    /// Ends all runs of the unit.
    pub(crate) fn end_all(&self) {
        let mut runs = lock(&self.watch.runs);
        runs.values_mut().filter(|run| run.owner == self.owner).for_each(WatchedRun::end);
    }

    /// Takes the cores of all runs of the unit back: nobody waits for them any more.
    pub(crate) fn abandon_all(&self) {
        let abandoned: Vec<PermitRevoker> = {
            let mut runs = lock(&self.watch.runs);
            let mine = runs.values_mut().filter(|run| run.owner == self.owner);
            mine.filter_map(|run| run.permit.take()).collect()
        };
        abandoned.iter().for_each(PermitRevoker::revoke);
    }
}

/// A run that is watched until this is dropped.
pub(crate) struct WatchedRunGuard<'a> {
    runs: &'a UnitRuns,
    number: u64,
    begun: Instant,
}

impl WatchedRunGuard<'_> {
    /// What a run came to; that it was ended is the reason of an error, whatever the engine says.
    pub(crate) fn result_of<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| if self.was_ended() { self.ended_error() } else { error })
    }

    fn was_ended(&self) -> bool {
        lock(&self.runs.watch.runs).get(&self.number).is_some_and(|run| run.was_ended)
    }

    fn ended_error(&self) -> Error {
        let seconds = self.begun.elapsed().as_secs_f64();
        Error::timed_out(format!("the run was ended after {seconds:.1} s"))
    }
}

impl Drop for WatchedRunGuard<'_> {
    fn drop(&mut self) {
        // Under the lock that runs are ended under: the next run of the session is not affected.
        let run = lock(&self.runs.watch.runs).remove(&self.number);
        if run.is_some_and(|run| !run.was_ended) {
            let took = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.runs.longest.fetch_max(took, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permits::{CorePermits, MachineCorePermits};

    #[derive(Default)]
    struct Flag(std::sync::atomic::AtomicBool);

    impl RunTerminator for Flag {
        fn terminate_run(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_run_is_ended_when_its_time_has_passed_and_not_before() {
        let watch = Arc::new(RunWatch::default());
        let runs = UnitRuns::new(Arc::clone(&watch));
        let (late, early) = (Arc::new(Flag::default()), Arc::new(Flag::default()));
        let ends = |flag: &Arc<Flag>| -> RunTerminators { Arc::new([Arc::clone(flag) as _]) };
        let patience = Duration::from_millis(10);
        let overdue = runs.begin_run(Some(patience), ends(&late), None);
        let other = runs.begin_run(None, ends(&early), None);
        watch.end_overdue_runs();
        assert!(!late.0.load(Ordering::Relaxed));
        std::thread::sleep(patience * 2);
        watch.end_overdue_runs();
        assert!(late.0.load(Ordering::Relaxed));
        assert!(!early.0.load(Ordering::Relaxed));
        assert!(runs.longest_overdue().is_some_and(|time| time >= patience));
        let error = overdue.result_of::<()>(Err(Error::engine("ended"))).unwrap_err();
        assert_eq!(error.kind(), tessera_core::ErrorKind::TimedOut);
        let error = other.result_of::<()>(Err(Error::engine("bad"))).unwrap_err();
        assert_eq!(error.kind(), tessera_core::ErrorKind::Engine);
        drop((overdue, other));
        assert_eq!(runs.longest_overdue(), None);
        assert!(lock(&watch.runs).is_empty());
    }

    #[test]
    fn a_run_that_takes_long_does_not_keep_its_cores_from_others() {
        let watch = Arc::new(RunWatch::default());
        let runs = UnitRuns::new(Arc::clone(&watch));
        let machine = MachineCorePermits::new(std::num::NonZeroUsize::MIN);
        let permit = machine.acquire_permit(0).unwrap();
        let run = runs.begin_run(None, Arc::new([]), Some(permit.revoker()));
        let (sent, granted) = std::sync::mpsc::channel();
        machine.request_permit(0, Box::new(move |cores| sent.send(cores.get()).unwrap()));
        watch.end_overdue_runs();
        assert!(granted.try_recv().is_err(), "it has just begun");
        std::thread::sleep(ALONE_TIME);
        watch.end_overdue_runs();
        assert_eq!(granted.try_recv(), Ok(1));
        assert!(!run.was_ended());
        // Given back once, whoever does it.
        drop((run, permit));
        machine.finish_run();
        machine.release_cores(std::num::NonZeroUsize::MIN);
        assert_eq!(machine.acquire_permit(0).unwrap().cores().get(), 1);
    }

    #[test]
    fn a_limit_grows_with_what_runs_take() {
        let runs = UnitRuns::new(Arc::default());
        assert_eq!(runs.longest_allowed(), SHORTEST_LIMIT);
        runs.longest.store(1_000_000_000, Ordering::Relaxed);
        assert_eq!(runs.longest_allowed(), Duration::from_secs(100));
        let given = UnitRuns::new(Arc::new(RunWatch::new(Some(Duration::from_secs(3)))));
        assert_eq!(given.longest_allowed(), Duration::from_secs(3));
    }
}
