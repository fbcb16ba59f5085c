//! Answers in JSON.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;

/// Media type of JSON; clients compare it letter by letter.
pub const JSON_MEDIA_TYPE: &str = "application/json";

/// A response with a JSON body.
pub fn json_response(status: StatusCode, value: &impl Serialize) -> Response {
    let (status, body) = match serde_json::to_vec(value) {
        Ok(body) => (status, body),
        // None of our types fails to be written; should one, its client is told and not us.
        Err(_) => {
            let body = b"{\"error\":\"the answer can't be written as JSON\"}".to_vec();
            (StatusCode::INTERNAL_SERVER_ERROR, body)
        }
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON_MEDIA_TYPE));
    response
}
