//! Tasks carried out at the nodes of a cluster.
//!
//! A change starts what is new before it is used: units first, then the tables of gateways, and
//! what nobody uses any more is stopped when no gateway has a request left that could pass it.
//! Requests carry their route, so that both tables work meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, lock};
use tessera_deploy::{PlannedTask, TaskChange, TaskRoute};
use tokio::sync::broadcast;

use super::assignments::{Decided, current_reports, node_assignments};
use super::content_reader::ContentReader;
use super::kept_placement::{KeptPlacement, KeptTask, Placements};
use super::node_table::{KnownNode, NodeTable};
use super::place_change::{is_placed_for, place_change, task_at};
use super::placed_change::{ChangeRequest, Nodes, PlacedChange};
use super::placement_choice::PlacementChoice;
use super::placing_anew::keep_placing;
use super::placing_tasks::PlacingTasks;
use super::plan_status::ClusterPlanStatus;
use super::replacing::Replacer;
use super::site_inner::{PING_INTERVAL, START_TIMEOUT, SiteInner};
use super::site_placing::keep_replacing;
use super::site_state::SiteState;
use super::site_status::{task_status, unit_status, unplaced_status};
use crate::members::MemberRegistry;
use crate::run_apart::run_blocking;
use crate::site::{
    AppliedUnits, PingAnswer, Site, SiteFuture, TaskStatus, UnitStatus, UsedUnit, used_units,
};
use crate::store::RowStore;

/// How long a controller that has begun waits for the nodes that were there before.
const ADOPTION_TIME: Duration = Duration::from_secs(10);
/// How long what happens to nodes waits at most until it is looked at with what comes after it.
const LONGEST_ASSIGN_PAUSE: Duration = Duration::from_millis(200);
/// Events that may wait for whoever listens.
const EVENT_QUEUE: usize = 256;

/// What a site is made of.
pub struct ClusterSiteParts {
    /// The nodes.
    pub nodes: Arc<NodeTable>,
    /// Who belongs to the cluster.
    pub members: Arc<MemberRegistry>,
    /// Where it is kept where tasks run.
    pub rows: Arc<dyn RowStore>,
    /// The content that tasks are made of.
    pub content: Arc<dyn ContentReader>,
    /// How tasks are placed that don't say where they run.
    pub placement: PlacementChoice,
}

/// The nodes of a cluster as the one site that intent is carried out at.
#[derive(Clone)]
pub struct ClusterSite(pub(super) Arc<SiteInner>);

impl ClusterSite {
    /// A site without tasks, on the runtime that this is called on.
    pub fn start(parts: ClusterSiteParts) -> Self {
        let ClusterSiteParts { nodes, members, rows, content, placement } = parts;
        let (events, _) = broadcast::channel(EVENT_QUEUE);
        let inner = Arc::new(SiteInner {
            nodes,
            members,
            kept_placement: Arc::new(KeptPlacement::new(rows)),
            content,
            replacer: Replacer::new(placement),
            state: Mutex::new(SiteState::new()),
            changing: tokio::sync::Mutex::default(),
            placing: PlacingTasks::default(),
            events,
            shared_documents: Mutex::default(),
        });
        keep_assigning(&inner);
        keep_pinging(&inner);
        keep_placing(&inner);
        keep_replacing(&inner);
        Self(inner)
    }

    /// The nodes.
    pub fn nodes(&self) -> &Arc<NodeTable> {
        &self.0.nodes
    }

    /// What the planner would do and why.
    pub fn plan_status(&self) -> ClusterPlanStatus {
        self.0.replacer.plan_status()
    }

    /// Has what runs at a node run elsewhere; an error where a task is to run there and nowhere
    /// else, or there is no other node.
    pub(crate) async fn leave_node(&self, node: &str) -> Result<()> {
        let put: Vec<Arc<PlannedTask>> = {
            let state = lock(&self.0.state);
            let at_node = state
                .deployment
                .planned_tasks()
                .filter(|task| task.settings.nodes.iter().any(|placed| **placed == *node));
            at_node.filter_map(|task| state.wished.get(&task.name).cloned()).collect()
        };
        if put.is_empty() {
            return Ok(());
        }
        let fixed = put.iter().find(|task| task.settings.nodes.iter().any(|at| **at == *node));
        if let Some(task) = fixed {
            return Err(Error::usage(format!(
                "task \"{}\" says that it runs at node \"{node}\": change it before",
                task.name
            )));
        }
        SiteInner::place_anew(&self.0, &put).await
    }
}

/// Sends nodes what has changed for them, whenever something happens.
fn keep_assigning(inner: &Arc<SiteInner>) {
    let (mut news, weak) = (inner.nodes.subscribe_news(), Arc::downgrade(inner));
    tokio::spawn(async move {
        while news.changed().await.is_ok() {
            let Some(inner) = weak.upgrade() else { return };
            let start = Instant::now();
            inner.assign_all();
            // Where there are many nodes, what happens meanwhile is looked at together.
            let pause = (start.elapsed() * 3).min(LONGEST_ASSIGN_PAUSE);
            drop(inner);
            tokio::time::sleep(pause).await;
        }
    });
}

