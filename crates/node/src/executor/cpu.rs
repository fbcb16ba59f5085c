//! Runs units on the CPU: on as many cores as a permit is for, into memory that the next unit
//! reads.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_core::{ErrorKind, MemoryLocation, Result, Tensor, concatenate_rows, lock};
use tessera_engine::EngineSession;
use tessera_tensormq::{Deadline, Wait};

use super::{BatchFailure, BatchRun, ExecutedBatch, Executor, UnitMemory, UnitResources};
use crate::batch::{self, BatchPolicy};
use crate::device_transfer::{bring_to_host, place_for_instance};
use crate::entropy::entropy_by_row;
use crate::memory::{HostMemory, SharedHostMemory, TensorMemory};
use crate::permits::{CorePermit, CorePermits, PermitRevoker};
use crate::residency::{UnitWeights, WeightHolder};
use crate::run_watch::{RunTerminators, UnitRuns, WatchedRunGuard};
use crate::unit_blocks::{UnitBlocks, input_shapes};
use crate::worker::batch_item::ExecutedRequest;
use crate::worker::context::WorkerContext;
use crate::worker::exit::request_entropies;
use crate::worker::forward::PlaceTensors;

/// Largest batch where calibration found that batches pay.
const MOST_ROWS: usize = 16;

/// Most batches that a worker runs at the same time.
const MOST_CONCURRENT_RUNS: usize = 4;

/// A session for each block, and what ends their runs.
struct BlockSessions {
    sessions: Vec<Box<dyn EngineSession>>,
    terminators: RunTerminators,
}

/// What bounds a run.
struct RunBounds {
    threads: NonZeroUsize,
    /// How long somebody waits for it.
    patience: Option<Duration>,
    /// What gives its cores to others where it does not end.
    permit: Option<PermitRevoker>,
}

/// The sessions of a unit, which have its weights in memory.
struct UnitSessions {
    blocks: Arc<UnitBlocks>,
    /// The threads of the smallest and the largest permit, which are common.
    common_sizes: Vec<NonZeroUsize>,
    /// Sessions that nobody runs at the moment, by number of threads.
    free: Mutex<BTreeMap<NonZeroUsize, Vec<BlockSessions>>>,
    /// Whether they were loaded before.
    was_loaded: AtomicBool,
}

impl UnitSessions {
    fn take_sessions(&self, threads: NonZeroUsize) -> Result<BlockSessions> {
        match lock(&self.free).get_mut(&threads).and_then(Vec::pop) {
            Some(free) => Ok(free),
            None => {
                let sessions = self.blocks.load_sessions(threads)?;
                let terminators = sessions.iter().filter_map(|session| session.run_terminator());
                Ok(BlockSessions { terminators: terminators.collect(), sessions })
            }
        }
    }

    fn give_sessions_back(&self, threads: NonZeroUsize, sessions: BlockSessions) {
        lock(&self.free).entry(threads).or_default().push(sessions);
    }
}

impl WeightHolder for UnitSessions {
    /// Loads sessions for the common sizes of permits; others are loaded when they come up. What
    /// comes back somebody waits for: then it is those that a run takes that is alone.
    fn load_weights(&self) -> Result<()> {
        let comes_back = self.was_loaded.swap(true, Ordering::Relaxed);
        let first = if comes_back { self.common_sizes.len().saturating_sub(1) } else { 0 };
        for threads in self.common_sizes.iter().skip(first) {
            let sessions = self.take_sessions(*threads)?;
            self.give_sessions_back(*threads, sessions);
        }
        Ok(())
    }

    fn unload_weights(&self) {
        lock(&self.free).clear();
        self.blocks.release_weights();
    }
}

/// Runs a unit on the CPU.
pub(super) struct CpuExecutor {
    blocks: Arc<UnitBlocks>,
    permits: Arc<dyn CorePermits>,
    memory: Arc<dyn TensorMemory>,
    /// Its runs under way.
    runs: UnitRuns,
    weights: Arc<UnitWeights<UnitSessions>>,
}

