//! Which node the blocks of a task run at, where it does not say.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tessera_core::{Error, Result};
use tessera_deploy::{PlannedTask, Unit, UnitId};

use super::node_table::KnownNode;

/// The nodes that something may be placed at.
pub(super) struct Placeable<'a> {
    pub(super) nodes: &'a BTreeMap<String, KnownNode>,
    /// Those that get nothing to do.
    pub(super) drained: &'a [String],
    pub(super) units: &'a BTreeMap<UnitId, Arc<Unit>>,
}

/// The task with a node for each of its blocks.
pub(super) fn place_task(
    task: &Arc<PlannedTask>,
    wanted: &[Arc<str>],
    placeable: &Placeable<'_>,
) -> Result<Arc<PlannedTask>> {
    let wrong = |why: String| Error::usage(format!("task \"{}\": {why}", task.name));
    let blocks = task.graph.blocks.len();
    let nodes = match wanted {
        [] => vec![
            choose_node(placeable).ok_or_else(|| {
                Error::full(format!("task \"{}\": no node is there to run it", task.name))
            })?;
            blocks
        ],
        [one] => vec![Arc::clone(one); blocks],
        each if each.len() == blocks => each.to_vec(),
        each => {
            return Err(wrong(format!(
                "node: a list of {}, expected one for each of its {blocks} blocks",
                each.len()
            )));
        }
    };
    for node in &nodes {
        let known = placeable.nodes.get(&**node);
        if known.is_none() {
            let names: Vec<&str> = placeable.nodes.keys().map(String::as_str).take(20).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(wrong(format!("there is no node \"{node}\", there is {names}")));
        }
        if known.is_some_and(|node| !node.is_attached()) {
            let error = format!("task \"{}\": node \"{node}\" is away", task.name);
            return Err(Error::lost(error));
        }
    }
    let mut placed = PlannedTask::clone(task);
    placed.settings.nodes = nodes;
    Ok(Arc::new(placed))
}

/// The node with the fewest units for its cores.
fn choose_node(placeable: &Placeable<'_>) -> Option<Arc<str>> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for unit in placeable.units.values() {
        if let Some(node) = &unit.settings.node {
            *counts.entry(node).or_default() += 1;
        }
    }
    let is_open = |name: &str, node: &KnownNode| {
        node.is_attached() && !placeable.drained.iter().any(|drained| drained == name)
    };
    let open = placeable.nodes.iter().filter(|(name, node)| is_open(name, node));
    let load = |name: &str, node: &KnownNode| {
        let units = counts.get(name).copied().unwrap_or(0) as f64;
        (units + 1.0) / f64::from(node.description.cores.max(1))
    };
    let least = open.min_by(|a, b| load(a.0, a.1).total_cmp(&load(b.0, b.1)));
    least.map(|(name, _)| Arc::from(name.as_str()))
}
