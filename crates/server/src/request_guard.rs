//! Before every route of every port: keeps web pages from a server that did not ask for them, asks
//! for tokens where there are any, and writes changes down.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ALLOW,
    CONTENT_TYPE, VARY, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::json;
use tessera_http::{Role, http_status_of_code, json_response};

use crate::access::{Access, PortKind, is_change, required_roles};
use crate::audit::{AuditEntry, AuditTrail};
use crate::connection::PeerAddress;

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

/// How a call of gRPC ended.
const GRPC_STATUS: &str = "grpc-status";

/// Who may ask a port, and where changes are written down.
pub(crate) struct RequestGuard {
    pub(crate) access: Arc<Access>,
    pub(crate) audit: Arc<AuditTrail>,
    pub(crate) port: PortKind,
}

/// Answers a request where it may be asked.
pub(crate) async fn guard_request(
    State(guard): State<Arc<RequestGuard>>,
    request: Request,
    next: Next,
) -> Response {
    let web = &guard.access.web;
    let checked = web.check_request(request.method(), request.uri(), request.headers());
    let origin = match checked {
        Ok(origin) => origin,
        Err(reason) => return json_response(StatusCode::FORBIDDEN, &json!({ "error": reason })),
    };
    let mut response = if request.method() == Method::OPTIONS {
        describe_options(request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD))
    } else {
        guard.answer_with_role(request, next).await
    };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, RESPONSE_HEADERS);
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    response
}

impl RequestGuard {
    /// Answers a request of somebody who may ask for that, and writes changes down.
    async fn answer_with_role(&self, request: Request, next: Next) -> Response {
        let roles = required_roles(self.port, request.method(), request.uri().path());
        let (who, refusal) = match self.check_token(request.headers(), roles) {
            Ok(who) => (who, None),
            Err((who, status, reason)) => (who, Some(self.refuse(status, &reason))),
        };
        if !is_change(roles) {
            return match refusal {
                Some(refusal) => refusal,
                None => next.run(request).await,
            };
        }
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let from = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
        let response = match refusal {
            Some(refusal) => refusal,
            None => next.run(request).await,
        };
        let status = answered_status(&response).as_u16();
        // Of those who have no token there can be any number: they would write the trail over.
        if status == StatusCode::UNAUTHORIZED.as_u16() {
            tracing::debug!(%method, path, from = from.map(tracing::field::display), "no token");
            return response;
        }
        let entry = AuditEntry::new(who.as_deref(), from, method.as_str(), &path, status);
        self.audit.note_change(&entry);
        response
    }

    /// Who asks; an error where nobody with such a token may.
    fn check_token(&self, headers: &HeaderMap, roles: &[Role]) -> TokenCheck {
        let Some(tokens) = &self.access.tokens else { return Ok(None) };
        if roles.is_empty() {
            return Ok(None);
        }
        let tokens = tokens.current();
        let unknown = |reason: String| Err((None, StatusCode::UNAUTHORIZED, reason));
        match tokens.find_holder(headers) {
            Err(reason) => unknown(reason.to_owned()),
            Ok(None) => unknown("a token is needed: Authorization: Bearer TOKEN".to_owned()),
            Ok(Some(holder)) if holder.has_any(roles) => Ok(Some(holder.name.clone())),
            Ok(Some(holder)) => {
                let needed: Vec<&str> = roles.iter().map(|role| role.name()).collect();
                let reason = format!("this token has not the role {}", needed.join(" or "));
                Err((Some(holder.name.clone()), StatusCode::FORBIDDEN, reason))
            }
        }
    }

    /// Says no, as clients of the port understand it.
    fn refuse(&self, status: StatusCode, reason: &str) -> Response {
        if self.port == PortKind::Grpc {
            return refuse_call(status, reason);
        }
        let mut response = json_response(status, &json!({ "error": reason }));
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// How a request was answered, also where that is said as gRPC says it.
fn answered_status(response: &Response) -> StatusCode {
    let code =
        response.headers().get(GRPC_STATUS).and_then(|code| code.to_str().ok()?.parse().ok());
    code.map_or(response.status(), http_status_of_code)
}

/// Says no to a call of gRPC: in the trailers, which come at once where there is no message.
fn refuse_call(status: StatusCode, reason: &str) -> Response {
    const PERMISSION_DENIED: HeaderValue = HeaderValue::from_static("7");
    const UNAUTHENTICATED: HeaderValue = HeaderValue::from_static("16");
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let is_unknown = status == StatusCode::UNAUTHORIZED;
    headers.insert(GRPC_STATUS, if is_unknown { UNAUTHENTICATED } else { PERMISSION_DENIED });
    let reason: String =
        reason.chars().map(|c| if matches!(c, ' '..='~') && c != '%' { c } else { '?' }).collect();
    if let Ok(reason) = HeaderValue::from_str(&reason) {
        headers.insert("grpc-message", reason);
    }
    response
}

/// The holder of a token; or whose it was, where it was somebody's, and what is wrong.
type TokenCheck = Result<Option<String>, (Option<String>, StatusCode, String)>;

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
