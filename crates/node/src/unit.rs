//! A unit that is loaded onto its device, and whoever runs it there.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tessera_core::{Device, Result, Tensor};
use tessera_deploy::{ResidencyChoice, Unit};
use tessera_engine::{Engine, LoadOptions, WeightLoading};
use tessera_tensormq::Wait;

use crate::ProgramSource;
use crate::executor::{Executor, UnitResources, load_executor};
use crate::memory::HostMemory;
use crate::unit_blocks::UnitBlocks;

/// A unit whose blocks are loaded.
pub struct LoadedUnit {
    blocks: Arc<UnitBlocks>,
    executor: Box<dyn Executor>,
}

impl LoadedUnit {
    /// Loads the blocks of a unit on the unit's device, and in other ways as the options say.
    pub fn load_blocks(
        engine: Arc<dyn Engine>,
        source: &dyn ProgramSource,
        unit: &Unit,
        resources: UnitResources,
        options: LoadOptions,
    ) -> Result<Self> {
        let run_memory = Arc::clone(&resources.run_memory);
        let rooms = resources.weight_rooms.as_ref();
        let weights = rooms.map_or(WeightLoading::Once, |rooms| rooms.loading());
        let keeps_files = rooms.is_some_and(|rooms| rooms.keeps_files());
        let options = LoadOptions { weights, keeps_files, ..options };
        let most_on_gpu = match (unit.settings.device, unit.settings.residency) {
            (Device::Cpu, _) => None,
            (Device::Cuda(_), ResidencyChoice::Direct) => Some(0),
            (Device::Cuda(_), _) => rooms.map(|rooms| rooms.budget()),
        };
        let mut blocks = UnitBlocks::fetch(engine, source, unit, options, run_memory)?;
        if let Some(most) = most_on_gpu.filter(|&most| blocks.weight_bytes() as u64 > most) {
            blocks.limit_on_gpu(most);
        }
        let blocks = Arc::new(blocks);
        let executor = load_executor(Arc::clone(&blocks), unit.settings.isolation, resources)?;
        Ok(Self { blocks, executor })
    }

    /// Whether several blocks became one.
    pub fn is_fused(&self) -> bool {
        self.blocks.is_fused()
    }

    /// Bytes of its weights.
    pub fn weight_bytes(&self) -> usize {
        self.blocks.weight_bytes()
    }

    /// What it runs on.
    pub fn device(&self) -> Device {
        self.blocks.device()
    }

    /// How many batches a worker runs at the same time, where there are so many cores.
    pub fn concurrent_runs(&self, cores: NonZeroUsize) -> NonZeroUsize {
        self.executor.concurrent_runs(cores)
    }

    /// Runs the unit on tensors that are there.
    pub fn run_unit(
        &self,
        threads: NonZeroUsize,
        inputs: &[Tensor],
        memory: &HostMemory,
        wait: Wait,
    ) -> Result<Vec<Tensor>> {
        self.executor.run_unit(threads, inputs, memory, wait)
    }

    /// Has its engine give back what no run needs.
    pub(crate) fn release_idle_memory(&self) {
        self.blocks.release_idle_memory();
    }

    /// Who runs it.
    pub(crate) fn executor(&self) -> &dyn Executor {
        &*self.executor
    }
}
