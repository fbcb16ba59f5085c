//! Whether a request can be finished in time.
//!
//! Requests cost seconds of computing, which differ by task and are learnt from what past ones
//! took. What is waiting and on its way is the backlog; how fast it shrinks is measured, too. Tasks
//! share the cores by their weights: while a task's own backlog is worked off, another gets as much
//! as its weight says, and no more than it has to do. A request is refused where that would take
//! longer than its deadline allows, or where its inputs would take more memory than may wait. Where
//! others send to the same units, what was waited there lately is the least that it takes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tessera_core::Error;

use crate::inference::Refusal;

/// A request is accepted where it is expected to take at most this part of the time that it has:
/// the estimate is a mean, and deadlines are for the slow ones, too.
const DEADLINE_FRACTION: f64 = 0.75;
/// How fast what is learnt follows what is seen.
const COST_SMOOTHING: f64 = 0.1;
/// How much computing is looked at before the speed is taken anew.
const SPEED_PERIOD: Duration = Duration::from_millis(200);
/// What was done in more than this, or ten times what a request takes, says nothing of speed.
const LONGEST_SPEED_PERIOD: Duration = Duration::from_secs(5);

/// The part of the memory for waiting requests that one task may have: the rest is for others.
const MOST_OF_ONE_TASK: f64 = 0.75;

/// How much there is to do, and how fast it gets done.
pub(crate) struct AdmissionControl {
    /// Seconds of computing per request, by task.
    costs: HashMap<String, f64>,
    /// What tasks with requests under way have to do.
    loads: HashMap<String, TaskLoad>,
    /// Seconds of computing that get done in a second.
    speed: f64,
    /// Whether that was measured.
    is_measured: bool,
    /// Seconds of computing that were done since `since`.
    done: f64,
    since: Instant,
    requests: usize,
    /// Bytes of the inputs of requests, and the most that there may be.
    waiting_bytes: usize,
    most_waiting_bytes: usize,
}

/// What a task has to do.
#[derive(Clone, Copy, Debug, Default)]
struct TaskLoad {
    weight: f64,
    /// Seconds of computing that were accepted and are not done.
    backlog: f64,
    requests: usize,
    bytes: usize,
}

/// A request that may be accepted, or was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLoad<'a> {
    pub(crate) task: &'a str,
    pub(crate) weight: u64,
    /// Seconds of computing that it is expected to cost.
    pub(crate) cost: f64,
    /// Bytes of its inputs.
    pub(crate) bytes: usize,
    /// Seconds that others waited lately at the units that it passes.
    pub(crate) waiting: f64,
}

impl AdmissionControl {
    pub(crate) fn new(cores: usize, most_waiting_bytes: usize) -> Self {
        Self {
            costs: HashMap::new(),
            loads: HashMap::new(),
            // Two cores do about two requests at a time.
            speed: cores.max(1) as f64,
            is_measured: false,
            done: 0.0,
            since: Instant::now(),
            requests: 0,
            waiting_bytes: 0,
            most_waiting_bytes,
        }
    }

    /// So many cores compute from now on: what is believed until it is measured.
    pub(crate) fn set_cores(&mut self, cores: usize) {
        if !self.is_measured {
            self.speed = cores.max(1) as f64;
        }
    }

    /// What a request of a task is expected to cost.
    pub(crate) fn expected_cost(&self, task: &str) -> f64 {
        self.costs.get(task).copied().unwrap_or(0.0)
    }

    /// What is known of a task before its first request.
    pub(crate) fn set_initial_cost(&mut self, task: &str, seconds: f64) {
        self.costs.entry(task.to_owned()).or_insert(seconds);
    }

    /// A task is gone: another of its name may cost something else.
    pub(crate) fn forget_task(&mut self, task: &str) {
        self.costs.remove(task);
    }

    /// How long a request takes of its task's share of the cores, beside the tasks that have
    /// something to do.
    pub(crate) fn share_time(&self, request: &RequestLoad<'_>) -> f64 {
        let weight = request.weight.max(1) as f64;
        let others = self.loads.iter().filter(|(task, _)| *task != request.task);
        let all: f64 = weight + others.map(|(_, load)| load.weight).sum::<f64>();
        request.cost * all / weight / self.speed
    }

