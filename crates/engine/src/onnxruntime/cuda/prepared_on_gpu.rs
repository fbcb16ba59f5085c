//! A block's optimised form with its weights on a GPU.

use std::sync::Arc;

use ort::session::Session as OrtSession;
use ort::session::builder::SessionBuilder;
use tessera_core::{ContentHash, Result};
use tessera_cuda::Gpu;

use super::run_waits::{RunWaits, StreamPointer};
use super::weight_layout;
use crate::device_weights::{AwaitedFile, DeviceWeights};
use crate::onnxruntime::ort_value::OrtValue;
use crate::onnxruntime::prepared_block::PreparedBlock;
use crate::onnxruntime::session_builder::engine_error;
use crate::weight_parts::WeightParts;
use crate::{LoadOptions, WeightLoading};

/// A block's optimised form with its weights on a GPU.
pub(super) struct GpuPreparedBlock {
    prepared: PreparedBlock,
    /// The same with operators that wait for parts of the weights, where these come in parts.
    awaiting_model: Option<Vec<u8>>,
    weights: Arc<DeviceWeights>,
}

/// A session, and what it uses.
pub(super) struct GpuSession {
    pub(super) session: OrtSession,
    /// Values of our weights; `None` where it has copies of its own.
    pub(super) values: Option<Vec<OrtValue>>,
    /// How it waits for them.
    pub(super) waits: Option<RunWaits>,
}

impl GpuPreparedBlock {
    /// Its weights have addresses there, and are not there yet.
    pub(super) fn new(
        program: ContentHash,
        gpu: &Arc<Gpu>,
        prepared: PreparedBlock,
        options: &LoadOptions,
    ) -> Result<Self> {
        let mut awaiting_model = None;
        let loading = options.weights;
        let file = prepared.weight_file().map(|mapping| {
            let mut parts = WeightParts::whole(mapping.as_ref().as_ref().len());
            if matches!(loading, WeightLoading::Pipeline | WeightLoading::DirectHostAccess) {
                let (model, those) = prepared.awaiting_model(weight_layout(options));
                (awaiting_model, parts) = (Some(model), those);
            }
            let comes_back = loading != WeightLoading::Once && options.keeps_files;
            AwaitedFile { mapping, parts, comes_back }
        });
        let weights = DeviceWeights::new(program, gpu, prepared.weights(), file)?;
        Ok(Self { prepared, awaiting_model, weights })
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
        stream: StreamPointer,
        label: &str,
    ) -> Result<GpuSession> {
        let fail = |error: ort::Error| engine_error(label, &error);
        let alone = || -> Result<SessionBuilder> {
            builder()?
                .with_config_entry("session.disable_cpu_ep_fallback", "1")
                .map_err(|error| fail(error.into()))
        };
        let over = |builder: SessionBuilder, model: &[u8]| {
            self.prepared.session_over(builder, model, self.weights.tensors())
        };
        if let Some(model) = &self.awaiting_model {
            let waits = RunWaits::inside(&self.weights, stream).map_err(fail)?;
            let mut builder = alone()?;
            waits.add_to_session(&mut builder).map_err(fail)?;
            match over(builder, model) {
                Ok((session, values)) => {
                    return Ok(GpuSession { session, values: Some(values), waits: Some(waits) });
                }
                Err(error) => {
                    let error = error.into_error(label);
                    tracing::debug!(%error, "a run waits for all weights before it begins");
                }
            }
        }
        match over(alone()?, self.prepared.model()) {
            Ok((session, values)) => {
                let waits = Some(RunWaits::before(&self.weights, stream));
                Ok(GpuSession { session, values: Some(values), waits })
            }
            Err(_) => {
                let session = self
                    .prepared
                    .session_with_copies(builder()?)
                    .map_err(|e| e.into_error(label))?;
                self.prepared.check_intact().map_err(|error| error.with_context(label))?;
                Ok(GpuSession { session, values: None, waits: None })
            }
        }
    }
}
