//! A node: it starts the instances of units, watches over them, and starts those that end again.

mod ending;
mod starting;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use tessera_core::{Device, Error, Result};
use tessera_deploy::{Unit, UnitId};
use tessera_engine::{CudaOptions, Engine, EngineName};
use tessera_repository::Repository;
use tessera_tensormq::{Address, ConnectionTraffic, Peers, RequestId, Transport};

pub use self::ending::DetachedInstances;
use self::watch::SILENCE_TIMEOUT;
use crate::calibration::Calibration;
use crate::cancelled::CancelledRequests;
use crate::instance::RunningInstance;
use crate::instance_slot::{InstanceSlot, InstanceState, PingTarget};
use crate::kept_places::{InstancePlace, KeptPlaces};
use crate::memory::HostMemory;
use crate::permits::MachineCorePermits;
use crate::process_protocol::UnitProcessCommand;
use crate::profiled_blocks::ProfiledBlocks;
use crate::residency::{WeightLimits, WeightManagers, WeightStatus, WeightUse};
use crate::run_limits::RunLimits;
use crate::run_memory::RunMemory;
use crate::run_watch::RunWatch;
use crate::worker::{Heartbeat, LocalWorkers};
use tessera_core::lock;

/// How often instances are looked at.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// How often memory is looked through that nobody uses.
pub(crate) const RELEASE_INTERVAL: Duration = Duration::from_secs(2);

/// What a node needs to know.
pub struct NodeOptions {
    /// Which engine.
    pub engine: EngineName,
    /// Where blocks are.
    pub repository: PathBuf,
    /// Cores to compute on.
    pub cores: NonZeroUsize,
    /// The program that runs an instance in a process of its own, when called as
    /// `PROGRAM instance`.
    pub program: PathBuf,
    /// Where prepared blocks are kept.
    pub cache: Option<PathBuf>,
    /// How units run on a GPU.
    pub cuda: CudaOptions,
    /// What bounds runs.
    pub run_limits: RunLimits,
    /// What bounds weights in memory.
    pub weight_limits: WeightLimits,
    /// Where an instance's process writes its number, to be in a control group.
    pub instance_group: Option<PathBuf>,
    /// The number of its first start, part of instances' names: where others know those too, one
    /// that no earlier run had.
    pub first_start: u64,
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
        reason: String,
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
    pub heartbeat: Heartbeat,
    /// Where its weights are, where they come and go.
    pub weights: Option<WeightStatus>,
}

/// What is known of a unit since it was first loaded.
#[derive(Clone, Debug)]
pub struct UnitFacts {
    /// What its calibration showed.
    pub calibration: Calibration,
    /// Bytes of its weights.
    pub weight_bytes: usize,
    /// Whether its blocks run as one.
    pub is_fused: bool,
}

/// Runs instances of units.
#[derive(Clone)]
pub struct NodeSupervisor(pub(crate) Arc<SupervisorInner>);

pub(crate) struct SupervisorInner {
    options: NodeOptions,
    engine: Arc<dyn Engine>,
    pub(crate) repository: Repository,
    cores: MachineCorePermits,
    memory: Arc<HostMemory>,
    run_memory: Arc<RunMemory>,
    run_watch: Arc<RunWatch>,
    /// Whose weights are in memory, where that is bounded.
    weights: WeightManagers,
    cancelled: Arc<CancelledRequests>,
    local_workers: Arc<LocalWorkers>,
    peers: Arc<Peers>,
    slots: Mutex<BTreeMap<(UnitId, usize), InstanceSlot>>,
    facts: Mutex<HashMap<UnitId, UnitFacts>>,
    /// What blocks take here that were tried by themselves.
    profiled: Mutex<ProfiledBlocks>,
    /// Bytes of the weights of units that were looked at, until they are removed.
    pub(crate) weight_bytes: Mutex<HashMap<UnitId, u64>>,
    events: Box<dyn Fn(NodeEvent) + Send + Sync>,
    pings: AtomicU64,
    /// Counts starts of instances.
    starts: AtomicU64,
    kept_places: KeptPlaces,
    is_stopping: AtomicBool,
    /// Whether it was told that processes take turns on a GPU.
    has_warned: AtomicBool,
    /// Held while others are told that an instance is gone.
    announcing: Mutex<()>,
}

