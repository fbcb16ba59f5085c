//! Tensors as rten's values and back, without a copy where the dtype allows it.

use std::ptr::NonNull;
use std::sync::Arc;

use rten::{Value, ValueOrView, ValueView};
use rten_tensor::prelude::*;
use tessera_core::{
    DType, Error, MemoryLocation, Region, Result, Tensor, TensorMut, display_shape,
};

/// Refuses dtypes that rten has not.
pub(super) fn check_supported(label: &str, name: &str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F32 | DType::I32 | DType::I8 | DType::U8 | DType::I64 | DType::Bool => Ok(()),
        other => Err(Error::unsupported(format!(
            "{label}: tensor {name} is {other}, and rten has f32, i32, i8, u8, i64 and bool"
        ))),
    }
}

/// The tensor as an input of rten.
pub(super) fn to_rten<'a>(label: &str, tensor: &'a Tensor) -> Result<ValueOrView<'a>> {
    check_supported(label, "given", tensor.dtype())?;
    let bytes = tensor
        .bytes()
        .ok_or_else(|| Error::unsupported(format!("{label}: an input is not on the host")))?;
    let shape = tensor.shape();
    let wrong = |error: &dyn std::fmt::Display| Error::engine(format!("{label}: rten: {error}"));
    macro_rules! view {
        ($type:ty) => {
            match bytemuck::try_cast_slice::<u8, $type>(bytes) {
                Ok(elements) => ValueOrView::View(
                    ValueView::from_shape(shape, elements).map_err(|error| wrong(&error))?,
                ),
                // Not aligned for the element type: the one case that needs a copy.
                Err(_) => ValueOrView::Value(
                    Value::from_shape(shape, bytemuck::pod_collect_to_vec::<u8, $type>(bytes))
                        .map_err(|error| wrong(&error))?,
                ),
            }
        };
    }
    Ok(match tensor.dtype() {
        DType::F32 => view!(f32),
        DType::I32 => view!(i32),
        DType::I8 => view!(i8),
        DType::U8 => view!(u8),
        DType::I64 => {
            let narrowed = bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|&chunk| {
                    let value = i64::from_le_bytes(chunk);
                    i32::try_from(value).map_err(|_| {
                        Error::unsupported(format!(
                            "{label}: {value} is past rten's 32-bit integers"
                        ))
                    })
                })
                .collect::<Result<Vec<i32>>>()?;
            ValueOrView::Value(Value::from_shape(shape, narrowed).map_err(|error| wrong(&error))?)
        }
        _ => {
            let widened: Vec<i32> = bytes.iter().map(|&byte| i32::from(byte != 0)).collect();
            ValueOrView::Value(Value::from_shape(shape, widened).map_err(|error| wrong(&error))?)
        }
    })
}

/// A result of rten as a tensor of the dtype that the block declares.
pub(super) fn from_rten(label: &str, name: &str, dtype: DType, value: Value) -> Result<Tensor> {
    let found = format!("{:?}", value.dtype());
    let wrong =
        || Error::engine(format!("{label}: output {name} is {dtype}, and rten computed {found}"));
    macro_rules! take {
        ($variant:ident) => {
            match value {
                Value::$variant(tensor) => {
                    let shape = tensor.shape().to_vec();
                    (shape, tensor.into_data())
                }
                _ => return Err(wrong()),
            }
        };
    }
    fn vec_region<T: bytemuck::Pod + Send + Sync>(elements: Vec<T>) -> Arc<dyn Region> {
        Arc::new(VecRegion(elements))
    }
    match dtype {
        DType::F32 => {
            let (shape, data) = take!(FloatTensor);
            Tensor::from_region(dtype, &shape, vec_region(data))
        }
        DType::I32 => {
            let (shape, data) = take!(Int32Tensor);
            Tensor::from_region(dtype, &shape, vec_region(data))
        }
        DType::I8 => {
            let (shape, data) = take!(Int8Tensor);
            Tensor::from_region(dtype, &shape, vec_region(data))
        }
        DType::U8 => {
            let (shape, data) = take!(UInt8Tensor);
            Tensor::from_region(dtype, &shape, vec_region(data))
        }
        DType::I64 => {
            let (shape, data) = take!(Int32Tensor);
            let widened: Vec<i64> = data.into_iter().map(i64::from).collect();
            Tensor::from_region(dtype, &shape, vec_region(widened))
        }
        DType::Bool => {
            let (shape, data) = take!(Int32Tensor);
            let narrowed: Vec<u8> = data.into_iter().map(|value| u8::from(value != 0)).collect();
            Tensor::from_region(dtype, &shape, vec_region(narrowed))
        }
        _ => Err(wrong()),
    }
}

/// Copies a result to where the caller wants it: rten can't compute into memory of others.
pub(super) fn copy_into(
    label: &str,
    name: &str,
    result: &Tensor,
    mut bound: TensorMut,
) -> Result<Tensor> {
    if bound.dtype() != result.dtype() || bound.shape() != result.shape() {
        return Err(Error::usage(format!(
            "{label}: output {name} is {}, bound to {}",
            display_shape(result.dtype(), result.shape()),
            display_shape(bound.dtype(), bound.shape())
        )));
    }
    match (bound.bytes_mut(), result.bytes()) {
        (Some(target), Some(source)) => target.copy_from_slice(source),
        _ => {
            return Err(Error::unsupported(format!(
                "{label}: output {name} is bound off the host"
            )));
        }
    }
    Ok(bound.freeze())
}

/// Heap memory that rten allocated.
struct VecRegion<T>(Vec<T>);

impl<T: bytemuck::Pod + Send + Sync> Region for VecRegion<T> {
    fn location(&self) -> MemoryLocation {
        MemoryLocation::Host
    }
    fn address(&self) -> NonNull<u8> {
        NonNull::from(self.0.as_slice()).cast()
    }
    fn byte_len(&self) -> usize {
        size_of_val(self.0.as_slice())
    }
    fn bytes(&self) -> Option<&[u8]> {
        Some(bytemuck::cast_slice(&self.0))
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(bytemuck::cast_slice_mut(&mut self.0))
    }
}
