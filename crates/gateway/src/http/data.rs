//! The data of tensors as JSON, in and out.
//!
//! Values go from the text straight into the tensor's memory: a tree of JSON values would take
//! eight times the memory of the tensor.

use std::fmt::{self, Display};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;
use tessera_core::{DType, Error, Result, Tensor};

use crate::protocol::{InputHeader, datatype_name, is_json, writable_bytes};
use crate::service::InferenceService;

/// The tensor of an input whose data is JSON: an array of values, flat or nested.
pub(super) fn read_json(
    service: &dyn InferenceService,
    header: &InputHeader,
    data: &RawValue,
) -> Result<Tensor> {
    let read = || {
        let name = datatype_name(header.dtype)?;
        if !is_json(header.dtype) {
            return Err(Error::invalid(format!("{name} can't be sent as JSON, send it as binary")));
        }
        if !data.get().starts_with('[') {
            return Err(Error::invalid("data is no array"));
        }
        if header.dtype == DType::String {
            let mut strings = Vec::new();
            fill_values(header, data, ValueTarget::Strings(&mut strings))?;
            return Tensor::from_strings(&header.shape, strings);
        }
        // Every value takes a character: a shape with more than that is wrong, and must not make
        // us allocate for it.
        if header.element_count() > data.get().len() {
            fill_values(header, data, ValueTarget::Bytes(&mut []))?;
        }
        let mut tensor = header.allocate_tensor(service)?;
        fill_values(header, data, ValueTarget::Bytes(writable_bytes(&mut tensor)?))?;
        Ok(tensor.freeze())
    };
    read().map_err(|error| header.within_input(error))
}

/// Numbers that JSON has no words for, as strings.
const NAN: &str = "NaN";
const INFINITY: &str = "Infinity";
const NEGATIVE_INFINITY: &str = "-Infinity";

/// The same text with `NaN`, `Infinity` and `-Infinity`, which are no JSON and which clients write
/// all the same, as strings; `None` where there are none of them.
pub(super) fn quote_non_finite(json: &[u8]) -> Option<Vec<u8>> {
    let words = [NEGATIVE_INFINITY, INFINITY, NAN];
    let mut quoted = Vec::new();
    let (mut within, mut index, mut found) = (false, 0, false);
    while let Some(&byte) = json.get(index) {
        let word = words.iter().find(|word| !within && json[index..].starts_with(word.as_bytes()));
        if let Some(word) = word {
            quoted.push(b'"');
            quoted.extend_from_slice(word.as_bytes());
            quoted.push(b'"');
            index += word.len();
            found = true;
            continue;
        }
        if within && byte == b'\\' {
            // Whatever follows is part of the string.
            quoted.extend_from_slice(&json[index..json.len().min(index + 2)]);
            index += 2;
            continue;
        }
        within ^= byte == b'"';
        quoted.push(byte);
        index += 1;
    }
    found.then_some(quoted)
}

fn fill_values(header: &InputHeader, data: &RawValue, target: ValueTarget<'_>) -> Result<()> {
    let mut values = JsonValues { dtype: header.dtype, target, count: 0, wrong: None };
    let mut json = serde_json::Deserializer::from_str(data.get());
    let outcome = NestedValues(&mut values).deserialize(&mut json);
    if let Some(wrong) = values.wrong {
        return Err(Error::invalid(wrong));
    }
    outcome.map_err(|error| Error::invalid(format!("data is not as expected: {error}")))?;
    if values.count != header.element_count() {
        return Err(Error::invalid(format!(
            "shape {:?} holds {} values, data has {}",
            header.shape,
            header.element_count(),
            values.count
        )));
    }
    Ok(())
}

/// Where values go. Those that there is no room for are only counted.
enum ValueTarget<'a> {
    Bytes(&'a mut [u8]),
    Strings(&'a mut Vec<Vec<u8>>),
}

/// The values that were read so far.
struct JsonValues<'a> {
    dtype: DType,
    target: ValueTarget<'a>,
    count: usize,
    /// What is wrong with the last one.
    wrong: Option<String>,
}

