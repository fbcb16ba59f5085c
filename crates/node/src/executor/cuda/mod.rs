//! Runs units on a GPU: runs are launched and not waited for, and tensors stay there.
//!
//! All work of a process on a GPU goes into one stream, so that units hand memory to each other
//! without waiting. What makes that pay is in the files here: a queue that keeps the GPU from
//! having too much before it ([`gpu_queue`]), sessions for each shape whose runs are captured as
//! CUDA graphs ([`sessions`]), messages and replies that go out before the GPU has computed what
//! they carry ([`early_send`], [`early_reply`]), and threads that go on with the next unit
//! ([`hand_on`]).

mod early_reply;
mod early_send;
mod gpu_queue;
mod gpu_weights;
mod hand_on;
mod memory;
mod sessions;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tessera_core::{Device, MemoryLocation, Result, Tensor, TensorMut, UnwrittenRegion, lock};
use tessera_deploy::Isolation;
use tessera_engine::{
    OpenGpuSpan, begin_gpu_span, concatenate_on_device, copy_counts, entropy_on_device,
    is_device_shared, to_gpu, to_host,
};
use tessera_graph::{ScoreKind, TensorSource};
use tessera_tensormq::{Deadline, Wait};

use super::{
    BatchFailure, BatchRun, DeviceUse, ExecutedBatch, Executor, UnitMemory, UnitResources,
};
use crate::batch::{self, BatchPolicy};
use crate::device_transfer::{bring_to_host, place_for_instance};
use crate::entropy::{entropy_by_row, scores_as_f64};
use crate::memory::{HostMemory, TensorMemory};
use crate::permits::CorePermit;
use crate::residency::UnitWeights;
use crate::run_watch::UnitRuns;
use crate::unit_blocks::{TensorShapes, UnitBlocks};
use crate::worker::batch_item::{BatchItem, ExecutedRequest};
use crate::worker::context::WorkerContext;
use crate::worker::exit::request_entropies;
use crate::worker::forward::PlaceTensors;
use early_reply::{EarlyReply, are_pending_on_host};
use early_send::{EarlySender, SendEarly};
use gpu_queue::{GpuQueue, GpuTimeCounter, LaunchedWork};
use gpu_weights::{GpuWeights, parts_on_gpu};
pub use memory::{DeviceMemory, PinnedMemory};
use sessions::{SessionsByShape, ShapeSessions};

/// How long those of one batch may be apart when they come to the next unit.
const REGROUP_WAIT: Duration = Duration::from_micros(300);

/// Largest batch where calibration found that batches pay.
const MOST_ROWS: usize = 32;

/// One that waits for results, and one that launches what is next.
const MOST_CONCURRENT_RUNS: usize = 2;

/// Runs a unit on a GPU.
pub(super) struct CudaExecutor {
    blocks: Arc<UnitBlocks>,
    gpu: u32,
    /// Memory on the GPU that other processes read; none where units are threads of one process.
    exported: Option<DeviceMemory>,
    weights: Arc<UnitWeights<GpuWeights>>,
    /// What the GPU has to do.
    queue: Arc<GpuQueue>,
    /// How long the GPU worked for it.
    gpu_time: Arc<GpuTimeCounter>,
    /// How many runs of its blocks were replayed from a CUDA graph.
    replayed_runs: AtomicU64,
    /// Its runs under way.
    runs: UnitRuns,
    /// Whether requests may be sent on before the run that computes what they carry is launched.
    may_send_early: AtomicBool,
    /// Whether replies may be sent before the GPU has computed them.
    may_reply_early: AtomicBool,
}

/// What a run takes, and when.
struct LaunchInputs<'a> {
    /// The inputs of each request.
    requests: Vec<&'a [Tensor]>,
    /// Those of all of them as one; asked for when it is its turn.
    joined: &'a mut dyn FnMut() -> Result<Vec<Tensor>>,
    /// Who sends outputs on before the run that writes them is launched.
    early_send: Option<&'a mut dyn SendEarly>,
}

/// Memory for the outputs of a run: to write, and as tensors that are handed on.
struct BoundOutputs {
    targets: Vec<(TensorSource, TensorMut)>,
    outputs: Vec<Tensor>,
}

