//! Inference: reads a request, has it answered, and makes the response.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tessera_core::{Error, Result, Tensor};
use tessera_dispatch::{InferenceRequest, Refusal};

use super::call::GrpcCall;
use super::convert::{read_parameters, write_parameter};
use super::generated::model_infer_request::InferInputTensor;
use super::generated::model_infer_response::InferOutputTensor;
use super::generated::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use super::typed::typed_input;
use crate::byte_budget::ByteLease;
use crate::front_end::FrontEnd;
use crate::protocol::{
    InputHeader, ParameterValue, RequestedOutput, SelectedOutput, bytes_to_classify,
    check_unique_names, datatype_name, raw_bytes, response_parameters, select_outputs,
};

/// Answers a request; the lease is for what it takes beside its message.
pub(super) async fn run_inference(
    front: &FrontEnd,
    request: ModelInferRequest,
    call: GrpcCall,
    lease: &mut ByteLease,
) -> Result<ModelInferResponse, Refusal> {
    let task = front.find_task(&request.model_name, &request.model_version)?;
    let parameters = read_parameters(request.parameters);
    parameters.refuse_sequences()?;
    let mut requested = request
        .outputs
        .into_iter()
        .map(|output| RequestedOutput::new(output.name, &read_parameters(output.parameters)))
        .collect::<Result<Vec<_>>>()?;
    front.check_requested(&task, &requested)?;
    front.open_places(&mut requested)?;
    let timeout = earlier_timeout(parameters.timeout()?, call.timeout);
    let inputs = read_inputs(front, request.inputs, request.raw_input_contents, lease).await?;
    let answer = front
        .service
        .infer(InferenceRequest {
            task: request.model_name,
            version: request.model_version,
            id: request.id.clone(),
            inputs: front.fit_inputs(&task, &request.id, inputs)?,
            timeout,
            trace: call.trace,
        })
        .await?;
    let parameters = response_parameters(&answer);
    let sorted = bytes_to_classify(&answer.outputs, &requested);
    let select = || select_outputs(answer.outputs, requested, &task);
    let outputs = front.long_work.run(sorted, select).await?;
    let mut response = ModelInferResponse {
        model_name: task.name,
        model_version: task.version,
        id: request.id,
        parameters: parameters
            .into_iter()
            .map(|(name, value)| (name.into(), write_parameter(value)))
            .collect(),
        ..ModelInferResponse::default()
    };
    for output in &outputs {
        let is_copied = output.requested.place.is_some();
        let copied = if is_copied { output.tensor.byte_len() } else { 0 };
        let written = front.long_work.run(copied, || write_output(output)).await;
        let (header, bytes) = written.map_err(|error| {
            error.with_context(format_args!("output \"{}\"", output.requested.name))
        })?;
        response.outputs.push(header);
        response.raw_output_contents.push(bytes);
    }
    Ok(response)
}

/// Answers a request of a stream, where an error is a message and not the end.
pub(super) async fn infer_in_stream(
    front: &FrontEnd,
    request: ModelInferRequest,
    call: GrpcCall,
    lease: &mut ByteLease,
) -> ModelStreamInferResponse {
    let refused = ModelInferResponse {
        model_name: request.model_name.clone(),
        model_version: request.model_version.clone(),
        id: request.id.clone(),
        ..ModelInferResponse::default()
    };
    let (mut response, error_message) = match run_inference(front, request, call, lease).await {
        Ok(response) => (response, String::new()),
        // The client tells by the id which of its requests failed.
        Err(refusal) => (refused, refusal.error.to_string()),
    };
    let last = write_parameter(ParameterValue::Bool(true));
    response.parameters.insert("triton_final_response".into(), last);
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}

/// Reads the tensors of a request: raw ones in their order, or typed contents, or shared memory.
async fn read_inputs(
    front: &FrontEnd,
    inputs: Vec<InferInputTensor>,
    raw: Vec<Bytes>,
    lease: &mut ByteLease,
) -> Result<Vec<(String, Tensor)>> {
    check_unique_names(inputs.iter().map(|input| input.name.as_str()))?;
    let has_raw = !raw.is_empty();
    let count = raw.len();
    let mut raw = raw.into_iter();
    let mut tensors = Vec::with_capacity(inputs.len());
    for input in inputs {
        let header = InputHeader::new(input.name, &input.datatype, &input.shape)?;
        let range = read_parameters(input.parameters)
            .region_range()
            .map_err(|error| header.within_input(error))?;
        let tensor = match (range, input.contents) {
            (Some(range), None) => front.read_shared(&header, &range, lease).await?,
            (Some(_), Some(_)) => {
                let error = Error::invalid("has contents and shared memory, expected one of them");
                return Err(header.within_input(error));
            }
            (None, Some(_)) if has_raw => {
                let error =
                    Error::invalid("has contents beside raw_input_contents, expected one of them");
                return Err(header.within_input(error));
            }
            (None, contents) => {
                let service = front.service.as_ref();
                let tensor = match raw.next() {
                    Some(bytes) => {
                        let read = || header.tensor_from_bytes(service, &bytes);
                        front.long_work.run(bytes.len(), read).await
                    }
                    None if has_raw => Err(Error::invalid(format!(
                        "has no data: raw_input_contents has {count} tensors, expected one for \
                         each input that is not in shared memory"
                    ))),
                    None => {
                        let contents = contents.unwrap_or_default();
                        let read = || typed_input(service, &header, &contents);
                        front.long_work.run(contents.encoded_len(), read).await
                    }
                };
                tensor.map_err(|error| header.within_input(error))?
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
fn write_output(output: &SelectedOutput) -> Result<(InferOutputTensor, Bytes)> {
    let tensor = &output.tensor;
    let mut header = InferOutputTensor {
        name: output.requested.name.clone(),
        datatype: datatype_name(tensor.dtype())?.to_owned(),
        shape: tensor.shape().iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect(),
        ..InferOutputTensor::default()
    };
    let Some(place) = &output.requested.place else {
        return Ok((header, raw_bytes(tensor)?));
    };
    let len = place.write_output(tensor)?;
    let range = place.range();
    let mut add_parameter = |name: &str, value: ParameterValue| {
        header.parameters.insert(name.to_owned(), write_parameter(value));
    };
    add_parameter("shared_memory_region", ParameterValue::String(range.region.clone()));
    add_parameter("shared_memory_byte_size", ParameterValue::Integer(len as i128));
    if range.offset > 0 {
        add_parameter("shared_memory_offset", ParameterValue::Integer(range.offset.into()));
    }
    Ok((header, Bytes::new()))
}

/// The earlier of two ends.
fn earlier_timeout(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    [a, b].into_iter().flatten().min()
}
