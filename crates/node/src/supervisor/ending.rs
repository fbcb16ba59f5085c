//! How instances end, with or without being told to; and who must know what is lost with them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_deploy::UnitId;
use tessera_tensormq::{Address, RequestId};

use super::{NodeEvent, SupervisorInner};
use crate::instance::RunningInstance;
use crate::instance_slot::InstanceState;
use crate::process_protocol::Loss;
use tessera_core::lock;

/// A life that was this long, or of any use, is no failed start.
const MIN_USEFUL_LIFETIME: Duration = Duration::from_secs(1);
/// How long a process that is asked to go may take.
const STOP_GRACE_PERIOD: Duration = Duration::from_secs(2);

impl SupervisorInner {
    /// An instance that is in its place may have ended before it got there.
    pub(super) fn notice_early_end(self: &Arc<Self>, key: &(UnitId, usize), generation: u64) {
        let slots = lock(&self.slots);
        let has_ended = slots.get(key).is_some_and(|slot| {
            slot.generation == generation
                && matches!(&slot.running, Some(RunningInstance::Process(process)) if process.has_ended())
        });
        drop(slots);
        if has_ended {
            self.note_instance_ended(key, generation, "its process ended");
        }
    }

    /// An instance lost something. Everyone who must know does when this returns.
    pub(super) fn announce_loss(self: &Arc<Self>, loss: Loss) {
        match loss {
            Loss::Process(endpoint_id) => {
                let known = self.peers.addresses();
                let is_it = |(_, address): &&(String, Address)| address.endpoint_id == endpoint_id;
                if let Some((name, _)) = known.iter().find(is_it) {
                    self.end_unreachable_instance(name);
                }
                // What is being announced at this moment is known then.
                drop(lock(&self.announcing));
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

    /// An instance in a process of its own is gone, or as good as that: others can't reach its
    /// memory.
    pub(super) fn end_unreachable_instance(self: &Arc<Self>, name: &str) {
        let found = {
            let slots = lock(&self.slots);
            let mut all = slots.iter();
            all.find(|(key, slot)| slot.name(key) == name).and_then(|(key, slot)| {
                let Some(RunningInstance::Process(process)) = &slot.running else { return None };
                Some((key.clone(), slot.generation, Arc::clone(process)))
            })
        };
        if let Some((key, generation, process)) = found {
            process.kill_process();
            self.note_instance_ended(&key, generation, "its process ended");
        }
    }

    /// An instance is gone that nobody told to go.
    pub(super) fn note_instance_ended(
        self: &Arc<Self>,
        key: &(UnitId, usize),
        generation: u64,
        reason: &str,
    ) {
        let announcing = lock(&self.announcing);
        let mut slots = lock(&self.slots);
        let Some(slot) = slots
            .get_mut(key)
            .filter(|slot| slot.generation == generation && slot.state == InstanceState::Up)
        else {
            return;
        };
        let name = slot.name(key);
        // One on threads may be there still, and have its name.
        if let Some(RunningInstance::Process(_)) = &slot.running
            && let Some(place) = self.place_of(key, slot)
        {
            self.kept_places.note_free(place);
        }
        let running = slot.running.take();
        let was_useful = slot.since.elapsed() >= MIN_USEFUL_LIFETIME
            || match &running {
                Some(RunningInstance::Process(process)) => process.last_heartbeat().1.done > 0,
                _ => false,
            };
        slot.restarts += 1;
        slot.note_failure(was_useful, reason);
        let comes_back = slot.state == InstanceState::Restarting;
        drop(slots);
        tracing::warn!(instance = %name, "{reason}; it is started again");
        self.forget_instance(&name);
        if let Some(RunningInstance::Threads(worker)) = running {
            let threads = worker.abandon();
            if let Some(slot) = lock(&self.slots).get_mut(key) {
                slot.abandoned.extend(threads);
            }
        }
        let (unit, reason) = (key.0.clone(), reason.to_owned());
        (self.events)(NodeEvent::Down { unit, instance: name, reason, comes_back });
        drop(announcing);
        self.restart_due_instances();
    }

    /// Stops the instance of a slot.
    pub(super) fn halt_instance(&self, key: &(UnitId, usize), state: InstanceState, reason: &str) {
        let (name, running) = {
            let mut slots = lock(&self.slots);
            let Some(slot) = slots.get_mut(key) else {
                return;
            };
            slot.state = state;
            slot.restart_at = None;
            let name = slot.name(key);
            // What is starting at this moment finds that it is not wanted any more.
            let running = slot.running.take();
            if running.is_none() {
                slot.generation = self.starts.fetch_add(1, Ordering::Relaxed);
            }
            (name, running)
        };
        if let Some(running) = running {
            self.retire_instance(key, name, running, reason);
        }
    }

    pub(super) fn remove_slot(&self, key: &(UnitId, usize)) {
        if let Some(running) = self.detach_slot(key) {
            stop_instance(running);
        }
    }

    /// Takes an instance out of its place: nothing goes to it any more, and whoever starts the unit
    /// meanwhile makes a new one.
    pub(super) fn detach_slot(&self, key: &(UnitId, usize)) -> Option<RunningInstance> {
        let mut slot = lock(&self.slots).remove(key)?;
        let name = slot.name(key);
        let running = slot.running.take()?;
        self.announce_retirement(key, name, "it is not needed any more");
        Some(running)
    }

    /// An instance that was told to go.
    pub(super) fn retire_instance(
        &self,
        key: &(UnitId, usize),
        instance: String,
        running: RunningInstance,
        reason: &str,
    ) {
        self.announce_retirement(key, instance, reason);
        stop_instance(running);
    }

    fn announce_retirement(&self, key: &(UnitId, usize), instance: String, reason: &str) {
        self.forget_instance(&instance);
        let (unit, reason) = (key.0.clone(), reason.to_owned());
        (self.events)(NodeEvent::Down { unit, instance, reason, comes_back: false });
    }
}

/// Instances that nobody uses any more, and which run still.
#[must_use = "they go on until they are stopped"]
pub struct DetachedInstances(pub(super) Vec<RunningInstance>);

impl DetachedInstances {
    /// Stops them, which may take a moment.
    pub fn stop_all(self) {
        self.0.into_iter().for_each(stop_instance);
    }
}

pub(super) fn stop_instance(running: RunningInstance) {
    match running {
        RunningInstance::Threads(worker) => worker.stop_and_join(STOP_GRACE_PERIOD),
        RunningInstance::Process(process) => process.stop_or_kill(STOP_GRACE_PERIOD),
    }
}
