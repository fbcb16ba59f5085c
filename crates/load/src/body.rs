//! The body of a request, in binary or in JSON.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use tessera_core::{DType, Error, Result};

use crate::datatype;
use crate::inputs::{WorkloadInput, split_strings};

/// The body of a request, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InferenceBody {
    pub(crate) bytes: Bytes,
    /// Where the JSON ends and binary contents begin; `None` where all is JSON.
    pub(crate) header_length: Option<usize>,
}

#[derive(Serialize)]
struct InferenceRequestDocument<'a> {
    inputs: Vec<InferenceInputDocument<'a>>,
    #[serde(skip_serializing_if = "InferenceRequestParameters::is_empty")]
    parameters: InferenceRequestParameters,
}

#[derive(Serialize)]
struct InferenceInputDocument<'a> {
    name: &'a str,
    shape: &'a [usize],
    datatype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<JsonElements<'a>>,
}

#[derive(Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

#[derive(Serialize)]
struct InferenceRequestParameters {
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_data_output: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
}

impl InferenceRequestParameters {
    fn is_empty(&self) -> bool {
        self.binary_data_output.is_none() && self.timeout.is_none()
    }
}

/// Elements as JSON writes them: each in the shortest form of its own type.
#[derive(Serialize)]
#[serde(untagged)]
enum JsonElements<'a> {
    Float(Vec<f32>),
    Double(Vec<f64>),
    Signed(Vec<i64>),
    Unsigned(Vec<u64>),
    Boolean(Vec<bool>),
    Text(Vec<&'a str>),
}

/// JSON that describes the inputs, then their contents as they are; outputs are asked for in the
/// same form. `timeout` is passed on to the server.
pub(crate) fn binary_body(
    inputs: &[WorkloadInput],
    timeout: Option<Duration>,
) -> Result<InferenceBody> {
    let tensors = inputs.iter().map(|input| {
        let size = BinarySize { binary_data_size: input.data.len() };
        input_document(input, Some(size), None)
    });
    let parameters = InferenceRequestParameters {
        binary_data_output: Some(true),
        timeout: timeout.map(whole_microseconds),
    };
    let header = serialize_document(&InferenceRequestDocument {
        inputs: tensors.collect::<Result<_>>()?,
        parameters,
    })?;
    let length = header.len() + inputs.iter().map(|input| input.data.len()).sum::<usize>();
    let mut bytes = BytesMut::with_capacity(length);
    bytes.put_slice(&header);
    for input in inputs {
        bytes.put_slice(&input.data);
    }
    Ok(InferenceBody { bytes: bytes.freeze(), header_length: Some(header.len()) })
}

/// JSON alone, for servers without the extension for binary tensors.
pub(crate) fn json_body(
    inputs: &[WorkloadInput],
    timeout: Option<Duration>,
) -> Result<InferenceBody> {
    let tensors = inputs.iter().map(|input| {
        let data = json_elements(input)
            .map_err(|error| error.with_context(format!("input \"{}\"", input.name)))?;
        input_document(input, None, Some(data))
    });
    let parameters = InferenceRequestParameters {
        binary_data_output: None,
        timeout: timeout.map(whole_microseconds),
    };
    let bytes = serialize_document(&InferenceRequestDocument {
        inputs: tensors.collect::<Result<_>>()?,
        parameters,
    })?;
    Ok(InferenceBody { bytes: bytes.into(), header_length: None })
}

fn input_document<'a>(
    input: &'a WorkloadInput,
    parameters: Option<BinarySize>,
    data: Option<JsonElements<'a>>,
) -> Result<InferenceInputDocument<'a>> {
    let datatype = datatype::datatype_name(input.dtype)?;
    Ok(InferenceInputDocument {
        name: &input.name,
        shape: &input.shape,
        datatype,
        parameters,
        data,
    })
}

fn serialize_document(document: &InferenceRequestDocument<'_>) -> Result<Vec<u8>> {
    serde_json::to_vec(document).map_err(|error| Error::invalid(format!("request: {error}")))
}

