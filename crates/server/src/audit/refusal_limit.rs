//! How many refusals are written down: whoever is refused can ask again at once.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tessera_core::lock;

/// So many in each second.
const MOST_A_SECOND: u32 = 10;

/// Lets so many pass in each second, and counts the others.
#[derive(Default)]
pub(super) struct RefusalLimit(Mutex<LimitState>);

#[derive(Default)]
struct LimitState {
    begun: Option<Instant>,
    passed: u32,
    missed: u64,
}

impl RefusalLimit {
    /// Whether one more may pass, and how many did not since the last.
    pub(super) fn take_place(&self) -> Option<u64> {
        let mut state = lock(&self.0);
        if state.begun.is_none_or(|begun| begun.elapsed() >= Duration::from_secs(1)) {
            (state.begun, state.passed) = (Some(Instant::now()), 0);
        }
        if state.passed >= MOST_A_SECOND {
            state.missed += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.missed))
    }
}
