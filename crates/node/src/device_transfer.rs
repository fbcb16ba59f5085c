//! Tensors that lie on a GPU, brought to where they are read.

use tessera_core::{Device, MemoryLocation, Result, Tensor};
use tessera_engine::to_host;
use tessera_tensormq::Peers;

/// The same tensors where the CPU reads them. All copies are on their way before the first is
/// waited for.
pub(crate) fn bring_to_host(tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let is_there =
        |tensor: &Tensor| tensor.location() == MemoryLocation::Host && tensor.fence().is_none();
    if tensors.iter().all(is_there) {
        return Ok(tensors);
    }
    let copies = tensors.iter().map(to_host).collect::<Result<Vec<_>>>()?;
    copies.into_iter().map(Tensor::wait_fence_on_host).collect()
}

/// The same tensors where an instance reads them: on their GPU where they can stay there, on the
/// one that the instance runs on where `copy_to_gpu` brings them there, else on the host.
pub(crate) fn place_for_instance(
    peers: &Peers,
    instance: &str,
    tensors: Vec<Tensor>,
    copy_to_gpu: &dyn Fn(&Tensor, u32) -> Option<Tensor>,
) -> Result<Vec<Tensor>> {
    if can_stay_on_gpu(peers, instance, &tensors) {
        return Ok(tensors);
    }
    match copy_to_peer_gpu(peers, instance, &tensors, copy_to_gpu) {
        Some(there) => Ok(there),
        None => bring_to_host(tensors),
    }
}

/// Whether tensors stay on their GPU on the way to an instance that runs on one: within the
/// process, and to another one that can open the memory that they are in and reads them there.
fn can_stay_on_gpu(peers: &Peers, instance: &str, tensors: &[Tensor]) -> bool {
    let device = peers.device_of(instance);
    let reaches = |tensor: &Tensor| match tensor.location() {
        MemoryLocation::Cuda(number) => is_in_pool(tensor) && device == Some(Device::Cuda(number)),
        _ => true,
    };
    peers.is_in_process_on_gpu(instance) || tensors.iter().all(reaches)
}

/// Tensors on the GPU that an instance in another process runs on; `None` where they go through the
/// host.
fn copy_to_peer_gpu(
    peers: &Peers,
    instance: &str,
    tensors: &[Tensor],
    copy_to_gpu: &dyn Fn(&Tensor, u32) -> Option<Tensor>,
) -> Option<Vec<Tensor>> {
    let Some(Device::Cuda(there)) = peers.device_of(instance) else { return None };
    let bring = |tensor: &Tensor| match tensor.location() {
        MemoryLocation::Host => Some(tensor.clone()),
        MemoryLocation::Cuda(here) if here == there => Some(tensor.clone()).filter(is_in_pool),
        _ => copy_to_gpu(tensor, there),
    };
    tensors.iter().map(bring).collect()
}

/// Whether a tensor is in a pool, where other processes read it.
pub(crate) fn is_in_pool(tensor: &Tensor) -> bool {
    tensor.region().is_some_and(|(region, _)| region.pool_slot().is_some())
}