impl CpuExecutor {
    /// Loads what runs need most often.
    pub(super) fn load_sessions(blocks: Arc<UnitBlocks>, resources: UnitResources) -> Result<Self> {
        let UnitResources { permits, memory, run_watch, weight_rooms, .. } = resources;
        let memory: Arc<dyn TensorMemory> = match memory {
            UnitMemory::InProcess(memory) => memory,
            UnitMemory::Shared(endpoint) => Arc::new(SharedHostMemory::new(endpoint)),
        };
        let sizes = permits.permit_sizes();
        let runs = UnitRuns::new(run_watch);
        let sessions = UnitSessions {
            blocks: Arc::clone(&blocks),
            common_sizes: [sizes.first(), sizes.last()].into_iter().flatten().copied().collect(),
            free: Mutex::default(),
            was_loaded: AtomicBool::new(false),
        };
        let (rooms, parts) = (weight_rooms.as_deref(), blocks.weight_parts());
        let weights = UnitWeights::load_first(sessions, rooms, parts)?;
        Ok(Self { blocks, permits, memory, runs, weights })
    }

    /// Runs the unit on so many threads; outputs are in `memory` wherever that can be known before.
    fn run_into(
        &self,
        inputs: Vec<Tensor>,
        memory: &dyn TensorMemory,
        wait: Wait,
        bounds: RunBounds,
    ) -> Result<Vec<Tensor>> {
        let RunBounds { threads, patience, permit } = bounds;
        let inputs = &bring_to_host(inputs)?[..];
        let mut sessions = self.weights.holder().take_sessions(threads)?;
        let watched = self.runs.begin_run(patience, Arc::clone(&sessions.terminators), permit);
        let result = self.run_sessions(&mut sessions.sessions, inputs, memory, wait, &watched);
        drop(watched);
        self.weights.holder().give_sessions_back(threads, sessions);
        // What the engine allocated itself would be copied when it is sent, to one of few buffers
        // that whoever receives it may keep.
        result?.into_iter().map(|output| memory.adopt_tensor(output, wait)).collect()
    }

    fn run_sessions(
        &self,
        sessions: &mut [Box<dyn EngineSession>],
        inputs: &[Tensor],
        memory: &dyn TensorMemory,
        wait: Wait,
        watched: &WatchedRunGuard<'_>,
    ) -> Result<Vec<Tensor>> {
        let key = input_shapes(inputs);
        let mut run =
            |bound| watched.result_of(self.blocks.run_blocks(sessions, inputs, bound, wait));
        match self.blocks.known_output_shapes(&key) {
            Some(Some(shapes)) => {
                let bound = self.blocks.bind_outputs(&shapes, memory, wait);
                match bound.and_then(&mut run) {
                    Err(error)
                        if !matches!(
                            error.kind(),
                            ErrorKind::Full | ErrorKind::TimedOut | ErrorKind::Corrupt
                        ) =>
                    {
                        // The shapes may depend on what is in the tensors.
                        let result = run(Vec::new());
                        if result.is_ok() {
                            self.blocks.forget_output_shapes(key);
                        }
                        result
                    }
                    result => result,
                }
            }
            Some(None) => run(Vec::new()),
            None => {
                let result = run(Vec::new());
                if let Ok(outputs) = &result {
                    self.blocks.remember_output_shapes(key, outputs);
                }
                result
            }
        }
    }

    /// The inputs of a batch as one.
    fn join_inputs(&self, run: &BatchRun<'_>) -> Result<Vec<Tensor>> {
        let inputs = run.batch.first().map_or(0, |first| first.inputs.len());
        (0..inputs)
            .map(|input| {
                let parts: Vec<&Tensor> =
                    run.batch.iter().map(|item| &item.inputs[input]).collect();
                batch::join_rows(&parts, |parts, _| {
                    concatenate_rows(parts, |dtype, shape| {
                        self.memory.allocate_tensor(dtype, shape, run.wait)
                    })
                })
            })
            .collect()
    }
}

