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
    Buffer, DType, Error, Fence, HostBuffer, MemoryLocation, Region, Result, display_shape,
    element_count,
};

/// A tensor under construction: one owner, writable, contiguous and row-major.
pub struct TensorMut {
    dtype: DType,
    shape: Vec<usize>,
    buffer: Buffer,
}

impl TensorMut {
    /// A zeroed tensor in heap memory.
    pub fn new_zeroed(dtype: DType, shape: &[usize]) -> Result<Self> {
        let len = byte_len(dtype, shape)?;
        Ok(Self { dtype, shape: shape.to_vec(), buffer: Box::new(HostBuffer::try_new(len)?) })
    }

    /// A tensor over memory that the caller provides, which must be large enough.
    pub fn from_buffer(dtype: DType, shape: &[usize], buffer: Buffer) -> Result<Self> {
        let len = byte_len(dtype, shape)?;
        if buffer.byte_len() < len {
            return Err(Error::usage(format!(
                "a buffer of {} bytes is too small for {}, which needs {len}",
                buffer.byte_len(),
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
    pub fn location(&self) -> MemoryLocation {
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
            data: TensorStorage::Region { region: self.buffer.into(), offset: 0 },
            fence: None,
        }
    }

    /// Ends writing on our side while a device may still write: the tensor may be read once
    /// `fence` has happened.
    pub fn freeze_with_fence(self, fence: Arc<dyn Fence>) -> Tensor {
        Tensor { fence: Some(fence), ..self.freeze() }
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
    data: TensorStorage,
    fence: Option<Arc<dyn Fence>>,
}

#[derive(Clone)]
enum TensorStorage {
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
            data: TensorStorage::Region { region, offset: 0 },
            fence: None,
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
        if offset.checked_add(len).is_none_or(|end| end > region.byte_len()) {
            return Err(Error::invalid(format!(
                "{} needs {len} bytes, got {}",
                display_shape(dtype, shape),
                region.byte_len().saturating_sub(offset)
            )));
        }
        let data = TensorStorage::Region { region, offset };
        Ok(Self { dtype, shape: shape.to_vec(), data, fence: None })
    }

    /// A tensor of `f32` values.
    pub fn from_f32(shape: &[usize], values: &[f32]) -> Result<Self> {
        Self::copy_from_bytes(DType::F32, shape, bytemuck::cast_slice(values))
    }

    /// A tensor of `i64` values.
    pub fn from_i64(shape: &[usize], values: &[i64]) -> Result<Self> {
        Self::copy_from_bytes(DType::I64, shape, bytemuck::cast_slice(values))
    }

    /// A tensor with a copy of `bytes`, aligned for vector instructions.
    pub fn copy_from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        // The lengths first: a shape that somebody made up must not make us allocate for it.
        if byte_len(dtype, shape)? != bytes.len() {
            return Err(Error::invalid(format!(
                "{} does not hold {} bytes",
                display_shape(dtype, shape),
                bytes.len()
            )));
        }
        let mut tensor = TensorMut::new_zeroed(dtype, shape)?;
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
            data: TensorStorage::Strings(strings.into()),
            fence: None,
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
    pub fn element_count(&self) -> usize {
        element_count(&self.shape).unwrap_or(0)
    }

    /// Length in bytes; for strings, the sum of their lengths.
    pub fn byte_len(&self) -> usize {
        match &self.data {
            TensorStorage::Region { .. } => self.dtype.byte_len(self.element_count()).unwrap_or(0),
            TensorStorage::Strings(strings) => strings.iter().map(Vec::len).sum(),
        }
    }

    /// Where the memory is.
    pub fn location(&self) -> MemoryLocation {
        match &self.data {
            TensorStorage::Region { region, .. } => region.location(),
            TensorStorage::Strings(_) => MemoryLocation::Host,
        }
    }

    /// The memory it is in, and how far into it the first element is; `None` for strings.
    pub fn region(&self) -> Option<(&Arc<dyn Region>, usize)> {
        match &self.data {
            TensorStorage::Region { region, offset } => Some((region, *offset)),
            TensorStorage::Strings(_) => None,
        }
    }

    /// What must have happened before the memory may be read; `None` where it may be read now.
    pub fn fence(&self) -> Option<&Arc<dyn Fence>> {
        self.fence.as_ref()
    }

    /// The same tensor once its memory may be read; waits for that where it must.
    pub fn wait_fence_on_host(self) -> Result<Self> {
        if let Some(fence) = &self.fence {
            fence.wait_on_host()?;
        }
        Ok(Self { fence: None, ..self })
    }

    /// The same tensor for work that is given to its device from now on: has the stream wait for
    /// its fence where it must.
    pub fn wait_fence_in_stream(self) -> Result<Self> {
        if let Some(fence) = &self.fence {
            fence.wait_in_stream()?;
        }
        Ok(Self { fence: None, ..self })
    }

    /// The same tensor where something else waits for it already.
    #[must_use]
    pub fn without_fence(self) -> Self {
        Self { fence: None, ..self }
    }

    /// The same tensor, which may be read once `fence` has happened.
    #[must_use]
    pub fn with_fence(self, fence: Arc<dyn Fence>) -> Self {
        Self { fence: Some(fence), ..self }
    }

    /// Address of the first element; `None` for strings.
    pub fn address(&self) -> Option<usize> {
        match &self.data {
            TensorStorage::Region { region, offset } => {
                Some(region.address().as_ptr().addr().wrapping_add(*offset))
            }
            TensorStorage::Strings(_) => None,
        }
    }

    /// Pointer to the first element; `None` for strings.
    pub fn data_pointer(&self) -> Option<*const u8> {
        match &self.data {
            TensorStorage::Region { region, offset } => {
                Some(region.address().as_ptr().wrapping_add(*offset).cast_const())
            }
            TensorStorage::Strings(_) => None,
        }
    }

    /// The bytes; `None` for strings and where the CPU can't read them.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.data {
            TensorStorage::Region { region, offset } => {
                let len = self.dtype.byte_len(self.element_count())?;
                region.bytes()?.get(*offset..offset.checked_add(len)?)
            }
            TensorStorage::Strings(_) => None,
        }
    }

    /// The strings of a string tensor.
    pub fn strings(&self) -> Option<&[Vec<u8>]> {
        match &self.data {
            TensorStorage::Strings(strings) => Some(strings),
            TensorStorage::Region { .. } => None,
        }
    }

    /// The same memory under another shape with as many elements.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Self> {
        if element_count(shape) != Some(self.element_count()) {
            return Err(Error::usage(format!(
                "{} can't become {}",
                display_shape(self.dtype, &self.shape),
                display_shape(self.dtype, shape)
            )));
        }
        Ok(Self { shape: shape.to_vec(), ..self.clone() })
    }

    /// Rows `start..start + count` of the first dimension, in the same memory.
    pub fn slice_rows(&self, start: usize, count: usize) -> Result<Self> {
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
        let row = element_count(rest).and_then(|n| n.checked_mul(self.dtype.bits_per_element()?));
        let row = row.filter(|bits| bits % 8 == 0).ok_or_else(wrong)? / 8;
        let mut shape = self.shape.clone();
        shape[0] = count;
        match &self.data {
            TensorStorage::Region { region, offset } => Ok(Self {
                dtype: self.dtype,
                shape,
                data: TensorStorage::Region {
                    region: Arc::clone(region),
                    offset: offset + start * row,
                },
                fence: self.fence.clone(),
            }),
            TensorStorage::Strings(_) => Err(wrong()),
        }
    }

    /// The elements as `f64`, whatever their numeric dtype; `None` for other dtypes.
    pub fn to_f64(&self) -> Option<Vec<f64>> {
        let bytes = self.bytes()?;
        fn map_chunks<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk)).collect()
        }
        Some(match self.dtype {
            DType::F32 => map_chunks(bytes, |b| f64::from(f32::from_le_bytes(b))),
            DType::F64 => map_chunks(bytes, f64::from_le_bytes),
            DType::F16 => map_chunks(bytes, |b| half::f16::from_le_bytes(b).to_f64()),
            DType::BF16 => map_chunks(bytes, |b| half::bf16::from_le_bytes(b).to_f64()),
            DType::I8 => map_chunks(bytes, |b| f64::from(i8::from_le_bytes(b))),
            DType::I16 => map_chunks(bytes, |b| f64::from(i16::from_le_bytes(b))),
            DType::I32 => map_chunks(bytes, |b| f64::from(i32::from_le_bytes(b))),
            DType::I64 => map_chunks(bytes, |b| i64::from_le_bytes(b) as f64),
            DType::U8 | DType::Bool => map_chunks::<1>(bytes, |b| f64::from(b[0])),
            DType::U16 => map_chunks(bytes, |b| f64::from(u16::from_le_bytes(b))),
            DType::U32 => map_chunks(bytes, |b| f64::from(u32::from_le_bytes(b))),
            DType::U64 => map_chunks(bytes, |b| u64::from_le_bytes(b) as f64),
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
    element_count(shape).and_then(|count| dtype.byte_len(count)).ok_or_else(|| {
        Error::usage(format!("{} has no size in bytes", display_shape(dtype, shape)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_share_the_memory_of_the_whole() {
        let whole = Tensor::from_f32(&[3, 2], &[0., 1., 2., 3., 4., 5.]).unwrap();
        let rows = whole.slice_rows(1, 2).unwrap();
        assert_eq!(rows.to_f64().unwrap(), [2., 3., 4., 5.]);
        assert_eq!(rows.address().unwrap(), whole.address().unwrap() + 8);
        assert!(whole.slice_rows(2, 2).is_err());
    }

    #[test]
    fn wrong_lengths_are_refused_with_both_sizes() {
        let error = Tensor::from_bytes(DType::F32, &[2], Bytes::from_static(b"abc")).unwrap_err();
        assert_eq!(error.to_string(), "f32[2] needs 8 bytes, got 3");
        assert!(TensorMut::new_zeroed(DType::F32, &[usize::MAX, 2]).is_err());
    }
}