impl NodeSupervisor {
    /// A node without instances. `events` is called from threads of the node and must not wait.
    pub fn new(
        options: NodeOptions,
        peers: Arc<Peers>,
        events: impl Fn(NodeEvent) + Send + Sync + 'static,
    ) -> Result<Self> {
        let (engine, note) = tessera_engine::choose_engine(options.engine)?;
        if let Some(note) = note {
            tracing::warn!("{note}");
        }
        let repository = Repository::open(&options.repository)?;
        tessera_engine::remove_abandoned_folders(options.cache.as_deref());
        let run_memory = options.run_limits.memory.map_or_else(RunMemory::default, RunMemory::new);
        let run_memory = Arc::new(run_memory);
        let run_watch = Arc::new(RunWatch::new(options.run_limits.time));
        let weights = WeightManagers::new(options.weight_limits);
        let inner = Arc::new(SupervisorInner {
            cores: MachineCorePermits::new(options.cores),
            starts: AtomicU64::new(options.first_start),
            options,
            engine,
            repository,
            memory: Arc::default(),
            run_memory,
            run_watch,
            weights,
            cancelled: Arc::default(),
            peers,
            slots: Mutex::default(),
            facts: Mutex::default(),
            profiled: Mutex::default(),
            weight_bytes: Mutex::default(),
            events: Box::new(events),
            pings: AtomicU64::new(1),
            is_stopping: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
            announcing: Mutex::default(),
            kept_places: KeptPlaces::default(),
            local_workers: Arc::default(),
        });
        let watched = Arc::downgrade(&inner);
        std::thread::Builder::new()
            .name("supervise".to_owned())
            .spawn(move || {
                let mut released = Instant::now();
                while let Some(inner) = watched.upgrade() {
                    if inner.is_stopping.load(Ordering::Acquire) {
                        return;
                    }
                    inner.watch_instances();
                    if released.elapsed() >= RELEASE_INTERVAL {
                        released = Instant::now();
                        inner.release_idle_memory();
                    }
                    drop(inner);
                    std::thread::sleep(WATCH_INTERVAL);
                }
            })
            .map_err(|error| Error::from_io("a thread that watches over instances", &error))?;
        Ok(Self(inner))
    }

    /// The engine's name and version.
    pub fn engine_name_and_version(&self) -> (String, String) {
        (self.0.engine.name().to_owned(), self.0.engine.version())
    }

