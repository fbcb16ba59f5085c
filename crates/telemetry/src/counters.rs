//! What is counted of tasks and units as requests end.

use std::collections::BTreeMap;

use tessera_core::ErrorKind;

use crate::ended_request::{EndedRequest, RequestOutcome};
use crate::histogram::{BATCH_BUCKETS, Histogram, REQUEST_BUCKETS, UNIT_BUCKETS};
use crate::request_summary::{RequestTimes, first_unit_runs, run_fraction, unit_of};
use crate::sample::SystemSample;

/// What is out of the sample for so long, in nanoseconds, is not told any more.
const EXPOSED_FOR: u64 = 300 * 1_000_000_000;

/// Most tasks, units, or versions of one task that are kept before those that are not told are
/// forgotten. A task that comes back goes on counting where it stopped, within this limit.
const MOST_KEPT: usize = 4096;

/// Why a request was not answered, in Triton's words.
pub(crate) const FAILURE_REASONS: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

/// Everything that is counted. Times are of the host's monotonic clock, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestCounters {
    pub(crate) tasks: BTreeMap<String, TaskCounts>,
    pub(crate) units: BTreeMap<String, UnitCounts>,
}

/// What is counted of a task, whatever its version.
#[derive(Clone, Debug)]
pub(crate) struct TaskCounts {
    seen: u64,
    pub(crate) versions: BTreeMap<String, VersionCounts>,
    /// Requests that were answered, from end to end.
    pub(crate) duration: Histogram,
    /// Rows that left, by exit.
    pub(crate) exits: BTreeMap<String, u64>,
    pub(crate) degraded: u64,
    pub(crate) retried: u64,
}

/// What is counted of a version of a task. Everything but failures is of requests that were
/// answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionCounts {
    seen: u64,
    pub(crate) success: u64,
    /// By reason.
    pub(crate) failures: BTreeMap<&'static str, u64>,
    pub(crate) rows: u64,
    /// Runs of the first unit, as far as they were this task's, see [`run_fraction`].
    pub(crate) executions: f64,
    pub(crate) duration: u64,
    pub(crate) waited: u64,
    pub(crate) computed: u64,
    pub(crate) overhead: u64,
}

/// What is counted of a unit.
#[derive(Clone, Debug)]
pub(crate) struct UnitCounts {
    seen: u64,
    pub(crate) waiting: Histogram,
    pub(crate) computing: Histogram,
    pub(crate) overhead: Histogram,
    pub(crate) batch_rows: Histogram,
    /// By replica, so that one that is gone is not subtracted.
    restarts: BTreeMap<String, u64>,
}

impl Default for TaskCounts {
    fn default() -> Self {
        Self {
            seen: 0,
            versions: BTreeMap::new(),
            duration: Histogram::new(REQUEST_BUCKETS),
            exits: BTreeMap::new(),
            degraded: 0,
            retried: 0,
        }
    }
}

impl Default for UnitCounts {
    fn default() -> Self {
        Self {
            seen: 0,
            waiting: Histogram::new(UNIT_BUCKETS),
            computing: Histogram::new(UNIT_BUCKETS),
            overhead: Histogram::new(UNIT_BUCKETS),
            batch_rows: Histogram::new(BATCH_BUCKETS),
            restarts: BTreeMap::new(),
        }
    }
}

impl UnitCounts {
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.values().sum()
    }
}

impl RequestCounters {
    /// Counts a request that has ended.
    pub(crate) fn count_request(&mut self, ended: &EndedRequest<'_>) {
        for hop in ended.hop_timings {
            let unit = self.units.entry(unit_of(&hop.instance).to_owned()).or_default();
            unit.seen = unit.seen.max(ended.ended);
            unit.waiting.observe_value(to_seconds(hop.waited), 1.0);
            unit.computing.observe_value(to_seconds(hop.computed), 1.0);
            unit.overhead.observe_value(to_seconds(hop.overhead), 1.0);
            unit.batch_rows.observe_value(hop.batch as f64, run_fraction(hop));
        }
        let task = self.tasks.entry(ended.task.to_owned()).or_default();
        task.seen = task.seen.max(ended.ended);
        task.retried += u64::from(ended.retries > 0);
        let version = task.versions.entry(ended.version.to_owned()).or_default();
        version.seen = version.seen.max(ended.ended);
        if let Some(reason) = failure_reason(ended.outcome) {
            *version.failures.entry(reason).or_default() += 1;
            return;
        }
        let times = RequestTimes::from_ended(ended);
        version.success += 1;
        version.rows += ended.rows as u64;
        version.executions += first_unit_runs(ended);
        version.duration += times.all;
        version.waited += times.waited;
        version.computed += times.computed;
        version.overhead += times.overhead;
        task.duration.observe_value(to_seconds(times.all), 1.0);
        task.degraded += u64::from(matches!(ended.outcome, RequestOutcome::Degraded(_)));
        // An exit that answers because nothing else did was not taken.
        let taken = matches!(ended.outcome, RequestOutcome::Answered);
        for exit in ended.exits.iter().flatten().filter(|_| taken) {
            *task.exits.entry(exit.clone()).or_default() += 1;
        }
    }