impl JsonValues<'_> {
    fn write_integer(&mut self, value: i128) -> bool {
        match self.dtype {
            DType::U8 => self.write_element(u8::try_from(value).map(u8::to_le_bytes)),
            DType::U16 => self.write_element(u16::try_from(value).map(u16::to_le_bytes)),
            DType::U32 => self.write_element(u32::try_from(value).map(u32::to_le_bytes)),
            DType::U64 => self.write_element(u64::try_from(value).map(u64::to_le_bytes)),
            DType::I8 => self.write_element(i8::try_from(value).map(i8::to_le_bytes)),
            DType::I16 => self.write_element(i16::try_from(value).map(i16::to_le_bytes)),
            DType::I32 => self.write_element(i32::try_from(value).map(i32::to_le_bytes)),
            DType::I64 => self.write_element(i64::try_from(value).map(i64::to_le_bytes)),
            _ => self.write_float(value as f64),
        }
    }

    fn write_float(&mut self, value: f64) -> bool {
        match self.dtype {
            DType::F64 => self.write_element(Ok::<_, ()>(value.to_le_bytes())),
            // A number that is finite and becomes infinite is out of range.
            DType::F32 => match value as f32 {
                narrow if narrow.is_finite() => {
                    self.write_element(Ok::<_, ()>(narrow.to_le_bytes()))
                }
                _ => false,
            },
            _ => false,
        }
    }

    fn write_boolean(&mut self, value: bool) -> bool {
        self.dtype == DType::Bool && self.write_element(Ok::<_, ()>([u8::from(value)]))
    }

    fn write_text(&mut self, value: &str) -> bool {
        let number = match value {
            NAN => Some(f64::NAN),
            INFINITY => Some(f64::INFINITY),
            NEGATIVE_INFINITY => Some(f64::NEG_INFINITY),
            _ => None,
        };
        if let (Some(number), ValueTarget::Bytes(_)) = (number, &self.target) {
            return match self.dtype {
                DType::F32 => self.write_element(Ok::<_, ()>((number as f32).to_le_bytes())),
                DType::F64 => self.write_element(Ok::<_, ()>(number.to_le_bytes())),
                _ => false,
            };
        }
        match &mut self.target {
            ValueTarget::Strings(strings) => {
                strings.push(value.as_bytes().to_vec());
                self.count += 1;
                true
            }
            ValueTarget::Bytes(_) => false,
        }
    }

    /// Writes the next element, unless it is out of range.
    fn write_element<const N: usize, E>(&mut self, element: Result<[u8; N], E>) -> bool {
        let Ok(element) = element else { return false };
        if let ValueTarget::Bytes(bytes) = &mut self.target {
            // Past the end the count alone matters: there will be an error.
            let start = self.count.saturating_mul(N);
            if let Some(place) = bytes.get_mut(start..start.saturating_add(N)) {
                place.copy_from_slice(&element);
            }
        }
        self.count += 1;
        true
    }

    /// What a value must be.
    fn expected_value(&self) -> &'static str {
        match self.dtype {
            DType::Bool => "true or false",
            DType::U8 => "an integer from 0 to 255 (UINT8)",
            DType::U16 => "an integer from 0 to 65535 (UINT16)",
            DType::U32 => "an integer from 0 to 4294967295 (UINT32)",
            DType::U64 => "an integer from 0 to 18446744073709551615 (UINT64)",
            DType::I8 => "an integer from -128 to 127 (INT8)",
            DType::I16 => "an integer from -32768 to 32767 (INT16)",
            DType::I32 => "an integer from -2147483648 to 2147483647 (INT32)",
            DType::I64 => "an integer from -9223372036854775808 to 9223372036854775807 (INT64)",
            DType::F32 => "a number within the range of FP32",
            DType::String => "a string",
            _ => "a number",
        }
    }
}

/// Reads a value, or an array of them with any nesting: the shape is given apart.
struct NestedValues<'v, 'a>(&'v mut JsonValues<'a>);

impl NestedValues<'_, '_> {
    fn check_fit<E: serde::de::Error>(self, fits: bool, value: impl Display) -> Result<(), E> {
        if fits {
            return Ok(());
        }
        let Self(values) = self;
        values.wrong = Some(format!(
            "value {} is {value}, expected {}",
            values.count,
            values.expected_value()
        ));
        Err(E::custom("wrong value"))
    }
}

