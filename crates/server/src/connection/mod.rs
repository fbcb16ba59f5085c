//! Connections: accepted, with TLS where there is any, timed, and answered.

mod activity;
mod timed_body;
mod timed_stream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

use crate::access::Access;
use crate::shutdown::ShutdownSignal;
use activity::ConnectionActivity;
use timed_body::TimedBody;
use timed_stream::TimedStream;

/// How long TLS may take to agree.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// After this silence a client of HTTP/2 is asked whether it is there still, and how long it may
/// take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(60);
const PING_TIME: Duration = Duration::from_secs(20);
/// How long to wait where no connection can be accepted: there may be too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

/// Accepts connections and answers their requests until `closed`; then ends when all that was asked
/// is answered.
pub(crate) async fn serve_connections(
    socket: TcpListener,
    router: Router,
    access: Arc<Access>,
    mut closed: ShutdownSignal,
) {
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = closed.shutdown_requested() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (router, access) = (router.clone(), Arc::clone(&access));
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            // Answers go out at once; one that can't be set up so still works.
            stream.set_nodelay(true).ok();
            let activity = Arc::new(ConnectionActivity::default());
            match with_tls(stream, &access).await {
                Some(Secured::Plain(stream)) => {
                    let stream = TimedStream::new(stream, Arc::clone(&activity));
                    serve_connection(stream, peer, router, activity, watcher).await;
                }
                Some(Secured::Tls(stream)) => {
                    let stream = TimedStream::new(*stream, Arc::clone(&activity));
                    serve_connection(stream, peer, router, activity, watcher).await;
                }
                None => {}
            }
        });
    }
    drop(socket);
    graceful.shutdown().await;
}

enum Secured {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>),
}

/// The connection with TLS, where there is any; `None` where the client does not agree to it.
async fn with_tls(stream: TcpStream, access: &Access) -> Option<Secured> {
    let Some(tls) = &access.tls else { return Some(Secured::Plain(stream)) };
    let accepting = tokio::time::timeout(HANDSHAKE_TIME, tls.acceptor().accept(stream)).await;
    match accepting {
        Ok(Ok(stream)) => Some(Secured::Tls(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no TLS with a client");
            None
        }
        Err(_) => None,
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    router: Router,
    activity: Arc<ConnectionActivity>,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (mut router, activity) = (router.clone(), Arc::clone(&activity));
        async move { answer_request(&mut router, request, peer, &activity).await }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIME);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(%peer, %error, "a connection ended");
    }
}

async fn answer_request(
    router: &mut Router,
    request: Request<Incoming>,
    peer: SocketAddr,
    activity: &Arc<ConnectionActivity>,
) -> Result<Response, std::convert::Infallible> {
    let under_way = activity.begin_request();
    let is_grpc = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    let mut request = request.map(|body| {
        let body = Body::new(body);
        // A stream of messages may rest.
        if is_grpc { body } else { TimedBody::wrap(body) }
    });
    request.extensions_mut().insert(PeerAddress(peer));
    request.extensions_mut().insert(activity.bytes());
    let mut response = router.call(request).await?;
    let lease = response.extensions_mut().remove();
    Ok(response.map(|body| under_way.answer_with(body, lease)))
}