fn whole_microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn json_elements(input: &WorkloadInput) -> Result<JsonElements<'_>> {
    // The elements of a little-endian type, each as `$as`.
    macro_rules! numbers {
        ($type:ty, $as:ty) => {{
            let (chunks, _) = input.data.as_chunks::<{ size_of::<$type>() }>();
            chunks.iter().map(|bytes| <$as>::from(<$type>::from_le_bytes(*bytes))).collect()
        }};
    }
    let elements = match input.dtype {
        DType::Bool => JsonElements::Boolean(input.data.iter().map(|&byte| byte != 0).collect()),
        DType::U8 => JsonElements::Unsigned(numbers!(u8, u64)),
        DType::U16 => JsonElements::Unsigned(numbers!(u16, u64)),
        DType::U32 => JsonElements::Unsigned(numbers!(u32, u64)),
        DType::U64 => JsonElements::Unsigned(numbers!(u64, u64)),
        DType::I8 => JsonElements::Signed(numbers!(i8, i64)),
        DType::I16 => JsonElements::Signed(numbers!(i16, i64)),
        DType::I32 => JsonElements::Signed(numbers!(i32, i64)),
        DType::I64 => JsonElements::Signed(numbers!(i64, i64)),
        DType::F32 => JsonElements::Float(numbers!(f32, f32)),
        DType::F64 => JsonElements::Double(numbers!(f64, f64)),
        DType::String => {
            let texts: Option<Vec<&str>> = split_strings(&input.data).and_then(|strings| {
                strings.into_iter().map(|string| std::str::from_utf8(string).ok()).collect()
            });
            JsonElements::Text(texts.ok_or_else(|| Error::unsupported("JSON carries UTF-8 only"))?)
        }
        other => return Err(Error::unsupported(format!("JSON carries no {other}, use binary"))),
    };
    let finite = match &elements {
        JsonElements::Float(values) => values.iter().all(|value| value.is_finite()),
        JsonElements::Double(values) => values.iter().all(|value| value.is_finite()),
        _ => true,
    };
    if !finite {
        return Err(Error::unsupported("JSON carries finite numbers only, use binary"));
    }
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str, dtype: DType, shape: &[usize], data: &[u8]) -> WorkloadInput {
        let data = Bytes::copy_from_slice(data);
        WorkloadInput { name: name.to_owned(), dtype, shape: shape.to_vec(), data }
    }

    fn two() -> [WorkloadInput; 2] {
        let floats: Vec<u8> = [0.1f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        [
            input("x", DType::F32, &[1, 2], &floats),
            input("s", DType::String, &[1], b"\x03\0\0\0a\"b"),
        ]
    }

    #[test]
    fn a_binary_body_is_json_and_then_the_contents_byte_for_byte() {
        let body = binary_body(&two(), None).unwrap();
        let header = br#"{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}},{"name":"s","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":7}}],"parameters":{"binary_data_output":true}}"#;
        let contents = b"\xcd\xcc\xcc\x3d\0\0\0\xc0\x03\0\0\0a\"b";
        assert_eq!(body.header_length, Some(header.len()));
        assert_eq!(body.bytes[..], [&header[..], &contents[..]].concat());
    }

    #[test]
    fn a_json_body_has_the_elements_in_their_shortest_form() {
        let body = json_body(&two(), Some(Duration::from_millis(50))).unwrap();
        let expected = br#"{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[0.1,-2.0]},{"name":"s","shape":[1],"datatype":"BYTES","data":["a\"b"]}],"parameters":{"timeout":50000}}"#;
        assert_eq!(body.header_length, None);
        assert_eq!(body.bytes[..], expected[..]);
    }

    #[test]
    fn integers_and_flags_are_json_numbers_and_booleans() {
        let body = json_body(
            &[
                input("i", DType::I8, &[2], &[0xff, 2]),
                input("u", DType::U16, &[1], &[0, 1]),
                input("b", DType::Bool, &[2], &[0, 1]),
            ],
            None,
        )
        .unwrap();
        let expected = br#"{"inputs":[{"name":"i","shape":[2],"datatype":"INT8","data":[-1,2]},{"name":"u","shape":[1],"datatype":"UINT16","data":[256]},{"name":"b","shape":[2],"datatype":"BOOL","data":[false,true]}]}"#;
        assert_eq!(body.bytes[..], expected[..]);
    }

    #[test]
    fn what_json_cannot_carry_is_refused() {
        assert!(json_body(&[input("h", DType::F16, &[1], &[0, 0])], None).is_err());
        assert!(json_body(&[input("s", DType::String, &[1], b"\x01\0\0\0\xff")], None).is_err());
        let nan = f32::NAN.to_le_bytes();
        assert!(json_body(&[input("x", DType::F32, &[1], &nan)], None).is_err());
    }
}
