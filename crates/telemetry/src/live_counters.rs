//! What is counted for those who watch live: of a second, and only while somebody does.

use std::collections::{BTreeMap, HashMap};

use tessera_deploy::HopTiming;

use crate::ended_request::{EndedRequest, RequestOutcome};
use crate::live_report::{LiveMemory, LiveRates, LiveReport, LiveTask, LiveTimes, LiveUnit};
use crate::request_summary::{run_fraction, unit_of};
use crate::sample::{InstanceSample, SystemSample, UnitSample};
use crate::sliding_histogram::SlidingHistogram;

/// Reports after which times are of a new period.
const PERIOD_REPORTS: u64 = 5;

/// What is counted since the last report.
#[derive(Default)]
pub(crate) struct LiveCounters {
    tasks: HashMap<String, TaskSecond>,
    units: HashMap<String, UnitSecond>,
    /// How long answers took, of all tasks.
    times: SlidingHistogram,
    reports: u64,
}

/// How requests ended.
#[derive(Clone, Copy, Default)]
struct EndedCounts {
    answered: u64,
    degraded: u64,
    failed: u64,
    refused: u64,
    cancelled: u64,
}

#[derive(Default)]
struct TaskSecond {
    ended: EndedCounts,
    /// Rows that left, by exit, and those that did not.
    exits: BTreeMap<String, u64>,
    stayed: u64,
    times: SlidingHistogram,
}

#[derive(Default)]
struct UnitSecond {
    requests: u64,
    runs: f64,
    computed: f64,
    waiting: SlidingHistogram,
    computing: SlidingHistogram,
}

impl EndedCounts {
    fn count(&mut self, outcome: RequestOutcome<'_>) {
        let counted = match outcome {
            RequestOutcome::Answered => &mut self.answered,
            RequestOutcome::Degraded(_) => {
                self.answered += 1;
                &mut self.degraded
            }
            RequestOutcome::Failed(_) => &mut self.failed,
            RequestOutcome::Refused(_) => &mut self.refused,
            RequestOutcome::Cancelled => &mut self.cancelled,
        };
        *counted += 1;
    }

    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.degraded += other.degraded;
        self.failed += other.failed;
        self.refused += other.refused;
        self.cancelled += other.cancelled;
    }

    fn rates(self, seconds: f64) -> LiveRates {
        let rate = |count: u64| count as f64 / seconds;
        LiveRates {
            answered_per_second: rate(self.answered),
            degraded_per_second: rate(self.degraded),
            failed_per_second: rate(self.failed),
            refused_per_second: rate(self.refused),
            cancelled_per_second: rate(self.cancelled),
        }
    }
}

fn live_times(histogram: &SlidingHistogram) -> LiveTimes {
    let [p50_ms, p90_ms, p99_ms] = [0.5, 0.9, 0.99].map(|share| histogram.quantile_ms(share));
    LiveTimes { p50_ms, p90_ms, p99_ms }
}

impl LiveCounters {
    /// Counts a request that has ended.
    pub(crate) fn count_request(&mut self, ended: &EndedRequest<'_>) {
        for hop in ended.hop_timings {
            self.count_hop(hop);
        }
        let is_answered =
            matches!(ended.outcome, RequestOutcome::Answered | RequestOutcome::Degraded(_));
        let task = match self.tasks.get_mut(ended.task) {
            Some(known) => known,
            None => self.tasks.entry(ended.task.to_owned()).or_default(),
        };
        task.ended.count(ended.outcome);
        if is_answered {
            let took = ended.ended.saturating_sub(ended.accepted);
            task.times.count_time(took);
            self.times.count_time(took);
        }
        if matches!(ended.outcome, RequestOutcome::Answered) {
            for exit in ended.exits {
                match exit {
                    Some(exit) => *task.exits.entry(exit.clone()).or_default() += 1,
                    None => task.stayed += 1,
                }
            }
        }
    }

    fn count_hop(&mut self, hop: &HopTiming) {
        let name = unit_of(&hop.instance);
        let unit = match self.units.get_mut(name) {
            Some(known) => known,
            None => self.units.entry(name.to_owned()).or_default(),
        };
        let share = run_fraction(hop);
        unit.requests += 1;
        unit.runs += share;
        unit.computed += hop.computed as f64 / 1e9 * share;
        unit.waiting.count_time(hop.waited);
        unit.computing.count_time(hop.computed);
    }