impl<'de> DeserializeSeed<'de> for NestedValues<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NestedValues<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.expected_value())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        while array.next_element_seed(NestedValues(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        let fits = self.0.write_integer(i128::from(value));
        self.check_fit(fits, value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        let fits = self.0.write_integer(i128::from(value));
        self.check_fit(fits, value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        let fits = self.0.write_float(value);
        // `{:?}` keeps the ".0" that makes 1.0 no integer.
        self.check_fit(fits, format_args!("{value:?}"))
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        let fits = self.0.write_boolean(value);
        self.check_fit(fits, value)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        let fits = self.0.write_text(value);
        self.check_fit(fits, "a string")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.check_fit(false, "null")
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        self.check_fit(false, "an object")
    }
}

/// The data of an output, written as a flat array. JSON has no NaN and no infinity: they are the
/// strings that the JSON of protobuf has for them, which numpy reads.
pub(super) struct JsonData<'a>(&'a Tensor);

impl<'a> JsonData<'a> {
    /// Refuses what JSON can't hold.
    pub(super) fn new(tensor: &'a Tensor) -> Result<Self> {
        if !is_json(tensor.dtype()) {
            let name = datatype_name(tensor.dtype())?;
            return Err(Error::invalid(format!(
                "{name} can't be sent as JSON, ask for it with binary_data"
            )));
        }
        match tensor.strings() {
            Some(strings) if strings.iter().any(|string| std::str::from_utf8(string).is_err()) => {
                return Err(Error::invalid(
                    "bytes that are no UTF-8 can't be sent as JSON, ask for them with binary_data",
                ));
            }
            None if tensor.bytes().is_none() => {
                return Err(Error::engine(format!(
                    "{tensor:?} is not in memory that the CPU reads"
                )));
            }
            _ => {}
        }
        Ok(Self(tensor))
    }
}

/// A number, or the word for one that JSON has none for.
struct JsonFloat<T>(T);

impl<T: Copy + Serialize + Into<f64>> Serialize for JsonFloat<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.into() {
            f64::INFINITY => serializer.serialize_str(INFINITY),
            f64::NEG_INFINITY => serializer.serialize_str(NEGATIVE_INFINITY),
            number if number.is_nan() => serializer.serialize_str(NAN),
            _ => self.0.serialize(serializer),
        }
    }
}

impl Serialize for JsonData<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(strings) = self.0.strings() {
            let texts = strings.iter().map(|string| String::from_utf8_lossy(string));
            return serializer.collect_seq(texts);
        }
        let bytes = self.0.bytes().unwrap_or_default();
        match self.0.dtype() {
            DType::Bool => serialize_elements(serializer, bytes, |[byte]: [u8; 1]| byte != 0),
            DType::U8 => serialize_elements(serializer, bytes, u8::from_le_bytes),
            DType::U16 => serialize_elements(serializer, bytes, u16::from_le_bytes),
            DType::U32 => serialize_elements(serializer, bytes, u32::from_le_bytes),
            DType::U64 => serialize_elements(serializer, bytes, u64::from_le_bytes),
            DType::I8 => serialize_elements(serializer, bytes, i8::from_le_bytes),
            DType::I16 => serialize_elements(serializer, bytes, i16::from_le_bytes),
            DType::I32 => serialize_elements(serializer, bytes, i32::from_le_bytes),
            DType::I64 => serialize_elements(serializer, bytes, i64::from_le_bytes),
            DType::F32 => {
                serialize_elements(serializer, bytes, |b| JsonFloat(f32::from_le_bytes(b)))
            }
            DType::F64 => {
                serialize_elements(serializer, bytes, |b| JsonFloat(f64::from_le_bytes(b)))
            }
            other => Err(serde::ser::Error::custom(format!("{other} can't be written as JSON"))),
        }
    }
}

