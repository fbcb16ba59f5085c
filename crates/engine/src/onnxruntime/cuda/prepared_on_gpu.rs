//! A block's optimised form with its weights on a GPU.

use std::sync::Arc;

use ort::session::Session as OrtSession;
use ort::session::builder::SessionBuilder;
use tessera_core::{ContentHash, Result};
use tessera_cuda::Gpu;

use crate::device_weights::DeviceWeights;
use crate::onnxruntime::ort_value::OrtValue;
use crate::onnxruntime::prepared_block::PreparedBlock;
use crate::onnxruntime::session_builder::engine_error;

/// A block's optimised form with its weights on a GPU.
pub(super) struct GpuPreparedBlock {
    prepared: PreparedBlock,
    weights: Arc<DeviceWeights>,
}

impl GpuPreparedBlock {
    /// Its weights have addresses there, and are not there yet.
    pub(super) fn new(
        program: ContentHash,
        gpu: &Arc<Gpu>,
        prepared: PreparedBlock,
        weights_come_back: bool,
    ) -> Result<Self> {
        let file = prepared.weight_file().map(|file| (file, weights_come_back));
        let weights = DeviceWeights::new(program, gpu, prepared.weights(), file)?;
        Ok(Self { prepared, weights })
    }

    /// Whether its file is what it was, from which its weights may come again.
    pub(super) fn is_intact(&self) -> bool {
        self.prepared.check_intact().is_ok()
    }

    /// Its weights.
    pub(super) fn weights(&self) -> &Arc<DeviceWeights> {
        &self.weights
    }

    /// The operators that it is made of.
    pub(super) fn operators(&self) -> Vec<String> {
        self.prepared.operators()
    }

    /// A session that reads the weights where they are; or, where some of the block's operators run
    /// on the CPU, one that has its own: they might be read by either.
    pub(super) fn build_session(
        self: &Arc<Self>,
        builder: impl Fn() -> Result<SessionBuilder>,
        label: &str,
    ) -> Result<(OrtSession, Option<Vec<OrtValue>>)> {
        let fail = |error: ort::Error| engine_error(label, &error);
        let alone = builder()?
            .with_config_entry("session.disable_cpu_ep_fallback", "1")
            .map_err(|error| fail(error.into()))?;
        match self.prepared.session_over(alone, self.weights.tensors()) {
            Ok((session, values)) => Ok((session, Some(values))),
            Err(_) => {
                let copied = self
                    .prepared
                    .session_with_copies(builder()?)
                    .map_err(|e| e.into_error(label))?;
                self.prepared.check_intact().map_err(|error| error.with_context(label))?;
                Ok((copied, None))
            }
        }
    }
}
