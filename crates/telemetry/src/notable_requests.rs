//! The requests that are worth a look: the slowest, and those that did not end with a full answer.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use crate::ended_request::{EndedRequest, RequestOutcome};
use crate::events::request_event;
use crate::request_summary::outcome_name;

/// How long the slowest are collected before others take their place, in nanoseconds; those of the
/// time before are kept, too.
const WINDOW: u64 = 60 * 1_000_000_000;
/// The slowest that are kept of a window.
const MOST_SLOW: usize = 32;
/// Those of each other kind.
const MOST_OTHERS: usize = 64;
/// Of each other kind, in a second: where everyone is refused, those who are look alike.
const MOST_OTHERS_A_SECOND: u32 = 16;

/// How requests end that are kept whatever they took.
const OTHERS: [&str; 4] = ["failed", "refused", "degraded", "cancelled"];

struct KeptRequest {
    task: String,
    took: u64,
    /// As it is told to those who listen.
    event: String,
}

/// Keeps requests that are worth a look.
#[derive(Default)]
pub(crate) struct NotableRequests {
    /// Which window it is.
    window: u64,
    slow: Vec<KeptRequest>,
    /// What the quickest of these took, once there are as many as are kept.
    least: Option<u64>,
    slow_before: Vec<KeptRequest>,
    others: [OtherRequests; OTHERS.len()],
}

/// Requests that ended alike, the newest last.
#[derive(Default)]
struct OtherRequests {
    kept: VecDeque<KeptRequest>,
    second: u64,
    in_second: u32,
}

impl NotableRequests {
    /// Keeps a request that has ended, where it is worth it; `at` is when that was, in milliseconds
    /// since 1970.
    pub(crate) fn note_request(&mut self, ended: &EndedRequest<'_>, at: u64) {
        let took = ended.ended.saturating_sub(ended.accepted);
        let is_answered = matches!(ended.outcome, RequestOutcome::Answered);
        if is_answered {
            self.begin_window(ended.ended);
            if self.least.is_some_and(|least| took <= least) {
                return;
            }
        }
        let kept = |event| KeptRequest { task: ended.task.to_owned(), took, event };
        let outcome = outcome_name(ended);
        let other = OTHERS.iter().position(|&other| other == outcome);
        if let Some(others) = other.and_then(|other| self.others.get_mut(other)) {
            if others.has_room(ended.ended)
                && let Ok(event) = request_event(ended, at)
            {
                others.add(kept(event));
            }
        } else if let Ok(event) = request_event(ended, at) {
            self.add_slow(kept(event));
        }
    }

    fn begin_window(&mut self, now: u64) {
        let window = now / WINDOW;
        if window > self.window {
            let was_last = window == self.window + 1;
            self.slow_before = std::mem::take(&mut self.slow);
            self.least = None;
            if !was_last {
                self.slow_before.clear();
            }
            self.window = window;
        }
    }

    fn add_slow(&mut self, request: KeptRequest) {
        let quickest = |slow: &[KeptRequest]| {
            let times = slow.iter().map(|request| request.took).enumerate();
            times.min_by_key(|(_, took)| *took)
        };
        if self.least.is_some()
            && let Some((number, _)) = quickest(&self.slow)
        {
            self.slow.swap_remove(number);
        }
        self.slow.push(request);
        if self.slow.len() >= MOST_SLOW {
            self.least = quickest(&self.slow).map(|(_, took)| took);
        }
    }

    /// By how they ended, of all tasks or one: the slowest answers first, of the others the newest.
    pub(crate) fn list_requests(&mut self, task: Option<&str>, now: u64) -> Value {
        self.begin_window(now);
        let is_wanted = |request: &&KeptRequest| task.is_none_or(|task| request.task == task);
        let parse = |request: &KeptRequest| serde_json::from_str(&request.event).ok();
        let mut slow: Vec<&KeptRequest> =
            self.slow.iter().chain(&self.slow_before).filter(is_wanted).collect();
        slow.sort_by_key(|request| std::cmp::Reverse(request.took));
        let slow: Vec<Value> = slow.into_iter().filter_map(parse).collect();
        let mut lists = Map::from_iter([("slowest".to_owned(), slow.into())]);
        for (name, others) in OTHERS.iter().zip(&self.others) {
            let newest = others.kept.iter().rev().filter(is_wanted);
            let newest: Vec<Value> = newest.filter_map(parse).collect();
            lists.insert((*name).to_owned(), newest.into());
        }
        lists.into()
    }
}

