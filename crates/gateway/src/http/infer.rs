//! Inference: reads a request, has it answered, and sends the answer.

use axum::extract::{Request as HttpRequest, State};
use axum::http::HeaderMap;
use axum::response::Response;
use tessera_core::{DType, Error, Tensor};
use tessera_tensormq::TraceContext;

use super::FrontEndState;
use super::answer::respond;
use super::body::BodyReader;
use super::data::{quote_non_finite, read_json};
use super::encoding::Encoding;
use super::failure::{Failure, Outcome};
use super::infer_request::{Content, InferRequest, RequestBody};
use super::raw_request::raw_input;
use super::target::Target;
use crate::front_end::FrontEnd;
use crate::protocol::{
    InputHeader, Parameters, answer_parameters, check_wanted, parse_traceparent, pick, writable,
};
use crate::service::{Request, TaskInfo};

/// Where the JSON ends and binary tensors begin, in requests and in responses.
pub(super) const JSON_LENGTH: &str = "inference-header-content-length";

/// Answers a request for inference.
pub(super) async fn infer(
    State(front): FrontEndState,
    target: Target,
    request: HttpRequest,
) -> Outcome<Response> {
    let (parts, body) = request.into_parts();
    let mut reader = BodyReader::new(body, &parts.headers, front.options.largest_body)?;
    let outcome = answer(&front, target, &parts.headers, &mut reader).await;
    if outcome.is_err() {
        reader.discard().await;
    }
    outcome
}

async fn answer(
    front: &FrontEnd,
    target: Target,
    headers: &HeaderMap,
    reader: &mut BodyReader,
) -> Outcome<Response> {
    let task = front.service.task(&target.name, &target.version)?;
    let json_len = json_length(headers)?;
    if json_len == Some(0) {
        let input = raw_input(front.service.as_ref(), &task, reader.rest().await?)?;
        let request = InferRequest {
            id: String::new(),
            parameters: Parameters::default(),
            inputs: Vec::new(),
            wanted: Vec::new(),
        };
        return run(front, headers, &task, target, request, vec![input], true).await;
    }
    let json = match json_len {
        None => reader.rest().await?,
        Some(len) => {
            let json = reader.take(len).await?;
            if json.len() < len {
                return Err(Error::invalid(format!(
                    "Inference-Header-Content-Length is {len}, the body has {} bytes",
                    json.len()
                ))
                .into());
            }
            json
        }
    };
    // Numbers that are none are rare: looked for only where the JSON can't be read as it is.
    let quoted;
    let body = match RequestBody::parse(&json, json_len.is_some()) {
        Ok(body) => body,
        Err(error) => match quote_non_finite(&json) {
            Some(text) => {
                quoted = text;
                RequestBody::parse(&quoted, json_len.is_some())?
            }
            None => return Err(error.into()),
        },
    };
    let id = body.id().to_owned();
    let checked = async {
        let mut request = body.check()?;
        check_wanted(&request.wanted, &task)?;
        let binary = request.parameters.flag("binary_data_output")?.unwrap_or(false);
        let inputs = read_inputs(front, reader, std::mem::take(&mut request.inputs)).await?;
        run(front, headers, &task, target, request, inputs, binary).await
    };
    checked.await.map_err(|failure: Failure| failure.with_id(&id))
}

/// Reads the tensors of a request: binary ones from the body, in their order.
async fn read_inputs(
    front: &FrontEnd,
    reader: &mut BodyReader,
    announced: Vec<(InputHeader, Content<'_>)>,
) -> Outcome<Vec<(String, Tensor)>> {
    check_length(front, reader, &announced)?;
    let mut inputs = Vec::with_capacity(announced.len());
    for (header, content) in announced {
        let tensor = match content {
            Content::Json(data) => read_json(front.service.as_ref(), &header, data)?,
            Content::Binary(len) => read_binary(front, reader, &header, len).await?,
            Content::Shared(place) => front.read_shared(&header, &place)?,
        };
        inputs.push((header.name, tensor));
    }
    if !reader.is_done().await? {
        return Err(Error::invalid("the body has more bytes than its inputs").into());
    }
    Ok(inputs)
}

/// Compares what the inputs announce with what is there, before any memory is taken for them.
fn check_length(
    front: &FrontEnd,
    reader: &BodyReader,
    announced: &[(InputHeader, Content<'_>)],
) -> Outcome<()> {
    let lens = announced.iter().map(|(_, content)| match content {
        Content::Binary(len) => *len,
        _ => 0,
    });
    let len = lens.fold(0usize, usize::saturating_add);
    if let Some(remaining) = reader.remaining().filter(|&remaining| remaining != len as u64) {
        return Err(Error::invalid(format!(
            "the binary inputs have {len} bytes, the body has {remaining} after its JSON"
        ))
        .into());
    }
    if len > front.options.largest_body {
        return Err(Failure::too_large(front.options.largest_body));
    }
    Ok(())
}

/// Copies a binary tensor from the body into the service's memory, as its bytes come.
async fn read_binary(
    front: &FrontEnd,
    reader: &mut BodyReader,
    header: &InputHeader,
    len: usize,
) -> Outcome<Tensor> {
    let service = front.service.as_ref();
    let cut = |got: usize| {
        header.blame(Error::invalid(format!("the body ends after {got} of its {len} bytes")))
    };
    if header.dtype == DType::String {
        let bytes = reader.take(len).await?;
        if bytes.len() < len {
            return Err(cut(bytes.len()).into());
        }
        return Ok(header.with_bytes(service, &bytes).map_err(|error| header.blame(error))?);
    }
    let mut tensor = header.memory(service).map_err(|error| header.blame(error))?;
    let got = reader.fill(writable(&mut tensor)?).await?;
    if got < len {
        return Err(cut(got).into());
    }
    Ok(tensor.freeze())
}

/// Has a request answered whose inputs are there.
async fn run(
    front: &FrontEnd,
    headers: &HeaderMap,
    task: &TaskInfo,
    target: Target,
    request: InferRequest<'_>,
    inputs: Vec<(String, Tensor)>,
    binary: bool,
) -> Outcome<Response> {
    let InferRequest { id, parameters, wanted, .. } = request;
    let asked = Request {
        task: target.name,
        version: target.version,
        id: id.clone(),
        inputs,
        timeout: parameters.timeout()?,
        trace: trace(headers),
    };
    let answer = front.service.infer(asked).await?;
    let told = answer_parameters(&answer);
    let outputs = pick(answer.outputs, wanted, task)?;
    respond(front, task, &id, told, &outputs, binary, Encoding::accepted(headers)).await
}

fn json_length(headers: &HeaderMap) -> Outcome<Option<usize>> {
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

fn trace(headers: &HeaderMap) -> Option<TraceContext> {
    parse_traceparent(headers.get("traceparent")?.to_str().ok()?)
}
