//! Tensors that lie on a GPU, brought to where they are read.

use tessera_core::{Device, Location, Result, Tensor};
use tessera_engine::{to_gpu, to_host};

/// The same tensors where the CPU reads them. All copies are on their way before the first is waited for.
pub(crate) fn on_host(tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
    if tensors.iter().all(|tensor| tensor.location() == Location::Host && tensor.after().is_none())
    {
        return Ok(tensors);
    }
    let copies = tensors.iter().map(to_host).collect::<Result<Vec<_>>>()?;
    copies.into_iter().map(Tensor::settled).collect()
}

/// The same tensors where a block on this device reads them. On a GPU the copies are on their way, in its stream.
pub(crate) fn for_device(device: Device, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    match device {
        Device::Cpu => on_host(tensors.to_vec()),
        Device::Cuda(number) => tensors.iter().map(|tensor| to_gpu(number, tensor)).collect(),
    }
}
