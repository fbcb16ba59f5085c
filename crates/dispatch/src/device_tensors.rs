//! Inputs that a client has on a GPU, on their way to instances that can't read them there.
//!
//! Apart from how other requests are sent: those have their inputs in memory that every instance
//! reads.

use std::sync::Arc;

use tessera_core::{Device, MemoryLocation, Result, Tensor};
use tessera_tensormq::{Message, Peers};

/// Brings an input that is on a GPU to where an instance of another process reads it: one that
/// reads tensors on this device, or on the CPU where there is none.
pub type ExportInput = Arc<dyn Fn(Tensor, Option<Device>) -> Result<Tensor> + Send + Sync>;

/// The same message with tensors that its receiver can read: what a client has on a GPU is
/// handed over as it is within the process alone, to instances that run on one.
pub(crate) fn with_readable_tensors(
    peers: &Peers,
    export_input: &ExportInput,
    instance: &str,
    mut message: Message,
) -> Result<Message> {
    if peers.is_in_process_on_gpu(instance) {
        return Ok(message);
    }
    let device = peers.device_of(instance);
    let is_on_host = |tensor: &Tensor| tensor.location() == MemoryLocation::Host;
    let tensors = message
        .take_tensors()
        .into_iter()
        .map(|tensor| if is_on_host(&tensor) { Ok(tensor) } else { export_input(tensor, device) });
    let tensors = tensors.collect::<Result<_>>()?;
    Ok(message.with_tensors(tensors))
}
