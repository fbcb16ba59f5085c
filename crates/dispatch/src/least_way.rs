//! How long requests of a task were on their way between hosts, all hops together: the least of it
//! lately, so that what they waited for on the way does not count.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tessera_core::lock;

/// For how long at least a time is believed, and twice as long at most.
const WINDOW: Duration = Duration::from_secs(5);

/// The least time on the way.
#[derive(Default)]
pub(crate) struct LeastWay(Mutex<Windows>);

/// The least of this window, and of the one before.
#[derive(Default)]
struct Windows {
    since: Option<Instant>,
    least: Option<Duration>,
    before: Option<Duration>,
}

impl LeastWay {
    /// A request has come to the end of its route, and was on its way for so long.
    pub(crate) fn note_way(&self, way: Duration, now: Instant) {
        let mut windows = lock(&self.0);
        windows.turn(now);
        windows.least = Some(windows.least.map_or(way, |least| least.min(way)));
    }

    /// The least that was seen; `None` where no request went between hosts lately.
    pub(crate) fn current(&self, now: Instant) -> Option<Duration> {
        let mut windows = lock(&self.0);
        windows.turn(now);
        windows.least.into_iter().chain(windows.before).min()
    }
}

impl Windows {
    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(*self.since.get_or_insert(now));
        if passed >= WINDOW {
            self.before = self.least.take().filter(|_| passed < 2 * WINDOW);
            self.since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_counts_until_it_is_old() {
        let (way, start, ms) = (LeastWay::default(), Instant::now(), Duration::from_millis);
        assert_eq!(way.current(start), None);
        way.note_way(ms(12), start);
        way.note_way(ms(9), start + ms(100));
        way.note_way(ms(30), start + ms(4900));
        assert_eq!(way.current(start + ms(4950)), Some(ms(9)));
        way.note_way(ms(15), start + ms(5500));
        assert_eq!(way.current(start + ms(10_400)), Some(ms(9)));
        assert_eq!(way.current(start + ms(10_600)), Some(ms(15)));
        assert_eq!(way.current(start + ms(30_000)), None);
    }
}
