//! Whether a request can be finished in time.
//!
//! Requests cost seconds of computing, which differ by task and are learnt from what past ones
//! took. What is waiting and on its way is the backlog; how fast it shrinks is measured, too. A
//! request is refused where backlog and its own cost would take longer than its deadline allows, or
//! where its inputs would take more memory than may wait.

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

/// How much there is to do, and how fast it gets done.
pub(crate) struct AdmissionControl {
    /// Seconds of computing per request, by task.
    costs: HashMap<String, f64>,
    /// Seconds of computing that were accepted and are not done.
    backlog: f64,
    /// Seconds of computing that get done in a second.
    speed: f64,
    /// Seconds of computing that were done since `since`.
    done: f64,
    since: Instant,
    requests: usize,
    /// Bytes of the inputs of requests, and the most that there may be.
    waiting_bytes: usize,
    most_waiting_bytes: usize,
}

impl AdmissionControl {
    pub(crate) fn new(cores: usize, most_waiting_bytes: usize) -> Self {
        Self {
            costs: HashMap::new(),
            backlog: 0.0,
            // Two cores do about two requests at a time.
            speed: cores.max(1) as f64,
            done: 0.0,
            since: Instant::now(),
            requests: 0,
            waiting_bytes: 0,
            most_waiting_bytes,
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

    /// How long a request that came now would take.
    fn estimate_duration(&self, cost: f64) -> Duration {
        // The backlog is shared by all; the request itself is computed by one.
        let seconds = self.backlog / self.speed + cost;
        Duration::from_secs_f64(seconds.clamp(0.0, 1e6))
    }

    /// Refuses what can't be finished in time, or has no room to wait.
    pub(crate) fn admit_request(
        &self,
        cost: f64,
        bytes: usize,
        allowed: Duration,
    ) -> Result<(), Refusal> {
        self.check_deadline(cost, allowed)?;
        if self.waiting_bytes > 0 && self.waiting_bytes + bytes > self.most_waiting_bytes {
            return Err(Refusal {
                error: Error::full(format!(
                    "{} MB of requests wait already",
                    self.waiting_bytes >> 20
                )),
                retry_after: Some(self.estimate_duration(cost)),
            });
        }
        Ok(())
    }

    fn check_deadline(&self, cost: f64, allowed: Duration) -> Result<(), Refusal> {
        let expected = self.estimate_duration(cost);
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
    pub(crate) fn add_request(&mut self, cost: f64, bytes: usize) {
        if self.requests == 0 {
            // Speed is measured while there is something to do.
            self.since = Instant::now();
            self.done = 0.0;
        }
        self.backlog += cost;
        self.requests += 1;
        self.waiting_bytes += bytes;
    }

    /// A request is gone that was expected to cost `expected`; `computed` is what it took, where it
    /// was computed to its end.
    pub(crate) fn remove_request(
        &mut self,
        task: &str,
        expected: f64,
        bytes: usize,
        computed: Option<f64>,
    ) {
        self.requests = self.requests.saturating_sub(1);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        self.backlog = if self.requests == 0 { 0.0 } else { (self.backlog - expected).max(0.0) };
        let Some(computed) = computed else {
            return;
        };
        let cost = self.costs.entry(task.to_owned()).or_insert(computed);
        *cost += COST_SMOOTHING * (computed - *cost);
        self.done += computed;
        let past = self.since.elapsed();
        if past >= SPEED_PERIOD {
            let seen = self.done / past.as_secs_f64();
            // A request that is alone says nothing of how many could be computed at once.
            if self.requests > 0 && seen > 0.0 {
                self.speed += 0.3 * (seen - self.speed);
            }
            self.since = Instant::now();
            self.done = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_late_is_refused_and_told_when_to_come_back() {
        let mut admission = AdmissionControl::new(2, usize::MAX);
        admission.set_initial_cost("ants", 0.1);
        for _ in 0..40 {
            admission.admit_request(0.1, 0, Duration::from_secs(4)).unwrap();
            admission.add_request(0.1, 0);
        }
        // Forty requests of 0.1 s on two cores take 2 s.
        assert!(admission.admit_request(0.1, 0, Duration::from_secs(4)).is_ok());
        let refusal = admission.admit_request(0.1, 0, Duration::from_secs(1)).unwrap_err();
        let wait = refusal.retry_after.unwrap().as_secs_f64();
        assert!((wait - 1.35).abs() < 0.01, "{wait}");
    }

    #[test]
    fn an_idle_server_takes_whatever_comes() {
        let mut admission = AdmissionControl::new(1, usize::MAX);
        admission.set_initial_cost("ants", 100.0);
        assert!(admission.admit_request(100.0, 0, Duration::from_millis(1)).is_ok());
        admission.add_request(100.0, 0);
        assert!(admission.admit_request(100.0, 0, Duration::from_millis(1)).is_err());
        admission.remove_request("ants", 100.0, 0, Some(0.1));
        assert!(admission.expected_cost("ants") < 100.0);
        assert!(admission.admit_request(100.0, 0, Duration::from_millis(1)).is_ok());
    }
}
