//! Requests that are sent on before the run that computes what they carry is launched.
//!
//! The launch of a run takes about as long as the GPU works, for small batches. Where the next unit
//! is in another process on the same GPU, it can launch at the same time: memory for the outputs is
//! there, and the next unit's stream waits until they are written. So all units of a chain launch
//! at once.
//!
//! Not so where processes take turns on the GPU (without MPS): one that waits there takes its turn
//! all the same, and the others are slowed down by it.
//!
//! It is done when it is this unit's turn, and whoever waits does so in the order of turns: so no
//! two units wait for each other. Should the run fail, those who wait for the answers are told
//! first, and then the waiting is ended.

use std::sync::atomic::Ordering;

use tessera_core::{Device, MemoryLocation, Tensor};
use tessera_tensormq::{Message, Wait};

use super::CudaExecutor;
use crate::batch;
use crate::device_transfer::is_in_pool;
use crate::executor::BatchRun;
use crate::worker::batch_item::{BatchItem, BatchTiming};
use crate::worker::context::WorkerContext;

/// Sends outputs on before the run that writes them on a GPU is launched.
pub(super) trait SendEarly {
    /// Whether any was sent.
    fn send_early(&mut self, outputs: &[Tensor]) -> bool;
}

/// Sends the requests of a batch early.
pub(super) struct EarlySender<'a> {
    context: &'a WorkerContext,
    /// The GPU that this unit runs on.
    device: Device,
    batch: &'a [BatchItem],
    rows: &'a [usize],
    timing: BatchTiming,
    sent: EarlySent,
}

/// What was sent early.
#[derive(Default)]
pub(super) struct EarlySent {
    items: Vec<bool>,
    outputs: Vec<Tensor>,
}

impl EarlySent {
    /// Whether any was.
    pub(super) fn has_any(&self) -> bool {
        self.items.iter().any(|is_sent| *is_sent)
    }

    /// Whether this one was.
    pub(super) fn was_sent(&self, index: usize) -> bool {
        self.items.get(index).copied().unwrap_or(false)
    }

    /// Has those that were sent be taken for lost, and says which they are.
    pub(super) fn report_as_lost(self, context: &WorkerContext, batch: &[BatchItem]) -> Vec<bool> {
        let sent: Vec<bool> = (0..batch.len()).map(|index| self.was_sent(index)).collect();
        let lost = batch.iter().zip(&sent).filter(|(_, is_sent)| **is_sent);
        let lost = lost.map(|(item, _)| (item.message.request(), item.route.part()));
        context.report_lost_requests(lost.collect(), self.outputs);
        sent
    }
}

impl<'a> EarlySender<'a> {
    /// `None` where nothing can be sent early.
    pub(super) fn new(
        executor: &CudaExecutor,
        run: &BatchRun<'a>,
        timing: BatchTiming,
    ) -> Option<Self> {
        let BatchRun { context, batch, rows, .. } = *run;
        let device = Device::Cuda(executor.gpu);
        let sender = Self { context, device, batch, rows, timing, sent: EarlySent::default() };
        let may = executor.may_send_early.load(Ordering::Relaxed)
            && batch.iter().any(|item| sender.is_next_in_another_process(item));
        may.then_some(sender)
    }

    /// What was sent.
    pub(super) fn into_sent(self) -> EarlySent {
        self.sent
    }
}

impl SendEarly for EarlySender<'_> {
    fn send_early(&mut self, outputs: &[Tensor]) -> bool {
        let Ok(split) = batch::split_rows(outputs, self.rows) else { return false };
        self.sent.outputs = outputs.to_vec();
        for ((item, outputs), rows) in self.batch.iter().zip(split).zip(self.rows) {
            let time = BatchTiming { rows: *rows, ..self.timing };
            let message = self.early_message(item, outputs, time);
            // One that there is no room for goes the usual way.
            let is_sent = message.is_some_and(|(instance, message)| {
                self.context.peers.send_to(&instance, message, Wait::No).is_ok()
            });
            self.sent.items.push(is_sent);
        }
        self.sent.has_any()
    }
}

impl EarlySender<'_> {
    /// Whether the next unit is in another process, on the same GPU.
    fn is_next_in_another_process(&self, item: &BatchItem) -> bool {
        let Some(next) = item.next_instance() else { return false };
        let peers = &self.context.peers;
        !peers.is_in_process(next) && peers.device_of(next) == Some(self.device)
    }

    /// The message to the next unit, with outputs that are still to be written; `None` where it
    /// must wait for them.
    fn early_message(
        &self,
        item: &BatchItem,
        outputs: Vec<Tensor>,
        time: BatchTiming,
    ) -> Option<(String, Message)> {
        let next = item.next_instance().filter(|_| self.is_next_in_another_process(item))?;
        let mut tensors = item.message.tensors().to_vec();
        tensors.extend(outputs);
        let kept = item.route.current_hop()?.keep().map(|index| tensors.get(index).cloned());
        let kept = kept.collect::<Option<Vec<Tensor>>>()?;
        let goes =
            |tensor: &Tensor| tensor.location() == MemoryLocation::Host || is_in_pool(tensor);
        if !kept.iter().all(goes) {
            return None;
        }
        let mut route = item.route.clone();
        self.context.complete_hop(&mut route, &item.message, time);
        let message = item.message.with_route(route.as_bytes()).ok()?;
        Some((next.to_owned(), message.with_tensors(kept).with_early_send()))
    }
}
