//! What is counted of tasks and blocks as requests end.

use std::collections::BTreeMap;

use tessera_core::ErrorKind;
use tessera_plan::Record;

use super::facts::{Times, block_of};
use super::histogram::{Histogram, OF_BATCHES, OF_BLOCKS, OF_REQUESTS};
use super::sample::Sample;
use crate::dispatcher::{Ended, EndedAs};

/// What is out of the sample for so long, in nanoseconds, is not told any more.
const TOLD_FOR: u64 = 300 * 1_000_000_000;

/// Most tasks, blocks, or versions of one task that are kept before those that are not told are
/// forgotten. A task that comes back goes on counting where it stopped, within this limit.
const MOST_KEPT: usize = 4096;

/// Why a request was not answered, in Triton's words.
pub(super) const REASONS: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

/// Everything that is counted. Times are of the host's monotonic clock, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) tasks: BTreeMap<String, TaskCounts>,
    pub(super) blocks: BTreeMap<String, BlockCounts>,
}

/// What is counted of a task, whatever its version.
#[derive(Clone, Debug)]
pub(super) struct TaskCounts {
    seen: u64,
    pub(super) versions: BTreeMap<String, VersionCounts>,
    /// Requests that were answered, from end to end.
    pub(super) duration: Histogram,
    /// Rows that left, by exit.
    pub(super) exits: BTreeMap<String, u64>,
    pub(super) degraded: u64,
    pub(super) retried: u64,
}

/// What is counted of a version of a task. Everything but failures is of requests that were answered.
#[derive(Clone, Debug, Default)]
pub(super) struct VersionCounts {
    seen: u64,
    pub(super) success: u64,
    /// By reason.
    pub(super) failures: BTreeMap<&'static str, u64>,
    pub(super) rows: u64,
    /// Runs of the first block, as far as they were this task's, see [`share`].
    pub(super) executions: f64,
    pub(super) duration: u64,
    pub(super) waited: u64,
    pub(super) computed: u64,
    pub(super) overhead: u64,
}

/// What is counted of a block.
#[derive(Clone, Debug)]
pub(super) struct BlockCounts {
    seen: u64,
    pub(super) waiting: Histogram,
    pub(super) computing: Histogram,
    pub(super) overhead: Histogram,
    pub(super) batch_rows: Histogram,
    /// By replica, so that one that is gone is not subtracted.
    restarts: BTreeMap<String, u64>,
}

impl Default for TaskCounts {
    fn default() -> Self {
        Self {
            seen: 0,
            versions: BTreeMap::new(),
            duration: Histogram::new(OF_REQUESTS),
            exits: BTreeMap::new(),
            degraded: 0,
            retried: 0,
        }
    }
}

impl Default for BlockCounts {
    fn default() -> Self {
        Self {
            seen: 0,
            waiting: Histogram::new(OF_BLOCKS),
            computing: Histogram::new(OF_BLOCKS),
            overhead: Histogram::new(OF_BLOCKS),
            batch_rows: Histogram::new(OF_BATCHES),
            restarts: BTreeMap::new(),
        }
    }
}

impl BlockCounts {
    pub(super) fn restarts(&self) -> u64 {
        self.restarts.values().sum()
    }
}

impl Counters {
    /// Counts a request that has ended.
    pub(super) fn note(&mut self, ended: &Ended<'_>) {
        for record in ended.records {
            let block = self.blocks.entry(block_of(&record.instance).to_owned()).or_default();
            block.seen = block.seen.max(ended.ended);
            block.waiting.add(seconds(record.waited), 1.0);
            block.computing.add(seconds(record.computed), 1.0);
            block.overhead.add(seconds(record.overhead), 1.0);
            block.batch_rows.add(record.batch as f64, share(record));
        }
        let task = self.tasks.entry(ended.task.to_owned()).or_default();
        task.seen = task.seen.max(ended.ended);
        task.retried += u64::from(ended.retries > 0);
        let version = task.versions.entry(ended.version.to_owned()).or_default();
        version.seen = version.seen.max(ended.ended);
        if let Some(reason) = reason(ended.outcome) {
            *version.failures.entry(reason).or_default() += 1;
            return;
        }
        let times = Times::of(ended);
        version.success += 1;
        version.rows += ended.rows as u64;
        version.executions += of_first_block(ended).map(share).sum::<f64>();
        version.duration += times.all;
        version.waited += times.waited;
        version.computed += times.computed;
        version.overhead += times.overhead;
        task.duration.add(seconds(times.all), 1.0);
        task.degraded += u64::from(matches!(ended.outcome, EndedAs::Degraded(_)));
        // An exit that answers because nothing else did was not taken.
        let taken = matches!(ended.outcome, EndedAs::Answered);
        for exit in ended.exits.iter().flatten().filter(|_| taken) {
            *task.exits.entry(exit.clone()).or_default() += 1;
        }
    }

    /// Notes which tasks and blocks there are.
    pub(super) fn see(&mut self, sample: &Sample, now: u64) {
        for task in &sample.tasks {
            let counts = self.tasks.entry(task.name.clone()).or_default();
            counts.seen = now;
            counts.versions.entry(task.version.clone()).or_default().seen = now;
            if counts.versions.len() > MOST_KEPT {
                counts.versions.retain(|_, version| is_told(version.seen, now));
            }
        }
        for instance in &sample.instances {
            let counts = self.blocks.entry(instance.block.clone()).or_default();
            counts.seen = now;
            let name = instance.instance.as_str();
            let replica = name.rsplit_once('.').map_or(name, |(replica, _)| replica);
            let restarts = counts.restarts.entry(replica.to_owned()).or_default();
            *restarts = (*restarts).max(instance.restarts);
        }
        if self.tasks.len() > MOST_KEPT {
            self.tasks.retain(|_, task| is_told(task.seen, now));
        }
        if self.blocks.len() > MOST_KEPT {
            self.blocks.retain(|_, block| is_told(block.seen, now));
        }
    }

