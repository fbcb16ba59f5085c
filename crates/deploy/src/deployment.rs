//! A deployment: which blocks run as one, for whom and how, and the route of each task through
//! them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tessera_core::{Error, Result};

use crate::fusion::{FusionIndex, TaskNumber};
use crate::route::{self, FusedRun, TaskRoute};
use crate::shared_unit::{SharedUnit, UnitWish};
use crate::subgraph::extract_subgraph;
use crate::task::PlannedTask;
use crate::unit::{Unit, UnitId, unit_id};

/// Tasks that come, go, or are served in another way; all others stay.
#[derive(Clone, Debug, Default)]
pub struct TaskChange {
    /// Tasks that are new, or others than before.
    pub put: Vec<Arc<PlannedTask>>,
    /// Names of those that are served no more.
    pub removed: Vec<String>,
}

/// What a change of tasks means for units and routes.
#[derive(Clone, Debug, Default)]
pub struct DeploymentChange {
    /// Units that were not there before.
    pub new_units: Vec<Arc<Unit>>,
    /// Units that were, and run in another way now.
    pub changed_units: Vec<Arc<Unit>>,
    /// Units that nobody uses any more.
    pub removed_units: Vec<UnitId>,
    /// Routes that are new or others than before, also those of tasks that stay.
    pub routes: Vec<Arc<TaskRoute>>,
    /// Names of tasks that are gone.
    pub removed_tasks: Vec<String>,
    /// The change that takes this one back.
    pub undo: TaskChange,
}

/// What is to run: the units, and the routes of tasks through them.
///
/// Blocks that several tasks have in common, on the same device, are one unit. With fusion,
/// neighbouring blocks that the same tasks use in the same way are one unit, too. A change takes as
/// long as what it changes, however many tasks stay.
pub struct Deployment {
    fusion: FusionIndex,
    fuses: bool,
    tasks: BTreeMap<String, DeployedTask>,
    names: HashMap<TaskNumber, String>,
    /// The units, by what they compute.
    units: HashMap<UnitId, SharedUnit>,
    /// What each computes, by its name.
    unit_keys: BTreeMap<UnitId, UnitId>,
    /// Counts tasks and units, in the order in which they came.
    next_number: u64,
}

/// How a change of a deployment is taken back.
pub struct DeploymentUndo(UndoKind);

enum UndoKind {
    Change(TaskChange),
    Deployment(Box<Deployment>),
}

struct DeployedTask {
    number: TaskNumber,
    task: Arc<PlannedTask>,
    /// What its units compute, in order.
    unit_keys: Vec<UnitId>,
    route: Arc<TaskRoute>,
}

impl Deployment {
    /// A deployment of no tasks.
    pub fn new(fuses: bool) -> Self {
        Self {
            fusion: FusionIndex::new(fuses),
            fuses,
            tasks: BTreeMap::new(),
            names: HashMap::new(),
            units: HashMap::new(),
            unit_keys: BTreeMap::new(),
            next_number: 0,
        }
    }

    /// How these tasks are served together.
    pub fn of_tasks(tasks: impl IntoIterator<Item = PlannedTask>, fuses: bool) -> Result<Self> {
        let mut deployment = Self::new(fuses);
        let put = tasks.into_iter().map(Arc::new).collect();
        deployment.change_tasks(TaskChange { put, removed: Vec::new() })?;
        Ok(deployment)
    }

    /// Whether neighbouring blocks that nobody tells apart are one unit.
    pub fn fuses(&self) -> bool {
        self.fuses
    }

    /// The units, in the order in which they came.
    pub fn units(&self) -> Vec<Arc<Unit>> {
        let mut units: Vec<&SharedUnit> = self.units.values().collect();
        units.sort_by_key(|shared| shared.number);
        units.into_iter().map(|shared| Arc::clone(&shared.unit)).collect()
    }

    /// The units, in no order.
    pub fn all_units(&self) -> impl Iterator<Item = &Arc<Unit>> {
        self.units.values().map(|shared| &shared.unit)
    }

