//! Restarts: instances that hang are ended, and those that ended are started again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tessera_core::Error;
use tessera_deploy::UnitId;

use super::{NodeEvent, SupervisorInner};
use crate::instance::RunningInstance;
use crate::instance_slot::InstanceState;
use crate::memory::TensorMemory;
use crate::process_protocol::UnitProcessCommand;
use crate::worker::Heartbeat;
use tessera_core::lock;

/// How long a process may be silent before it counts as hanging.
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a run may go on that was ended before the instance counts as hanging.
const ENDING_TIMEOUT: Duration = Duration::from_secs(2);

impl SupervisorInner {
    /// Starts every instance again whose time has come.
    pub(super) fn restart_due_instances(self: &Arc<Self>) {
        if self.is_stopping.load(Ordering::Acquire) {
            return;
        }
        let now = Instant::now();
        let due: Vec<(UnitId, usize)> = {
            let mut slots = lock(&self.slots);
            let due = slots.iter_mut().filter_map(|(key, slot)| {
                let is_due = slot.restart_at.is_some_and(|at| at <= now);
                (is_due && !slot.puts_start_off()).then_some((key, slot))
            });
            due.map(|(key, slot)| {
                slot.restart_at = None;
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
                if let Err(error) = node.start_instance(&key) {
                    node.note_failed_start(&key, &error);
                }
            };
            if let Err(error) =
                std::thread::Builder::new().name("start-instance".to_owned()).spawn(start)
            {
                tracing::error!(%error, "no thread to start an instance again");
            }
        }
    }

    pub(super) fn note_failed_start(&self, key: &(UnitId, usize), error: &Error) {
        let mut slots = lock(&self.slots);
        let Some(slot) = slots.get_mut(key) else {
            return;
        };
        let (unit, instance) = (key.0.clone(), slot.name(key));
        tracing::warn!(%instance, %error, "it could not be started again");
        slot.note_failure(false, &error.to_string());
        let comes_back = slot.state == InstanceState::Restarting;
        drop(slots);
        (self.events)(NodeEvent::Down { unit, instance, reason: error.to_string(), comes_back });
    }

    /// Gives memory of this process back that nothing needs at the moment.
    pub(super) fn release_idle_memory(&self) {
        self.memory.release_idle_memory();
        self.weights.release_spare_memory();
        if self.run_memory.is_calm() {
            tessera_engine::release_grown_memory(|| self.engine.release_idle_memory());
        }
    }

    /// Looks at every instance: pings processes, ends those that hang, starts again what is due.
    pub(super) fn watch_instances(self: &Arc<Self>) {
        self.run_watch.end_overdue_runs();
        self.weights.release_unused();
        let mut hanging = Vec::new();
        {
            let slots = lock(&self.slots);
            for (key, slot) in slots.iter().filter(|(_, slot)| slot.state == InstanceState::Up) {
                match &slot.running {
                    Some(RunningInstance::Process(process)) => {
                        let (heard, heartbeat) = process.last_heartbeat();
                        if heard.elapsed() > SILENCE_TIMEOUT {
                            hanging.push((key.clone(), slot.generation, "it does not answer"));
                        } else if is_stuck(heartbeat) {
                            hanging.push((key.clone(), slot.generation, "a run does not end"));
                        }
                    }
                    Some(RunningInstance::Threads(worker)) if !worker.is_alive() => {
                        hanging.push((key.clone(), slot.generation, "a thread of it ended"));
                    }
                    Some(RunningInstance::Threads(worker))
                        if is_stuck(worker.current_heartbeat()) =>
                    {
                        hanging.push((key.clone(), slot.generation, "a run does not end"));
                    }
                    _ => {}
                }
            }
        }
        for (key, generation, reason) in hanging {
            let process = match lock(&self.slots).get(&key).and_then(|slot| slot.running.as_ref()) {
                Some(RunningInstance::Process(process)) => Some(Arc::clone(process)),
                _ => None,
            };
            self.note_instance_ended(&key, generation, reason);
            if let Some(process) = process {
                process.kill_process();
            }
        }
        for process in self.unit_processes() {
            process.reclaim_unused_cores();
            // One that does not take it is noticed by its silence.
            process.send_command(&UnitProcessCommand::Ping(0)).ok();
        }
        self.restart_due_instances();
    }
}

fn is_stuck(heartbeat: Heartbeat) -> bool {
    Duration::from_millis(heartbeat.overdue_ms) > ENDING_TIMEOUT
}
