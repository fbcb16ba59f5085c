//! What a task did, as the protocol tells it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use tessera_core::lock;
use tessera_telemetry::{EndedRequest, RequestOutcome, RequestTimes, first_unit_runs};

/// How often something happened and how long it took, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationTotal {
    /// How often.
    pub count: u64,
    /// How long in all, in nanoseconds.
    pub nanoseconds: u64,
}

/// What a task did since the server started.
#[derive(Clone, Debug, Default)]
pub struct TaskStatistics {
    /// Rows that were answered.
    pub inferences: u64,
    /// Runs: several requests in one batch count once.
    pub executions: u64,
    /// When the last request came, in milliseconds since 1970; 0 for never.
    pub last_inference_ms: u64,
    /// Requests that were answered, from end to end.
    pub success: DurationTotal,
    /// Requests that were not, from end to end.
    pub fail: DurationTotal,
    /// Waiting, before the first unit and between units.
    pub queue: DurationTotal,
    /// Getting inputs to where units read them.
    pub compute_input: DurationTotal,
    /// Computing.
    pub compute_infer: DurationTotal,
    /// Getting outputs to where the client reads them.
    pub compute_output: DurationTotal,
    /// The same by the rows of the batches that requests were computed in, fewest first.
    pub batches: Vec<BatchStatistics>,
}

/// What was computed in batches of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStatistics {
    /// Rows of such a batch, where the first unit ran it.
    pub rows: u64,
    /// Getting inputs to where units read them.
    pub compute_input: DurationTotal,
    /// Computing.
    pub compute_infer: DurationTotal,
    /// Getting outputs to where the client reads them.
    pub compute_output: DurationTotal,
}

/// Counts what a task does; kept while the task is changed.
#[derive(Default)]
pub(crate) struct StatisticsCounter(Mutex<CountedTotals>);

#[derive(Default)]
struct CountedTotals {
    reported: TaskStatistics,
    /// Runs of the first unit; a request in a batch with others has its part of one.
    runs: f64,
    exits_taken: BTreeMap<String, u64>,
    /// By the rows of a batch. Of a batch with requests of others it is a part, as of `runs`.
    batches: BTreeMap<u64, BatchTotals>,
}

/// What batches of one size took, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct BatchTotals {
    runs: f64,
    computed: f64,
    overhead: f64,
}

impl BatchTotals {
    fn report(self, rows: u64) -> BatchStatistics {
        // One that was run for others too is there all the same.
        let count = (self.runs.round() as u64).max(1);
        let total = |nanoseconds: f64| DurationTotal { count, nanoseconds: nanoseconds as u64 };
        BatchStatistics {
            rows,
            compute_input: total(0.0),
            compute_infer: total(self.computed),
            compute_output: total(self.overhead),
        }
    }
}

impl StatisticsCounter {
    pub(crate) fn current_totals(&self) -> TaskStatistics {
        let counted = self.lock_totals();
        let batches = counted.batches.iter().map(|(&rows, totals)| totals.report(rows)).collect();
        TaskStatistics { batches, ..counted.reported.clone() }
    }

    /// How often an exit was taken.
    pub(crate) fn exit_count(&self, exit: &str) -> u64 {
        self.lock_totals().exits_taken.get(exit).copied().unwrap_or(0)
    }

    pub(crate) fn count_request(&self, ended: &EndedRequest<'_>) {
        let mut counted = self.lock_totals();
        let times = RequestTimes::from_ended(ended);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        counted.reported.last_inference_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        if !matches!(ended.outcome, RequestOutcome::Answered | RequestOutcome::Degraded(_)) {
            counted.reported.fail.add_duration(times.all);
            return;
        }
        // An exit that answers because nothing else did was not taken.
        let taken = matches!(ended.outcome, RequestOutcome::Answered);
        for exit in ended.exits.iter().flatten().filter(|_| taken) {
            *counted.exits_taken.entry(exit.clone()).or_default() += 1;
        }
        let runs = first_unit_runs(ended);
        counted.runs += runs;
        if let Some(first) = ended.hop_timings.first() {
            let totals = counted.batches.entry(first.batch.max(1)).or_default();
            // What the run took is the same for each of its requests: each adds its part.
            let part = runs.min(1.0);
            totals.runs += runs;
            totals.computed += part * times.computed as f64;
            totals.overhead += part * times.overhead as f64;
        }
        counted.reported.executions = counted.runs.round() as u64;
        let reported = &mut counted.reported;
        reported.inferences += ended.rows as u64;
        reported.success.add_duration(times.all);
        reported.compute_infer.add_duration(times.computed);
        reported.compute_output.add_duration(times.overhead);
        reported.compute_input.add_duration(0);
        reported.queue.add_duration(times.waited);
    }

    fn lock_totals(&self) -> MutexGuard<'_, CountedTotals> {
        lock(&self.0)
    }
}

impl DurationTotal {
    fn add_duration(&mut self, nanoseconds: u64) {
        self.count += 1;
        self.nanoseconds += nanoseconds;
    }
}