impl CudaExecutor {
    /// Loads the sessions for the shape that comes first.
    pub(super) fn load_sessions(
        blocks: Arc<UnitBlocks>,
        gpu: u32,
        isolation: Isolation,
        resources: UnitResources,
    ) -> Result<Self> {
        let exported = match resources.memory {
            UnitMemory::InProcess(_) => None,
            UnitMemory::Shared(endpoint) => Some(DeviceMemory::new(endpoint, gpu)),
        };
        let rooms = resources.weight_rooms.as_deref();
        let sessions = SessionsByShape::new(Arc::clone(&blocks), rooms.is_some());
        let parts = parts_on_gpu(blocks.weight_parts());
        let gpu_time = Arc::<GpuTimeCounter>::default();
        let holder = GpuWeights::new(sessions, Arc::clone(&gpu_time));
        let weights = UnitWeights::load_first(holder, rooms, parts)?;
        Ok(Self {
            weights,
            blocks,
            gpu,
            exported,
            queue: GpuQueue::of_gpu(gpu, isolation),
            gpu_time,
            replayed_runs: AtomicU64::new(0),
            runs: UnitRuns::new(resources.run_watch),
            may_send_early: AtomicBool::new(is_device_shared(Device::Cuda(gpu))),
            may_reply_early: AtomicBool::new(true),
        })
    }

    /// Launches a run of the unit; the GPU is not done when this returns.
    fn launch_run(
        &self,
        launch_inputs: LaunchInputs<'_>,
        exported: Option<&DeviceMemory>,
        wait: Wait,
    ) -> Result<Vec<Tensor>> {
        let LaunchInputs { requests, joined, early_send } = launch_inputs;
        let key = batch::batched_shapes(&requests);
        // On the host they must stay until the GPU has read them.
        let on_host = |input: &&Tensor| input.location() == MemoryLocation::Host;
        let reads = requests.into_iter().flatten().filter(on_host).cloned().collect();
        let sessions = self.weights.holder().sessions().sessions_for(&key)?;
        let bound = exported.and_then(|memory| self.bind_exported_outputs(&key, memory));
        let rows = key.first().and_then(|shape| shape.first()).copied().unwrap_or(1);
        let launch = || {
            let sessions = &mut *lock(&sessions);
            let replayed_before = sessions.replayed_runs();
            // Whoever is next is told first, where the launch takes longer than that.
            let (was_replayed, mut early_send) = (sessions.was_replayed, early_send);
            let is_sent_early = match (&mut early_send, &bound) {
                (Some(early_send), Some(bound)) if !was_replayed => {
                    early_send.send_early(&bound.outputs)
                }
                _ => false,
            };
            let is_bound = bound.is_some();
            let given = joined()?;
            let work = begin_gpu_span(Device::Cuda(self.gpu))?;
            let inputs = given.iter().map(|tensor| to_gpu(self.gpu, tensor));
            let inputs = inputs.collect::<Result<Vec<_>>>()?;
            self.weights.holder().queue_rest()?;
            let begun = Instant::now();
            let outputs = self.run_sessions(sessions, &inputs, &key, bound, is_sent_early, wait)?;
            let gpu_nanoseconds = self.gpu_time.last_run_nanoseconds(rows);
            sessions.note_launch_time(begun.elapsed(), gpu_nanoseconds);
            let replayed = sessions.replayed_runs() - replayed_before;
            sessions.was_replayed = replayed > 0;
            self.replayed_runs.fetch_add(replayed, Ordering::Relaxed);
            let early_send = early_send.filter(|_| was_replayed && is_bound);
            // Before anything else is put into the stream: others wait for it.
            if let Some(memory) = exported.filter(|_| is_sent_early || early_send.is_some()) {
                memory.signal_write_fences(&outputs)?;
            }
            let span = work.map(OpenGpuSpan::end_in_stream).transpose()?;
            if let Some(early_send) = early_send {
                early_send.send_early(&outputs);
            }
            Ok(LaunchedWork { result: outputs, span, reads })
        };
        let outputs = self.queue.launch_run(rows, &self.gpu_time, launch)?;
        self.weights.holder().finish_leaving();
        if self.blocks.known_output_shapes(&key).is_none() {
            self.blocks.remember_output_shapes(key, &outputs);
        }
        match exported {
            Some(memory) => {
                outputs.into_iter().map(|output| memory.adopt_tensor(output, wait)).collect()
            }
            None => Ok(outputs),
        }
    }

    fn run_sessions(
        &self,
        sessions: &mut ShapeSessions,
        inputs: &[Tensor],
        key: &TensorShapes,
        bound: Option<BoundOutputs>,
        is_sent_early: bool,
        wait: Wait,
    ) -> Result<Vec<Tensor>> {
        let sessions = &mut sessions.sessions;
        let _watched = self.runs.begin_run(None, Arc::new([]), None);
        let Some(BoundOutputs { targets, outputs }) = bound else {
            return self.blocks.run_blocks(sessions, inputs, Vec::new(), wait);
        };
        match self.blocks.run_blocks(sessions, inputs, targets, wait) {
            Ok(_) => Ok(outputs),
            // The shapes may depend on what is in the tensors.
            Err(_) if !is_sent_early => {
                let outputs = self.blocks.run_blocks(sessions, inputs, Vec::new(), wait)?;
                self.blocks.forget_output_shapes(key.clone());
                Ok(outputs)
            }
            Err(error) => Err(error),
        }
    }

