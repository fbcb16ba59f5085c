//! Tensors: a dtype and a shape over memory.
//!
//! A tensor's life is a chain of types: a [`TensorMut`] has one owner who may write it; frozen, it
//! is a [`Tensor`], which anyone may hold and nobody can write. Neither says who allocated the
//! memory: that is a [`Region`], so that a heap buffer, a file mapping, shared memory and, later,
//! device memory pass through the same engines and hops.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Buffer, DType, Error, Event, HostBuffer, Location, Region, Result, display_shape, element_count,
};

/// A tensor under construction: one owner, writable, contiguous and row-major.
pub struct TensorMut {
    dtype: DType,
    shape: Vec<usize>,
    buffer: Buffer,
}

impl TensorMut {
    /// A zeroed tensor in heap memory.
    pub fn zeroed(dtype: DType, shape: &[usize]) -> Result<Self> {
        let len = byte_len(dtype, shape)?;
        Ok(Self { dtype, shape: shape.to_vec(), buffer: Box::new(HostBuffer::try_new(len)?) })
    }

    /// A tensor over memory that the caller provides, which must be large enough.
    pub fn over(dtype: DType, shape: &[usize], buffer: Buffer) -> Result<Self> {
        let len = byte_len(dtype, shape)?;
        if buffer.len() < len {
            return Err(Error::usage(format!(
                "a buffer of {} bytes is too small for {}, which needs {len}",
                buffer.len(),
                display_shape(dtype, shape)
            )));
        }
        Ok(Self { dtype, shape: shape.to_vec(), buffer })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Where the memory is.
    pub fn location(&self) -> Location {
        self.buffer.location()
    }

    /// Address of the first element.
    pub fn address(&self) -> NonNull<u8> {
        self.buffer.address()
    }

    /// The bytes of the tensor, to write; `None` where the CPU can't.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let len = byte_len(self.dtype, &self.shape).ok()?;
        self.buffer.bytes_mut()?.get_mut(..len)
    }

    /// Ends writing: from here on the tensor can be shared, and not changed.
    pub fn freeze(self) -> Tensor {
        Tensor {
            dtype: self.dtype,
            shape: self.shape,
            data: Data::Region { region: self.buffer.into(), offset: 0 },
            after: None,
        }
    }

    /// Ends writing on our side while a device may still write: the tensor may be read once
    /// `event` has happened.
    pub fn freeze_after(self, event: Arc<dyn Event>) -> Tensor {
        Tensor { after: Some(event), ..self.freeze() }
    }
}

impl fmt::Debug for TensorMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&display_shape(self.dtype, &self.shape))
    }
}

/// A tensor that anyone may read and nobody can write, contiguous and row-major.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    data: Data,
    after: Option<Arc<dyn Event>>,
}

#[derive(Clone)]
enum Data {
    Region { region: Arc<dyn Region>, offset: usize },
    Strings(Arc<[Vec<u8>]>),
}

