//! The inputs of requests: shapes made definite, contents given or at random.

use bytes::Bytes;
use tessera_core::{
    DType, Dim, Error, Random, RandomElements, Result, display_shape, element_count, random_tensor,
};

use crate::datatype;
use crate::description::{ModelDescription, ModelPort};
use crate::workload_options::WorkloadOptions;

/// An input with its contents, laid out as the protocol does in binary: little endian, and every
/// string after its length in four bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkloadInput {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Bytes,
}

/// The inputs of one request; `random` goes on from variant to variant.
pub(crate) fn make_inputs(
    description: &ModelDescription,
    options: &WorkloadOptions,
    random: &mut Random,
) -> Result<Vec<WorkloadInput>> {
    check_names(description, options)?;
    check_batch(description, options)?;
    let is_named = |name: &String| {
        let WorkloadOptions { shapes, ranges, given, .. } = options;
        shapes.contains_key(name) || ranges.contains_key(name) || given.contains_key(name)
    };
    description
        .inputs
        .iter()
        .filter(|port| !port.optional || is_named(&port.name))
        .map(|port| {
            let shape = input_shape(port, options)?;
            let dtype = port.tensor_type.dtype;
            let shown = display_shape(dtype, &shape);
            let context = || format!("input \"{}\" {shown}", port.name);
            let count = element_count(&shape)
                .ok_or_else(|| Error::usage(format!("{} is too large", context())))?;
            let data = match options.given.get(&port.name) {
                Some(data) => {
                    check_given(dtype, count, data)
                        .map_err(|error| error.with_context(context()))?;
                    data.clone()
                }
                None => {
                    let range = options.ranges.get(&port.name).copied();
                    random_contents(dtype, &shape, range, random)
                        .map_err(|error| error.with_context(context()))?
                }
            };
            Ok(WorkloadInput { name: port.name.clone(), dtype, shape, data })
        })
        .collect()
}

/// A name that no input has is a mistake, not something to pass over.
fn check_names(description: &ModelDescription, options: &WorkloadOptions) -> Result<()> {
    let known = |name: &str| description.inputs.iter().any(|port| port.name == name);
    let mut named = options.shapes.keys().chain(options.ranges.keys()).chain(options.given.keys());
    match named.find(|name| !known(name)) {
        None => Ok(()),
        Some(name) => {
            let ports = &description.inputs;
            let shown = ports.iter().map(|port| format!("\"{}\" {}", port.name, port.tensor_type));
            let shown = shown.collect::<Vec<_>>().join(", ");
            Err(Error::usage(format!("no input \"{name}\", expected one of: {shown}")))
        }
    }
}

fn check_batch(description: &ModelDescription, options: &WorkloadOptions) -> Result<()> {
    let Some(batch) = options.batch else { return Ok(()) };
    if batch == 0 {
        return Err(Error::usage("batch 0, expected 1 or more"));
    }
    if let Some(most) = description.max_batch.filter(|&most| batch > most) {
        return Err(Error::usage(format!("batch {batch}, the model takes {most} at most")));
    }
    let open = |port: &ModelPort| {
        let first = port.tensor_type.dims.as_ref().and_then(|dims| dims.first());
        first.is_some_and(|dim| dim.fixed_size().is_none() || dim.fixed_size() == Some(batch))
    };
    if !description.inputs.iter().any(open) {
        return Err(Error::usage(format!(
            "batch {batch}, but no input of the model has an open first dimension"
        )));
    }
    Ok(())
}

/// The shape of an input: as given, or with the batch and ones where the model leaves it open.
fn input_shape(port: &ModelPort, options: &WorkloadOptions) -> Result<Vec<usize>> {
    if let Some(shape) = options.shapes.get(&port.name) {
        if !port.tensor_type.can_accept(port.tensor_type.dtype, shape) {
            return Err(Error::usage(format!(
                "input \"{}\" is {}, which {shape:?} is not",
                port.name, port.tensor_type
            )));
        }
        return Ok(shape.clone());
    }
    let dims = port.tensor_type.dims.as_ref().ok_or_else(|| {
        Error::usage(format!("the server tells no shape of input \"{}\", give it one", port.name))
    })?;
    let size = |(index, dim): (usize, &Dim)| {
        let open = if index == 0 { options.batch.unwrap_or(1) } else { 1 };
        dim.fixed_size().unwrap_or(open)
    };
    Ok(dims.iter().enumerate().map(size).collect())
}

fn check_given(dtype: DType, count: usize, data: &[u8]) -> Result<()> {
    match dtype.byte_len(count) {
        Some(length) if length == data.len() => Ok(()),
        Some(length) => {
            Err(Error::usage(format!("{} bytes were given, expected {length}", data.len())))
        }
        None => match split_strings(data) {
            Some(strings) if strings.len() == count => Ok(()),
            _ => Err(Error::usage(format!(
                "expected {count} strings, each after its length in four bytes"
            ))),
        },
    }
}

