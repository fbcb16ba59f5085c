//! Where requests come in, and are put together to batches.

use std::collections::VecDeque;
use std::time::Duration;

use tessera_core::{Device, Tensor};
use tessera_plan::{Leg, Log, Outcome};
use tessera_tensormq::{Deadline, Inbox, MOST_DEPTH, Message, Received, Wait};

use super::Shared;
use super::exit::Entropy;
use crate::batch;

/// How long those of one batch may be apart when they come to the next block.
const REUNITE: Duration = Duration::from_micros(300);

/// Most rows that parts of one request are put together to again.
const MOST_ROWS_OF_ONE: usize = 128;

/// Where requests come in. One thread at a time.
pub(super) struct Door {
    inbox: Inbox,
    /// Received, and not fit for the batch that was being put together.
    held: VecDeque<Item>,
}

impl Door {
    pub(super) fn new(inbox: Inbox) -> Self {
        Self { inbox, held: VecDeque::new() }
    }

    /// Whether anybody waits; what has come meanwhile is taken in.
    pub(super) fn has_waiting(&mut self, worker: &Shared) -> bool {
        while self.held.is_empty() {
            match self.inbox.try_receive() {
                Some(Received::Message(message)) => {
                    let item = worker.read(message).and_then(|item| worker.in_time(item));
                    self.held.extend(item);
                }
                Some(_) => {}
                None => return false,
            }
        }
        true
    }
}

/// A request at this worker.
pub(super) struct Item {
    pub(super) message: Message,
    pub(super) leg: Leg,
    pub(super) log: Log,
    pub(super) inputs: Vec<Tensor>,
    pub(super) rows: Option<usize>,
    /// How uncertain its least certain row is, where it was run at an exit.
    pub(super) entropy: Option<Entropy>,
}

impl Shared {
    /// The next request that is in time.
    pub(super) fn next(&self, door: &mut Door, wait: Wait) -> Option<Item> {
        loop {
            if let Some(item) = door.held.pop_front() {
                if let Some(item) = self.in_time(item) {
                    return Some(item);
                }
                continue;
            }
            match door.inbox.receive(wait)? {
                Received::Message(message) => {
                    if let Some(item) = self.read(message).and_then(|item| self.in_time(item)) {
                        return Some(item);
                    }
                }
                // Whoever waits for what can't be read learns from its sender's end.
                _ => continue,
            }
        }
    }

    /// Reads what a message asks for; one that makes no sense goes home.
    pub(super) fn read(&self, message: Message) -> Option<Item> {
        let parsed = {
            let mut path = message.path();
            let leg = path.next().map(Leg::parse);
            let log = path.last().map(Log::parse);
            leg.zip(log)
        };
        let (leg, log) = match parsed {
            Some((Ok(leg), Ok(log))) => (leg, log),
            // Without a log there is nobody to tell.
            Some((Err(_), Ok(log))) => {
                let outcome = Outcome::Failed("the path of a message can't be read".to_owned());
                self.home(&message, &log, &outcome, Vec::new());
                return None;
            }
            _ => return None,
        };
        let inputs: Option<Vec<Tensor>> =
            leg.inputs.iter().map(|&index| message.tensors().get(index).cloned()).collect();
        let Some(inputs) = inputs else {
            let outcome = Outcome::Failed("a message has fewer tensors than its path".to_owned());
            self.home(&message, &log, &outcome, Vec::new());
            return None;
        };
        let rows = batch::rows(&inputs);
        Some(Item { message, leg, log, inputs, rows, entropy: None })
    }

    /// Drops a request whose deadline has passed, or that nobody waits for any more.
    pub(super) fn in_time(&self, item: Item) -> Option<Item> {
        let is_late = item.message.deadline().is_some_and(Deadline::has_passed);
        if is_late || self.parts.given_up.has(item.message.request()) {
            self.home(&item.message, &item.log, &Outcome::Late, Vec::new());
            return None;
        }
        Some(item)
    }

    /// Most rows of a batch that begins with this request.
    fn most_rows(&self, first: &Item) -> usize {
        match (first.rows, self.parts.batching) {
            (None, _) => 0,
            (Some(_), Some(batching)) => batching.max_rows,
            (Some(_), None) => MOST_ROWS_OF_ONE,
        }
    }

