//! Weights of a block on a device: an object with a place, a size and a life.
//!
//! Sessions read weights where these are and hold on to them; with the last session they go.
//! Whoever loads, moves or evicts weights does it here.

use std::ffi::CString;
use std::sync::Arc;

use tessera_core::{ContentHash, MemoryLocation, Result, Tensor};
use tessera_cuda::{Gpu, to_device};

/// The weights of a block on a device.
pub(crate) struct DeviceWeights {
    program: ContentHash,
    location: MemoryLocation,
    byte_len: usize,
    tensors: Vec<(CString, Tensor)>,
}

impl DeviceWeights {
    /// Copies weights to a GPU, and waits until they are there: the host's memory may go then.
    pub(crate) fn copy_to_gpu(
        program: ContentHash,
        gpu: &Arc<Gpu>,
        weights: &[(CString, Tensor)],
    ) -> Result<Self> {
        let copy = |(name, tensor): &(CString, Tensor)| Ok((name.clone(), to_device(gpu, tensor)?));
        let tensors = weights.iter().map(copy).collect::<Result<Vec<_>>>()?;
        gpu.synchronise_stream()?;
        let byte_len = tensors.iter().map(|(_, tensor)| tensor.byte_len()).sum();
        Ok(Self { program, location: MemoryLocation::Cuda(gpu.number()), byte_len, tensors })
    }

    /// The weights by name, where they are.
    pub(crate) fn tensors(&self) -> &[(CString, Tensor)] {
        &self.tensors
    }

    /// What is where.
    pub(crate) fn status(&self) -> DeviceWeightsStatus {
        let Self { program, location, byte_len, .. } = *self;
        DeviceWeightsStatus { program, location, byte_len }
    }
}

/// Which weights are where, and how large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceWeightsStatus {
    /// The program that they belong to.
    pub program: ContentHash,
    /// Where they are.
    pub location: MemoryLocation,
    /// How many bytes they take there.
    pub byte_len: usize,
}
