//! Memory for inputs: such as the blocks that run can read it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tessera_core::{DType, Device, Error, Location, Result, Tensor, TensorMut};
use tessera_node::{DeviceMemory, HostMemory, Memory, PinnedMemory, SharedMemory};
use tessera_tensormq::{Courier, Wait};

/// Where inputs are.
pub(super) struct InputMemory {
    courier: Courier,
    host: HostMemory,
    /// Memory that a GPU copies from while the host does other things, where a block of this process runs on one.
    pinned: Mutex<Option<PinnedMemory>>,
    shared: SharedMemory,
    /// Memory on GPUs that other processes read there; made when a client's input is there.
    gpus: Mutex<BTreeMap<u32, Arc<DeviceMemory>>>,
    /// Whether any block is in a process of its own.
    is_shared: AtomicBool,
}

impl InputMemory {
    pub(super) fn new(courier: Courier) -> Self {
        Self {
            host: HostMemory::default(),
            pinned: Mutex::default(),
            shared: SharedMemory::new(courier.clone()),
            courier,
            gpus: Mutex::default(),
            is_shared: AtomicBool::new(false),
        }
    }

    /// Whether any block is in a process of its own from now on.
    pub(super) fn set_shared(&self, is_shared: bool) {
        self.is_shared.store(is_shared, Ordering::Relaxed);
    }

    /// The GPU that blocks of this process run on from now on.
    pub(super) fn set_gpu(&self, gpu: Option<u32>) {
        let mut pinned = self.pinned.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *pinned = gpu.and_then(|number| PinnedMemory::new(number).ok());
    }

    /// Memory for one input.
    pub(super) fn tensor(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
        if dtype == DType::String {
            return Err(Error::unsupported("strings have no memory of their own"));
        }
        match self.is_shared.load(Ordering::Relaxed) {
            true => self.shared.tensor(dtype, shape, Wait::No),
            false => {
                let pinned = self.pinned.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                match pinned.as_ref() {
                    Some(pinned) => pinned.tensor(dtype, shape, Wait::No),
                    None => self.host.tensor(dtype, shape, Wait::No),
                }
            }
        }
    }

    /// An input that a client has on a GPU, where a block of another process reads it: copied on the GPU for one that
    /// runs there, else to the host.
    pub(super) fn share(&self, tensor: Tensor, device: Option<Device>) -> Result<Tensor> {
        match (tensor.location(), device) {
            (Location::Cuda(number), Some(Device::Cuda(reader))) if number == reader => {
                self.on_gpu(number).adopt(tensor, Wait::No)
            }
            _ => self.shared.adopt(tensor, Wait::No),
        }
    }

    fn on_gpu(&self, number: u32) -> Arc<DeviceMemory> {
        let mut gpus = self.gpus.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let make = || Arc::new(DeviceMemory::new(self.courier.clone(), number));
        Arc::clone(gpus.entry(number).or_insert_with(make))
    }
}
