//! The receiving end: a session for each sender, which takes what came in order and once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tessera_core::{Error, Result};

use super::SILENCE;
use super::frame::received;
use super::listener::ZmqListener;
use super::wire::{Hello, Progress};
use crate::MOST_DEPTH;
use crate::address::Transport;
use crate::channel::{Incoming, Peer, Received};
use crate::flight::{Finish, Receipt};
use crate::handover::{arm, disarm, raise};
use crate::layout::{Descriptor, Place, View};
use crate::message::{Message, RequestId};
use crate::payload;
use crate::sync::{Mutex, lock};
use crate::wait::Deadline;

/// The receiving end of a channel.
pub(super) struct ZmqIncoming {
    pub(super) id: u128,
    peer: Peer,
    listener: Weak<ZmqListener>,
    depth: u32,
    alarm: AtomicU32,
    session: Mutex<Session>,
    own: Weak<Self>,
}

struct Session {
    /// The identities of its connections.
    lanes: Vec<Option<Vec<u8>>>,
    /// On which of them the sender spoke since it was welcomed.
    heard: Vec<bool>,
    /// Number of the next message in order.
    next: u64,
    /// Messages that came before their turn.
    early: BTreeMap<u64, Arrived>,
    queue: VecDeque<Arrived>,
    taken: u64,
    /// Taken and not dropped.
    unfinished: BTreeSet<u64>,
    /// Dropped, and the sender does not know.
    finished: Vec<u64>,
    /// How many taken messages the sender knows of, and since when.
    told: u64,
    told_at: Deadline,
    /// Until when it may be taken from without a new sign that the sender is there.
    trusted: Deadline,
    /// Since when a connection is missing.
    away: Option<Deadline>,
    /// What the block is to hear of the connection.
    notices: VecDeque<Received>,
    /// The number after which the sender sends no more.
    last: Option<u64>,
    /// Over, and why where it was not said goodbye.
    ended: Option<Option<Error>>,
    closed: bool,
}

enum Arrived {
    Message(u64, Message),
    Broken(u64, RequestId, Error),
}

