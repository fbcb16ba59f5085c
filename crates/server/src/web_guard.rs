//! Keeps web pages from a server that did not ask for them: before every route of every port.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ALLOW,
    VARY,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::json;
use tessera_http::{WebAccess, json_response};

/// What pages may send, where they may ask at all.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, DELETE, OPTIONS");
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, inference-header-content-length, traceparent",
);
/// What they may read of an answer beside its body.
const RESPONSE_HEADERS: HeaderValue =
    HeaderValue::from_static("inference-header-content-length, retry-after");
/// Seconds for which a browser need not ask again.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// Answers a request where it may be asked.
pub(crate) async fn guard_request(
    State(access): State<Arc<WebAccess>>,
    request: Request,
    next: Next,
) -> Response {
    let checked = access.check_request(request.method(), request.uri(), request.headers());
    let origin = match checked {
        Ok(origin) => origin,
        Err(reason) => return json_response(StatusCode::FORBIDDEN, &json!({ "error": reason })),
    };
    let mut response = if request.method() == Method::OPTIONS {
        describe_options(request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD))
    } else {
        next.run(request).await
    };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, RESPONSE_HEADERS);
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// What may be asked; for a page that wants to know first what it may.
fn describe_options(is_preflight: bool) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ALLOW, METHODS);
    if is_preflight {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    }
    response
}
