//! Makes sessions of a block on a GPU, over weights that are there once.

use std::sync::Arc;

use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use tessera_core::{Error, Result};
use tessera_cuda::{CaptureStream, Gpu};

use super::allocator::{self, AllocationSource};
use super::bound_session::{BoundSession, SessionPorts, SessionWeights};
use super::capture_lock::lock_device_for_setup;
use super::capture_session;
use super::cublas_workspace;
use super::prepared_on_gpu::{GpuPreparedBlock, GpuSession};
use super::provider::{add_cuda_provider, no_cuda_provider};
use super::run_waits::StreamPointer;
use crate::LoadOptions;
use crate::onnxruntime::session_builder::{SessionBuilders, engine_error};

/// Where a session has the memory from that it needs for itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ArenaChoice {
    /// An arena of its own.
    Own,
    /// The allocator of all sessions.
    Shared,
}

/// Makes sessions of a block on a GPU.
pub(super) struct GpuSessionFactory {
    pub(super) builders: SessionBuilders,
    pub(super) options: LoadOptions,
    pub(super) gpu: Arc<Gpu>,
    pub(super) prepared_on_gpu: Arc<GpuPreparedBlock>,
    pub(super) ports: Arc<SessionPorts>,
    pub(super) arena: ArenaChoice,
}

impl GpuSessionFactory {
    /// One that puts its work into this stream.
    pub(super) fn make_session(&self, stream: StreamPointer) -> Result<BoundSession> {
        let label = &self.ports.label;
        let fail = |error: ort::Error| engine_error(label, &error);
        let builder = || -> Result<SessionBuilder> {
            let mut builder = self.builders.session_builder(&self.options)?;
            add_cuda_provider(&mut builder, &self.gpu, stream.0, &self.options.cuda)
                .map_err(|error| no_cuda_provider(&error))?;
            let builder = builder.with_optimization_level(GraphOptimizationLevel::Disable);
            let builder = builder.map_err(|error| fail(error.into()))?;
            match self.arena {
                ArenaChoice::Shared => {
                    builder.with_env_allocators().map_err(|error| fail(error.into()))
                }
                ArenaChoice::Own => Ok(builder),
            }
        };
        let source = AllocationSource::Driver(Arc::clone(&self.gpu));
        let _setup = lock_device_for_setup();
        cublas_workspace::share_workspace(&self.gpu, stream)?;
        let build = || self.prepared_on_gpu.build_session(builder, stream, label);
        let GpuSession { session, values, waits } = allocator::with_source(source, build)?;
        let block = Arc::clone(&self.prepared_on_gpu);
        let weights = values.map(|values| SessionWeights { _kept: (block, values), waits });
        BoundSession::new(session, weights, Arc::clone(&self.ports), self.gpu.number())
    }

    /// One whose runs can be captured.
    pub(super) fn make_capture_session(&self, stream: &CaptureStream) -> Result<BoundSession> {
        if let Some(error) = capture_session::why_not_captured(&self.prepared_on_gpu.operators()) {
            return Err(error);
        }
        if self.arena == ArenaChoice::Own {
            return Err(Error::unsupported("a CUDA graph in memory that the session keeps"));
        }
        let made = self.make_session(StreamPointer(stream.stream_pointer()))?;
        if !made.is_on_gpu() {
            return Err(Error::unsupported("a CUDA graph of a block that runs on the CPU in part"));
        }
        Ok(made)
    }
}