impl OtherRequests {
    fn has_room(&mut self, now: u64) -> bool {
        let second = now / 1_000_000_000;
        if second != self.second {
            (self.second, self.in_second) = (second, 0);
        }
        self.in_second += 1;
        self.in_second <= MOST_OTHERS_A_SECOND
    }

    fn add(&mut self, request: KeptRequest) {
        if self.kept.len() >= MOST_OTHERS {
            self.kept.pop_front();
        }
        self.kept.push_back(request);
    }
}

#[cfg(test)]
mod tests {
    use tessera_core::Error;
    use tessera_tensormq::RequestId;

    use super::*;

    fn note(
        requests: &mut NotableRequests,
        task: &str,
        (ended, took): (u64, u64),
        outcome: RequestOutcome<'_>,
    ) {
        let request = EndedRequest {
            task,
            version: "1",
            request: RequestId(1),
            id: "",
            rows: 1,
            accepted: ended - took,
            ended,
            hop_timings: &[],
            exits: &[],
            outcome,
            retries: 0,
            trace: None,
        };
        requests.note_request(&request, 1);
    }

    fn times(lists: &Value, name: &str) -> Vec<f64> {
        let list = lists[name].as_array().unwrap();
        list.iter().map(|request| request["ms"].as_f64().unwrap()).collect()
    }

    const MILLISECOND: u64 = 1_000_000;

    #[test]
    fn the_slowest_of_this_minute_and_the_last_are_kept() {
        let mut requests = NotableRequests::default();
        for milliseconds in 1..=100 {
            let when = (WINDOW, milliseconds * MILLISECOND);
            note(&mut requests, "ants", when, RequestOutcome::Answered);
        }
        let slowest = times(&requests.list_requests(None, WINDOW), "slowest");
        assert_eq!(slowest.len(), MOST_SLOW);
        assert_eq!((slowest[0], slowest[MOST_SLOW - 1]), (100.0, 69.0));
        note(&mut requests, "bees", (2 * WINDOW, MILLISECOND), RequestOutcome::Answered);
        let lists = requests.list_requests(None, 2 * WINDOW);
        assert_eq!(times(&lists, "slowest").len(), MOST_SLOW + 1);
        assert_eq!(times(&requests.list_requests(Some("bees"), 2 * WINDOW), "slowest"), [1.0]);
        assert_eq!(times(&requests.list_requests(None, 3 * WINDOW), "slowest"), [1.0]);
        assert!(times(&requests.list_requests(None, 9 * WINDOW), "slowest").is_empty());
    }

    #[test]
    fn of_those_that_end_alike_the_newest_are_kept_and_some_of_each_second() {
        let mut requests = NotableRequests::default();
        let error = Error::full("no room");
        for number in 0..1000 {
            let when = (WINDOW + number, number * MILLISECOND % WINDOW);
            note(&mut requests, "ants", when, RequestOutcome::Refused(&error));
        }
        let later = (WINDOW + 1_000_000_000, 5 * MILLISECOND);
        note(&mut requests, "bees", later, RequestOutcome::Refused(&error));
        note(&mut requests, "bees", later, RequestOutcome::Degraded("late"));
        let lists = requests.list_requests(None, WINDOW);
        let refused = times(&lists, "refused");
        assert_eq!((refused.len(), refused[0]), (MOST_OTHERS_A_SECOND as usize + 1, 5.0));
        assert_eq!(lists["refused"][0]["reason"], "no room");
        assert_eq!(times(&lists, "degraded"), [5.0]);
        assert!(times(&lists, "failed").is_empty() && times(&lists, "slowest").is_empty());
    }
}
