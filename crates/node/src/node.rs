//! A node: it starts the instances of units, watches over them, and starts those that end again.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_engine::{CudaOptions, Engine, EngineName, LoadOptions};
use tessera_plan::{Isolation, Unit, UnitId};
use tessera_repository::Repository;
use tessera_tensormq::{Address, Peers, RequestId};

use crate::cores::{Cores, MachineCores, at_once};
use crate::given_up::GivenUp;
use crate::instance::{BlockProcess, Instance, Ready};
use crate::link::{Loss, StartBlock, ToBlock};
use crate::lock;
use crate::memory::HostMemory;
use crate::probe::{Findings, try_out};
use crate::slot::{InstanceState, Probe, Slot, instance_name};
use crate::unit::LoadedUnit;
use crate::worker::{Alone, LocalWorkers, Pulse, Worker, WorkerParts};

/// How often instances are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How long a process may be silent before it counts as hanging.
const SILENCE: Duration = Duration::from_secs(3);
/// How long one run may take before the instance counts as hanging.
const LONGEST_RUN: Duration = Duration::from_secs(60);
/// A life that was this long, or of any use, is no failed start.
const A_LIFE: Duration = Duration::from_secs(1);
/// How long a process that is asked to go may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a node needs to know.
pub struct NodeOptions {
    /// Which engine.
    pub engine: EngineName,
    /// Where blocks are.
    pub repository: PathBuf,
    /// Cores to compute on.
    pub cores: NonZeroUsize,
    /// The program that runs a block in a process of its own, when called as `PROGRAM block`.
    pub program: PathBuf,
    /// Where prepared blocks are kept.
    pub cache: Option<PathBuf>,
    /// How blocks run on a GPU.
    pub cuda: CudaOptions,
}

/// What happens to instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// An instance takes requests.
    Up {
        /// Its unit.
        unit: UnitId,
        /// Its name.
        instance: String,
    },
    /// An instance is gone, with everything that it was doing.
    Down {
        /// Its unit.
        unit: UnitId,
        /// Its name.
        instance: String,
        /// Why, for people.
        why: String,
        /// Whether it is started again; `false` for one that failed too often or was told to stop.
        comes_back: bool,
    },
    /// A request is lost on its way, whatever comes of it.
    Lost {
        /// Its number.
        request: RequestId,
        /// Which try it was.
        part: u32,
    },
}

/// What a node tells of an instance.
#[derive(Clone, Debug, Serialize)]
pub struct InstanceStatus {
    /// Its unit.
    pub unit: UnitId,
    /// Its name, which changes when it is started again.
    pub instance: String,
    /// How it is.
    pub state: InstanceState,
    /// Its process, where it has one of its own.
    pub process: Option<u32>,
    /// How often it was started again.
    pub restarts: u64,
    /// What it is doing.
    pub pulse: Pulse,
}

/// What is known of a unit since it was first loaded.
#[derive(Clone, Debug)]
pub struct UnitFacts {
    /// What trying it out showed.
    pub findings: Findings,
    /// Bytes of its weights.
    pub weight_bytes: usize,
    /// Whether its blocks run as one.
    pub is_fused: bool,
}

/// Runs instances of units.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    options: NodeOptions,
    engine: Arc<dyn Engine>,
    repository: Repository,
    cores: MachineCores,
    memory: Arc<HostMemory>,
    given_up: Arc<GivenUp>,
    local: Arc<LocalWorkers>,
    peers: Arc<Peers>,
    slots: Mutex<BTreeMap<(UnitId, usize), Slot>>,
    facts: Mutex<HashMap<UnitId, UnitFacts>>,
    events: Box<dyn Fn(NodeEvent) + Send + Sync>,
    pings: AtomicU64,
    /// Counts starts of instances.
    starts: AtomicU64,
    ending: AtomicBool,
    /// Whether it was told that processes take turns on a GPU.
    has_warned: AtomicBool,
    /// Held while others are told that an instance is gone.
    telling: Mutex<()>,
}

