//! The part that runs units.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use tessera_core::{Device, Error, Result};
use tessera_deploy::Unit;
use tessera_engine::{CudaOptions, EngineName};
use tessera_node::{Calibration, NodeEvent, NodeOptions, NodeSupervisor, RunLimits, WeightLimits};
use tessera_telemetry::GpuSample;

use crate::gpu_sampler::GpuSampler;
use crate::host_memory::host_memory_bytes;
use crate::instance_group::InstanceGroup;
use crate::state_folder::state_folder;
use crate::transport::TransportPart;

/// Requests of one task whose rows may leave at exits travel row by row: so many of them at a time.
const ROWS_AT_A_TIME: usize = 32;

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Where blocks are.
    pub repository: PathBuf,
    /// What runs units.
    pub engine: EngineName,
    /// How they run on a GPU.
    pub cuda: CudaOptions,
    /// Cores to compute on.
    pub cores: NonZeroUsize,
    /// What bounds weights in memory.
    pub weight_limits: WeightLimits,
    /// What bounds runs; where nothing is said of memory, half of what there is.
    pub run_limits: RunLimits,
    /// The number of its first start: see [`NodeOptions::first_start`].
    pub first_start: u64,
}

/// A node that runs nothing yet.
pub struct NodePart {
    pub(crate) supervisor: NodeSupervisor,
    gpus: GpuSampler,
    /// Goes when its instances have.
    _group: Option<InstanceGroup>,
}

impl NodeConfig {
    /// Starts the node; `on_event` is told what happens to its instances.
    pub fn build(
        self,
        transport: &TransportPart,
        on_event: impl Fn(NodeEvent) + Send + Sync + 'static,
    ) -> Result<NodePart> {
        let memory = self.run_limits.memory.unwrap_or(host_memory_bytes() / 2);
        tessera_engine::limit_run_memory(usize::try_from(memory).unwrap_or(0));
        let group = InstanceGroup::create(host_memory_bytes());
        let options = NodeOptions {
            instance_group: group.as_ref().map(InstanceGroup::processes_file),
            run_limits: RunLimits { memory: Some(memory), ..self.run_limits },
            engine: self.engine,
            weight_limits: self.weight_limits,
            cuda: self.cuda,
            cores: self.cores,
            program: own_program()?,
            cache: Some(state_folder(&self.repository).join("prepared")),
            repository: self.repository,
            first_start: self.first_start,
        };
        let supervisor = NodeSupervisor::new(options, Arc::clone(&transport.peers), on_event)?;
        Ok(NodePart { supervisor, gpus: GpuSampler::default(), _group: group })
    }
}

impl NodePart {
    /// The engine of its units, with the version.
    pub(crate) fn engine_name(&self) -> String {
        let (engine, version) = self.supervisor.engine_name_and_version();
        format!("{engine} {version}")
    }

    /// What the GPUs among these devices do.
    pub(crate) fn sample_gpus(&self, devices: impl Iterator<Item = Device>) -> Vec<GpuSample> {
        self.gpus.sample_gpus(devices)
    }
}

/// How many requests may be on their way to or through one instance of a unit.
pub(crate) fn instance_window(
    unit: &Unit,
    calibration: Option<&Calibration>,
    cores: NonZeroUsize,
) -> usize {
    let batching = calibration.and_then(|calibration| calibration.batching);
    let batch = batching.map_or(1, |batching| batching.max_rows);
    // One that runs and one that waits for each core, so that none is ever idle.
    let busy = 2 * cores.get() + 2;
    let rows = if unit.takes_single_rows && unit.is_batchable { ROWS_AT_A_TIME } else { 0 };
    busy.max(2 * batch).max(rows)
}

/// This program, for units in processes of their own.
fn own_program() -> Result<PathBuf> {
    // The file itself, even where it is replaced by another while we run.
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() {
        Ok(own)
    } else {
        std::env::current_exe().map_err(|error| Error::from_io("where this program is", &error))
    }
}
