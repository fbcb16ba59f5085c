//! Outputs that are in the memory of a GPU, brought to where the CPU reads them.

use tessera_core::{Result, Tensor};
use tessera_cuda::to_host;

/// A copy that the CPU reads, once it is there.
pub(super) fn copy_to_host(tensor: &Tensor) -> Result<Tensor> {
    to_host(tensor)?.wait_fence_on_host()
}
