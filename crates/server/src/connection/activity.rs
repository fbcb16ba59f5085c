//! What is going on at a connection, as those know who answer its requests: the time limits of its
//! stream depend on that.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tessera_core::lock;
use tessera_gateway::{AnswerLease, ConnectionBytes};

/// What is going on at a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionActivity {
    /// Requests whose heads have come so far.
    heads: AtomicU64,
    /// Those of them that are not answered completely.
    requests: AtomicUsize,
    /// Answers that are being sent.
    answers: AtomicUsize,
    /// Bytes of both.
    bytes: ConnectionBytes,
    /// What answers hold that were handed over to be written, and may not be written yet.
    handed_over: Mutex<Vec<AnswerLease>>,
}

impl ConnectionActivity {
    /// A request has come; it is under way until what this returns is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>) -> RequestUnderWay {
        self.heads.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        RequestUnderWay { activity: Arc::clone(self), is_answering: false }
    }

    /// What counts the bytes of its requests and answers.
    pub(crate) fn bytes(&self) -> ConnectionBytes {
        self.bytes.clone()
    }

    /// Requests whose heads have come so far.
    pub(crate) fn heads(&self) -> u64 {
        self.heads.load(Ordering::Relaxed)
    }

    /// Whether a request is not answered completely.
    pub(crate) fn has_requests(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    /// All that was handed over to be written is written.
    pub(crate) fn note_flushed(&self) {
        lock(&self.handed_over).clear();
    }

    /// Whether an answer is being sent.
    pub(crate) fn is_answering(&self) -> bool {
        self.answers.load(Ordering::Relaxed) > 0
    }
}

/// A request that is under way until this is dropped.
pub(crate) struct RequestUnderWay {
    activity: Arc<ConnectionActivity>,
    is_answering: bool,
}

impl RequestUnderWay {
    /// The answer, which is being sent until all of it is gone.
    pub(crate) fn answer_with(mut self, body: Body, lease: Option<AnswerLease>) -> Body {
        self.is_answering = true;
        self.activity.answers.fetch_add(1, Ordering::Relaxed);
        Body::new(AnswerBody { body, lease, request: self })
    }
}

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        self.activity.requests.fetch_sub(1, Ordering::Relaxed);
        if self.is_answering {
            self.activity.answers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The body of an answer.
struct AnswerBody {
    body: Body,
    lease: Option<AnswerLease>,
    request: RequestUnderWay,
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        lock(&self.request.activity.handed_over).extend(self.lease.take());
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
