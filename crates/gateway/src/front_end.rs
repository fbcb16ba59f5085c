//! What the front ends have in common: who answers, what they allow, and shared memory.

use std::sync::Arc;

use tessera_core::{Result, Tensor};

use crate::protocol::{InputHeader, decode_strings};
use crate::service::Service;
use crate::shared_memory::{Place, SharedMemory};

/// Bodies of up to 1 GiB: a batch of 1,700 images of 3×224×224 `f32` fits.
const LARGEST_BODY: usize = 1 << 30;

/// What the front ends allow.
///
/// Give clones of the same options to HTTP and gRPC: a region of shared memory that a client
/// registers with one of them is then known to the other.
#[derive(Clone, Debug)]
pub struct FrontEndOptions {
    /// Most bytes of a request, after decompression, and of a gRPC response.
    pub largest_body: usize,
    /// The regions of shared memory that clients have registered.
    pub shared_memory: Arc<SharedMemory>,
}

impl Default for FrontEndOptions {
    fn default() -> Self {
        Self { largest_body: LARGEST_BODY, shared_memory: Arc::default() }
    }
}

/// A service together with what the front ends allow.
pub(crate) struct FrontEnd {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) options: FrontEndOptions,
}

impl FrontEnd {
    pub(crate) fn new(service: Arc<dyn Service>, options: FrontEndOptions) -> Arc<Self> {
        Arc::new(Self { service, options })
    }

    /// An input that a client has put into shared memory.
    pub(crate) fn read_shared(&self, header: &InputHeader, place: &Place) -> Result<Tensor> {
        let read = || {
            let regions = &self.options.shared_memory;
            if header.byte_len().is_none() {
                let bytes = regions.read_all(place)?;
                let strings = decode_strings(&bytes, header.count())?;
                return Tensor::from_strings(&header.shape, strings);
            }
            header.check_bytes(usize::try_from(place.byte_size).unwrap_or(usize::MAX))?;
            header.filled(self.service.as_ref(), |target| regions.read(place, target))
        };
        read().map_err(|error| header.blame(error))
    }
}
