//! A deployment: which blocks run as one, for whom and how, and the route of each task through
//! them.

use std::collections::HashMap;

use tessera_core::{Error, Result};

use crate::fusion;
use crate::route::{self, TaskRoute};
use crate::task::{PlannedTask, TaskSettings};
use crate::unit::{Unit, UnitId, UnitSettings, unit_id};

/// What is to run: the units, and the routes of tasks through them.
#[derive(Clone, Debug, Default)]
pub struct Deployment {
    /// The units, in the order in which tasks first use them.
    pub units: Vec<Unit>,
    /// The routes, in the order of the tasks.
    pub routes: Vec<TaskRoute>,
}

/// Plans how `tasks` are served together.
///
/// Blocks that several tasks have in common, on the same device, are one unit. With `fuse`,
/// neighbouring blocks that the same tasks use in the same way are one unit, too.
pub fn plan_deployment(tasks: &[PlannedTask], fuse: bool) -> Result<Deployment> {
    let mut deployment = Deployment::default();
    let mut known: HashMap<UnitId, usize> = HashMap::new();
    let groups = fusion::fusion_groups(tasks, fuse);
    for (task, groups) in tasks.iter().zip(groups) {
        let within = |error: Error| error.with_context(format!("task \"{}\"", task.name));
        if !task.graph.is_sound() {
            return Err(within(Error::invalid("its path uses what no earlier block computes")));
        }
        let mut placed = Vec::with_capacity(groups.len());
        for range in groups {
            let (graph, inputs, outputs) = fusion::extract_subgraph(&task.graph, range.clone());
            let device = task.settings.device_of(range.start);
            let id = unit_id(&graph, device);
            let is_batchable = graph.is_row_wise();
            let index = *known.entry(id.clone()).or_insert_with(|| {
                deployment.units.push(Unit {
                    id,
                    is_batchable,
                    graph,
                    settings: UnitSettings {
                        isolation: task.settings.isolation,
                        replicas: task.settings.replicas,
                        device,
                        batching: task.settings.batching,
                    },
                    tasks: Vec::new(),
                });
                deployment.units.len() - 1
            });
            let unit = &mut deployment.units[index];
            merge_settings(&mut unit.settings, &task.settings);
            // Proved for one path, it holds for all: the same blocks compute the same.
            unit.is_batchable |= is_batchable;
            // One task after the other: those that were there before are not looked through.
            if unit.tasks.last() != Some(&task.name) {
                unit.tasks.push(task.name.clone());
            }
            placed.push(route::FusedRun { unit: unit.id.clone(), range, inputs, outputs });
        }
        deployment.routes.push(route::build_route(task, &placed).map_err(within)?);
    }
    name_units(&mut deployment);
    Ok(deployment)
}

/// Gives units that run in another way another name: they can't stand for each other.
fn name_units(deployment: &mut Deployment) {
    let mut names: HashMap<UnitId, UnitId> = HashMap::with_capacity(deployment.units.len());
    for unit in &mut deployment.units {
        let UnitSettings { isolation, replicas: _, device: _, batching } = &unit.settings;
        let mut hasher = blake3::Hasher::new();
        hasher.update(unit.id.0.as_bytes());
        hasher.update(format!("{isolation} {batching:?}").as_bytes());
        let named = UnitId(hasher.finalize().to_hex().as_str()[..12].to_owned());
        names.insert(std::mem::replace(&mut unit.id, named.clone()), named);
    }
    for step in deployment.routes.iter_mut().flat_map(|route| &mut route.steps) {
        if let Some(named) = names.get(&step.unit) {
            step.unit = named.clone();
        }
    }
}

/// A unit that tasks share is as apart as any of them wants it, and as many as the one that wants
/// most.
fn merge_settings(unit: &mut UnitSettings, task: &TaskSettings) {
    unit.isolation = unit.isolation.max(task.isolation);
    unit.replicas = unit.replicas.max(task.replicas);
    unit.batching = unit.batching.max(task.batching);
}
