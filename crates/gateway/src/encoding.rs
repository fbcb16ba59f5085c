//! Compressed bodies: gzip, and what HTTP calls deflate, which is zlib.

use std::io::{self, Write};

use axum::http::HeaderMap;
use axum::http::header::ACCEPT_ENCODING;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder, ZlibDecoder, ZlibEncoder};

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentEncoding {
    Gzip,
    Deflate,
}

impl ContentEncoding {
    /// The encoding with this name in a header.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            _ => None,
        }
    }

    /// Its name in a header.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// What a client wants its response in: of the encodings that we have the one that it likes
    /// best, gzip where it likes both, `None` where it likes its response as it is.
    pub(crate) fn from_accept_encoding(headers: &HeaderMap) -> Option<Self> {
        let mut best: Option<(Self, f32)> = None;
        for value in headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok())
        {
            for item in value.split(',') {
                let (name, quality) = item.split_once(';').unwrap_or((item, "q=1"));
                let Some(encoding) = Self::from_name(name) else { continue };
                let quality = quality.trim().strip_prefix("q=");
                let quality = quality.and_then(|q| q.parse::<f32>().ok()).unwrap_or(1.0);
                let better = best.is_none_or(|(known, so_far)| {
                    quality > so_far || (quality == so_far && known == Self::Deflate)
                });
                if quality > 0.0 && better {
                    best = Some((encoding, quality));
                }
            }
        }
        best.map(|(encoding, _)| encoding)
    }

    /// Compresses the parts of a body into one. Fast rather than small: tensors hardly compress.
    pub(crate) fn compress_parts(self, parts: &[Bytes]) -> io::Result<Vec<u8>> {
        fn write_parts<W: Write>(mut encoder: W, parts: &[Bytes]) -> io::Result<W> {
            for part in parts {
                encoder.write_all(part)?;
            }
            Ok(encoder)
        }
        match self {
            Self::Gzip => {
                write_parts(GzEncoder::new(Vec::new(), Compression::fast()), parts)?.finish()
            }
            Self::Deflate => {
                write_parts(ZlibEncoder::new(Vec::new(), Compression::fast()), parts)?.finish()
            }
        }
    }
}

/// Decompresses a body piece by piece.
pub(crate) enum BodyDecoder {
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Deflate(Box<ZlibDecoder<Vec<u8>>>),
}

impl BodyDecoder {
    pub(crate) fn new(encoding: ContentEncoding) -> Self {
        match encoding {
            ContentEncoding::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
            ContentEncoding::Deflate => Self::Deflate(Box::new(ZlibDecoder::new(Vec::new()))),
        }
    }

    /// What the next compressed bytes become; some of it may come with a later piece.
    pub(crate) fn decode_piece(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        let decoded = match self {
            Self::Gzip(decoder) => {
                decoder.write_all(piece)?;
                std::mem::take(decoder.get_mut())
            }
            Self::Deflate(decoder) => {
                decoder.write_all(piece)?;
                std::mem::take(decoder.get_mut())
            }
        };
        Ok(decoded.into())
    }

    /// What was still missing when the last piece has come.
    pub(crate) fn decode_rest(&mut self) -> io::Result<Bytes> {
        let decoded = match self {
            Self::Gzip(decoder) => {
                decoder.try_finish()?;
                std::mem::take(decoder.get_mut())
            }
            Self::Deflate(decoder) => {
                decoder.try_finish()?;
                std::mem::take(decoder.get_mut())
            }
        };
        Ok(decoded.into())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn accepted(value: &'static str) -> Option<ContentEncoding> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
        ContentEncoding::from_accept_encoding(&headers)
    }

    #[test]
    fn the_encoding_that_the_client_likes_best_is_taken() {
        assert_eq!(accepted("gzip, deflate, br"), Some(ContentEncoding::Gzip));
        assert_eq!(accepted("deflate, gzip"), Some(ContentEncoding::Gzip));
        assert_eq!(accepted("deflate"), Some(ContentEncoding::Deflate));
        assert_eq!(accepted("gzip;q=0.1, deflate;q=0.9"), Some(ContentEncoding::Deflate));
        assert_eq!(accepted("gzip;q=0, br"), None);
        assert_eq!(accepted("identity"), None);
        assert_eq!(ContentEncoding::from_accept_encoding(&HeaderMap::new()), None);
    }

    #[test]
    fn what_was_compressed_comes_back_piece_by_piece() {
        let body: Vec<u8> = (0..100_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        for encoding in [ContentEncoding::Gzip, ContentEncoding::Deflate] {
            let parts = [Bytes::copy_from_slice(&body[..10]), Bytes::copy_from_slice(&body[10..])];
            let compressed = encoding.compress_parts(&parts).unwrap();
            let mut decoder = BodyDecoder::new(encoding);
            let mut decoded = Vec::new();
            for piece in compressed.chunks(1000) {
                decoded.extend_from_slice(&decoder.decode_piece(piece).unwrap());
            }
            decoded.extend_from_slice(&decoder.decode_rest().unwrap());
            assert!(decoded == body, "{encoding:?}");
        }
    }

    #[test]
    fn what_is_not_compressed_is_refused() {
        for encoding in [ContentEncoding::Gzip, ContentEncoding::Deflate] {
            assert!(
                BodyDecoder::new(encoding).decode_piece(b"{\"inputs\": []}").is_err(),
                "{encoding:?}"
            );
        }
    }
}
