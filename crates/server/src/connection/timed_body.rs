//! A request's body that comes quickly enough.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tessera_gateway::UploadPace;

/// A body that fails where its client stalls.
pub(crate) struct TimedBody {
    body: Body,
    pace: UploadPace,
}

impl TimedBody {
    /// The same body, which fails where its client stalls.
    pub(crate) fn wrap(body: Body) -> Body {
        if http_body::Body::is_end_stream(&body) {
            return body;
        }
        let pace = UploadPace::new(http_body::Body::size_hint(&body).exact());
        Body::new(Self { body, pace })
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
                self.pace.note_received(frame.data_ref().map_or(0, Bytes::len));
            }
            return Poll::Ready(frame);
        }
        let stalled = self.pace.poll_stalled(context);
        stalled.map(|reason| Some(Err(axum::Error::new(reason))))
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
    use futures_util::{StreamExt, stream};
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_fails_and_one_that_is_whole_does_not() {
        let begun = tokio::time::Instant::now();
        let first = stream::iter([Ok::<_, axum::Error>(Bytes::from_static(b"{\""))]);
        let stalled = TimedBody::wrap(Body::from_stream(first.chain(stream::pending())));
        let error = stalled.collect().await.unwrap_err().to_string();
        assert!(error.contains("less than 16 KiB a second"), "{error}");
        assert_eq!(begun.elapsed().as_secs(), 10);
        let whole = TimedBody::wrap(Body::from("whole"));
        assert_eq!(whole.collect().await.unwrap().to_bytes(), "whole");
    }
}
