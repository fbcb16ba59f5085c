//! The nodes of a cluster.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::body::{BodilessChange, ok_response};
use super::failure::ApiResult;
use super::path_names::PathNames;
use crate::cluster::{ClusterAdmin, NodeStatus};

#[derive(Serialize)]
struct NodeList {
    nodes: Vec<NodeStatus>,
}

pub(super) async fn get_plan(State(cluster): State<ClusterAdmin>) -> Response {
    ok_response(&cluster.plan_status())
}

pub(super) async fn list_nodes(State(cluster): State<ClusterAdmin>) -> Response {
    ok_response(&NodeList { nodes: cluster.node_statuses() })
}

pub(super) async fn get_node(
    State(cluster): State<ClusterAdmin>,
    path_names: PathNames,
) -> ApiResult<Response> {
    Ok(ok_response(&cluster.node_status(&path_names.node)?))
}

pub(super) async fn delete_node(
    State(cluster): State<ClusterAdmin>,
    path_names: PathNames,
) -> ApiResult<Response> {
    Ok(ok_response(&cluster.remove_node(&path_names.node).await?))
}

pub(super) async fn drain_node(
    State(cluster): State<ClusterAdmin>,
    path_names: PathNames,
    _: BodilessChange,
) -> ApiResult<Response> {
    Ok(ok_response(&cluster.set_drained(&path_names.node, true).await?))
}

pub(super) async fn undrain_node(
    State(cluster): State<ClusterAdmin>,
    path_names: PathNames,
    _: BodilessChange,
) -> ApiResult<Response> {
    Ok(ok_response(&cluster.set_drained(&path_names.node, false).await?))
}
