//! A request's body that is noted as it passes: how much there was, its hash, and its beginning.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tessera_core::lock;

use super::AuditedBody;

/// How much of a body is kept to say what it is about: as much as the control plane takes.
pub(super) const MOST_KEPT: usize = 1 << 20;

/// What is known of a body so far.
#[derive(Clone, Default)]
pub(crate) struct BodyNotes(Arc<Mutex<NotesState>>);

#[derive(Default)]
struct NotesState {
    hasher: blake3::Hasher,
    bytes: u64,
    beginning: Vec<u8>,
    whole: bool,
}

impl BodyNotes {
    /// What was read; nothing where there was nothing.
    pub(crate) fn audited_body(&self) -> Option<AuditedBody> {
        let state = lock(&self.0);
        (state.bytes > 0).then(|| AuditedBody {
            bytes: state.bytes,
            blake3: state.hasher.finalize().to_hex().to_string(),
            whole: state.whole,
        })
    }

    /// Its beginning, and whether that is all.
    pub(super) fn take_beginning(&self) -> (Vec<u8>, bool) {
        let mut state = lock(&self.0);
        let beginning = std::mem::take(&mut state.beginning);
        let is_all = state.whole && state.bytes == beginning.len() as u64;
        (beginning, is_all)
    }

    fn note_frame(&self, data: &Bytes) {
        let mut state = lock(&self.0);
        state.hasher.update(data);
        state.bytes += data.len() as u64;
        let room = MOST_KEPT.saturating_sub(state.beginning.len());
        state.beginning.extend_from_slice(&data[..data.len().min(room)]);
    }
}

/// A body that is noted as it passes.
pub(crate) struct NotedBody {
    body: Body,
    notes: BodyNotes,
}

impl NotedBody {
    /// The same body, with what is noted of it.
    pub(crate) fn wrap(body: Body) -> (Body, BodyNotes) {
        let notes = BodyNotes::default();
        (Body::new(Self { body, notes: notes.clone() }), notes)
    }
}

impl http_body::Body for NotedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.notes.note_frame(data);
        }
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            lock(&self.notes.0).whole = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
