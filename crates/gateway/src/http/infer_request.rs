//! The JSON of a request for inference, read and checked.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};
use tessera_core::{Error, Result};

use crate::protocol::{
    InputHeader, ParameterValue, ProtocolParameters, RegionRange, RequestedOutput,
    check_unique_names,
};

/// A request as it is written.
#[derive(Debug, Deserialize)]
pub(super) struct InferRequestBody<'a> {
    id: Option<String>,
    parameters: Option<Map<String, Value>>,
    #[serde(borrow)]
    inputs: Option<Vec<RequestInputBody<'a>>>,
    outputs: Option<Vec<RequestOutputBody>>,
}

#[derive(Debug, Deserialize)]
struct RequestInputBody<'a> {
    name: Option<String>,
    datatype: Option<String>,
    shape: Option<Vec<Number>>,
    parameters: Option<Map<String, Value>>,
    /// Left as text until dtype and shape are known, which may be written after it.
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct RequestOutputBody {
    name: Option<String>,
    parameters: Option<Map<String, Value>>,
}

/// A request that makes sense, as far as it was read.
pub(super) struct CheckedInferRequest<'a> {
    pub(super) id: String,
    pub(super) parameters: ProtocolParameters,
    pub(super) inputs: Vec<(InputHeader, InputContent<'a>)>,
    pub(super) requested: Vec<RequestedOutput>,
}

/// Where the data of an input is.
pub(super) enum InputContent<'a> {
    /// In the JSON.
    Json(&'a RawValue),
    /// After the JSON, with as many bytes.
    Binary(usize),
    /// In shared memory.
    Shared(RegionRange),
}

impl<'a> InferRequestBody<'a> {
    /// Reads the JSON. `has_length` says whether the client told where it ends.
    pub(super) fn parse_json(json: &'a [u8], has_length: bool) -> Result<Self> {
        serde_json::from_slice(json).map_err(|error| {
            let hint = if has_length {
                ""
            } else {
                "; binary tensors after the JSON need the header Inference-Header-Content-Length"
            };
            Error::invalid(format!("the request is not the JSON of an inference: {error}{hint}"))
        })
    }

    /// The client's name for the request; empty where it gave none.
    pub(super) fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    /// Checks what was read.
    pub(super) fn into_request(self) -> Result<CheckedInferRequest<'a>> {
        let parameters = read_parameters(self.parameters);
        parameters.refuse_sequences()?;
        let inputs = self.inputs.ok_or_else(|| Error::invalid("the request has no \"inputs\""))?;
        let inputs: Vec<_> = inputs
            .into_iter()
            .enumerate()
            .map(|(index, input)| input.into_input(index))
            .collect::<Result<_>>()?;
        check_unique_names(inputs.iter().map(|(header, _)| header.name.as_str()))?;
        let requested = self.outputs.unwrap_or_default().into_iter().enumerate();
        let requested =
            requested.map(|(index, output)| output.into_output(index)).collect::<Result<_>>()?;
        Ok(CheckedInferRequest { id: self.id.unwrap_or_default(), parameters, inputs, requested })
    }
}

impl<'a> RequestInputBody<'a> {
    fn into_input(self, index: usize) -> Result<(InputHeader, InputContent<'a>)> {
        let name = self
            .name
            .ok_or_else(|| Error::invalid(format!("input {index} of the request has no name")))?;
        let missing = |what: &str| Error::invalid(format!("input \"{name}\" has no {what}"));
        let datatype = self.datatype.ok_or_else(|| missing("datatype"))?;
        let shape = self.shape.ok_or_else(|| missing("shape"))?;
        let sizes = shape
            .iter()
            .map(|size| {
                size.as_i64().ok_or_else(|| {
                    Error::invalid(format!(
                        "input \"{name}\": shape has the size {size}, expected an integer of 0 \
                         or more"
                    ))
                })
            })
            .collect::<Result<Vec<i64>>>()?;
        let header = InputHeader::new(name, &datatype, &sizes)?;
        let content = locate_content(&header, &read_parameters(self.parameters), self.data)
            .map_err(|error| header.within_input(error))?;
        Ok((header, content))
    }
}

