//! Keeps where others reach a node whenever that changes.

use std::sync::Arc;

use tessera_core::{Error, lock};
use tessera_node::InstancePlace;

use super::places_file::KeptPlaces;
use super::workload::NodeWorkload;

/// Keeps where others reach a node whenever that changes, for as long as there is a workload.
pub(super) fn keep_places(workload: &Arc<NodeWorkload>) {
    let weak = Arc::downgrade(workload);
    tokio::spawn(async move {
        while let Some(workload) = weak.upgrade() {
            let saving = Arc::clone(&workload);
            let saved = tokio::task::spawn_blocking(move || saving.places.save(places_of(&saving)));
            if let Err(error) = saved.await.unwrap_or_else(|e| Err(Error::lost(e.to_string()))) {
                tracing::error!(%error, "where others reach this node is not kept");
            }
            workload.places.changed.notified().await;
        }
    });
}

fn places_of(workload: &NodeWorkload) -> KeptPlaces {
    let mut instances = workload.node.supervisor.instance_places();
    // Those that are about to be started again go on to be looked for where they were.
    let is_missing = |place: &InstancePlace| {
        let is_there =
            |other: &InstancePlace| (&other.unit, other.replica) == (&place.unit, place.replica);
        !instances.iter().any(is_there) && lock(&workload.state).units.contains_key(&place.unit)
    };
    let before = workload.places.kept().instances;
    let missing: Vec<InstancePlace> = before.into_iter().filter(is_missing).collect();
    instances.extend(missing);
    KeptPlaces { replies: workload.reply_place(), instances }
}
