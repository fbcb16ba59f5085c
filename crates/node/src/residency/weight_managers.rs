//! The books of every memory of a node that weights may be in.

use std::sync::{Arc, Mutex};

use tessera_core::{Device, lock};
use tessera_deploy::ResidencyChoice;
use tessera_engine::{WeightLoading, gpu_memory};
use tessera_plan::residency::eviction::EvictionPolicy;

use super::manager::WeightManager;
use super::status::WeightUse;

/// What bounds weights in the memories of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightLimits {
    /// Bytes that they may take of the host's memory, where units run on the CPU; `None` where
    /// there is enough for all.
    pub host: Option<u64>,
    /// What they may take of the memory of each GPU.
    pub gpu: GpuBudget,
    /// Whose leave where there is no room.
    pub eviction: EvictionPolicy,
    /// How they come to a GPU.
    pub loading: WeightLoading,
}

/// What weights may take of the memory of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuBudget {
    /// As much as they need: they stay, and what does not fit can't be loaded.
    #[default]
    Unbounded,
    /// What is free when the first come, but a tenth of all.
    AllButMargin,
    /// So many bytes.
    Bytes(u64),
}

impl GpuBudget {
    /// Parts of a GPU's memory of which one is for what runs compute.
    const MARGIN_PARTS: u64 = 10;

    /// How much that is on a GPU; `None` where they are not bounded.
    fn bytes_on(self, gpu: u32) -> Option<u64> {
        match self {
            Self::Unbounded => None,
            Self::Bytes(bytes) => Some(bytes),
            Self::AllButMargin => match gpu_memory(gpu) {
                Ok((free, all)) => Some(free.saturating_sub(all / Self::MARGIN_PARTS)),
                Err(error) => {
                    tracing::warn!(gpu, %error, "weights are not bounded on a GPU");
                    None
                }
            },
        }
    }
}

impl Default for WeightLimits {
    fn default() -> Self {
        let (eviction, loading) = (EvictionPolicy::ReloadCost, WeightLoading::Pipeline);
        Self { host: None, gpu: GpuBudget::Unbounded, eviction, loading }
    }
}

/// Who gives out memory for weights, by device.
pub(crate) struct WeightManagers {
    limits: WeightLimits,
    made: Mutex<Vec<(Device, Arc<WeightManager>)>>,
}

impl WeightManagers {
    pub(crate) fn new(limits: WeightLimits) -> Self {
        Self { limits, made: Mutex::default() }
    }

    /// Who gives out the memory of a device; `None` where there is enough for all.
    pub(crate) fn manager_of(&self, device: Device) -> Option<Arc<WeightManager>> {
        let mut made = lock(&self.made);
        if let Some((_, known)) = made.iter().find(|(known, _)| *known == device) {
            return Some(Arc::clone(known));
        }
        let bytes = match device {
            Device::Cpu => self.limits.host,
            Device::Cuda(gpu) => self.limits.gpu.bytes_on(gpu),
        }?;
        let WeightLimits { eviction, loading, gpu, .. } = self.limits;
        let keeps_files = gpu != GpuBudget::AllButMargin;
        let manager = Arc::new(WeightManager::new(bytes, eviction, loading, keeps_files));
        made.push((device, Arc::clone(&manager)));
        Some(manager)
    }

    /// What weights take of each memory that is bounded.
    pub(crate) fn current_use(&self) -> Vec<(Device, WeightUse)> {
        self.all().into_iter().map(|(device, manager)| (device, manager.current_use())).collect()
    }

    /// Where the weights of an instance are to be from now on.
    pub(crate) fn set_choice(&self, instance: &str, choice: ResidencyChoice) {
        self.all().iter().for_each(|(_, manager)| manager.set_choice(instance, choice));
    }

    /// Has weights leave that were not used for a while, where that is wanted.
    pub(crate) fn release_unused(&self) {
        self.all().iter().for_each(|(_, manager)| manager.release_unused());
    }

    /// Gives memory back that weights have left and nobody has taken since.
    pub(crate) fn release_spare_memory(&self) {
        for (device, _) in self.all() {
            if let Device::Cuda(gpu) = device {
                tessera_engine::release_spare_memory(gpu);
            }
        }
    }

    fn all(&self) -> Vec<(Device, Arc<WeightManager>)> {
        lock(&self.made).clone()
    }
}
