//! Executors: each runs a unit on one kind of device.
//!
//! A worker is the same for all of them. What differs from device to device is here: when a run may
//! begin, how batches are made, the run itself, and how its outputs get to where they are read
//! next.

mod cpu;
mod cuda;
mod device_use;

use std::num::NonZeroUsize;
use std::sync::Arc;

use tessera_core::{Device, Error, Result, Tensor};
use tessera_deploy::Isolation;
use tessera_tensormq::{Deadline, Endpoint, Wait};

use crate::batch::BatchPolicy;
use crate::memory::HostMemory;
use crate::permits::{CorePermit, CorePermits};
use crate::residency::WeightRooms;
use crate::run_memory::RunMemory;
use crate::run_watch::{RunWatch, UnitRuns};
use crate::unit_blocks::UnitBlocks;
use crate::worker::batch_item::{BatchItem, BatchTiming, ExecutedRequest, RequestEntropy};
use crate::worker::context::WorkerContext;
pub(crate) use cuda::entropy_by_row_anywhere;
pub use cuda::{DeviceMemory, PinnedMemory};
pub use device_use::DeviceUse;

/// Runs a unit on one kind of device.
pub(crate) trait Executor: Send + Sync {
    /// How batches are made for it.
    fn batch_policy(&self) -> BatchPolicy;

    /// How many batches a worker runs at the same time, where there are so many cores.
    fn concurrent_runs(&self, cores: NonZeroUsize) -> NonZeroUsize;

    /// Waits for the right to run. `since` is when the oldest request was accepted, by the host's
    /// clock: older ones come first. At `deadline` nobody waits for it any more.
    fn acquire_permit(&self, since: u64, deadline: Option<Deadline>) -> Result<CorePermit>;

    /// Has its weights come, where they are not there: requests come soon.
    fn prefetch_weights(&self, _: Option<Deadline>) {}

    /// Whether weights come and go.
    fn weights_leave(&self) -> bool {
        false
    }

    /// Runs a batch.
    fn run_batch<'a>(
        &'a self,
        run: &BatchRun<'_>,
        permit: &mut CorePermit,
    ) -> Result<ExecutedBatch<'a>, BatchFailure>;

    /// Hands requests that were in one batch on to where they go next.
    fn hand_on(&self, context: &WorkerContext, executed: Vec<ExecutedRequest>);

    /// Whether a run may go on without end, and nothing could end it.
    fn may_run_forever(&self) -> bool {
        false
    }

    /// Runs the unit once on tensors that are there; for calibration. Outputs are in memory of this
    /// process alone.
    fn run_unit(
        &self,
        threads: NonZeroUsize,
        inputs: &[Tensor],
        memory: &HostMemory,
        wait: Wait,
    ) -> Result<Vec<Tensor>>;

    /// Its runs under way.
    fn unit_runs(&self) -> &UnitRuns;

    /// Gives memory back that nothing needs at the moment.
    fn release_idle_memory(&self);

    /// The device that it reads tensors on, where that is not the host's memory.
    fn reading_device(&self) -> Option<Device> {
        None
    }

    /// What it did on a device with memory of its own, and what it has there.
    fn device_use(&self) -> DeviceUse {
        DeviceUse::default()
    }
}

/// A batch that is to be run.
pub(crate) struct BatchRun<'a> {
    pub(crate) context: &'a WorkerContext,
    pub(crate) batch: &'a [BatchItem],
    /// The rows of each request.
    pub(crate) rows: &'a [usize],
    /// When its worker began with it, by the host's clock.
    pub(crate) started: u64,
    /// How long it may wait for memory.
    pub(crate) wait: Wait,
    /// When nobody waits for any of its requests any more.
    pub(crate) latest_deadline: Option<Deadline>,
}

impl BatchRun<'_> {
    /// The timing of a batch that begins to run.
    fn begin_timing(&self) -> BatchTiming {
        let batch = self.rows.iter().sum();
        BatchTiming { started: self.started, loading: 0, computed: 0, apart: 0, batch, rows: 0 }
    }
}

/// What a request came to.
type RequestResult = (Vec<Tensor>, Option<RequestEntropy>);

/// Done when the requests of a batch were handed on.
type Afterwards<'a> = Box<dyn FnOnce(&WorkerContext) + 'a>;

/// A batch that was run.
pub(crate) struct ExecutedBatch<'a> {
    /// Per request, its outputs and how uncertain it is; `None` for one that was sent on already.
    pub(crate) results: Vec<Option<RequestResult>>,
    pub(crate) timing: BatchTiming,
    pub(crate) afterwards: Option<Afterwards<'a>>,
}

/// A batch that could not be run.
pub(crate) struct BatchFailure {
    pub(crate) error: Error,
    /// Which requests were sent on early, and are taken care of; `None` where none was.
    pub(crate) sent_early: Option<Vec<bool>>,
}

impl From<Error> for BatchFailure {
    fn from(error: Error) -> Self {
        Self { error, sent_early: None }
    }
}

/// What units run with.
#[derive(Clone)]
pub struct UnitResources {
    /// Who gives out cores.
    pub permits: Arc<dyn CorePermits>,
    /// Memory for what is computed.
    pub memory: UnitMemory,
    /// What runs may take for themselves.
    pub run_memory: Arc<RunMemory>,
    /// Who ends runs whose time has passed.
    pub run_watch: Arc<RunWatch>,
    /// Where there is room for weights in the host's memory; `None` where there is enough.
    pub(crate) weight_rooms: Option<Arc<dyn WeightRooms>>,
}

impl UnitResources {
    /// Cores and memory, and nothing that bounds runs.
    pub fn new(permits: Arc<dyn CorePermits>, memory: UnitMemory) -> Self {
        Self {
            permits,
            memory,
            run_memory: Arc::default(),
            run_watch: Arc::default(),
            weight_rooms: None,
        }
    }
}

/// Who reads what a unit computes.
#[derive(Clone)]
pub enum UnitMemory {
    /// Its own process alone.
    InProcess(Arc<HostMemory>),
    /// Other processes, through pools of this endpoint.
    Shared(Endpoint),
}

/// The executor for a unit's device.
pub(crate) fn load_executor(
    blocks: Arc<UnitBlocks>,
    isolation: Isolation,
    resources: UnitResources,
) -> Result<Box<dyn Executor>> {
    match blocks.device() {
        Device::Cpu => Ok(Box::new(cpu::CpuExecutor::load_sessions(blocks, resources)?)),
        Device::Cuda(gpu) => {
            Ok(Box::new(cuda::CudaExecutor::load_sessions(blocks, gpu, isolation, resources)?))
        }
    }
}

/// What a run gives; a panic in an engine is its failure.
fn catch_panic<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(Error::engine("the unit panicked")))
}