    /// What was done in the last so many seconds, with the system as it is now; counts anew.
    pub(crate) fn take_report(
        &mut self,
        sample: &SystemSample,
        at: u64,
        seconds: f64,
    ) -> LiveReport {
        let seconds = seconds.max(f64::EPSILON);
        let mut all = EndedCounts::default();
        self.tasks.values().for_each(|task| all.add(task.ended));
        let tasks = sample.tasks.iter().map(|known| {
            let mut live = LiveTask {
                name: known.name.clone(),
                version: known.version.clone(),
                ready: known.ready,
                in_flight: known.in_flight,
                ..LiveTask::default()
            };
            if let Some(task) = self.tasks.get(&known.name) {
                let rate = |count: u64| count as f64 / seconds;
                live.rates = task.ended.rates(seconds);
                live.times = live_times(&task.times);
                let exits = task.exits.iter();
                live.exits = exits.map(|(exit, &count)| (exit.clone(), rate(count))).collect();
                let has_exits = !task.exits.is_empty() || task.stayed > 0;
                live.stayed_per_second = has_exits.then(|| rate(task.stayed));
            }
            live
        });
        let report = LiveReport {
            at,
            seconds,
            rates: all.rates(seconds),
            times: live_times(&self.times),
            waiting: sample.waiting,
            tasks: tasks.collect(),
            units: self.report_units(sample, seconds),
            memory: report_memory(sample),
        };
        self.begin_second(sample);
        report
    }

    fn report_units(&self, sample: &SystemSample, seconds: f64) -> Vec<LiveUnit> {
        let mut instances: HashMap<&str, Vec<&InstanceSample>> = HashMap::new();
        for instance in &sample.instances {
            instances.entry(&instance.unit).or_default().push(instance);
        }
        let report = |known: &UnitSample| {
            let own = instances.get(known.name.as_str()).map_or(&[][..], Vec::as_slice);
            let mut weight_places = BTreeMap::new();
            for weights in own.iter().filter_map(|instance| instance.weights) {
                *weight_places.entry(weights.place.to_owned()).or_default() += 1;
            }
            let mut live = LiveUnit {
                name: known.name.clone(),
                tasks: known.tasks.clone(),
                device: known.device.clone(),
                weight_bytes: known.weight_bytes,
                instances: own.len(),
                up: own.iter().filter(|instance| instance.up).count(),
                restarts: own.iter().map(|instance| instance.restarts).sum(),
                in_flight: own.iter().map(|instance| instance.in_flight).sum(),
                weight_places,
                ..LiveUnit::default()
            };
            if let Some(unit) = self.units.get(&known.name) {
                live.requests_per_second = unit.requests as f64 / seconds;
                live.runs_per_second = unit.runs / seconds;
                live.busy = unit.computed / seconds;
                live.waiting_p50_ms = unit.waiting.quantile_ms(0.5);
                live.waiting_p99_ms = unit.waiting.quantile_ms(0.99);
                live.computing_p50_ms = unit.computing.quantile_ms(0.5);
                live.computing_p99_ms = unit.computing.quantile_ms(0.99);
            }
            live
        };
        sample.units.iter().map(report).collect()
    }

    fn begin_second(&mut self, sample: &SystemSample) {
        self.reports += 1;
        let is_new_period = self.reports.is_multiple_of(PERIOD_REPORTS);
        if is_new_period {
            self.times.end_period();
        }
        for task in self.tasks.values_mut() {
            (task.ended, task.stayed) = (EndedCounts::default(), 0);
            task.exits.values_mut().for_each(|count| *count = 0);
            if is_new_period {
                task.times.end_period();
            }
        }
        for unit in self.units.values_mut() {
            (unit.requests, unit.runs, unit.computed) = (0, 0.0, 0.0);
            if is_new_period {
                unit.waiting.end_period();
                unit.computing.end_period();
            }
        }
        if is_new_period {
            self.tasks.retain(|name, task| {
                !task.times.is_empty() || sample.tasks.iter().any(|known| known.name == *name)
            });
            self.units.retain(|_, unit| !unit.computing.is_empty());
        }
    }
}

/// What weights take of each device.
fn report_memory(sample: &SystemSample) -> Vec<LiveMemory> {
    let mut devices: BTreeMap<&str, LiveMemory> = BTreeMap::new();
    for unit in &sample.units {
        let own = devices.entry(&unit.device).or_default();
        own.weight_bytes += unit.weight_bytes;
        own.apart_bytes += unit.weight_bytes * unit.tasks.len().max(1) as u64;
    }
    for bounded in &sample.weight_memory {
        let own = devices.entry(&bounded.device).or_default();
        own.budget_bytes = Some(bounded.budget_bytes);
        own.used_bytes = Some(bounded.used_bytes);
    }
    let reported = devices.into_iter().map(|(device, memory)| LiveMemory {
        device: device.to_owned(),
        saved_bytes: memory.apart_bytes - memory.weight_bytes,
        ..memory
    });
    reported.collect()
}