fn keep_pinging(inner: &Arc<SiteInner>) {
    let weak = Arc::downgrade(inner);
    tokio::spawn(async move {
        let mut number = 0;
        while let Some(inner) = weak.upgrade() {
            number += 1;
            inner.nodes.ping_all(number);
            // How long a node has been away matters, too, and how long one that does not come back
            // has been waited for.
            let is_adopting = lock(&inner.state).adopting_until.is_some();
            let is_away = |node: &KnownNode| !node.is_attached();
            if is_adopting || inner.nodes.read(|nodes| nodes.values().any(is_away)) {
                inner.assign_all();
            }
            drop(inner);
            tokio::time::sleep(PING_INTERVAL).await;
        }
    });
}

impl SiteInner {
    /// Takes tasks for served that were served before this controller began.
    async fn adopt_change(&self, change: TaskChange, fusion: bool) -> Result<AppliedUnits> {
        let _changing = self.changing.lock().await;
        self.consider_tasks(&change.put).await;
        let kept = Arc::clone(&self.kept_placement);
        let mut kept = run_blocking(move || kept.load()).await?;
        let mut chosen = Vec::new();
        let placed = change.put.iter().filter_map(|task| {
            let KeptTask { nodes, thresholds } = kept.remove(&task.name)?;
            let nodes: Vec<Arc<str>> = nodes.into_iter().map(Arc::from).collect();
            chosen.push((task.name.clone(), thresholds));
            let is_other = match &task.settings.nodes[..] {
                [] => false,
                [one] => nodes.iter().any(|node| node != one),
                each => nodes != each,
            };
            if is_other || nodes.len() != task.graph.blocks.len() {
                return None;
            }
            Some(task_at(task, &nodes))
        });
        let placed = TaskChange { put: placed.collect(), removed: change.removed.clone() };
        let found = {
            let mut state = lock(&self.state);
            let (found, _) = state.deployment.change_with_fusion(placed, fusion)?;
            state.adopting_until = Some(Instant::now() + ADOPTION_TIME);
            state.chosen.extend(chosen);
            state.switch_routes(change, &found);
            found
        };
        self.assign_all();
        let started = found.new_units.iter().map(|unit| unit.id.to_string()).collect();
        Ok(AppliedUnits { started, stopped: Vec::new() })
    }

    /// Keeps where tasks run; where that fails the next controller places them anew.
    pub(super) async fn keep_placement(&self, placed: &[Arc<PlannedTask>], removed: Vec<String>) {
        let placed: Placements = {
            let state = lock(&self.state);
            let kept = |task: &Arc<PlannedTask>| {
                let thresholds = state.chosen.get(&task.name).cloned().unwrap_or_default();
                let nodes = task.settings.nodes.iter().map(ToString::to_string).collect();
                (task.name.clone(), KeptTask { nodes, thresholds })
            };
            placed.iter().map(kept).collect()
        };
        let kept = Arc::clone(&self.kept_placement);
        if let Err(error) = run_blocking(move || kept.save(placed, &removed)).await {
            tracing::error!(%error, "where tasks run is not kept");
        }
    }

    /// Sends every node what is other for it than before.
    pub(super) fn assign_all(&self) {
        let drained = self.drained_nodes();
        let mut shared = lock(&self.shared_documents);
        let assignments = {
            let mut state = lock(&self.state);
            self.nodes.read(|nodes| {
                let is_settled = state.check_settled(nodes);
                let decided = Decided {
                    units: &state.units,
                    routes: &state.routes,
                    is_settled,
                    earlier_routes: &state.earlier_routes,
                    task_blocks: &state.task_blocks,
                    drained: &drained,
                };
                node_assignments(&decided, nodes, &mut shared)
            })
        };
        drop(shared);
        let assignments = match assignments {
            Ok(assignments) => assignments,
            Err(error) => return tracing::error!(%error, "assignments can't be written"),
        };
        for (node, assignment) in assignments {
            self.nodes.assign(&node, assignment);
        }
    }

