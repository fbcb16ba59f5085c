//! The weights of a unit on a GPU, which come and go.

use std::sync::{Arc, Mutex};

use tessera_core::{Result, lock};
use tessera_engine::{DeviceWeights, WeightStay, begin_stays, finish_leaving, queue_rest};

use super::gpu_queue::GpuTimeCounter;
use super::sessions::SessionsByShape;
use crate::residency::{WeightHolder, WeightPart};

/// Memory of a GPU is given out in pieces of this size.
const GPU_PAGE_BYTES: u64 = 2 << 20;

/// The weights of a unit, and its sessions, which stay when these leave.
pub(super) struct GpuWeights {
    sessions: SessionsByShape,
    /// How long the GPU works for runs over them.
    gpu_time: Arc<GpuTimeCounter>,
    state: Mutex<GpuWeightState>,
}

#[derive(Default)]
struct GpuWeightState {
    /// Those of each block, once its sessions are there.
    known: Option<Vec<Arc<DeviceWeights>>>,
    /// What has them be on the GPU.
    stays: Vec<WeightStay>,
}

impl GpuWeights {
    pub(super) fn new(sessions: SessionsByShape, gpu_time: Arc<GpuTimeCounter>) -> Self {
        Self { sessions, gpu_time, state: Mutex::default() }
    }

    pub(super) fn sessions(&self) -> &SessionsByShape {
        &self.sessions
    }

    /// Has come what is still missing: a run is launched now, whose inputs are on their way.
    pub(super) fn queue_rest(&self) -> Result<()> {
        queue_rest(&lock(&self.state).stays)
    }

    /// Does what was put off until the run was launched that they were loaded for.
    pub(super) fn finish_leaving(&self) {
        finish_leaving(&lock(&self.state).stays);
    }
}

impl WeightHolder for GpuWeights {
    fn load_weights(&self) -> Result<()> {
        let mut state = lock(&self.state);
        state.stays = match &state.known {
            Some(known) => begin_stays(known, self.gpu_time.shortest_run())?,
            None => {
                let stays = self.sessions.load_first()?;
                state.known = Some(stays.iter().map(|stay| Arc::clone(stay.weights())).collect());
                stays
            }
        };
        Ok(())
    }

    fn loaded_parts(&self) -> Option<Vec<WeightPart>> {
        let state = lock(&self.state);
        let part = |weights: &Arc<DeviceWeights>| WeightPart {
            hash: weights.program(),
            bytes: weights.memory_bytes() as u64,
        };
        let mut parts: Vec<WeightPart> = state.known.as_ref()?.iter().map(part).collect();
        parts.sort_by_key(|part| part.hash);
        parts.dedup();
        Some(parts)
    }

    fn note_used(&self) {
        lock(&self.state).stays.iter().for_each(|stay| stay.weights().note_use());
    }

    fn unload_weights(&self) {
        let stays = std::mem::take(&mut lock(&self.state).stays);
        drop(stays);
    }
}

/// What parts take of a GPU's memory.
pub(super) fn parts_on_gpu(parts: Vec<WeightPart>) -> Vec<WeightPart> {
    let on_gpu = |part: WeightPart| WeightPart {
        bytes: part.bytes.next_multiple_of(GPU_PAGE_BYTES),
        ..part
    };
    parts.into_iter().map(on_gpu).collect()
}