fn serialize_elements<S: Serializer, T: Serialize, const N: usize>(
    serializer: S,
    bytes: &[u8],
    read: impl Fn([u8; N]) -> T,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(datatype: &str, shape: &[i64], json: &str) -> Result<Vec<u8>> {
        let header = InputHeader::new("x".into(), datatype, shape)?;
        let data: &RawValue = serde_json::from_str(json).unwrap();
        let mut bytes = vec![0; header.byte_len().unwrap()];
        fill_values(&header, data, ValueTarget::Bytes(&mut bytes)).map(|()| bytes)
    }

    #[test]
    fn arrays_are_read_flat_or_nested() {
        let flat = values("INT16", &[2, 2], "[1, -2, 3, 4]").unwrap();
        assert_eq!(values("INT16", &[2, 2], "[[1, -2], [3, 4]]").unwrap(), flat);
        assert_eq!(flat[..4], [1, 0, 0xfe, 0xff]);
        assert_eq!(values("FP32", &[2], "[1, 0.5]").unwrap()[..4], 1f32.to_le_bytes());
        assert_eq!(values("BOOL", &[2], "[true, false]").unwrap(), [1, 0]);
        let most = u64::MAX;
        assert_eq!(values("UINT64", &[1], &format!("[{most}]")).unwrap(), most.to_le_bytes());
    }

    #[test]
    fn a_value_out_of_range_is_named_with_what_is_expected() {
        for (datatype, json, expected) in [
            ("UINT8", "[1, 256]", "value 1 is 256, expected an integer from 0 to 255 (UINT8)"),
            ("UINT8", "[1, -1]", "value 1 is -1, expected an integer from 0 to 255 (UINT8)"),
            ("INT8", "[128, 0]", "value 0 is 128, expected an integer from -128 to 127 (INT8)"),
            ("UINT16", "[65536]", "value 0 is 65536"),
            ("INT32", "[1.0]", "value 0 is 1.0, expected an integer from"),
            ("INT64", "[9223372036854775808]", "value 0 is 9223372036854775808"),
            ("FP32", "[1e39]", "value 0 is 1e39, expected a number within the range of FP32"),
            ("FP32", "[true]", "value 0 is true"),
            ("BOOL", "[1]", "value 0 is 1, expected true or false"),
            ("FP64", "[[0], [\"a\"]]", "value 1 is a string, expected a number"),
            ("FP64", "[null]", "value 0 is null"),
            ("FP64", "[{}]", "value 0 is an object"),
        ] {
            let error = values(datatype, &[2], json).unwrap_err().to_string();
            assert!(error.contains(expected), "{datatype} {json}: {error}");
        }
    }

    #[test]
    fn the_number_of_values_must_be_that_of_the_shape() {
        let error = values("INT8", &[3], "[1, 2]").unwrap_err().to_string();
        assert_eq!(error, "shape [3] holds 3 values, data has 2");
        assert!(values("INT8", &[1], "[1, 2]").is_err());
        assert!(values("INT8", &[0], "[]").unwrap().is_empty());
    }

    #[test]
    fn outputs_are_written_flat() {
        let written = |tensor: &Tensor| serde_json::to_string(&JsonData::new(tensor).unwrap());
        let floats = Tensor::from_f32(&[2, 2], &[0.1, 1.0, f32::NAN, f32::INFINITY]).unwrap();
        assert_eq!(written(&floats).unwrap(), r#"[0.1,1.0,"NaN","Infinity"]"#);
        let doubles = [f64::NEG_INFINITY, -0.0].map(f64::to_le_bytes).concat();
        let doubles = Tensor::copy_from_bytes(DType::F64, &[2], &doubles).unwrap();
        assert_eq!(written(&doubles).unwrap(), r#"["-Infinity",-0.0]"#);
        let integers = Tensor::from_i64(&[2], &[i64::MIN, 7]).unwrap();
        assert_eq!(written(&integers).unwrap(), "[-9223372036854775808,7]");
        let bools = Tensor::copy_from_bytes(DType::Bool, &[2], &[1, 0]).unwrap();
        assert_eq!(written(&bools).unwrap(), "[true,false]");
        let strings = Tensor::from_strings(&[1], vec!["é\"".into()]).unwrap();
        assert_eq!(written(&strings).unwrap(), "[\"é\\\"\"]");
    }

    #[test]
    fn numbers_that_are_none_become_strings_and_strings_stay() {
        let quote = |text: &str| {
            quote_non_finite(text.as_bytes()).map(|quoted| String::from_utf8(quoted).unwrap())
        };
        assert_eq!(
            quote("[1, NaN,-Infinity, Infinity]").unwrap(),
            r#"[1, "NaN","-Infinity", "Infinity"]"#
        );
        assert_eq!(
            quote(r#"{"NaN": "a\"NaN", "b": NaN}"#).unwrap(),
            r#"{"NaN": "a\"NaN", "b": "NaN"}"#
        );
        assert_eq!(quote(r#"["NaN", "\\"]"#), None);
        assert_eq!(quote("[\"\\"), None);
    }

    #[test]
    fn what_json_can_not_hold_is_refused() {
        let half = Tensor::copy_from_bytes(DType::F16, &[1], &[0, 0]).unwrap();
        assert!(JsonData::new(&half).is_err());
        let bytes = Tensor::from_strings(&[1], vec![vec![0xff]]).unwrap();
        assert!(JsonData::new(&bytes).is_err());
    }
}
