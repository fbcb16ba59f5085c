//! The messages of a call as they come: counted among the bytes under way, unfolded where they are
//! compressed, and not waited for without end.
//!
//! The library below reads a whole message, unfolds it and only then asks anybody. Six messages of
//! half a megabyte that unfold to a gigabyte each would end the server.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;

use super::call::refusal_status;
use crate::byte_budget::{ByteBudget, ByteLease, ConnectionBytes};
use crate::encoding::{BodyDecoder, ContentEncoding};
use crate::upload_pace::UploadPace;

/// How a call says that its messages are compressed.
const GRPC_ENCODING: &str = "grpc-encoding";
/// A message begins with whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Compressed bytes that are unfolded at once: they become half a MiB at the very most.
const PIECE_BYTES: usize = 512;
/// After so many bytes that were unfolded others are next.
const TURN_BYTES: usize = 512 << 10;

/// What messages may take.
#[derive(Clone)]
pub(super) struct MessageBounds {
    pub(super) budget: Arc<ByteBudget>,
    pub(super) largest: usize,
}

/// Bounds the messages of a call.
pub(super) async fn bound_messages(
    State(bounds): State<MessageBounds>,
    mut request: Request,
    next: Next,
) -> Response {
    let headers = request.headers_mut();
    let name = headers.get(GRPC_ENCODING).and_then(|name| name.to_str().ok());
    // What we don't know is refused below, which says what we do.
    let encoding = name.and_then(ContentEncoding::from_name);
    if encoding.is_some() {
        headers.remove(GRPC_ENCODING);
    }
    let connection = request.extensions().get::<ConnectionBytes>();
    let lease = bounds.budget.lease(connection);
    let request = request.map(|body| {
        Body::new(MessageBody {
            body,
            encoding,
            bounds,
            lease,
            pace: UploadPace::new(None),
            incoming: Bytes::new(),
            part: MessagePart::Prefix(Vec::with_capacity(PREFIX_BYTES)),
            outgoing: VecDeque::new(),
        })
    });
    next.run(request).await
}

/// The body of a call.
struct MessageBody {
    body: Body,
    encoding: Option<ContentEncoding>,
    bounds: MessageBounds,
    /// Bytes of the message that is coming, or that came last.
    lease: ByteLease,
    pace: UploadPace,
    /// What has come and was not looked at yet.
    incoming: Bytes,
    part: MessagePart,
    /// What is handed on next.
    outgoing: VecDeque<Bytes>,
}

/// What comes next of a message.
enum MessagePart {
    /// Its prefix, with what has come of that.
    Prefix(Vec<u8>),
    /// So many bytes as they are.
    Plain(usize),
    /// So many compressed bytes.
    Folded(usize, UnfoldedMessage),
}

