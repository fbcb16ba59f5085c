//! What a node and the process of an instance say to each other: a line of JSON each, through
//! pipes.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use serde::{Deserialize, Serialize};
use tessera_core::{Error, ErrorKind, Result};
use tessera_deploy::Unit;
use tessera_engine::{CudaOptions, EngineName};
use tessera_tensormq::{Address, Transport};

use crate::calibration::Calibration;
use crate::permits::{CorePermit, CorePermits, sizes_of_permits};
use crate::process_network::{PeerTraffic, ProcessCredentials, ProcessNetwork};
use crate::run_limits::RunLimits;
use crate::worker::Heartbeat;
use tessera_core::lock;

/// What a unit's process is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UnitProcessCommand {
    /// What to run. The first line.
    Start(Box<StartUnit>),
    /// Instances to know.
    Peers(Vec<(String, Address)>),
    /// An instance to forget.
    Forget(String),
    /// Who it is to other hosts from now on, and whom it does not believe any more.
    Credentials(Box<ProcessCredentials>),
    /// A permit that was asked for.
    Grant {
        /// Which it was.
        ticket: u64,
        /// Its size.
        cores: NonZeroUsize,
    },
    /// There is room for its weights, which it wanted by this ticket.
    RoomForWeights(u64),
    /// Others need the room of its weights: they leave once no run uses them.
    LeaveWeights,
    /// A request that nobody waits for any more.
    Cancel(String),
    /// To answer with a heartbeat.
    Ping(u64),
    /// What it told of a loss is known to everyone.
    Known(u64),
    /// To end what it has begun, and go.
    Stop,
}

/// What a unit's process runs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartUnit {
    /// Its name.
    pub(crate) name: String,
    /// What it runs.
    pub(crate) unit: Unit,
    /// What is known of the unit since it was first loaded; it is not calibrated again.
    pub(crate) calibration: Option<Calibration>,
    /// Which engine: auto, onnxruntime or rten.
    pub(crate) engine: String,
    /// Where its blocks are.
    pub(crate) repository: PathBuf,
    /// Where prepared blocks are kept.
    pub(crate) cache: Option<PathBuf>,
    /// How it runs on a GPU.
    pub(crate) cuda: CudaOptions,
    /// The cores of the machine.
    pub(crate) cores: NonZeroUsize,
    /// Who it sends to.
    pub(crate) peers: Vec<(String, Address)>,
    /// The way there, where it is not the fastest.
    pub(crate) transport: Option<Transport>,
    /// How it reaches other hosts, and they it, where they do.
    pub(crate) network: Option<ProcessNetwork>,
    /// What bounds its runs.
    pub(crate) run_limits: RunLimits,
    /// Whether its weights come and go as the node says. There is room for them at first.
    pub(crate) asks_for_room: bool,
    /// Where the process writes its number, to be in a control group.
    pub(crate) instance_group: Option<PathBuf>,
}

impl StartUnit {
    /// The engine.
    pub(crate) fn engine_name(&self) -> Result<EngineName> {
        self.engine.parse()
    }
}

/// What a unit's process reports.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UnitProcessReport {
    /// It takes requests, at this address.
    Ready {
        /// Where to send to.
        address: Address,
        /// Bytes of its weights.
        weight_bytes: usize,
        /// Whether its blocks were fused.
        is_fused: bool,
        /// What its calibration showed.
        calibration: Calibration,
        /// Whether processes take turns on its GPU.
        takes_turns: bool,
    },
    /// It can't run, and goes.
    Failed {
        /// What kind of error it is.
        kind: ErrorKind,
        /// What is wrong.
        message: String,
    },
    /// It wants a permit for cores.
    Ask {
        /// Number of the permit, its own.
        ticket: u64,
        /// When the oldest request was accepted.
        since: u64,
    },
    /// The run that it had a permit for is over.
    Finished(u64),
    /// It gives a permit back.
    GiveBack(u64),
    /// It wants room for its weights.
    WantsRoom {
        /// Number of the wish, its own.
        ticket: u64,
        /// Who has a smaller one is served first: the deadline, by the host's clock.
        order: u64,
    },
    /// Its weights were loaded, in so many microseconds.
    WeightsLoaded(u64),
    /// Its weights left memory, or it wants no room for them any more.
    WeightsLeft,
    /// The answer to a ping, with what its connections to other hosts have done.
    Pong(u64, Box<Heartbeat>, Vec<PeerTraffic>),
    /// Something is lost; it is to be told when that is known.
    Lost(u64, Loss),
}

/// What is lost.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Loss {
    /// The process with this endpoint is gone.
    Process(u64),
    /// Requests by number, each with the number of its try: they go on, and must not be answered.
    Requests(Vec<(String, u32)>),
}

/// Writes a line.
pub(crate) fn write_line(to: &mut dyn Write, line: &impl Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    to.write_all(&text)?;
    to.flush()
}

/// Reads a line; `None` at the end.
pub(crate) fn read_line<T: for<'a> Deserialize<'a>>(from: &mut dyn BufRead) -> Result<Option<T>> {
    let mut text = String::new();
    let length = from.read_line(&mut text).map_err(|error| {
        Error::from_io("what a unit's process and its node say to each other", &error)
    })?;
    if length == 0 {
        return Ok(None);
    }
    serde_json::from_str(&text).map(Some).map_err(|error| {
        Error::invalid(format!("a line between a unit's process and its node: {error}"))
    })
}

/// The machine's cores, given out by the node.
pub(crate) struct NodeCorePermits {
    all: NonZeroUsize,
    next_ticket: AtomicU64,
    waiting: Mutex<HashMap<u64, mpsc::SyncSender<NonZeroUsize>>>,
    output: Arc<Mutex<dyn Write + Send>>,
}

impl NodeCorePermits {
    pub(crate) fn new(all: NonZeroUsize, output: Arc<Mutex<dyn Write + Send>>) -> Self {
        Self { all, next_ticket: AtomicU64::new(1), waiting: Mutex::default(), output }
    }

    /// What the node granted.
    pub(crate) fn deliver_permit(&self, ticket: u64, cores: NonZeroUsize) {
        if let Some(waiting) = lock(&self.waiting).remove(&ticket) {
            waiting.send(cores).ok();
        }
    }

    fn send_report(&self, line: &UnitProcessReport) -> Result<()> {
        let mut output = lock(&self.output);
        write_line(&mut *output, line).map_err(|error| Error::from_io("telling the node", &error))
    }
}

impl CorePermits for Arc<NodeCorePermits> {
    fn acquire_permit(&self, since: u64) -> Result<CorePermit> {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (granted, grant) = mpsc::sync_channel(1);
        lock(&self.waiting).insert(ticket, granted);
        self.send_report(&UnitProcessReport::Ask { ticket, since })?;
        let cores = grant.recv().map_err(|_| Error::lost("the node gives out no cores"))?;
        let (finishing, giving) = (Arc::clone(self), Arc::clone(self));
        // A node that is gone takes nothing back.
        Ok(CorePermit::new(
            cores,
            move || drop(finishing.send_report(&UnitProcessReport::Finished(ticket))),
            move || drop(giving.send_report(&UnitProcessReport::GiveBack(ticket))),
        ))
    }

    fn permit_sizes(&self) -> Vec<NonZeroUsize> {
        sizes_of_permits(self.all)
    }
}
