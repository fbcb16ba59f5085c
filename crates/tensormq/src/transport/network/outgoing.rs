//! The sending end: one or several connections, made anew when they break.

use std::collections::HashSet;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tessera_core::{Error, ErrorKind, Result, Tensor, lock};

use super::control_frame::{ControlFrame, Hello, MAX_LANES, ReceiverProgress};
use super::lane::{ChannelLane, send_on_lane, sendable_tensor};
use super::link::{LinkDialler, LinkEvent};
use super::timer::Timer;
use super::{HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, silence_limit};
use crate::address::Address;
use crate::alarm::{arm_alarm, claim_wakeup, disarm_alarm};
use crate::channel::{ChannelPeer, NotSent, OutgoingChannel, SendAttempt};
use crate::in_flight::{InFlightMessages, MessageFate};
use crate::message::Message;
use crate::notifier::Notifier;
use crate::options::{ConnectOptions, MAX_INBOX_DEPTH};
use crate::outgoing_channels::OutgoingChannels;
use crate::random::random_u64;
use crate::reactor::{EventSource, ReactorHandle, ReactorToken};
use crate::transport::driver::TransportContext;
use crate::transport::id::Transport;
use crate::wait::{Deadline, Wait};

/// How soon a connection that broke is tried again, at first and at most.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Where to, and how.
struct NetworkRoute {
    /// Makes the connections.
    dialler: Box<dyn LinkDialler>,
    /// Whether both ends are on one host, where nothing can come between them.
    is_within_host: bool,
    inbox: String,
    lanes: u16,
}

/// The sending end of a channel.
struct NetworkOutgoing {
    route: NetworkRoute,
    session: u128,
    state: Mutex<OutgoingSession>,
    in_flight: InFlightMessages,
    notifier: Notifier,
    alarm: AtomicU32,
    timer: Timer,
    token: OnceLock<ReactorToken>,
    endpoint_id: u64,
    reactor: ReactorHandle,
    outgoing: Weak<OutgoingChannels>,
    weak_self: Weak<Self>,
}

struct OutgoingSession {
    lanes: Vec<ChannelLane>,
    status: ConnectionStatus,
    /// How long to wait before the next attempt to connect.
    retry_delay: Duration,
    /// Room in the receiver's queue.
    depth: u32,
    /// How long the receiver keeps a session whose connection is gone.
    session_lease: Duration,
    /// Bytes of the largest tensor that the receiver takes.
    largest_tensor_bytes: u64,
    /// Whether there was a welcome.
    was_welcomed: bool,
    /// Whether the connection breaks before both ends have understood each other.
    handshake_broken: bool,
    /// When the lanes were opened.
    opened_at: Deadline,
    /// When the receiver last said something.
    heard_at: Deadline,
    /// How long it may say nothing.
    silence_limit: Duration,
    /// Number of the message that was sent last.
    last_sequence: u64,
    closed: bool,
    /// Whether that was said on a connection.
    said_bye: bool,
    /// Whether the receiver knows that, and has all.
    receiver_finished: bool,
}

enum ConnectionStatus {
    /// Since then, until all lanes are welcome.
    Connecting(Deadline),
    Connected,
    /// Over, and why.
    Lost(ErrorKind, String),
}

/// Opens a channel to an inbox by a transport between hosts, or one that is like them.
pub(in crate::transport) fn open_network_channel(
    dialler: Box<dyn LinkDialler>,
    transport: Transport,
    is_within_host: bool,
    address: &Address,
    options: &ConnectOptions,
    endpoint: &TransportContext,
) -> Result<(Arc<dyn OutgoingChannel>, ChannelPeer)> {
    let (inbox, lanes) = (address.inbox.clone(), options.lanes);
    let route = NetworkRoute { dialler, is_within_host, inbox, lanes };
    let session = u128::from(random_u64()?) << 64 | u128::from(random_u64()?);
    let wait = Wait::at_most(options.timeout);
    let channel = NetworkOutgoing::connect(route, session, endpoint, wait)?;
    endpoint.outgoing.keep_channel(Arc::<NetworkOutgoing>::clone(&channel));
    Ok((channel, ChannelPeer { transport, endpoint_id: address.endpoint_id, process: None }))
}

