//! Which instances read tensors on a GPU.

use tessera_core::{Device, lock};

use super::Peers;
use crate::transport::id::Transport;

impl Peers {
    /// The GPU that an instance reads tensors on; none for the CPU, and where tensors don't get
    /// there as they are.
    pub fn device_of(&self, name: &str) -> Option<Device> {
        let known = lock(&self.known);
        let address = &known.get(name)?.address;
        let is_here = address.endpoint_id == self.endpoint.id();
        let as_they_are = is_here || self.transport.is_none_or(|way| way == Transport::SHM);
        address.device.filter(|_| as_they_are)
    }

    /// Whether an instance is in this process and runs on a GPU, so that tensors on one are handed
    /// over as they are.
    pub fn is_in_process_on_gpu(&self, name: &str) -> bool {
        self.is_in_process(name) && self.device_of(name).is_some()
    }
}