    /// The unit of this name.
    pub fn find_unit(&self, id: &UnitId) -> Option<&Arc<Unit>> {
        Some(&self.units.get(self.unit_keys.get(id)?)?.unit)
    }

    /// The tasks that use a unit, in the order in which they came.
    pub fn unit_tasks(&self, id: &UnitId) -> Vec<String> {
        let shared = self.unit_keys.get(id).and_then(|key| self.units.get(key));
        let numbers = shared.into_iter().flat_map(SharedUnit::tasks);
        numbers.filter_map(|number| self.names.get(number).cloned()).collect()
    }

    /// A task.
    pub fn find_planned(&self, task: &str) -> Option<&Arc<PlannedTask>> {
        Some(&self.tasks.get(task)?.task)
    }

    /// The route of a task.
    pub fn find_route(&self, task: &str) -> Option<&Arc<TaskRoute>> {
        Some(&self.tasks.get(task)?.route)
    }

    /// The routes, by the names of tasks.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<TaskRoute>> {
        self.tasks.values().map(|deployed| &deployed.route)
    }

    /// The tasks, by name.
    pub fn planned_tasks(&self) -> impl Iterator<Item = &Arc<PlannedTask>> {
        self.tasks.values().map(|deployed| &deployed.task)
    }

    /// Sets the threshold of an exit, which moves no block.
    pub fn set_threshold(&mut self, task: &str, exit: &str, threshold: f32) {
        let Some(deployed) = self.tasks.get_mut(task) else { return };
        let exits = &mut Arc::make_mut(&mut deployed.task).graph.exits;
        exits.iter_mut().filter(|known| known.output == exit).for_each(|known| {
            known.threshold = threshold;
        });
        let exits = &mut Arc::make_mut(&mut deployed.route).exits;
        exits.iter_mut().filter(|known| known.name == exit).for_each(|known| {
            known.threshold = threshold;
        });
    }

    /// Carries a change out; where a task makes no sense nothing changes.
    pub fn change_tasks(&mut self, change: TaskChange) -> Result<DeploymentChange> {
        for task in &change.put {
            check_task(task)?;
        }
        let mut found = DeploymentChange::default();
        let mut touched = BTreeMap::new();
        let mut removed = Vec::new();
        for name in &change.removed {
            let Some(gone) = self.tasks.remove(name) else { continue };
            self.leave_units(&gone, &mut touched);
            self.names.remove(&gone.number);
            removed.push(gone.number);
            found.removed_tasks.push(name.clone());
            found.undo.put.push(gone.task);
        }
        let mut added = Vec::with_capacity(change.put.len());
        for task in change.put {
            match self.tasks.remove(&task.name) {
                Some(before) => {
                    self.leave_units(&before, &mut touched);
                    self.names.remove(&before.number);
                    removed.push(before.number);
                    found.undo.put.push(before.task);
                }
                None => found.undo.removed.push(task.name.clone()),
            }
            let number = self.take_number();
            self.names.insert(number, task.name.clone());
            added.push((number, task));
        }
        let regrouped = self.fusion.change_tasks(&removed, &added);
        let mut new: HashMap<TaskNumber, Arc<PlannedTask>> = added.into_iter().collect();
        let mut moving: BTreeMap<TaskNumber, (Arc<PlannedTask>, Vec<FusedRun>)> = BTreeMap::new();
        for number in regrouped {
            let task = match new.remove(&number) {
                Some(task) => task,
                None => {
                    let name = self.names.get(&number);
                    let Some(before) = name.and_then(|name| self.tasks.remove(name)) else {
                        continue;
                    };
                    self.leave_units(&before, &mut touched);
                    before.task
                }
            };
            let runs = self.enter_units(number, &task, &mut touched);
            moving.insert(number, (task, runs));
        }
        let renamed = self.settle_units(touched, &mut found);
        for (number, (task, runs)) in moving {
            let route = Arc::new(self.build_named_route(&task, &runs)?);
            let unit_keys = runs.into_iter().map(|run| run.unit).collect();
            found.routes.push(Arc::clone(&route));
            let name = task.name.clone();
            self.tasks.insert(name, DeployedTask { number, task, unit_keys, route });
        }
        for number in renamed {
            self.rename_units(number, &mut found)?;
        }
        Ok(found)
    }

    /// Makes it be what it is after a change, with or without fusion; what that means, and how it is
    /// taken back.
    pub fn change_with_fusion(
        &mut self,
        change: TaskChange,
        fuses: bool,
    ) -> Result<(DeploymentChange, DeploymentUndo)> {
        if self.fuses == fuses {
            let found = self.change_tasks(change)?;
            let undo = DeploymentUndo(UndoKind::Change(found.undo.clone()));
            return Ok((found, undo));
        }
        let (anew, found) = self.plan_anew(change, fuses)?;
        let before = std::mem::replace(self, anew);
        Ok((found, DeploymentUndo(UndoKind::Deployment(Box::new(before)))))
    }

    /// Takes back a change that was not carried out.
    pub fn undo_change(&mut self, undo: DeploymentUndo) -> Result<()> {
        match undo.0 {
            UndoKind::Deployment(before) => *self = *before,
            UndoKind::Change(change) => drop(self.change_tasks(change)?),
        }
        Ok(())
    }

    /// The deployment after a change and with another fusion, and what differs from this one.
    pub fn plan_anew(&self, change: TaskChange, fuses: bool) -> Result<(Self, DeploymentChange)> {
        let mut tasks: BTreeMap<String, Arc<PlannedTask>> =
            self.planned_tasks().map(|task| (task.name.clone(), Arc::clone(task))).collect();
        change.removed.iter().for_each(|name| drop(tasks.remove(name)));
        tasks.extend(change.put.into_iter().map(|task| (task.name.clone(), task)));
        let mut anew = Self::new(fuses);
        let put = tasks.into_values().collect();
        let mut found = anew.change_tasks(TaskChange { put, removed: Vec::new() })?;
        let (known, new) = std::mem::take(&mut found.new_units)
            .into_iter()
            .partition(|unit: &Arc<Unit>| self.find_unit(&unit.id).is_some());
        (found.changed_units, found.new_units) = (known, new);
        let units = self.unit_keys.keys();
        found.removed_units = units.filter(|id| anew.find_unit(id).is_none()).cloned().collect();
        found.removed_tasks = change.removed;
        Ok((anew, found))
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// A task uses its units no more. `touched` notes what each was before the change.
    fn leave_units(
        &mut self,
        deployed: &DeployedTask,
        touched: &mut BTreeMap<UnitId, Option<Arc<Unit>>>,
    ) {
        for key in &deployed.unit_keys {
            if let Some(shared) = self.units.get_mut(key) {
                touched.entry(key.clone()).or_insert_with(|| Some(Arc::clone(&shared.unit)));
                shared.remove_task(deployed.number);
            }
        }
    }

    /// A task uses the units that its groups make.
    fn enter_units(
        &mut self,
        number: TaskNumber,
        task: &PlannedTask,
        touched: &mut BTreeMap<UnitId, Option<Arc<Unit>>>,
    ) -> Vec<FusedRun> {
        let groups = self.fusion.groups_of(number).to_vec();
        let mut runs = Vec::with_capacity(groups.len());
        for range in groups {
            let (graph, inputs, outputs) = extract_subgraph(&task.graph, range.clone());
            let device = task.settings.device_of(range.start);
            let node = task.settings.node_of(range.start);
            let key = unit_id(&graph, device, node.map(|node| &**node));
            let wish = UnitWish {
                isolation: task.settings.isolation,
                replicas: task.settings.replicas,
                batching: task.settings.batching,
                residency: task.settings.residency,
                is_batchable: graph.is_row_wise(),
                has_exits: !task.graph.exits.is_empty(),
            };
            let shared = match self.units.entry(key.clone()) {
                Entry::Occupied(known) => {
                    let shared = known.into_mut();
                    let before = || Some(Arc::clone(&shared.unit));
                    touched.entry(key.clone()).or_insert_with(before);
                    shared
                }
                Entry::Vacant(place) => {
                    touched.insert(key.clone(), None);
                    self.next_number += 1;
                    let place_of_unit = (device, node.map(|node| node.to_string()));
                    place.insert(SharedUnit::new(
                        self.next_number,
                        &key,
                        graph,
                        place_of_unit,
                        wish,
                    ))
                }
            };
            shared.add_task(number, wish);
            runs.push(FusedRun { unit: key, range, inputs, outputs });
        }
        runs
    }

    /// Makes units be as their tasks want them; returns the numbers of tasks that use one whose
    /// name is another now.
    fn settle_units(
        &mut self,
        touched: BTreeMap<UnitId, Option<Arc<Unit>>>,
        found: &mut DeploymentChange,
    ) -> BTreeSet<TaskNumber> {
        let mut renamed = BTreeSet::new();
        let mut settled: Vec<(u64, Option<Arc<Unit>>, Arc<Unit>)> = Vec::new();
        for (key, before) in touched {
            let Some(shared) = self.units.get_mut(&key) else { continue };
            if shared.is_unused() {
                self.units.remove(&key);
                if let Some(before) = before {
                    self.unit_keys.remove(&before.id);
                    found.removed_units.push(before.id.clone());
                }
                continue;
            }
            shared.settle(&key);
            let unit = Arc::clone(&shared.unit);
            if let Some(before) = before.as_ref().filter(|before| before.id != unit.id) {
                self.unit_keys.remove(&before.id);
                found.removed_units.push(before.id.clone());
                renamed.extend(shared.tasks());
            }
            self.unit_keys.insert(unit.id.clone(), key);
            settled.push((shared.number, before, unit));
        }
        settled.sort_by_key(|(number, _, _)| *number);
        for (_, before, unit) in settled {
            match before.filter(|before| before.id == unit.id) {
                None => found.new_units.push(unit),
                Some(before) if before != unit => found.changed_units.push(unit),
                Some(_) => {}
            }
        }
        renamed
    }

    /// The route of a task through the units that its runs of blocks became.
    fn build_named_route(&self, task: &PlannedTask, runs: &[FusedRun]) -> Result<TaskRoute> {
        let mut route = route::build_route(task, runs)?;
        for step in &mut route.steps {
            if let Some(shared) = self.units.get(&step.unit) {
                step.unit = shared.unit.id.clone();
            }
        }
        Ok(route)
    }

    /// Builds the route of a task again that stays where it is, and whose units have other names.
    fn rename_units(&mut self, number: TaskNumber, found: &mut DeploymentChange) -> Result<()> {
        let name = self.names.get(&number);
        let Some(deployed) = name.and_then(|name| self.tasks.get(name)) else { return Ok(()) };
        let task = Arc::clone(&deployed.task);
        let groups = self.fusion.groups_of(number).iter().cloned();
        let runs: Vec<FusedRun> = groups
            .zip(&deployed.unit_keys)
            .map(|(range, key)| {
                let (_, inputs, outputs) = extract_subgraph(&task.graph, range.clone());
                FusedRun { unit: key.clone(), range, inputs, outputs }
            })
            .collect();
        let route = Arc::new(self.build_named_route(&task, &runs)?);
        if let Some(deployed) = self.tasks.get_mut(&task.name)
            && deployed.route != route
        {
            deployed.route = Arc::clone(&route);
            found.routes.push(route);
        }
        Ok(())
    }
}

/// Whether a task can be served at all, however its blocks are grouped.
fn check_task(task: &PlannedTask) -> Result<()> {
    let within = |error: Error| error.with_context(format!("task \"{}\"", task.name));
    if !task.graph.is_sound() {
        return Err(within(Error::invalid("its path uses what no earlier block computes")));
    }
    let single = (0..task.graph.blocks.len()).map(|at| {
        let (_, inputs, outputs) = extract_subgraph(&task.graph, at..at + 1);
        FusedRun { unit: UnitId(String::new()), range: at..at + 1, inputs, outputs }
    });
    route::build_route(task, &single.collect::<Vec<_>>()).map(drop).map_err(within)
}