    /// A copy of what is to be told.
    pub(super) fn told(&self, now: u64) -> Self {
        let mut tasks: BTreeMap<String, TaskCounts> = self
            .tasks
            .iter()
            .filter(|(_, task)| is_told(task.seen, now))
            .map(|(name, task)| (name.clone(), task.clone()))
            .collect();
        for task in tasks.values_mut() {
            task.versions.retain(|_, version| is_told(version.seen, now));
        }
        let blocks = self
            .blocks
            .iter()
            .filter(|(_, block)| is_told(block.seen, now))
            .map(|(name, block)| (name.clone(), block.clone()))
            .collect();
        Self { tasks, blocks }
    }
}

fn is_told(seen: u64, now: u64) -> bool {
    now.saturating_sub(seen) < TOLD_FOR
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Why a request was not answered; `None` where it was.
fn reason(outcome: EndedAs<'_>) -> Option<&'static str> {
    match outcome {
        EndedAs::Answered | EndedAs::Degraded(_) => None,
        EndedAs::Refused(_) => Some("REJECTED"),
        EndedAs::GivenUp => Some("CANCELED"),
        EndedAs::Failed(error) => Some(match error.kind() {
            ErrorKind::Engine | ErrorKind::Lost => "BACKEND",
            _ => "OTHER",
        }),
    }
}

/// The records of the block that a request came to first.
fn of_first_block<'a>(ended: &Ended<'a>) -> impl Iterator<Item = &'a Record> {
    let first = ended.records.first().map(|record| block_of(&record.instance));
    ended.records.iter().filter(move |record| Some(block_of(&record.instance)) == first)
}

/// A request's share of a run. Every request of a batch has a record of the same run: with its share of
/// the rows, the run is counted once in the end, whoever it was for.
fn share(record: &Record) -> f64 {
    let batch = record.batch.max(1);
    record.rows.clamp(1, batch) as f64 / batch as f64
}

#[cfg(test)]
mod tests {
    use tessera_tensormq::RequestId;

    use super::super::sample::{InstanceSample, TaskSample};
    use super::*;

    fn answered(records: &[Record], rows: usize, ended: u64) -> Ended<'_> {
        Ended {
            task: "ants",
            version: "1",
            request: RequestId(1),
            id: "",
            rows,
            accepted: 0,
            ended,
            records,
            exits: &[],
            outcome: EndedAs::Answered,
            retries: 0,
            trace: None,
        }
    }

    fn sample(restarts: &[(&str, u64)]) -> Sample {
        let instance = |&(name, restarts): &(&str, u64)| InstanceSample {
            block: block_of(name).to_owned(),
            instance: name.to_owned(),
            restarts,
            ..InstanceSample::default()
        };
        Sample {
            tasks: vec![TaskSample {
                name: "ants".to_owned(),
                version: "1".to_owned(),
                ..TaskSample::default()
            }],
            instances: restarts.iter().map(instance).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn a_run_counts_once_however_its_rows_came() {
        let record =
            |batch, rows| Record { instance: "a.0.1".to_owned(), batch, rows, ..Record::default() };
        let mut counters = Counters::default();
        // One run for four requests of a row, one for two of two rows, one for one whose four rows
        // travelled on their own.
        let (of_one, of_two) = ([record(4, 1)], [record(4, 2)]);
        let apart = [record(4, 1), record(4, 1), record(4, 1), record(4, 1)];
        for _ in 0..4 {
            counters.note(&answered(&of_one, 1, 1));
        }
        for _ in 0..2 {
            counters.note(&answered(&of_two, 2, 1));
        }
        counters.note(&answered(&apart, 4, 1));
        let runs = counters.blocks["a"].batch_rows.cumulative().last();
        assert_eq!(runs, Some((f64::INFINITY, 3.0)));
        assert_eq!(counters.tasks["ants"].versions["1"].executions, 3.0);
        assert_eq!(counters.tasks["ants"].versions["1"].rows, 12);
    }

    #[test]
    fn what_is_gone_is_not_told_and_goes_on_when_it_comes_back() {
        let mut counters = Counters::default();
        counters.see(&sample(&[("a.0.1", 0)]), 1);
        counters.note(&answered(&[], 1, 2));
        assert_eq!(counters.told(TOLD_FOR).tasks["ants"].versions["1"].success, 1);
        let later = counters.told(TOLD_FOR + 2);
        assert!(later.tasks.is_empty() && later.blocks.is_empty());
        counters.see(&sample(&[]), TOLD_FOR + 3);
        let back = counters.told(TOLD_FOR + 4);
        assert_eq!(back.tasks["ants"].versions["1"].success, 1);
        assert!(back.blocks.is_empty());
    }

    #[test]
    fn restarts_of_a_block_never_shrink() {
        let mut counters = Counters::default();
        for (restarts, expected) in [
            (&[("a.0.1", 0), ("a.1.1", 0)][..], 0),
            (&[("a.0.2", 1), ("a.1.3", 2)][..], 3),
            (&[("a.0.3", 2)][..], 4),
        ] {
            counters.see(&sample(restarts), 1);
            assert_eq!(counters.blocks["a"].restarts(), expected);
        }
    }
}
