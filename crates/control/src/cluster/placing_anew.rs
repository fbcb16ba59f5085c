//! Tasks that run nowhere, or at nodes that are away, are placed anew: each for itself, so that
//! none waits for what another has to fetch.

use std::collections::HashMap;
use std::sync::Arc;

use tessera_core::{Result, lock};
use tessera_deploy::{PlannedTask, TaskChange};
use tokio::task::JoinSet;

use super::node_table::{AWAY_PATIENCE, KnownNode};
use super::place_change::place_change;
use super::placed_change::{ChangeRequest, Nodes, PlacedChange};
use super::site_inner::{PING_INTERVAL, START_TIMEOUT, SiteInner};
use super::site_state::SiteState;

/// Most changes that are made at the same time where many tasks are placed anew.
const MOST_CHANGES: usize = 16;

/// Places what is placed nowhere, and what runs at nodes that are away.
pub(super) fn keep_placing(inner: &Arc<SiteInner>) {
    let weak = Arc::downgrade(inner);
    tokio::spawn(async move {
        while let Some(inner) = weak.upgrade() {
            let put = inner.placing.begin(inner.misplaced_tasks());
            if !put.is_empty() {
                let tasks: Vec<&str> = put.iter().map(|task| task.name.as_str()).collect();
                tracing::info!(?tasks, "placing tasks");
                let site = Arc::clone(&inner);
                // Another node may die while it is waited for what these need.
                tokio::spawn(async move {
                    if let Err(error) = site.place_anew(&put).await {
                        tracing::warn!(%error, "tasks can't be placed");
                    }
                });
            }
            drop(inner);
            tokio::time::sleep(PING_INTERVAL / 4).await;
        }
    });
}

impl SiteInner {
    /// Tasks that are placed nowhere or at nodes that are away, where they may be placed elsewhere.
    fn misplaced_tasks(&self) -> Vec<Arc<PlannedTask>> {
        let state = lock(&self.state);
        self.nodes.read(|nodes| {
            let is_there = |node: &KnownNode| node.is_attached();
            if !nodes.values().any(is_there) || state.adopting_until.is_some() {
                return Vec::new();
            }
            let is_gone = |name: &Arc<str>| {
                nodes.get(&**name).is_none_or(|node| node.is_away_for(AWAY_PATIENCE))
            };
            let wished = state.wished.values().filter(|task| {
                let placed = state.deployment.find_planned(&task.name);
                match (placed, &task.settings.nodes[..]) {
                    (None, []) => true,
                    (None, wanted) => wanted
                        .iter()
                        .all(|name| nodes.get(&**name).is_some_and(KnownNode::is_attached)),
                    (Some(placed), []) => placed.settings.nodes.iter().any(is_gone),
                    (Some(_), _) => false,
                }
            });
            wished.cloned().collect()
        })
    }

    /// Has tasks that can't stay where they are run elsewhere; the first error where some can't.
    pub(super) async fn place_anew(self: &Arc<Self>, tasks: &[Arc<PlannedTask>]) -> Result<()> {
        let drained = self.drained_nodes();
        self.consider_tasks(tasks).await;
        let planned = Arc::new(self.plan_tasks(tasks, &drained).await);
        let mut changes = JoinSet::new();
        for tasks in tasks.chunks(tasks.len().div_ceil(MOST_CHANGES).max(1)) {
            let (site, planned, tasks) = (Arc::clone(self), Arc::clone(&planned), tasks.to_vec());
            changes.spawn(async move {
                let placed = site.place_some(&tasks, &planned).await;
                site.placing.end(&tasks, &placed);
                placed
            });
        }
        let mut all = Ok(());
        while let Some(placed) = changes.join_next().await {
            // One that panicked has said so.
            all = all.and(placed.unwrap_or(Ok(())));
        }
        self.forget_unwished();
        all
    }

    async fn place_some(
        self: &Arc<Self>,
        tasks: &[Arc<PlannedTask>],
        planned: &HashMap<String, Vec<Arc<str>>>,
    ) -> Result<()> {
        let place = |state: &SiteState, nodes: &Nodes, drained: &[String]| {
            // Those that are others by now, or gone, are placed by whoever made them so.
            let is_wished = |task: &&Arc<PlannedTask>| {
                state.wished.get(&task.name).is_some_and(|wished| wished.version == task.version)
            };
            let wished = tasks.iter().filter(is_wished);
            let put = wished.filter_map(|task| state.wished.get(&task.name).cloned()).collect();
            let change = TaskChange { put, removed: Vec::new() };
            let placed = place_change(&change, state, nodes, drained, planned)?;
            let fusion = state.deployment.fuses();
            Ok(PlacedChange { wished: TaskChange::default(), placed, fusion })
        };
        let start_timeout = START_TIMEOUT;
        let request = ChangeRequest { place: &place, is_wanted: &|| true, start_timeout };
        self.carry_out(request).await.map(drop)
    }
}
