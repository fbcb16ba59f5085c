//! How long requests took lately, by unit: what a profile says is for an idle machine.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tessera_core::lock;
use tessera_deploy::UnitId;
use tessera_node::InstanceStatus;

/// Requests that are needed to say something.
const FEWEST_REQUESTS: u64 = 2;

/// How long requests took lately.
#[derive(Default)]
pub(super) struct RecentTimes(Mutex<HashMap<UnitId, RecentTime>>);

#[derive(Clone, Copy, Default)]
struct RecentTime {
    done: u64,
    run_us: u64,
    time: Option<Duration>,
}

impl RecentTimes {
    /// Looks at what instances did since the last time.
    pub(super) fn update(&self, statuses: &[InstanceStatus]) {
        let mut totals: HashMap<&UnitId, (u64, u64)> = HashMap::new();
        for status in statuses {
            let total = totals.entry(&status.unit).or_default();
            total.0 += status.heartbeat.done;
            total.1 += status.heartbeat.run_us;
        }
        let mut known = lock(&self.0);
        known.retain(|unit, _| totals.contains_key(unit));
        for (unit, (done, run_us)) in totals {
            let recent = known.entry(unit.clone()).or_default();
            let (more, took) =
                (done.saturating_sub(recent.done), run_us.saturating_sub(recent.run_us));
            if done < recent.done {
                // It was started again.
                *recent = RecentTime { done, run_us, time: recent.time };
            } else if more >= FEWEST_REQUESTS {
                let now = Duration::from_micros(took / more);
                let time = recent.time.map_or(now, |before| (before + now) / 2);
                *recent = RecentTime { done, run_us, time: Some(time) };
            }
        }
    }

    /// How long requests of a unit took lately, where there were any.
    pub(super) fn time_of(&self, unit: &UnitId) -> Option<Duration> {
        // In whole hundredths, so that it does not change all the time.
        let time = lock(&self.0).get(unit)?.time?;
        let step = (time.as_micros() / 100).max(1);
        Some(Duration::from_micros((time.as_micros() / step * step) as u64))
    }
}
