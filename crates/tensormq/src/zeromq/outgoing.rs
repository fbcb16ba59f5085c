//! The sending end: one or several connections, made anew when they break.

use std::collections::HashSet;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tessera_core::{Error, ErrorKind, Location, Result, Tensor};

use super::frame::send_tensor;
use super::monitor::{Happened, Monitored};
use super::timer::Timer;
use super::wire::{Control, Hello, Progress};
use super::{
    Keys, LIFE, SILENCE, check_endpoint, key_from_text, listener, prepare, receive_frames,
    zmq_error,
};
use crate::address::Transport;
use crate::bell::Bell;
use crate::channel::{Attempt, NotSent, Outgoing};
use crate::courier::Inner;
use crate::driver::{Source, Token};
use crate::flight::{Fate, Flight};
use crate::handover::{arm, disarm, raise};
use crate::layout::{Clock, Descriptor, Envelope, Place};
use crate::message::Message;
use crate::payload;
use crate::sync::{Mutex, lock};
use crate::wait::{Deadline, Wait};

/// How soon a connection that broke is tried again, at first and at most.
const RETRY: Duration = Duration::from_millis(20);
const SLOWEST_RETRY: Duration = Duration::from_millis(500);

/// Where to, and how.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) transport: Transport,
    pub(crate) endpoint: String,
    /// The receiver's public key, where it is encrypted.
    pub(crate) server_key: Option<String>,
    pub(crate) keys: Option<Keys>,
    pub(crate) inbox: String,
    pub(crate) lanes: u16,
}

/// The sending end of a channel.
pub(crate) struct ZmqOutgoing {
    route: Route,
    session: u128,
    state: Mutex<State>,
    flight: Flight,
    bell: Bell,
    alarm: AtomicU32,
    timer: Timer,
    token: OnceLock<Token>,
    courier: Weak<Inner>,
    own: Weak<Self>,
}

struct State {
    lanes: Vec<Lane>,
    status: Status,
    /// How long to wait before the next attempt to connect.
    retry: Duration,
    /// Room in the receiver's queue.
    depth: u32,
    /// How long the receiver keeps a session whose connection is gone.
    lease: Duration,
    /// Bytes of the largest tensor that the receiver takes.
    largest: u64,
    /// Whether there was a welcome.
    known: bool,
    /// Whether the connection breaks before both ends have understood each other.
    refused: bool,
    /// When the lanes were opened.
    opened: Deadline,
    /// When the receiver last said something.
    heard: Deadline,
    /// Number of the message that was sent last.
    sequence: u64,
    closed: bool,
    /// Whether the receiver knows that, and has all.
    over: bool,
}

struct Lane {
    monitored: Monitored,
    welcomed: bool,
    /// When something was last sent on it.
    said: Deadline,
}

enum Status {
    /// Since then, until all lanes are welcome.
    Connecting(Deadline),
    Connected,
    /// Over, and why.
    Lost(ErrorKind, String),
}

impl ZmqOutgoing {
    /// Connects, and waits until the receiver says welcome.
    pub(crate) fn connect(
        route: Route,
        session: u128,
        courier: &Arc<Inner>,
        wait: Wait,
    ) -> Result<Arc<Self>> {
        if route.lanes == 0 || route.lanes > listener::MOST_LANES {
            let most = listener::MOST_LANES;
            return Err(Error::usage(format!("a channel has between 1 and {most} lanes")));
        }
        let scheme = if route.transport == Transport::ZmqIpc { "ipc://" } else { "tcp://" };
        check_endpoint(&route.endpoint, scheme)?;
        let (bell, timer) = (Bell::new()?, Timer::new()?);
        let channel = Arc::new_cyclic(|own| Self {
            route,
            session,
            state: Mutex::new(State {
                lanes: Vec::new(),
                status: Status::Connecting(Deadline::now()),
                retry: RETRY,
                depth: 0,
                lease: Duration::ZERO,
                largest: u64::MAX,
                known: false,
                refused: false,
                opened: Deadline::now(),
                heard: Deadline::now(),
                sequence: 0,
                closed: false,
                over: false,
            }),
            flight: Flight::default(),
            bell,
            alarm: AtomicU32::new(0),
            timer,
            token: OnceLock::new(),
            courier: Arc::downgrade(courier),
            own: own.clone(),
        });
        let token = courier.driver.add(&channel.timer, channel.source())?;
        channel.token.set(token).ok();
        channel.timer.set(LIFE);
        let mut state = lock(&channel.state);
        channel.open(&mut state)?;
        // A socket announces what comes once it was found empty, not before.
        channel.work(&mut state);
        drop(state);
        loop {
            arm(&channel.alarm);
            match &lock(&channel.state).status {
                Status::Connected => break,
                Status::Lost(kind, why) => return Err(Error::new(*kind, why.clone())),
                Status::Connecting(_) => {}
            }
            if !channel.bell.sleep(wait) {
                let mut state = lock(&channel.state);
                channel.close_lanes(&mut state);
                return Err(match state.refused {
                    true => channel.refusal(),
                    false => Error::timed_out(format!("no answer from {}", channel.route.endpoint)),
                });
            }
        }
        Ok(channel)
    }

