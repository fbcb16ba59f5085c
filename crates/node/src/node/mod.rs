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
use tessera_core::{Error, Result};
use tessera_engine::{CudaOptions, Engine, EngineName};
use tessera_plan::{Unit, UnitId};
use tessera_repository::Repository;
use tessera_tensormq::{Peers, RequestId};

use self::watch::SILENCE;
use crate::cores::MachineCores;
use crate::given_up::GivenUp;
use crate::instance::Instance;
use crate::link::ToBlock;
use crate::lock;
use crate::memory::HostMemory;
use crate::probe::Findings;
use crate::slot::{InstanceState, Probe, Slot};
use crate::worker::{LocalWorkers, Pulse};

/// How often instances are looked at.
const LOOK: Duration = Duration::from_millis(250);

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
                let tasks = unit.tasks.join(", ");
                return Err(error.within(format!("unit {} (of {tasks})", unit.id)));
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
