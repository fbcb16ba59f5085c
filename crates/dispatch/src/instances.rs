//! Routing: which instances of units there are, and which of them a request passes.

use std::collections::HashMap;
use std::time::Duration;

use tessera_deploy::UnitId;

use crate::routing_table::{TaskEntry, UnitEntry};

/// The instances of every unit, and how many requests are on their way to or through each.
#[derive(Default)]
pub(crate) struct InstanceTable {
    units: HashMap<UnitId, UnitInstances>,
    /// The unit of each instance that takes requests.
    unit_of: HashMap<String, UnitId>,
}

/// The instances of a unit.
#[derive(Default)]
struct UnitInstances {
    window: usize,
    run_time: Duration,
    live_instances: Vec<LiveInstance>,
    /// Why there is none, and will be none.
    unavailable_reason: Option<String>,
    /// Whether the last was one that can't be reached.
    is_out_of_reach: bool,
}

struct LiveInstance {
    name: String,
    in_flight: usize,
}

/// Whether a task answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskAvailability {
    /// It does.
    Ready,
    /// Requests wait for a unit that is being started, and why.
    Loading(String),
    /// It does not, and why.
    Unavailable(String),
}

/// The instances that a request passes.
pub(crate) struct ChosenInstances {
    /// One per step that can be made.
    pub(crate) names: Vec<String>,
    /// Why these are not all steps.
    pub(crate) cut_short: Option<String>,
}

impl InstanceTable {
    /// Sets how much room the instances of these units have, and how long a run takes.
    pub(crate) fn set_units(&mut self, units: Vec<(UnitId, UnitEntry)>) {
        for (unit, entry) in units {
            let unit = self.units.entry(unit).or_default();
            (unit.window, unit.run_time) = (entry.window.max(1), entry.time);
        }
    }

    /// How long a run of one row takes on one core; zero where that is not known.
    pub(crate) fn run_time(&self, unit: &UnitId) -> Duration {
        self.units.get(unit).map_or(Duration::ZERO, |unit| unit.run_time)
    }

    pub(crate) fn add_instance(&mut self, unit: &UnitId, instance: &str) {
        self.unit_of.insert(instance.to_owned(), unit.clone());
        let unit = self.units.entry(unit.clone()).or_default();
        unit.unavailable_reason = None;
        unit.is_out_of_reach = false;
        unit.window = unit.window.max(1);
        if !unit.live_instances.iter().any(|known| known.name == instance) {
            unit.live_instances.push(LiveInstance { name: instance.to_owned(), in_flight: 0 });
        }
    }

    pub(crate) fn retire_instance(&mut self, unit: &UnitId, instance: &str) {
        self.unit_of.remove(instance);
        if let Some(unit) = self.units.get_mut(unit) {
            unit.live_instances.retain(|known| known.name != instance);
        }
    }

    /// An instance can't be reached: nothing goes there until somebody finds that it can be again.
    pub(crate) fn set_out_of_reach(&mut self, unit: &UnitId, instance: &str) {
        self.retire_instance(unit, instance);
        if let Some(unit) = self.units.get_mut(unit) {
            unit.is_out_of_reach = true;
        }
    }

    /// An instance that does not come back. The last of a unit that tasks use leaves the reason,
    /// that of any other nothing.
    pub(crate) fn remove_instance(
        &mut self,
        unit: &UnitId,
        instance: &str,
        reason: &str,
        is_unit_used: bool,
    ) {
        self.retire_instance(unit, instance);
        let Some(state) = self.units.get_mut(unit) else { return };
        if !state.live_instances.is_empty() {
            return;
        }
        if is_unit_used {
            state.unavailable_reason = Some(format!("unit {unit}: {reason}"));
        } else {
            self.units.remove(unit);
        }
    }

    /// The unit of an instance that takes requests.
    pub(crate) fn unit_of(&self, instance: &str) -> Option<UnitId> {
        self.unit_of.get(instance).cloned()
    }

    /// Whether anything is on its way to or through an instance of a unit.
    pub(crate) fn is_unit_busy(&self, unit: &UnitId) -> bool {
        let unit = self.units.get(unit);
        unit.is_some_and(|unit| unit.live_instances.iter().any(|i| i.in_flight > 0))
    }

    pub(crate) fn instance_in_flight(&self, instance: &str) -> usize {
        let unit = self.unit_of.get(instance).and_then(|unit| self.units.get(unit));
        let mut all = unit.into_iter().flat_map(|unit| &unit.live_instances);
        all.find(|known| known.name == instance).map_or(0, |known| known.in_flight)
    }

    /// Why a task gives no answer at all.
    pub(crate) fn unavailable_reason(&self, entry: &TaskEntry) -> Option<String> {
        let (steps, missing) = self.reachable_steps(entry);
        missing.filter(|_| steps == 0)
    }

