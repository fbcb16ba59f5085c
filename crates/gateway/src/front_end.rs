//! What the front ends have in common: who answers, what they allow, and shared memory.

use std::sync::Arc;

use tessera_core::{Error, Result, Tensor};
use tessera_cuda::to_host;

use crate::cuda_memory::CudaOffer;
use crate::protocol::{InputHeader, decode_strings, raw_bytes};
use crate::service::Service;
use crate::shared_regions::{Place, Region, SharedRegions};

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
    pub shared_memory: Arc<SharedRegions>,
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
        let check = || header.check_bytes(usize::try_from(place.byte_size).unwrap_or(usize::MAX));
        let read = || match self.options.shared_memory.find(place)? {
            Region::System(region) if header.byte_len().is_none() => {
                let bytes = region.read_all(place)?;
                let strings = decode_strings(&bytes, header.count())?;
                Tensor::from_strings(&header.shape, strings)
            }
            Region::System(region) => {
                check()?;
                header.filled(self.service.as_ref(), |target| region.read(place, target))
            }
            Region::Cuda(region) => {
                check()?;
                region.tensor(header.dtype, &header.shape, place)
            }
        };
        read().map_err(|error| header.blame(error))
    }

    /// Writes an output to where its client wants it in shared memory, and returns how many bytes it has.
    pub(crate) fn write_shared(&self, place: &Place, tensor: &Tensor) -> Result<usize> {
        match self.options.shared_memory.find(place)? {
            Region::System(region) => {
                let bytes = raw_bytes(&to_host(tensor)?.settled()?)?;
                region.write(place, &bytes)?;
                Ok(bytes.len())
            }
            Region::Cuda(region) => {
                region.write(place, tensor)?;
                Ok(tensor.byte_len())
            }
        }
    }

    /// Registers memory of a GPU.
    pub(crate) async fn register_cuda(&self, offer: CudaOffer) -> Result<()> {
        self.aside(move |regions| regions.register_cuda(offer)).await?
    }

    /// Forgets memory of a GPU, or all of it for the empty name.
    pub(crate) async fn unregister_cuda(&self, name: String) -> Result<()> {
        self.aside(move |regions| regions.unregister_cuda(&name)).await
    }

    /// Does something with regions off the threads that serve connections: a GPU takes a moment to be opened, and
    /// so does memory to be closed that it still reads.
    async fn aside<T: Send + 'static>(
        &self,
        what: impl FnOnce(&SharedRegions) -> T + Send + 'static,
    ) -> Result<T> {
        let regions = Arc::clone(&self.options.shared_memory);
        let done = tokio::task::spawn_blocking(move || what(&regions)).await;
        done.map_err(|error| Error::engine(format!("shared memory of a GPU: {error}")))
    }
}
