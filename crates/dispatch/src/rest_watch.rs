//! Whether what comes after an exit answers in time, for tasks whose exits may answer instead.
//!
//! Where it does not, again and again, requests end at the exit and are answered at once; now and
//! then one goes on, to find out whether the rest is back.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// So many in a row that were late are no accident.
const MOST_LATE: u32 = 3;
/// How long after one that was let on the next is.
const TRY_INTERVAL: Duration = Duration::from_millis(500);

/// The tasks whose rest was late.
#[derive(Default)]
pub(crate) struct RestWatch(HashMap<String, LateRest>);

struct LateRest {
    /// Requests that were late, since one was not.
    late: u32,
    /// The step of the exit that answered.
    exit_step: usize,
    /// When a request is let on, where most are not.
    next_try: Option<Instant>,
}

impl RestWatch {
    /// The rest of a task did not answer in time; the exit of this step did.
    pub(crate) fn note_late(&mut self, task: &str, exit_step: usize, now: Instant) {
        let first = || LateRest { late: 0, exit_step, next_try: None };
        let rest = self.0.entry(task.to_owned()).or_insert_with(first);
        rest.late = rest.late.saturating_add(1);
        rest.exit_step = rest.exit_step.min(exit_step);
        if rest.late >= MOST_LATE {
            rest.next_try.get_or_insert(now + TRY_INTERVAL);
        }
    }

    /// A request got to the end of its route in time, or the route is another.
    pub(crate) fn forget_task(&mut self, task: &str) {
        self.0.remove(task);
    }

    /// The step of the exit that requests of a task end at, where they do.
    pub(crate) fn ending_step(&self, task: &str) -> Option<usize> {
        self.0.get(task).filter(|rest| rest.next_try.is_some()).map(|rest| rest.exit_step)
    }

    /// Whether it is time to let one on.
    pub(crate) fn is_try_due(&self, task: &str, now: Instant) -> bool {
        self.0.get(task).and_then(|rest| rest.next_try).is_some_and(|at| now >= at)
    }

    /// One was let on.
    pub(crate) fn note_try(&mut self, task: &str, now: Instant) {
        if let Some(LateRest { next_try: Some(at), .. }) = self.0.get_mut(task) {
            *at = now + TRY_INTERVAL;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_that_is_late_again_and_again_is_only_tried_now_and_then() {
        let (mut watch, start) = (RestWatch::default(), Instant::now());
        watch.note_late("ants", 4, start);
        watch.note_late("ants", 2, start);
        assert_eq!(watch.ending_step("ants"), None);
        // One that came in time, and nothing is held against it.
        watch.forget_task("ants");
        watch.note_late("ants", 4, start);
        watch.note_late("ants", 4, start);
        assert_eq!(watch.ending_step("ants"), None);
        watch.note_late("ants", 2, start);
        assert_eq!((watch.ending_step("ants"), watch.ending_step("bees")), (Some(2), None));
        assert!(!watch.is_try_due("ants", start));
        let later = start + TRY_INTERVAL;
        assert!(watch.is_try_due("ants", later));
        watch.note_try("ants", later);
        assert!(!watch.is_try_due("ants", later));
        // What was tried and was late, too, changes nothing.
        watch.note_late("ants", 2, later);
        assert!(watch.is_try_due("ants", later + TRY_INTERVAL));
        watch.forget_task("ants");
        assert_eq!(watch.ending_step("ants"), None);
    }
}
