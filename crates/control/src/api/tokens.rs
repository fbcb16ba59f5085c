//! The tokens that let nodes into a cluster.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::body::{JsonDocument, ok_response};
use super::failure::ApiResult;
use super::path_names::PathNames;
use crate::cluster::{ClusterAdmin, TokenStatus};
use crate::intent_reader;

#[derive(Serialize)]
struct TokenList {
    tokens: Vec<TokenStatus>,
}

pub(super) async fn list_tokens(State(cluster): State<ClusterAdmin>) -> Response {
    ok_response(&TokenList { tokens: cluster.token_statuses() })
}

pub(super) async fn create_token(
    State(cluster): State<ClusterAdmin>,
    JsonDocument(document): JsonDocument,
) -> ApiResult<Response> {
    let life = intent_reader::read_token_life(&document)?;
    Ok(ok_response(&cluster.create_token(life).await?))
}

pub(super) async fn delete_token(
    State(cluster): State<ClusterAdmin>,
    path_names: PathNames,
) -> ApiResult<Response> {
    Ok(ok_response(&cluster.revoke_token(&path_names.token).await?))
}