    /// Why the receiver may have broken off.
    fn refusal(&self) -> Error {
        let why = match self.route.server_key {
            Some(_) => "the receiver refuses our key, or has another",
            None => "the receiver wants encryption, or does not speak ZeroMQ",
        };
        Error::new(ErrorKind::Io, why)
    }

    fn source(&self) -> Weak<dyn Source> {
        Weak::<Self>::clone(&self.own)
    }

    /// Makes new connections and says hello on each.
    fn open(&self, state: &mut State) -> Result<()> {
        self.close_lanes(state);
        let courier = self.courier.upgrade().ok_or_else(|| Error::lost("the transport ended"))?;
        let network = courier.network()?;
        let Route { endpoint, server_key, keys, inbox, lanes, .. } = &self.route;
        state.opened = Deadline::now();
        let fail = |error| zmq_error("a socket of ZeroMQ", error);
        for lane in 0..*lanes {
            let mut socket = network.context.socket(zmq::DEALER).map_err(fail)?;
            prepare(&mut socket, endpoint).map_err(fail)?;
            // We make new ones ourselves, because what was on the old ones may not be sent again
            // blindly.
            socket.set_reconnect_ivl(-1).map_err(fail)?;
            socket.set_connect_timeout(2000).map_err(fail)?;
            if let Some(server_key) = server_key {
                let keys = match keys {
                    Some(keys) => keys.clone(),
                    None => Keys::generate()?,
                };
                socket.set_curve_serverkey(&key_from_text(server_key)?).map_err(fail)?;
                socket.set_curve_publickey(&keys.public).map_err(fail)?;
                socket.set_curve_secretkey(&keys.secret).map_err(fail)?;
            }
            let mut monitored = Monitored::new(&network.context, socket)?;
            monitored.socket.connect(endpoint).map_err(|error| zmq_error(endpoint, error))?;
            let hello = Control::Hello(Hello {
                session: self.session,
                courier: courier.id,
                lane,
                lanes: *lanes,
                resume: state.known,
                inbox: inbox.clone(),
            });
            // Fails where it could not even connect, which the monitor says too.
            monitored.socket.send(hello.encode(), zmq::DONTWAIT).ok();
            monitored.watch(&courier.driver, &self.source())?;
            state.lanes.push(Lane { monitored, welcomed: false, said: Deadline::now() });
        }
        Ok(())
    }

    fn close_lanes(&self, state: &mut State) {
        let courier = self.courier.upgrade();
        for mut lane in state.lanes.drain(..) {
            if let Some(courier) = &courier {
                lane.monitored.ignore(&courier.driver);
            }
            // What was not sent yet is sent again, or not at all.
            if !state.closed {
                lane.monitored.socket.set_linger(0).ok();
            }
        }
    }

    /// Reads what the receiver said, and what happened to the connections.
    fn work(&self, state: &mut State) {
        loop {
            let mut said = Vec::new();
            for (index, lane) in state.lanes.iter().enumerate() {
                loop {
                    match receive_frames(&lane.monitored.socket) {
                        Ok(frames) => said.extend(frames.into_iter().next().map(|f| (index, f))),
                        Err(zmq::Error::EINTR) => {}
                        Err(_) => break,
                    }
                }
            }
            let quiet = said.is_empty();
            for (lane, frame) in said {
                match Control::parse(&frame) {
                    Ok(control) => self.hear(state, lane, control),
                    Err(error) => self.lose(state, &error, None),
                }
            }
            let events: Vec<_> =
                state.lanes.iter().flat_map(|lane| lane.monitored.events()).collect();
            if let Some(happened) = events.first() {
                self.broken(state, *happened);
            } else if quiet {
                return;
            }
        }
    }

