//! One client: a connection that is kept, and opened again where it was lost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::response::{self, HEADER_LENGTH, Remarks};
use crate::session::Session;

/// What is kept of an error's body: its message.
const MOST_OF_AN_ERROR: usize = 4096;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// An HTTP status other than 200.
    Status(u16),
    /// HTTP 200, but not an answer of the protocol.
    Invalid,
    /// No connection, or one that broke.
    Connection,
    /// No answer in time.
    Timeout,
}

/// How a request went.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) outcome: Outcome,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) remarks: Remarks,
    /// What the server, or the system, said went wrong.
    pub(crate) message: Option<String>,
}

impl Exchange {
    /// A request that got no answer.
    pub(crate) fn unanswered(outcome: Outcome, message: Option<String>) -> Self {
        Self { outcome, sent: 0, received: 0, remarks: Remarks::default(), message }
    }
}

/// Opens connections.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    addresses: Vec<SocketAddr>,
}

impl Connector {
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses }
    }

    pub(crate) async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect(&self.addresses[..])
            .await
            .map_err(|error| format!("connect: {error}"))?;
        stream.set_nodelay(true).map_err(|error| format!("connect: {error}"))?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| chain(&error))?;
        // What goes wrong on the connection is told to whoever waits for an answer.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

/// One client.
pub(crate) struct Client {
    session: Arc<Session>,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session, sender: None }
    }

    /// Opens the connection ahead of the first request, which tries again where that fails.
    pub(crate) async fn connect(&mut self) {
        let connecting = self.session.connect();
        if let Ok(Ok(sender)) = tokio::time::timeout(self.session.timeout, connecting).await {
            self.sender = Some(sender);
        }
    }

    /// Sends the request whose turn it is, and waits for the whole answer.
    pub(crate) async fn exchange(&mut self, turn: usize, until: Instant) -> Exchange {
        match tokio::time::timeout_at(until.into(), self.attempt(turn)).await {
            Ok(Ok(exchange)) => exchange,
            Ok(Err(message)) => Exchange::unanswered(Outcome::Connection, Some(message)),
            Err(_) => Exchange::unanswered(Outcome::Timeout, None),
        }
    }

    /// The sender is taken out while it is in use: where this ends early, by an error or by a
    /// timeout, the connection goes with it.
    async fn attempt(&mut self, turn: usize) -> Result<Exchange, String> {
        loop {
            let kept = match self.sender.take() {
                Some(mut sender) => sender.ready().await.is_ok().then_some(sender),
                None => None,
            };
            let reused = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.session.connect().await?,
            };
            let (request, sent) = self.session.prepared.request(turn);
            let response = match sender.send_request(request).await {
                Ok(response) => response,
                // The server closed a connection that was idle, before anything was sent on it.
                Err(error) if reused && error.is_canceled() => continue,
                Err(error) => return Err(chain(&error)),
            };
            let exchange = receive(response, sent as u64).await?;
            self.sender = Some(sender);
            return Ok(exchange);
        }
    }
}

async fn receive(response: Response<Incoming>, sent: u64) -> Result<Exchange, String> {
    let status = response.status();
    let header_length = response.headers().get(HEADER_LENGTH).and_then(|value| {
        let text = value.to_str().ok()?;
        text.trim().parse::<usize>().ok()
    });
    // Tensors are counted and let go: only what is JSON is kept.
    let keep = match status {
        StatusCode::OK => header_length.unwrap_or(usize::MAX),
        _ => MOST_OF_AN_ERROR,
    };
    let mut kept = Vec::new();
    let mut received = 0;
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| chain(&error))?;
        if let Some(data) = frame.data_ref() {
            received += data.len() as u64;
            let room = keep.saturating_sub(kept.len()).min(data.len());
            kept.extend_from_slice(&data[..room]);
        }
    }
    let (outcome, remarks, message) = match status {
        StatusCode::OK => match response::remarks(&kept) {
            Some(remarks) => (Outcome::Ok, remarks, None),
            None => (Outcome::Invalid, Remarks::default(), response::error_message(&kept)),
        },
        status => {
            let message = response::error_message(&kept);
            (Outcome::Status(status.as_u16()), Remarks::default(), message)
        }
    };
    Ok(Exchange { outcome, sent, received, remarks, message })
}

/// An error with its causes, which hyper does not show by itself.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
}
