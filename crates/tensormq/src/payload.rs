//! From the bytes of a tensor to the tensor.

use std::sync::Arc;

use tessera_core::{DType, Error, Region, Result, Tensor, element_count};

use crate::layout::TensorDescriptor;

/// The tensor that a descriptor finds `offset` bytes into `region`, in place where that can be.
pub(crate) fn tensor_from_region(
    descriptor: &TensorDescriptor,
    region: Arc<dyn Region>,
    offset: usize,
) -> Result<Tensor> {
    let end = offset.checked_add(descriptor.bytes).filter(|end| *end <= region.byte_len());
    let end = end.ok_or_else(|| {
        Error::invalid(format!(
            "a tensor of {} bytes, {offset} into a buffer of {}",
            descriptor.bytes,
            region.byte_len()
        ))
    })?;
    let TensorDescriptor { dtype, shape, .. } = descriptor;
    if *dtype == DType::String || !descriptor.is_contiguous() {
        let unreadable = || Error::unsupported("a tensor that the CPU can't read");
        let bytes =
            region.bytes().and_then(|bytes| bytes.get(offset..end)).ok_or_else(unreadable)?;
        return match dtype {
            DType::String => {
                let count = element_count(shape).unwrap_or(usize::MAX);
                Tensor::from_strings(shape, unpack_strings(bytes, count)?)
            }
            _ => Tensor::copy_from_bytes(*dtype, shape, &descriptor.gather_elements(bytes)?),
        };
    }
    if !must_be_copied(descriptor, &*region, offset) {
        return Tensor::from_region_at(*dtype, shape, region, offset);
    }
    let bytes = region.bytes().and_then(|bytes| bytes.get(offset..end));
    Tensor::copy_from_bytes(*dtype, shape, bytes.unwrap_or_default())
}

/// Whether such a tensor can't be used where it is.
pub(crate) fn must_be_copied(
    descriptor: &TensorDescriptor,
    region: &dyn Region,
    offset: usize,
) -> bool {
    let TensorDescriptor { dtype, .. } = descriptor;
    // Engines read elements through pointers of their type.
    let alignment = dtype.byte_len(1).unwrap_or(1).clamp(1, 8);
    let address = region.address().as_ptr().addr().wrapping_add(offset);
    *dtype == DType::String || !descriptor.is_contiguous() || !address.is_multiple_of(alignment)
}

/// Strings one after the other, each with its length before it (8 bytes).
pub(crate) fn pack_strings(strings: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(strings.iter().map(|string| string.len() + 8).sum());
    for string in strings {
        bytes.extend((string.len() as u64).to_le_bytes());
        bytes.extend_from_slice(string);
    }
    bytes
}

/// The strings of [`pack_strings`], which must be `count` and nothing else.
pub(crate) fn unpack_strings(bytes: &[u8], count: usize) -> Result<Vec<Vec<u8>>> {
    let wrong = || Error::invalid(format!("{count} strings that are not where they should be"));
    let mut strings = Vec::new();
    let mut rest = bytes;
    while let Some((len, after)) = rest.split_first_chunk::<8>() {
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| wrong())?;
        let (string, after) = after.split_at_checked(len).ok_or_else(wrong)?;
        if strings.len() == count {
            return Err(wrong());
        }
        strings.push(string.to_vec());
        rest = after;
    }
    if rest.is_empty() && strings.len() == count { Ok(strings) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::TensorPlace;
    use tessera_core::HostBuffer;

    #[test]
    fn strings_come_back_as_they_went() {
        let strings = vec![b"one".to_vec(), Vec::new(), "drei €".as_bytes().to_vec()];
        let packed = pack_strings(&strings);
        assert_eq!(unpack_strings(&packed, 3).unwrap(), strings);
        for (bytes, count) in [(&packed[..], 2), (&packed[..], 4), (&packed[..packed.len() - 1], 3)]
        {
            assert!(unpack_strings(bytes, count).is_err());
        }
        assert!(unpack_strings(&u64::MAX.to_le_bytes(), 1).is_err());
    }

    #[test]
    fn strides_are_followed() {
        // The transposed view of [[0, 1, 2], [3, 4, 5]].
        let descriptor = TensorDescriptor {
            dtype: DType::U8,
            shape: vec![3, 2],
            strides: vec![1, 3],
            bytes: 6,
            place: TensorPlace::Frame(0),
        };
        let mut buffer = HostBuffer::new(8);
        buffer.bytes_mut().unwrap().copy_from_slice(&[9, 9, 0, 1, 2, 3, 4, 5]);
        let region: Arc<dyn Region> = Arc::new(buffer);
        let tensor = tensor_from_region(&descriptor, Arc::clone(&region), 2).unwrap();
        assert_eq!(tensor.bytes().unwrap(), [0, 3, 1, 4, 2, 5]);
        assert!(tensor_from_region(&descriptor, region, 3).is_err());
    }

    #[test]
    fn elements_that_are_not_aligned_are_copied() {
        let buffer: Arc<dyn Region> = Arc::new(HostBuffer::new(16));
        let at = |offset| {
            let descriptor =
                TensorDescriptor::contiguous(DType::F32, &[2], 8, TensorPlace::Frame(0));
            tensor_from_region(&descriptor, Arc::clone(&buffer), offset).unwrap()
        };
        let start = buffer.address().as_ptr().addr();
        assert_eq!(at(4).address(), Some(start + 4));
        assert_ne!(at(3).address(), Some(start + 3));
        assert_eq!(at(3).address().unwrap() % 4, 0);
    }
}
