//! The nodes to which links are probed, as a controller names them.

use std::net::ToSocketAddrs;

use tessera_cluster::LinkTarget;
use tessera_probe::ProbePeer;

/// Those whose addresses are understood.
pub(super) fn probe_peers(targets: &[LinkTarget]) -> Vec<ProbePeer> {
    let peer = |target: &LinkTarget| {
        let address = target.address.to_socket_addrs().ok()?.next()?;
        let key = target.key.parse().ok()?;
        Some(ProbePeer { name: target.node.clone(), address, key })
    };
    let found = targets.iter().filter_map(|target| {
        let found = peer(target);
        if found.is_none() {
            tracing::warn!(node = target.node, address = target.address, "its link is not probed");
        }
        found
    });
    found.collect()
}
