//! How long a block takes for a request: alone, at its best, and with waiting.

use super::problem::{QueueingBatch, QueueingBlock};
use super::waiting_time::{mean_waiting_time, mean_waiting_time_batched};

impl QueueingBlock {
    /// The batch, if it is worth it.
    fn used_batch(&self) -> Option<QueueingBatch> {
        let is_worth = |batch: &QueueingBatch| batch.time_us < self.time_us * f64::from(batch.size);
        self.batch.filter(is_worth)
    }

    /// How long a request that comes alone is in it.
    pub(super) fn alone_us(&self) -> f64 {
        self.time_us + self.overhead_us
    }

    /// How long it is busy per request at its best.
    pub(super) fn busy_us(&self) -> f64 {
        let time = self.used_batch().map(|batch| batch.time_us / f64::from(batch.size));
        time.unwrap_or(self.time_us) + self.overhead_us
    }

    /// How much longer requests are in it than alone, where so many replicas are busy in the mean.
    pub(super) fn wait_us(&self, load: f64, replicas: u32) -> Option<f64> {
        let (busy, alone) = (self.busy_us(), self.alone_us());
        let arrivals = load / busy;
        match self.used_batch() {
            Some(QueueingBatch { size, .. }) => {
                mean_waiting_time_batched(replicas, arrivals, alone, busy * f64::from(size), size)
            }
            None => mean_waiting_time(replicas, arrivals, busy, self.variation),
        }
    }

    /// Whether each further replica saves less waiting than the one before for sure.
    pub(super) fn is_simple(&self) -> bool {
        self.used_batch().is_none()
    }
}
