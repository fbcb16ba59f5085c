//! The links to other nodes: what is sent anyway is handed to whoever judges them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tessera_cluster::LinkEstimate;
use tessera_identity::NodeName;
use tessera_probe::TrafficSample;
use tessera_tensormq::ConnectionTraffic;

use super::workload::NodeWorkload;

/// How often connections are looked at, and links reported where they changed.
pub(super) const LINK_INTERVAL: Duration = Duration::from_millis(200);
/// What has to change about a link to be worth a report.
const RATE_SHARE: f64 = 0.05;
const ROUND_TRIP_SHARE: f64 = 0.1;
const ROUND_TRIP_LEAST: Duration = Duration::from_millis(1);

/// Hands on what connections to other nodes do, for as long as there is a workload.
pub(super) fn watch_links(workload: &Arc<NodeWorkload>) {
    let weak = Arc::downgrade(workload);
    tokio::spawn(async move {
        while let Some(workload) = weak.upgrade() {
            let mut connections = workload.tls.connection_traffic();
            connections.extend(workload.node.supervisor.process_traffic());
            workload.prober.note_traffic(&traffic_by_node(connections));
            drop(workload);
            tokio::time::sleep(LINK_INTERVAL).await;
        }
    });
}

/// What the connections to each node do, together.
fn traffic_by_node(
    connections: Vec<(Vec<String>, ConnectionTraffic)>,
) -> HashMap<String, TrafficSample> {
    let mut nodes: HashMap<String, TrafficSample> = HashMap::new();
    for (names, traffic) in connections {
        let Some(node) = names.iter().find_map(|name| NodeName::from_certificate_name(name)) else {
            continue;
        };
        let sample = nodes.entry(node.to_string()).or_default();
        // The one that brought the most says how fast the link is.
        if traffic.acknowledged_bytes >= sample.acknowledged_bytes {
            sample.bits_per_second = traffic.bits_per_second;
            sample.round_trip = traffic.round_trip;
            sample.is_little = traffic.is_little;
        }
        sample.acknowledged_bytes += traffic.acknowledged_bytes;
        sample.outstanding_bytes += traffic.outstanding_bytes;
    }
    nodes
}

/// Whether links are others than they were, by more than what changes all the time.
pub(super) fn have_changed(before: &[LinkEstimate], now: &[LinkEstimate]) -> bool {
    let is_alike = |(old, new): (&LinkEstimate, &LinkEstimate)| {
        let rates = match (old.bits_per_second, new.bits_per_second) {
            (Some(old), Some(new)) => (new / old - 1.0).abs() <= RATE_SHARE,
            (old, new) => old == new,
        };
        let round_trips = match (old.round_trip, new.round_trip) {
            (Some(old), Some(new)) => {
                let change = new.abs_diff(old);
                change <= ROUND_TRIP_LEAST
                    || change.as_secs_f64() <= ROUND_TRIP_SHARE * old.as_secs_f64()
            }
            (old, new) => old == new,
        };
        (&old.to, old.is_cut, old.is_filtered) == (&new.to, new.is_cut, new.is_filtered)
            && rates
            && round_trips
    };
    before.len() != now.len() || !before.iter().zip(now).all(is_alike)
}
