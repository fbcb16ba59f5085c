//! How instances are started, and made known to all others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tessera_core::{Error, Result};
use tessera_engine::LoadOptions;
use tessera_plan::{Isolation, Unit, UnitId};
use tessera_tensormq::Address;

use super::ending::dismiss;
use super::{Inner, NodeEvent, UnitFacts};
use crate::cores::{Cores, at_once};
use crate::instance::{BlockProcess, Instance, Ready};
use crate::link::{Loss, StartBlock, ToBlock};
use crate::lock;
use crate::probe::try_out;
use crate::slot::{InstanceState, instance_name};
use crate::unit::LoadedUnit;
use crate::worker::{Alone, Worker, WorkerParts};

impl Inner {
    /// Starts the instance of a slot and waits until it takes requests.
    pub(super) fn launch(self: &Arc<Self>, key: &(UnitId, usize)) -> Result<()> {
        let (unit, generation) = {
            let mut slots = lock(&self.slots);
            let slot = slots.get_mut(key).ok_or_else(|| gone(key))?;
            // Never used again, also not by a unit that is removed and comes back.
            slot.generation = self.starts.fetch_add(1, Ordering::Relaxed);
            slot.again = None;
            slot.since = Instant::now();
            (Arc::clone(&slot.unit), slot.generation)
        };
        let name = instance_name(key, generation);
        let started = match unit.settings.isolation {
            Isolation::Thread => self.start_threads(&unit, &name),
            Isolation::Process => self.start_process(&unit, key, generation, &name),
        };
        let mut slots = lock(&self.slots);
        // It may have been removed, or even be gone again.
        let current = slots.get_mut(key).filter(|slot| slot.generation == generation);
        match (current, started) {
            (Some(slot), Ok((running, address))) => {
                let started = match &running {
                    Instance::Process(process) => Some(Arc::clone(process)),
                    Instance::Threads(_) => None,
                };
                slot.running = Some(running);
                slot.state = InstanceState::Up;
                slot.since = Instant::now();
                drop(slots);
                // Others may have come up while it was starting, of which nobody could tell it.
                if let Some(process) = started {
                    process.tell(&ToBlock::Peers(self.peers.addresses())).ok();
                }
                self.introduce(&name, address);
                (self.events)(NodeEvent::Up { unit: key.0.clone(), instance: name });
                // One that ended before it had its place was not noticed.
                self.notice_end(key, generation);
                Ok(())
            }
            (Some(slot), Err(error)) => {
                slot.state = InstanceState::Failed(error.to_string());
                Err(error)
            }
            (None, Ok((running, _))) => {
                drop(slots);
                dismiss(running);
                Err(gone(key))
            }
            (None, Err(error)) => Err(error),
        }
    }

    pub(super) fn start_threads(&self, unit: &Unit, name: &str) -> Result<(Instance, Address)> {
        let loaded = LoadedUnit::load(
            Arc::clone(&self.engine),
            &self.repository,
            unit,
            &self.cores.sizes(),
            LoadOptions {
                cache: self.options.cache.clone(),
                cuda: self.options.cuda,
                ..LoadOptions::default()
            },
        )?;
        let facts = self.facts_of(&unit.id).unwrap_or_else(|| UnitFacts {
            findings: try_out(unit, &loaded),
            weight_bytes: loaded.weight_bytes(),
            is_fused: loaded.is_fused(),
        });
        lock(&self.facts).insert(unit.id.clone(), facts.clone());
        let worker = Worker::start(WorkerParts {
            name: name.to_owned(),
            unit: loaded,
            batching: facts.findings.batching,
            cores: Arc::new(self.cores.clone()),
            memory: self.memory.clone(),
            peers: Arc::clone(&self.peers),
            at_once: at_once(self.options.cores, unit.settings.device),
            given_up: Arc::clone(&self.given_up),
            local: Arc::clone(&self.local),
            overseer: Arc::new(Alone),
        })?;
        let address = worker.address().clone();
        Ok((Instance::Threads(worker), address))
    }

    pub(super) fn start_process(
        self: &Arc<Self>,
        unit: &Unit,
        key: &(UnitId, usize),
        generation: u64,
        name: &str,
    ) -> Result<(Instance, Address)> {
        let known = self.facts_of(&unit.id);
        let start = StartBlock {
            name: name.to_owned(),
            unit: unit.clone(),
            findings: known.as_ref().map(|facts| facts.findings),
            engine: self.options.engine.to_string(),
            repository: self.options.repository.clone(),
            cache: self.options.cache.clone(),
            cuda: self.options.cuda,
            cores: self.options.cores,
            peers: self.peers.addresses(),
            transport: self.peers.transport(),
        };
        let (node, place) = (Arc::downgrade(self), key.clone());
        let gone = move || {
            if let Some(node) = node.upgrade() {
                node.ended(&place, generation, "its process ended");
            }
        };
        let node = Arc::downgrade(self);
        let lost = move |loss: Loss| {
            if let Some(node) = node.upgrade() {
                node.lost(loss);
            }
        };
        let (program, cores) = (&self.options.program, self.cores.clone());
        let (process, ready) = BlockProcess::start(program, start, cores, lost, gone)?;
        let Ready { address, weight_bytes, is_fused, findings, takes_turns } = ready;
        if takes_turns && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "blocks in processes of their own take turns on {}, which makes them slow; start NVIDIA's MPS \
                 (nvidia-cuda-mps-control -d) before the server, or run blocks on threads",
                unit.settings.device
            );
        }
        if known.is_none() {
            let facts = UnitFacts { findings, weight_bytes, is_fused };
            lock(&self.facts).insert(unit.id.clone(), facts);
        }
        Ok((Instance::Process(process), address))
    }

    pub(super) fn facts_of(&self, unit: &UnitId) -> Option<UnitFacts> {
        lock(&self.facts).get(unit).cloned()
    }

    /// Makes an instance known to all others.
    pub(super) fn introduce(&self, name: &str, address: Address) {
        self.peers.add(name, address.clone());
        let line = ToBlock::Peers(vec![(name.to_owned(), address)]);
        for process in self.processes() {
            process.tell(&line).ok();
        }
    }

    pub(super) fn forget(&self, name: &str) {
        self.peers.forget(name);
        let line = ToBlock::Forget(name.to_owned());
        for process in self.processes() {
            process.tell(&line).ok();
        }
    }

    pub(super) fn processes(&self) -> Vec<Arc<BlockProcess>> {
        let slots = lock(&self.slots);
        let running = slots.values().filter_map(|slot| match &slot.running {
            Some(Instance::Process(process)) => Some(Arc::clone(process)),
            _ => None,
        });
        running.collect()
    }
}

fn gone(key: &(UnitId, usize)) -> Error {
    Error::lost(format!("unit {} was removed while it was starting", key.0))
}
