//! Connections of gRPC, and of HTTP over TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tessera_core::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::WireKind;
use super::wire_body::WireBody;
use super::wire_request::WireRequest;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where a server is, and what is spoken there.
#[derive(Clone)]
pub(super) struct WireTarget {
    pub(super) address: SocketAddr,
    pub(super) kind: WireKind,
    tls: Option<TlsConnector>,
}

/// What a server said, as its protocol numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireStatus {
    Http(u16),
    Grpc(u16),
}

impl WireStatus {
    pub(super) fn is_ok(self) -> bool {
        matches!(self, Self::Http(200) | Self::Grpc(0))
    }
}

impl std::fmt::Display for WireStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Http(status) => write!(f, "{status}"),
            Self::Grpc(status) => write!(f, "status {status} of gRPC"),
        }
    }
}

impl WireTarget {
    /// A target for gRPC without TLS.
    pub(super) fn grpc(address: SocketAddr) -> Self {
        Self { address, kind: WireKind::Grpc, tls: None }
    }

    /// A target for HTTP over TLS, whose certificate is one of these roots.
    pub(super) fn tls(address: SocketAddr, roots: RootCertStore) -> Result<Self> {
        let config =
            ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|error| Error::engine(format!("TLS: {error}")))?
                .with_root_certificates(roots)
                .with_no_client_auth();
        let tls = Some(TlsConnector::from(Arc::new(config)));
        Ok(Self { address, kind: WireKind::Tls, tls })
    }

    /// Sends a request on a connection of its own, and waits for what the server says.
    pub(super) async fn ask(&self, request: WireRequest) -> Result<WireStatus> {
        let asking = async {
            let stream = TcpStream::connect(self.address).await.map_err(|e| self.lost(&e))?;
            stream.set_nodelay(true).map_err(|error| self.lost(&error))?;
            match &self.tls {
                None => self.exchange(stream, request).await,
                Some(connector) => {
                    let name = ServerName::from(self.address.ip());
                    let stream = connector.connect(name, stream).await;
                    self.exchange(stream.map_err(|error| self.lost(&error))?, request).await
                }
            }
        };
        tokio::time::timeout(PATIENCE, asking)
            .await
            .map_err(|_| Error::timed_out(format!("{}: no answer", self.address)))?
    }

    fn lost(&self, error: &dyn std::fmt::Display) -> Error {
        Error::lost(format!("{}: {error}", self.address))
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: WireRequest,
    ) -> Result<WireStatus> {
        let io = TokioIo::new(stream);
        let fail = |error: hyper::Error| self.lost(&error);
        match self.kind {
            WireKind::Grpc => {
                let shaken = http2::handshake(TokioExecutor::new(), io).await;
                let (mut sender, connection) = shaken.map_err(fail)?;
                let running = tokio::spawn(async move { drop(connection.await) });
                let request = self.http_request(request, "http")?;
                let answer = sender.send_request(request).await.map_err(fail)?;
                let status = grpc_status(answer).await;
                running.abort();
                status
            }
            WireKind::Tls => {
                let (mut sender, connection) = http1::handshake(io).await.map_err(fail)?;
                let running = tokio::spawn(async move { drop(connection.await) });
                let answer = sender.send_request(self.http_request(request, "https")?).await;
                let answer = answer.map_err(fail)?;
                let status = WireStatus::Http(answer.status().as_u16());
                answer.into_body().collect().await.ok();
                running.abort();
                Ok(status)
            }
        }
    }

    fn http_request(&self, request: WireRequest, scheme: &str) -> Result<Request<WireBody>> {
        let uri = match self.kind {
            WireKind::Grpc => format!("{scheme}://{}{}", self.address, request.path),
            WireKind::Tls => request.path,
        };
        let mut builder = Request::post(uri);
        if self.kind == WireKind::Tls {
            builder = builder.header("host", self.address.to_string());
        }
        for (name, value) in request.headers {
            builder = builder.header(name, value);
        }
        builder.body(request.body).map_err(|error| Error::invalid(format!("a request: {error}")))
    }
}

/// The status of a call: before an answer where there is none, else after it.
async fn grpc_status(answer: Response<hyper::body::Incoming>) -> Result<WireStatus> {
    if !answer.status().is_success() {
        return Ok(WireStatus::Http(answer.status().as_u16()));
    }
    let (parts, body) = answer.into_parts();
    let collected = body.collect().await;
    let collected = collected.map_err(|error| Error::lost(format!("an answer: {error}")))?;
    let after = collected.trailers().and_then(|trailers| trailers.get("grpc-status"));
    let status = parts.headers.get("grpc-status").or(after);
    let status = status.and_then(|status| status.to_str().ok()?.parse().ok());
    status.map(WireStatus::Grpc).ok_or_else(|| Error::invalid("an answer of gRPC has no status"))
}
