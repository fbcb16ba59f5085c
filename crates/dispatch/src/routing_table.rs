//! The table: which tasks there are, and how each is served.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, Tensor};
use tessera_deploy::{Hop, HopExit, TaskRoute, UnitId};
use tessera_graph::TensorPort;
use tessera_telemetry::EndedRequest;

use crate::least_way::LeastWay;
use crate::statistics::{StatisticsCounter, TaskStatistics};

/// What the dispatcher must know of a unit.
#[derive(Clone, Debug)]
pub struct UnitEntry {
    /// How many requests may be on their way to or through one instance of it.
    pub window: usize,
    /// How long a run of one row takes on one core; zero where that is not known.
    pub time: Duration,
}

/// Routes that come and go at one moment; all others stay.
#[derive(Debug, Default)]
pub struct RouteChange {
    /// Routes that are new or others than before.
    pub routes: Vec<Arc<TaskRoute>>,
    /// Names of tasks that are gone.
    pub removed: Vec<String>,
    /// Units that are new or others than before.
    pub units: Vec<(UnitId, UnitEntry)>,
}

/// The tasks there are, by name.
#[derive(Default)]
pub(crate) struct RoutingTable {
    tasks: BTreeMap<String, Arc<TaskEntry>>,
    /// How many tasks pass a unit.
    passing: HashMap<UnitId, usize>,
    /// What tasks did, also those that are gone: one may come back.
    statistics: HashMap<String, Arc<StatisticsCounter>>,
    generation: u64,
}

impl RoutingTable {
    /// Counts changes: requests are told apart by those that they were accepted under.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Carries a change out, and returns the generation of the table before.
    pub(crate) fn change_routes(&mut self, routes: Vec<Arc<TaskRoute>>, removed: &[String]) -> u64 {
        let before = self.generation;
        self.generation += 1;
        for name in removed {
            if let Some(entry) = self.tasks.remove(name) {
                self.count_units(&entry, false);
            }
        }
        for route in routes {
            let statistics = Arc::clone(self.statistics.entry(route.task.clone()).or_default());
            let entry = Arc::new(TaskEntry::new(route, statistics));
            self.count_units(&entry, true);
            if let Some(before) = self.tasks.insert(entry.route.task.clone(), entry) {
                self.count_units(&before, false);
            }
        }
        before
    }

    fn count_units(&mut self, entry: &TaskEntry, is_there: bool) {
        let units: HashSet<&UnitId> = entry.route.steps.iter().map(|step| &step.unit).collect();
        for unit in units {
            if is_there {
                *self.passing.entry(unit.clone()).or_default() += 1;
            } else if let Some(count) = self.passing.get_mut(unit) {
                *count -= 1;
                if *count == 0 {
                    self.passing.remove(unit);
                }
            }
        }
    }

    /// Whether requests of a task are still served in this way.
    pub(crate) fn is_current(&self, entry: &Arc<TaskEntry>) -> bool {
        self.tasks.get(&entry.route.task).is_some_and(|known| Arc::ptr_eq(known, entry))
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
        self.passing.contains_key(unit)
    }
}

/// A task of the table.
pub struct TaskEntry {
    /// How it is served.
    pub route: Arc<TaskRoute>,
    /// The thresholds of its exits, which may be set while it is served.
    thresholds: Vec<AtomicU32>,
    /// What stands for inputs that a request leaves out, by their number.
    pub(crate) default_inputs: Vec<Option<Tensor>>,
    pub(crate) statistics: Arc<StatisticsCounter>,
    /// What its requests that end at an exit are counted under.
    pub(crate) exit_load_name: String,
    /// How long its requests are on their way between hosts.
    pub(crate) least_way: LeastWay,
}

impl TaskEntry {
    fn new(route: Arc<TaskRoute>, statistics: Arc<StatisticsCounter>) -> Self {
        let thresholds = route.exits.iter().map(|exit| AtomicU32::new(exit.threshold.to_bits()));
        let default = |port: &TensorPort| {
            port.default.as_ref().and_then(|value| value.to_tensor(port.tensor_type.dtype).ok())
        };
        let default_inputs = route.inputs.iter().map(default).collect();
        let exit_load_name = format!("{}\0exit", route.task);
        Self {
            thresholds: thresholds.collect(),
            default_inputs,
            exit_load_name,
            least_way: LeastWay::default(),
            route,
            statistics,
        }
    }

    /// Whether its requests pass a unit.
    pub(crate) fn passes_unit(&self, unit: &UnitId) -> bool {
        self.route.steps.iter().any(|step| step.unit == *unit)
    }

    /// Whether an exit that was not certain enough may answer.
    pub(crate) fn may_degrade(&self) -> bool {
        self.route.degrade && !self.route.exits.is_empty()
    }

    /// The step at which requests may leave by an exit.
    pub(crate) fn exit_step(&self, exit: usize) -> Option<usize> {
        self.route.steps.iter().position(|step| step.exit == Some(exit))
    }

    /// The last step at which requests may leave.
    pub(crate) fn last_exit_step(&self) -> Option<usize> {
        self.route.steps.iter().rposition(|step| step.exit.is_some())
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

    /// How long its requests were on their way between hosts lately, at least, where they came to
    /// the end of this route.
    pub fn least_way(&self) -> Option<Duration> {
        self.least_way.current(Instant::now())
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
