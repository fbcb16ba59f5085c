//! Requests that are sent on before the GPU is told to compute what they carry.
//!
//! Telling a GPU what to do takes about as long as doing it, for small batches. Where the next block is in another
//! process on the same GPU, it can be told at the same time: memory for the outputs is there, and the next block's
//! stream waits until they are written. So all blocks of a chain tell the GPU at once.
//!
//! Not so where processes take turns on the GPU (without MPS): one that waits there takes its turn all the same, and the
//! others are slowed down by it.
//!
//! It is done when it is this block's turn, and whoever waits does so in the order of turns: so no two blocks wait for
//! each other. Should the run fail, those who wait for the answers are told first, and then the waiting is ended.

use tessera_core::{Device, Location, Tensor};
use tessera_plan::Leg;
use tessera_tensormq::{Message, RequestId, Wait};

use super::Shared;
use super::door::Item;
use super::onward::{Time, like};
use crate::batch;
use crate::unit::SendAhead;

/// Sends the requests of a batch ahead.
pub(super) struct Ahead<'a> {
    worker: &'a Shared,
    batch: &'a [Item],
    rows: &'a [usize],
    time: Time,
    sent: Sent,
}

/// What was sent ahead.
#[derive(Default)]
pub(super) struct Sent {
    items: Vec<bool>,
    outputs: Vec<Tensor>,
}

impl Sent {
    /// Whether any was.
    pub(super) fn any(&self) -> bool {
        self.items.iter().any(|is_sent| *is_sent)
    }

    /// Whether this one was.
    pub(super) fn has(&self, index: usize) -> bool {
        self.items.get(index).copied().unwrap_or(false)
    }

    /// Has those that were sent be taken for lost; gives back the others.
    pub(super) fn give_up(self, worker: &Shared, batch: Vec<Item>) -> Vec<Item> {
        let (mut lost, mut rest) = (Vec::new(), Vec::new());
        for (index, item) in batch.into_iter().enumerate() {
            match self.has(index) {
                true => lost.push((item.message.request(), item.log.part)),
                false => rest.push(item),
            }
        }
        worker.lose(lost, self.outputs);
        rest
    }
}

impl<'a> Ahead<'a> {
    /// `None` where nothing can be sent ahead.
    pub(super) fn new(
        worker: &'a Shared,
        batch: &'a [Item],
        rows: &'a [usize],
        time: Time,
    ) -> Option<Self> {
        let may = worker.parts.unit.device() != Device::Cpu
            && worker.is_ahead.load(std::sync::atomic::Ordering::Relaxed)
            && batch.iter().any(|item| worker.goes_to_another(item));
        may.then(|| Self { worker, batch, rows, time, sent: Sent::default() })
    }

    /// What was sent.
    pub(super) fn finish(self) -> Sent {
        self.sent
    }
}

impl SendAhead for Ahead<'_> {
    fn send(&mut self, outputs: &[Tensor]) -> bool {
        let Ok(split) = batch::split(outputs, self.rows) else { return false };
        self.sent.outputs = outputs.to_vec();
        for ((item, outputs), rows) in self.batch.iter().zip(split).zip(self.rows) {
            let time = Time { rows: *rows, ..self.time };
            let message = self.worker.ahead(item, outputs, time);
            // One that there is no room for goes the usual way.
            let is_sent = message.is_some_and(|(instance, message)| {
                self.worker.parts.peers.send(&instance, message, Wait::No).is_ok()
            });
            self.sent.items.push(is_sent);
        }
        self.sent.any()
    }
}

impl Shared {
    /// Has requests that were sent ahead be taken for lost; then nobody waits any longer for what they carry.
    pub(super) fn lose(&self, requests: Vec<(RequestId, u32)>, carried: Vec<Tensor>) {
        let courier = self.parts.peers.courier().clone();
        let then = move || carried.iter().for_each(|tensor| courier.free_waiters(tensor));
        self.parts.overseer.lost(requests, Box::new(then));
    }

    /// The next block of a request.
    pub(super) fn next_of(item: &Item) -> Option<Leg> {
        let steps = item.message.path().count();
        let next = (steps > 2).then(|| item.message.path().nth(1)).flatten()?;
        Leg::parse(next).ok()
    }

    /// Whether the next block is in another process, on the same GPU.
    fn goes_to_another(&self, item: &Item) -> bool {
        let Some(next) = Self::next_of(item).filter(|_| item.leg.exit.is_none()) else {
            return false;
        };
        let peers = &self.parts.peers;
        let device = Some(self.parts.unit.device());
        !peers.is_here(&next.instance) && peers.device_of(&next.instance) == device
    }

    /// The message to the next block, with outputs that are still to be written; `None` where it must wait for them.
    fn ahead(&self, item: &Item, outputs: Vec<Tensor>, time: Time) -> Option<(String, Message)> {
        let next = Self::next_of(item).filter(|_| self.goes_to_another(item))?;
        let mut tensors = item.message.tensors().to_vec();
        tensors.extend(outputs);
        let kept = item.leg.keep.iter().map(|&index| tensors.get(index).cloned());
        let kept = kept.collect::<Option<Vec<Tensor>>>()?;
        let goes = |tensor: &Tensor| {
            tensor.location() == Location::Host
                || tensor.region().is_some_and(|(region, _)| region.pooled().is_some())
        };
        if !kept.iter().all(goes) {
            return None;
        }
        let mut log = item.log.clone();
        self.record(&mut log, time);
        let text = log.encode();
        let steps = item.message.path().count();
        let path = item.message.path().skip(1).take(steps - 2).chain([text.as_str()]);
        let message = like(&item.message, &path.collect::<Vec<&str>>()).ok()?;
        Some((next.instance, message.with_tensors(kept).ahead()))
    }
}