impl NetworkOutgoing {
    /// Connects, and waits until the receiver says welcome.
    fn connect(
        route: NetworkRoute,
        session: u128,
        endpoint: &TransportContext,
        wait: Wait,
    ) -> Result<Arc<Self>> {
        if route.lanes == 0 || route.lanes > MAX_LANES {
            return Err(Error::usage(format!("a channel has between 1 and {MAX_LANES} lanes")));
        }
        let (notifier, timer) = (Notifier::new()?, Timer::new()?);
        let channel = Arc::new_cyclic(|weak_self| Self {
            route,
            session,
            state: Mutex::new(OutgoingSession {
                lanes: Vec::new(),
                status: ConnectionStatus::Connecting(Deadline::now()),
                retry_delay: FIRST_RETRY_DELAY,
                depth: 0,
                session_lease: Duration::ZERO,
                largest_tensor_bytes: u64::MAX,
                was_welcomed: false,
                handshake_broken: false,
                opened_at: Deadline::now(),
                heard_at: Deadline::now(),
                silence_limit: HEARTBEAT_TIMEOUT,
                last_sequence: 0,
                closed: false,
                said_bye: false,
                receiver_finished: false,
            }),
            in_flight: InFlightMessages::default(),
            notifier,
            alarm: AtomicU32::new(0),
            timer,
            token: OnceLock::new(),
            endpoint_id: endpoint.endpoint_id,
            reactor: endpoint.reactor.clone(),
            outgoing: Arc::downgrade(&endpoint.outgoing),
            weak_self: weak_self.clone(),
        });
        let token = endpoint.reactor.register_source(&channel.timer, channel.event_source())?;
        channel.token.set(token).ok();
        channel.timer.schedule_within(HEARTBEAT_INTERVAL);
        let mut state = lock(&channel.state);
        channel.open_lanes(&mut state)?;
        // A socket announces what comes once it was found empty, not before.
        channel.drain_sockets(&mut state);
        drop(state);
        loop {
            arm_alarm(&channel.alarm);
            match &lock(&channel.state).status {
                ConnectionStatus::Connected => break,
                ConnectionStatus::Lost(kind, reason) => {
                    return Err(Error::new(*kind, reason.clone()));
                }
                ConnectionStatus::Connecting(_) => {}
            }
            if !channel.notifier.sleep_until_notified(wait) {
                let mut state = lock(&channel.state);
                channel.close_lanes(&mut state);
                return Err(if state.handshake_broken {
                    channel.route.dialler.refusal_error()
                } else {
                    let target = channel.route.dialler.target();
                    Error::timed_out(format!("no answer from {target}"))
                });
            }
        }
        Ok(channel)
    }

    fn event_source(&self) -> Weak<dyn EventSource> {
        Weak::<Self>::clone(&self.weak_self)
    }

    /// Makes new connections and says hello on each.
    fn open_lanes(&self, state: &mut OutgoingSession) -> Result<()> {
        self.close_lanes(state);
        let NetworkRoute { dialler, inbox, lanes, .. } = &self.route;
        state.opened_at = Deadline::now();
        for lane in 0..*lanes {
            let hello = ControlFrame::Hello(Hello {
                session: self.session,
                endpoint_id: self.endpoint_id,
                lane,
                lanes: *lanes,
                resume: state.was_welcomed,
                inbox: inbox.clone(),
            });
            let link = dialler.dial()?;
            let mut lane = ChannelLane { link, welcomed: false, sent_at: Deadline::now() };
            lane.say(&hello);
            lane.link.watch_events(&self.reactor, &self.event_source())?;
            state.lanes.push(lane);
        }
        Ok(())
    }

    fn close_lanes(&self, state: &mut OutgoingSession) {
        for mut lane in state.lanes.drain(..) {
            // What was not sent yet is sent again, or not at all.
            lane.link.close_link(&self.reactor, state.closed);
        }
    }