impl RequestOutputBody {
    fn into_output(self, index: usize) -> Result<RequestedOutput> {
        let name = self
            .name
            .ok_or_else(|| Error::invalid(format!("output {index} of the request has no name")))?;
        RequestedOutput::new(name, &read_parameters(self.parameters))
    }
}

/// Where the data of an input is, which must be exactly one place.
fn locate_content<'a>(
    header: &InputHeader,
    parameters: &ProtocolParameters,
    data: Option<&'a RawValue>,
) -> Result<InputContent<'a>> {
    let binary = parameters.get_size("binary_data_size")?;
    match (data, binary, parameters.region_range()?) {
        (Some(data), None, None) => Ok(InputContent::Json(data)),
        (None, Some(size), None) => {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            header.check_bytes(size)?;
            Ok(InputContent::Binary(size))
        }
        (None, None, Some(range)) => Ok(InputContent::Shared(range)),
        (None, None, None) => Err(Error::invalid(
            "has no data, expected one of \"data\", \"binary_data_size\" and \
             \"shared_memory_region\"",
        )),
        _ => Err(Error::invalid(
            "has its data in more than one place, expected one of \"data\", \
             \"binary_data_size\" and \"shared_memory_region\"",
        )),
    }
}

/// Parameters as JSON has them; those that are null are not there.
pub(super) fn read_parameters(map: Option<Map<String, Value>>) -> ProtocolParameters {
    map.unwrap_or_default()
        .into_iter()
        .filter_map(|(name, value)| {
            let parameter = match value {
                Value::Null => return None,
                Value::Bool(flag) => ParameterValue::Bool(flag),
                Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                    (Some(integer), _) => ParameterValue::Integer(integer.into()),
                    (None, Some(integer)) => ParameterValue::Integer(integer.into()),
                    (None, None) => ParameterValue::Float(number.as_f64().unwrap_or(f64::NAN)),
                },
                Value::String(text) => ParameterValue::String(text),
                Value::Array(_) | Value::Object(_) => ParameterValue::Other,
            };
            Some((name, parameter))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &str) -> String {
        let checked = InferRequestBody::parse_json(json.as_bytes(), false)
            .and_then(InferRequestBody::into_request);
        checked.err().unwrap().to_string()
    }

    #[test]
    fn a_request_may_leave_out_or_nullify_what_is_optional() {
        let json = r#"{"id": null, "parameters": null, "outputs": null, "model_name": "t",
            "inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [1],
                        "parameters": {"binary_data_size": null, "mine": [1]}}]}"#;
        let request =
            InferRequestBody::parse_json(json.as_bytes(), false).unwrap().into_request().unwrap();
        assert_eq!(request.id, "");
        assert!(matches!(request.inputs[0].1, InputContent::Json(_)));
        assert!(request.requested.is_empty());
    }

    #[test]
    fn what_is_not_json_is_refused_with_its_position() {
        assert!(refusal("{\"inputs\": [}").contains("line 1 column 13"));
        assert!(refusal("").contains("EOF"));
        assert!(refusal("[]").contains("line 1"));
    }

    #[test]
    fn each_part_that_is_missing_is_named() {
        assert_eq!(refusal("{}"), "the request has no \"inputs\"");
        for (input, expected) in [
            ("{}", "input 0 of the request has no name"),
            (r#"{"name": "x", "shape": [1]}"#, "input \"x\" has no datatype"),
            (r#"{"name": "x", "datatype": "INT8"}"#, "input \"x\" has no shape"),
            (r#"{"name": "x", "datatype": "INT8", "shape": [1.5]}"#, "the size 1.5"),
            (r#"{"name": "x", "datatype": "INT8", "shape": [1]}"#, "has no data"),
            (
                r#"{"name": "x", "datatype": "INT8", "shape": [1], "data": [1],
                    "parameters": {"binary_data_size": 1}}"#,
                "more than one place",
            ),
            (
                r#"{"name": "x", "datatype": "INT8", "shape": [3],
                    "parameters": {"binary_data_size": 2}}"#,
                "i8[3] needs 3 bytes, got 2",
            ),
        ] {
            let error = refusal(&format!("{{\"inputs\": [{input}]}}"));
            assert!(error.contains(expected), "{input}: {error}");
        }
    }
}
