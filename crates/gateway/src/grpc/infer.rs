//! Inference: reads a request, has it answered, and makes the response.

use std::time::Duration;

use bytes::Bytes;
use tessera_core::{Error, Result, Tensor};

use super::call::Call;
use super::convert::{parameter, parameters};
use super::generated::model_infer_request::InferInputTensor;
use super::generated::model_infer_response::InferOutputTensor;
use super::generated::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use super::typed::typed_input;
use crate::front_end::FrontEnd;
use crate::protocol::{
    InputHeader, Output, Parameter, Wanted, answer_parameters, check_names, check_wanted,
    datatype_name, pick, raw_bytes,
};
use crate::service::{Refusal, Request};

/// Answers a request.
pub(super) async fn infer(
    front: &FrontEnd,
    request: ModelInferRequest,
    call: Call,
) -> Result<ModelInferResponse, Refusal> {
    let task = front.service.task(&request.model_name, &request.model_version)?;
    let asked = parameters(request.parameters);
    asked.refuse_sequences()?;
    let wanted = request
        .outputs
        .into_iter()
        .map(|output| Wanted::new(output.name, &parameters(output.parameters)))
        .collect::<Result<Vec<_>>>()?;
    check_wanted(&wanted, &task)?;
    let timeout = earlier(asked.timeout()?, call.timeout);
    let inputs = read_inputs(front, request.inputs, request.raw_input_contents)?;
    let answer = front
        .service
        .infer(Request {
            task: request.model_name,
            version: request.model_version,
            id: request.id.clone(),
            inputs,
            timeout,
            trace: call.trace,
        })
        .await?;
    let told = answer_parameters(&answer);
    let outputs = pick(answer.outputs, wanted, &task)?;
    let mut response = ModelInferResponse {
        model_name: task.name,
        model_version: task.version,
        id: request.id,
        parameters: told.into_iter().map(|(name, value)| (name.into(), parameter(value))).collect(),
        ..ModelInferResponse::default()
    };
    for output in &outputs {
        let (told, bytes) = write_output(front, output)
            .map_err(|error| error.within(format_args!("output \"{}\"", output.wanted.name)))?;
        response.outputs.push(told);
        response.raw_output_contents.push(bytes);
    }
    Ok(response)
}

/// Answers a request of a stream, where an error is a message and not the end.
pub(super) async fn infer_in_stream(
    front: &FrontEnd,
    request: ModelInferRequest,
    call: Call,
) -> ModelStreamInferResponse {
    let refused = ModelInferResponse {
        model_name: request.model_name.clone(),
        model_version: request.model_version.clone(),
        id: request.id.clone(),
        ..ModelInferResponse::default()
    };
    let (mut response, error_message) = match infer(front, request, call).await {
        Ok(response) => (response, String::new()),
        // The client tells by the id which of its requests failed.
        Err(refusal) => (refused, refusal.error.to_string()),
    };
    let last = parameter(Parameter::Bool(true));
    response.parameters.insert("triton_final_response".into(), last);
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}

/// Reads the tensors of a request: raw ones in their order, or typed contents, or shared memory.
fn read_inputs(
    front: &FrontEnd,
    inputs: Vec<InferInputTensor>,
    raw: Vec<Bytes>,
) -> Result<Vec<(String, Tensor)>> {
    check_names(inputs.iter().map(|input| input.name.as_str()))?;
    let has_raw = !raw.is_empty();
    let count = raw.len();
    let mut raw = raw.into_iter();
    let mut tensors = Vec::with_capacity(inputs.len());
    for input in inputs {
        let header = InputHeader::new(input.name, &input.datatype, &input.shape)?;
        let place = parameters(input.parameters).place().map_err(|error| header.blame(error))?;
        let tensor = match (place, input.contents) {
            (Some(place), None) => front.read_shared(&header, &place)?,
            (Some(_), Some(_)) => {
                let error = Error::invalid("has contents and shared memory, expected one of them");
                return Err(header.blame(error));
            }
            (None, Some(_)) if has_raw => {
                let error =
                    Error::invalid("has contents beside raw_input_contents, expected one of them");
                return Err(header.blame(error));
            }
            (None, contents) => {
                let service = front.service.as_ref();
                let tensor = match raw.next() {
                    Some(bytes) => header.with_bytes(service, &bytes),
                    None if has_raw => Err(Error::invalid(format!(
                        "has no data: raw_input_contents has {count} tensors, expected one for \
                         each input that is not in shared memory"
                    ))),
                    None => typed_input(service, &header, &contents.unwrap_or_default()),
                };
                tensor.map_err(|error| header.blame(error))?
            }
        };
        tensors.push((header.name, tensor));
    }
    if raw.next().is_some() {
        return Err(Error::invalid(format!(
            "raw_input_contents has {count} tensors, expected one for each input that is not in \
             shared memory"
        )));
    }
    Ok(tensors)
}

/// What is told of an output, and its bytes: none where it was written to shared memory, so that
/// the number of an output is that of its bytes.
fn write_output(front: &FrontEnd, output: &Output) -> Result<(InferOutputTensor, Bytes)> {
    let tensor = &output.tensor;
    let mut told = InferOutputTensor {
        name: output.wanted.name.clone(),
        datatype: datatype_name(tensor.dtype())?.to_owned(),
        shape: tensor.shape().iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect(),
        ..InferOutputTensor::default()
    };
    let Some(place) = &output.wanted.place else {
        return Ok((told, raw_bytes(tensor)?));
    };
    let len = front.write_shared(place, tensor)?;
    let mut tell = |name: &str, value: Parameter| {
        told.parameters.insert(name.to_owned(), parameter(value));
    };
    tell("shared_memory_region", Parameter::String(place.region.clone()));
    tell("shared_memory_byte_size", Parameter::Integer(len as i128));
    if place.offset > 0 {
        tell("shared_memory_offset", Parameter::Integer(place.offset.into()));
    }
    Ok((told, Bytes::new()))
}

/// The earlier of two ends.
fn earlier(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    [a, b].into_iter().flatten().min()
}
