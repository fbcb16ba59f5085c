//! One client: a connection that is kept, and opened again where it was lost.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Response, StatusCode};

use crate::connector::error_with_causes;
use crate::exchange::{Exchange, ExchangeOutcome};
use crate::response::{self, HEADER_LENGTH, ResponseRemarks};
use crate::session::LoadSession;

/// What is kept of an error's body: its message.
const MAX_ERROR_BYTES: usize = 4096;

/// One client.
pub(crate) struct LoadClient {
    session: Arc<LoadSession>,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl LoadClient {
    pub(crate) fn new(session: Arc<LoadSession>) -> Self {
        Self { session, sender: None }
    }

    /// Opens the connection ahead of the first request, which tries again where that fails.
    pub(crate) async fn connect_early(&mut self) {
        let connecting = self.session.open_connection();
        if let Ok(Ok(sender)) = tokio::time::timeout(self.session.timeout, connecting).await {
            self.sender = Some(sender);
        }
    }

    /// Sends the request whose turn it is, and waits for the whole answer.
    pub(crate) async fn send_request(&mut self, turn: usize, until: Instant) -> Exchange {
        match tokio::time::timeout_at(until.into(), self.try_exchange(turn)).await {
            Ok(Ok(exchange)) => exchange,
            Ok(Err(message)) => Exchange::unanswered(ExchangeOutcome::Connection, Some(message)),
            Err(_) => Exchange::unanswered(ExchangeOutcome::Timeout, None),
        }
    }

    /// The sender is taken out while it is in use: where this ends early, by an error or by a
    /// timeout, the connection goes with it.
    async fn try_exchange(&mut self, turn: usize) -> Result<Exchange, String> {
        loop {
            let kept = match self.sender.take() {
                Some(mut sender) => sender.ready().await.is_ok().then_some(sender),
                None => None,
            };
            let reused = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.session.open_connection().await?,
            };
            let (request, sent) = self.session.prepared.request_for_turn(turn);
            let response = match sender.send_request(request).await {
                Ok(response) => response,
                // The server closed a connection that was idle, before anything was sent on it.
                Err(error) if reused && error.is_canceled() => continue,
                Err(error) => return Err(error_with_causes(&error)),
            };
            let exchange = receive_response(response, sent as u64).await?;
            self.sender = Some(sender);
            return Ok(exchange);
        }
    }
}

async fn receive_response(response: Response<Incoming>, sent: u64) -> Result<Exchange, String> {
    let status = response.status();
    let header_length = response.headers().get(HEADER_LENGTH).and_then(|value| {
        let text = value.to_str().ok()?;
        text.trim().parse::<usize>().ok()
    });
    // Tensors are counted and let go: only what is JSON is kept.
    let keep = match status {
        StatusCode::OK => header_length.unwrap_or(usize::MAX),
        _ => MAX_ERROR_BYTES,
    };
    let mut kept = Vec::new();
    let mut received = 0;
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error_with_causes(&error))?;
        if let Some(data) = frame.data_ref() {
            received += data.len() as u64;
            let room = keep.saturating_sub(kept.len()).min(data.len());
            kept.extend_from_slice(&data[..room]);
        }
    }
    let (outcome, remarks, message) = match status {
        StatusCode::OK => match response::read_remarks(&kept) {
            Some(remarks) => (ExchangeOutcome::Ok, remarks, None),
            None => (
                ExchangeOutcome::Invalid,
                ResponseRemarks::default(),
                response::error_message(&kept),
            ),
        },
        status => {
            let message = response::error_message(&kept);
            (ExchangeOutcome::Status(status.as_u16()), ResponseRemarks::default(), message)
        }
    };
    Ok(Exchange { outcome, sent, received, remarks, message })
}