impl Tensor {
    /// A tensor over host bytes, which are kept and not copied.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: Bytes) -> Result<Self> {
        let len = byte_len(dtype, shape)?;
        if bytes.len() != len {
            return Err(Error::invalid(format!(
                "{} needs {len} bytes, got {}",
                display_shape(dtype, shape),
                bytes.len()
            )));
        }
        let region: Arc<dyn Region> = Arc::new(bytes);
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            data: Data::Region { region, offset: 0 },
            after: None,
        })
    }

    /// A tensor over any region, which is kept and not copied.
    pub fn from_region(dtype: DType, shape: &[usize], region: Arc<dyn Region>) -> Result<Self> {
        Self::from_region_at(dtype, shape, region, 0)
    }

    /// A tensor that starts `offset` bytes into a region, which is kept and not copied.
    pub fn from_region_at(
        dtype: DType,
        shape: &[usize],
        region: Arc<dyn Region>,
        offset: usize,
    ) -> Result<Self> {
        let len = byte_len(dtype, shape)?;
        if offset.checked_add(len).is_none_or(|end| end > region.len()) {
            return Err(Error::invalid(format!(
                "{} needs {len} bytes, got {}",
                display_shape(dtype, shape),
                region.len().saturating_sub(offset)
            )));
        }
        let data = Data::Region { region, offset };
        Ok(Self { dtype, shape: shape.to_vec(), data, after: None })
    }

    /// A tensor of `f32` values.
    pub fn from_f32(shape: &[usize], values: &[f32]) -> Result<Self> {
        Self::copied(DType::F32, shape, bytemuck::cast_slice(values))
    }

    /// A tensor of `i64` values.
    pub fn from_i64(shape: &[usize], values: &[i64]) -> Result<Self> {
        Self::copied(DType::I64, shape, bytemuck::cast_slice(values))
    }

    /// A tensor with a copy of `bytes`, aligned for vector instructions.
    pub fn copied(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        // The lengths first: a shape that somebody made up must not make us allocate for it.
        if byte_len(dtype, shape)? != bytes.len() {
            return Err(Error::invalid(format!(
                "{} does not hold {} bytes",
                display_shape(dtype, shape),
                bytes.len()
            )));
        }
        let mut tensor = TensorMut::zeroed(dtype, shape)?;
        if let Some(target) = tensor.bytes_mut() {
            target.copy_from_slice(bytes);
        }
        Ok(tensor.freeze())
    }

    /// A tensor of strings.
    pub fn from_strings(shape: &[usize], strings: Vec<Vec<u8>>) -> Result<Self> {
        if element_count(shape) != Some(strings.len()) {
            return Err(Error::invalid(format!(
                "{} does not hold {} strings",
                display_shape(DType::String, shape),
                strings.len()
            )));
        }
        Ok(Self {
            dtype: DType::String,
            shape: shape.to_vec(),
            data: Data::Strings(strings.into()),
            after: None,
        })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        element_count(&self.shape).unwrap_or(0)
    }

    /// Length in bytes; for strings, the sum of their lengths.
    pub fn byte_len(&self) -> usize {
        match &self.data {
            Data::Region { .. } => self.dtype.bytes(self.count()).unwrap_or(0),
            Data::Strings(strings) => strings.iter().map(Vec::len).sum(),
        }
    }

    /// Where the memory is.
    pub fn location(&self) -> Location {
        match &self.data {
            Data::Region { region, .. } => region.location(),
            Data::Strings(_) => Location::Host,
        }
    }

    /// The memory it is in, and how far into it the first element is; `None` for strings.
    pub fn region(&self) -> Option<(&Arc<dyn Region>, usize)> {
        match &self.data {
            Data::Region { region, offset } => Some((region, *offset)),
            Data::Strings(_) => None,
        }
    }

    /// What must have happened before the memory may be read; `None` where it may be read now.
    pub fn after(&self) -> Option<&Arc<dyn Event>> {
        self.after.as_ref()
    }

    /// The same tensor once its memory may be read; waits for that where it must.
    pub fn settled(self) -> Result<Self> {
        if let Some(event) = &self.after {
            event.wait()?;
        }
        Ok(Self { after: None, ..self })
    }

    /// The same tensor for work that is given to its device from now on, which waits for it there where it must.
    pub fn held(self) -> Result<Self> {
        if let Some(event) = &self.after {
            event.hold_stream()?;
        }
        Ok(Self { after: None, ..self })
    }

    /// The same tensor where something else waits for it already.
    #[must_use]
    pub fn unheld(self) -> Self {
        Self { after: None, ..self }
    }

    /// The same tensor, which may be read once `event` has happened.
    #[must_use]
    pub fn awaiting(self, event: Arc<dyn Event>) -> Self {
        Self { after: Some(event), ..self }
    }

    /// Address of the first element; `None` for strings.
    pub fn address(&self) -> Option<usize> {
        match &self.data {
            Data::Region { region, offset } => {
                Some(region.address().as_ptr().addr().wrapping_add(*offset))
            }
            Data::Strings(_) => None,
        }
    }

    /// Pointer to the first element; `None` for strings.
    pub fn pointer(&self) -> Option<*const u8> {
        match &self.data {
            Data::Region { region, offset } => {
                Some(region.address().as_ptr().wrapping_add(*offset).cast_const())
            }
            Data::Strings(_) => None,
        }
    }

    /// The bytes; `None` for strings and where the CPU can't read them.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.data {
            Data::Region { region, offset } => {
                let len = self.dtype.bytes(self.count())?;
                region.bytes()?.get(*offset..offset.checked_add(len)?)
            }
            Data::Strings(_) => None,
        }
    }

    /// The strings of a string tensor.
    pub fn strings(&self) -> Option<&[Vec<u8>]> {
        match &self.data {
            Data::Strings(strings) => Some(strings),
            Data::Region { .. } => None,
        }
    }

    /// The same memory under another shape with as many elements.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Self> {
        if element_count(shape) != Some(self.count()) {
            return Err(Error::usage(format!(
                "{} can't become {}",
                display_shape(self.dtype, &self.shape),
                display_shape(self.dtype, shape)
            )));
        }
        Ok(Self { shape: shape.to_vec(), ..self.clone() })
    }

    /// Rows `start..start + count` of the first dimension, in the same memory.
    pub fn rows(&self, start: usize, count: usize) -> Result<Self> {
        let wrong = || {
            Error::usage(format!(
                "{} has no rows {start}..{}",
                display_shape(self.dtype, &self.shape),
                start.saturating_add(count)
            ))
        };
        let (&all, rest) = self.shape.split_first().ok_or_else(wrong)?;
        if start.checked_add(count).is_none_or(|end| end > all) {
            return Err(wrong());
        }
        let row = element_count(rest).and_then(|n| n.checked_mul(self.dtype.bits()?));
        let row = row.filter(|bits| bits % 8 == 0).ok_or_else(wrong)? / 8;
        let mut shape = self.shape.clone();
        shape[0] = count;
        match &self.data {
            Data::Region { region, offset } => Ok(Self {
                dtype: self.dtype,
                shape,
                data: Data::Region { region: Arc::clone(region), offset: offset + start * row },
                after: self.after.clone(),
            }),
            Data::Strings(_) => Err(wrong()),
        }
    }

    /// The elements as `f64`, whatever their numeric dtype; `None` for other dtypes.
    pub fn to_f64(&self) -> Option<Vec<f64>> {
        let bytes = self.bytes()?;
        fn each<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk)).collect()
        }
        Some(match self.dtype {
            DType::F32 => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
            DType::F64 => each(bytes, f64::from_le_bytes),
            DType::F16 => each(bytes, |b| half::f16::from_le_bytes(b).to_f64()),
            DType::BF16 => each(bytes, |b| half::bf16::from_le_bytes(b).to_f64()),
            DType::I8 => each(bytes, |b| f64::from(i8::from_le_bytes(b))),
            DType::I16 => each(bytes, |b| f64::from(i16::from_le_bytes(b))),
            DType::I32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
            DType::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
            DType::U8 | DType::Bool => each::<1>(bytes, |b| f64::from(b[0])),
            DType::U16 => each(bytes, |b| f64::from(u16::from_le_bytes(b))),
            DType::U32 => each(bytes, |b| f64::from(u32::from_le_bytes(b))),
            DType::U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
            _ => return None,
        })
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&display_shape(self.dtype, &self.shape))
    }
}

/// How many bytes a tensor has; an error where that is no number.
pub fn byte_len(dtype: DType, shape: &[usize]) -> Result<usize> {
    element_count(shape).and_then(|count| dtype.bytes(count)).ok_or_else(|| {
        Error::usage(format!("{} has no size in bytes", display_shape(dtype, shape)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_share_the_memory_of_the_whole() {
        let whole = Tensor::from_f32(&[3, 2], &[0., 1., 2., 3., 4., 5.]).unwrap();
        let rows = whole.rows(1, 2).unwrap();
        assert_eq!(rows.to_f64().unwrap(), [2., 3., 4., 5.]);
        assert_eq!(rows.address().unwrap(), whole.address().unwrap() + 8);
        assert!(whole.rows(2, 2).is_err());
    }

    #[test]
    fn wrong_lengths_are_refused_with_both_sizes() {
        let error = Tensor::from_bytes(DType::F32, &[2], Bytes::from_static(b"abc")).unwrap_err();
        assert_eq!(error.to_string(), "f32[2] needs 8 bytes, got 3");
        assert!(TensorMut::zeroed(DType::F32, &[usize::MAX, 2]).is_err());
    }
}
