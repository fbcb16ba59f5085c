//! The tasks of a change put where they are to run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tessera_core::Result;
use tessera_deploy::{PlannedTask, TaskChange};

use super::node_table::KnownNode;
use super::placed_change::Nodes;
use super::placing::{Placeable, place_task};
use super::site_state::SiteState;

/// Puts the tasks of a change where they are to run, as far as it is planned.
pub(super) fn place_change(
    change: &TaskChange,
    state: &SiteState,
    nodes: &Nodes,
    drained: &[String],
    planned: &HashMap<String, Vec<Arc<str>>>,
) -> Result<TaskChange> {
    let placeable = Placeable { nodes, drained, units: &state.units };
    let put = change.put.iter().map(|task| {
        let before = state.deployment.find_planned(&task.name);
        let stays = before.filter(|before| is_placed_for(before, task, nodes, drained));
        match (stays, planned.get(&task.name)) {
            (Some(before), _) => Ok(task_at(task, &before.settings.nodes)),
            (None, Some(planned)) => place_task(task, planned, &placeable),
            (None, None) => place_task(task, &task.settings.nodes, &placeable),
        }
    });
    let put = put.collect::<Result<_>>()?;
    Ok(TaskChange { put, removed: change.removed.clone() })
}

/// A task with its blocks at these nodes.
pub(super) fn task_at(task: &Arc<PlannedTask>, nodes: &[Arc<str>]) -> Arc<PlannedTask> {
    let mut placed = PlannedTask::clone(task);
    placed.settings.nodes = nodes.to_vec();
    Arc::new(placed)
}

/// Whether a task that is placed already may stay where it is.
pub(super) fn is_placed_for(
    before: &PlannedTask,
    task: &PlannedTask,
    nodes: &BTreeMap<String, KnownNode>,
    drained: &[String],
) -> bool {
    let is_open = |name: &Arc<str>| {
        nodes.get(&**name).is_some_and(KnownNode::is_attached)
            && !drained.iter().any(|drained| **drained == **name)
    };
    task.settings.nodes.is_empty()
        && before.graph.blocks.len() == task.graph.blocks.len()
        && before.settings.nodes.len() == task.graph.blocks.len()
        && before.settings.nodes.iter().all(is_open)
}