    /// Reads what the receiver said, and what happened to the connections.
    fn drain_sockets(&self, state: &mut OutgoingSession) {
        loop {
            let mut said = Vec::new();
            for (index, lane) in state.lanes.iter_mut().enumerate() {
                said.extend(std::iter::from_fn(|| lane.link.take_frame()).map(|f| (index, f)));
            }
            let quiet = said.is_empty();
            for (lane, frame) in said {
                match ControlFrame::from_bytes(&frame) {
                    Ok(control) => self.handle_control(state, lane, control),
                    Err(error) => self.lose_channel(state, &error, None),
                }
            }
            let events: Vec<_> =
                state.lanes.iter_mut().flat_map(|lane| lane.link.take_events()).collect();
            if let Some(event) = events.first() {
                self.reconnect_or_lose(state, *event);
            } else if quiet {
                return;
            }
        }
    }

    fn handle_control(&self, state: &mut OutgoingSession, lane: usize, control: ControlFrame) {
        if let ConnectionStatus::Lost(..) = state.status {
            return;
        }
        state.heard_at = Deadline::now();
        match control {
            ControlFrame::Welcome { depth, lease_ms, largest_tensor_bytes, progress } => {
                state.largest_tensor_bytes = largest_tensor_bytes;
                state.depth = depth.clamp(1, MAX_INBOX_DEPTH);
                state.session_lease = Duration::from_millis(lease_ms.into());
                if let Some(lane) = state.lanes.get_mut(lane) {
                    lane.welcomed = true;
                }
                self.apply_progress(&progress);
                let all = state.lanes.iter().all(|lane| lane.welcomed);
                if all && !state.lanes.is_empty() {
                    state.status = ConnectionStatus::Connected;
                    state.was_welcomed = true;
                    state.retry_delay = FIRST_RETRY_DELAY;
                    // Told on every lane; what is sent twice is taken once.
                    self.resend_after(state, progress.accepted);
                    // Only now does the receiver know that we heard it, and takes what it has.
                    for lane in &mut state.lanes {
                        lane.say(&ControlFrame::Heartbeat);
                    }
                }
            }
            ControlFrame::Progress(progress) => {
                self.in_flight.mark_taken(progress.taken.min(state.last_sequence));
                for number in progress.numbers {
                    self.in_flight.mark_finished(number);
                }
            }
            ControlFrame::Refused { kind, progress, reason } => {
                let error = Error::new(kind, reason);
                self.lose_channel(state, &error, progress.as_ref());
            }
            ControlFrame::Over if !state.closed => {
                self.lose_channel(state, &Error::lost("the receiver ended the channel"), None);
            }
            ControlFrame::Over => {
                state.receiver_finished = true;
                self.close_lanes(state);
            }
            // Said by senders.
            ControlFrame::Hello(_) | ControlFrame::Bye { .. } | ControlFrame::Heartbeat => {}
        }
        self.wake_sender();
    }

    /// Learns how far the receiver is, from itself.
    fn apply_progress(&self, progress: &ReceiverProgress) {
        let unfinished: HashSet<u64> = progress.numbers.iter().copied().collect();
        self.in_flight.mark_taken(progress.taken);
        self.in_flight.mark_finished_except(progress.taken, &unfinished);
    }

    fn resend_after(&self, state: &mut OutgoingSession, accepted: u64) {
        for (sequence, envelope, tensors) in self.in_flight.messages_after(accepted) {
            let Some(envelope) = envelope else { continue };
            // Where it fails the connection is broken again, which an event says.
            if send_on_lane(&mut state.lanes, sequence, &envelope, &tensors).is_err() {
                break;
            }
        }
        if state.closed {
            self.say_bye(state);
        }
    }

    fn say_bye(&self, state: &mut OutgoingSession) {
        state.said_bye = true;
        let bye = ControlFrame::Bye { last: state.last_sequence };
        if let Some(lane) = state.lanes.first_mut() {
            lane.say(&bye);
        }
    }

    /// A connection broke or could not be made.
    fn reconnect_or_lose(&self, state: &mut OutgoingSession, event: LinkEvent) {
        if let ConnectionStatus::Lost(..) = state.status {
            self.close_lanes(state);
            return;
        }
        let over = state.closed && state.receiver_finished;
        if event == LinkEvent::HandshakeFailed && !state.was_welcomed {
            return self.lose_channel(state, &self.route.dialler.refusal_error(), None);
        }
        state.handshake_broken = event == LinkEvent::HandshakeBroken;
        if over || self.route.is_within_host {
            // Nothing can come between processes of a host: it is gone.
            return self.lose_channel(state, &Error::lost("the receiver's process is gone"), None);
        }
        if !matches!(state.status, ConnectionStatus::Connecting(_)) {
            state.status = ConnectionStatus::Connecting(Deadline::now());
        }
        self.close_lanes(state);
        state.opened_at = Deadline::now();
        self.timer.schedule_within(state.retry_delay);
        self.wake_sender();
    }

