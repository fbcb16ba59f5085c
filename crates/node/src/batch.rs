//! Batches: the inputs of several requests as one, and the outputs of one as several.

use tessera_core::{Device, Error, Location, Result, Tensor};
use tessera_engine::{is_shared, join_on_device};
use tessera_tensormq::Wait;

use crate::memory::Memory;

/// What requests must have in common to go into one batch: everything but the number of rows.
pub(crate) fn fit(a: &[Tensor], b: &[Tensor]) -> bool {
    let rest = |tensor: &Tensor| tensor.shape().get(1..).map(<[usize]>::to_vec);
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            let is_alike = match a.location() {
                Location::Host => a.bytes().is_some() && b.bytes().is_some(),
                there => b.location() == there,
            };
            a.dtype() == b.dtype() && is_alike && rest(a) == rest(b)
        })
}

/// The rows of a request: the first dimension, where all inputs have the same.
pub(crate) fn rows(inputs: &[Tensor]) -> Option<usize> {
    let first = *inputs.first()?.shape().first()?;
    inputs.iter().all(|input| input.shape().first() == Some(&first)).then_some(first)
}

/// The shapes of the inputs of several requests as one.
pub(crate) fn shapes(requests: &[&[Tensor]]) -> Vec<Vec<usize>> {
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

/// Tensors for work that is given to their GPU from now on, which waits for them there where it must.
pub(crate) fn held<'a>(
    device: Device,
    parts: impl Iterator<Item = &'a Tensor>,
) -> Result<Vec<Tensor>> {
    let mut last = None;
    let mut held = Vec::new();
    for part in parts {
        let slot = part.region().and_then(|(region, _)| region.pooled());
        // Rows of one buffer are waited for once.
        held.push(match slot.is_some() && slot == last {
            true => part.clone().unheld(),
            // Where processes take turns on the GPU, one that waits there takes its turn all the same.
            false if !is_shared(device) => part.clone().settled()?,
            false => part.clone().held()?,
        });
        last = slot;
    }
    Ok(held)
}

/// Tensors one after the other along the first dimension.
///
/// Nothing is copied where they lie one after the other in memory already, as the parts of an earlier
/// batch do that are still together.
pub(crate) fn join(
    device: Device,
    parts: &[&Tensor],
    memory: &dyn Memory,
    wait: Wait,
) -> Result<Tensor> {
    let Some((&first, others)) = parts.split_first() else {
        return Err(Error::usage("nothing to put together"));
    };
    if others.is_empty() {
        return Ok(first.clone());
    }
    let mut shape = first.shape().to_vec();
    shape[0] = parts.iter().map(|part| part.shape()[0]).sum();
    if let Some(joined) = adjacent(first, others, &shape) {
        return Ok(joined);
    }
    if let Device::Cuda(number) = device {
        // Also of those on the host: each is copied to its place, and never to another on the host.
        return join_on_device(number, parts, &shape);
    }
    let mut joined = memory.tensor(first.dtype(), &shape, wait)?;
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

/// The same memory as one tensor, where each part begins where the one before it ends.
fn adjacent(first: &Tensor, others: &[&Tensor], shape: &[usize]) -> Option<Tensor> {
    let (region, offset) = first.region()?;
    let mut end = first.address()?.checked_add(first.byte_len())?;
    for part in others {
        let (other, _) = part.region()?;
        let same = other.address() == region.address() && other.len() == region.len();
        if !same || part.address()? != end {
            return None;
        }
        end = end.checked_add(part.byte_len())?;
    }
    Tensor::from_region_at(first.dtype(), shape, region.clone(), offset).ok()
}

/// The rows of each request, in the same memory.
pub(crate) fn split(outputs: &[Tensor], rows: &[usize]) -> Result<Vec<Vec<Tensor>>> {
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
            let part = outputs.iter().map(|output| output.rows(start, count)).collect();
            start += count;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HostMemory;

    #[test]
    fn what_lies_together_is_put_together_without_a_copy() {
        let memory = HostMemory::default();
        let whole = Tensor::from_f32(&[4, 2], &[0., 1., 2., 3., 4., 5., 6., 7.]).unwrap();
        let parts = split(std::slice::from_ref(&whole), &[1, 2, 1]).unwrap();
        let parts: Vec<&Tensor> = parts.iter().map(|part| &part[0]).collect();
        let joined = join(Device::Cpu, &parts, &memory, Wait::No).unwrap();
        assert_eq!(joined.address(), whole.address());
        assert_eq!(joined.shape(), [4, 2]);
        let apart = join(Device::Cpu, &[parts[0], parts[2]], &memory, Wait::No).unwrap();
        assert_eq!(apart.to_f64().unwrap(), [0., 1., 6., 7.]);
        let turned = join(Device::Cpu, &[parts[2], parts[0]], &memory, Wait::No).unwrap();
        assert_eq!(turned.to_f64().unwrap(), [6., 7., 0., 1.]);
    }

    #[test]
    fn requests_fit_where_only_their_rows_differ() {
        let of = |shape: &[usize]| {
            vec![Tensor::from_f32(shape, &vec![0.0; shape.iter().product()]).unwrap()]
        };
        assert!(fit(&of(&[1, 3]), &of(&[5, 3])));
        assert!(!fit(&of(&[1, 3]), &of(&[1, 4])));
        assert!(!fit(&of(&[1, 3]), &of(&[1, 3, 1])));
        assert_eq!(rows(&of(&[5, 3])), Some(5));
        assert_eq!(rows(&of(&[])), None);
    }

    #[test]
    fn a_batch_whose_output_has_no_rows_is_refused() {
        let output = Tensor::from_f32(&[1, 2], &[0., 1.]).unwrap();
        assert!(split(&[output], &[1, 2]).is_err());
    }
}