    fn hear(&self, state: &mut State, lane: usize, control: Control) {
        if let Status::Lost(..) = state.status {
            return;
        }
        state.heard = Deadline::now();
        match control {
            Control::Welcome { depth, lease_ms, largest, progress } => {
                state.largest = largest;
                state.depth = depth.clamp(1, crate::MOST_DEPTH);
                state.lease = Duration::from_millis(lease_ms.into());
                if let Some(lane) = state.lanes.get_mut(lane) {
                    lane.welcomed = true;
                }
                self.stand(&progress);
                let all = state.lanes.iter().all(|lane| lane.welcomed);
                if all && !state.lanes.is_empty() {
                    state.status = Status::Connected;
                    state.known = true;
                    state.retry = RETRY;
                    // Told on every lane; what is sent twice is taken once.
                    self.send_again(state, progress.accepted);
                    // Only now does the receiver know that we heard it, and takes what it has.
                    for lane in &state.lanes {
                        lane.monitored.socket.send(Control::Alive.encode(), zmq::DONTWAIT).ok();
                    }
                }
            }
            Control::Progress(progress) => {
                self.flight.took(progress.taken.min(state.sequence));
                for number in progress.numbers {
                    self.flight.finish(number);
                }
            }
            Control::Refused { kind, progress, why } => {
                let error = Error::new(kind, why);
                self.lose(state, &error, progress.as_ref());
            }
            Control::Over if !state.closed => {
                self.lose(state, &Error::lost("the receiver ended the channel"), None);
            }
            Control::Over => {
                state.over = true;
                self.close_lanes(state);
            }
            // Said by senders.
            Control::Hello(_) | Control::Bye { .. } | Control::Alive => {}
        }
        self.wake();
    }

    /// Learns how far the receiver is, from itself.
    fn stand(&self, progress: &Progress) {
        let unfinished: HashSet<u64> = progress.numbers.iter().copied().collect();
        self.flight.took(progress.taken);
        self.flight.finish_all(progress.taken, &unfinished);
    }

    fn send_again(&self, state: &mut State, accepted: u64) {
        for (sequence, envelope, tensors) in self.flight.after(accepted) {
            let Some(envelope) = envelope else { continue };
            // Where it fails the connection is broken again, which the monitor says.
            if put(state, sequence, &envelope, &tensors).is_err() {
                break;
            }
        }
        if state.closed {
            self.say_bye(state);
        }
    }

    fn say_bye(&self, state: &mut State) {
        let bye = Control::Bye { last: state.sequence }.encode();
        if let Some(lane) = state.lanes.first() {
            // As above.
            lane.monitored.socket.send(bye, zmq::DONTWAIT).ok();
        }
    }

    /// A connection broke or could not be made.
    fn broken(&self, state: &mut State, happened: Happened) {
        if let Status::Lost(..) = state.status {
            self.close_lanes(state);
            return;
        }
        let over = state.closed && state.over;
        if happened == Happened::HandshakeFailed && !state.known {
            return self.lose(state, &self.refusal(), None);
        }
        state.refused = happened == Happened::HandshakeBroken;
        if over || self.route.transport == Transport::ZmqIpc {
            // Nothing can come between processes of a host: it is gone.
            return self.lose(state, &Error::lost("the receiver's process is gone"), None);
        }
        if !matches!(state.status, Status::Connecting(_)) {
            state.status = Status::Connecting(Deadline::now());
        }
        self.close_lanes(state);
        state.opened = Deadline::now();
        self.timer.set(state.retry);
        self.wake();
    }

