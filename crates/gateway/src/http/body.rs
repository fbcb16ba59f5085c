//! Reads a request's body chunk by chunk, decompressed and within the limit, so that a tensor
//! goes straight to where it is needed.

use axum::body::{Body, HttpBody};
use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, StatusCode};
use bytes::{Buf, Bytes};
use http_body_util::BodyExt;

use super::encoding::{Decoder, Encoding};
use super::failure::{Failure, Outcome};

/// Compressed bytes that are decompressed at once: they become 4 MiB at the very most.
const PIECE: usize = 4096;

/// What is read of a failed request before its connection is closed instead.
const MOST_DISCARDED: u64 = 64 << 20;

/// A body that is being read.
pub(super) struct BodyReader {
    body: Body,
    decoder: Option<Decoder>,
    /// What came of the body and was not decompressed yet.
    compressed: Bytes,
    /// What can be taken next.
    chunk: Bytes,
    /// Bytes that came in so far.
    received: u64,
    /// Bytes that came out so far, after decompression.
    total: usize,
    limit: usize,
    ended: bool,
}

impl BodyReader {
    /// Starts to read a body; one that says that it is too large is refused at once.
    pub(super) fn new(body: Body, headers: &HeaderMap, limit: usize) -> Outcome<Self> {
        let decoder = match headers.get(CONTENT_ENCODING) {
            None => None,
            Some(value) => {
                let name = value.to_str().unwrap_or_default().trim();
                match Encoding::from_name(name) {
                    Some(encoding) => Some(Decoder::new(encoding)),
                    None if name.is_empty() || name.eq_ignore_ascii_case("identity") => None,
                    None => {
                        return Err(Failure::new(
                            StatusCode::UNSUPPORTED_MEDIA_TYPE,
                            format!(
                                "Content-Encoding \"{name}\" is unknown, expected gzip or deflate"
                            ),
                        ));
                    }
                }
            }
        };
        if body.size_hint().lower() > limit as u64 {
            return Err(Failure::too_large(limit));
        }
        Ok(Self {
            body,
            decoder,
            compressed: Bytes::new(),
            chunk: Bytes::new(),
            received: 0,
            total: 0,
            limit,
            ended: false,
        })
    }

    /// The bytes that are still to come, where the client said so and they are not compressed.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self.decoder {
            Some(_) => None,
            None => Some(self.body.size_hint().exact()? + self.chunk.len() as u64),
        }
    }

    /// Fills `target` and says how much of it; less than all where the body ends before.
    pub(super) async fn fill(&mut self, target: &mut [u8]) -> Outcome<usize> {
        let mut filled = 0;
        while filled < target.len() && self.ready().await? {
            let len = self.chunk.len().min(target.len() - filled);
            self.chunk.copy_to_slice(&mut target[filled..filled + len]);
            filled += len;
        }
        Ok(filled)
    }

    /// The next `len` bytes, or fewer where the body ends before.
    pub(super) async fn take(&mut self, len: usize) -> Outcome<Vec<u8>> {
        // Grows as bytes come: the length is the client's word.
        let mut bytes = Vec::new();
        while bytes.len() < len && self.ready().await? {
            let part = self.chunk.split_to(self.chunk.len().min(len - bytes.len()));
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }

    /// All that is still to come.
    pub(super) async fn rest(&mut self) -> Outcome<Vec<u8>> {
        self.take(usize::MAX).await
    }

    /// Whether everything has been taken.
    pub(super) async fn is_done(&mut self) -> Outcome<bool> {
        Ok(!self.ready().await?)
    }

    /// Reads what a request that failed has still to send, and forgets it: many clients read the
    /// answer only once they have sent everything, and see a closed connection otherwise.
    pub(super) async fn discard(&mut self) {
        let most = self.received.saturating_add(MOST_DISCARDED);
        if self.body.size_hint().lower() > MOST_DISCARDED {
            return;
        }
        while self.received < most {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    let len = frame.data_ref().map_or(0, Bytes::len);
                    self.received = self.received.saturating_add(len as u64);
                }
                Some(Err(_)) | None => return,
            }
        }
    }

    /// Waits for something to take; `false` at the end of the body.
    async fn ready(&mut self) -> Outcome<bool> {
        while self.chunk.is_empty() {
            if self.ended {
                return Ok(false);
            }
            self.chunk = self.next().await?;
            self.total = self.total.saturating_add(self.chunk.len());
            if self.total > self.limit {
                return Err(Failure::too_large(self.limit));
            }
        }
        Ok(true)
    }

    /// The next bytes, which may be none while there are more to come.
    async fn next(&mut self) -> Outcome<Bytes> {
        if let (Some(decoder), false) = (&mut self.decoder, self.compressed.is_empty()) {
            let piece = self.compressed.split_to(self.compressed.len().min(PIECE));
            return decoder.decode(&piece).map_err(not_compressed);
        }
        match self.body.frame().await {
            Some(Ok(frame)) => {
                // What is no data are trailers, and nobody reads them.
                let data = frame.into_data().unwrap_or_default();
                self.received = self.received.saturating_add(data.len() as u64);
                if self.decoder.is_none() {
                    return Ok(data);
                }
                self.compressed = data;
                Ok(Bytes::new())
            }
            Some(Err(error)) => Err(Failure::new(
                StatusCode::BAD_REQUEST,
                format!("the body could not be read: {error}"),
            )),
            None => {
                self.ended = true;
                match &mut self.decoder {
                    Some(decoder) if self.received > 0 => decoder.finish().map_err(not_compressed),
                    _ => Ok(Bytes::new()),
                }
            }
        }
    }
}

fn not_compressed(error: std::io::Error) -> Failure {
    let message = format!("the body is not compressed as its Content-Encoding says: {error}");
    Failure::new(StatusCode::BAD_REQUEST, message)
}