    /// The channel is over.
    fn lose_channel(
        &self,
        state: &mut OutgoingSession,
        error: &Error,
        progress: Option<&ReceiverProgress>,
    ) {
        if let ConnectionStatus::Lost(..) = state.status {
            return;
        }
        state.status = ConnectionStatus::Lost(error.kind(), error.to_string());
        match progress {
            // It said how far it was, so there is no doubt.
            Some(progress) => {
                self.apply_progress(progress);
                if error.kind() == ErrorKind::Lost {
                    self.in_flight.fail_untaken(progress.taken);
                }
                self.in_flight.fail_all(progress.taken, MessageFate::NotTaken);
            }
            None => self.in_flight.fail_all(0, MessageFate::Unknown),
        }
        self.close_lanes(state);
        self.wake_sender();
    }

    /// Lets the endpoint forget it where it is over. Not to be called with the state locked.
    fn forget_if_over(&self) {
        if self.is_over()
            && let Some(outgoing) = self.outgoing.upgrade()
        {
            outgoing.forget_finished_channels();
        }
    }

    /// What has to be done now and then.
    fn handle_timer(&self, state: &mut OutgoingSession) {
        let mut next = HEARTBEAT_INTERVAL;
        match &state.status {
            ConnectionStatus::Lost(..) => return,
            _ if state.receiver_finished => return,
            ConnectionStatus::Connected => {
                if self.route.is_within_host {
                    // The kernel tells at once when a process of this host is gone.
                    return;
                }
                let round_trips = state.lanes.iter().filter_map(|lane| lane.link.round_trip());
                state.silence_limit = silence_limit(HEARTBEAT_TIMEOUT, round_trips.max());
                if elapsed_since(state.heard_at) > state.silence_limit {
                    self.reconnect_or_lose(state, LinkEvent::Broken);
                }
                for lane in state
                    .lanes
                    .iter_mut()
                    .filter(|lane| elapsed_since(lane.sent_at) > HEARTBEAT_INTERVAL)
                {
                    lane.sent_at = Deadline::now();
                    lane.say(&ControlFrame::Heartbeat);
                }
            }
            ConnectionStatus::Connecting(start) => {
                // Later than the receiver: by then it has thrown away what it had not taken.
                // It may take as long as its silence to notice, where ours ended at once.
                let patience = state.session_lease + state.session_lease.max(state.silence_limit);
                let away = elapsed_since(*start);
                if state.was_welcomed && away > patience {
                    return self.lose_channel(
                        state,
                        &Error::lost("the receiver is out of reach"),
                        None,
                    );
                }
                if state.was_welcomed {
                    next = next.min(patience - away + Duration::from_millis(1));
                }
                let waited = elapsed_since(state.opened_at);
                if (state.lanes.is_empty() && waited >= state.retry_delay)
                    || waited > HEARTBEAT_TIMEOUT
                {
                    state.retry_delay = (state.retry_delay * 2).min(MAX_RETRY_DELAY);
                    if self.open_lanes(state).is_err() {
                        // Out of descriptors, say: it may be better the next time.
                        self.close_lanes(state);
                    }
                }
                if state.lanes.is_empty() {
                    next = next.min(state.retry_delay.saturating_sub(waited));
                }
            }
        }
        self.timer.schedule_within(next);
    }

    fn wake_sender(&self) {
        if claim_wakeup(&self.alarm) {
            self.notifier.notify();
        }
    }
}

/// How long ago that was.
fn elapsed_since(then: Deadline) -> Duration {
    Duration::from_nanos(Deadline::now().nanoseconds().saturating_sub(then.nanoseconds()))
}

