//! The paths that only a controller has.

use axum::routing::{MethodRouter, delete, get, post};

use super::{nodes, tokens};
use crate::cluster::ClusterAdmin;

/// Every path that only a controller has, with what answers there.
pub(crate) fn cluster_route_table() -> Vec<(&'static str, MethodRouter<ClusterAdmin>)> {
    vec![
        ("/v1/plan", get(nodes::get_plan)),
        ("/v1/nodes", get(nodes::list_nodes)),
        ("/v1/nodes/{node}", get(nodes::get_node).delete(nodes::delete_node)),
        ("/v1/nodes/{node}/drain", post(nodes::drain_node)),
        ("/v1/nodes/{node}/undrain", post(nodes::undrain_node)),
        ("/v1/tokens", get(tokens::list_tokens).post(tokens::create_token)),
        ("/v1/tokens/{token}", delete(tokens::delete_token)),
    ]
}