/// What a compressed message has become so far.
struct UnfoldedMessage {
    decoder: BodyDecoder,
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl MessageBody {
    /// Whether a message has begun that is not there completely.
    fn is_amid_message(&self) -> bool {
        match &self.part {
            MessagePart::Prefix(prefix) => !prefix.is_empty(),
            MessagePart::Plain(_) | MessagePart::Folded(..) => true,
        }
    }

    /// Looks at what has come, as far as others need not wait for that; tells whether there is more
    /// to do.
    fn take_in(&mut self) -> Result<bool, Status> {
        let mut done = 0;
        while !self.incoming.is_empty() && done < TURN_BYTES {
            let next = match &mut self.part {
                MessagePart::Prefix(prefix) => {
                    if prefix.is_empty() {
                        // The one before was taken: its memory is the next one's.
                        self.lease = self.bounds.budget.lease(self.lease.connection());
                    }
                    let missing = PREFIX_BYTES - prefix.len();
                    let len = missing.min(self.incoming.len());
                    prefix.extend_from_slice(&self.incoming.split_to(len));
                    match <[u8; PREFIX_BYTES]>::try_from(prefix.as_slice()) {
                        Ok(prefix) => Some(self.begin_message(prefix)?),
                        Err(_) => None,
                    }
                }
                MessagePart::Plain(left) => {
                    let len = (*left).min(self.incoming.len());
                    let bytes = self.incoming.split_to(len);
                    self.lease.grow(len).map_err(refusal_status)?;
                    self.outgoing.push_back(bytes);
                    *left -= len;
                    done += len;
                    (*left == 0).then(no_prefix_yet)
                }
                MessagePart::Folded(left, message) => {
                    let len = (*left).min(self.incoming.len()).min(PIECE_BYTES);
                    let bytes = self.incoming.split_to(len);
                    *left -= len;
                    let is_last = *left == 0;
                    let unfolded = message.unfold(&bytes, is_last)?;
                    self.lease.grow(unfolded).map_err(refusal_status)?;
                    done += unfolded.max(PIECE_BYTES);
                    let largest = self.bounds.largest;
                    if message.len > largest {
                        return Err(Status::out_of_range(format!(
                            "Error, decompressed message length too large: found more than \
                             {largest} bytes, the limit is: {largest} bytes"
                        )));
                    }
                    if is_last {
                        self.outgoing.push_back(message_prefix(message.len));
                        self.outgoing.append(&mut message.pieces);
                    }
                    is_last.then(no_prefix_yet)
                }
            };
            if let Some(next) = next {
                self.part = next;
            }
        }
        Ok(!self.incoming.is_empty())
    }

    /// What comes after a prefix.
    fn begin_message(&mut self, prefix: [u8; PREFIX_BYTES]) -> Result<MessagePart, Status> {
        let [is_folded, length @ ..] = prefix;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        self.pace = UploadPace::new(Some(length as u64));
        let Some(encoding) = self.encoding.filter(|_| is_folded == 1) else {
            // As it is: what is wrong with it is said below.
            self.outgoing.push_back(Bytes::copy_from_slice(&prefix));
            return Ok(if length == 0 { no_prefix_yet() } else { MessagePart::Plain(length) });
        };
        if length > self.bounds.largest {
            return Err(Status::out_of_range(format!(
                "Error, compressed message length too large: found {length} bytes, the limit is: \
                 {} bytes",
                self.bounds.largest
            )));
        }
        if length == 0 {
            self.outgoing.push_back(message_prefix(0));
            return Ok(no_prefix_yet());
        }
        let decoder = BodyDecoder::new(encoding);
        let message = UnfoldedMessage { decoder, pieces: VecDeque::new(), len: 0 };
        Ok(MessagePart::Folded(length, message))
    }
}

fn no_prefix_yet() -> MessagePart {
    MessagePart::Prefix(Vec::with_capacity(PREFIX_BYTES))
}

/// The prefix of a message that is not compressed.
fn message_prefix(len: usize) -> Bytes {
    // Longer ones are refused.
    let len = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    Bytes::from_iter([0].into_iter().chain(len))
}

impl UnfoldedMessage {
    /// Unfolds the next bytes, and returns how many they became.
    fn unfold(&mut self, bytes: &[u8], is_last: bool) -> Result<usize, Status> {
        let wrong = |error: std::io::Error| {
            Status::internal(format!("the message is not compressed as it says: {error}"))
        };
        let mut unfolded = self.decoder.decode_piece(bytes).map_err(wrong)?;
        let mut len = unfolded.remaining();
        self.keep(unfolded);
        if is_last {
            unfolded = self.decoder.decode_rest().map_err(wrong)?;
            len += unfolded.remaining();
            self.keep(unfolded);
        }
        self.len += len;
        Ok(len)
    }