    /// The channel is over.
    fn lose(&self, state: &mut State, error: &Error, progress: Option<&Progress>) {
        if let Status::Lost(..) = state.status {
            return;
        }
        state.status = Status::Lost(error.kind(), error.to_string());
        match progress {
            // It said how far it was, so there is no doubt.
            Some(progress) => {
                self.stand(progress);
                if error.kind() == ErrorKind::Lost {
                    self.flight.abandon(progress.taken);
                }
                self.flight.end(progress.taken, Fate::NotTaken);
            }
            None => self.flight.end(0, Fate::Unknown),
        }
        self.close_lanes(state);
        self.wake();
    }

    /// Lets the courier forget it where it is over. Not to be called with the state locked.
    fn check_over(&self) {
        if self.is_over()
            && let Some(courier) = self.courier.upgrade()
        {
            courier.forget_outgoing();
        }
    }

    /// What has to be done now and then.
    fn tick(&self, state: &mut State) {
        let mut next = LIFE;
        match &state.status {
            Status::Lost(..) => return,
            _ if state.over => return,
            Status::Connected => {
                if self.route.transport == Transport::ZmqIpc {
                    // The kernel tells at once when a process of this host is gone.
                    return;
                }
                if since(state.heard) > SILENCE {
                    self.broken(state, Happened::NotConnected);
                }
                for lane in state.lanes.iter_mut().filter(|lane| since(lane.said) > LIFE) {
                    lane.said = Deadline::now();
                    // Where it fails, the connection is broken, which the monitor says.
                    lane.monitored.socket.send(Control::Alive.encode(), zmq::DONTWAIT).ok();
                }
            }
            Status::Connecting(start) => {
                // Later than the receiver: by then it has thrown away what it had not taken.
                // It may take as long as its silence to notice, where ours ended at once.
                let patience = state.lease + state.lease.max(SILENCE);
                let away = since(*start);
                if state.known && away > patience {
                    return self.lose(state, &Error::lost("the receiver is out of reach"), None);
                }
                if state.known {
                    next = next.min(patience - away + Duration::from_millis(1));
                }
                let waited = since(state.opened);
                if (state.lanes.is_empty() && waited >= state.retry) || waited > SILENCE {
                    state.retry = (state.retry * 2).min(SLOWEST_RETRY);
                    if self.open(state).is_err() {
                        // Out of descriptors, say: it may be better the next time.
                        self.close_lanes(state);
                    }
                }
                if state.lanes.is_empty() {
                    next = next.min(state.retry.saturating_sub(waited));
                }
            }
        }
        self.timer.set(next);
    }

    fn wake(&self) {
        if raise(&self.alarm) {
            self.bell.ring();
        }
    }
}

/// How long ago that was.
fn since(then: Deadline) -> Duration {
    Duration::from_nanos(Deadline::now().nanoseconds().saturating_sub(then.nanoseconds()))
}

/// Sends a message on the lane whose turn it is.
fn put(state: &mut State, sequence: u64, envelope: &Envelope, tensors: &[Tensor]) -> Result<()> {
    let packed: Vec<Option<Vec<u8>>> =
        tensors.iter().map(|tensor| tensor.strings().map(payload::pack_strings)).collect();
    let describe = |(index, (tensor, packed)): (usize, (&Tensor, &Option<Vec<u8>>))| {
        let bytes = packed.as_ref().map_or(tensor.byte_len(), Vec::len);
        let place = Place::Frame(index as u32);
        Descriptor::contiguous(tensor.dtype(), tensor.shape(), bytes, place)
    };
    let descriptors: Vec<_> = tensors.iter().zip(&packed).enumerate().map(describe).collect();
    let header = envelope.encode(sequence, Clock::Remaining, &descriptors)?;
    let count = state.lanes.len().max(1) as u64;
    let Some(lane) = state.lanes.get_mut((sequence % count) as usize) else {
        return Err(Error::lost("there is no connection"));
    };
    lane.said = Deadline::now();
    let socket = &mut lane.monitored.socket;
    let flags = |more: bool| if more { zmq::DONTWAIT | zmq::SNDMORE } else { zmq::DONTWAIT };
    let fail = |error| zmq_error("a socket of ZeroMQ", error);
    socket.send(header, flags(!tensors.is_empty())).map_err(fail)?;
    for (index, (tensor, packed)) in tensors.iter().zip(packed).enumerate() {
        let more = flags(index + 1 < tensors.len());
        match packed {
            Some(packed) => socket.send(packed, more),
            None => send_tensor(socket, tensor.clone(), more),
        }
        .map_err(fail)?;
    }
    Ok(())
}

