//! Where a server listens.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::serve::ListenerExt;
use tessera_http::WebAccess;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::shutdown::ShutdownSignal;
use crate::web_guard::guard_request;

/// An address to listen on.
#[derive(Clone, Debug)]
pub struct ListenSetting {
    /// What the user calls the setting, for messages: `--http`.
    pub name: &'static str,
    /// Where; port 0 for any that is free.
    pub address: SocketAddr,
    /// Which web pages may ask there, and for which hosts.
    pub access: Arc<WebAccess>,
}

/// A socket that is bound.
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    access: Arc<WebAccess>,
}

/// A listener that answers; ends once it is closed and every request is answered.
pub(crate) type RunningListener = JoinHandle<()>;

impl ListenSetting {
    /// Binds it; notes what is wrong where it can't be.
    pub(crate) async fn bind_or_note(&self, wrong: &mut Vec<String>) -> Option<Listener> {
        let bound = match TcpListener::bind(self.address).await {
            Ok(socket) => socket.local_addr().map(|address| {
                let access = Arc::clone(&self.access);
                Listener { socket, address, access }
            }),
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

    /// Answers until `closed`, and then until every request is answered.
    pub(crate) fn serve_router(self, router: Router, closed: &ShutdownSignal) -> RunningListener {
        let mut closed = closed.clone();
        let router = router.layer(from_fn_with_state(self.access, guard_request));
        let listener = self.socket.tap_io(|stream| {
            // Answers go out at once; one that can't be set up so still works.
            stream.set_nodelay(true).ok();
        });
        tokio::spawn(async move {
            let until = async move { closed.shutdown_requested().await };
            let served = axum::serve(listener, router).with_graceful_shutdown(until).await;
            if let Err(error) = served {
                tracing::error!(%error, "a listener ended");
            }
        })
    }
}
