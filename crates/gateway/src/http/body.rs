//! Reads a request's body chunk by chunk, decompressed and within the limit, so that a tensor
//! goes straight to where it is needed.

use axum::body::{Body, HttpBody};
use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, StatusCode};
use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use tessera_core::Error;

use super::failure::{HttpFailure, HttpResult};
use crate::byte_budget::ByteLease;
use crate::encoding::{BodyDecoder, ContentEncoding};

/// Where the JSON ends and binary tensors begin, in requests and in responses.
pub(super) const JSON_LENGTH: &str = "inference-header-content-length";

/// Compressed bytes that are decompressed at once: they become half a MiB at the very most.
const PIECE_BYTES: usize = 512;

/// What is read of a failed request before its connection is closed instead.
const MOST_DISCARDED: u64 = 64 << 20;

/// A body that is being read.
pub(super) struct BodyReader {
    body: Body,
    decoder: Option<BodyDecoder>,
    /// What came of the body and was not decompressed yet.
    compressed: Bytes,
    /// What can be taken next.
    chunk: Bytes,
    /// Bytes that came in so far.
    received: u64,
    /// Bytes that came out so far, after decompression.
    total: usize,
    limit: usize,
    /// Bytes of it, in memory until it is answered.
    lease: ByteLease,
    /// How many of those are still to come.
    reserved: usize,
    ended: bool,
}

impl BodyReader {
    /// Starts to read a body; one that says that it is too large is refused at once.
    pub(super) fn new(
        body: Body,
        headers: &HeaderMap,
        limit: usize,
        lease: ByteLease,
    ) -> HttpResult<Self> {
        let decoder = match headers.get(CONTENT_ENCODING) {
            None => None,
            Some(value) => {
                let name = value.to_str().unwrap_or_default().trim();
                match ContentEncoding::from_name(name) {
                    Some(encoding) => Some(BodyDecoder::new(encoding)),
                    None if name.is_empty() || name.eq_ignore_ascii_case("identity") => None,
                    None => {
                        return Err(HttpFailure::new(
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
            return Err(HttpFailure::too_large(limit));
        }
        Ok(Self {
            body,
            decoder,
            compressed: Bytes::new(),
            chunk: Bytes::new(),
            received: 0,
            total: 0,
            limit,
            lease,
            reserved: 0,
            ended: false,
        })
    }

    /// The bytes that are still to come, where the client said so and they are not compressed.
    pub(super) fn remaining_bytes(&self) -> Option<u64> {
        match self.decoder {
            Some(_) => None,
            None => Some(self.body.size_hint().exact()? + self.chunk.len() as u64),
        }
    }

    /// What it has of all bytes under way, for what else the request takes.
    pub(super) fn lease(&mut self) -> &mut ByteLease {
        &mut self.lease
    }

    /// Takes so many of all bytes under way before they come.
    pub(super) fn reserve_bytes(&mut self, bytes: usize) -> HttpResult<()> {
        // Those that are here already are counted.
        let missing = bytes.saturating_sub(self.chunk.len());
        self.lease.grow(missing)?;
        self.reserved += missing;
        Ok(())
    }

    /// Fills `target` and says how much of it; less than all where the body ends before.
    pub(super) async fn read_into(&mut self, target: &mut [u8]) -> HttpResult<usize> {
        let mut filled = 0;
        while filled < target.len() && self.wait_for_chunk().await? {
            let len = self.chunk.len().min(target.len() - filled);
            self.chunk.copy_to_slice(&mut target[filled..filled + len]);
            filled += len;
        }
        Ok(filled)
    }

    /// The next `len` bytes, or fewer where the body ends before.
    pub(super) async fn read_bytes(&mut self, len: usize) -> HttpResult<Vec<u8>> {
        // Grows as bytes come: the length is the client's word.
        let mut bytes = Vec::new();
        while bytes.len() < len && self.wait_for_chunk().await? {
            let part = self.chunk.split_to(self.chunk.len().min(len - bytes.len()));
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }

    /// All that is still to come.
    pub(super) async fn read_rest(&mut self) -> HttpResult<Vec<u8>> {
        self.read_bytes(usize::MAX).await
    }

    /// Whether everything has been taken.
    pub(super) async fn is_done(&mut self) -> HttpResult<bool> {
        Ok(!self.wait_for_chunk().await?)
    }

    /// Reads what a request that failed has still to send, and forgets it: many clients read the
    /// answer only once they have sent everything, and see a closed connection otherwise.
    pub(super) async fn discard_rest(&mut self) {
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
    async fn wait_for_chunk(&mut self) -> HttpResult<bool> {
        while self.chunk.is_empty() {
            if self.ended {
                return Ok(false);
            }
            self.chunk = self.next_chunk().await?;
            self.total = self.total.saturating_add(self.chunk.len());
            if self.total > self.limit {
                return Err(HttpFailure::too_large(self.limit));
            }
            let known = self.chunk.len().min(self.reserved);
            self.reserved -= known;
            self.lease.grow(self.chunk.len() - known)?;
        }
        Ok(true)
    }

    /// The next bytes, which may be none while there are more to come.
    async fn next_chunk(&mut self) -> HttpResult<Bytes> {
        if let (Some(decoder), false) = (&mut self.decoder, self.compressed.is_empty()) {
            let piece = self.compressed.split_to(self.compressed.len().min(PIECE_BYTES));
            let decoded = decoder.decode_piece(&piece).map_err(not_compressed)?;
            if decoded.len() > 16 * PIECE_BYTES {
                // What unfolds so much takes its time: others are next.
                tokio::task::yield_now().await;
            }
            return Ok(decoded);
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
            Some(Err(error)) => Err(HttpFailure::new(
                StatusCode::BAD_REQUEST,
                format!("the body could not be read: {error}"),
            )),
            None => {
                self.ended = true;
                match &mut self.decoder {
                    Some(decoder) if self.received > 0 => {
                        decoder.decode_rest().map_err(not_compressed)
                    }
                    _ => Ok(Bytes::new()),
                }
            }
        }
    }
}

/// How long the JSON at the start of a body is, where its client says so.
pub(super) fn json_length(headers: &HeaderMap) -> HttpResult<Option<usize>> {
    let Some(value) = headers.get(JSON_LENGTH) else {
        return Ok(None);
    };
    let len = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    len.map(Some).ok_or_else(|| {
        Error::invalid(format!(
            "Inference-Header-Content-Length is {value:?}, expected a number of bytes"
        ))
        .into()
    })
}

fn not_compressed(error: std::io::Error) -> HttpFailure {
    let message = format!("the body is not compressed as its Content-Encoding says: {error}");
    HttpFailure::new(StatusCode::BAD_REQUEST, message)
}