impl Outgoing for ZmqOutgoing {
    fn try_send(&self, mut message: Message) -> Result<Attempt, Box<NotSent>> {
        // Before anything is locked: a tensor may have to be waited for.
        let largest = usize::try_from(lock(&self.state).largest).unwrap_or(usize::MAX);
        let tensors = message.tensors.iter().map(|tensor| sendable(tensor, largest));
        let tensors = match tensors.collect::<Result<Vec<Tensor>>>() {
            Ok(tensors) => tensors,
            Err(error) => return Err(Box::new(NotSent { error, message })),
        };
        let mut state = lock(&self.state);
        if let Status::Lost(kind, why) = &state.status {
            return Err(Box::new(NotSent { error: Error::new(*kind, why.clone()), message }));
        }
        if self.flight.untaken() >= state.depth as usize {
            self.work(&mut state);
            if self.flight.untaken() >= state.depth as usize {
                return Ok(Attempt::Full(message));
            }
        }
        let sequence = state.sequence + 1;
        let envelope = message.envelope.clone();
        if !self.flight.keep(sequence, message.request(), tensors.clone(), Some(envelope)) {
            return Ok(Attempt::Full(message));
        }
        if let Status::Connected = state.status
            && let Err(error) = put(&mut state, sequence, &message.envelope, &tensors)
            && error.kind() == ErrorKind::Usage
        {
            // The message itself is at fault, and no part of it is on its way. Anything else is the
            // connection's fault: it is made anew and the message sent again.
            self.flight.remove(sequence);
            return Err(Box::new(NotSent { error, message }));
        }
        state.sequence = sequence;
        // Sending may have taken the announcement of something to read.
        self.work(&mut state);
        drop(state);
        drop(message.receipt.take());
        Ok(Attempt::Sent(sequence))
    }

    fn arm(&self) {
        arm(&self.alarm);
    }

    fn disarm(&self) {
        disarm(&self.alarm);
    }

    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn flight(&self) -> &Flight {
        &self.flight
    }

    fn settle(&self) {
        self.work(&mut lock(&self.state));
    }

    fn is_lost(&self) -> bool {
        matches!(lock(&self.state).status, Status::Lost(..))
    }

    fn is_interrupted(&self) -> bool {
        matches!(lock(&self.state).status, Status::Connecting(_))
    }

    fn is_over(&self) -> bool {
        let state = lock(&self.state);
        matches!(state.status, Status::Lost(..)) || (state.closed && state.over)
    }

    fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        if let Status::Connected = state.status {
            self.say_bye(&mut state);
        }
        // Sending may have taken the announcement of something to read.
        self.work(&mut state);
        drop(state);
        self.check_over();
    }
}

/// A tensor whose bytes can be sent as they are.
fn sendable(tensor: &Tensor, largest: usize) -> Result<Tensor> {
    let tensor = tensor.clone().settled()?;
    if tensor.location() != Location::Host {
        return Err(Error::unsupported(
            "a tensor that is not in host memory can't go over the network",
        ));
    }
    // Strings go with their lengths.
    let lengths = tensor.strings().map_or(0, |strings| strings.len().saturating_mul(8));
    let bytes = tensor.byte_len().saturating_add(lengths);
    if bytes > largest {
        return Err(Error::usage(format!(
            "a tensor of {bytes} bytes, and the receiver takes {largest} at most"
        )));
    }
    Ok(tensor)
}

impl Source for ZmqOutgoing {
    fn ready(&self) {
        let mut state = lock(&self.state);
        // What was said comes first: it may be the answer that the time is up for.
        self.work(&mut state);
        if self.timer.went_off() {
            self.tick(&mut state);
            self.work(&mut state);
        }
        drop(state);
        self.check_over();
    }
}

impl Drop for ZmqOutgoing {
    fn drop(&mut self) {
        self.close_lanes(&mut lock(&self.state));
        if let (Some(courier), Some(token)) = (self.courier.upgrade(), self.token.get()) {
            courier.driver.remove(&self.timer, *token);
        }
    }
}
