//! Starts the units that a node is to run, with what they need fetched first, and stops the others.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Instant;

use tessera_cluster::UnitState;
use tessera_core::{Error, Result, lock};
use tessera_deploy::{Unit, UnitId};
use tessera_node::DetachedInstances;

use super::content_fetch::fetch_unit;
use super::workload::{NodeWorkload, RETRY_DELAY};

/// Starts and stops units whenever what is to run has changed, for as long as there is a workload.
pub(super) fn keep_units(workload: &Arc<NodeWorkload>) {
    let weak = Arc::downgrade(workload);
    tokio::spawn(async move {
        while let Some(workload) = weak.upgrade() {
            stop_unwanted(&workload).await;
            let has_failed = start_wanted(&workload).await;
            drop(workload);
            wait_for_change(&weak, has_failed).await;
        }
    });
}

/// Waits until units have changed, or those that failed are to be tried again.
async fn wait_for_change(weak: &Weak<NodeWorkload>, has_failed: bool) {
    let until = Instant::now() + RETRY_DELAY;
    let Some(workload) = weak.upgrade() else { return };
    let changed = workload.units_changed.notified();
    if !has_failed {
        return changed.await;
    }
    if tokio::time::timeout_at(until.into(), changed).await.is_err() {
        let mut state = lock(&workload.state);
        for assigned in state.units.values_mut() {
            if matches!(assigned.state, UnitState::Failed(_)) {
                assigned.state = UnitState::Starting;
            }
        }
    }
}

/// Starts what is to run and does not; tells whether something could not be started.
async fn start_wanted(workload: &Arc<NodeWorkload>) -> bool {
    let mut has_failed = false;
    while let Some(unit) = next_to_start(workload) {
        let started = start_one(workload, &unit).await;
        let state = match started {
            Ok(()) => UnitState::Up,
            Err(error) => {
                tracing::error!(unit = %unit.id, %error, "a unit can't be started");
                has_failed = true;
                UnitState::Failed(error.to_string())
            }
        };
        if let Some(assigned) = lock(&workload.state).units.get_mut(&unit.id)
            && assigned.unit == unit
        {
            assigned.state = state;
        }
        workload.report_due.notify_one();
    }
    has_failed
}

fn next_to_start(workload: &NodeWorkload) -> Option<Arc<Unit>> {
    let state = lock(&workload.state);
    let starting = state.units.values().find(|assigned| assigned.state == UnitState::Starting);
    starting.map(|assigned| Arc::clone(&assigned.unit))
}

async fn start_one(workload: &Arc<NodeWorkload>, unit: &Arc<Unit>) -> Result<()> {
    fetch_unit(&workload.content, unit).await?;
    workload.candidates.note_at_hand(unit);
    let (starting, unit) = (Arc::clone(workload), Arc::clone(unit));
    let started = tokio::task::spawn_blocking(move || starting.start_unit(&unit)).await;
    started.map_err(|error| Error::lost(format!("starting a unit: {error}")))?
}

/// Stops what runs and is not to.
async fn stop_unwanted(workload: &Arc<NodeWorkload>) {
    let statuses = workload.node.supervisor.instance_statuses();
    let running: BTreeSet<UnitId> = statuses.into_iter().map(|status| status.unit).collect();
    let unwanted: Vec<UnitId> = {
        let state = lock(&workload.state);
        running.into_iter().filter(|unit| !state.units.contains_key(unit)).collect()
    };
    if unwanted.is_empty() {
        return;
    }
    let detached: Vec<DetachedInstances> =
        unwanted.iter().map(|unit| workload.node.supervisor.detach_unit(unit)).collect();
    let stop = move || detached.into_iter().for_each(DetachedInstances::stop_all);
    if let Err(error) = tokio::task::spawn_blocking(stop).await {
        tracing::error!(%error, "stopping units that are not needed any more");
    }
    workload.report_due.notify_one();
}
