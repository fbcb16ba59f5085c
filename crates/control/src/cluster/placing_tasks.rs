//! Tasks that are being placed anew, and those that could not be a moment ago.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::{ErrorKind, Result, lock};
use tessera_deploy::PlannedTask;

/// How long to wait after a task could not be placed.
const PLACING_PAUSE: Duration = Duration::from_secs(5);

/// Tasks that are being placed anew, and those that could not be a moment ago.
#[derive(Default)]
pub(super) struct PlacingTasks(Mutex<HashMap<String, PlacingState>>);

#[derive(Clone, Copy, PartialEq)]
enum PlacingState {
    UnderWay,
    PausedUntil(Instant),
}

impl PlacingTasks {
    /// Notes that these are placed anew; returns those that are not already.
    pub(super) fn begin(&self, tasks: Vec<Arc<PlannedTask>>) -> Vec<Arc<PlannedTask>> {
        let (mut known, now) = (lock(&self.0), Instant::now());
        known.retain(|_, state| match state {
            PlacingState::UnderWay => true,
            PlacingState::PausedUntil(until) => *until > now,
        });
        let is_new = |task: &Arc<PlannedTask>| !known.contains_key(&task.name);
        let new: Vec<Arc<PlannedTask>> = tasks.into_iter().filter(is_new).collect();
        known.extend(new.iter().map(|task| (task.name.clone(), PlacingState::UnderWay)));
        new
    }

    /// How that ended.
    pub(super) fn end(&self, tasks: &[Arc<PlannedTask>], placed: &Result<()>) {
        let mut known = lock(&self.0);
        for task in tasks {
            match placed {
                // Where another node died meanwhile there may be a third.
                Err(error) if error.kind() != ErrorKind::Lost => {
                    let until = PlacingState::PausedUntil(Instant::now() + PLACING_PAUSE);
                    known.insert(task.name.clone(), until);
                }
                _ => drop(known.remove(&task.name)),
            }
        }
    }
}
