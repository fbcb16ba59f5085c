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
    /// Answers that wait for the client to take what there is of them.
    waiting_answers: AtomicUsize,
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
        RequestUnderWay { activity: Arc::clone(self) }
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

    /// Whether an answer waits for the client to take what there is of it. One of which nothing is
    /// there yet, as a stream of events may be for hours, waits for nobody.
    pub(crate) fn has_waiting_answer(&self) -> bool {
        self.waiting_answers.load(Ordering::Relaxed) > 0
    }
}

/// A request that is under way until this is dropped.
pub(crate) struct RequestUnderWay {
    activity: Arc<ConnectionActivity>,
}

impl RequestUnderWay {
    /// The answer, with which the request is under way until all of it is handed over.
    pub(crate) fn answer_with(self, body: Body, lease: Option<AnswerLease>) -> Body {
        let mut answer = AnswerBody { body, is_waiting: false, lease, request: self };
        answer.set_waiting(true);
        Body::new(answer)
    }
}

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        self.activity.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer.
struct AnswerBody {
    body: Body,
    /// Whether something of it was handed over, or could be, that was not asked for since.
    is_waiting: bool,
    lease: Option<AnswerLease>,
    request: RequestUnderWay,
}

impl AnswerBody {
    fn set_waiting(&mut self, is_waiting: bool) {
        let waiting = &self.request.activity.waiting_answers;
        match (self.is_waiting, is_waiting) {
            (false, true) => drop(waiting.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(waiting.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        self.is_waiting = is_waiting;
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.set_waiting(false);
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
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.set_waiting(matches!(frame, Poll::Ready(Some(Ok(_)))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt, stream};
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn an_answer_waits_while_there_is_something_to_take_and_not_for_what_is_to_come() {
        let activity = Arc::new(ConnectionActivity::default());
        let first = stream::iter([Ok::<_, axum::Error>(Bytes::from_static(b"an event"))]);
        let events = Body::from_stream(first.chain(stream::pending()));
        let mut answer = activity.begin_request().answer_with(events, None);
        assert!(activity.has_waiting_answer(), "nobody has asked for any of it");
        assert!(answer.frame().now_or_never().is_some());
        assert!(activity.has_waiting_answer(), "the event may not be taken yet");
        assert!(answer.frame().now_or_never().is_none());
        assert!(!activity.has_waiting_answer(), "there is no other event");
        assert!(activity.has_requests());
        drop(answer);
        assert!(!activity.has_requests() && !activity.has_waiting_answer());
    }
}
