//! A change carried out: what is new is started, gateways use it, and what nobody uses any more is
//! stopped when no request is left that could pass it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tessera_cluster::UnitState;
use tessera_core::{Error, Result, lock};
use tessera_deploy::{DeploymentChange, TaskChange, TaskRoute, Unit, UnitId};

use super::cluster_site::SiteInner;
use super::node_table::KnownNode;
use crate::site::AppliedUnits;

/// How long gateways may take to have a new table.
const TABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long what is not needed any more waits for gateways that are away or slow.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

impl SiteInner {
    /// Starts what a placed change needs, has gateways use it, and stops what is not needed any more
    /// when no request is left. `change` is what is wished for from then on.
    pub(super) async fn carry_out(
        self: &Arc<Self>,
        change: TaskChange,
        placed: TaskChange,
        fusion: bool,
        start_timeout: Duration,
    ) -> Result<AppliedUnits> {
        let (kept, removed) = (placed.put.clone(), placed.removed.clone());
        let (found, undo) = lock(&self.state).deployment.change_with_fusion(placed, fusion)?;
        {
            let mut state = lock(&self.state);
            for unit in found.new_units.iter().chain(&found.changed_units) {
                state.units.insert(unit.id.clone(), Arc::clone(unit));
            }
        }
        self.assign_all();
        if let Err(error) = self.wait_for_units(&found, start_timeout).await {
            let mut state = lock(&self.state);
            for unit in &found.new_units {
                state.units.remove(&unit.id);
            }
            if let Err(second) = state.deployment.undo_change(undo) {
                tracing::error!(%second, "a plan could not be taken back");
            }
            kept.iter().for_each(|task| state.settle_thresholds(&task.name));
            for unit in &found.changed_units {
                if let Some(before) = state.deployment.find_unit(&unit.id).cloned() {
                    state.units.insert(unit.id.clone(), before);
                }
            }
            drop(state);
            self.assign_all();
            return Err(error);
        }
        self.keep_placement(kept, removed).await;
        let earlier = self.switch_routes(change, &found);
        self.assign_all();
        let tables = self.wait_for_tables().await;
        let applied = AppliedUnits {
            started: found.new_units.iter().map(|unit| unit.id.to_string()).collect(),
            stopped: found.removed_units.iter().map(ToString::to_string).collect(),
        };
        self.publish_event(&json!({
            "kind": "system", "started": applied.started, "stopped": applied.stopped,
            "changed": found.routes.iter().map(|route| &route.task).collect::<Vec<_>>(),
            "removed": found.removed_tasks,
        }));
        let (site, superfluous) = (Arc::clone(self), found.removed_units);
        tokio::spawn(async move { site.stop_later(tables, earlier, superfluous).await });
        Ok(applied)
    }

    /// Has gateways serve other routes from now on; returns those that they served before.
    pub(super) fn switch_routes(
        &self,
        change: TaskChange,
        found: &DeploymentChange,
    ) -> Vec<Arc<TaskRoute>> {
        let mut state = lock(&self.state);
        for name in &change.removed {
            state.wished.remove(name);
        }
        for task in change.put {
            state.wished.insert(task.name.clone(), task);
        }
        let gone = found.removed_tasks.iter().chain(found.routes.iter().map(|route| &route.task));
        let earlier: Vec<Arc<TaskRoute>> =
            gone.filter_map(|task| state.routes.remove(task)).collect();
        for route in &found.routes {
            state.routes.insert(route.task.clone(), Arc::clone(route));
            // One that was set meanwhile counts.
            state.settle_thresholds(&route.task);
        }
        state.earlier_routes.extend(earlier.iter().cloned());
        earlier
    }

