//! Batches: the inputs of several requests as one, and the outputs of one as several.

use std::time::Duration;

use tessera_core::{Error, MemoryLocation, Result, Tensor, concatenated_shape, join_adjacent};

/// How batches are made for whoever runs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchPolicy {
    /// How long those of one batch may be apart when they come to the next unit; `None` where
    /// nobody is waited for.
    pub(crate) regroup_wait: Option<Duration>,
    /// Whether batches have a power of two of rows.
    pub(crate) rounds_rows: bool,
    /// Whether the first run of each number of rows takes long, so that all are run once before
    /// requests come.
    pub(crate) warms_up: bool,
    /// Largest batch where calibration found that batches pay.
    pub(crate) most_rows: usize,
}

/// What requests must have in common to go into one batch: everything but the number of rows.
pub(crate) fn can_share_batch(a: &[Tensor], b: &[Tensor]) -> bool {
    let rest = |tensor: &Tensor| tensor.shape().get(1..).map(<[usize]>::to_vec);
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            let is_alike = match a.location() {
                MemoryLocation::Host => a.bytes().is_some() && b.bytes().is_some(),
                there => b.location() == there,
            };
            a.dtype() == b.dtype() && is_alike && rest(a) == rest(b)
        })
}

/// The rows of a request: the first dimension, where all inputs have the same.
pub(crate) fn request_rows(inputs: &[Tensor]) -> Option<usize> {
    let first = *inputs.first()?.shape().first()?;
    inputs.iter().all(|input| input.shape().first() == Some(&first)).then_some(first)
}

/// The shapes of the inputs of several requests as one.
pub(crate) fn batched_shapes(requests: &[&[Tensor]]) -> Vec<Vec<usize>> {
    let Some(first) = requests.first() else { return Vec::new() };
    let together = |(input, tensor): (usize, &Tensor)| {
        let mut shape = tensor.shape().to_vec();
        if requests.len() > 1 {
            let rows = |request: &&[Tensor]| request.get(input)?.shape().first().copied();
            if let Some(size) = shape.first_mut() {
                *size = requests.iter().filter_map(rows).sum();
            }
        }
        shape
    };
    first.iter().enumerate().map(together).collect()
}

/// Tensors one after the other along the first dimension.
///
/// Nothing is copied where they lie one after the other in memory already, as the parts of an
/// earlier batch do that are still together; else `concatenate` makes one of the shape that it is
/// given.
pub(crate) fn join_rows(
    parts: &[&Tensor],
    concatenate: impl FnOnce(&[&Tensor], &[usize]) -> Result<Tensor>,
) -> Result<Tensor> {
    if let [only] = parts {
        return Ok(Tensor::clone(only));
    }
    let shape = concatenated_shape(parts)?;
    match join_adjacent(parts, &shape) {
        Some(joined) => Ok(joined),
        None => concatenate(parts, &shape),
    }
}

/// The rows of each request, in the same memory.
pub(crate) fn split_rows(outputs: &[Tensor], rows: &[usize]) -> Result<Vec<Vec<Tensor>>> {
    let total: usize = rows.iter().sum();
    if rows.len() == 1 {
        return Ok(vec![outputs.to_vec()]);
    }
    if let Some(wrong) = outputs.iter().find(|output| output.shape().first() != Some(&total)) {
        return Err(Error::engine(format!(
            "a batch of {total} rows gave {:?}, which can't be told apart",
            wrong.shape()
        )));
    }
    let mut start = 0;
    rows.iter()
        .map(|&count| {
            let part = outputs.iter().map(|output| output.slice_rows(start, count)).collect();
            start += count;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_core::{TensorMut, concatenate_rows};

    fn join_on_host(parts: &[&Tensor]) -> Result<Tensor> {
        join_rows(parts, |parts, _| concatenate_rows(parts, TensorMut::new_zeroed))
    }

    #[test]
    fn what_lies_together_is_put_together_without_a_copy() {
        let whole = Tensor::from_f32(&[4, 2], &[0., 1., 2., 3., 4., 5., 6., 7.]).unwrap();
        let parts = split_rows(std::slice::from_ref(&whole), &[1, 2, 1]).unwrap();
        let parts: Vec<&Tensor> = parts.iter().map(|part| &part[0]).collect();
        let joined = join_on_host(&parts).unwrap();
        assert_eq!(joined.address(), whole.address());
        assert_eq!(joined.shape(), [4, 2]);
        let apart = join_on_host(&[parts[0], parts[2]]).unwrap();
        assert_eq!(apart.to_f64().unwrap(), [0., 1., 6., 7.]);
        let turned = join_on_host(&[parts[2], parts[0]]).unwrap();
        assert_eq!(turned.to_f64().unwrap(), [6., 7., 0., 1.]);
    }

    #[test]
    fn requests_fit_where_only_their_rows_differ() {
        let of = |shape: &[usize]| {
            vec![Tensor::from_f32(shape, &vec![0.0; shape.iter().product()]).unwrap()]
        };
        assert!(can_share_batch(&of(&[1, 3]), &of(&[5, 3])));
        assert!(!can_share_batch(&of(&[1, 3]), &of(&[1, 4])));
        assert!(!can_share_batch(&of(&[1, 3]), &of(&[1, 3, 1])));
        assert_eq!(request_rows(&of(&[5, 3])), Some(5));
        assert_eq!(request_rows(&of(&[])), None);
    }

    #[test]
    fn a_batch_whose_output_has_no_rows_is_refused() {
        let output = Tensor::from_f32(&[1, 2], &[0., 1.]).unwrap();
        assert!(split_rows(&[output], &[1, 2]).is_err());
    }
}
