//! The task, exit, unit, model, node or token that a path names.

use std::collections::HashMap;

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;

use super::failure::ApiFailure;

/// What a path names, decoded; a part that it does not have is empty.
pub(super) struct PathNames {
    pub(super) task: String,
    pub(super) exit: String,
    pub(super) unit: String,
    pub(super) model: String,
    pub(super) node: String,
    pub(super) token: String,
}

impl<S: Send + Sync> FromRequestParts<S> for PathNames {
    type Rejection = ApiFailure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiFailure> {
        let path = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let Ok(Path(mut named)) = path else {
            let message = "the path is not UTF-8, so that there is nothing of this name";
            return Err(ApiFailure::new(StatusCode::NOT_FOUND, message));
        };
        let mut part = |key: &str| named.remove(key).unwrap_or_default();
        Ok(Self {
            task: part("task"),
            exit: part("exit"),
            unit: part("unit"),
            model: part("model"),
            node: part("node"),
            token: part("token"),
        })
    }
}
