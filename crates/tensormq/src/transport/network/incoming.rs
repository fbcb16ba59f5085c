//! The receiving end: a session for each sender, which takes what came in order and once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use tessera_core::{Error, Result, lock};

use super::HEARTBEAT_TIMEOUT;
use super::control_frame::{Hello, ReceiverProgress};
use super::link::ConnectionId;
use crate::alarm::{arm_alarm, claim_wakeup, disarm_alarm};
use crate::channel::{ChannelPeer, IncomingChannel, Received};
use crate::ids::RequestId;
use crate::in_flight::{Receipt, ReceiptSink};
use crate::layout::{HeaderView, TensorDescriptor, TensorPlace};
use crate::message::Message;
use crate::options::MAX_INBOX_DEPTH;
use crate::payload;
use crate::transport::id::Transport;
use crate::wait::Deadline;

/// What a session says to whoever speaks with its sender.
pub(super) trait SessionOwner: Send + Sync {
    /// Wakes whoever takes from the inbox.
    fn notify_inbox(&self);

    /// Tells the session's sender how far we are.
    fn report_progress(&self, session: &NetworkIncoming);

    /// The same for all senders, soon.
    fn report_progress_soon(&self);

    /// Tells the session's sender that the inbox is closed.
    fn report_closed(&self, session: &NetworkIncoming);
}

/// Where a session belongs.
pub(super) struct SessionPlace {
    pub(super) owner: Weak<dyn SessionOwner>,
    pub(super) transport: Transport,
    /// Whether the sender is on this host.
    pub(super) is_within_host: bool,
    /// Most messages that are not taken.
    pub(super) depth: u32,
}

/// The receiving end of a channel.
pub(super) struct NetworkIncoming {
    pub(super) id: u128,
    peer: ChannelPeer,
    /// Whether the sender is on this host, where nothing can come between.
    is_within_host: bool,
    owner: Weak<dyn SessionOwner>,
    depth: u32,
    alarm: AtomicU32,
    session: Mutex<IncomingSession>,
    weak_self: Weak<Self>,
}

struct IncomingSession {
    /// Its connections.
    lanes: Vec<Option<ConnectionId>>,
    /// On which of them the sender spoke since it was welcomed.
    heard_lanes: Vec<bool>,
    /// Number of the next message in order.
    next_sequence: u64,
    /// Messages that came before their turn.
    out_of_order: BTreeMap<u64, ArrivedMessage>,
    queue: VecDeque<ArrivedMessage>,
    taken: u64,
    /// Taken and not dropped.
    unfinished: BTreeSet<u64>,
    /// Dropped, and the sender does not know.
    finished: Vec<u64>,
    /// How many taken messages the sender knows of, and since when.
    reported_taken: u64,
    reported_at: Deadline,
    /// Until when it may be taken from without a new sign that the sender is there.
    trusted_until: Deadline,
    /// Since when a connection is missing.
    away_since: Option<Deadline>,
    /// What the unit is to hear of the connection.
    notices: VecDeque<Received>,
    /// The number after which the sender sends no more.
    last_sequence: Option<u64>,
    /// Over, and why where it was not said goodbye.
    ended: Option<Option<Error>>,
    closed: bool,
}

enum ArrivedMessage {
    Message(u64, Message),
    Broken(u64, RequestId, Error),
}

impl NetworkIncoming {
    pub(super) fn new(hello: &Hello, place: SessionPlace) -> Arc<Self> {
        Arc::new_cyclic(|weak_self| Self {
            id: hello.session,
            peer: ChannelPeer {
                transport: place.transport,
                endpoint_id: hello.endpoint_id,
                process: None,
            },
            is_within_host: place.is_within_host,
            owner: place.owner,
            depth: place.depth.min(MAX_INBOX_DEPTH),
            alarm: AtomicU32::new(0),
            session: Mutex::new(IncomingSession {
                lanes: vec![None; usize::from(hello.lanes)],
                heard_lanes: vec![false; usize::from(hello.lanes)],
                next_sequence: 1,
                out_of_order: BTreeMap::new(),
                queue: VecDeque::new(),
                taken: 0,
                unfinished: BTreeSet::new(),
                finished: Vec::new(),
                reported_taken: 0,
                reported_at: Deadline::now(),
                trusted_until: Deadline::after(HEARTBEAT_TIMEOUT),
                away_since: None,
                notices: VecDeque::new(),
                last_sequence: None,
                ended: None,
                closed: false,
            }),
            weak_self: weak_self.clone(),
        })
    }