#[cfg(test)]
mod tests {
    use tessera_core::Error;
    use tessera_tensormq::RequestId;

    use super::*;
    use crate::sample::{TaskSample, WeightMemorySample};

    fn ended<'a>(
        task: &'a str,
        milliseconds: u64,
        hop_timings: &'a [HopTiming],
        outcome: RequestOutcome<'a>,
    ) -> EndedRequest<'a> {
        EndedRequest {
            task,
            version: "1",
            request: RequestId(1),
            id: "",
            rows: 1,
            accepted: 1_000,
            ended: 1_000 + milliseconds * 1_000_000,
            hop_timings,
            exits: &[],
            outcome,
            retries: 0,
            trace: None,
        }
    }

    fn system() -> SystemSample {
        let task = |name: &str| TaskSample { name: name.to_owned(), ..TaskSample::default() };
        let unit = |name: &str, tasks: &[&str], weight_bytes| UnitSample {
            name: name.to_owned(),
            tasks: tasks.iter().map(|&task| task.to_owned()).collect(),
            device: "cpu".to_owned(),
            weight_bytes,
        };
        SystemSample {
            tasks: vec![task("ants"), task("bees")],
            units: vec![unit("trunk", &["ants", "bees"], 100), unit("head", &["ants"], 10)],
            weight_memory: vec![WeightMemorySample {
                device: "cpu".to_owned(),
                budget_bytes: 500,
                used_bytes: 110,
            }],
            ..SystemSample::default()
        }
    }

    #[test]
    fn a_second_is_told_once_and_times_for_longer() {
        let hop = HopTiming {
            instance: "trunk.0.1".to_owned(),
            computed: 250_000_000,
            waited: 2_000_000,
            batch: 2,
            rows: 1,
            ..HopTiming::default()
        };
        let hops = [hop];
        let mut live = LiveCounters::default();
        let error = Error::full("no");
        live.count_request(&ended("ants", 20, &hops, RequestOutcome::Answered));
        live.count_request(&ended("bees", 20, &hops, RequestOutcome::Degraded("late")));
        live.count_request(&ended("bees", 1, &[], RequestOutcome::Refused(&error)));
        let report = live.take_report(&system(), 7, 2.0);
        assert_eq!(report.rates.answered_per_second, 1.0);
        assert_eq!((report.rates.degraded_per_second, report.rates.refused_per_second), (0.5, 0.5));
        let p99 = report.tasks[0].times.p99_ms.unwrap();
        assert!((19.0..21.0).contains(&p99), "{p99}");
        // Two requests of one run.
        let trunk = &report.units[0];
        assert_eq!((trunk.requests_per_second, trunk.runs_per_second), (1.0, 0.5));
        assert_eq!(trunk.busy, 0.125);
        let memory = &report.memory[0];
        assert_eq!((memory.weight_bytes, memory.apart_bytes, memory.saved_bytes), (110, 210, 100));
        assert_eq!((memory.budget_bytes, memory.used_bytes), (Some(500), Some(110)));
        let next = live.take_report(&system(), 8, 1.0);
        assert_eq!(next.rates, LiveRates::default());
        assert_eq!(next.times, report.times);
        for _ in 0..2 * PERIOD_REPORTS {
            live.take_report(&system(), 9, 1.0);
        }
        assert_eq!(live.take_report(&system(), 9, 1.0).times, LiveTimes::default());
        assert!(live.units.is_empty());
    }

    #[test]
    fn rows_that_leave_are_told_beside_those_that_stay() {
        let exits = [Some("early".to_owned()), Some("early".to_owned()), None];
        let mut live = LiveCounters::default();
        let request = EndedRequest {
            exits: &exits,
            rows: 3,
            ..ended("ants", 5, &[], RequestOutcome::Answered)
        };
        live.count_request(&request);
        let report = live.take_report(&system(), 7, 1.0);
        assert_eq!(report.tasks[0].exits["early"], 2.0);
        assert_eq!(report.tasks[0].stayed_per_second, Some(1.0));
        assert_eq!(report.tasks[1].stayed_per_second, None);
    }
}