    /// Waits until something holds of the nodes, looking again whenever something happens.
    pub(super) async fn wait_until<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&BTreeMap<String, KnownNode>) -> Option<T>,
    ) -> Option<T> {
        let mut changes = self.nodes.subscribe();
        let found = tokio::time::timeout(limit, async {
            loop {
                changes.borrow_and_update();
                if let Some(found) = self.nodes.read(&mut look) {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        });
        found.await.ok().flatten()
    }

    /// The nodes that get nothing to do.
    pub(super) fn drained_nodes(&self) -> Vec<String> {
        let members = self.members.list_members();
        let drained = members.into_iter().filter(|member| member.drained);
        drained.map(|member| member.name).collect()
    }

    /// Whether a task that is placed already may stay where it is.
    fn stays_placed(&self, task: &PlannedTask, drained: &[String]) -> bool {
        let state = lock(&self.state);
        let before = state.deployment.find_planned(&task.name);
        self.nodes
            .read(|nodes| before.is_some_and(|before| is_placed_for(before, task, nodes, drained)))
    }

    async fn apply_change(
        self: &Arc<Self>,
        change: TaskChange,
        fusion: bool,
    ) -> Result<AppliedUnits> {
        let drained = self.drained_nodes();
        let unplaced = change.put.iter().filter(|task| !self.stays_placed(task, &drained));
        let unplaced: Vec<Arc<PlannedTask>> = unplaced.cloned().collect();
        self.consider_tasks(&change.put).await;
        let planned = self.plan_tasks(&unplaced, &drained).await;
        let place = |state: &SiteState, nodes: &Nodes, drained: &[String]| {
            let placed = place_change(&change, state, nodes, drained, &planned)?;
            Ok(PlacedChange { wished: change.clone(), placed, fusion })
        };
        let start_timeout = START_TIMEOUT;
        let request = ChangeRequest { place: &place, is_wanted: &|| true, start_timeout };
        let applied = self.carry_out(request).await;
        self.forget_unwished();
        applied
    }

    /// Has exits of a task have thresholds that were chosen, as far as they are still to choose.
    pub(super) async fn choose_thresholds(&self, task: &str, thresholds: &BTreeMap<String, f32>) {
        let _changing = self.changing.lock().await;
        let placed = {
            let mut state = lock(&self.state);
            let chosen = state.chosen.entry(task.to_owned()).or_default();
            chosen.extend(thresholds.iter().map(|(exit, threshold)| (exit.clone(), *threshold)));
            state.settle_thresholds(task);
            state.deployment.find_planned(task).cloned()
        };
        self.assign_all();
        if let Some(placed) = placed {
            self.keep_placement(&[placed], Vec::new()).await;
        }
    }
}

impl Site for ClusterSite {
    fn apply_tasks(
        &self,
        change: TaskChange,
        fusion: bool,
    ) -> SiteFuture<'_, Result<AppliedUnits>> {
        Box::pin(self.0.apply_change(change, fusion))
    }

    fn adopt_tasks(
        &self,
        change: TaskChange,
        fusion: bool,
    ) -> SiteFuture<'_, Result<AppliedUnits>> {
        Box::pin(self.0.adopt_change(change, fusion))
    }

    fn used_units(&self, tasks: &[&str]) -> Vec<UsedUnit> {
        used_units(&lock(&self.0.state).deployment, tasks)
    }

    fn unit_statuses(&self) -> Vec<UnitStatus> {
        let state = lock(&self.0.state);
        self.0.nodes.read(|nodes| {
            let reports = current_reports(nodes);
            let units = state.units.values();
            units
                .map(|unit| {
                    let tasks = state.deployment.unit_tasks(&unit.id);
                    unit_status(unit, tasks, reports.get(&unit.id).copied())
                })
                .collect()
        })
    }

    fn task_statuses(&self) -> Vec<TaskStatus> {
        let state = lock(&self.0.state);
        self.0.nodes.read(|nodes| {
            let status = |route: &Arc<TaskRoute>| task_status(route, &state.units, nodes);
            let unplaced =
                state.wished.values().filter(|task| !state.routes.contains_key(&task.name));
            state
                .routes
                .values()
                .map(status)
                .chain(unplaced.map(|task| unplaced_status(task)))
                .collect()
        })
    }

    fn ping_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<Vec<PingAnswer>>> {
        Box::pin(async move {
            Err(Error::unsupported(format!("unit {unit}: units of a cluster are not pinged")))
        })
    }

    fn stop_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<()>> {
        Box::pin(async move {
            Err(Error::unsupported(format!(
                "unit {unit}: units of a cluster are stopped with their tasks"
            )))
        })
    }

    fn start_unit<'a>(&'a self, unit: &'a str) -> SiteFuture<'a, Result<()>> {
        Box::pin(async move {
            Err(Error::unsupported(format!(
                "unit {unit}: units of a cluster are started with their tasks"
            )))
        })
    }

    fn set_threshold(&self, task: &Arc<PlannedTask>, exit: &str) -> Result<()> {
        {
            let mut state = lock(&self.0.state);
            let route = state.routes.get(&task.name);
            if !route.is_some_and(|route| route.exits.iter().any(|known| known.name == exit)) {
                let name = &task.name;
                let error = format!("task \"{name}\" has no exit \"{exit}\"");
                return Err(Error::not_found(error));
            }
            state.replace_wished(task);
            state.settle_thresholds(&task.name);
        }
        self.0.assign_all();
        Ok(())
    }

    fn subscribe_events(&self) -> broadcast::Receiver<Arc<str>> {
        self.0.events.subscribe()
    }
}
