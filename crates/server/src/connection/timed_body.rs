//! A request's body that comes at some rate at least.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

/// What a client may take before anything is asked of it.
const GRACE_TIME: Duration = Duration::from_secs(10);
/// Bytes a second that must come from then on.
const LEAST_RATE: u64 = 16 << 10;

/// A body with a least rate.
pub(crate) struct TimedBody {
    body: Body,
    begun: Instant,
    received: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    /// The same body, which fails where its client stalls.
    pub(crate) fn wrap(body: Body) -> Body {
        if http_body::Body::is_end_stream(&body) {
            return body;
        }
        Body::new(Self { body, begun: Instant::now(), received: 0, timer: None })
    }

    /// Until when it need not be looked at: what has come by now pays for that time.
    fn time_left(&self) -> Duration {
        let paid = GRACE_TIME + Duration::from_secs_f64(self.received as f64 / LEAST_RATE as f64);
        paid.saturating_sub(self.begun.elapsed())
    }
}

impl http_body::Body for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            if let Some(Ok(frame)) = &frame {
                self.received += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
            self.timer = None;
            return Poll::Ready(frame);
        }
        loop {
            let left = self.time_left();
            if left.is_zero() {
                let slow = format!("it comes with less than {} KiB a second", LEAST_RATE >> 10);
                return Poll::Ready(Some(Err(axum::Error::new(slow))));
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(left)));
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
