//! How long requests waited at units lately, as their replies tell: also behind those of other
//! gateways, of which nobody here knows anything else.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tessera_deploy::UnitId;

/// For how long it is believed: where it was long, fewer replies tell that it is not any more.
const MEMORY: Duration = Duration::from_secs(1);

/// How long requests waited at units.
#[derive(Default)]
pub(crate) struct UnitWaits(HashMap<UnitId, SeenWait>);

struct SeenWait {
    at: Instant,
    seconds: f64,
}

impl UnitWaits {
    /// A request has waited at a unit.
    pub(crate) fn note_wait(&mut self, unit: UnitId, wait: Duration, now: Instant) {
        let seconds = wait.as_secs_f64();
        let before = self.0.get(&unit).filter(|seen| seen.is_recent(now));
        let seconds = before.map_or(seconds, |before| before.seconds.midpoint(seconds));
        self.0.insert(unit, SeenWait { at: now, seconds });
    }

    /// How long a request would wait at these units together, in seconds.
    pub(crate) fn expected_wait<'a>(
        &self,
        units: impl Iterator<Item = &'a UnitId>,
        now: Instant,
    ) -> f64 {
        let seen = units.filter_map(|unit| self.0.get(unit)).filter(|seen| seen.is_recent(now));
        seen.map(|seen| seen.seconds).sum()
    }

    /// Forgets what is not believed any more.
    pub(crate) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, seen| seen.is_recent(now));
    }
}

impl SeenWait {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < MEMORY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_lately_is_expected_and_what_is_old_is_not() {
        let (mut waits, start) = (UnitWaits::default(), Instant::now());
        let units = ["a", "b"].map(|name| UnitId(name.to_owned()));
        let (ms, all) = (Duration::from_millis, || units.iter());
        waits.note_wait(units[0].clone(), ms(400), start);
        waits.note_wait(units[0].clone(), ms(200), start + ms(100));
        waits.note_wait(units[1].clone(), ms(50), start + ms(500));
        let expected = |waits: &UnitWaits, after| waits.expected_wait(all(), start + ms(after));
        assert!((expected(&waits, 600) - 0.35).abs() < 1e-9);
        assert!((expected(&waits, 1200) - 0.05).abs() < 1e-9);
        assert!(expected(&waits, 1600).abs() < 1e-9);
        waits.forget_old(start + ms(1600));
        assert!(waits.0.is_empty());
    }
}
