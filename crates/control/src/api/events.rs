//! What happens, as it happens: Server-Sent Events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::manager::Manager;

pub(super) async fn stream_events(State(manager): State<Manager>) -> Response {
    stream_messages(manager.site().subscribe_events())
}

/// Each message as an event.
pub(super) fn stream_messages(receiver: Receiver<Arc<str>>) -> Response {
    let events = stream::unfold(receiver, |mut receiver| async move {
        let event = match receiver.recv().await {
            Ok(event) => Event::default().data(event),
            // A client that reads too slowly learns that it has missed something, and goes on.
            Err(RecvError::Lagged(missed)) => {
                Event::default().data(json!({"kind": "lagged", "missed": missed}).to_string())
            }
            Err(RecvError::Closed) => return None,
        };
        Some((Ok::<_, Infallible>(event), receiver))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}