    fn wake_inbox(&self) {
        if claim_wakeup(&self.alarm)
            && let Some(owner) = self.owner.upgrade()
        {
            owner.notify_inbox();
        }
    }

    /// Takes in a message; an error where the sender breaks the rules.
    pub(super) fn accept_message(
        &self,
        header: &[u8],
        frames: impl ExactSizeIterator<Item = Bytes>,
    ) -> Result<()> {
        let (view, descriptors) = HeaderView::parse_with_tensors(header)?;
        let sequence = view.sequence();
        let mut session = lock(&self.session);
        if session.ended.is_some() || session.closed || sequence < session.next_sequence {
            // Late, or sent once more because our word of it was lost.
            return Ok(());
        }
        if sequence > session.taken + u64::from(self.depth) {
            return Err(Error::invalid("more messages than there is room for"));
        }
        let arrived = match assemble_message(&view, &descriptors, frames) {
            Ok(message) => ArrivedMessage::Message(sequence, message),
            Err(error) => ArrivedMessage::Broken(sequence, RequestId(view.request()), error),
        };
        session.out_of_order.entry(sequence).or_insert(arrived);
        let mut new = false;
        loop {
            let next = session.next_sequence;
            let Some(arrived) = session.out_of_order.remove(&next) else { break };
            session.queue.push_back(arrived);
            session.next_sequence += 1;
            new = true;
        }
        drop(session);
        if new {
            self.wake_inbox();
        }
        Ok(())
    }

    pub(super) fn attach_lane(&self, lane: u16, connection: ConnectionId) -> ReceiverProgress {
        let mut session = lock(&self.session);
        if let Some(place) = session.lanes.get_mut(usize::from(lane)) {
            *place = Some(connection);
        }
        if let Some(heard) = session.heard_lanes.get_mut(usize::from(lane)) {
            *heard = false;
        }
        session.reported_taken = session.taken;
        session.trusted_until = Deadline::after(HEARTBEAT_TIMEOUT);
        session.finished.clear();
        let progress = session.current_progress();
        drop(session);
        self.wake_inbox();
        progress
    }

    /// Notes that the sender spoke on a connection after we welcomed it: it is back once it did so
    /// on all. A hello alone proves nothing: our answer may not have reached it.
    pub(super) fn mark_lane_heard(&self, lane: u16) {
        let mut session = lock(&self.session);
        if session.away_since.is_none() {
            return;
        }
        if let Some(heard) = session.heard_lanes.get_mut(usize::from(lane)) {
            *heard = true;
        }
        if !session.lanes.iter().all(Option::is_some) || session.heard_lanes.contains(&false) {
            return;
        }
        session.away_since = None;
        session.trusted_until = Deadline::after(HEARTBEAT_TIMEOUT);
        // Both or neither: a unit that did not hear of the one need not hear of the other.
        match session.notices.back() {
            Some(Received::Interrupted(_)) => drop(session.notices.pop_back()),
            _ => session.notices.push_back(Received::Resumed(self.peer.clone())),
        }
        drop(session);
        self.wake_inbox();
    }

    /// Notes that a connection is gone; whether that leaves the session interrupted.
    pub(super) fn detach_lane(&self, lane: u16, connection: ConnectionId) -> bool {
        let mut session = lock(&self.session);
        match session.lanes.get_mut(usize::from(lane)) {
            // It came back as another connection before we heard that it was gone.
            Some(place) if *place != Some(connection) => return false,
            Some(place) => *place = None,
            None => return false,
        }
        if session.ended.is_some() || session.is_complete() {
            return false;
        }
        if session.away_since.is_none() {
            session.away_since = Some(Deadline::now());
            if !self.is_within_host {
                session.notices.push_back(Received::Interrupted(self.peer.clone()));
            }
        }
        drop(session);
        self.wake_inbox();
        true
    }

