//! The task, version or region that a path names.

use std::collections::HashMap;

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;

use super::failure::HttpFailure;

/// What a path names, decoded; a part that it does not have is empty.
#[derive(Debug)]
pub(super) struct PathTarget {
    pub(super) name: String,
    pub(super) version: String,
}

impl<S: Send + Sync> FromRequestParts<S> for PathTarget {
    type Rejection = HttpFailure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, HttpFailure> {
        let path = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let Path(mut named) =
            path.map_err(|error| HttpFailure::new(StatusCode::BAD_REQUEST, error.body_text()))?;
        let mut part = |key: &str| named.remove(key).unwrap_or_default();
        Ok(Self { name: part("name"), version: part("version") })
    }
}
