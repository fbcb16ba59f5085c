//! The tasks of a cluster: what is wished for, what is decided, and what gateways serve.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tessera_deploy::{
    Deployment, DeploymentChange, PlannedTask, TaskChange, TaskRoute, Unit, UnitId,
};

use super::node_table::KnownNode;
use super::task_blocks::TaskBlocks;

/// What a site knows of its tasks.
pub(super) struct SiteState {
    pub(super) deployment: Deployment,
    /// The tasks as they were asked for, before they were placed.
    pub(super) wished: BTreeMap<String, Arc<PlannedTask>>,
    /// Those that may be placed anywhere, block by block; with those that are about to be.
    pub(super) task_blocks: BTreeMap<String, Arc<TaskBlocks>>,
    /// Those that could be, but for their blocks, which can't be placed one by one.
    pub(super) unplannable: BTreeMap<String, Arc<PlannedTask>>,
    /// Every unit that runs or should.
    pub(super) units: BTreeMap<UnitId, Arc<Unit>>,
    /// Those of them that changes wait for, and how many do.
    pub(super) starting: BTreeMap<UnitId, usize>,
    /// The thresholds that were chosen for exits, by task and exit.
    pub(super) chosen: BTreeMap<String, BTreeMap<String, f32>>,
    /// What gateways serve.
    pub(super) routes: BTreeMap<String, Arc<TaskRoute>>,
    /// What they served before, until no request is left.
    pub(super) earlier_routes: Vec<Arc<TaskRoute>>,
    /// Until when nodes are waited for that ran what was taken over.
    pub(super) adopting_until: Option<Instant>,
}

impl SiteState {
    /// Without tasks.
    pub(super) fn new() -> Self {
        Self {
            deployment: Deployment::new(true),
            wished: BTreeMap::new(),
            task_blocks: BTreeMap::new(),
            unplannable: BTreeMap::new(),
            units: BTreeMap::new(),
            starting: BTreeMap::new(),
            chosen: BTreeMap::new(),
            routes: BTreeMap::new(),
            earlier_routes: Vec::new(),
            adopting_until: None,
        }
    }

    /// Whether it is known where all units are, or too late to wait for that.
    pub(super) fn check_settled(&mut self, nodes: &BTreeMap<String, KnownNode>) -> bool {
        let Some(until) = self.adopting_until else { return true };
        let has_reported = |unit: &Arc<Unit>| {
            let node = unit.settings.node.as_deref().and_then(|node| nodes.get(node));
            node.is_some_and(KnownNode::has_reported)
        };
        if Instant::now() >= until || self.units.values().all(has_reported) {
            self.adopting_until = None;
        }
        self.adopting_until.is_none()
    }

    /// Whether there are tasks whose thresholds are chosen.
    pub(super) fn has_choices(&self) -> bool {
        self.task_blocks.values().any(|blocks| blocks.task.settings.accuracy_goal.is_some())
    }

    /// A task is wished for as it was, but for its thresholds: what is known of it stays known.
    pub(super) fn replace_wished(&mut self, task: &Arc<PlannedTask>) {
        let Some(before) = self.wished.insert(task.name.clone(), Arc::clone(task)) else { return };
        if let Some(blocks) = self.task_blocks.get_mut(&task.name)
            && Arc::ptr_eq(&blocks.task, &before)
        {
            let task = Arc::clone(task);
            *blocks = Arc::new(TaskBlocks { task, ..TaskBlocks::clone(blocks) });
        }
        if let Some(known) = self.unplannable.get_mut(&task.name)
            && Arc::ptr_eq(known, &before)
        {
            *known = Arc::clone(task);
        }
    }

    /// Has gateways serve other routes from now on; returns those that they served before.
    pub(super) fn switch_routes(
        &mut self,
        change: TaskChange,
        found: &DeploymentChange,
    ) -> Vec<Arc<TaskRoute>> {
        for name in &change.removed {
            self.wished.remove(name);
            self.chosen.remove(name);
        }
        for task in change.put {
            self.wished.insert(task.name.clone(), task);
        }
        for unit in found.new_units.iter().chain(&found.changed_units) {
            self.units.insert(unit.id.clone(), Arc::clone(unit));
        }
        let gone = found.removed_tasks.iter().chain(found.routes.iter().map(|route| &route.task));
        let earlier: Vec<Arc<TaskRoute>> =
            gone.filter_map(|task| self.routes.remove(task)).collect();
        for route in &found.routes {
            self.routes.insert(route.task.clone(), Arc::clone(route));
            // One that was set meanwhile counts.
            self.settle_thresholds(&route.task);
        }
        self.earlier_routes.extend(earlier.iter().cloned());
        earlier
    }

    /// A change does not wait for a unit any more: it runs as it is decided, or not.
    pub(super) fn release_unit(&mut self, unit: &UnitId) {
        if let Some(count) = self.starting.get_mut(unit) {
            *count -= 1;
            if *count > 0 {
                return;
            }
            self.starting.remove(unit);
        }
        match self.deployment.find_unit(unit).cloned() {
            Some(decided) => drop(self.units.insert(unit.clone(), decided)),
            None if self.is_passed(unit) => {}
            None => drop(self.units.remove(unit)),
        }
    }

    /// Whether requests may still be on their way to a unit that is not needed any more.
    fn is_passed(&self, unit: &UnitId) -> bool {
        let steps = self.earlier_routes.iter().flat_map(|route| &route.steps);
        steps.into_iter().any(|step| step.unit == *unit)
    }

    /// Has the exits of a task's route be as they are chosen or wished for, wherever it leads.
    pub(super) fn settle_thresholds(&mut self, task: &str) {
        let Some(wished) = self.wished.get(task).cloned() else { return };
        let goal = wished.settings.accuracy_goal.as_ref();
        let chosen = self.chosen.entry(task.to_owned()).or_default();
        // What somebody has set stays, and what is not listed any more is not chosen.
        chosen.retain(|exit, threshold| {
            let choice = goal.and_then(|goal| goal.exits.get(exit));
            choice.is_some_and(|choice| {
                let mut settings = choice.settings.iter();
                !choice.is_pinned && settings.any(|setting| setting.threshold == *threshold)
            })
        });
        for exit in &wished.graph.exits {
            let threshold = chosen.get(&exit.output).copied().unwrap_or(exit.threshold);
            self.deployment.set_threshold(task, &exit.output, threshold);
        }
        if chosen.is_empty() {
            self.chosen.remove(task);
        }
        let route = self.deployment.find_route(task);
        if let (Some(known), Some(route)) = (self.routes.get_mut(task), route)
            && known.exits != route.exits
        {
            Arc::make_mut(known).exits.clone_from(&route.exits);
        }
    }
}
