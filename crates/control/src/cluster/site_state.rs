//! The tasks of a cluster: what is wished for, what is decided, and what gateways serve.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tessera_deploy::{Deployment, PlannedTask, TaskRoute, Unit, UnitId};

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

    /// Has the exits of a task's route be as they are wished for, wherever it leads.
    pub(super) fn settle_thresholds(&mut self, task: &str) {
        let Some(wished) = self.wished.get(task) else { return };
        for exit in &wished.graph.exits {
            self.deployment.set_threshold(task, &exit.output, exit.threshold);
        }
        let route = self.deployment.find_route(task);
        if let (Some(known), Some(route)) = (self.routes.get_mut(task), route)
            && known.exits != route.exits
        {
            Arc::make_mut(known).exits.clone_from(&route.exits);
        }
    }
}
