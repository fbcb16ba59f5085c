//! The place of an instance: what is in it, and when it is filled again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tessera_plan::{Unit, UnitId};

use crate::instance::{BlockProcess, Instance};
use crate::worker::Pulse;

/// After so many failed starts in a row an instance counts as failed.
const MOST_TRIES: u32 = 5;
/// How long to wait after the first failed start; twice as long after each more.
const BACKOFF: Duration = Duration::from_millis(100);
/// How long to wait before a failed instance is tried again.
const REST: Duration = Duration::from_secs(30);

/// How an instance is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceState {
    /// It is being loaded.
    Starting,
    /// It takes requests.
    Up,
    /// It ended and is about to be started again.
    Restarting,
    /// It keeps ending, and why.
    Failed(String),
    /// It was told to stop.
    Stopped,
}

/// The place of an instance.
pub(crate) struct Slot {
    pub(crate) unit: Arc<Unit>,
    /// Counts starts; part of the instance's name.
    pub(crate) generation: u64,
    pub(crate) running: Option<Instance>,
    pub(crate) state: InstanceState,
    pub(crate) since: Instant,
    /// Starts in a row that were of no use.
    pub(crate) failures: u32,
    pub(crate) restarts: u64,
    /// When to start it again.
    pub(crate) again: Option<Instant>,
}

/// What answers a ping.
pub(crate) enum Probe {
    Threads(Pulse),
    Process(Arc<BlockProcess>),
}

impl Slot {
    pub(crate) fn new(unit: Arc<Unit>) -> Self {
        Self {
            unit,
            generation: 0,
            running: None,
            state: InstanceState::Starting,
            since: Instant::now(),
            failures: 0,
            restarts: 0,
            again: None,
        }
    }

    pub(crate) fn name(&self, key: &(UnitId, usize)) -> String {
        instance_name(key, self.generation)
    }

    pub(crate) fn probe(&self) -> Option<Probe> {
        Some(match self.running.as_ref()? {
            Instance::Threads(worker) => Probe::Threads(worker.pulse()),
            Instance::Process(process) => Probe::Process(Arc::clone(process)),
        })
    }

    /// Decides when to start it again.
    pub(crate) fn note_failure(&mut self, was_useful: bool, why: &str) {
        self.failures = if was_useful { 0 } else { self.failures + 1 };
        let now = Instant::now();
        if self.failures >= MOST_TRIES {
            self.state = InstanceState::Failed(why.to_owned());
            self.again = Some(now + REST);
            return;
        }
        self.state = InstanceState::Restarting;
        let wait = match self.failures {
            0 => Duration::ZERO,
            failures => BACKOFF * 2u32.saturating_pow(failures - 1),
        };
        self.again = Some(now + wait);
    }
}

pub(crate) fn instance_name((unit, replica): &(UnitId, usize), generation: u64) -> String {
    format!("{unit}.{replica}.{generation}")
}
