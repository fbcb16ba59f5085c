//! How the process of an instance has room for its weights: it asks its node, through their pipes.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tessera_core::{Error, Result, lock};
use tessera_engine::WeightLoading;
use tessera_tensormq::Deadline;

use super::ledger::LeaveCall;
use super::manager::{WeightRoom, WeightRooms};
use super::{WeightPart, no_room_in_time, queue_order, receive_by};
use crate::process_protocol::{UnitProcessReport, write_line};

/// The weights of this process, and what its node says of them.
pub(crate) struct ProcessWeights {
    output: Arc<Mutex<dyn Write + Send>>,
    /// Whether the node had room for them before it started this process, and they were not loaded
    /// yet.
    has_first_room: AtomicBool,
    next_ticket: AtomicU64,
    /// The room that is waited for.
    waiting: Mutex<Option<(u64, mpsc::SyncSender<()>)>>,
    leave: Mutex<Option<LeaveCall>>,
}

impl ProcessWeights {
    pub(crate) fn new(output: Arc<Mutex<dyn Write + Send>>) -> Arc<Self> {
        Arc::new(Self {
            output,
            has_first_room: AtomicBool::new(true),
            next_ticket: AtomicU64::new(1),
            waiting: Mutex::default(),
            leave: Mutex::default(),
        })
    }

    /// The node has room.
    pub(crate) fn deliver_room(&self, ticket: u64) {
        let waiting = lock(&self.waiting).take_if(|(wanted, _)| *wanted == ticket);
        if let Some((_, given)) = waiting {
            given.send(()).ok();
        }
    }

    /// The node needs the room.
    pub(crate) fn leave_memory(&self) {
        let leave = lock(&self.leave).clone();
        if let Some(leave) = leave {
            leave();
        }
    }

    fn send_report(&self, report: &UnitProcessReport) -> Result<()> {
        write_line(&mut *lock(&self.output), report)
            .map_err(|error| Error::from_io("telling the node", &error))
    }
}

/// Rooms for the one instance of this process.
pub(crate) struct ProcessWeightRooms(pub(crate) Arc<ProcessWeights>);

impl WeightRooms for ProcessWeightRooms {
    fn open_room(&self, _: Vec<WeightPart>, leave: LeaveCall) -> Box<dyn WeightRoom> {
        *lock(&self.0.leave) = Some(leave);
        Box::new(ProcessRoom(Arc::clone(&self.0)))
    }

    /// In processes there is room for units on the CPU alone.
    fn loading(&self) -> WeightLoading {
        WeightLoading::LoadThenRun
    }

    fn budget(&self) -> u64 {
        u64::MAX
    }

    fn keeps_files(&self) -> bool {
        false
    }
}

struct ProcessRoom(Arc<ProcessWeights>);

impl WeightRoom for ProcessRoom {
    /// The node sees it by the cores that a run asks for.
    fn note_use(&self) {}

    fn wait_for_room(&self, deadline: Option<Deadline>) -> Result<()> {
        if self.0.has_first_room.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let (given, is_given) = mpsc::sync_channel(1);
        let ticket = self.0.next_ticket.fetch_add(1, Ordering::Relaxed);
        *lock(&self.0.waiting) = Some((ticket, given));
        let order = queue_order(deadline);
        self.0.send_report(&UnitProcessReport::WantsRoom { ticket, order })?;
        receive_by(&is_given, deadline).ok_or_else(|| {
            lock(&self.0.waiting).take_if(|(wanted, _)| *wanted == ticket);
            self.note_left();
            no_room_in_time()
        })
    }

    fn note_loaded(&self, took: Duration, _: Option<Vec<WeightPart>>) {
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        // Where nobody listens this process is at its end; below too.
        self.0.send_report(&UnitProcessReport::WeightsLoaded(microseconds)).ok();
    }

    fn note_left(&self) {
        self.0.send_report(&UnitProcessReport::WeightsLeft).ok();
    }
}
