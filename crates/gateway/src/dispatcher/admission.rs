//! Whether a request can be finished in time.
//!
//! Requests cost seconds of computing, which differ by task and are learnt from what past ones took.
//! What is waiting and on its way is the backlog; how fast it shrinks is measured, too. A request is
//! refused where backlog and its own cost would take longer than its deadline allows.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tessera_core::Error;

use crate::service::Refusal;

/// A request is accepted where it is expected to take at most this part of the time that it has: the
/// estimate is a mean, and deadlines are for the slow ones, too.
const PART: f64 = 0.75;
/// How fast what is learnt follows what is seen.
const FOLLOWS: f64 = 0.1;
/// How much computing is looked at before the speed is taken anew.
const PERIOD: Duration = Duration::from_millis(200);

/// How much there is to do, and how fast it gets done.
pub(super) struct Load {
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
}

impl Load {
    pub(super) fn new(cores: usize) -> Self {
        Self {
            costs: HashMap::new(),
            backlog: 0.0,
            // Two cores do about two requests at a time.
            speed: cores.max(1) as f64,
            done: 0.0,
            since: Instant::now(),
            requests: 0,
        }
    }

    /// What a request of a task is expected to cost.
    pub(super) fn cost(&self, task: &str) -> f64 {
        self.costs.get(task).copied().unwrap_or(0.0)
    }

    /// What is known of a task before its first request.
    pub(super) fn expect(&mut self, task: &str, seconds: f64) {
        self.costs.entry(task.to_owned()).or_insert(seconds);
    }

    pub(super) fn forget(&mut self, is_there: impl Fn(&str) -> bool) {
        self.costs.retain(|task, _| is_there(task));
    }

    /// How long a request that came now would take.
    pub(super) fn estimate(&self, cost: f64) -> Duration {
        // The backlog is shared by all; the request itself is computed by one.
        let seconds = self.backlog / self.speed + cost;
        Duration::from_secs_f64(seconds.clamp(0.0, 1e6))
    }

    /// Refuses what can't be finished in time.
    pub(super) fn admit(&self, cost: f64, allowed: Duration) -> Result<(), Refusal> {
        let expected = self.estimate(cost);
        let limit = allowed.mul_f64(PART);
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
    pub(super) fn add(&mut self, cost: f64) {
        if self.requests == 0 {
            // Speed is measured while there is something to do.
            self.since = Instant::now();
            self.done = 0.0;
        }
        self.backlog += cost;
        self.requests += 1;
    }

    /// A request is gone that was expected to cost `expected`; `computed` is what it took, where it was
    /// computed to its end.
    pub(super) fn remove(&mut self, task: &str, expected: f64, computed: Option<f64>) {
        self.requests = self.requests.saturating_sub(1);
        self.backlog = if self.requests == 0 { 0.0 } else { (self.backlog - expected).max(0.0) };
        let Some(computed) = computed else {
            return;
        };
        let cost = self.costs.entry(task.to_owned()).or_insert(computed);
        *cost += FOLLOWS * (computed - *cost);
        self.done += computed;
        let past = self.since.elapsed();
        if past >= PERIOD {
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
        let mut load = Load::new(2);
        load.expect("ants", 0.1);
        for _ in 0..40 {
            load.admit(0.1, Duration::from_secs(4)).unwrap();
            load.add(0.1);
        }
        // Forty requests of 0.1 s on two cores take 2 s.
        assert!(load.admit(0.1, Duration::from_secs(4)).is_ok());
        let refusal = load.admit(0.1, Duration::from_secs(1)).unwrap_err();
        let wait = refusal.retry_after.unwrap().as_secs_f64();
        assert!((wait - 1.35).abs() < 0.01, "{wait}");
    }

    #[test]
    fn an_idle_server_takes_whatever_comes() {
        let mut load = Load::new(1);
        load.expect("ants", 100.0);
        assert!(load.admit(100.0, Duration::from_millis(1)).is_ok());
        load.add(100.0);
        assert!(load.admit(100.0, Duration::from_millis(1)).is_err());
        load.remove("ants", 100.0, Some(0.1));
        assert!(load.cost("ants") < 100.0);
        assert!(load.admit(100.0, Duration::from_millis(1)).is_ok());
    }
}
