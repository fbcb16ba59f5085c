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
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::json;
use tessera_control::on_behalf_of;
use tessera_http::{Role, http_status_of_code, json_response};

use crate::access::{Access, PortKind, is_change, is_protocol_change, required_roles};
use crate::audit::{AuditEntry, AuditTrail, AuditedClient, BodyNotes, NotedBody, describe_change};
use crate::client_names::ClientNames;
use crate::connection::PeerAddress;
use crate::form_content::find_form_content;

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

/// How a call of gRPC and a request of HTTP are compressed.
const GRPC_ENCODING: &str = "grpc-encoding";
const BODY_ENCODING: &str = "content-encoding";

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
        Err(reason) => {
            guard.note_refusal(&request, StatusCode::FORBIDDEN);
            return json_response(StatusCode::FORBIDDEN, &json!({ "error": reason }));
        }
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
        let (asker, refusal) = match self.check_role(&request, roles) {
            Ok(asker) => (asker, None),
            // Of those who are nobody's there can be any number.
            Err((None, reason)) => {
                self.note_refusal(&request, StatusCode::UNAUTHORIZED);
                return self.refuse(StatusCode::UNAUTHORIZED, &reason);
            }
            Err((asker, reason)) => (asker, Some(self.refuse(StatusCode::FORBIDDEN, &reason))),
        };
        let refusal = refusal.or_else(|| self.refuse_form(&request));
        if !is_change(roles) {
            return match refusal {
                Some(refusal) => refusal,
                None => next.run(request).await,
            };
        }
        let who = asker.as_ref().map(|asker| asker.name.clone());
        let (request, noted) = NotedChange::begin(self, request, asker);
        let response = match refusal {
            Some(refusal) => refusal,
            None => on_behalf_of(who, next.run(request)).await,
        };
        noted.end(answered_status(&response)).await;
        response
    }

    /// Who asks, where that is known; an error where they may not: without anybody where no token or
    /// certificate of ours is there.
    fn check_role(&self, request: &Request, roles: &[Role]) -> RoleCheck {
        let names = client_names(request);
        let by_certificate = names.first().cloned().map(|name| Asker { name, by: "certificate" });
        let (false, Some(tokens)) = (roles.is_empty(), &self.access.tokens) else {
            return Ok(by_certificate);
        };
        let tokens = tokens.current();
        let (holder, by) = match tokens.find_holder(request.headers()) {
            Err(reason) => return Err((None, reason.to_owned())),
            Ok(Some(holder)) => (holder.clone(), "token"),
            Ok(None) => match tokens.find_certificate(names) {
                Some(holder) => (holder, "certificate"),
                None => {
                    let reason = "a token is needed: Authorization: Bearer TOKEN";
                    return Err((None, reason.to_owned()));
                }
            },
        };
        let has_role = holder.has_any(roles);
        let asker = Some(Asker { name: holder.name, by });
        if has_role {
            return Ok(asker);
        }
        let needed: Vec<&str> = roles.iter().map(|role| role.name()).collect();
        Err((asker, format!("this {by} has not the role {}", needed.join(" or "))))
    }

    /// Says no to a change of the protocol's port that a page may have had a browser send.
    fn refuse_form(&self, request: &Request) -> Option<Response> {
        let is_concerned = self.port == PortKind::Http
            && is_protocol_change(request.method(), request.uri().path());
        let content = find_form_content(request.headers()).filter(|_| is_concerned)?;
        let reason = format!("content-type: {content}, expected application/json");
        Some(self.refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, &reason))
    }

    /// Writes down that somebody who could be anybody wanted to change something.
    fn note_refusal(&self, request: &Request, status: StatusCode) {
        let (method, path) = (request.method(), request.uri().path());
        if method == Method::OPTIONS || !is_change(required_roles(self.port, method, path)) {
            return;
        }
        let asker = client_names(request).first().cloned();
        let asker = asker.map(|name| Asker { name, by: "certificate" });
        let mut entry = AuditEntry::new(audited_client(request, asker), method.as_str(), path);
        entry.change = describe_change(self.port, path, None, &BodyNotes::default());
        entry.status = Some(status.as_u16());
        self.audit.note_apart(move |trail| trail.note_refusal(entry));
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

/// Somebody who asks.
#[derive(Clone)]
struct Asker {
    /// What the token or the certificate is called.
    name: String,
    /// Which of the two.
    by: &'static str,
}

/// Who asks, or who may not and why.
type RoleCheck = Result<Option<Asker>, (Option<Asker>, String)>;

/// What the certificate calls a client; nothing without one.
fn client_names(request: &Request) -> &[String] {
    request.extensions().get::<ClientNames>().map_or(&[], ClientNames::names)
}

fn audited_client(request: &Request, asker: Option<Asker>) -> AuditedClient {
    let from = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let by = asker.as_ref().map(|asker| asker.by);
    AuditedClient { who: asker.map(|asker| asker.name), by, from }
}

/// A change that is under way, which is written down also where its client leaves.
struct NotedChange {
    audit: Arc<AuditTrail>,
    port: PortKind,
    encoding: Option<String>,
    notes: BodyNotes,
    entry: Option<AuditEntry>,
}

impl NotedChange {
    /// The same request, of which is noted what it brings.
    fn begin(guard: &RequestGuard, request: Request, asker: Option<Asker>) -> (Request, Self) {
        let client = audited_client(&request, asker);
        // Whether it was only asked for what would come of it is in the query.
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        let entry = AuditEntry::new(client, request.method().as_str(), path);
        let is_call = guard.port == PortKind::Grpc;
        let encoding = request.headers().get(if is_call { GRPC_ENCODING } else { BODY_ENCODING });
        let encoding = encoding.and_then(|name| name.to_str().ok()).map(str::to_owned);
        let (parts, body) = request.into_parts();
        let (body, notes) = NotedBody::wrap(body);
        let (audit, port) = (Arc::clone(&guard.audit), guard.port);
        let noted = Self { audit, port, encoding, notes, entry: Some(entry) };
        (Request::from_parts(parts, body), noted)
    }

    /// Writes it down, and how it was answered; returns once that is done.
    async fn end(mut self, status: StatusCode) {
        let Some(entry) = self.take_entry(Some(status)) else { return };
        let audit = Arc::clone(&self.audit);
        let (written, waiting) = tokio::sync::oneshot::channel();
        audit.note_apart(move |trail| {
            trail.note_change(&entry);
            written.send(()).ok();
        });
        waiting.await.ok();
    }

    fn take_entry(&mut self, status: Option<StatusCode>) -> Option<AuditEntry> {
        let mut entry = self.entry.take()?;
        entry.body = self.notes.audited_body();
        let encoding = self.encoding.as_deref();
        entry.change = describe_change(self.port, &entry.path, encoding, &self.notes);
        entry.status = status.map(|status| status.as_u16());
        Some(entry)
    }
}

impl Drop for NotedChange {
    fn drop(&mut self) {
        if let Some(entry) = self.take_entry(None) {
            self.audit.note_apart(move |trail| trail.note_change(&entry));
        }
    }
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
