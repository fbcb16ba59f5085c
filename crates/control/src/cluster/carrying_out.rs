//! A change carried out: what is new is started, gateways use it, and what nobody uses any more is
//! stopped when no request is left that could pass it.
//!
//! Fetching and starting may take minutes. Nothing is decided before it is over, so that others can
//! change something meanwhile: what ran at a node that dies must not wait for it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tessera_cluster::UnitState;
use tessera_core::{Error, Result, lock};
use tessera_deploy::{DeploymentChange, TaskChange, TaskRoute, Unit, UnitId};

use super::node_table::KnownNode;
use super::placed_change::{ChangeRequest, Nodes, PlacedChange};
use super::replacing::given_up;
use super::site_inner::SiteInner;
use super::site_state::SiteState;
use crate::site::AppliedUnits;

/// How long gateways may take to have a new table.
const TABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long what is not needed any more waits for gateways that are away or slow.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// A change that gateways are told of.
struct CommittedChange {
    found: DeploymentChange,
    placed: TaskChange,
    earlier: Vec<Arc<TaskRoute>>,
}

/// How far a change is.
enum ChangeStep {
    /// Units have to be started for it.
    Starting(Vec<Arc<Unit>>),
    /// It is decided.
    Committed(Box<CommittedChange>),
}

/// Units that run because a change waits for them; stopped where it is given up.
struct HeldUnits {
    site: Arc<SiteInner>,
    units: BTreeSet<UnitId>,
}

impl HeldUnits {
    /// Has units run as well, as they are to be.
    fn hold(&mut self, state: &mut SiteState, units: &[Arc<Unit>]) {
        for unit in units {
            if self.units.insert(unit.id.clone()) {
                *state.starting.entry(unit.id.clone()).or_default() += 1;
            }
            state.units.insert(unit.id.clone(), Arc::clone(unit));
        }
    }
}

impl HeldUnits {
    /// They run as it is decided from now on; tells whether there are any.
    fn release(&mut self) -> bool {
        let units = std::mem::take(&mut self.units);
        let mut state = lock(&self.site.state);
        units.iter().for_each(|unit| state.release_unit(unit));
        !units.is_empty()
    }
}

impl Drop for HeldUnits {
    fn drop(&mut self) {
        if self.release() {
            self.site.assign_all();
        }
    }
}

impl SiteInner {
    /// Starts what a change needs, has gateways use it, and stops what is not needed any more when
    /// no request is left. Until all is started nothing is other than it was, and others may change
    /// something meanwhile.
    pub(super) async fn carry_out(
        self: &Arc<Self>,
        request: ChangeRequest<'_>,
    ) -> Result<AppliedUnits> {
        let mut held = HeldUnits { site: Arc::clone(self), units: BTreeSet::new() };
        let end = Instant::now() + request.start_timeout;
        let committed = loop {
            // Until it is kept nobody else decides anything.
            let changing = self.changing.lock().await;
            match self.try_change(&request, &mut held)? {
                ChangeStep::Committed(committed) => {
                    let CommittedChange { placed, .. } = &*committed;
                    self.keep_placement(&placed.put, placed.removed.clone()).await;
                    break committed;
                }
                ChangeStep::Starting(units) => {
                    drop(changing);
                    self.assign_all();
                    self.wait_for_units(&units, &request, end).await?;
                }
            }
        };
        // What it needs is used, and stays.
        held.release();
        self.assign_all();
        let tables = self.wait_for_tables().await;
        let CommittedChange { found, earlier, .. } = *committed;
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

    /// Makes a change where all that it needs takes requests; else says what has to be started.
    fn try_change(&self, request: &ChangeRequest<'_>, held: &mut HeldUnits) -> Result<ChangeStep> {
        let drained = self.drained_nodes();
        let mut state = lock(&self.state);
        let state = &mut *state;
        if !(request.is_wanted)() {
            return Err(given_up());
        }
        let PlacedChange { wished, placed, fusion } =
            self.nodes.read(|nodes| (request.place)(state, nodes, &drained))?;
        let (found, undo) = state.deployment.change_with_fusion(placed.clone(), fusion)?;
        let needed: Vec<Arc<Unit>> =
            found.new_units.iter().chain(&found.changed_units).cloned().collect();
        let is_up = |unit: &Arc<Unit>, nodes: &Nodes| {
            state.units.get(&unit.id) == Some(unit)
                && matches!(unit_readiness(unit, nodes), Ok(true))
        };
        if self.nodes.read(|nodes| needed.iter().all(|unit| is_up(unit, nodes))) {
            let earlier = state.switch_routes(wished, &found);
            return Ok(ChangeStep::Committed(Box::new(CommittedChange { found, placed, earlier })));
        }
        if let Err(error) = state.deployment.undo_change(undo) {
            tracing::error!(%error, "a plan could not be taken back");
        }
        let touched = placed.put.iter().map(|task| &task.name).chain(&placed.removed);
        touched.for_each(|task| state.settle_thresholds(task));
        held.hold(state, &needed);
        Ok(ChangeStep::Starting(needed))
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
                if state.deployment.find_unit(unit).is_none() && !state.starting.contains_key(unit)
                {
                    state.units.remove(unit);
                }
            }
        }
        self.assign_all();
    }

    /// Waits until what is new takes requests; an error where it can't.
    async fn wait_for_units(
        &self,
        waited: &[Arc<Unit>],
        request: &ChangeRequest<'_>,
        end: Instant,
    ) -> Result<()> {
        let asked: HashMap<String, u64> = self.nodes.read(|nodes| {
            nodes.iter().map(|(name, node)| (name.clone(), node.last_number())).collect()
        });
        // What a node said before it knew of the change is about units of before.
        let has_heard = |unit: &Unit, nodes: &Nodes| {
            let name = unit.settings.node.as_deref().unwrap_or_default();
            let number = asked.get(name).copied().unwrap_or_default();
            nodes.get(name).is_none_or(|node| !node.is_attached() || node.applied >= number)
        };
        let look = |nodes: &Nodes| {
            if !(request.is_wanted)() {
                return Some(Err(given_up()));
            }
            let mut is_complete = true;
            for unit in waited {
                if !has_heard(unit, nodes) {
                    is_complete = false;
                    continue;
                }
                match unit_readiness(unit, nodes) {
                    Ok(is_up) => is_complete &= is_up,
                    Err(error) => return Some(Err(error)),
                }
            }
            is_complete.then_some(Ok(()))
        };
        let started = self.wait_until(end.saturating_duration_since(Instant::now()), look).await;
        started.unwrap_or_else(|| {
            let seconds = request.start_timeout.as_secs();
            Err(Error::timed_out(format!("the units were not started within {seconds} s")))
        })
    }

    /// Waits until every gateway that is there has its table; returns which table each has.
    async fn wait_for_tables(&self) -> HashMap<String, u64> {
        let numbers = self.nodes.read(|nodes| {
            let gateways = nodes.iter().filter(|(_, node)| is_gateway(node));
            gateways.map(|(name, node)| (name.clone(), node.last_number())).collect()
        });
        let has_all = |nodes: &Nodes| {
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
        let is_drained = |nodes: &Nodes| {
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
pub(super) fn unit_readiness(unit: &Unit, nodes: &Nodes) -> Result<bool> {
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