    pub(super) fn mark_last_sequence(&self, last: u64) {
        lock(&self.session).last_sequence = Some(last);
        self.wake_inbox();
    }

    pub(super) fn end_session(&self, reason: Option<Error>) {
        let mut session = lock(&self.session);
        if session.ended.is_none() {
            // Over the network, what was not taken when the session ended never is. A process of
            // this host that is gone has nobody to tell of it, so its last words are heard.
            let keeps = self.is_within_host || session.is_complete();
            let unheard = if keeps { VecDeque::new() } else { std::mem::take(&mut session.queue) };
            session.ended = Some(reason);
            drop(session);
            drop(unheard);
        }
        self.wake_inbox();
    }

    pub(super) fn connections(&self) -> Vec<ConnectionId> {
        lock(&self.session).lanes.iter().flatten().copied().collect()
    }

    pub(super) fn current_progress(&self) -> ReceiverProgress {
        lock(&self.session).current_progress()
    }

    /// What the sender does not know, and how to reach it.
    pub(super) fn take_unreported_progress(
        &self,
        even_none: bool,
    ) -> Option<(ConnectionId, ReceiverProgress)> {
        let mut session = lock(&self.session);
        if session.away_since.is_some() {
            // Silence makes the sender connect anew, which is what is needed.
            return None;
        }
        if session.reported_taken == session.taken && session.finished.is_empty() && !even_none {
            return None;
        }
        let connection = session.lanes.iter().flatten().next().copied()?;
        session.reported_taken = session.taken;
        session.reported_at = Deadline::now();
        let numbers = std::mem::take(&mut session.finished);
        let (accepted, taken) = (session.next_sequence - 1, session.taken);
        Some((connection, ReceiverProgress { accepted, taken, numbers }))
    }

    /// Notes that the sender is there, where it is.
    pub(super) fn renew_trust(&self) {
        let mut session = lock(&self.session);
        if session.away_since.is_some() {
            return;
        }
        let lapsed = session.trusted_until.has_passed();
        session.trusted_until = Deadline::after(HEARTBEAT_TIMEOUT);
        drop(session);
        if lapsed {
            self.wake_inbox();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.session).closed
    }

    pub(super) fn since_reported(&self) -> Duration {
        let reported_at = lock(&self.session).reported_at.nanoseconds();
        Duration::from_nanos(Deadline::now().nanoseconds().saturating_sub(reported_at))
    }

    /// Does not count a time in which this process did not look for its sender.
    pub(super) fn extend_lease(&self, late: Duration) {
        if let Some(since) = &mut lock(&self.session).away_since {
            *since = since.later_by(late);
        }
    }

    /// Counts from now on: its sender is there, and has yet to connect anew.
    pub(super) fn restart_lease(&self) {
        if let Some(since) = &mut lock(&self.session).away_since {
            *since = Deadline::now();
        }
    }

    pub(super) fn away_duration(&self) -> Option<Duration> {
        let since = lock(&self.session).away_since?;
        let now = Deadline::now().nanoseconds();
        Some(Duration::from_nanos(now.saturating_sub(since.nanoseconds())))
    }

    pub(super) fn is_over(&self) -> bool {
        let session = lock(&self.session);
        session.closed || (session.is_done() && session.unfinished.is_empty())
    }
}

impl IncomingSession {
    /// The sender said goodbye, and all that it sent is here.
    fn is_complete(&self) -> bool {
        self.last_sequence.is_some_and(|last| self.next_sequence > last)
    }

    /// The sender said goodbye, and all that it sent was taken.
    fn is_done(&self) -> bool {
        self.last_sequence.is_some_and(|last| self.taken >= last)
    }

    fn current_progress(&self) -> ReceiverProgress {
        ReceiverProgress {
            accepted: self.next_sequence - 1,
            taken: self.taken,
            numbers: self.unfinished.iter().copied().collect(),
        }
    }
}

