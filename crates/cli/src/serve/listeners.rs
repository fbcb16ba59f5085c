//! Where the server listens.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::serve::ListenerExt;
use serde::Serialize;
use tessera_core::{Error, Result};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::arguments::Serve;

/// Sockets that are bound.
pub(super) struct Listeners {
    http: TcpListener,
    grpc: TcpListener,
    metrics: TcpListener,
    control: TcpListener,
    addresses: Addresses,
}

/// Where they are.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Addresses {
    http: SocketAddr,
    grpc: SocketAddr,
    metrics: SocketAddr,
    control: SocketAddr,
}

impl Addresses {
    /// What is where, for people.
    pub(super) fn shown(&self) -> [(&'static str, String); 4] {
        [
            ("http", format!("http://{}/v2", self.http)),
            ("grpc", self.grpc.to_string()),
            ("metrics", format!("http://{}/metrics", self.metrics)),
            ("control", format!("http://{}/v1/system", self.control)),
        ]
    }
}

impl Listeners {
    /// Binds all of them; tells of every one that can't be.
    pub(super) async fn bind(arguments: &Serve) -> Result<Self> {
        let mut wrong = Vec::new();
        let http = bind(arguments.host, arguments.http, "--http", &mut wrong).await;
        let grpc = bind(arguments.host, arguments.grpc, "--grpc", &mut wrong).await;
        let metrics = bind(arguments.host, arguments.metrics, "--metrics", &mut wrong).await;
        let control = bind(arguments.host, arguments.control, "--control", &mut wrong).await;
        match (http, grpc, metrics, control) {
            (Some(http), Some(grpc), Some(metrics), Some(control)) => Ok(Self {
                addresses: Addresses {
                    http: http.1,
                    grpc: grpc.1,
                    metrics: metrics.1,
                    control: control.1,
                },
                http: http.0,
                grpc: grpc.0,
                metrics: metrics.0,
                control: control.0,
            }),
            _ => Err(Error::usage(wrong.join("; "))),
        }
    }

    pub(super) fn addresses(&self) -> Addresses {
        self.addresses.clone()
    }

    /// Serves on all of them until `closed` says true and every request is answered.
    pub(super) fn serve(
        self,
        http: Router,
        grpc: Router,
        metrics: Router,
        control: Router,
        closed: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> {
        let pairs = [
            (self.http, http),
            (self.grpc, grpc),
            (self.metrics, metrics),
            (self.control, control),
        ];
        let running = pairs.map(|(listener, router)| {
            let mut closed = closed.clone();
            let listener = listener.tap_io(|stream| {
                // Answers go out at once; one that can't be set up so still works.
                stream.set_nodelay(true).ok();
            });
            tokio::spawn(async move {
                let until = async move {
                    closed.wait_for(|closed| *closed).await.ok();
                };
                let served = axum::serve(listener, router).with_graceful_shutdown(until).await;
                if let Err(error) = served {
                    tracing::error!(%error, "a listener ended");
                }
            })
        });
        async move {
            for task in running {
                task.await.ok();
            }
        }
    }
}

async fn bind(
    host: IpAddr,
    port: u16,
    option: &str,
    wrong: &mut Vec<String>,
) -> Option<(TcpListener, SocketAddr)> {
    let address = SocketAddr::new(host, port);
    let bound = match TcpListener::bind(address).await {
        Ok(listener) => listener.local_addr().map(|address| (listener, address)),
        Err(error) => Err(error),
    };
    bound
        .map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::AddrInUse => format!(", expected a free one: {option} PORT"),
                _ => String::new(),
            };
            wrong.push(format!("{option}: {address}: {error}{hint}"));
        })
        .ok()
}
