//! Inputs whose values are fields of the message and not raw bytes.

use std::fmt::Display;

use tessera_core::{DType, Error, Result, Tensor};

use super::generated::InferTensorContents;
use crate::protocol::{InputHeader, datatype_name};
use crate::service::InferenceService;

/// The tensor of an input with typed contents.
pub(super) fn typed_input(
    service: &dyn InferenceService,
    header: &InputHeader,
    contents: &InferTensorContents,
) -> Result<Tensor> {
    // Small integers travel in 32 bits.
    let input = TypedInput { service, header };
    match header.dtype {
        DType::Bool => input.fill_values(&contents.bool_contents, |&v| Some([u8::from(v)])),
        DType::U8 => input
            .fill_values(&contents.uint_contents, |&v| u8::try_from(v).ok().map(u8::to_le_bytes)),
        DType::U16 => input
            .fill_values(&contents.uint_contents, |&v| u16::try_from(v).ok().map(u16::to_le_bytes)),
        DType::U32 => input.fill_values(&contents.uint_contents, |v| Some(v.to_le_bytes())),
        DType::U64 => input.fill_values(&contents.uint64_contents, |v| Some(v.to_le_bytes())),
        DType::I8 => input
            .fill_values(&contents.int_contents, |&v| i8::try_from(v).ok().map(i8::to_le_bytes)),
        DType::I16 => input
            .fill_values(&contents.int_contents, |&v| i16::try_from(v).ok().map(i16::to_le_bytes)),
        DType::I32 => input.fill_values(&contents.int_contents, |v| Some(v.to_le_bytes())),
        DType::I64 => input.fill_values(&contents.int64_contents, |v| Some(v.to_le_bytes())),
        DType::F32 => input.fill_values(&contents.fp32_contents, |v| Some(v.to_le_bytes())),
        DType::F64 => input.fill_values(&contents.fp64_contents, |v| Some(v.to_le_bytes())),
        DType::String => {
            input.check_count(contents.bytes_contents.len())?;
            let strings = contents.bytes_contents.iter().map(|bytes| bytes.to_vec()).collect();
            Tensor::from_strings(&header.shape, strings)
        }
        other => {
            let name = datatype_name(other)?;
            let message = format!("{name} has no typed contents, send it in raw_input_contents");
            Err(Error::invalid(message))
        }
    }
}

/// An input that is being filled.
struct TypedInput<'a> {
    service: &'a dyn InferenceService,
    header: &'a InputHeader,
}

impl TypedInput<'_> {
    fn fill_values<T: Display, const N: usize>(
        &self,
        values: &[T],
        write: impl Fn(&T) -> Option<[u8; N]>,
    ) -> Result<Tensor> {
        self.check_count(values.len())?;
        let name = datatype_name(self.header.dtype)?;
        self.header.fill_tensor(self.service, |target| {
            let (places, _) = target.as_chunks_mut::<N>();
            for (index, (value, place)) in values.iter().zip(places).enumerate() {
                *place = write(value).ok_or_else(|| {
                    Error::invalid(format!(
                        "value {index} is {value}, which is out of the range of {name}"
                    ))
                })?;
            }
            Ok(())
        })
    }

    fn check_count(&self, got: usize) -> Result<()> {
        let needed = self.header.element_count();
        if got == needed {
            return Ok(());
        }
        let name = datatype_name(self.header.dtype)?;
        Err(Error::invalid(format!(
            "shape {:?} holds {needed} values of {name}, contents has {got}",
            self.header.shape
        )))
    }
}
