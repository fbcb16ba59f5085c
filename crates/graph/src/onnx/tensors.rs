//! The elements of a `TensorProto`, in one form whichever of its nine fields holds them.

use bytes::Bytes;
use tessera_core::{DType, Error, Result, display_shape, element_count};

use super::{AttributeProto, TensorProto};
use crate::model::Weight;

/// The dtype and shape that a tensor declares.
pub(crate) fn dtype_and_shape(tensor: &TensorProto) -> Result<(DType, Vec<usize>)> {
    let dtype = DType::from_onnx(tensor.data_type()).ok_or_else(|| {
        Error::invalid(format!("dtype number {}, expected 1 to 26", tensor.data_type()))
    })?;
    let shape = tensor
        .dims
        .iter()
        .map(|&dim| usize::try_from(dim))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| {
            Error::invalid(format!("dimensions {:?}, expected none below 0", tensor.dims))
        })?;
    Ok((dtype, shape))
}

/// The bytes that a tensor's dtype and shape need.
pub(crate) fn expected_bytes(tensor: &TensorProto) -> Result<usize> {
    let (dtype, shape) = dtype_and_shape(tensor)?;
    element_count(&shape).and_then(|count| dtype.byte_len(count)).ok_or_else(|| {
        Error::invalid(format!("{} has no size in bytes", display_shape(dtype, &shape)))
    })
}

/// The tensor as a weight: its elements little-endian and row-major, checked against its shape.
pub(crate) fn weight_from_tensor(tensor: TensorProto) -> Result<Weight> {
    let (dtype, shape) = dtype_and_shape(&tensor)?;
    let count = element_count(&shape).ok_or_else(|| {
        Error::invalid(format!("{} has too many elements", display_shape(dtype, &shape)))
    })?;
    let wrong = |found: usize, unit: &str, expected: usize| {
        Error::invalid(format!(
            "{} has {found} {unit} of data, expected {expected}",
            display_shape(dtype, &shape)
        ))
    };
    if dtype == DType::String {
        let strings = tensor.string_data;
        if strings.len() != count {
            return Err(wrong(strings.len(), "strings", count));
        }
        return Ok(Weight::Strings { shape, strings });
    }
    let expected = expected_bytes(&tensor)?;
    let bytes = match tensor.raw_data {
        Some(raw) => raw,
        None => typed_data(&tensor, dtype, count, &wrong)?,
    };
    if bytes.len() != expected {
        return Err(wrong(bytes.len(), "bytes", expected));
    }
    Ok(Weight::Dense { dtype, shape, bytes })
}

fn typed_data(
    tensor: &TensorProto,
    dtype: DType,
    count: usize,
    wrong: &dyn Fn(usize, &str, usize) -> Error,
) -> Result<Bytes> {
    fn little_endian_bytes<T: Copy, const N: usize>(
        values: &[T],
        write: impl Fn(T) -> [u8; N],
    ) -> Bytes {
        values.iter().flat_map(|&value| write(value)).collect::<Vec<u8>>().into()
    }
    let (values, entries) = match dtype {
        DType::F32 => {
            (little_endian_bytes(&tensor.float_data, f32::to_le_bytes), tensor.float_data.len())
        }
        DType::C64 => {
            (little_endian_bytes(&tensor.float_data, f32::to_le_bytes), tensor.float_data.len() / 2)
        }
        DType::F64 => {
            (little_endian_bytes(&tensor.double_data, f64::to_le_bytes), tensor.double_data.len())
        }
        DType::C128 => (
            little_endian_bytes(&tensor.double_data, f64::to_le_bytes),
            tensor.double_data.len() / 2,
        ),
        DType::I64 => {
            (little_endian_bytes(&tensor.int64_data, i64::to_le_bytes), tensor.int64_data.len())
        }
        DType::U64 => {
            (little_endian_bytes(&tensor.uint64_data, u64::to_le_bytes), tensor.uint64_data.len())
        }
        DType::U32 => (
            little_endian_bytes(&tensor.uint64_data, |v| (v as u32).to_le_bytes()),
            tensor.uint64_data.len(),
        ),
        _ => {
            // Every other dtype lies in `int32_data`, an entry per element or, where elements are
            // smaller than a byte, per byte.
            let data = &tensor.int32_data;
            let bits = dtype.bits_per_element().unwrap_or(8);
            let packed = match bits {
                32 => little_endian_bytes(data, i32::to_le_bytes),
                16 => little_endian_bytes(data, |v| (v as u16).to_le_bytes()),
                _ => little_endian_bytes(data, |v| [v as u8]),
            };
            let entries = if bits < 8 { data.len().saturating_mul(8 / bits) } else { data.len() };
            (packed, entries)
        }
    };
    let fits =
        if dtype.bits_per_element().unwrap_or(8) < 8 { entries >= count } else { entries == count };
    if fits { Ok(values) } else { Err(wrong(entries, "elements", count)) }
}

/// Brings the tensors of an attribute into one form, without names.
pub(crate) fn normalise_attribute(attribute: &mut AttributeProto) -> Result<()> {
    let name = attribute.name().to_owned();
    for tensor in attribute.t.iter_mut().chain(&mut attribute.tensors) {
        let weight = weight_from_tensor(std::mem::take(tensor))
            .map_err(|error| error.with_context(format!("attribute \"{name}\"")))?;
        *tensor = TensorProto { name: None, ..inline_tensor(String::new(), &weight) };
    }
    Ok(())
}

/// A dense weight as a tensor that carries its elements itself.
pub(crate) fn inline_tensor(name: String, weight: &Weight) -> TensorProto {
    let dims = |shape: &[usize]| shape.iter().map(|&dim| dim as i64).collect();
    match weight {
        Weight::Dense { dtype, shape, bytes } => TensorProto {
            name: Some(name),
            dims: dims(shape),
            data_type: Some(dtype.to_onnx()),
            raw_data: Some(bytes.clone()),
            ..Default::default()
        },
        Weight::Strings { shape, strings } => TensorProto {
            name: Some(name),
            dims: dims(shape),
            data_type: Some(DType::String.to_onnx()),
            string_data: strings.clone(),
            ..Default::default()
        },
        Weight::Sparse(sparse) => {
            let mut values = sparse.values.clone().unwrap_or_default();
            values.name = Some(name);
            values
        }
    }
}
