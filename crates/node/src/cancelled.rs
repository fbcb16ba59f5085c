//! Requests that nobody waits for any more: they are dropped before the next unit.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use tessera_tensormq::RequestId;

use tessera_core::lock;

/// So many are remembered; by then the oldest has long come to its end.
const MOST_REMEMBERED: usize = 4096;

/// The last requests that were cancelled.
#[derive(Default)]
pub struct CancelledRequests(Mutex<(HashSet<RequestId>, VecDeque<RequestId>)>);

impl CancelledRequests {
    /// Notes a request.
    pub fn mark_cancelled(&self, request: RequestId) {
        let mut known = lock(&self.0);
        let (set, order) = &mut *known;
        if set.insert(request) {
            order.push_back(request);
        }
        if order.len() > MOST_REMEMBERED
            && let Some(oldest) = order.pop_front()
        {
            set.remove(&oldest);
        }
    }

    /// Whether a request was cancelled.
    pub fn is_cancelled(&self, request: RequestId) -> bool {
        let known = lock(&self.0);
        !known.0.is_empty() && known.0.contains(&request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered() {
        let cancelled = CancelledRequests::default();
        for number in 0..2 * MOST_REMEMBERED as u128 {
            cancelled.mark_cancelled(RequestId(number));
            cancelled.mark_cancelled(RequestId(number));
        }
        assert!(!cancelled.is_cancelled(RequestId(0)));
        assert!(cancelled.is_cancelled(RequestId(MOST_REMEMBERED as u128)));
        assert!(cancelled.is_cancelled(RequestId(2 * MOST_REMEMBERED as u128 - 1)));
    }
}