impl Executor for CpuExecutor {
    fn batch_policy(&self) -> BatchPolicy {
        BatchPolicy { most_rows: MOST_ROWS, ..BatchPolicy::default() }
    }

    /// As many as there are cores, or few enough that each of them gets several.
    fn concurrent_runs(&self, cores: NonZeroUsize) -> NonZeroUsize {
        NonZeroUsize::new(MOST_CONCURRENT_RUNS).map_or(cores, |most| cores.min(most))
    }

    /// Weights come before cores: nobody else's run waits for those of this one.
    fn acquire_permit(&self, since: u64, deadline: Option<Deadline>) -> Result<CorePermit> {
        let weights = self.weights.take_lease(deadline)?;
        Ok(self.permits.acquire_permit(since)?.with_weights(weights))
    }

    fn prefetch_weights(&self, deadline: Option<Deadline>) {
        self.weights.prefetch(deadline);
    }

    fn weights_leave(&self) -> bool {
        self.weights.may_leave()
    }

    fn run_batch<'a>(
        &'a self,
        run: &BatchRun<'_>,
        permit: &mut CorePermit,
    ) -> Result<ExecutedBatch<'a>, BatchFailure> {
        let mut timing = run.begin_timing();
        timing.loading = u64::try_from(permit.waited_for_weights().as_nanos()).unwrap_or(0);
        let results = super::catch_panic(|| {
            let begun = Deadline::now().nanoseconds();
            let inputs = self.join_inputs(run)?;
            let bounds = RunBounds {
                threads: permit.cores(),
                patience: run.latest_deadline.map(Deadline::remaining),
                permit: Some(permit.revoker()),
            };
            let outputs = self.run_into(inputs, &*self.memory, run.wait, bounds)?;
            timing.computed = Deadline::now().nanoseconds().saturating_sub(begun);
            permit.finish_run();
            let entropies = request_entropies(run.batch, &outputs, run.rows, entropy_by_row);
            timing.apart = Deadline::now().nanoseconds().saturating_sub(begun);
            Ok(batch::split_rows(&outputs, run.rows)?.into_iter().zip(entropies))
        })?;
        Ok(ExecutedBatch { results: results.map(Some).collect(), timing, afterwards: None })
    }

    fn hand_on(&self, context: &WorkerContext, executed: Vec<ExecutedRequest>) {
        executed.into_iter().for_each(|request| context.forward_request(request, self));
    }

    fn may_run_forever(&self) -> bool {
        let can_be_ended = |sessions: &BlockSessions| !sessions.terminators.is_empty();
        let Ok(_lease) = self.weights.take_lease(None) else { return false };
        let free = lock(&self.weights.holder().free);
        self.blocks.has_loops() && !free.values().flatten().all(can_be_ended)
    }

    fn run_unit(
        &self,
        threads: NonZeroUsize,
        inputs: &[Tensor],
        memory: &HostMemory,
        wait: Wait,
    ) -> Result<Vec<Tensor>> {
        let bounds = RunBounds { threads, patience: None, permit: None };
        let _lease = self.weights.take_lease(None)?;
        self.run_into(inputs.to_vec(), memory, wait, bounds)
    }

    fn unit_runs(&self) -> &UnitRuns {
        &self.runs
    }

    fn release_idle_memory(&self) {
        self.memory.release_idle_memory();
        self.blocks.release_grown_memory();
    }
}

impl PlaceTensors for CpuExecutor {
    /// What it computed is where every instance reads it; what it only passes on may be elsewhere.
    fn place_for_instance(
        &self,
        context: &WorkerContext,
        instance: &str,
        tensors: Vec<Tensor>,
    ) -> Result<Vec<Tensor>> {
        if tensors.iter().all(|tensor| tensor.location() == MemoryLocation::Host) {
            return Ok(tensors);
        }
        place_for_instance(&context.peers, instance, tensors, &|_, _| None)
    }

    fn place_for_reply(&self, tensors: Vec<Tensor>) -> Result<(Vec<Tensor>, bool)> {
        Ok((bring_to_host(tensors)?, false))
    }
}
