//! From the tensors of a message to where a receiver finds them, and from there to tensors.

use std::sync::Arc;

use tessera_core::{DType, Error, ErrorKind, Fence, Region, Result, Tensor};

use super::pool_imports::ReachablePools;
use crate::layout::{TensorDescriptor, TensorPlace};
use crate::payload;
use crate::pool::{OpenPool, WriteFence, prepare_for_receiver};

impl ReachablePools {
    /// How a receiver finds tensors: where they are if that is shared, else copies that are. Also
    /// what to hold until they are taken.
    ///
    /// `None` where there is no memory free for copies.
    pub(crate) fn share_tensors(
        &self,
        all: &[Tensor],
        is_early_send: bool,
    ) -> Result<Option<(Vec<Tensor>, Vec<TensorDescriptor>)>> {
        let mut tensors = Vec::with_capacity(all.len());
        let mut descriptors = Vec::with_capacity(all.len());
        // Those that must be copied go into one buffer: there are few.
        let mut copies: Vec<(usize, usize, Vec<u8>)> = Vec::new();
        let mut copied = 0usize;
        for (index, tensor) in all.iter().enumerate() {
            let pooled = tensor.region().and_then(|(region, offset)| {
                let slot = region.pool_slot()?;
                Some((slot, offset, self.reachable_pool(slot.pool)?))
            });
            let buffer = pooled.as_ref().map(|(slot, _, pool)| (*slot, &**pool));
            let tensor = prepare_for_receiver(tensor, buffer, is_early_send)?;
            let (dtype, shape) = (tensor.dtype(), tensor.shape());
            let (bytes, place) = match pooled {
                Some((slot, offset, _)) => {
                    (tensor.byte_len(), TensorPlace::Slot { slot, offset: offset as u64 })
                }
                None => {
                    let packed = tensor.strings().map(payload::pack_strings).unwrap_or_default();
                    let bytes = tensor.bytes().map_or(packed.len(), <[u8]>::len);
                    copies.push((index, copied, packed));
                    copied = copied.saturating_add(bytes.next_multiple_of(64));
                    // Where it is, is filled in below.
                    (bytes, TensorPlace::Frame(0))
                }
            };
            descriptors.push(TensorDescriptor::contiguous(dtype, shape, bytes, place));
            tensors.push(tensor);
        }
        if copies.is_empty() {
            return Ok(Some((tensors, descriptors)));
        }
        let mut buffer = match self.own_pools().borrow_spill_buffer(copied) {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == ErrorKind::Full => return Ok(None),
            Err(error) => return Err(error),
        };
        let slot = buffer.pool_slot().ok_or_else(|| Error::usage("a pool without slots"))?;
        for (index, offset, packed) in copies {
            let bytes = tensors[index].bytes().unwrap_or(&packed);
            let target = buffer.bytes_mut().and_then(|all| all.get_mut(offset..));
            if let Some(target) = target.and_then(|target| target.get_mut(..bytes.len())) {
                target.copy_from_slice(bytes);
            }
            self.own_pools().count_copied_bytes(bytes.len());
            descriptors[index].place = TensorPlace::Slot { slot, offset: offset as u64 };
        }
        let region: Arc<dyn Region> = buffer.into();
        let len = region.byte_len();
        tensors.push(Tensor::from_region(DType::U8, &[len], region)?);
        Ok(Some((tensors, descriptors)))
    }

    /// The tensor that a header describes, held by this process.
    pub(crate) fn resolve_tensor(
        &self,
        descriptor: &TensorDescriptor,
        pools: &mut Vec<Arc<OpenPool>>,
    ) -> Result<Tensor> {
        let TensorPlace::Slot { slot, offset } = descriptor.place else {
            return Err(Error::invalid("a tensor in a frame, where there are none"));
        };
        let pool = self.open_or_import_pool(slot.pool)?;
        let region = pool.hold_slot(slot.slot, slot.generation).ok_or_else(|| {
            Error::lost("a tensor's memory is in use for something else: its sender is gone")
        })?;
        let fence = WriteFence::for_slot(&pool, slot);
        pools.push(pool);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let region: Arc<dyn Region> = Arc::new(region);
        let Some(fence) = fence else {
            return payload::tensor_from_region(descriptor, region, offset);
        };
        if payload::must_be_copied(descriptor, &*region, offset) {
            // Here and now.
            fence.wait_on_host()?;
        }
        Ok(payload::tensor_from_region(descriptor, region, offset)?.with_fence(Arc::new(fence)))
    }
}
