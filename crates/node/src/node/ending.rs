//! How instances end, with or without being told to; and who must know what is lost with them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_plan::UnitId;
use tessera_tensormq::{Address, RequestId};

use super::{Inner, NodeEvent};
use crate::instance::Instance;
use crate::link::Loss;
use crate::lock;
use crate::slot::InstanceState;

/// A life that was this long, or of any use, is no failed start.
const A_LIFE: Duration = Duration::from_secs(1);
/// How long a process that is asked to go may take.
const FAREWELL: Duration = Duration::from_secs(2);

impl Inner {
    /// An instance that is in its place may have ended before it got there.
    pub(super) fn notice_end(self: &Arc<Self>, key: &(UnitId, usize), generation: u64) {
        let slots = lock(&self.slots);
        let has_ended = slots.get(key).is_some_and(|slot| {
            slot.generation == generation
                && matches!(&slot.running, Some(Instance::Process(process)) if process.is_gone())
        });
        drop(slots);
        if has_ended {
            self.ended(key, generation, "its process ended");
        }
    }

    /// A block lost something. Everyone who must know does when this returns.
    pub(super) fn lost(self: &Arc<Self>, loss: Loss) {
        match loss {
            Loss::Process(courier) => {
                let known = self.peers.addresses();
                let is_it = |(_, address): &&(String, Address)| address.courier == courier;
                if let Some((name, _)) = known.iter().find(is_it) {
                    self.is_gone(name);
                }
                // What is being told at this moment is told then.
                drop(lock(&self.telling));
            }
            Loss::Requests(requests) => {
                for (request, part) in requests {
                    if let Ok(number) = u128::from_str_radix(&request, 16) {
                        (self.events)(NodeEvent::Lost { request: RequestId(number), part });
                    }
                }
            }
        }
    }

    /// An instance in a process of its own is gone, or as good as that: others can't reach its memory.
    pub(super) fn is_gone(self: &Arc<Self>, name: &str) {
        let found = {
            let slots = lock(&self.slots);
            let mut all = slots.iter();
            all.find(|(key, slot)| slot.name(key) == name).and_then(|(key, slot)| {
                let Some(Instance::Process(process)) = &slot.running else { return None };
                Some((key.clone(), slot.generation, Arc::clone(process)))
            })
        };
        if let Some((key, generation, process)) = found {
            process.kill();
            self.ended(&key, generation, "its process ended");
        }
    }

    /// An instance is gone that nobody told to go.
    pub(super) fn ended(self: &Arc<Self>, key: &(UnitId, usize), generation: u64, why: &str) {
        let telling = lock(&self.telling);
        let mut slots = lock(&self.slots);
        let Some(slot) = slots
            .get_mut(key)
            .filter(|slot| slot.generation == generation && slot.state == InstanceState::Up)
        else {
            return;
        };
        let name = slot.name(key);
        let running = slot.running.take();
        let was_useful = slot.since.elapsed() >= A_LIFE
            || match &running {
                Some(Instance::Process(process)) => process.pulse().1.done > 0,
                _ => false,
            };
        slot.restarts += 1;
        slot.note_failure(was_useful, why);
        let comes_back = slot.state == InstanceState::Restarting;
        drop(slots);
        tracing::warn!(block = %name, "{why}; it is started again");
        self.forget(&name);
        drop(running);
        let (unit, why) = (key.0.clone(), why.to_owned());
        (self.events)(NodeEvent::Down { unit, instance: name, why, comes_back });
        drop(telling);
        self.start_again();
    }

    /// Stops the instance of a slot.
    pub(super) fn halt(&self, key: &(UnitId, usize), state: InstanceState, why: &str) {
        let (name, running) = {
            let mut slots = lock(&self.slots);
            let Some(slot) = slots.get_mut(key) else {
                return;
            };
            slot.state = state;
            slot.again = None;
            let name = slot.name(key);
            // What is starting at this moment finds that it is not wanted any more.
            let running = slot.running.take();
            if running.is_none() {
                slot.generation = self.starts.fetch_add(1, Ordering::Relaxed);
            }
            (name, running)
        };
        if let Some(running) = running {
            self.gone(key, name, running, why);
        }
    }

    pub(super) fn remove(&self, key: &(UnitId, usize)) {
        // Out of its place first: whoever starts the unit meanwhile makes a new one.
        let Some(mut slot) = lock(&self.slots).remove(key) else {
            return;
        };
        let name = slot.name(key);
        if let Some(running) = slot.running.take() {
            self.gone(key, name, running, "it is not needed any more");
        }
    }

    /// An instance that was told to go.
    pub(super) fn gone(
        &self,
        key: &(UnitId, usize),
        instance: String,
        running: Instance,
        why: &str,
    ) {
        self.forget(&instance);
        let (unit, why) = (key.0.clone(), why.to_owned());
        (self.events)(NodeEvent::Down { unit, instance, why, comes_back: false });
        dismiss(running);
    }
}

pub(super) fn dismiss(running: Instance) {
    match running {
        Instance::Threads(worker) => worker.stop(),
        Instance::Process(process) => process.stop(FAREWELL),
    }
}
