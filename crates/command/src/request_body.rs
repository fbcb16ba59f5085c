//! What a request to a control plane brings.

use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use serde_json::Value;
use tessera_core::Result;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// What a request brings.
#[derive(Clone, Copy)]
pub enum RequestBody<'a> {
    /// Nothing.
    Empty,
    /// A document.
    Json(&'a Value),
    /// What is too large to be in memory.
    Upload(&'a dyn Upload),
}

/// What is read while it is sent.
pub trait Upload: Sync {
    /// What it is.
    fn content_type(&self) -> &'static str;

    /// How many bytes there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads it from its beginning.
    fn open(&self) -> Result<Box<dyn Read + Send>>;
}

/// A body on its way.
pub(crate) enum SentBody {
    Whole(Bytes),
    /// With how many bytes are left.
    Read(Box<dyn Read + Send>, u64),
}

impl RequestBody<'_> {
    pub(crate) fn content_type(&self) -> Option<&'static str> {
        match self {
            Self::Empty => None,
            Self::Json(_) => Some("application/json"),
            Self::Upload(upload) => Some(upload.content_type()),
        }
    }

    pub(crate) fn open(&self) -> Result<SentBody> {
        Ok(match self {
            Self::Empty => SentBody::Whole(Bytes::new()),
            Self::Json(document) => SentBody::Whole(document.to_string().into()),
            Self::Upload(upload) => SentBody::Read(upload.open()?, upload.len()),
        })
    }
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = std::io::Error;

    /// Reads on the thread that sends: there is nothing else for it to do.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        let piece = match &mut *self {
            Self::Whole(bytes) => std::mem::take(bytes),
            Self::Read(reader, left) => {
                let wanted = PIECE_BYTES.min(usize::try_from(*left).unwrap_or(usize::MAX));
                let mut piece = BytesMut::zeroed(wanted);
                if let Err(error) = reader.read_exact(&mut piece) {
                    return Poll::Ready(Some(Err(error)));
                }
                *left -= wanted as u64;
                piece.freeze()
            }
        };
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Read(_, left) => *left == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Self::Whole(bytes) => bytes.len() as u64,
            Self::Read(_, left) => *left,
        })
    }
}
