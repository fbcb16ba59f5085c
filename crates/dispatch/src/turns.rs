//! Whose turn it is: tasks share the cores by their weights.
//!
//! A request's turn is when it would begin if its task had its share of the cores to itself. A task
//! that asks for less than its share has its turn at once; one that asks for more has its turns
//! further and further ahead, and so waits behind the others however early it asked.

use std::collections::HashMap;

/// Until when each task with requests under way has used its share.
#[derive(Default)]
pub(crate) struct TaskTurns {
    used_until: HashMap<String, u64>,
}

impl TaskTurns {
    /// When it is the turn of a request that comes now and takes `seconds` of its task's share, by
    /// the clock that `now` is of, in nanoseconds.
    pub(crate) fn take_turn(&mut self, task: &str, now: u64, seconds: f64) -> u64 {
        let used = self.used_until.entry(task.to_owned()).or_insert(now);
        let turn = (*used).max(now);
        // A cost that was learnt from something odd must not banish the task.
        let cost = (seconds.clamp(0.0, 60.0) * 1e9) as u64;
        *used = turn.saturating_add(cost);
        turn
    }

    /// A task has no request under way: what it used up is forgotten.
    pub(crate) fn forget_task(&mut self, task: &str) {
        self.used_until.remove(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_much_waits_behind_who_asks_for_little() {
        let mut turns = TaskTurns::default();
        let many: Vec<u64> = (0..100).map(|_| turns.take_turn("many", 1000, 0.01)).collect();
        assert_eq!(many[0], 1000);
        assert_eq!(many[99], 1000 + 99 * 10_000_000);
        let few = turns.take_turn("few", 2000, 0.01);
        assert_eq!(few, 2000, "behind the first of the others alone");
        assert_eq!(turns.take_turn("few", 50_000_000, 0.01), 50_000_000, "it asks slowly");
        turns.forget_task("many");
        assert_eq!(turns.take_turn("many", 3000, 0.01), 3000);
    }
}
