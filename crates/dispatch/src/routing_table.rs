//! The table: which tasks there are, and how each is served. It is swapped whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tessera_core::{Error, Result};
use tessera_deploy::{Hop, HopExit, TaskRoute, UnitId};
use tessera_telemetry::EndedRequest;

use crate::statistics::{StatisticsCounter, TaskStatistics};

/// What the dispatcher must know of a unit.
#[derive(Clone, Debug)]
pub struct UnitEntry {
    /// How many requests may be on their way to or through one instance of it.
    pub window: usize,
    /// How long a run of one row takes on one core; zero where that is not known.
    pub time: Duration,
}

/// The tasks there are, by name.
#[derive(Default)]
pub(crate) struct RoutingTable {
    tasks: BTreeMap<String, Arc<TaskEntry>>,
    /// What tasks did, also those that are gone: one may come back.
    statistics: HashMap<String, Arc<StatisticsCounter>>,
    generation: u64,
}

impl RoutingTable {
    /// Puts other routes in place of those there are, and returns the number of the table before.
    pub(crate) fn swap_routes(&mut self, routes: Vec<TaskRoute>) -> u64 {
        let before = self.generation;
        self.generation += 1;
        self.tasks.clear();
        for route in routes {
            let statistics = Arc::clone(self.statistics.entry(route.task.clone()).or_default());
            let entry = TaskEntry::new(route, statistics, self.generation);
            self.tasks.insert(entry.route.task.clone(), Arc::new(entry));
        }
        before
    }

    pub(crate) fn list_tasks(&self) -> Vec<Arc<TaskEntry>> {
        self.tasks.values().cloned().collect()
    }

    pub(crate) fn find_task(&self, name: &str, version: &str) -> Result<Arc<TaskEntry>> {
        let entry = self.tasks.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.tasks.keys().map(String::as_str).take(20).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Error::not_found(format!("unknown task \"{name}\", there is {known}"))
        })?;
        if !version.is_empty() && version != entry.route.version {
            return Err(Error::not_found(format!(
                "task \"{name}\" has no version \"{version}\", it has {}",
                entry.route.version
            )));
        }
        Ok(Arc::clone(entry))
    }

    /// Whether requests of any task pass a unit.
    pub(crate) fn passes_unit(&self, unit: &UnitId) -> bool {
        self.tasks.values().any(|entry| entry.passes_unit(unit))
    }
}

/// A task of the table.
pub struct TaskEntry {
    /// How it is served.
    pub route: TaskRoute,
    /// The thresholds of its exits, which may be set while it is served.
    thresholds: Vec<AtomicU32>,
    pub(crate) statistics: Arc<StatisticsCounter>,
    /// The table that it is part of.
    pub(crate) generation: u64,
}

impl TaskEntry {
    fn new(route: TaskRoute, statistics: Arc<StatisticsCounter>, generation: u64) -> Self {
        let thresholds = route.exits.iter().map(|exit| AtomicU32::new(exit.threshold.to_bits()));
        Self { thresholds: thresholds.collect(), route, statistics, generation }
    }

    /// Whether its requests pass a unit.
    pub(crate) fn passes_unit(&self, unit: &UnitId) -> bool {
        self.route.steps.iter().any(|step| step.unit == *unit)
    }

    /// The exits by name, with their thresholds and how often each was taken.
    pub fn list_exits(&self) -> Vec<(String, f32, u64)> {
        let names = self.route.exits.iter().map(|exit| exit.name.clone());
        names
            .enumerate()
            .map(|(number, name)| {
                let taken = self.statistics.exit_count(&name);
                (name, self.exit_threshold(number), taken)
            })
            .collect()
    }

    fn exit_threshold(&self, number: usize) -> f32 {
        self.thresholds.get(number).map_or(0.0, |bits| f32::from_bits(bits.load(Ordering::Relaxed)))
    }

    pub(crate) fn set_exit_threshold(&self, exit: &str, threshold: f32) -> Result<()> {
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
        self.statistics.current_totals()
    }

    pub(crate) fn count_request(&self, ended: &EndedRequest<'_>) {
        self.statistics.count_request(ended);
    }

    /// The hops of a request through these instances, one per step.
    pub(crate) fn route_hops(&self, instances: &[String]) -> Vec<Hop> {
        let standby = self.route.degrade;
        self.route
            .steps
            .iter()
            .zip(instances)
            .map(|(step, instance)| {
                let exit = step.exit.and_then(|number| {
                    let exit = self.route.exits.get(number)?;
                    let threshold = self.exit_threshold(number);
                    Some(HopExit { number, threshold, scores: exit.scores, standby })
                });
                let (inputs, keep) = (step.inputs.clone(), step.keep.clone());
                Hop { instance: instance.clone(), inputs, keep, exit }
            })
            .collect()
    }
}
