//! How instances are started, and made known to all others.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, SendError};
use std::time::Instant;

use tessera_core::{Device, Error, Result};
use tessera_deploy::{Isolation, Unit, UnitId};
use tessera_engine::LoadOptions;
use tessera_tensormq::Address;

use super::ending::stop_instance;
use super::{NodeEvent, SupervisorInner, UnitFacts};
use crate::calibration::{Calibration, calibrate_unit, warm_up_known_unit};
use crate::executor::{UnitMemory, UnitResources};
use crate::instance::{PendingRoom, ReadyInstance, RunningInstance, UnitProcess};
use crate::instance_slot::{InstanceState, instance_name};
use crate::kept_places::InstancePlace;
use crate::process_network::{ProcessCredentials, ProcessNetwork};
use crate::process_protocol::{Loss, StartUnit, UnitProcessCommand};
use crate::program_source::ProgramSource;
use crate::residency::{InstanceWeightRooms, WeightRooms};
use crate::start_progress::start_timeout;
use crate::substitute_weights::SubstituteWeights;
use crate::unit::LoadedUnit;
use crate::worker::{NoLossReporter, Worker, WorkerParts};
use tessera_core::lock;

impl SupervisorInner {
    /// Starts the instance of a slot and waits until it takes requests.
    pub(super) fn start_instance(self: &Arc<Self>, key: &(UnitId, usize)) -> Result<()> {
        let (unit, generation, number) = {
            let mut slots = lock(&self.slots);
            let slot = slots.get_mut(key).ok_or_else(|| removed_while_starting(key))?;
            // Never used again, also not by a unit that is removed and comes back.
            slot.generation = self.starts.fetch_add(1, Ordering::Relaxed);
            slot.restart_at = None;
            slot.since = Instant::now();
            let kept = self.kept_places.take_place(key);
            slot.number = kept.as_ref().map_or(slot.generation, |kept| kept.number);
            if let Some(InstancePlace { number, port, .. }) = kept {
                self.peers.prefer_port(&instance_name(key, number), port);
            }
            (Arc::clone(&slot.unit), slot.generation, slot.number)
        };
        let name = instance_name(key, number);
        let start = Instant::now();
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
                    RunningInstance::Process(process) => Some(Arc::clone(process)),
                    RunningInstance::Threads(_) => None,
                };
                slot.running = Some(running);
                slot.state = InstanceState::Up;
                slot.since = Instant::now();
                drop(slots);
                let ms = start.elapsed().as_millis() as u64;
                tracing::info!(instance = name, ms, "up");
                // Others may have come up while it was starting, of which nobody could tell it.
                if let Some(process) = started {
                    process.send_command(&UnitProcessCommand::Peers(self.peers.addresses())).ok();
                    self.send_credentials(&process);
                }
                self.announce_instance(&name, address);
                (self.events)(NodeEvent::Up { unit: key.0.clone(), instance: name });
                // One that ended before it had its place was not noticed.
                self.notice_early_end(key, generation);
                Ok(())
            }
            (Some(slot), Err(error)) => {
                slot.state = InstanceState::Failed(error.to_string());
                Err(error)
            }
            (None, Ok((running, _))) => {
                drop(slots);
                stop_instance(running);
                Err(removed_while_starting(key))
            }
            (None, Err(error)) => Err(error),
        }
    }

    /// Starts an instance on threads. One that takes too long is left alone: its thread goes on, and
    /// what comes of it is dropped.
    pub(super) fn start_threads(
        self: &Arc<Self>,
        unit: &Arc<Unit>,
        name: &str,
    ) -> Result<(RunningInstance, Address)> {
        let timeout = start_timeout(self.unit_weight_bytes(unit)?);
        let (started, is_started) = std::sync::mpsc::channel();
        let (node, unit, instance) = (Arc::clone(self), Arc::clone(unit), name.to_owned());
        std::thread::Builder::new()
            .name("load-unit".to_owned())
            .spawn(move || {
                let sent = started.send(node.load_threads(&unit, &instance));
                if let Err(SendError(Ok((running, _)))) = sent {
                    stop_instance(running);
                }
            })
            .map_err(|error| Error::from_io("a thread that loads a unit", &error))?;
        match is_started.recv_timeout(timeout) {
            Ok(started) => started,
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::engine(format!("instance {name} panicked while it was starting")))
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = timeout.as_secs();
                Err(Error::timed_out(format!("instance {name} did not start within {seconds} s")))
            }
        }
    }

    /// Loads the blocks of a unit into this process.
    fn load_unit(
        &self,
        unit: &Unit,
        source: &dyn ProgramSource,
        cache: Option<PathBuf>,
        weight_rooms: Option<Arc<dyn WeightRooms>>,
    ) -> Result<LoadedUnit> {
        let resources = UnitResources {
            permits: Arc::new(self.cores.clone()),
            memory: UnitMemory::InProcess(Arc::clone(&self.memory)),
            run_memory: Arc::clone(&self.run_memory),
            run_watch: Arc::clone(&self.run_watch),
            weight_rooms,
        };
        let options = LoadOptions { cache, cuda: self.options.cuda, ..LoadOptions::default() };
        LoadedUnit::load_blocks(Arc::clone(&self.engine), source, unit, resources, options)
    }

    /// What a unit's blocks were found to take, or what trying it shows.
    fn known_calibration(&self, unit: &Unit, loaded: &LoadedUnit) -> Calibration {
        let Some(known) = lock(&self.profiled).calibration_of(unit) else {
            return calibrate_unit(unit, loaded);
        };
        warm_up_known_unit(unit, loaded);
        known
    }

    /// Finds out how long a unit takes here, without its weights: others stand for them.
    pub(super) fn profile_unit(&self, unit: &Unit) -> Result<Calibration> {
        // Nothing of it is kept: it is not the block that it looks like.
        let loaded = self.load_unit(unit, &SubstituteWeights(&self.repository), None, None)?;
        let calibration = calibrate_unit(unit, &loaded);
        if calibration.time.is_zero() {
            return Err(Error::engine("it could not be run on inputs that were made up"));
        }
        lock(&self.profiled).add_profile(unit, calibration);
        Ok(calibration)
    }

    fn load_threads(&self, unit: &Unit, name: &str) -> Result<(RunningInstance, Address)> {
        let rooms = self.weights.manager_of(unit.settings.device).map(|manager| {
            let (instance, choice) = (name.to_owned(), unit.settings.residency);
            Arc::new(InstanceWeightRooms { manager, instance, choice }) as Arc<dyn WeightRooms>
        });
        let cache = self.options.cache.clone();
        let loaded = self.load_unit(unit, &self.repository, cache, rooms)?;
        let facts = self.facts_of(&unit.id).unwrap_or_else(|| UnitFacts {
            calibration: self.known_calibration(unit, &loaded),
            weight_bytes: loaded.weight_bytes(),
            is_fused: loaded.is_fused(),
        });
        lock(&self.facts).insert(unit.id.clone(), facts.clone());
        let most_concurrent_runs = loaded.concurrent_runs(self.options.cores);
        let worker = Worker::spawn_threads(WorkerParts {
            name: name.to_owned(),
            unit: loaded,
            batching: facts.calibration.batching,
            peers: Arc::clone(&self.peers),
            most_concurrent_runs,
            cancelled: Arc::clone(&self.cancelled),
            local_workers: Arc::clone(&self.local_workers),
            loss_reporter: Arc::new(NoLossReporter),
        })?;
        let address = worker.address().clone();
        Ok((RunningInstance::Threads(worker), address))
    }

    pub(super) fn start_process(
        self: &Arc<Self>,
        unit: &Unit,
        key: &(UnitId, usize),
        generation: u64,
        name: &str,
    ) -> Result<(RunningInstance, Address)> {
        let known = self.facts_of(&unit.id);
        let weight_bytes = self.unit_weight_bytes(unit)?;
        // What processes have on a GPU stays there.
        let is_on_host = unit.settings.device == Device::Cpu;
        let bounded = self.weights.manager_of(unit.settings.device).filter(|_| is_on_host);
        let start = StartUnit {
            name: name.to_owned(),
            unit: unit.clone(),
            calibration: known.as_ref().map(|facts| facts.calibration),
            engine: self.options.engine.to_string(),
            repository: self.options.repository.clone(),
            cache: self.options.cache.clone(),
            cuda: self.options.cuda,
            cores: self.options.cores,
            peers: self.peers.addresses(),
            transport: self.peers.transport(),
            network: ProcessNetwork::of_peers(&self.peers, name),
            run_limits: self.options.run_limits,
            asks_for_room: bounded.is_some(),
            instance_group: self.options.instance_group.clone(),
        };
        let (node, place) = (Arc::downgrade(self), key.clone());
        let on_end = move || {
            if let Some(node) = node.upgrade() {
                node.note_instance_ended(&place, generation, "its process ended");
            }
        };
        let node = Arc::downgrade(self);
        let on_loss = move |loss: Loss| {
            if let Some(node) = node.upgrade() {
                node.announce_loss(loss);
            }
        };
        let (program, cores) = (&self.options.program, self.cores.clone());
        let cache = self.options.cache.clone();
        let room =
            bounded.map(|weights| PendingRoom::wait_for_room(&weights, name, unit, weight_bytes));
        let room = room.transpose()?;
        let on_end = move |process| {
            tessera_engine::remove_folders_of(process, cache.as_deref());
            on_end();
        };
        let (process, ready) = UnitProcess::spawn_and_wait(
            program,
            start,
            weight_bytes,
            cores,
            room,
            on_loss,
            on_end,
        )?;
        let ReadyInstance { address, weight_bytes, is_fused, calibration, takes_turns } = ready;
        if takes_turns && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "units in processes of their own take turns on {}, which makes them slow; start NVIDIA's MPS \
                 (nvidia-cuda-mps-control -d) before the server, or run units on threads",
                unit.settings.device
            );
        }
        if known.is_none() {
            let facts = UnitFacts { calibration, weight_bytes, is_fused };
            lock(&self.facts).insert(unit.id.clone(), facts);
        }
        Ok((RunningInstance::Process(process), address))
    }

    pub(super) fn facts_of(&self, unit: &UnitId) -> Option<UnitFacts> {
        lock(&self.facts).get(unit).cloned()
    }

    /// Makes an instance known to all others.
    pub(super) fn announce_instance(&self, name: &str, address: Address) {
        self.peers.add_peer(name, address.clone());
        let line = UnitProcessCommand::Peers(vec![(name.to_owned(), address)]);
        for process in self.unit_processes() {
            process.send_command(&line).ok();
        }
    }

    pub(super) fn forget_instance(&self, name: &str) {
        self.peers.forget_peer(name);
        let line = UnitProcessCommand::Forget(name.to_owned());
        for process in self.unit_processes() {
            process.send_command(&line).ok();
        }
    }

    /// Has the processes of instances be to other hosts what this one is by now.
    pub(super) fn announce_credentials(&self) {
        for process in self.unit_processes() {
            self.send_credentials(&process);
        }
    }

    fn send_credentials(&self, process: &UnitProcess) {
        let Some(identity) = self.peers.endpoint().tls_identity() else { return };
        let credentials = Box::new(ProcessCredentials::of_identity(identity));
        // One that can't be told is at its end.
        process.send_command(&UnitProcessCommand::Credentials(credentials)).ok();
    }

    pub(super) fn unit_processes(&self) -> Vec<Arc<UnitProcess>> {
        let slots = lock(&self.slots);
        let running = slots.values().filter_map(|slot| match &slot.running {
            Some(RunningInstance::Process(process)) => Some(Arc::clone(process)),
            _ => None,
        });
        running.collect()
    }
}

fn removed_while_starting(key: &(UnitId, usize)) -> Error {
    Error::lost(format!("unit {} was removed while it was starting", key.0))
}