    fn joins(&self, batch: &[Item], item: &Item) -> bool {
        let Some(first) = batch.first() else {
            return false;
        };
        let total: usize = batch.iter().filter_map(|item| item.rows).sum();
        let may =
            self.parts.batching.is_some() || item.message.request() == first.message.request();
        let fits = item.rows.is_some_and(|rows| total + rows <= self.most_rows(first));
        may && fits && batch::fit(&first.inputs, &item.inputs)
    }

    /// Waits a moment for those that were in one batch at the block before: they are on their way.
    ///
    /// A GPU is told quickly what to do, and takes the first of them at once; so batches would fall apart from block
    /// to block.
    pub(super) fn reunite(&self, door: &mut Door, batch: &mut Vec<Item>) {
        let Some(first) = batch.first() else { return };
        let together = first.log.records.last().map_or(0, |record| record.batch as usize);
        let most = together.min(self.most_rows(first));
        if self.parts.unit.device() == Device::Cpu || self.parts.batching.is_none() {
            return;
        }
        let until = Deadline::after(REUNITE);
        loop {
            self.top_up(door, batch);
            let total: usize = batch.iter().filter_map(|item| item.rows).sum();
            if total >= most || !door.held.is_empty() || until.has_passed() {
                return;
            }
            let Some(item) = self.next(door, Wait::Until(until)) else { return };
            match self.joins(batch, &item) {
                true => batch.push(item),
                false => door.held.push_back(item),
            }
        }
    }

    /// Waits for others, for as long as it was told and every deadline allows.
    pub(super) fn gather(&self, door: &mut Door, batch: &mut Vec<Item>) {
        self.top_up(door, batch);
        let Some(batching) = self.parts.batching.filter(|batching| !batching.max_wait.is_zero())
        else {
            return;
        };
        let patience = Deadline::after(batching.max_wait);
        loop {
            let total: usize = batch.iter().filter_map(|item| item.rows).sum();
            if total >= batching.max_rows || batch.iter().any(|item| item.rows.is_none()) {
                return;
            }
            // Half of the time that is left is for waiting, the rest for the run.
            let tightest = batch.iter().filter_map(|item| item.message.deadline()).min();
            let until = match tightest {
                Some(deadline) => patience.min(Deadline::after(deadline.remaining() / 2)),
                None => patience,
            };
            if until.has_passed() || !door.held.is_empty() {
                return;
            }
            let Some(item) = self.next(door, Wait::Until(until)) else {
                return;
            };
            if self.joins(batch, &item) {
                batch.push(item);
            } else {
                door.held.push_back(item);
            }
        }
    }

    /// Adds what is there.
    pub(super) fn top_up(&self, door: &mut Door, batch: &mut Vec<Item>) {
        let is_one = batch.first().is_none_or(|first| first.rows.is_none());
        if is_one {
            return;
        }
        let mut held = std::mem::take(&mut door.held);
        while let Some(item) = held.pop_front() {
            match self.joins(batch, &item) {
                true => batch.push(item),
                false => door.held.push_back(item),
            }
        }
        // What was held back stays in front of what comes.
        while door.held.len() < MOST_DEPTH as usize {
            let Some(received) = door.inbox.try_receive() else {
                return;
            };
            let Received::Message(message) = received else {
                continue;
            };
            let Some(item) = self.read(message).and_then(|item| self.in_time(item)) else {
                continue;
            };
            if self.joins(batch, &item) {
                batch.push(item);
            } else {
                door.held.push_back(item);
                return;
            }
        }
    }

    /// Leaves the last requests of a batch for the next one, so that it has a power of two of rows.
    ///
    /// On a GPU, algorithms are chosen and memory is laid out when a number of rows comes first: there should
    /// be few.
    pub(super) fn round(&self, door: &mut Door, batch: &mut Vec<Item>) {
        if self.parts.unit.device() == Device::Cpu || batch.iter().any(|item| item.rows.is_none()) {
            return;
        }
        let mut total: usize = batch.iter().filter_map(|item| item.rows).sum();
        while batch.len() > 1 && !total.is_power_of_two() {
            let Some(last) = batch.pop() else { return };
            total -= last.rows.unwrap_or(0);
            door.held.push_front(last);
        }
    }
}
