//! Tensors one after the other along their first dimension.

use crate::{DType, Error, Result, Tensor, TensorMut};

/// The shape of tensors one after the other: that of each but for the number of rows.
pub fn concatenated_shape(parts: &[&Tensor]) -> Result<Vec<usize>> {
    let first = parts.first().ok_or_else(|| Error::usage("nothing to put together"))?;
    let mut shape = first.shape().to_vec();
    let is_alike = |part: &&Tensor| {
        part.dtype() == first.dtype() && part.shape().get(1..) == first.shape().get(1..)
    };
    let fits = parts.iter().all(is_alike);
    let (true, Some(rows)) = (fits, shape.first_mut()) else {
        return Err(Error::invalid(format!(
            "tensors that can't be put together: {parts:?}, expected the same but for their rows"
        )));
    };
    *rows = parts.iter().filter_map(|part| part.shape().first()).sum();
    Ok(shape)
}

/// The same memory as one tensor of this shape, where each part begins where the one before it
/// ends, as the parts of an earlier batch do that are still together. It has no fence.
pub fn join_adjacent(parts: &[&Tensor], shape: &[usize]) -> Option<Tensor> {
    let (first, others) = parts.split_first()?;
    let (region, offset) = first.region()?;
    let mut end = first.address()?.checked_add(first.byte_len())?;
    for part in others {
        let (other, _) = part.region()?;
        let same = other.address() == region.address() && other.byte_len() == region.byte_len();
        if !same || part.address()? != end {
            return None;
        }
        end = end.checked_add(part.byte_len())?;
    }
    Tensor::from_region_at(first.dtype(), shape, region.clone(), offset).ok()
}

/// A copy of tensors that the CPU reads, one after the other, in memory that `allocate` makes.
pub fn concatenate_rows(
    parts: &[&Tensor],
    allocate: impl FnOnce(DType, &[usize]) -> Result<TensorMut>,
) -> Result<Tensor> {
    let shape = concatenated_shape(parts)?;
    let dtype = parts.first().map_or(DType::F32, |first| first.dtype());
    let mut joined = allocate(dtype, &shape)?;
    let unreadable = || Error::unsupported("tensors that the CPU can't read can't be put together");
    let mut target = joined.bytes_mut().ok_or_else(unreadable)?;
    for part in parts {
        let bytes = part.bytes().ok_or_else(unreadable)?;
        let (here, rest) = target.split_at_mut(bytes.len().min(target.len()));
        if here.len() != bytes.len() {
            return Err(Error::invalid("a tensor has more bytes than its shape says"));
        }
        here.copy_from_slice(bytes);
        target = rest;
    }
    Ok(joined.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(shape: &[usize], values: &[f32]) -> Tensor {
        Tensor::from_f32(shape, values).unwrap()
    }

    #[test]
    fn rows_come_one_after_the_other_in_the_order_given() {
        let (one, two) = (numbers(&[1, 2], &[0., 1.]), numbers(&[2, 2], &[2., 3., 4., 5.]));
        let joined = concatenate_rows(&[&two, &one], TensorMut::new_zeroed).unwrap();
        assert_eq!(joined.shape(), [3, 2]);
        assert_eq!(joined.to_f64().unwrap(), [2., 3., 4., 5., 0., 1.]);
    }

    #[test]
    fn what_lies_together_is_one_tensor_without_a_copy() {
        let whole = numbers(&[4, 1], &[0., 1., 2., 3.]);
        let part = |start, count| whole.slice_rows(start, count).unwrap();
        let (first, middle, last) = (part(0, 1), part(1, 2), part(3, 1));
        let joined = join_adjacent(&[&first, &middle, &last], &[4, 1]).unwrap();
        assert_eq!((joined.address(), joined.shape()), (whole.address(), whole.shape()));
        assert!(join_adjacent(&[&first, &last], &[2, 1]).is_none());
        assert!(join_adjacent(&[&middle, &first], &[3, 1]).is_none());
    }

    #[test]
    fn tensors_that_differ_in_more_than_their_rows_are_refused() {
        let (one, other) = (numbers(&[1, 2], &[0., 1.]), numbers(&[1, 3], &[0., 1., 2.]));
        let whole = Tensor::from_i64(&[1, 2], &[0, 1]).unwrap();
        let scalar = numbers(&[], &[1.]);
        for parts in [vec![&one, &other], vec![&one, &whole], vec![&scalar, &scalar], vec![]] {
            assert!(concatenate_rows(&parts, TensorMut::new_zeroed).is_err(), "{parts:?}");
        }
    }
}
