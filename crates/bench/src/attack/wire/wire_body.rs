//! A request's body that says how much it is, and may stop before that is there.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};

/// Some bytes, and then the end, or nothing more.
#[derive(Clone, Debug)]
pub(super) struct WireBody {
    beginning: Option<Bytes>,
    rests: bool,
}

impl WireBody {
    /// All of it.
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { beginning: Some(bytes.into()), rests: false }
    }

    /// The beginning of something that never comes to its end.
    pub(super) fn stalled(beginning: impl Into<Bytes>) -> Self {
        Self { beginning: Some(beginning.into()), rests: true }
    }
}

impl Body for WireBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.beginning.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None if self.rests => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}
