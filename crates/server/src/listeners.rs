//! Where a server listens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::access::{Access, PortKind};
use crate::audit::AuditTrail;
use crate::connection::{ConnectionTimes, serve_connections};
use crate::request_guard::{RequestGuard, guard_request};
use crate::shutdown::{ShutdownSignal, ShutdownTrigger};
use crate::tls::TlsSource;

/// An address to listen on.
#[derive(Clone, Debug)]
pub struct ListenSetting {
    /// What the user calls the setting, for messages: `--http`.
    pub name: &'static str,
    /// What it is for.
    pub kind: PortKind,
    /// Where; port 0 for any that is free.
    pub address: SocketAddr,
}

/// A socket that is bound.
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    kind: PortKind,
}

/// What every port has in common.
#[derive(Clone)]
pub(crate) struct PortContext {
    /// Who may ask.
    pub(crate) access: Arc<Access>,
    /// Where changes are written down.
    pub(crate) audit: Arc<AuditTrail>,
    /// When to stop.
    pub(crate) closed: ShutdownSignal,
}

/// A listener that answers; ends once it is closed and every request is answered.
pub(crate) type RunningListener = JoinHandle<()>;

/// Asks listeners to close, and waits for that, for so long at most.
pub(crate) async fn close_listeners(
    closing: ShutdownTrigger,
    running: Vec<RunningListener>,
    most: Duration,
) {
    closing.request_shutdown();
    let closed = async {
        for listener in running {
            listener.await.ok();
        }
    };
    tokio::time::timeout(most, closed).await.ok();
}

impl ListenSetting {
    /// Binds it; notes what is wrong where it can't be.
    pub(crate) async fn bind_or_note(&self, wrong: &mut Vec<String>) -> Option<Listener> {
        let bound = match TcpListener::bind(self.address).await {
            Ok(socket) => {
                socket.local_addr().map(|address| Listener { socket, address, kind: self.kind })
            }
            Err(error) => Err(error),
        };
        bound
            .map_err(|error| {
                let (name, address) = (self.name, self.address);
                let hint = match error.kind() {
                    std::io::ErrorKind::AddrInUse => format!(", expected a free one: {name} PORT"),
                    _ => String::new(),
                };
                wrong.push(format!("{name}: {address}: {error}{hint}"));
            })
            .ok()
    }
}

impl Listener {
    /// Where it is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until it is closed, and then until every request is answered.
    pub(crate) fn serve_router(self, router: Router, context: &PortContext) -> RunningListener {
        let PortContext { access, audit, closed } = context.clone();
        let guard = RequestGuard { access: Arc::clone(&access), audit, port: self.kind };
        let router = router.layer(from_fn_with_state(Arc::new(guard), guard_request));
        let acceptor = move || access.tls.as_ref().map(TlsSource::acceptor);
        let times = match self.kind {
            PortKind::Grpc => ConnectionTimes::GRPC_CLIENTS,
            _ => ConnectionTimes::CLIENTS,
        };
        tokio::spawn(serve_connections(self.socket, router, acceptor, times, closed))
    }

    /// The socket itself.
    pub(crate) fn into_socket(self) -> TcpListener {
        self.socket
    }
}