    /// Memory that others read on the GPU for every output; `None` where there is none, or where
    /// their shapes are not known yet.
    fn bind_exported_outputs(
        &self,
        key: &TensorShapes,
        memory: &DeviceMemory,
    ) -> Option<BoundOutputs> {
        let shapes = self.blocks.known_output_shapes(key)??;
        let (mut targets, mut outputs) = (Vec::new(), Vec::new());
        for ((source, dtype), shape) in self.blocks.outputs().zip(&shapes) {
            // What is an input as it is needs no memory of its own.
            let TensorSource::Block { .. } = source else { return None };
            let output = memory.allocate_on_gpu(dtype, shape)?.freeze();
            let (region, _) = output.region()?;
            let target = UnwrittenRegion(Arc::clone(region));
            let target = TensorMut::from_buffer(dtype, shape, Box::new(target));
            targets.push((source, target.ok()?));
            outputs.push(output);
        }
        Some(BoundOutputs { targets, outputs })
    }

    /// The inputs of a batch as one, for work that is launched from now on.
    fn join_inputs(&self, run: &BatchRun<'_>) -> Result<Vec<Tensor>> {
        let inputs = run.batch.first().map_or(0, |first| first.inputs.len());
        (0..inputs)
            .map(|input| {
                let parts = run.batch.iter().map(|item| &item.inputs[input]);
                let fenced = fenced_tensors(Device::Cuda(self.gpu), parts)?;
                // Also of those on the host: each is copied to its place, and never to another on
                // the host.
                batch::join_rows(&fenced.iter().collect::<Vec<_>>(), |parts, shape| {
                    concatenate_on_device(self.gpu, parts, shape)
                })
            })
            .collect()
    }

    /// Outputs where those who get replies read them, and whether they are still to be written.
    fn place_reply_outputs(&self, outputs: Vec<Tensor>) -> Result<(Vec<Tensor>, bool)> {
        let may_reply_early = self.may_reply_early.load(Ordering::Relaxed);
        let exported = self.exported.as_ref().filter(|_| may_reply_early);
        match exported.and_then(|memory| memory.copy_to_host_async(&outputs)) {
            Some(pending) => Ok((pending, true)),
            None => Ok((self.copy_to_host(outputs)?, false)),
        }
    }

    fn copy_to_host(&self, tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
        match &self.exported {
            Some(memory) => memory.copy_to_host(tensors),
            None => bring_to_host(tensors),
        }
    }
}

impl Executor for CudaExecutor {
    fn batch_policy(&self) -> BatchPolicy {
        BatchPolicy {
            regroup_wait: Some(REGROUP_WAIT),
            // Algorithms are chosen and memory is laid out when a number of rows comes first.
            rounds_rows: true,
            warms_up: true,
            most_rows: MOST_ROWS,
        }
    }

    fn concurrent_runs(&self, cores: NonZeroUsize) -> NonZeroUsize {
        NonZeroUsize::new(MOST_CONCURRENT_RUNS).map_or(cores, |most| cores.min(most))
    }