/// The strings of a BYTES tensor; `None` where the lengths don't add up.
pub(crate) fn split_strings(mut data: &[u8]) -> Option<Vec<&[u8]>> {
    let mut strings = Vec::new();
    while !data.is_empty() {
        let (length, rest) = data.split_first_chunk::<4>()?;
        let (string, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        strings.push(string);
        data = rest;
    }
    Some(strings)
}

/// Random contents, as the protocol lays them out.
fn random_contents(
    dtype: DType,
    shape: &[usize],
    range: Option<(i64, i64)>,
    random: &mut Random,
) -> Result<Bytes> {
    check_range(dtype, range)?;
    let tensor = random_tensor(random, dtype, shape, RandomElements::Numbers(range))?;
    let Some(strings) = tensor.strings() else {
        return Ok(Bytes::copy_from_slice(tensor.bytes().unwrap_or_default()));
    };
    let mut data = Vec::new();
    for string in strings {
        data.extend((string.len() as u32).to_le_bytes());
        data.extend(string);
    }
    Ok(data.into())
}

/// A range that the dtype has no elements in is a mistake.
fn check_range(dtype: DType, range: Option<(i64, i64)>) -> Result<()> {
    let limits = match dtype {
        DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::U8 => (0, i64::from(u8::MAX)),
        DType::U16 => (0, i64::from(u16::MAX)),
        DType::U32 => (0, i64::from(u32::MAX)),
        DType::U64 => (0, i64::MAX),
        _ => (i64::MIN, i64::MAX),
    };
    if let Some((low, high)) = range
        && (low >= high || low < limits.0 || high.saturating_sub(1) > limits.1)
    {
        return Err(Error::usage(format!("no {dtype} is in the range {low},{high}")));
    }
    Ok(())
}

/// An input as people write it: `x FP32[1,3,224,224]`.
pub(crate) fn describe_input(input: &WorkloadInput) -> Result<String> {
    let dims: Vec<String> = input.shape.iter().map(usize::to_string).collect();
    let datatype = datatype::datatype_name(input.dtype)?;
    Ok(format!("{} {datatype}[{}]", input.name, dims.join(",")))
}

#[cfg(test)]
mod tests {
    use tessera_core::TensorType;

    use super::*;

    fn described(dtype: DType, dims: &[i64]) -> ModelDescription {
        let dim = |&size: &i64| usize::try_from(size).map_or(Dim::Unknown, Dim::Fixed);
        let tensor_type = TensorType::new(dtype, dims.iter().map(dim).collect());
        let inputs = vec![ModelPort { name: "x".to_owned(), tensor_type, optional: false }];
        ModelDescription { inputs, ..ModelDescription::default() }
    }

    fn made(description: &ModelDescription, options: &WorkloadOptions) -> Result<WorkloadInput> {
        Ok(make_inputs(description, options, &mut Random::new(options.seed))?.remove(0))
    }

    #[test]
    fn open_dimensions_are_one_or_the_batch_or_as_given() {
        let description = described(DType::F32, &[-1, 3, -1]);
        let mut options = WorkloadOptions::default();
        assert_eq!(made(&description, &options).unwrap().shape, [1, 3, 1]);
        options.batch = Some(4);
        let input = made(&description, &options).unwrap();
        assert_eq!((input.shape.as_slice(), input.data.len()), (&[4, 3, 1][..], 48));
        options.shapes.insert("x".to_owned(), vec![2, 3, 5]);
        assert_eq!(made(&description, &options).unwrap().shape, [2, 3, 5]);
        options.shapes.insert("x".to_owned(), vec![2, 4, 5]);
        assert!(made(&description, &options).is_err());
        options.shapes.insert("z".to_owned(), vec![1]);
        let error = made(&description, &options).unwrap_err().to_string();
        assert!(error.contains("\"z\"") && error.contains("\"x\""), "{error}");
    }

    #[test]
    fn a_batch_that_the_model_cannot_take_is_refused() {
        let options = WorkloadOptions { batch: Some(4), ..WorkloadOptions::default() };
        assert!(made(&described(DType::F32, &[1, 3]), &options).is_err());
        let mut description = described(DType::F32, &[-1, 3]);
        description.max_batch = Some(2);
        assert!(made(&description, &options).is_err());
    }

    #[test]
    fn random_integers_stay_within_their_range_and_follow_the_seed() {
        let description = described(DType::I64, &[1000]);
        let mut options = WorkloadOptions::default();
        options.ranges.insert("x".to_owned(), (-3, 7));
        let input = made(&description, &options).unwrap();
        let (numbers, _) = input.data.as_chunks::<8>();
        let numbers: Vec<i64> = numbers.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
        assert!(numbers.iter().all(|number| (-3..7).contains(number)));
        assert!(numbers.contains(&-3) && numbers.contains(&6));
        assert_eq!(made(&description, &options).unwrap(), input);
        options.seed += 1;
        assert_ne!(made(&description, &options).unwrap(), input);
        options.ranges.insert("x".to_owned(), (0, 300));
        assert!(made(&described(DType::U8, &[4]), &options).is_err());
    }

    #[test]
    fn every_dtype_of_the_protocol_has_random_contents_of_its_size() {
        for (dtype, length) in
            [(DType::Bool, 6), (DType::U16, 12), (DType::F16, 12), (DType::F64, 48)]
        {
            let input = made(&described(dtype, &[2, 3]), &WorkloadOptions::default()).unwrap();
            assert_eq!(input.data.len(), length, "{dtype}");
        }
        let input = made(&described(DType::String, &[2, 3]), &WorkloadOptions::default()).unwrap();
        assert_eq!(split_strings(&input.data).unwrap().len(), 6);
    }

    #[test]
    fn given_contents_must_fit_the_shape() {
        let mut options = WorkloadOptions::default();
        options.given.insert("x".to_owned(), Bytes::from_static(&[1, 0, 2, 0]));
        assert_eq!(made(&described(DType::I16, &[2]), &options).unwrap().data[..], [1, 0, 2, 0]);
        assert!(made(&described(DType::I16, &[3]), &options).is_err());
        assert!(made(&described(DType::String, &[1]), &options).is_err());
        options.given.insert("x".to_owned(), Bytes::from_static(b"\x02\0\0\0ab"));
        assert!(made(&described(DType::String, &[1]), &options).is_ok());
        assert!(made(&described(DType::String, &[2]), &options).is_err());
    }
}
