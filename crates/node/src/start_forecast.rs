//! How much memory it takes to start units, before any of them is.

use std::fmt;
use std::sync::Arc;

use tessera_core::{Result, lock};
use tessera_deploy::{Isolation, Unit};

use crate::supervisor::NodeSupervisor;
use crate::unit_blocks::distinct_weight_bytes;

/// Memory of an instance beside its weights: of one on threads, and of a process.
const THREADS_BYTES: u64 = 2 << 20;
const PROCESS_BYTES: u64 = 20 << 20;

/// What starting units takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartForecast {
    /// Instances that are started on threads.
    pub on_threads: u64,
    /// Instances that are processes.
    pub processes: u64,
    /// Bytes of weights: each process has its own, threads share them.
    pub weight_bytes: u64,
}

impl StartForecast {
    /// Bytes of all of it.
    pub fn total_bytes(&self) -> u64 {
        let of = |count: u64, bytes: u64| count.saturating_mul(bytes);
        self.weight_bytes
            .saturating_add(of(self.on_threads, THREADS_BYTES))
            .saturating_add(of(self.processes, PROCESS_BYTES))
    }

    fn add_unit(&mut self, isolation: Isolation, instances: u64, weight_bytes: u64) {
        if instances == 0 {
            return;
        }
        match isolation {
            Isolation::Thread => {
                self.on_threads += instances;
                self.weight_bytes = self.weight_bytes.saturating_add(weight_bytes);
            }
            Isolation::Process => {
                self.processes += instances;
                let weights = weight_bytes.saturating_mul(instances);
                self.weight_bytes = self.weight_bytes.saturating_add(weights);
            }
        }
    }
}

impl fmt::Display for StartForecast {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
        write!(
            to,
            "{} MB: weights {} MB",
            megabytes(self.total_bytes()),
            megabytes(self.weight_bytes)
        )?;
        if self.processes > 0 {
            write!(to, ", {} processes of {} MB", self.processes, megabytes(PROCESS_BYTES))?;
        }
        if self.on_threads > 0 {
            write!(to, ", {} instances of {} MB", self.on_threads, megabytes(THREADS_BYTES))?;
        }
        Ok(())
    }
}

impl NodeSupervisor {
    /// What it takes to start these units with all the instances that they should have, those left
    /// out that are there.
    pub fn forecast_start(&self, units: &[Arc<Unit>]) -> Result<StartForecast> {
        let mut forecast = StartForecast::default();
        for unit in units {
            let wanted = unit.settings.replicas.max(1);
            let there = self.0.unit_slots(&unit.id).len();
            let new = wanted.saturating_sub(there) as u64;
            if new > 0 {
                let weight_bytes = self.0.unit_weight_bytes(unit)?;
                let is_loaded = there > 0 && unit.settings.isolation == Isolation::Thread;
                let weight_bytes = if is_loaded { 0 } else { weight_bytes };
                forecast.add_unit(unit.settings.isolation, new, weight_bytes);
            }
        }
        Ok(forecast)
    }
}

impl crate::supervisor::SupervisorInner {
    /// Bytes of the weights of a unit, each counted once.
    pub(crate) fn unit_weight_bytes(&self, unit: &Unit) -> Result<u64> {
        if let Some(known) = lock(&self.weight_bytes).get(&unit.id) {
            return Ok(*known);
        }
        let blocks = unit.block_hashes().map(|hash| self.repository.read_block(hash));
        let bytes = distinct_weight_bytes(blocks.collect::<Result<Vec<_>>>()?.iter()) as u64;
        lock(&self.weight_bytes).insert(unit.id.clone(), bytes);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_have_weights_of_their_own_and_threads_share_them() {
        let mut forecast = StartForecast::default();
        forecast.add_unit(Isolation::Thread, 3, 10_000_000);
        assert_eq!(forecast.total_bytes(), 10_000_000 + 3 * THREADS_BYTES);
        forecast.add_unit(Isolation::Process, 192, 1_000_000);
        forecast.add_unit(Isolation::Process, 0, 5_000_000);
        assert_eq!(
            forecast.to_string(),
            "4235 MB: weights 202 MB, 192 processes of 21 MB, 3 instances of 3 MB"
        );
    }
}