    /// Waits until the GPU has room for another run. Asking the node for cores takes as long as a
    /// launch, which needs one for no longer than that: so nobody is asked.
    ///
    /// Weights come before that: work of others goes on while they are brought.
    fn acquire_permit(&self, _: u64, deadline: Option<Deadline>) -> Result<CorePermit> {
        let weights = self.weights.take_lease(deadline)?;
        self.queue.wait_for_room()?;
        Ok(CorePermit::not_needed().with_weights(weights))
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
        timing.computed = self.gpu_time.last_run_nanoseconds(timing.batch);
        let mut early_sender = EarlySender::new(self, run, timing);
        let mut early_reply = None;
        let results = super::catch_panic(|| {
            let begun = Deadline::now().nanoseconds();
            let launch_inputs = LaunchInputs {
                requests: run.batch.iter().map(|item| &item.inputs[..]).collect(),
                joined: &mut || self.join_inputs(run),
                early_send: early_sender.as_mut().map(|sender| sender as _),
            };
            let mut outputs = self.launch_run(launch_inputs, self.exported.as_ref(), run.wait)?;
            // Replies are brought to the host in one copy.
            if run.batch.iter().all(BatchItem::is_last_hop) {
                let (placed, is_early) = self.place_reply_outputs(outputs)?;
                early_reply = is_early.then(|| EarlyReply::new(run.batch, &placed));
                outputs = placed;
            }
            let entropies =
                request_entropies(run.batch, &outputs, run.rows, entropy_by_row_anywhere);
            timing.apart = Deadline::now().nanoseconds().saturating_sub(begun);
            Ok(batch::split_rows(&outputs, run.rows)?.into_iter().zip(entropies))
        });
        let sent = early_sender.map(EarlySender::into_sent).filter(|sent| sent.has_any());
        match results {
            Ok(results) => {
                let was_sent = |index| sent.as_ref().is_some_and(|sent| sent.was_sent(index));
                let results = results.enumerate();
                Ok(ExecutedBatch {
                    results: results.map(|(i, result)| (!was_sent(i)).then_some(result)).collect(),
                    timing,
                    afterwards: early_reply.map(|reply: EarlyReply| -> super::Afterwards<'a> {
                        let may_reply_early = &self.may_reply_early;
                        Box::new(move |context| reply.watch_for_failure(context, may_reply_early))
                    }),
                })
            }
            Err(error) => {
                let Some(sent) = sent else { return Err(error.into()) };
                let instance = &run.context.name;
                tracing::warn!(%instance, %error, "a run failed after its early send");
                // From now on nothing is sent before it is there: whatever is wrong is then told as
                // it is.
                self.may_send_early.store(false, Ordering::Relaxed);
                let sent_early = Some(sent.report_as_lost(run.context, run.batch));
                Err(BatchFailure { error, sent_early })
            }
        }
    }

    fn hand_on(&self, context: &WorkerContext, executed: Vec<ExecutedRequest>) {
        hand_on::run_next_or_forward(self, context, executed);
    }

    fn run_unit(
        &self,
        _: NonZeroUsize,
        inputs: &[Tensor],
        _: &HostMemory,
        wait: Wait,
    ) -> Result<Vec<Tensor>> {
        let launch_inputs = LaunchInputs {
            requests: vec![inputs],
            joined: &mut || Ok(inputs.to_vec()),
            early_send: None,
        };
        let _lease = self.weights.take_lease(None)?;
        self.launch_run(launch_inputs, None, wait)
    }

    fn unit_runs(&self) -> &UnitRuns {
        &self.runs
    }

    /// What a session on a GPU needs for itself comes from an allocator of all of them.
    fn release_idle_memory(&self) {}

    fn reading_device(&self) -> Option<Device> {
        Some(Device::Cuda(self.gpu))
    }

    fn device_use(&self) -> DeviceUse {
        self.queue.count_finished_runs();
        let time = self.gpu_time.read_totals();
        DeviceUse {
            nanoseconds: time.nanoseconds,
            launch_nanoseconds: time.launch_nanoseconds,
            runs: time.runs,
            replayed_runs: self.replayed_runs.load(Ordering::Relaxed),
            weight_bytes: self.blocks.weight_bytes() as u64,
            pool_bytes: self.exported.as_ref().map_or(0, DeviceMemory::gpu_bytes),
            copies: copy_counts(),
        }
    }
}

impl PlaceTensors for CudaExecutor {
    fn place_for_instance(
        &self,
        context: &WorkerContext,
        instance: &str,
        tensors: Vec<Tensor>,
    ) -> Result<Vec<Tensor>> {
        place_for_instance(&context.peers, instance, tensors, &|tensor, gpu| {
            self.exported.as_ref()?.copy_to_gpu(tensor, gpu)
        })
    }

    fn place_for_reply(&self, tensors: Vec<Tensor>) -> Result<(Vec<Tensor>, bool)> {
        if are_pending_on_host(&tensors) {
            return Ok((tensors, true));
        }
        Ok((self.copy_to_host(tensors)?, false))
    }
}

/// The normalised entropy of each row of scores, wherever they are. Those on a GPU stay there: a
/// number for each row comes back.
pub(crate) fn entropy_by_row_anywhere(scores: &Tensor, kind: ScoreKind) -> Result<Vec<f64>> {
    match entropy_on_device(scores, kind == ScoreKind::Probabilities) {
        Ok(Some(found)) => return scores_as_f64(&found.wait_fence_on_host()?),
        Ok(None) => {}
        // What a GPU can't do the host can.
        Err(error) => tracing::debug!(%error, "scores of an exit come to the host"),
    }
    entropy_by_row(&to_host(scores)?.wait_fence_on_host()?, kind)
}

/// Tensors for work that is launched on their GPU from now on, which waits for them there where it
/// must.
fn fenced_tensors<'a>(
    device: Device,
    parts: impl Iterator<Item = &'a Tensor>,
) -> Result<Vec<Tensor>> {
    let mut last = None;
    let mut fenced = Vec::new();
    for part in parts {
        let slot = part.region().and_then(|(region, _)| region.pool_slot());
        // Rows of one buffer are waited for once.
        fenced.push(if slot.is_some() && slot == last {
            part.clone().without_fence()
        } else if !is_device_shared(device) {
            // Where processes take turns on the GPU, one that waits there takes its turn all the
            // same.
            part.clone().wait_fence_on_host()?
        } else {
            part.clone().wait_fence_in_stream()?
        });
        last = slot;
    }
    Ok(fenced)
}