/// The message that a header and its frames are.
fn assemble_message(
    view: &HeaderView<'_>,
    descriptors: &[TensorDescriptor],
    frames: impl ExactSizeIterator<Item = Bytes>,
) -> Result<Message> {
    if frames.len() != descriptors.len() {
        return Err(Error::invalid(format!(
            "{} tensors came in {} frames",
            descriptors.len(),
            frames.len()
        )));
    }
    let mut tensors = Vec::with_capacity(descriptors.len());
    for (index, (descriptor, frame)) in descriptors.iter().zip(frames).enumerate() {
        if descriptor.place != TensorPlace::Frame(index as u32) || frame.len() != descriptor.bytes {
            return Err(Error::invalid(format!(
                "tensor {index} says {} bytes, and its frame has {}",
                descriptor.bytes,
                frame.len()
            )));
        }
        tensors.push(payload::tensor_from_region(descriptor, Arc::new(frame), 0)?);
    }
    Ok(Message { envelope: view.envelope(), tensors, receipt: None, is_early_send: false })
}

impl IncomingChannel for NetworkIncoming {
    fn take_next(&self) -> Option<Received> {
        let mut session = lock(&self.session);
        if let Some(notice) = session.notices.pop_front() {
            return Some(notice);
        }
        // While the connection is gone nothing is taken: the sender could not hear of it, and might
        // count the message as failed. Nor where nobody has looked for longer than the sender is
        // patient: this process stood still. A sender that said goodbye can't count anything as
        // failed any more.
        let doubtful = session.away_since.is_some() || session.trusted_until.has_passed();
        let frozen = doubtful && !self.is_within_host && !session.is_complete();
        if let Some(arrived) = (!frozen).then(|| session.queue.pop_front()).flatten() {
            session.taken += 1;
            let behind =
                session.taken - session.reported_taken >= u64::from(self.depth.div_ceil(4));
            let received = match arrived {
                ArrivedMessage::Message(sequence, mut message) => {
                    session.unfinished.insert(sequence);
                    let own: Arc<dyn ReceiptSink> = self.weak_self.upgrade()?;
                    message.receipt = Some(Receipt::new(sequence, own));
                    Received::Message(message)
                }
                ArrivedMessage::Broken(sequence, request, error) => {
                    session.finished.push(sequence);
                    let request = Some(request);
                    Received::Failed { peer: self.peer.clone(), request, error }
                }
            };
            drop(session);
            if let Some(owner) = self.owner.upgrade() {
                if behind {
                    owner.report_progress(self);
                } else {
                    owner.report_progress_soon();
                }
            }
            return Some(received);
        }
        if session.is_done() {
            drop(session);
            // So that it is forgotten once its last message is dropped.
            if let Some(owner) = self.owner.upgrade() {
                owner.report_progress_soon();
            }
            return Some(Received::Closed(self.peer.clone()));
        }
        match session.ended.take()? {
            None => Some(Received::Closed(self.peer.clone())),
            Some(reason) => Some(Received::Lost(self.peer.clone(), reason)),
        }
    }

    fn arm_wakeup(&self) {
        // About to sleep: a good time to tell the sender.
        if let Some(owner) = self.owner.upgrade() {
            let session = lock(&self.session);
            let unreported =
                session.reported_taken != session.taken || !session.finished.is_empty();
            drop(session);
            if unreported {
                owner.report_progress(self);
            }
        }
        arm_alarm(&self.alarm);
    }

    fn disarm_wakeup(&self) {
        disarm_alarm(&self.alarm);
    }

    fn close_receiving(&self) {
        let mut session = lock(&self.session);
        session.closed = true;
        let unheard = std::mem::take(&mut session.queue);
        drop(session);
        drop(unheard);
        if let Some(owner) = self.owner.upgrade() {
            owner.report_closed(self);
        }
    }
}

impl ReceiptSink for NetworkIncoming {
    fn finish_message(&self, sequence: u64) {
        let mut session = lock(&self.session);
        if session.unfinished.remove(&sequence) {
            session.finished.push(sequence);
        }
        drop(session);
        if let Some(owner) = self.owner.upgrade() {
            owner.report_progress_soon();
        }
    }
}
