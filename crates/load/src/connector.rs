//! Opens connections to a server.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Opens connections.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    addresses: Vec<SocketAddr>,
}

impl Connector {
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses }
    }

    pub(crate) async fn open_connection(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect(&self.addresses[..])
            .await
            .map_err(|error| format!("connect: {error}"))?;
        stream.set_nodelay(true).map_err(|error| format!("connect: {error}"))?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error_with_causes(&error))?;
        // What goes wrong on the connection is told to whoever waits for an answer.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

/// An error with its causes, which hyper does not show by itself.
pub(crate) fn error_with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
}