impl ZmqIncoming {
    pub(super) fn new(hello: &Hello, listener: &ZmqListener) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            id: hello.session,
            peer: Peer { transport: listener.transport, courier: hello.courier, process: None },
            listener: Weak::clone(&listener.own),
            depth: listener.inbox.depth.min(MOST_DEPTH),
            alarm: AtomicU32::new(0),
            session: Mutex::new(Session {
                lanes: vec![None; usize::from(hello.lanes)],
                heard: vec![false; usize::from(hello.lanes)],
                next: 1,
                early: BTreeMap::new(),
                queue: VecDeque::new(),
                taken: 0,
                unfinished: BTreeSet::new(),
                finished: Vec::new(),
                told: 0,
                told_at: Deadline::now(),
                trusted: Deadline::after(SILENCE),
                away: None,
                notices: VecDeque::new(),
                last: None,
                ended: None,
                closed: false,
            }),
            own: own.clone(),
        })
    }

    fn wake(&self) {
        if raise(&self.alarm)
            && let Some(listener) = self.listener.upgrade()
        {
            listener.inbox.bell.ring();
        }
    }

    /// Takes in a message; an error where the sender breaks the rules.
    pub(super) fn accept(
        &self,
        header: &[u8],
        frames: impl ExactSizeIterator<Item = zmq::Message>,
    ) -> Result<()> {
        let (view, descriptors) = View::read(header)?;
        let sequence = view.sequence();
        let mut session = lock(&self.session);
        if session.ended.is_some() || session.closed || sequence < session.next {
            // Late, or sent once more because our word of it was lost.
            return Ok(());
        }
        if sequence > session.taken + u64::from(self.depth) {
            return Err(Error::invalid("more messages than there is room for"));
        }
        let arrived = match assemble(&view, &descriptors, frames) {
            Ok(message) => Arrived::Message(sequence, message),
            Err(error) => Arrived::Broken(sequence, RequestId(view.request()), error),
        };
        session.early.entry(sequence).or_insert(arrived);
        let mut new = false;
        loop {
            let next = session.next;
            let Some(arrived) = session.early.remove(&next) else { break };
            session.queue.push_back(arrived);
            session.next += 1;
            new = true;
        }
        drop(session);
        if new {
            self.wake();
        }
        Ok(())
    }

    pub(super) fn connected(&self, lane: u16, identity: &[u8]) -> Progress {
        let mut session = lock(&self.session);
        if let Some(place) = session.lanes.get_mut(usize::from(lane)) {
            *place = Some(identity.to_vec());
        }
        if let Some(heard) = session.heard.get_mut(usize::from(lane)) {
            *heard = false;
        }
        session.told = session.taken;
        session.trusted = Deadline::after(SILENCE);
        session.finished.clear();
        let progress = session.standing();
        drop(session);
        self.wake();
        progress
    }

    /// Notes that the sender spoke on a connection after we welcomed it: it is back once it did so on
    /// all. A hello alone proves nothing: our answer may not have reached it.
    pub(super) fn heard(&self, lane: u16) {
        let mut session = lock(&self.session);
        if session.away.is_none() {
            return;
        }
        if let Some(heard) = session.heard.get_mut(usize::from(lane)) {
            *heard = true;
        }
        if !session.lanes.iter().all(Option::is_some) || session.heard.contains(&false) {
            return;
        }
        session.away = None;
        session.trusted = Deadline::after(SILENCE);
        // Both or neither: a block that did not hear of the one need not hear of the other.
        match session.notices.back() {
            Some(Received::Interrupted(_)) => drop(session.notices.pop_back()),
            _ => session.notices.push_back(Received::Resumed(self.peer.clone())),
        }
        drop(session);
        self.wake();
    }

    /// Notes that a connection is gone; whether that leaves the session interrupted.
    pub(super) fn disconnected(&self, lane: u16, identity: &[u8]) -> bool {
        let mut session = lock(&self.session);
        match session.lanes.get_mut(usize::from(lane)) {
            // It came back under another identity before we heard that it was gone.
            Some(place) if place.as_deref() != Some(identity) => return false,
            Some(place) => *place = None,
            None => return false,
        }
        if session.ended.is_some() || session.is_complete() {
            return false;
        }
        if session.away.is_none() {
            session.away = Some(Deadline::now());
            if self.peer.transport == Transport::ZmqTcp {
                session.notices.push_back(Received::Interrupted(self.peer.clone()));
            }
        }
        drop(session);
        self.wake();
        true
    }

    pub(super) fn bye(&self, last: u64) {
        lock(&self.session).last = Some(last);
        self.wake();
    }

    pub(super) fn end(&self, why: Option<Error>) {
        let mut session = lock(&self.session);
        if session.ended.is_none() {
            // Over the network, what was not taken when the sender gave up never is. A process of
            // this host that is gone has nobody to tell of it, so its last words are heard.
            let unheard = match self.peer.transport {
                Transport::ZmqTcp if !session.is_complete() => std::mem::take(&mut session.queue),
                _ => VecDeque::new(),
            };
            session.ended = Some(why);
            drop(session);
            drop(unheard);
        }
        self.wake();
    }

    pub(super) fn identities(&self) -> Vec<Vec<u8>> {
        lock(&self.session).lanes.iter().flatten().cloned().collect()
    }

    pub(super) fn standing(&self) -> Progress {
        lock(&self.session).standing()
    }

    /// What the sender does not know, and how to reach it.
    pub(super) fn news(&self, even_none: bool) -> Option<(Vec<u8>, Progress)> {
        let mut session = lock(&self.session);
        if session.away.is_some() {
            // Silence makes the sender connect anew, which is what is needed.
            return None;
        }
        if session.told == session.taken && session.finished.is_empty() && !even_none {
            return None;
        }
        let identity = session.lanes.iter().flatten().next().cloned()?;
        session.told = session.taken;
        session.told_at = Deadline::now();
        let numbers = std::mem::take(&mut session.finished);
        let (accepted, taken) = (session.next - 1, session.taken);
        Some((identity, Progress { accepted, taken, numbers }))
    }

    /// Notes that the sender is there, where it is.
    pub(super) fn trust(&self) {
        let mut session = lock(&self.session);
        if session.away.is_some() {
            return;
        }
        let lapsed = session.trusted.has_passed();
        session.trusted = Deadline::after(SILENCE);
        drop(session);
        if lapsed {
            self.wake();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.session).closed
    }

    pub(super) fn since_told(&self) -> Duration {
        let told = lock(&self.session).told_at.nanoseconds();
        Duration::from_nanos(Deadline::now().nanoseconds().saturating_sub(told))
    }

    pub(super) fn away(&self) -> Option<Duration> {
        let since = lock(&self.session).away?;
        let now = Deadline::now().nanoseconds();
        Some(Duration::from_nanos(now.saturating_sub(since.nanoseconds())))
    }

    pub(super) fn is_over(&self) -> bool {
        let session = lock(&self.session);
        session.closed || (session.is_done() && session.unfinished.is_empty())
    }
}

