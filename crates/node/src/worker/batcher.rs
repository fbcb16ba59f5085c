//! Where requests come in, and are put together to batches.

use std::collections::VecDeque;

use tessera_core::Tensor;
use tessera_deploy::{Batching, ReplyOutcome, SourceRoute};
use tessera_tensormq::{Deadline, Inbox, MAX_INBOX_DEPTH, Message, Received, Wait};

use super::batch_item::{BatchItem, total_rows};
use super::context::WorkerContext;
use crate::batch::{self, BatchPolicy};

/// Most rows that parts of one request are put together to again.
const MOST_ROWS_OF_ONE_REQUEST: usize = 128;

/// Where requests come in. One thread at a time.
pub(super) struct Batcher {
    inbox: Inbox,
    /// Whether requests are put together.
    batching: Option<Batching>,
    /// How batches are made for whoever runs them.
    policy: BatchPolicy,
    /// Received, and not fit for the batch that was being put together.
    postponed: VecDeque<BatchItem>,
}

impl Batcher {
    pub(super) fn new(inbox: Inbox, batching: Option<Batching>, policy: BatchPolicy) -> Self {
        Self { inbox, batching, policy, postponed: VecDeque::new() }
    }

    /// Whether anybody waits; what has come meanwhile is taken in.
    pub(super) fn has_waiting(&mut self, context: &WorkerContext) -> bool {
        while self.postponed.is_empty() {
            match self.inbox.try_receive() {
                Some(Received::Message(message)) => {
                    self.postponed.extend(context.take_in_request(message));
                }
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    /// The next request that is in time.
    pub(super) fn next_request(
        &mut self,
        context: &WorkerContext,
        wait: Wait,
    ) -> Option<BatchItem> {
        loop {
            if let Some(item) = self.postponed.pop_front() {
                if let Some(item) = context.reject_expired(item) {
                    return Some(item);
                }
                continue;
            }
            match self.inbox.receive(wait)? {
                Received::Message(message) => {
                    if let Some(item) = context.take_in_request(message) {
                        return Some(item);
                    }
                }
                // Whoever waits for what can't be read learns from its sender's end.
                _ => continue,
            }
        }
    }

    /// Puts others to the first request of a batch, for as long as it pays to wait for them.
    pub(super) fn collect_batch(&mut self, context: &WorkerContext, batch: &mut Vec<BatchItem>) {
        self.regroup_batch(context, batch);
        self.gather_batch(context, batch);
    }

    /// Adds what has come until it can be run, and leaves for the next batch what would make its
    /// number of rows a bad one.
    pub(super) fn complete_batch(&mut self, context: &WorkerContext, batch: &mut Vec<BatchItem>) {
        self.top_up_batch(context, batch);
        self.round_batch_rows(batch);
    }

    /// Most rows of a batch that begins with this request.
    fn most_batch_rows(&self, first: &BatchItem) -> usize {
        match (first.rows, self.batching) {
            (None, _) => 0,
            (Some(_), Some(batching)) => batching.max_rows,
            (Some(_), None) => MOST_ROWS_OF_ONE_REQUEST,
        }
    }

    fn can_join_batch(&self, batch: &[BatchItem], item: &BatchItem) -> bool {
        let Some(first) = batch.first() else {
            return false;
        };
        let total = total_rows(batch);
        let may = self.batching.is_some() || item.message.request() == first.message.request();
        let fits = item.rows.is_some_and(|rows| total + rows <= self.most_batch_rows(first));
        may && fits && batch::can_share_batch(&first.inputs, &item.inputs)
    }

    /// Waits a moment for those that were in one batch at the unit before: they are on their way.
    ///
    /// Where a run begins at once, it would take the first of them alone; so batches would fall
    /// apart from unit to unit.
    fn regroup_batch(&mut self, context: &WorkerContext, batch: &mut Vec<BatchItem>) {
        let Some(first) = batch.first() else { return };
        let together = first.route.previous_batch_rows();
        let most = together.min(self.most_batch_rows(first));
        let Some(wait) = self.policy.regroup_wait.filter(|_| self.batching.is_some()) else {
            return;
        };
        let until = Deadline::after(wait);
        loop {
            self.top_up_batch(context, batch);
            let total = total_rows(batch);
            if total >= most || !self.postponed.is_empty() || until.has_passed() {
                return;
            }
            let Some(item) = self.next_request(context, Wait::Until(until)) else { return };
            if self.can_join_batch(batch, &item) {
                batch.push(item);
            } else {
                self.postponed.push_back(item);
            }
        }
    }

    /// Waits for others, for as long as it was told and every deadline allows.
    fn gather_batch(&mut self, context: &WorkerContext, batch: &mut Vec<BatchItem>) {
        self.top_up_batch(context, batch);
        let Some(batching) = self.batching.filter(|batching| !batching.max_wait.is_zero()) else {
            return;
        };
        let patience = Deadline::after(batching.max_wait);
        loop {
            let total = total_rows(batch);
            if total >= batching.max_rows || batch.iter().any(|item| item.rows.is_none()) {
                return;
            }
            // Half of the time that is left is for waiting, the rest for the run.
            let tightest = batch.iter().filter_map(|item| item.message.deadline()).min();
            let until = match tightest {
                Some(deadline) => patience.min(Deadline::after(deadline.remaining() / 2)),
                None => patience,
            };
            if until.has_passed() || !self.postponed.is_empty() {
                return;
            }
            let Some(item) = self.next_request(context, Wait::Until(until)) else {
                return;
            };
            if self.can_join_batch(batch, &item) {
                batch.push(item);
            } else {
                self.postponed.push_back(item);
            }
        }
    }

    /// Adds what is there.
    fn top_up_batch(&mut self, context: &WorkerContext, batch: &mut Vec<BatchItem>) {
        let is_one = batch.first().is_none_or(|first| first.rows.is_none());
        if is_one {
            return;
        }
        let mut postponed = std::mem::take(&mut self.postponed);
        while let Some(item) = postponed.pop_front() {
            if self.can_join_batch(batch, &item) {
                batch.push(item);
            } else {
                self.postponed.push_back(item);
            }
        }
        // What was postponed stays in front of what comes.
        while self.postponed.len() < MAX_INBOX_DEPTH as usize {
            let Some(received) = self.inbox.try_receive() else {
                return;
            };
            let Received::Message(message) = received else {
                continue;
            };
            let Some(item) = context.take_in_request(message) else {
                continue;
            };
            if self.can_join_batch(batch, &item) {
                batch.push(item);
            } else {
                self.postponed.push_back(item);
                return;
            }
        }
    }

    /// Leaves the last requests of a batch for the next one, so that it has a power of two of rows.
    ///
    /// Where much is decided when a number of rows comes first, there should be few numbers.
    fn round_batch_rows(&mut self, batch: &mut Vec<BatchItem>) {
        let has_rows = batch.iter().all(|item| item.rows.is_some());
        if !self.policy.rounds_rows || !has_rows {
            return;
        }
        let mut total = total_rows(batch);
        while batch.len() > 1 && !total.is_power_of_two() {
            let Some(last) = batch.pop() else { return };
            total -= last.rows.unwrap_or(0);
            self.postponed.push_front(last);
        }
    }
}

impl WorkerContext {
    /// Takes a message in: read, and in time.
    pub(super) fn take_in_request(&self, message: Message) -> Option<BatchItem> {
        self.parse_request(message).and_then(|item| self.reject_expired(item))
    }

    /// Reads what a message asks for; one that makes no sense gets a reply that says so.
    fn parse_request(&self, message: Message) -> Option<BatchItem> {
        // Without a route there is nobody to reply to.
        let route = SourceRoute::read(message.route()).ok()?;
        let inputs = route.current_hop().map(|hop| {
            hop.inputs().map(|index| message.tensors().get(index).cloned()).collect::<Option<_>>()
        });
        let Some(Some(inputs)) = inputs else {
            let reason = "a message has fewer tensors or hops than its route".to_owned();
            self.reply_without_result(&message, &route, &ReplyOutcome::Failed(reason));
            return None;
        };
        let inputs: Vec<Tensor> = inputs;
        let rows = batch::request_rows(&inputs);
        Some(BatchItem { message, route, inputs, rows, entropy: None })
    }

    /// Drops a request whose deadline has passed, or that nobody waits for any more.
    pub(super) fn reject_expired(&self, item: BatchItem) -> Option<BatchItem> {
        let is_late = item.message.deadline().is_some_and(Deadline::has_passed);
        if is_late || self.cancelled.is_cancelled(item.message.request()) {
            self.reply_without_result(&item.message, &item.route, &ReplyOutcome::Late);
            return None;
        }
        Some(item)
    }
}
