//! The table: which tasks there are, and how each is served. It is swapped whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tessera_core::{Error, Result};
use tessera_plan::{ExitLeg, Leg, Route, UnitId};

use super::Ended;
use super::statistics::Statistics;
use crate::service::TaskStatistics;

/// What the dispatcher must know of a unit.
#[derive(Clone, Debug)]
pub struct UnitEntry {
    /// How many requests may be on their way to or through one instance of it.
    pub window: usize,
    /// How long a run of one row takes on one core; zero where that is not known.
    pub time: Duration,
}

/// A task of the table.
pub struct TaskEntry {
    /// How it is served.
    pub route: Route,
    /// The thresholds of its exits, which may be set while it is served.
    thresholds: Vec<AtomicU32>,
    pub(super) statistics: Arc<Statistics>,
    /// The table that it is part of.
    pub(super) generation: u64,
}

impl TaskEntry {
    pub(super) fn new(route: Route, statistics: Arc<Statistics>, generation: u64) -> Self {
        let thresholds = route.exits.iter().map(|exit| AtomicU32::new(exit.threshold.to_bits()));
        Self { thresholds: thresholds.collect(), route, statistics, generation }
    }

    /// Whether its requests pass a unit.
    pub(super) fn passes(&self, unit: &UnitId) -> bool {
        self.route.steps.iter().any(|step| step.unit == *unit)
    }

    /// The exits by name, with their thresholds and how often each was taken.
    pub fn exits(&self) -> Vec<(String, f32, u64)> {
        let names = self.route.exits.iter().map(|exit| exit.name.clone());
        names
            .enumerate()
            .map(|(number, name)| {
                let taken = self.statistics.taken(&name);
                (name, self.threshold(number), taken)
            })
            .collect()
    }

    fn threshold(&self, number: usize) -> f32 {
        self.thresholds.get(number).map_or(0.0, |bits| f32::from_bits(bits.load(Ordering::Relaxed)))
    }

    pub(super) fn set_threshold(&self, exit: &str, threshold: f32) -> Result<()> {
        if !(0.0..=1.0).contains(&threshold) {
            return Err(Error::usage(format!(
                "exit \"{exit}\": threshold {threshold}, expected 0 to 1"
            )));
        }
        let number = self.route.exits.iter().position(|known| known.name == exit);
        let Some(bits) = number.and_then(|number| self.thresholds.get(number)) else {
            let known: Vec<&str> = self.route.exits.iter().map(|exit| exit.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::not_found(format!(
                "task \"{}\" has no exit \"{exit}\", it has {known}",
                self.route.task
            )));
        };
        bits.store(threshold.to_bits(), Ordering::Relaxed);
        Ok(())
    }

    /// What it did.
    pub fn statistics(&self) -> TaskStatistics {
        self.statistics.read()
    }

    pub(super) fn note(&self, ended: &Ended<'_>) {
        self.statistics.note(ended);
    }

    /// The legs of a request through these instances, one per step.
    pub(super) fn legs(&self, instances: &[String]) -> Vec<String> {
        let standby = self.route.degrade;
        self.route
            .steps
            .iter()
            .zip(instances)
            .map(|(step, instance)| {
                let exit = step.exit.and_then(|number| {
                    let exit = self.route.exits.get(number)?;
                    let threshold = self.threshold(number);
                    Some(ExitLeg { number, threshold, scores: exit.scores, standby })
                });
                let (inputs, keep) = (step.inputs.clone(), step.keep.clone());
                Leg { instance: instance.clone(), inputs, keep, exit }.encode()
            })
            .collect()
    }
}