    fn keep(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }
}

impl HttpBody for MessageBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let body = &mut *self;
        loop {
            if let Some(bytes) = body.outgoing.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if !body.incoming.is_empty() {
                match body.take_in() {
                    Ok(true) if body.outgoing.is_empty() => {
                        // What unfolds so much takes its time.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Ok(_) => continue,
                    Err(status) => return Poll::Ready(Some(Err(axum::Error::new(status)))),
                }
            }
            match Pin::new(&mut body.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        body.pace.note_received(data.len());
                        body.incoming = data;
                    }
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Poll::Ready(end) => return Poll::Ready(end),
                Poll::Pending if body.is_amid_message() => {
                    let Poll::Ready(reason) = body.pace.poll_stalled(context) else {
                        return Poll::Pending;
                    };
                    let status = Status::deadline_exceeded(format!("the message: {reason}"));
                    return Poll::Ready(Some(Err(axum::Error::new(status))));
                }
                // A stream of messages may rest between them.
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt, stream};
    use http_body_util::BodyExt;

    use super::*;

    const LARGEST: usize = 1 << 20;

    fn prefix(is_folded: bool, len: usize) -> Vec<u8> {
        let mut prefix = message_prefix(len).to_vec();
        prefix[0] = u8::from(is_folded);
        prefix
    }

    fn folded(content: &[u8]) -> Vec<u8> {
        let parts = [Bytes::copy_from_slice(content)];
        let bytes = ContentEncoding::Gzip.compress_parts(&parts).unwrap();
        [prefix(true, bytes.len()), bytes].concat()
    }

    fn plain(content: &[u8]) -> Vec<u8> {
        [prefix(false, content.len()), content.to_vec()].concat()
    }

    fn bounded(budget: &Arc<ByteBudget>, body: Body) -> MessageBody {
        MessageBody {
            body,
            encoding: Some(ContentEncoding::Gzip),
            bounds: MessageBounds { budget: Arc::clone(budget), largest: LARGEST },
            lease: budget.lease(None),
            pace: UploadPace::new(None),
            incoming: Bytes::new(),
            part: no_prefix_yet(),
            outgoing: VecDeque::new(),
        }
    }

    fn in_chunks(bytes: Vec<u8>, size: usize) -> Body {
        let chunks: Vec<_> = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
        Body::from_stream(stream::iter(chunks.into_iter().map(Ok::<_, axum::Error>)))
    }

    #[tokio::test]
    async fn messages_come_out_as_they_were_however_they_are_cut_and_compressed() {
        let texts: [&[u8]; 4] = [b"one", b"", &[7; 300_000], b"the last"];
        let expected: Vec<u8> = texts.iter().flat_map(|text| plain(text)).collect();
        let mixed = [plain(texts[0]), folded(texts[1]), folded(texts[2]), plain(texts[3])].concat();
        for size in [1, 7, 4096, 1 << 20] {
            for bytes in [expected.clone(), mixed.clone()] {
                let budget = Arc::new(ByteBudget::new(1 << 20));
                let body = bounded(&budget, in_chunks(bytes, size));
                assert_eq!(body.collect().await.unwrap().to_bytes(), expected, "{size}");
                assert_eq!(budget.used_bytes(), 0);
            }
        }
    }

    #[tokio::test]
    async fn a_message_that_unfolds_to_too_much_is_refused_before_it_is_there() {
        let budget = Arc::new(ByteBudget::new(64 << 20));
        let bomb = folded(&vec![0; LARGEST * 8]);
        let error = bounded(&budget, in_chunks(bomb, 4096)).collect().await.unwrap_err();
        let status = Status::from_error(Box::new(error));
        assert_eq!(status.code(), tonic::Code::OutOfRange, "{status}");
        let budget = Arc::new(ByteBudget::new(LARGEST / 2));
        let large = folded(&vec![0; LARGEST - 1]);
        let error = bounded(&budget, in_chunks(large, 4096)).collect().await.unwrap_err();
        let status = Status::from_error(Box::new(error));
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_may_rest_between_messages_but_not_amid_one() {
        let budget = Arc::new(ByteBudget::new(1 << 20));
        let then_nothing = |bytes: Vec<u8>| {
            let first = stream::iter([Ok::<_, axum::Error>(Bytes::from(bytes))]);
            bounded(&budget, Body::from_stream(first.chain(stream::pending())))
        };
        let mut resting = then_nothing(plain(b"a message"));
        while resting.frame().now_or_never().is_some() {}
        tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
        assert!(resting.frame().now_or_never().is_none());
        let mut stalled = then_nothing(plain(b"a message")[..8].to_vec());
        let begun = tokio::time::Instant::now();
        let error = loop {
            match stalled.frame().await.unwrap() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(begun.elapsed().as_secs(), 10);
        let status = Status::from_error(Box::new(error));
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status}");
    }
}
