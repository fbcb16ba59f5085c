//! Requests that nobody waits for any more: they are dropped before the next block.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use tessera_tensormq::RequestId;

use crate::lock;

/// So many are remembered; by then the oldest has long come to its end.
const REMEMBERED: usize = 4096;

/// The last requests that were given up.
#[derive(Default)]
pub struct GivenUp(Mutex<(HashSet<RequestId>, VecDeque<RequestId>)>);

impl GivenUp {
    /// Notes a request.
    pub fn add(&self, request: RequestId) {
        let mut known = lock(&self.0);
        let (set, order) = &mut *known;
        if set.insert(request) {
            order.push_back(request);
        }
        if order.len() > REMEMBERED
            && let Some(oldest) = order.pop_front()
        {
            set.remove(&oldest);
        }
    }

    /// Whether a request was given up.
    pub fn has(&self, request: RequestId) -> bool {
        let known = lock(&self.0);
        !known.0.is_empty() && known.0.contains(&request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered() {
        let given_up = GivenUp::default();
        for number in 0..2 * REMEMBERED as u128 {
            given_up.add(RequestId(number));
            given_up.add(RequestId(number));
        }
        assert!(!given_up.has(RequestId(0)));
        assert!(given_up.has(RequestId(REMEMBERED as u128)));
        assert!(given_up.has(RequestId(2 * REMEMBERED as u128 - 1)));
    }
}
