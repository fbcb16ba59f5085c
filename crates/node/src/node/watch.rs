//! Watching over instances: those that hang are ended, and those that ended are started again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tessera_core::Error;
use tessera_plan::UnitId;

use super::{Inner, NodeEvent};
use crate::instance::Instance;
use crate::link::ToBlock;
use crate::lock;
use crate::slot::InstanceState;
use crate::worker::Pulse;

/// How long a process may be silent before it counts as hanging.
pub(super) const SILENCE: Duration = Duration::from_secs(3);
/// How long one run may take before the instance counts as hanging.
const LONGEST_RUN: Duration = Duration::from_secs(60);

impl Inner {
    /// Starts every instance again whose time has come.
    pub(super) fn start_again(self: &Arc<Self>) {
        if self.ending.load(Ordering::Acquire) {
            return;
        }
        let now = Instant::now();
        let due: Vec<(UnitId, usize)> = {
            let mut slots = lock(&self.slots);
            let due = slots.iter_mut().filter(|(_, slot)| slot.again.is_some_and(|at| at <= now));
            due.map(|(key, slot)| {
                slot.again = None;
                if slot.state == InstanceState::Restarting {
                    slot.state = InstanceState::Starting;
                }
                key.clone()
            })
            .collect()
        };
        for key in due {
            let node = Arc::clone(self);
            let start = move || {
                if let Err(error) = node.launch(&key) {
                    node.not_started(&key, &error);
                }
            };
            if let Err(error) = std::thread::Builder::new().name("start".to_owned()).spawn(start) {
                tracing::error!(%error, "no thread to start a block again");
            }
        }
    }

    pub(super) fn not_started(&self, key: &(UnitId, usize), error: &Error) {
        let mut slots = lock(&self.slots);
        let Some(slot) = slots.get_mut(key) else {
            return;
        };
        let (unit, instance) = (key.0.clone(), slot.name(key));
        tracing::warn!(block = %instance, %error, "it could not be started again");
        slot.note_failure(false, &error.to_string());
        let comes_back = slot.state == InstanceState::Restarting;
        drop(slots);
        (self.events)(NodeEvent::Down { unit, instance, why: error.to_string(), comes_back });
    }

    /// Looks at every instance: pings processes, ends those that hang, starts again what is due.
    pub(super) fn watch(self: &Arc<Self>) {
        let mut hanging = Vec::new();
        {
            let slots = lock(&self.slots);
            for (key, slot) in slots.iter().filter(|(_, slot)| slot.state == InstanceState::Up) {
                match &slot.running {
                    Some(Instance::Process(process)) => {
                        let (heard, pulse) = process.pulse();
                        if heard.elapsed() > SILENCE {
                            hanging.push((key.clone(), slot.generation, "it does not answer"));
                        } else if is_stuck(pulse) {
                            hanging.push((key.clone(), slot.generation, "a run takes too long"));
                        }
                    }
                    Some(Instance::Threads(worker)) if !worker.is_alive() => {
                        hanging.push((key.clone(), slot.generation, "a thread of it ended"));
                    }
                    Some(Instance::Threads(worker)) if is_stuck(worker.pulse()) => {
                        hanging.push((key.clone(), slot.generation, "a run takes too long"));
                    }
                    _ => {}
                }
            }
        }
        for (key, generation, why) in hanging {
            let process = match lock(&self.slots).get(&key).and_then(|slot| slot.running.as_ref()) {
                Some(Instance::Process(process)) => Some(Arc::clone(process)),
                _ => None,
            };
            self.ended(&key, generation, why);
            if let Some(process) = process {
                process.kill();
            }
        }
        for process in self.processes() {
            // One that does not take it is noticed by its silence.
            process.tell(&ToBlock::Ping(0)).ok();
        }
        self.start_again();
    }
}

fn is_stuck(pulse: Pulse) -> bool {
    Duration::from_millis(pulse.busy_ms) > LONGEST_RUN
}
