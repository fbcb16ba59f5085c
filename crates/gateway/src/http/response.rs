//! Sends an answer: JSON, and after it the outputs that were asked for as bytes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use serde::Serialize;
use serde_json::{Map, Value};
use tessera_core::{Error, ErrorKind, Result};
use tessera_http::JSON_MEDIA_TYPE;

use super::body::JSON_LENGTH;
use super::data::JsonData;
use super::failure::HttpResult;
use crate::encoding::ContentEncoding;
use crate::long_work::LongWork;
use crate::protocol::{ParameterValue, SelectedOutput, datatype_name, raw_bytes};
use crate::service::TaskInfo;

/// Bodies up to here are compressed where they are; larger ones would hold up other requests.
const COMPRESSED_AT_ONCE: usize = 64 << 10;

#[derive(Serialize)]
struct InferResponseBody<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    parameters: Map<String, Value>,
    outputs: Vec<ResponseOutputBody<'a>>,
}

#[derive(Serialize)]
struct ResponseOutputBody<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Map::is_empty")]
    parameters: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<JsonData<'a>>,
}

/// Sends the outputs of a task; `binary` says how those go that the client said nothing of.
pub(super) async fn send_response(
    long_work: &LongWork,
    task: &TaskInfo,
    id: &str,
    parameters: Vec<(&'static str, ParameterValue)>,
    outputs: &[SelectedOutput],
    binary: bool,
    encoding: Option<ContentEncoding>,
) -> HttpResult<Response> {
    let mut tensors = Vec::new();
    let copied = outputs.iter().filter(|output| output.requested.place.is_some());
    let copied = copied.map(|output| output.tensor.byte_len()).sum();
    let write_bodies = || -> Result<Vec<_>> {
        let bodies = outputs.iter().map(|output| {
            output_body(output, binary, &mut tensors).map_err(|error| {
                error.with_context(format_args!("output \"{}\"", output.requested.name))
            })
        });
        bodies.collect()
    };
    let outputs = long_work.run(copied, write_bodies).await?;
    let body = InferResponseBody {
        id,
        model_name: &task.name,
        model_version: &task.version,
        parameters: parameters
            .into_iter()
            .map(|(name, value)| (name.to_owned(), parameter_json(value)))
            .collect(),
        outputs,
    };
    let in_json = body.outputs.iter().filter(|output| output.data.is_some());
    let elements: usize = in_json.map(|output| output.shape.iter().product::<usize>()).sum();
    let written = long_work.run(elements.saturating_mul(8), || serde_json::to_vec(&body)).await;
    let header = written
        .map_err(|error| Error::engine(format!("the answer could not be written: {error}")))?;
    let json_len = (!tensors.is_empty()).then_some(header.len());
    let mut parts = vec![Bytes::from(header)];
    parts.append(&mut tensors);

    let mut response = match encoding {
        None => Response::new(Body::new(ResponseParts(parts.into()))),
        Some(encoding) => {
            let mut response = Response::new(Body::from(compress_body(encoding, parts).await?));
            let name = HeaderValue::from_static(encoding.name());
            response.headers_mut().insert(CONTENT_ENCODING, name);
            response
        }
    };
    let headers = response.headers_mut();
    match json_len {
        None => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON_MEDIA_TYPE));
        }
        Some(len) => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(JSON_LENGTH, HeaderValue::from(len));
        }
    }
    Ok(response)
}

/// What the JSON says of an output, whose bytes go into it, after it or into shared memory.
fn output_body<'a>(
    output: &'a SelectedOutput,
    binary: bool,
    tensors: &mut Vec<Bytes>,
) -> Result<ResponseOutputBody<'a>> {
    let tensor = &output.tensor;
    let mut parameters = Map::new();
    let mut data = None;
    if let Some(place) = &output.requested.place {
        // No parameters: Triton's client for C++, and with it perf_analyzer, takes an output that
        // has some for one with binary data.
        place.write_output(tensor)?;
    } else if output.requested.binary.unwrap_or(binary) {
        let bytes = raw_bytes(tensor)?;
        parameters.insert("binary_data_size".into(), bytes.len().into());
        tensors.push(bytes);
    } else {
        data = Some(JsonData::new(tensor)?);
    }
    Ok(ResponseOutputBody {
        name: &output.requested.name,
        datatype: datatype_name(tensor.dtype())?,
        shape: tensor.shape(),
        parameters,
        data,
    })
}

fn parameter_json(parameter: ParameterValue) -> Value {
    match parameter {
        ParameterValue::Bool(flag) => flag.into(),
        ParameterValue::Integer(integer) => {
            i64::try_from(integer).map_or_else(|_| integer.to_string().into(), Value::from)
        }
        ParameterValue::Float(number) => number.into(),
        ParameterValue::String(text) => text.into(),
        ParameterValue::Other => Value::Null,
    }
}

/// Compresses a body, off the threads that serve connections where it takes long.
async fn compress_body(encoding: ContentEncoding, parts: Vec<Bytes>) -> Result<Vec<u8>> {
    let len: usize = parts.iter().map(Bytes::len).sum();
    let compressed = if len <= COMPRESSED_AT_ONCE {
        encoding.compress_parts(&parts)
    } else {
        tokio::task::spawn_blocking(move || encoding.compress_parts(&parts))
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
    };
    compressed.map_err(|error| Error::new(ErrorKind::Io, format!("compress the answer: {error}")))
}

/// A body of several parts, none of which is copied.
struct ResponseParts(VecDeque<Bytes>);

impl http_body::Body for ResponseParts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}