impl Node {
    /// A node without instances. `events` is called from threads of the node and must not wait.
    pub fn new(
        options: NodeOptions,
        peers: Arc<Peers>,
        events: impl Fn(NodeEvent) + Send + Sync + 'static,
    ) -> Result<Self> {
        let (engine, note) = tessera_engine::choose(options.engine)?;
        if let Some(note) = note {
            tracing::warn!("{note}");
        }
        let repository = Repository::open(&options.repository)?;
        let inner = Arc::new(Inner {
            cores: MachineCores::new(options.cores),
            options,
            engine,
            repository,
            memory: Arc::default(),
            given_up: Arc::default(),
            peers,
            slots: Mutex::default(),
            facts: Mutex::default(),
            events: Box::new(events),
            pings: AtomicU64::new(1),
            starts: AtomicU64::new(1),
            ending: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
            telling: Mutex::default(),
            local: Arc::default(),
        });
        let watched = Arc::downgrade(&inner);
        std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || {
                while let Some(inner) = watched.upgrade() {
                    if inner.ending.load(Ordering::Acquire) {
                        return;
                    }
                    inner.watch();
                    drop(inner);
                    std::thread::sleep(LOOK);
                }
            })
            .map_err(|error| Error::io("a thread that watches over blocks", &error))?;
        Ok(Self(inner))
    }

    /// The engine's name and version.
    pub fn engine(&self) -> (String, String) {
        (self.0.engine.name().to_owned(), self.0.engine.version())
    }

    /// Makes sure that a unit has as many instances as it should, or more; returns when they take requests.
    ///
    /// Fails where one can't be started, and then leaves none of those behind that it started.
    pub fn start(&self, unit: &Unit) -> Result<()> {
        let unit = Arc::new(unit.clone());
        let mut made = Vec::new();
        for replica in 0..unit.settings.replicas.max(1) {
            let key = (unit.id.clone(), replica);
            {
                let mut slots = lock(&self.0.slots);
                if let Some(slot) = slots.get_mut(&key) {
                    // One that was stopped or has failed stays as it is: nobody asked for it here.
                    slot.unit = Arc::clone(&unit);
                    continue;
                }
                slots.insert(key.clone(), Slot::new(Arc::clone(&unit)));
            }
            made.push(key.clone());
            if let Err(error) = self.0.launch(&key) {
                for key in made {
                    self.0.remove(&key);
                }
                return Err(error.within(format!("unit {}", unit.id)));
            }
        }
        Ok(())
    }

    /// Starts the instances of a unit again that were told to stop or have failed.
    pub fn restart(&self, unit: &UnitId) -> Result<()> {
        let keys: Vec<_> = {
            let mut slots = lock(&self.0.slots);
            let stopped = slots.iter_mut().filter(|((id, _), slot)| {
                id == unit
                    && matches!(slot.state, InstanceState::Failed(_) | InstanceState::Stopped)
            });
            stopped
                .map(|(key, slot)| {
                    slot.failures = 0;
                    slot.state = InstanceState::Starting;
                    key.clone()
                })
                .collect()
        };
        for key in keys {
            self.0.launch(&key).inspect_err(|error| self.0.not_started(&key, error))?;
        }
        Ok(())
    }

    /// The instances that a unit has beyond this number.
    pub fn surplus(&self, unit: &UnitId, replicas: usize) -> Vec<String> {
        let slots = lock(&self.0.slots);
        let more =
            slots.iter().filter(|((id, number), _)| id == unit && *number >= replicas.max(1));
        more.map(|(key, slot)| slot.name(key)).collect()
    }

    /// Stops one instance and forgets its place.
    pub fn remove_instance(&self, instance: &str) {
        let key = lock(&self.0.slots)
            .iter()
            .find(|(key, slot)| slot.name(key) == instance)
            .map(|(key, _)| key.clone());
        if let Some(key) = key {
            self.0.remove(&key);
        }
    }

    /// Stops the instances of a unit and forgets it.
    pub fn remove(&self, unit: &UnitId) {
        let keys: Vec<_> =
            lock(&self.0.slots).keys().filter(|(id, _)| id == unit).cloned().collect();
        keys.iter().for_each(|key| self.0.remove(key));
        lock(&self.0.facts).remove(unit);
    }

    /// Stops the instances of a unit until it is started again.
    pub fn stop(&self, unit: &UnitId) -> Result<()> {
        let keys: Vec<_> =
            lock(&self.0.slots).keys().filter(|(id, _)| id == unit).cloned().collect();
        if keys.is_empty() {
            return Err(Error::not_found(format!("no unit {unit}")));
        }
        for key in keys {
            self.0.halt(&key, InstanceState::Stopped, "it was told to stop");
        }
        Ok(())
    }

    /// Pings the instances of a unit: how long each took to answer, and what it is doing.
    pub fn ping(&self, unit: &UnitId) -> Result<Vec<(String, Pinged)>> {
        let found: Vec<(String, Option<Probe>)> = {
            let slots = lock(&self.0.slots);
            let mine = slots.iter().filter(|((id, _), _)| id == unit);
            mine.map(|(key, slot)| (slot.name(key), slot.probe())).collect()
        };
        if found.is_empty() {
            return Err(Error::not_found(format!("no unit {unit}")));
        }
        let ping = |probe: Option<Probe>| {
            let start = Instant::now();
            let pulse = match probe.ok_or_else(|| Error::lost("it is not running"))? {
                Probe::Threads(pulse) => pulse,
                Probe::Process(process) => {
                    let number = self.0.pings.fetch_add(1, Ordering::Relaxed);
                    process.ping(number, SILENCE)?
                }
            };
            Ok((start.elapsed(), pulse))
        };
        Ok(found.into_iter().map(|(name, probe)| (name, ping(probe))).collect())
    }

    /// The instances of a unit that take requests.
    pub fn instances(&self, unit: &UnitId) -> Vec<String> {
        let slots = lock(&self.0.slots);
        let up = slots
            .iter()
            .filter(|((id, _), slot)| id == unit && slot.state == InstanceState::Up)
            .map(|(key, slot)| slot.name(key));
        up.collect()
    }

    /// Every instance there is.
    pub fn status(&self) -> Vec<InstanceStatus> {
        let slots = lock(&self.0.slots);
        slots
            .iter()
            .map(|(key, slot)| InstanceStatus {
                unit: key.0.clone(),
                instance: slot.name(key),
                state: slot.state.clone(),
                process: match &slot.running {
                    Some(Instance::Process(process)) => Some(process.id),
                    _ => None,
                },
                restarts: slot.restarts,
                pulse: match slot.probe() {
                    Some(Probe::Threads(pulse)) => pulse,
                    Some(Probe::Process(process)) => process.pulse().1,
                    None => Pulse::default(),
                },
            })
            .collect()
    }

    /// What is known of a unit that was loaded.
    pub fn facts(&self, unit: &UnitId) -> Option<UnitFacts> {
        lock(&self.0.facts).get(unit).cloned()
    }

    /// Nobody waits for a request any more: blocks that have not begun with it drop it.
    pub fn give_up(&self, request: RequestId) {
        self.0.given_up.add(request);
        let line = ToBlock::GiveUp(request.to_string());
        for process in self.0.processes() {
            process.tell(&line).ok();
        }
    }

    /// Stops everything.
    pub fn end(&self) {
        self.0.ending.store(true, Ordering::Release);
        let keys: Vec<_> = lock(&self.0.slots).keys().cloned().collect();
        std::thread::scope(|scope| {
            for key in &keys {
                scope.spawn(|| self.0.remove(key));
            }
        });
    }
}

