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
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tessera_cluster::PeerNames;
use tessera_tensormq::certificate_names;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use crate::client_names::ClientNames;
use crate::shutdown::ShutdownSignal;
use activity::ConnectionActivity;
use timed_body::TimedBody;
use timed_stream::TimedStream;

/// How long TLS may take to agree.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long others are waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimes {
    /// After this silence a client of HTTP/2 is asked whether it is there still.
    pub(crate) ping_interval: Duration,
    /// How long it may take to say so.
    pub(crate) ping_time: Duration,
    /// Whether a body may rest as long as it likes: one with a stream of messages, whoever reads
    /// which sees to it that each of them comes.
    pub(crate) may_bodies_rest: bool,
}

impl ConnectionTimes {
    /// For clients.
    pub(crate) const CLIENTS: Self = Self {
        ping_interval: Duration::from_secs(60),
        ping_time: Duration::from_secs(20),
        may_bodies_rest: false,
    };
    /// For clients of gRPC.
    pub(crate) const GRPC_CLIENTS: Self = Self { may_bodies_rest: true, ..Self::CLIENTS };
}

/// How long to wait where no connection can be accepted: there may be too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

/// Accepts connections, with TLS where `acceptor` has any for the next, and answers their requests
/// until `closed`; then ends when all that was asked is answered.
pub(crate) async fn serve_connections(
    socket: TcpListener,
    router: Router,
    acceptor: impl Fn() -> Option<TlsAcceptor>,
    times: ConnectionTimes,
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
        let (router, acceptor) = (router.clone(), acceptor());
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            // Answers go out at once; one that can't be set up so still works.
            stream.set_nodelay(true).ok();
            let activity = Arc::new(ConnectionActivity::default());
            match with_tls(stream, acceptor).await {
                Some(Secured::Plain(stream)) => {
                    let stream = TimedStream::new(stream, Arc::clone(&activity));
                    let peer = ConnectedPeer::without_certificate(peer);
                    serve_connection(stream, peer, router, activity, times, watcher).await;
                }
                Some(Secured::Tls(stream)) => {
                    let peer = ConnectedPeer::with_certificate(peer, &stream);
                    let stream = TimedStream::new(*stream, Arc::clone(&activity));
                    serve_connection(stream, peer, router, activity, times, watcher).await;
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
async fn with_tls(stream: TcpStream, acceptor: Option<TlsAcceptor>) -> Option<Secured> {
    let Some(acceptor) = acceptor else { return Some(Secured::Plain(stream)) };
    let accepting = tokio::time::timeout(HANDSHAKE_TIME, acceptor.accept(stream)).await;
    match accepting {
        Ok(Ok(stream)) => Some(Secured::Tls(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no TLS with a client");
            None
        }
        Err(_) => None,
    }
}

/// Whoever is at the other end of a connection.
#[derive(Clone)]
struct ConnectedPeer {
    address: SocketAddr,
    /// The node that it is, by its certificate.
    names: PeerNames,
    /// The client that it is, by its certificate.
    client: ClientNames,
}

impl ConnectedPeer {
    fn without_certificate(address: SocketAddr) -> Self {
        Self { address, names: PeerNames::default(), client: ClientNames::default() }
    }

    fn with_certificate(
        address: SocketAddr,
        stream: &tokio_rustls::server::TlsStream<TcpStream>,
    ) -> Self {
        let certificates = stream.get_ref().1.peer_certificates();
        let Some(own) = certificates.and_then(|certificates| certificates.first()) else {
            return Self::without_certificate(address);
        };
        let names = PeerNames(certificate_names(own));
        Self { address, names, client: ClientNames::of_certificate(own) }
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: ConnectedPeer,
    router: Router,
    activity: Arc<ConnectionActivity>,
    times: ConnectionTimes,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let address = peer.address;
    let service = service_fn(move |request: Request<Incoming>| {
        let (mut router, activity) = (router.clone(), Arc::clone(&activity));
        let peer = peer.clone();
        async move { answer_request(&mut router, request, peer, &activity, times).await }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(times.ping_interval)
        .keep_alive_timeout(times.ping_time);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(peer = %address, %error, "a connection ended");
    }
}

async fn answer_request(
    router: &mut Router,
    request: Request<Incoming>,
    peer: ConnectedPeer,
    activity: &Arc<ConnectionActivity>,
    times: ConnectionTimes,
) -> Result<Response, std::convert::Infallible> {
    let under_way = activity.begin_request();
    let mut request = request.map(|body| {
        let body = Body::new(body);
        if times.may_bodies_rest { body } else { TimedBody::wrap(body) }
    });
    request.extensions_mut().insert(PeerAddress(peer.address));
    request.extensions_mut().insert(peer.names);
    request.extensions_mut().insert(peer.client);
    request.extensions_mut().insert(activity.bytes());
    let mut response = router.call(request).await?;
    let lease = response.extensions_mut().remove();
    Ok(response.map(|body| under_way.answer_with(body, lease)))
}