    /// How long a request that came now would take.
    fn estimate_duration(&self, request: &RequestLoad<'_>) -> Duration {
        let weight = request.weight.max(1) as f64;
        let own = self.loads.get(request.task).map_or(0.0, |load| load.backlog);
        let others = self.loads.iter().filter(|(task, _)| *task != request.task);
        let others =
            others.map(|(_, load)| load.backlog.min((own + request.cost) * load.weight / weight));
        // The backlog is shared by all cores; the request itself is computed by one.
        let waiting = (own + others.sum::<f64>()) / self.speed;
        let seconds = waiting.max(request.waiting) + request.cost;
        Duration::from_secs_f64(seconds.clamp(0.0, 1e6))
    }

    /// Refuses what can't be finished in time, or has no room to wait.
    pub(crate) fn admit_request(
        &self,
        request: &RequestLoad<'_>,
        allowed: Duration,
    ) -> Result<(), Refusal> {
        self.check_deadline(request, allowed)?;
        let own = self.loads.get(request.task).map_or(0, |load| load.bytes);
        let most_of_one = (self.most_waiting_bytes as f64 * MOST_OF_ONE_TASK) as usize;
        let is_full = self.waiting_bytes.saturating_add(request.bytes) > self.most_waiting_bytes
            || own > 0 && own.saturating_add(request.bytes) > most_of_one;
        if self.waiting_bytes > 0 && is_full {
            return Err(Refusal {
                error: Error::full(format!(
                    "{} MB of requests wait already",
                    self.waiting_bytes >> 20
                )),
                retry_after: Some(self.estimate_duration(request)),
            });
        }
        Ok(())
    }

    fn check_deadline(&self, request: &RequestLoad<'_>, allowed: Duration) -> Result<(), Refusal> {
        let expected = self.estimate_duration(request);
        let limit = allowed.mul_f64(DEADLINE_FRACTION);
        // Whoever is alone is never refused: there may be no estimate, or a wrong one.
        if self.requests == 0 || expected <= limit {
            return Ok(());
        }
        Err(Refusal {
            error: Error::full(format!(
                "it would take about {:.1} ms with {} requests before it, and has {:.1} ms",
                expected.as_secs_f64() * 1e3,
                self.requests,
                allowed.as_secs_f64() * 1e3
            )),
            retry_after: Some(expected.saturating_sub(limit)),
        })
    }

    /// A request was accepted.
    pub(crate) fn add_request(&mut self, request: &RequestLoad<'_>) {
        if self.requests == 0 {
            // Speed is measured while there is something to do.
            self.since = Instant::now();
            self.done = 0.0;
        }
        let load = self.loads.entry(request.task.to_owned()).or_default();
        load.weight = request.weight.max(1) as f64;
        load.backlog += request.cost;
        load.requests += 1;
        load.bytes += request.bytes;
        self.requests += 1;
        self.waiting_bytes += request.bytes;
    }

    /// A request is gone; `computed` is what it took, where it was computed to its end. Says whether
    /// its task has none left.
    pub(crate) fn remove_request(
        &mut self,
        request: &RequestLoad<'_>,
        computed: Option<f64>,
    ) -> bool {
        self.requests = self.requests.saturating_sub(1);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(request.bytes);
        let is_last = self.loads.get_mut(request.task).is_none_or(|load| {
            load.requests = load.requests.saturating_sub(1);
            load.bytes = load.bytes.saturating_sub(request.bytes);
            load.backlog = (load.backlog - request.cost).max(0.0);
            load.requests == 0
        });
        if is_last {
            self.loads.remove(request.task);
        }
        if let Some(computed) = computed {
            self.learn_cost(request.task, computed);
        }
        is_last
    }