/// How long an instance took to answer a ping, and what it is doing.
pub type Pinged = Result<(Duration, Pulse)>;

impl Inner {
    /// Starts the instance of a slot and waits until it takes requests.
    fn launch(self: &Arc<Self>, key: &(UnitId, usize)) -> Result<()> {
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

    fn start_threads(&self, unit: &Unit, name: &str) -> Result<(Instance, Address)> {
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

    fn start_process(
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

    fn facts_of(&self, unit: &UnitId) -> Option<UnitFacts> {
        lock(&self.facts).get(unit).cloned()
    }

    /// Makes an instance known to all others.
    fn introduce(&self, name: &str, address: Address) {
        self.peers.add(name, address.clone());
        let line = ToBlock::Peers(vec![(name.to_owned(), address)]);
        for process in self.processes() {
            process.tell(&line).ok();
        }
    }

    fn forget(&self, name: &str) {
        self.peers.forget(name);
        let line = ToBlock::Forget(name.to_owned());
        for process in self.processes() {
            process.tell(&line).ok();
        }
    }

    fn processes(&self) -> Vec<Arc<BlockProcess>> {
        let slots = lock(&self.slots);
        let running = slots.values().filter_map(|slot| match &slot.running {
            Some(Instance::Process(process)) => Some(Arc::clone(process)),
            _ => None,
        });
        running.collect()
    }

    /// An instance that is in its place may have ended before it got there.
    fn notice_end(self: &Arc<Self>, key: &(UnitId, usize), generation: u64) {
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
    fn lost(self: &Arc<Self>, loss: Loss) {
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
    fn is_gone(self: &Arc<Self>, name: &str) {
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
    fn ended(self: &Arc<Self>, key: &(UnitId, usize), generation: u64, why: &str) {
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

    /// Starts every instance again whose time has come.
    fn start_again(self: &Arc<Self>) {
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

    fn not_started(&self, key: &(UnitId, usize), error: &Error) {
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
    fn watch(self: &Arc<Self>) {
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

    /// Stops the instance of a slot.
    fn halt(&self, key: &(UnitId, usize), state: InstanceState, why: &str) {
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

    fn remove(&self, key: &(UnitId, usize)) {
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
    fn gone(&self, key: &(UnitId, usize), instance: String, running: Instance, why: &str) {
        self.forget(&instance);
        let (unit, why) = (key.0.clone(), why.to_owned());
        (self.events)(NodeEvent::Down { unit, instance, why, comes_back: false });
        dismiss(running);
    }
}

fn is_stuck(pulse: Pulse) -> bool {
    Duration::from_millis(pulse.busy_ms) > LONGEST_RUN
}

fn dismiss(running: Instance) {
    match running {
        Instance::Threads(worker) => worker.stop(),
        Instance::Process(process) => process.stop(FAREWELL),
    }
}

fn gone(key: &(UnitId, usize)) -> Error {
    Error::lost(format!("unit {} was removed while it was starting", key.0))
}