    /// Stops what is not needed any more once no request is left that could pass it.
    async fn stop_later(
        &self,
        tables: HashMap<String, u64>,
        earlier: Vec<Arc<TaskRoute>>,
        superfluous: Vec<UnitId>,
    ) {
        self.wait_until_drained(&tables).await;
        let _changing = self.changing.lock().await;
        {
            let mut state = lock(&self.state);
            let is_over =
                |route: &Arc<TaskRoute>| earlier.iter().any(|old| Arc::ptr_eq(old, route));
            state.earlier_routes.retain(|route| !is_over(route));
            for unit in &superfluous {
                // It may be needed again by now.
                if state.deployment.find_unit(unit).is_none() {
                    state.units.remove(unit);
                }
            }
        }
        self.assign_all();
    }

    /// Waits until what is new takes requests; an error where it can't.
    async fn wait_for_units(&self, found: &DeploymentChange, most: Duration) -> Result<()> {
        let waited: Vec<&Arc<Unit>> = found.new_units.iter().chain(&found.changed_units).collect();
        let look = |nodes: &BTreeMap<String, KnownNode>| {
            let mut is_complete = true;
            for unit in &waited {
                match unit_readiness(unit, nodes) {
                    Ok(is_up) => is_complete &= is_up,
                    Err(error) => return Some(Err(error)),
                }
            }
            is_complete.then_some(Ok(()))
        };
        let started = self.wait_until(most, look).await;
        started.unwrap_or_else(|| {
            let seconds = most.as_secs();
            Err(Error::timed_out(format!("the units were not started within {seconds} s")))
        })
    }

    /// Waits until every gateway that is there has its table; returns which table each has.
    async fn wait_for_tables(&self) -> HashMap<String, u64> {
        let numbers = self.nodes.read(|nodes| {
            let gateways = nodes.iter().filter(|(_, node)| is_gateway(node));
            gateways.map(|(name, node)| (name.clone(), node.last_number())).collect()
        });
        let has_all = |nodes: &BTreeMap<String, KnownNode>| {
            let has = |(name, number): (&String, &u64)| {
                nodes.get(name).is_none_or(|node| !is_gateway(node) || node.applied >= *number)
            };
            HashMap::iter(&numbers).all(has).then_some(())
        };
        if self.wait_until(TABLE_TIMEOUT, has_all).await.is_none() {
            tracing::warn!("not all gateways have their new table yet");
        }
        numbers
    }

    /// Waits until no gateway has a request left that was accepted before these tables.
    async fn wait_until_drained(&self, numbers: &HashMap<String, u64>) {
        let is_drained = |nodes: &BTreeMap<String, KnownNode>| {
            let has = |(name, number): (&String, &u64)| {
                nodes.get(name).is_none_or(|node| node.drained >= *number)
            };
            numbers.iter().all(has).then_some(())
        };
        if self.wait_until(DRAIN_TIMEOUT, is_drained).await.is_none() {
            tracing::warn!("units are stopped that a gateway which is away may still use");
        }
    }

    fn publish_event(&self, event: &serde_json::Value) {
        // Where nobody listens nobody hears.
        self.events.send(event.to_string().into()).ok();
    }
}

fn is_gateway(node: &KnownNode) -> bool {
    node.is_attached() && node.description.gateway.is_some()
}

/// Whether a unit takes requests where it should; an error where it never will.
pub(super) fn unit_readiness(unit: &Unit, nodes: &BTreeMap<String, KnownNode>) -> Result<bool> {
    let name = unit.settings.node.as_deref().unwrap_or_default();
    let Some(node) = nodes.get(name).filter(|node| node.is_attached()) else {
        return Err(Error::lost(format!("unit {}: node \"{name}\" is away", unit.id)));
    };
    match node.units.get(&unit.id).map(|report| (&report.state, report)) {
        None | Some((UnitState::Starting, _)) => Ok(false),
        Some((UnitState::Failed(reason), _)) => {
            Err(Error::engine(format!("unit {} at node \"{name}\": {reason}", unit.id)))
        }
        Some((UnitState::Up, report)) => {
            let up = report.instances.iter().filter(|instance| instance.address.is_some());
            Ok(up.count() >= unit.settings.replicas.max(1))
        }
    }
}
