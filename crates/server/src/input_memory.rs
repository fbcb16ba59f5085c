//! Memory for inputs: such as the units that run can read it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tessera_core::{DType, Device, Error, MemoryLocation, Result, Tensor, TensorMut, lock};
use tessera_deploy::{Isolation, Unit};
use tessera_node::{DeviceMemory, HostMemory, PinnedMemory, SharedHostMemory, TensorMemory};
use tessera_tensormq::{Endpoint, Wait};

/// Where inputs are.
pub(crate) struct InputMemory {
    endpoint: Endpoint,
    host: HostMemory,
    /// Memory that a GPU copies from while the host does other things, where a unit of this process
    /// runs on one.
    pinned: Mutex<Option<PinnedMemory>>,
    shared: SharedHostMemory,
    /// Memory on GPUs that other processes read there; made when a client's input is there.
    gpus: Mutex<BTreeMap<u32, Arc<DeviceMemory>>>,
    /// Whether any unit is in a process of its own.
    is_shared: AtomicBool,
}

impl InputMemory {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            host: HostMemory::default(),
            pinned: Mutex::default(),
            shared: SharedHostMemory::new(endpoint.clone()),
            endpoint,
            gpus: Mutex::default(),
            is_shared: AtomicBool::new(false),
        }
    }

    /// Has memory be such as these units, all that run here, can read.
    pub(crate) fn provide_for<'a>(&self, units: impl Iterator<Item = &'a Unit> + Clone) {
        let is_process = |unit: &Unit| unit.settings.isolation == Isolation::Process;
        self.is_shared.store(units.clone().any(is_process), Ordering::Relaxed);
        let on_gpu = |unit: &Unit| match (unit.settings.device, unit.settings.isolation) {
            (Device::Cuda(number), Isolation::Thread) => Some(number),
            _ => None,
        };
        let gpu = units.filter_map(on_gpu).min();
        *lock(&self.pinned) = gpu.and_then(|number| PinnedMemory::new(number).ok());
    }

    /// Memory for one input.
    pub(crate) fn allocate_tensor(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
        if dtype == DType::String {
            return Err(Error::unsupported("strings have no memory of their own"));
        }
        if self.is_shared.load(Ordering::Relaxed) {
            return self.shared.allocate_tensor(dtype, shape, Wait::No);
        }
        let pinned = lock(&self.pinned);
        match pinned.as_ref() {
            Some(pinned) => pinned.allocate_tensor(dtype, shape, Wait::No),
            None => self.host.allocate_tensor(dtype, shape, Wait::No),
        }
    }

    /// Gives back what nobody has used for some seconds.
    pub(crate) fn release_idle_memory(&self) {
        self.host.release_idle_memory();
        self.shared.release_idle_memory();
    }

    /// An input that a client has on a GPU, where a unit of another process reads it: copied on the
    /// GPU for one that runs there, else to the host.
    pub(crate) fn place_for_reader(
        &self,
        tensor: Tensor,
        device: Option<Device>,
    ) -> Result<Tensor> {
        match (tensor.location(), device) {
            (MemoryLocation::Cuda(number), Some(Device::Cuda(reader))) if number == reader => {
                self.on_gpu(number).adopt_tensor(tensor, Wait::No)
            }
            _ => self.shared.adopt_tensor(tensor, Wait::No),
        }
    }

    fn on_gpu(&self, number: u32) -> Arc<DeviceMemory> {
        let mut gpus = lock(&self.gpus);
        let make = || Arc::new(DeviceMemory::new(self.endpoint.clone(), number));
        Arc::clone(gpus.entry(number).or_insert_with(make))
    }
}
