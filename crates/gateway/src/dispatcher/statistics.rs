//! What a task did, as the protocol tells it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use tessera_plan::Record;

use super::{Ended, EndedAs};
use crate::service::{Spent, TaskStatistics};

/// Counts what a task does; kept while the task is changed.
#[derive(Default)]
pub(super) struct Statistics(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    told: TaskStatistics,
    /// Runs of the first block; a request in a batch with others has its part of one.
    runs: f64,
    taken: BTreeMap<String, u64>,
}

impl Statistics {
    pub(super) fn read(&self) -> TaskStatistics {
        self.lock().told.clone()
    }

    /// How often an exit was taken.
    pub(super) fn taken(&self, exit: &str) -> u64 {
        self.lock().taken.get(exit).copied().unwrap_or(0)
    }

    pub(super) fn note(&self, ended: &Ended<'_>) {
        let mut counted = self.lock();
        let took = ended.ended.saturating_sub(ended.accepted);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        counted.told.last_inference_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        if !matches!(ended.outcome, EndedAs::Answered | EndedAs::Degraded(_)) {
            counted.told.fail.add(took);
            return;
        }
        // An exit that answers because nothing else did was not taken.
        let taken = matches!(ended.outcome, EndedAs::Answered);
        for exit in ended.exits.iter().flatten().filter(|_| taken) {
            *counted.taken.entry(exit.clone()).or_default() += 1;
        }
        fn block(record: &Record) -> Option<&str> {
            record.instance.split('.').next()
        }
        let first = ended.records.first().and_then(block);
        for record in ended.records.iter().filter(|record| block(record) == first) {
            let batch = record.batch.max(1);
            counted.runs += record.rows.clamp(1, batch) as f64 / batch as f64;
        }
        counted.told.executions = counted.runs.round() as u64;
        let told = &mut counted.told;
        told.inferences += ended.rows as u64;
        told.success.add(took);
        let sum = |of: fn(&Record) -> u64| ended.records.iter().map(of).sum::<u64>();
        let (computed, overhead) = (sum(|record| record.computed), sum(|record| record.overhead));
        told.compute_infer.add(computed);
        told.compute_output.add(overhead);
        told.compute_input.add(0);
        told.queue.add(took.saturating_sub(computed).saturating_sub(overhead));
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Spent {
    fn add(&mut self, nanoseconds: u64) {
        self.count += 1;
        self.nanoseconds += nanoseconds;
    }
}
