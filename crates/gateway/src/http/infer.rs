//! Inference: reads a request, has it answered, and sends the answer.

use axum::body::HttpBody;
use axum::extract::{Request as HttpRequest, State};
use axum::http::HeaderMap;
use axum::response::Response;
use tessera_core::{DType, Error, Tensor};
use tessera_dispatch::InferenceRequest;
use tessera_tensormq::TraceContext;

use super::FrontEndState;
use super::body::{BodyReader, json_length};
use super::data::{quote_non_finite, read_json};
use super::failure::{HttpFailure, HttpResult};
use super::infer_request::{CheckedInferRequest, InferRequestBody, InputContent};
use super::path_target::PathTarget;
use super::raw_request::raw_input;
use super::response::send_response;
use crate::byte_budget::{AnswerLease, ConnectionBytes};
use crate::encoding::ContentEncoding;
use crate::front_end::FrontEnd;
use crate::protocol::{
    InputHeader, ProtocolParameters, bytes_to_classify, parse_traceparent, response_parameters,
    select_outputs, writable_bytes,
};
use crate::service::TaskInfo;

/// Tensors of up to so many bytes get their memory before they are there.
const ALLOCATED_AT_ONCE: usize = 1 << 20;

/// Answers a request for inference.
pub(super) async fn infer_model(
    State(front): FrontEndState,
    target: PathTarget,
    request: HttpRequest,
) -> HttpResult<Response> {
    let (parts, body) = request.into_parts();
    let connection = parts.extensions.get::<ConnectionBytes>();
    let lease = front.options.budget.lease(connection);
    let mut reader = BodyReader::new(body, &parts.headers, front.options.largest_body, lease)?;
    let mut outcome = read_and_infer(&front, target, &parts.headers, &mut reader).await;
    if let Ok(response) = &mut outcome {
        let mut lease = front.options.budget.lease(connection);
        let bytes = response.body().size_hint().lower();
        lease.grow(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        response.extensions_mut().insert(AnswerLease::new(lease));
    }
    if outcome.is_err() {
        reader.discard_rest().await;
    }
    outcome
}

async fn read_and_infer(
    front: &FrontEnd,
    target: PathTarget,
    headers: &HeaderMap,
    reader: &mut BodyReader,
) -> HttpResult<Response> {
    let task = front.find_task(&target.name, &target.version)?;
    let json_len = json_length(headers)?;
    if json_len == Some(0) {
        let input = raw_input(front.service.as_ref(), &task, reader.read_rest().await?)?;
        let request = CheckedInferRequest {
            id: String::new(),
            parameters: ProtocolParameters::default(),
            inputs: Vec::new(),
            requested: Vec::new(),
        };
        return run_inference(front, headers, &task, target, request, vec![input], true).await;
    }
    let json = match json_len {
        None => reader.read_rest().await?,
        Some(len) => {
            let json = reader.read_bytes(len).await?;
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
    let parse = || InferRequestBody::parse_json(&json, json_len.is_some());
    let body = match front.long_work.run(json.len(), parse).await {
        Ok(body) => body,
        Err(error) => match front.long_work.run(json.len(), || quote_non_finite(&json)).await {
            Some(text) => {
                quoted = text;
                let parse = || InferRequestBody::parse_json(&quoted, json_len.is_some());
                front.long_work.run(json.len(), parse).await?
            }
            None => return Err(error.into()),
        },
    };
    let id = body.id().to_owned();
    let checked = async {
        let mut request = front.long_work.run(json.len(), || body.into_request()).await?;
        front.check_requested(&task, &request.requested)?;
        let binary = request.parameters.get_flag("binary_data_output")?.unwrap_or(false);
        let inputs = read_inputs(front, reader, std::mem::take(&mut request.inputs)).await?;
        run_inference(front, headers, &task, target, request, inputs, binary).await
    };
    checked.await.map_err(|failure: HttpFailure| failure.with_id(&id))
}

/// Reads the tensors of a request: binary ones from the body, in their order.
async fn read_inputs(
    front: &FrontEnd,
    reader: &mut BodyReader,
    announced: Vec<(InputHeader, InputContent<'_>)>,
) -> HttpResult<Vec<(String, Tensor)>> {
    check_length(front, reader, &announced)?;
    let mut inputs = Vec::with_capacity(announced.len());
    for (header, content) in announced {
        let tensor = match content {
            InputContent::Json(data) => {
                let read = || read_json(front.service.as_ref(), &header, data);
                front.long_work.run(data.get().len(), read).await?
            }
            InputContent::Binary(len) => read_binary(front, reader, &header, len).await?,
            InputContent::Shared(range) => {
                front.read_shared(&header, &range, reader.lease()).await?
            }
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
    announced: &[(InputHeader, InputContent<'_>)],
) -> HttpResult<()> {
    let lens = announced.iter().map(|(_, content)| match content {
        InputContent::Binary(len) => *len,
        _ => 0,
    });
    let len = lens.fold(0usize, usize::saturating_add);
    if let Some(remaining) = reader.remaining_bytes().filter(|&remaining| remaining != len as u64) {
        return Err(Error::invalid(format!(
            "the binary inputs have {len} bytes, the body has {remaining} after its JSON"
        ))
        .into());
    }
    if len > front.options.largest_body {
        return Err(HttpFailure::too_large(front.options.largest_body));
    }
    Ok(())
}

/// Copies a binary tensor from the body into the service's memory, as its bytes come.
async fn read_binary(
    front: &FrontEnd,
    reader: &mut BodyReader,
    header: &InputHeader,
    len: usize,
) -> HttpResult<Tensor> {
    let service = front.service.as_ref();
    let cut = |got: usize| {
        header.within_input(Error::invalid(format!("the body ends after {got} of its {len} bytes")))
    };
    if header.dtype == DType::String {
        let bytes = reader.read_bytes(len).await?;
        if bytes.len() < len {
            return Err(cut(bytes.len()).into());
        }
        return Ok(header
            .tensor_from_bytes(service, &bytes)
            .map_err(|error| header.within_input(error))?);
    }
    // The length is the client's word: a part of the bytes must be there before memory is set aside
    // for all of them.
    let wanted = if len > ALLOCATED_AT_ONCE { (len / 8).max(ALLOCATED_AT_ONCE) } else { 0 };
    let first = reader.read_bytes(wanted).await?;
    if first.len() < wanted {
        return Err(cut(first.len()).into());
    }
    reader.reserve_bytes(len - wanted)?;
    let mut tensor = header.allocate_tensor(service).map_err(|error| header.within_input(error))?;
    let (before, after) = writable_bytes(&mut tensor)?.split_at_mut(wanted);
    before.copy_from_slice(&first);
    drop(first);
    let got = wanted + reader.read_into(after).await?;
    if got < len {
        return Err(cut(got).into());
    }
    Ok(tensor.freeze())
}

/// Has a request answered whose inputs are there.
async fn run_inference(
    front: &FrontEnd,
    headers: &HeaderMap,
    task: &TaskInfo,
    target: PathTarget,
    request: CheckedInferRequest<'_>,
    inputs: Vec<(String, Tensor)>,
    binary: bool,
) -> HttpResult<Response> {
    let CheckedInferRequest { id, parameters, mut requested, .. } = request;
    front.open_places(&mut requested)?;
    let asked = InferenceRequest {
        task: target.name,
        version: target.version,
        id: id.clone(),
        inputs: front.fit_inputs(task, &id, inputs)?,
        timeout: parameters.timeout()?,
        trace: trace_context(headers),
    };
    let answer = front.service.infer(asked).await?;
    let parameters = response_parameters(&answer);
    let sorted = bytes_to_classify(&answer.outputs, &requested);
    let select = || select_outputs(answer.outputs, requested, task);
    let outputs = front.long_work.run(sorted, select).await?;
    send_response(
        &front.long_work,
        task,
        &id,
        parameters,
        &outputs,
        binary,
        ContentEncoding::from_accept_encoding(headers),
    )
    .await
}

fn trace_context(headers: &HeaderMap) -> Option<TraceContext> {
    parse_traceparent(headers.get("traceparent")?.to_str().ok()?)
}