impl OutgoingChannel for NetworkOutgoing {
    fn try_send(&self, mut message: Message) -> Result<SendAttempt, Box<NotSent>> {
        // Before anything is locked: a tensor may have to be waited for.
        let largest = usize::try_from(lock(&self.state).largest_tensor_bytes).unwrap_or(usize::MAX);
        let tensors = message.tensors.iter().map(|tensor| sendable_tensor(tensor, largest));
        let tensors = match tensors.collect::<Result<Vec<Tensor>>>() {
            Ok(tensors) => tensors,
            Err(error) => return Err(Box::new(NotSent { error, message })),
        };
        let mut state = lock(&self.state);
        if let ConnectionStatus::Lost(kind, reason) = &state.status {
            return Err(Box::new(NotSent { error: Error::new(*kind, reason.clone()), message }));
        }
        if self.in_flight.untaken_count() >= state.depth as usize {
            self.drain_sockets(&mut state);
            if self.in_flight.untaken_count() >= state.depth as usize {
                return Ok(SendAttempt::Full(message));
            }
        }
        let sequence = state.last_sequence + 1;
        let envelope = message.envelope.clone();
        if !self.in_flight.track_resendable(
            sequence,
            message.request(),
            tensors.clone(),
            Some(envelope),
        ) {
            return Ok(SendAttempt::Full(message));
        }
        if let ConnectionStatus::Connected = state.status
            && let Err(error) =
                send_on_lane(&mut state.lanes, sequence, &message.envelope, &tensors)
            && error.kind() == ErrorKind::Usage
        {
            // The message itself is at fault, and no part of it is on its way. Anything else is the
            // connection's fault: it is made anew and the message sent again.
            self.in_flight.untrack_message(sequence);
            return Err(Box::new(NotSent { error, message }));
        }
        state.last_sequence = sequence;
        // Sending may have taken the announcement of something to read.
        self.drain_sockets(&mut state);
        drop(state);
        drop(message.receipt.take());
        Ok(SendAttempt::Sent(sequence))
    }

    fn arm_wakeup(&self) {
        arm_alarm(&self.alarm);
    }

    fn disarm_wakeup(&self) {
        disarm_alarm(&self.alarm);
    }

    fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    fn in_flight(&self) -> &InFlightMessages {
        &self.in_flight
    }

    fn collect_receipts(&self) {
        self.drain_sockets(&mut lock(&self.state));
    }

    fn is_lost(&self) -> bool {
        matches!(lock(&self.state).status, ConnectionStatus::Lost(..))
    }

    fn is_interrupted(&self) -> bool {
        matches!(lock(&self.state).status, ConnectionStatus::Connecting(_))
    }

    fn is_over(&self) -> bool {
        let state = lock(&self.state);
        matches!(state.status, ConnectionStatus::Lost(..))
            || (state.closed && state.receiver_finished)
    }

    fn awaits_farewell(&self) -> bool {
        let state = lock(&self.state);
        let is_lost = matches!(state.status, ConnectionStatus::Lost(..));
        let is_done = self.in_flight.unfinished_count() == 0;
        // A connection that breaks after the goodbye was mostly closed by a receiver that heard it.
        let is_connected = matches!(state.status, ConnectionStatus::Connected);
        let is_unheard = is_connected || !state.said_bye;
        state.closed && !state.receiver_finished && !is_lost && is_done && is_unheard
    }

    fn close_sending(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        if let ConnectionStatus::Connected = state.status {
            self.say_bye(&mut state);
        }
        // Sending may have taken the announcement of something to read.
        self.drain_sockets(&mut state);
        drop(state);
        self.forget_if_over();
    }
}

impl EventSource for NetworkOutgoing {
    fn on_readable(&self) {
        let mut state = lock(&self.state);
        // What was said comes first: it may be the answer that the time is up for.
        self.drain_sockets(&mut state);
        if self.timer.take_lateness().is_some() {
            self.handle_timer(&mut state);
            self.drain_sockets(&mut state);
        }
        drop(state);
        self.forget_if_over();
    }
}

impl Drop for NetworkOutgoing {
    fn drop(&mut self) {
        self.close_lanes(&mut lock(&self.state));
        if let Some(token) = self.token.get() {
            self.reactor.deregister_source(&self.timer, *token);
        }
    }
}