    /// Whether a task answers now.
    pub(crate) fn task_availability(&self, entry: &TaskEntry) -> TaskAvailability {
        let (steps, missing) = self.reachable_steps(entry);
        if let Some(reason) = missing.filter(|_| steps == 0) {
            return TaskAvailability::Unavailable(reason);
        }
        let has_instance = |unit: &UnitId| {
            self.units.get(unit).is_some_and(|unit| !unit.live_instances.is_empty())
        };
        let mut reached = entry.route.steps[..steps].iter();
        match reached.find(|step| !has_instance(&step.unit)) {
            Some(step) => TaskAvailability::Loading(format!("unit {} is starting", step.unit)),
            None => TaskAvailability::Ready,
        }
    }

    /// How many steps of a route can be made, and why no more. Where a later unit will not be
    /// there, a task that may degrade still goes to the last exit before it.
    fn reachable_steps(&self, entry: &TaskEntry) -> (usize, Option<String>) {
        let steps = &entry.route.steps;
        let missing = steps.iter().enumerate().find_map(|(index, step)| {
            Some((index, self.units.get(&step.unit)?.unavailable_reason.clone()?))
        });
        let Some((index, reason)) = missing else {
            return (steps.len(), None);
        };
        let exit = steps[..index].iter().rposition(|step| step.exit.is_some());
        let reached = exit.filter(|_| entry.route.degrade).map_or(0, |exit| exit + 1);
        (reached, Some(reason))
    }

    /// Why a step can't be made for now, where that is known.
    fn out_of_reach_reason(&self, unit: &UnitId) -> Option<String> {
        let known = self.units.get(unit)?;
        (known.is_out_of_reach && known.live_instances.is_empty())
            .then(|| format!("unit {unit} is out of reach"))
    }

    /// The last exit before what is out of reach for now, as the number of steps to its end, and
    /// why it is.
    pub(crate) fn steps_in_reach(&self, entry: &TaskEntry) -> Option<(usize, String)> {
        let steps = &entry.route.steps;
        let found = steps.iter().enumerate();
        let (index, reason) = found
            .filter_map(|(index, step)| Some((index, self.out_of_reach_reason(&step.unit)?)))
            .next()?;
        let exit = steps[..index].iter().rposition(|step| step.exit.is_some())?;
        Some((exit + 1, reason))
    }

    /// The part of a route's computing that its first steps are.
    pub(crate) fn computing_share(&self, entry: &TaskEntry, steps: usize) -> f64 {
        let seconds = |steps: &[tessera_deploy::RouteStep]| {
            steps.iter().map(|step| self.run_time(&step.unit).as_secs_f64()).sum::<f64>()
        };
        let all = seconds(&entry.route.steps);
        let first = seconds(&entry.route.steps[..steps.min(entry.route.steps.len())]);
        if all > 0.0 { first / all } else { steps as f64 / entry.route.steps.len().max(1) as f64 }
    }

    /// For each step that can be made the instance with the least to do; `None` where one has no
    /// room. `most` has no more than so many steps made, and says why.
    pub(crate) fn choose_instances(
        &self,
        entry: &TaskEntry,
        most: Option<(usize, String)>,
    ) -> Option<ChosenInstances> {
        let (mut reached, mut cut_short) = self.reachable_steps(entry);
        if let Some((steps, reason)) = most.filter(|(steps, _)| *steps < reached) {
            (reached, cut_short) = (steps, Some(reason));
        }
        let steps = &entry.route.steps[..reached];
        let mut chosen: HashMap<&UnitId, &str> = HashMap::new();
        for step in steps {
            if chosen.contains_key(&step.unit) {
                continue;
            }
            let unit = self.units.get(&step.unit)?;
            let best = unit.live_instances.iter().min_by_key(|instance| instance.in_flight)?;
            if best.in_flight >= unit.window {
                return None;
            }
            chosen.insert(&step.unit, &best.name);
        }
        let names = steps.iter().map(|step| chosen.get(&step.unit).map(|&name| name.to_owned()));
        Some(ChosenInstances { names: names.collect::<Option<_>>()?, cut_short })
    }

    /// Takes a place at each instance.
    pub(crate) fn reserve_places(&mut self, instances: &[String]) {
        self.for_each_named(instances, |known| known.in_flight += 1);
    }

    /// Gives the places back.
    pub(crate) fn release_places(&mut self, instances: &[String]) {
        self.for_each_named(instances, |known| {
            known.in_flight = known.in_flight.saturating_sub(1);
        });
    }

    fn for_each_named(&mut self, instances: &[String], change: impl Fn(&mut LiveInstance)) {
        for (position, name) in instances.iter().enumerate() {
            // One that a route passes twice has one place.
            if instances[..position].contains(name) {
                continue;
            }
            let unit = self.unit_of.get(name).and_then(|unit| self.units.get_mut(unit));
            let known = unit.into_iter().flat_map(|unit| &mut unit.live_instances);
            known.filter(|known| known.name == *name).for_each(&change);
        }
    }
}
