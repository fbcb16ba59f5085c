//! The place of an instance: what is in it, and when it is filled again.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tessera_deploy::{Unit, UnitId};

use crate::instance::{RunningInstance, UnitProcess};
use crate::worker::Heartbeat;

/// After so many failed starts in a row an instance counts as failed.
const MOST_TRIES: u32 = 5;
/// How long to wait after the first failed start; twice as long after each more.
const RESTART_BACKOFF: Duration = Duration::from_millis(100);
/// How long to wait before a failed instance is tried again.
const FAILED_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Threads of a unit that may be left alone in runs that do not end, before it is not started again.
const MOST_ABANDONED: usize = 4;

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
pub(crate) struct InstanceSlot {
    pub(crate) unit: Arc<Unit>,
    /// Counts starts.
    pub(crate) generation: u64,
    /// Part of the instance's name: the count of its start, or of that of the one in whose place it
    /// is.
    pub(crate) number: u64,
    pub(crate) running: Option<RunningInstance>,
    pub(crate) state: InstanceState,
    pub(crate) since: Instant,
    /// Starts in a row that were of no use.
    pub(crate) failures: u32,
    pub(crate) restarts: u64,
    /// When to start it again.
    pub(crate) restart_at: Option<Instant>,
    /// Threads of instances before it that may not have ended.
    pub(crate) abandoned: Vec<JoinHandle<()>>,
}

/// What answers a ping.
pub(crate) enum PingTarget {
    Threads(Box<Heartbeat>),
    Process(Arc<UnitProcess>),
}

impl InstanceSlot {
    pub(crate) fn new(unit: Arc<Unit>) -> Self {
        Self {
            unit,
            generation: 0,
            number: 0,
            running: None,
            state: InstanceState::Starting,
            since: Instant::now(),
            failures: 0,
            restarts: 0,
            restart_at: None,
            abandoned: Vec::new(),
        }
    }

    pub(crate) fn name(&self, key: &(UnitId, usize)) -> String {
        instance_name(key, self.number)
    }

    pub(crate) fn ping_target(&self) -> Option<PingTarget> {
        Some(match self.running.as_ref()? {
            RunningInstance::Threads(worker) => {
                PingTarget::Threads(Box::new(worker.current_heartbeat()))
            }
            RunningInstance::Process(process) => PingTarget::Process(Arc::clone(process)),
        })
    }

    /// Puts a start off where runs of instances before it take cores for good, which nobody can end.
    pub(crate) fn puts_start_off(&mut self) -> bool {
        self.abandoned.retain(|thread| !thread.is_finished());
        let is_put_off = self.abandoned.len() >= MOST_ABANDONED;
        if is_put_off {
            self.state = InstanceState::Failed(
                "runs of it do not end, and on threads nobody can end them: run it in a process \
                 (\"isolation\": \"process\")"
                    .to_owned(),
            );
            self.restart_at = Some(Instant::now() + FAILED_RETRY_DELAY);
        }
        is_put_off
    }

    /// Decides when to start it again.
    pub(crate) fn note_failure(&mut self, was_useful: bool, reason: &str) {
        self.failures = if was_useful { 0 } else { self.failures + 1 };
        let now = Instant::now();
        if self.failures >= MOST_TRIES {
            self.state = InstanceState::Failed(reason.to_owned());
            self.restart_at = Some(now + FAILED_RETRY_DELAY);
            return;
        }
        self.state = InstanceState::Restarting;
        let wait = match self.failures {
            0 => Duration::ZERO,
            failures => RESTART_BACKOFF * 2u32.saturating_pow(failures - 1),
        };
        self.restart_at = Some(now + wait);
    }
}

pub(crate) fn instance_name((unit, replica): &(UnitId, usize), number: u64) -> String {
    format!("{unit}.{replica}.{number}")
}