impl Session {
    /// The sender said goodbye, and all that it sent is here.
    fn is_complete(&self) -> bool {
        self.last.is_some_and(|last| self.next > last)
    }

    /// The sender said goodbye, and all that it sent was taken.
    fn is_done(&self) -> bool {
        self.last.is_some_and(|last| self.taken >= last)
    }

    fn standing(&self) -> Progress {
        Progress {
            accepted: self.next - 1,
            taken: self.taken,
            numbers: self.unfinished.iter().copied().collect(),
        }
    }
}

/// The message that a header and its frames are.
fn assemble(
    view: &View<'_>,
    descriptors: &[Descriptor],
    frames: impl ExactSizeIterator<Item = zmq::Message>,
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
        if descriptor.place != Place::Frame(index as u32) || frame.len() != descriptor.bytes {
            return Err(Error::invalid(format!(
                "tensor {index} says {} bytes, and its frame has {}",
                descriptor.bytes,
                frame.len()
            )));
        }
        tensors.push(payload::tensor(descriptor, Arc::new(received(frame)), 0)?);
    }
    Ok(Message { envelope: view.envelope(), tensors, receipt: None, is_ahead: false })
}

impl Incoming for ZmqIncoming {
    fn take(&self) -> Option<Received> {
        let mut session = lock(&self.session);
        if let Some(notice) = session.notices.pop_front() {
            return Some(notice);
        }
        // While the connection is gone nothing is taken: the sender could not hear of it, and might
        // give the message up.
        // Nor where nobody has looked for longer than the sender is patient: this process stood still.
        // A sender that said goodbye can't give anything up any more.
        let doubtful = session.away.is_some() || session.trusted.has_passed();
        let frozen = doubtful && self.peer.transport == Transport::ZmqTcp && !session.is_complete();
        if let Some(arrived) = (!frozen).then(|| session.queue.pop_front()).flatten() {
            session.taken += 1;
            let behind = session.taken - session.told >= u64::from(self.depth.div_ceil(4));
            let received = match arrived {
                Arrived::Message(sequence, mut message) => {
                    session.unfinished.insert(sequence);
                    let own: Arc<dyn Finish> = self.own.upgrade()?;
                    message.receipt = Some(Receipt::new(sequence, own));
                    Received::Message(message)
                }
                Arrived::Broken(sequence, request, error) => {
                    session.finished.push(sequence);
                    let request = Some(request);
                    Received::Failed { peer: self.peer.clone(), request, error }
                }
            };
            drop(session);
            if let Some(listener) = self.listener.upgrade() {
                match behind {
                    true => listener.tell(self),
                    false => listener.tell_soon(),
                }
            }
            return Some(received);
        }
        if session.is_done() {
            drop(session);
            // So that it is forgotten once its last message is dropped.
            if let Some(listener) = self.listener.upgrade() {
                listener.tell_soon();
            }
            return Some(Received::Closed(self.peer.clone()));
        }
        match session.ended.take()? {
            None => Some(Received::Closed(self.peer.clone())),
            Some(why) => Some(Received::Lost(self.peer.clone(), why)),
        }
    }

    fn arm(&self) {
        // About to sleep: a good time to tell the sender.
        if let Some(listener) = self.listener.upgrade() {
            let session = lock(&self.session);
            let news = session.told != session.taken || !session.finished.is_empty();
            drop(session);
            if news {
                listener.tell(self);
            }
        }
        arm(&self.alarm);
    }

    fn disarm(&self) {
        disarm(&self.alarm);
    }

    fn close(&self) {
        let mut session = lock(&self.session);
        session.closed = true;
        let unheard = std::mem::take(&mut session.queue);
        drop(session);
        drop(unheard);
        if let Some(listener) = self.listener.upgrade() {
            listener.tell_closed(self);
        }
    }
}

impl Finish for ZmqIncoming {
    fn finish(&self, sequence: u64) {
        let mut session = lock(&self.session);
        if session.unfinished.remove(&sequence) {
            session.finished.push(sequence);
        }
        drop(session);
        if let Some(listener) = self.listener.upgrade() {
            listener.tell_soon();
        }
    }
}
