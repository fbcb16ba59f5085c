//! Workers of one process that run on a GPU: a thread that has told the GPU of one block goes on with the next.
//!
//! Handing over to a thread of the next worker takes as long as waking it up, which is longer than telling a GPU half a
//! block; and what was one batch stays one.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, TryLockError, Weak};

use tessera_core::{Device, Tensor};
use tessera_tensormq::Deadline;

use super::Shared;
use super::door::Item;
use super::onward::Time;
use crate::cores::Share;
use crate::lock;

/// Requests that go to one worker.
type Group = (Arc<Shared>, Vec<(Item, Vec<Tensor>, Time)>);

/// The workers of this process, by name.
#[derive(Default)]
pub struct LocalWorkers(Mutex<HashMap<String, Weak<Shared>>>);

impl LocalWorkers {
    pub(super) fn add(&self, worker: &Arc<Shared>) {
        let mut all = lock(&self.0);
        all.retain(|_, known| known.strong_count() > 0);
        all.insert(worker.parts.name.clone(), Arc::downgrade(worker));
    }

    /// One that runs on this GPU.
    pub(super) fn on(&self, device: Device, name: &str) -> Option<Arc<Shared>> {
        let found = lock(&self.0).get(name).and_then(Weak::upgrade)?;
        (found.parts.unit.device() == device).then_some(found)
    }
}

impl Shared {
    /// Whether whoever comes now would be the next: then the caller may run it itself.
    fn is_free(&self) -> bool {
        match self.door.try_lock() {
            Ok(mut door) => !door.has_waiting(self),
            Err(TryLockError::Poisoned(_)) => false,
            // One of its threads waits there for something to come, or has a batch that waits for room.
            Err(TryLockError::WouldBlock) => !self.gathering.load(Ordering::Relaxed),
        }
    }

    /// Sends requests on that were in one batch. Those that go to one worker of this process are run here and now.
    pub(super) fn go_on(&self, items: Vec<(Item, Vec<Tensor>, Time)>) {
        let device = self.parts.unit.device();
        if device == Device::Cpu {
            return items.into_iter().for_each(|(item, outputs, time)| {
                self.onward(item, outputs, time);
            });
        }
        let mut groups: Vec<Group> = Vec::new();
        for (item, outputs, time) in items {
            let next = Self::next_of(&item).filter(|_| item.leg.exit.is_none());
            let worker = next.and_then(|next| self.parts.local.on(device, &next.instance));
            let Some(worker) = worker else {
                self.onward(item, outputs, time);
                continue;
            };
            match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &worker)) {
                Some((_, group)) => group.push((item, outputs, time)),
                None => groups.push((worker, vec![(item, outputs, time)])),
            }
        }
        let last = groups.pop();
        // The others must not wait until the last has its answer.
        for (item, outputs, time) in groups.into_iter().flat_map(|(_, group)| group) {
            self.onward(item, outputs, time);
        }
        let Some((worker, group)) = last else { return };
        let rows: usize = group.iter().map(|(_, _, time)| time.rows).sum();
        let most = worker.parts.batching.map_or(0, |batching| batching.max_rows);
        if (group.len() > 1 && rows > most) || !worker.is_free() {
            return group.into_iter().for_each(|(item, outputs, time)| {
                self.onward(item, outputs, time);
            });
        }
        let packed = group.into_iter().filter_map(|(item, outputs, time)| {
            let packed = self.pack(item, outputs, time)?;
            worker.read(packed.message).and_then(|item| worker.in_time(item))
        });
        let mut batch: Vec<Item> = Vec::new();
        for item in packed {
            match batch.first().is_none_or(|first| crate::batch::fit(&first.inputs, &item.inputs)) {
                true => batch.push(item),
                false => worker.run_here(vec![item]),
            }
        }
        if !batch.is_empty() {
            worker.run_here(batch);
        }
    }

    /// Runs a batch on the caller's thread.
    fn run_here(&self, batch: Vec<Item>) {
        let started = Deadline::now().nanoseconds();
        match self.parts.unit.wait_for_room() {
            Ok(()) => self.process(batch, Share::none(), started),
            Err(error) => self.fail(batch, &error),
        }
    }
}