    fn learn_cost(&mut self, task: &str, computed: f64) {
        let cost = self.costs.entry(task.to_owned()).or_insert(computed);
        *cost += COST_SMOOTHING * (computed - *cost);
        self.done += computed;
        let past = self.since.elapsed();
        if past >= SPEED_PERIOD {
            let seen = self.done / past.as_secs_f64();
            // A request that is alone says nothing of how many could be computed at once, and where
            // none was finished for long nothing was computed.
            let longest = Duration::from_secs_f64((10.0 * computed).clamp(0.0, 1e6));
            let is_telling = past < LONGEST_SPEED_PERIOD.max(longest);
            if self.requests > 0 && seen > 0.0 && is_telling {
                self.speed += 0.3 * (seen - self.speed);
                self.is_measured = true;
            }
            self.since = Instant::now();
            self.done = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(task: &str, cost: f64) -> RequestLoad<'_> {
        RequestLoad { task, weight: 1, cost, bytes: 0, waiting: 0.0 }
    }

    #[test]
    fn what_would_be_late_is_refused_and_told_when_to_come_back() {
        let mut admission = AdmissionControl::new(2, usize::MAX);
        admission.set_initial_cost("ants", 0.1);
        for _ in 0..40 {
            admission.admit_request(&load("ants", 0.1), Duration::from_secs(4)).unwrap();
            admission.add_request(&load("ants", 0.1));
        }
        // Forty requests of 0.1 s on two cores take 2 s.
        assert!(admission.admit_request(&load("ants", 0.1), Duration::from_secs(4)).is_ok());
        let refused = admission.admit_request(&load("ants", 0.1), Duration::from_secs(1));
        let wait = refused.unwrap_err().retry_after.unwrap().as_secs_f64();
        assert!((wait - 1.35).abs() < 0.01, "{wait}");
    }

    #[test]
    fn an_idle_server_takes_whatever_comes() {
        let mut admission = AdmissionControl::new(1, usize::MAX);
        admission.set_initial_cost("ants", 100.0);
        let (request, moment) = (load("ants", 100.0), Duration::from_millis(1));
        assert!(admission.admit_request(&request, moment).is_ok());
        admission.add_request(&request);
        assert!(admission.admit_request(&request, moment).is_err());
        assert!(admission.remove_request(&request, Some(0.1)));
        assert!(admission.expected_cost("ants") < 100.0);
        assert!(admission.admit_request(&request, moment).is_ok());
    }

    #[test]
    fn what_others_have_to_do_at_the_same_units_counts_as_soon_as_it_is_seen() {
        let mut admission = AdmissionControl::new(16, usize::MAX);
        // What computes has one core, whatever is here.
        admission.set_cores(1);
        for _ in 0..4 {
            admission.add_request(&load("ants", 0.1));
        }
        let request = load("ants", 0.1);
        assert!((admission.estimate_duration(&request).as_secs_f64() - 0.5).abs() < 1e-9);
        let half = Duration::from_millis(800);
        assert!(admission.admit_request(&request, half).is_ok());
        let behind_others = RequestLoad { waiting: 0.7, ..request };
        assert!(admission.admit_request(&behind_others, half).is_err());
        assert!(admission.admit_request(&behind_others, 2 * half).is_ok());
    }

    #[test]
    fn a_task_that_asks_for_little_is_not_refused_for_one_that_asks_for_much() {
        let mut admission = AdmissionControl::new(1, 1000);
        for _ in 0..900 {
            admission.add_request(&load("ants", 0.1));
        }
        let soon = Duration::from_millis(100);
        assert!(admission.admit_request(&load("ants", 0.1), soon).is_err());
        assert!(admission.admit_request(&load("bees", 0.001), soon).is_ok());
        // Of two with much to do each gets its half, or what its weight says.
        admission.add_request(&load("bees", 10.0));
        let seconds = |weight| {
            let request = RequestLoad { weight, ..load("bees", 1.0) };
            admission.estimate_duration(&request).as_secs_f64()
        };
        assert!((seconds(1) - (10.0 + 11.0 + 1.0)).abs() < 1e-6, "{}", seconds(1));
        assert!((seconds(11) - (10.0 + 1.0 + 1.0)).abs() < 1e-6, "{}", seconds(11));
        // Some of the memory is for others, too.
        admission.add_request(&RequestLoad { bytes: 700, ..load("ants", 0.0) });
        let more = |task, bytes| RequestLoad { bytes, ..load(task, 0.0) };
        let long = Duration::from_secs(1000);
        assert!(admission.admit_request(&more("ants", 100), long).is_err());
        assert!(admission.admit_request(&more("bees", 100), long).is_ok());
    }
}