    /// Makes sure that a unit has as many instances as it should, or more; returns when they take
    /// requests.
    ///
    /// Fails where one can't be started, and then leaves none of those behind that it started.
    pub fn start_unit(&self, unit: &Arc<Unit>) -> Result<()> {
        let mut made = Vec::new();
        for replica in 0..unit.settings.replicas.max(1) {
            let key = (unit.id.clone(), replica);
            {
                let mut slots = lock(&self.0.slots);
                if let Some(slot) = slots.get_mut(&key) {
                    // One that was stopped or has failed stays as it is: nobody asked for it here.
                    slot.unit = Arc::clone(unit);
                    self.0.weights.set_choice(&slot.name(&key), unit.settings.residency);
                    continue;
                }
                slots.insert(key.clone(), InstanceSlot::new(Arc::clone(unit)));
            }
            made.push(key.clone());
            if let Err(error) = self.0.start_instance(&key) {
                for key in made {
                    self.0.remove_slot(&key);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Starts the instances of a unit again that were told to stop or have failed.
    pub fn restart_unit(&self, unit: &UnitId) -> Result<()> {
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
            self.0
                .start_instance(&key)
                .inspect_err(|error| self.0.note_failed_start(&key, error))?;
        }
        Ok(())
    }

    /// The instances that a unit has beyond this number.
    pub fn surplus_instances(&self, unit: &UnitId, replicas: usize) -> Vec<String> {
        let slots = lock(&self.0.slots);
        let more =
            slots.range((unit.clone(), replicas.max(1))..).take_while(|((id, _), _)| id == unit);
        more.map(|(key, slot)| slot.name(key)).collect()
    }

    /// Stops one instance and forgets its place.
    pub fn remove_instance(&self, instance: &str) {
        let key = lock(&self.0.slots)
            .iter()
            .find(|(key, slot)| slot.name(key) == instance)
            .map(|(key, _)| key.clone());
        if let Some(key) = key {
            self.0.remove_slot(&key);
        }
    }

    /// Stops the instances of a unit and forgets it.
    pub fn remove_unit(&self, unit: &UnitId) {
        self.detach_unit(unit).stop_all();
    }

    /// Forgets a unit: nothing goes to its instances any more. What is returned is to be stopped,
    /// while it may be started anew.
    pub fn detach_unit(&self, unit: &UnitId) -> DetachedInstances {
        let keys = self.0.unit_slots(unit);
        let detached = keys.iter().filter_map(|key| self.0.detach_slot(key)).collect();
        lock(&self.0.facts).remove(unit);
        lock(&self.0.weight_bytes).remove(unit);
        DetachedInstances(detached)
    }

    /// Stops the instances of a unit until it is started again.
    pub fn stop_unit(&self, unit: &UnitId) -> Result<()> {
        let keys = self.0.unit_slots(unit);
        if keys.is_empty() {
            return Err(Error::not_found(format!("no unit {unit}")));
        }
        for key in keys {
            self.0.halt_instance(&key, InstanceState::Stopped, "it was told to stop");
        }
        Ok(())
    }

    /// Pings the instances of a unit: how long each took to answer, and what it is doing.
    pub fn ping_unit(&self, unit: &UnitId) -> Result<Vec<(String, PingResult)>> {
        let found: Vec<(String, Option<PingTarget>)> = {
            let slots = lock(&self.0.slots);
            let mine = slots.iter().filter(|((id, _), _)| id == unit);
            mine.map(|(key, slot)| (slot.name(key), slot.ping_target())).collect()
        };
        if found.is_empty() {
            return Err(Error::not_found(format!("no unit {unit}")));
        }
        let ping = |target: Option<PingTarget>| {
            let start = Instant::now();
            let heartbeat = match target.ok_or_else(|| Error::lost("it is not running"))? {
                PingTarget::Threads(heartbeat) => *heartbeat,
                PingTarget::Process(process) => {
                    let number = self.0.pings.fetch_add(1, Ordering::Relaxed);
                    process.ping_and_wait(number, SILENCE_TIMEOUT)?
                }
            };
            Ok((start.elapsed(), heartbeat))
        };
        Ok(found.into_iter().map(|(name, target)| (name, ping(target))).collect())
    }

    /// The instances of a unit that take requests.
    pub fn ready_instances(&self, unit: &UnitId) -> Vec<String> {
        let slots = lock(&self.0.slots);
        let own = slots.range((unit.clone(), 0)..).take_while(|((id, _), _)| id == unit);
        let up = own.filter(|(_, slot)| slot.state == InstanceState::Up);
        up.map(|(key, slot)| slot.name(key)).collect()
    }

    /// Makes somebody known whom instances send to: an instance of another node, or who waits for
    /// replies.
    pub fn add_remote_peer(&self, name: &str, address: Address) {
        self.0.announce_instance(name, address);
    }

    /// Forgets somebody that was made known.
    pub fn forget_remote_peer(&self, name: &str) {
        self.0.forget_instance(name);
    }

    /// The certificate was renewed, or others are not believed any more: instances that are
    /// processes of their own hear of it.
    pub fn announce_credentials(&self) {
        self.0.announce_credentials();
    }

    /// What the connections of instances that are processes have done, with others by their names,
    /// as it was known when each was last heard of.
    pub fn process_traffic(&self) -> Vec<(Vec<String>, ConnectionTraffic)> {
        let processes = self.0.unit_processes();
        processes.iter().flat_map(|process| process.last_traffic()).collect()
    }

    /// Has the first instances of these places be where others were that ended with an earlier run.
    pub fn keep_places(&self, places: Vec<InstancePlace>) {
        self.0.kept_places.add_places(places);
    }

    /// Whether an instance that is started again keeps its name and port: nobody is there to tell
    /// others that it has new ones.
    pub fn set_keeps_names(&self, keeps: bool) {
        self.0.kept_places.set_keeps_free(keeps);
    }

    /// Where the instances are to other hosts that take requests.
    pub fn instance_places(&self) -> Vec<InstancePlace> {
        let slots = lock(&self.0.slots);
        let up = slots.iter().filter(|(_, slot)| slot.state == InstanceState::Up);
        up.filter_map(|(key, slot)| self.0.place_of(key, slot)).collect()
    }

    /// Where an instance of this node is reached.
    pub fn instance_address(&self, instance: &str) -> Option<Address> {
        self.0.peers.address_of(instance)
    }

    /// Every instance there is.
    pub fn instance_statuses(&self) -> Vec<InstanceStatus> {
        let weights = self.weight_use().into_iter().flat_map(|(_, used)| used.instances);
        let mut weights: HashMap<String, WeightStatus> =
            weights.map(|status| (status.instance.clone(), status)).collect();
        let slots = lock(&self.0.slots);
        slots
            .iter()
            .map(|(key, slot)| InstanceStatus {
                weights: weights.remove(&slot.name(key)),
                unit: key.0.clone(),
                instance: slot.name(key),
                state: slot.state.clone(),
                process: match &slot.running {
                    Some(RunningInstance::Process(process)) => Some(process.id),
                    _ => None,
                },
                restarts: slot.restarts,
                heartbeat: match slot.ping_target() {
                    Some(PingTarget::Threads(heartbeat)) => *heartbeat,
                    Some(PingTarget::Process(process)) => process.last_heartbeat().1,
                    None => Heartbeat::default(),
                },
            })
            .collect()
    }

    /// What weights take of each memory where that is bounded.
    pub fn weight_use(&self) -> Vec<(Device, WeightUse)> {
        self.0.weights.current_use()
    }

    /// Finds out how long a unit would take here. Its blocks have to be there, their weights not.
    /// Takes as long as a few runs of it.
    pub fn profile_unit(&self, unit: &Unit) -> Result<Calibration> {
        self.0.profile_unit(unit)
    }

    /// What is known of a unit that was loaded.
    pub fn unit_facts(&self, unit: &UnitId) -> Option<UnitFacts> {
        lock(&self.0.facts).get(unit).cloned()
    }

    /// Nobody waits for a request any more: instances that have not begun with it drop it.
    pub fn cancel_request(&self, request: RequestId) {
        self.0.cancelled.mark_cancelled(request);
        let line = UnitProcessCommand::Cancel(request.to_string());
        for process in self.0.unit_processes() {
            process.send_command(&line).ok();
        }
    }

    /// Stops everything.
    pub fn stop_all(&self) {
        self.0.is_stopping.store(true, Ordering::Release);
        let keys: Vec<_> = lock(&self.0.slots).keys().cloned().collect();
        std::thread::scope(|scope| {
            for key in &keys {
                scope.spawn(|| self.0.remove_slot(key));
            }
        });
    }
}

impl SupervisorInner {
    /// Where an instance is to other hosts; `None` where they don't reach it.
    pub(crate) fn place_of(
        &self,
        key: &(UnitId, usize),
        slot: &InstanceSlot,
    ) -> Option<InstancePlace> {
        let port = self.peers.address_of(&slot.name(key))?.port_of(Transport::TCP)?;
        let (unit, replica) = key.clone();
        Some(InstancePlace { unit, replica, number: slot.number, port })
    }

    /// The places of a unit's instances.
    pub(crate) fn unit_slots(&self, unit: &UnitId) -> Vec<(UnitId, usize)> {
        let slots = lock(&self.slots);
        let own = slots.range((unit.clone(), 0)..).take_while(|((id, _), _)| id == unit);
        own.map(|(key, _)| key.clone()).collect()
    }
}

/// How long an instance took to answer a ping, and what it is doing.
pub type PingResult = Result<(Duration, Heartbeat)>;