    /// Notes which tasks and units there are.
    pub(crate) fn apply_sample(&mut self, sample: &SystemSample, now: u64) {
        for task in &sample.tasks {
            let counts = self.tasks.entry(task.name.clone()).or_default();
            counts.seen = now;
            counts.versions.entry(task.version.clone()).or_default().seen = now;
            if counts.versions.len() > MOST_KEPT {
                counts.versions.retain(|_, version| is_exposed(version.seen, now));
            }
        }
        for instance in &sample.instances {
            let counts = self.units.entry(instance.unit.clone()).or_default();
            counts.seen = now;
            let name = instance.instance.as_str();
            let replica = name.rsplit_once('.').map_or(name, |(replica, _)| replica);
            let restarts = counts.restarts.entry(replica.to_owned()).or_default();
            *restarts = (*restarts).max(instance.restarts);
        }
        if self.tasks.len() > MOST_KEPT {
            self.tasks.retain(|_, task| is_exposed(task.seen, now));
        }
        if self.units.len() > MOST_KEPT {
            self.units.retain(|_, unit| is_exposed(unit.seen, now));
        }
    }

    /// A copy of what is to be told.
    pub(crate) fn exposed_counters(&self, now: u64) -> Self {
        let mut tasks: BTreeMap<String, TaskCounts> = self
            .tasks
            .iter()
            .filter(|(_, task)| is_exposed(task.seen, now))
            .map(|(name, task)| (name.clone(), task.clone()))
            .collect();
        for task in tasks.values_mut() {
            task.versions.retain(|_, version| is_exposed(version.seen, now));
        }
        let units = self
            .units
            .iter()
            .filter(|(_, unit)| is_exposed(unit.seen, now))
            .map(|(name, unit)| (name.clone(), unit.clone()))
            .collect();
        Self { tasks, units }
    }
}

fn is_exposed(seen: u64, now: u64) -> bool {
    now.saturating_sub(seen) < EXPOSED_FOR
}

fn to_seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Why a request was not answered; `None` where it was.
fn failure_reason(outcome: RequestOutcome<'_>) -> Option<&'static str> {
    match outcome {
        RequestOutcome::Answered | RequestOutcome::Degraded(_) => None,
        RequestOutcome::Refused(_) => Some("REJECTED"),
        RequestOutcome::Cancelled => Some("CANCELED"),
        RequestOutcome::Failed(error) => Some(match error.kind() {
            ErrorKind::Engine | ErrorKind::Lost => "BACKEND",
            _ => "OTHER",
        }),
    }
}

#[cfg(test)]
mod tests {
    use tessera_deploy::HopTiming;
    use tessera_tensormq::RequestId;

    use super::*;
    use crate::sample::{InstanceSample, TaskSample};

    fn answered(hop_timings: &[HopTiming], rows: usize, ended: u64) -> EndedRequest<'_> {
        EndedRequest {
            task: "ants",
            version: "1",
            request: RequestId(1),
            id: "",
            rows,
            accepted: 0,
            ended,
            hop_timings,
            exits: &[],
            outcome: RequestOutcome::Answered,
            retries: 0,
            trace: None,
        }
    }

    fn sample(restarts: &[(&str, u64)]) -> SystemSample {
        let instance = |&(name, restarts): &(&str, u64)| InstanceSample {
            unit: unit_of(name).to_owned(),
            instance: name.to_owned(),
            restarts,
            ..InstanceSample::default()
        };
        SystemSample {
            tasks: vec![TaskSample {
                name: "ants".to_owned(),
                version: "1".to_owned(),
                ..TaskSample::default()
            }],
            instances: restarts.iter().map(instance).collect(),
            ..SystemSample::default()
        }
    }

    #[test]
    fn a_run_counts_once_however_its_rows_came() {
        let hop = |batch, rows| HopTiming {
            instance: "a.0.1".to_owned(),
            batch,
            rows,
            ..HopTiming::default()
        };
        let mut counters = RequestCounters::default();
        // One run for four requests of a row, one for two of two rows, one for one whose four rows
        // travelled on their own.
        let (of_one, of_two) = ([hop(4, 1)], [hop(4, 2)]);
        let apart = [hop(4, 1), hop(4, 1), hop(4, 1), hop(4, 1)];
        for _ in 0..4 {
            counters.count_request(&answered(&of_one, 1, 1));
        }
        for _ in 0..2 {
            counters.count_request(&answered(&of_two, 2, 1));
        }
        counters.count_request(&answered(&apart, 4, 1));
        let runs = counters.units["a"].batch_rows.cumulative_counts().last();
        assert_eq!(runs, Some((f64::INFINITY, 3.0)));
        assert_eq!(counters.tasks["ants"].versions["1"].executions, 3.0);
        assert_eq!(counters.tasks["ants"].versions["1"].rows, 12);
    }

    #[test]
    fn what_is_gone_is_not_told_and_goes_on_when_it_comes_back() {
        let mut counters = RequestCounters::default();
        counters.apply_sample(&sample(&[("a.0.1", 0)]), 1);
        counters.count_request(&answered(&[], 1, 2));
        assert_eq!(counters.exposed_counters(EXPOSED_FOR).tasks["ants"].versions["1"].success, 1);
        let later = counters.exposed_counters(EXPOSED_FOR + 2);
        assert!(later.tasks.is_empty() && later.units.is_empty());
        counters.apply_sample(&sample(&[]), EXPOSED_FOR + 3);
        let back = counters.exposed_counters(EXPOSED_FOR + 4);
        assert_eq!(back.tasks["ants"].versions["1"].success, 1);
        assert!(back.units.is_empty());
    }

    #[test]
    fn restarts_of_a_unit_never_shrink() {
        let mut counters = RequestCounters::default();
        for (restarts, expected) in [
            (&[("a.0.1", 0), ("a.1.1", 0)][..], 0),
            (&[("a.0.2", 1), ("a.1.3", 2)][..], 3),
            (&[("a.0.3", 2)][..], 4),
        ] {
            counters.apply_sample(&sample(restarts), 1);
            assert_eq!(counters.units["a"].restarts(), expected);
        }
    }
}
