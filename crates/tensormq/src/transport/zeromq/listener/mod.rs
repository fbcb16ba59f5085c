//! A socket that an inbox listens at: it accepts senders, hears them, and notices when they go.

mod bind_address;
mod incoming;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tessera_core::{Error, Result, lock};

use super::context::ZeroMqContext;
use super::control_frame::{ControlFrame, Hello, MAX_LANES, ReceiverProgress};
use super::curve_keys::{CurveKeys, key_from_text};
use super::frame::{ConnectionSilence, connection_silence};
use super::monitor::{ConnectionEvent, MonitoredSocket};
use super::socket::{
    HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, check_socket_address, configure_socket, receive_frames,
    zmq_error,
};
use super::timer::Timer;
use crate::address::ListenAddress;
use crate::channel::{IncomingChannel, inbox_closed};
use crate::inbox_registry::{InboxListener, InboxShared};
use crate::layout::MAX_HEADER;
use crate::options::{InboxOptions, Listen, Security};
use crate::reactor::{EventSource, ReactorHandle, ReactorToken};
use crate::transport::driver::{OpenedListener, TransportContext};
use crate::transport::id::Transport;
use crate::wait::Deadline;
use bind_address::{advertised_address, bind_with_retry, is_ours, local_address};
use incoming::ZeroMqIncoming;

/// How soon a sender is told of progress while the receiver is busy with other things.
const PROGRESS_DELAY: Duration = Duration::from_millis(2);
/// How long senders may take to hear that an inbox is closed.
const CLOSE_LINGER: Duration = Duration::from_millis(500);
/// After so much silence a connection counts as interrupted.
const MOST_SILENCE: Duration = Duration::from_millis(HEARTBEAT_TIMEOUT.as_millis() as u64 * 2 / 3);
/// After so much silence a process counts as gone though its host is there.
const MOST_STALL: Duration = Duration::from_secs(30);
/// Sessions that are over and are remembered, so that a sender that comes back is told its fate.
const MAX_REMEMBERED_SESSIONS: usize = 1024;
/// Most senders of an inbox.
const MAX_SESSIONS: usize = 1024;
/// Where those listen who are not told where: any port of this host.
const LOOPBACK_ADDRESS: &str = "tcp://127.0.0.1:0";

/// Listeners of inboxes that are closed, until their senders know.
#[derive(Default)]
pub(super) struct RetiringListeners(Mutex<Vec<Arc<ZeroMqListener>>>);

/// A socket that an inbox listens at.
pub(super) struct ZeroMqListener {
    state: Mutex<ZeroMqListenerState>,
    inbox: Arc<InboxShared>,
    transport: Transport,
    /// How long a connection may be gone before its session is over.
    session_lease: Duration,
    largest_tensor_bytes: usize,
    timer: Timer,
    token: OnceLock<ReactorToken>,
    reactor: ReactorHandle,
    zeromq: Arc<ZeroMqContext>,
    retiring: Weak<RetiringListeners>,
    zap_domain: Option<String>,
    /// By when it ends, where its inbox is closed.
    retire_deadline: Mutex<Option<Deadline>>,
    weak_self: Weak<Self>,
}

struct ZeroMqListenerState {
    monitored: MonitoredSocket,
    sessions: HashMap<u128, Arc<ZeroMqIncoming>>,
    /// Which session a connection belongs to, by the identity that ZeroMQ gave it.
    lanes: HashMap<Vec<u8>, (u128, u16)>,
    /// The identity of a connection, by its descriptor.
    descriptors: HashMap<i32, Vec<u8>>,
    /// The sessions of connections, by their descriptors, that are open and through which nothing
    /// comes.
    silent_sessions: HashMap<i32, u128>,
    /// What happened to connections, and was not acted on yet.
    pending_events: Vec<ConnectionEvent>,
    /// How far sessions were that are over.
    ended_sessions: VecDeque<(u128, ReceiverProgress)>,
}

impl ZeroMqListener {
    /// Binds a socket and has the reactor watch it.
    pub(super) fn bind(
        listen: &Listen,
        inbox: &Arc<InboxShared>,
        options: &InboxOptions,
        zeromq: Arc<ZeroMqContext>,
        endpoint: &TransportContext,
        retiring: &Arc<RetiringListeners>,
    ) -> Result<OpenedListener> {
        let (transport, reactor) = (listen.transport, &endpoint.reactor);
        let InboxOptions { session_lease, largest_tensor_bytes, .. } = *options;
        let fail = |error| zmq_error("a socket of ZeroMQ", error);
        let remote = transport == Transport::ZMQ_TCP;
        let socket_address = if remote {
            let told = listen.socket_address.as_deref().unwrap_or(LOOPBACK_ADDRESS);
            check_socket_address(told, "tcp://")?;
            told.to_owned()
        } else {
            local_address(inbox, endpoint.endpoint_id)
        };
        let mut socket = zeromq.context.socket(zmq::ROUTER).map_err(fail)?;
        configure_socket(&mut socket, &socket_address).map_err(fail)?;
        socket.set_router_mandatory(true).map_err(fail)?;
        // What we say is short; who does not listen to so much of it is not there.
        socket.set_sndhwm(4096).map_err(fail)?;
        // With room for what encryption adds.
        let frame = largest_tensor_bytes.max(MAX_HEADER).saturating_add(256);
        socket.set_maxmsgsize(i64::try_from(frame).unwrap_or(i64::MAX)).map_err(fail)?;
        let mut zap_domain = None;
        if let Security::Curve { allowed } = &listen.security
            && remote
        {
            let keys = endpoint.keys.as_ref().ok_or_else(|| {
                Error::usage("an inbox that is encrypted needs an endpoint with keys")
            })?;
            let allowed = allowed.iter().map(|key| key_from_text(key)).collect::<Result<_>>()?;
            let name = format!("{}/{}", inbox.name, Deadline::now().nanoseconds());
            zeromq.restrict_domain(reactor, &name, allowed)?;
            socket.set_curve_server(true).map_err(fail)?;
            socket.set_curve_secretkey(&keys.secret).map_err(fail)?;
            socket.set_zap_domain(&name).map_err(fail)?;
            zap_domain = Some(name);
        }
        let monitored = MonitoredSocket::new(&zeromq.context, socket)?;
        bind_with_retry(&monitored.socket, &socket_address)
            .map_err(|error| zmq_error(&socket_address, error))?;
        let bound = monitored.socket.get_last_endpoint().map_err(fail)?.unwrap_or_default();
        let socket_address = if remote {
            advertised_address(&bound, listen.advertise.as_deref())?
        } else {
            socket_address
        };
        let public_key = zap_domain.as_ref().and(endpoint.keys.as_ref());
        let public_key = public_key.map(CurveKeys::public_key);
        let state = ZeroMqListenerState {
            monitored,
            sessions: HashMap::new(),
            lanes: HashMap::new(),
            descriptors: HashMap::new(),
            silent_sessions: HashMap::new(),
            pending_events: Vec::new(),
            ended_sessions: VecDeque::new(),
        };
        let timer = Timer::new()?;
        let listener = Arc::new_cyclic(|weak_self| Self {
            state: Mutex::new(state),
            inbox: Arc::clone(inbox),
            transport,
            session_lease,
            largest_tensor_bytes,
            timer,
            token: OnceLock::new(),
            reactor: reactor.clone(),
            zeromq,
            retiring: Arc::downgrade(retiring),
            zap_domain,
            retire_deadline: Mutex::default(),
            weak_self: weak_self.clone(),
        });
        let source: Arc<dyn EventSource> = Arc::<Self>::clone(&listener);
        let source = Arc::downgrade(&source);
        let token = reactor.register_source(&listener.timer, Weak::clone(&source))?;
        listener.token.set(token).ok();
        lock(&listener.state).monitored.watch_events(reactor, &source)?;
        // What came before it was watched is not announced again.
        listener.drain_socket();
        Ok(OpenedListener { listener, address: ListenAddress { socket_address, public_key } })
    }

    /// Reads what is there.
    fn drain_socket(&self) {
        let mut state = lock(&self.state);
        loop {
            let events = state.monitored.take_events();
            let happened = !events.is_empty();
            state.pending_events.extend(events);
            // What a connection brought before it broke is read before that is believed.
            loop {
                match receive_frames(&state.monitored.socket) {
                    Ok(frames) => self.handle_frames(&mut state, frames),
                    Err(zmq::Error::EINTR) => {}
                    Err(_) => break,
                }
            }
            self.apply_connection_events(&mut state);
            if !happened {
                return;
            }
        }
    }

    /// Acts on what happened to connections.
    fn apply_connection_events(&self, state: &mut ZeroMqListenerState) {
        for event in std::mem::take(&mut state.pending_events) {
            if let ConnectionEvent::Disconnected(descriptor) = event {
                state.silent_sessions.remove(&descriptor);
                self.drop_connection(state, descriptor);
            }
        }
    }

    /// Acts on the end of a connection that had this descriptor before the one that has it now.
    fn apply_earlier_disconnect(
        &self,
        state: &mut ZeroMqListenerState,
        descriptor: Option<i32>,
        identity: &[u8],
    ) {
        let Some(descriptor) = descriptor else { return };
        let ended = state
            .pending_events
            .iter()
            .position(|it| *it == ConnectionEvent::Disconnected(descriptor));
        let other = state.descriptors.get(&descriptor).is_some_and(|known| known != identity);
        if let Some(ended) = ended.filter(|_| other) {
            state.pending_events.remove(ended);
            self.drop_connection(state, descriptor);
        }
    }

    fn handle_frames(&self, state: &mut ZeroMqListenerState, frames: Vec<zmq::Message>) {
        let mut frames = frames.into_iter();
        let Some(identity) = frames.next().map(|identity| identity.to_vec()) else { return };
        let Some(mut first) = frames.next() else { return };
        if !ControlFrame::is_control(&first) {
            // From somebody who did not say hello: dropped.
            let Some((session, lane)) = state.lanes.get(&identity) else { return };
            let Some(session) = state.sessions.get(session).cloned() else { return };
            session.mark_lane_heard(*lane);
            if let Err(error) = session.accept_message(&first, frames) {
                self.end_session(state, &session, error);
            }
            return;
        }
        let descriptor = first.gets("__fd").and_then(|text| text.parse().ok());
        match ControlFrame::from_bytes(&first) {
            Ok(ControlFrame::Hello(hello)) => {
                // The number of its descriptor may have been that of one which broke before.
                let events = state.monitored.take_events();
                state.pending_events.extend(events);
                self.apply_earlier_disconnect(state, descriptor, &identity);
                self.answer_hello(state, &identity, descriptor, &hello);
            }
            Ok(ControlFrame::Bye { last }) => {
                let session =
                    state.lanes.get(&identity).and_then(|lane| state.sessions.get(&lane.0));
                if let Some(session) = session {
                    session.mark_last_sequence(last);
                    self.report_progress_soon();
                }
            }
            Ok(ControlFrame::Heartbeat) => {
                let lane = state.lanes.get(&identity);
                if let Some((session, lane)) = lane
                    && let Some(session) = state.sessions.get(session)
                {
                    session.mark_lane_heard(*lane);
                }
            }
            // Said by receivers.
            Ok(_) => {}
            Err(error) => send_refusal(state, &identity, &error, None),
        }
    }

    fn answer_hello(
        &self,
        state: &mut ZeroMqListenerState,
        identity: &[u8],
        descriptor: Option<i32>,
        hello: &Hello,
    ) {
        match self.admit_sender(state, identity, descriptor, hello) {
            Ok(welcome) => {
                // Where it is gone already, the monitor says so next.
                send_control(state, identity, &welcome).ok();
            }
            Err((error, progress)) => send_refusal(state, identity, &error, progress),
        }
    }

    fn admit_sender(
        &self,
        state: &mut ZeroMqListenerState,
        identity: &[u8],
        descriptor: Option<i32>,
        hello: &Hello,
    ) -> Result<ControlFrame, (Error, Option<ReceiverProgress>)> {
        let refused = |error: Error| (error, None);
        let Some(descriptor) = descriptor else {
            return Err(refused(Error::unsupported("a ZeroMQ that is too old")));
        };
        if self.transport == Transport::ZMQ_IPC && !is_ours(descriptor) {
            return Err(refused(Error::usage("it belongs to another user")));
        }
        if hello.inbox != self.inbox.name {
            let name = &self.inbox.name;
            return Err(refused(Error::not_found(format!("here is inbox \"{name}\""))));
        }
        if hello.lanes > MAX_LANES {
            return Err(refused(Error::usage(format!("more than {MAX_LANES} lanes"))));
        }
        if let Some(known) = state.ended_sessions.iter().find(|over| over.0 == hello.session) {
            return Err((Error::lost("it was away for too long"), Some(known.1.clone())));
        }
        let session = match state.sessions.get(&hello.session) {
            Some(session) if session.is_closed() => {
                return Err((inbox_closed(), Some(session.current_progress())));
            }
            Some(session) => Arc::clone(session),
            None if hello.resume => {
                return Err(refused(Error::lost("the receiver started anew")));
            }
            None if state.sessions.len() >= MAX_SESSIONS => {
                return Err(refused(Error::full(format!("{MAX_SESSIONS} senders already"))));
            }
            None => {
                let session = ZeroMqIncoming::new(hello, self);
                self.inbox
                    .add_channel(Arc::<ZeroMqIncoming>::clone(&session) as Arc<dyn IncomingChannel>)
                    .map_err(refused)?;
                state.sessions.insert(hello.session, Arc::clone(&session));
                session
            }
        };
        let before = state.lanes.insert(identity.to_vec(), (hello.session, hello.lane));
        if let Some((other, lane)) = before.filter(|before| before.0 != hello.session) {
            // Whatever it was a connection of, it is one no more.
            self.interrupt_session(state, other, lane, identity);
        }
        state.silent_sessions.remove(&descriptor);
        state.descriptors.insert(descriptor, identity.to_vec());
        let progress = session.attach_lane(hello.lane, identity);
        self.timer.schedule_within(HEARTBEAT_INTERVAL);
        let lease_ms = u32::try_from(self.session_lease.as_millis()).unwrap_or(u32::MAX);
        let largest_tensor_bytes = self.largest_tensor_bytes as u64;
        Ok(ControlFrame::Welcome {
            depth: self.inbox.depth,
            lease_ms,
            largest_tensor_bytes,
            progress,
        })
    }

    fn drop_connection(&self, state: &mut ZeroMqListenerState, descriptor: i32) {
        let Some(identity) = state.descriptors.remove(&descriptor) else { return };
        if let Some((session, lane)) = state.lanes.remove(&identity) {
            self.interrupt_session(state, session, lane, &identity);
        }
    }

    /// A session has a connection less.
    fn interrupt_session(
        &self,
        state: &mut ZeroMqListenerState,
        session: u128,
        lane: u16,
        identity: &[u8],
    ) {
        let Some(session) = state.sessions.get(&session).cloned() else { return };
        if !session.detach_lane(lane, identity) {
            return;
        }
        match self.transport {
            // Nothing can come between processes of a host: it is gone.
            Transport::ZMQ_IPC => {
                self.forget_session(state, &session, || {
                    Some(Error::lost("the sender's process is gone"))
                });
            }
            _ => self.timer.schedule_within(self.session_lease),
        }
    }

    /// Ends a session whose sender breaks the rules.
    fn end_session(
        &self,
        state: &mut ZeroMqListenerState,
        session: &Arc<ZeroMqIncoming>,
        error: Error,
    ) {
        let reason = error.to_string();
        let identities = session.lane_identities();
        // Nothing is taken any more, so that how far it is stays true.
        session.end_session(Some(error));
        for identity in identities {
            send_refusal(
                state,
                &identity,
                &Error::invalid(reason.clone()),
                Some(session.current_progress()),
            );
        }
        self.forget_session(state, session, || None);
    }

    /// Forgets a session, and remembers how far it was.
    fn forget_session(
        &self,
        state: &mut ZeroMqListenerState,
        session: &Arc<ZeroMqIncoming>,
        reason: impl FnOnce() -> Option<Error>,
    ) {
        session.end_session(reason());
        state.sessions.remove(&session.id);
        state.lanes.retain(|_, lane| lane.0 != session.id);
        state.silent_sessions.retain(|_, silent| *silent != session.id);
        let progress = session.current_progress();
        state.ended_sessions.push_back((session.id, progress));
        if state.ended_sessions.len() > MAX_REMEMBERED_SESSIONS {
            state.ended_sessions.pop_front();
        }
    }

    /// Tells a session's sender how far we are.
    fn report_progress(&self, session: &ZeroMqIncoming) {
        let mut state = lock(&self.state);
        if let Some((identity, progress)) = session.take_unreported_progress(false) {
            send_control(&mut state, &identity, &ControlFrame::Progress(progress)).ok();
        }
        drop(state);
        // Sending may have taken the announcement of something to read.
        self.drain_socket();
    }

    /// The same for all senders, soon.
    fn report_progress_soon(&self) {
        self.timer.schedule_within(PROGRESS_DELAY);
    }

    /// Tells a session's sender that the inbox is closed.
    fn report_closed(&self, session: &ZeroMqIncoming) {
        let mut state = lock(&self.state);
        for identity in session.lane_identities() {
            let progress = Some(session.current_progress());
            send_refusal(&mut state, &identity, &inbox_closed(), progress);
        }
        drop(state);
        // Sending may have taken the announcement of something to read.
        self.drain_socket();
    }

    /// What has to be done now and then.
    ///
    /// `late` is for how long this process did not look: leases are not counted meanwhile, as what
    /// the others said then is still to be read.
    fn handle_timer(&self, late: Duration) {
        let mut state = lock(&self.state);
        let sessions: Vec<_> = state.sessions.values().cloned().collect();
        let mut next = None;
        let remote = self.transport == Transport::ZMQ_TCP;
        if remote {
            self.drop_silent_connections(&mut state);
        }
        for session in sessions {
            let quiet = session.since_reported() >= HEARTBEAT_INTERVAL && remote;
            if let Some((identity, progress)) = session.take_unreported_progress(quiet) {
                send_control(&mut state, &identity, &ControlFrame::Progress(progress)).ok();
            }
            session.renew_trust();
            session.extend_lease(late);
            if Self::is_merely_slow(&state, session.id) {
                session.restart_lease();
            }
            let away = session.away_duration();
            if away.is_some_and(|away| away >= self.session_lease) {
                let gone = || Some(Error::lost("the sender is out of reach"));
                self.forget_session(&mut state, &session, gone);
            } else if session.is_over() {
                for identity in session.lane_identities() {
                    send_control(&mut state, &identity, &ControlFrame::Over).ok();
                }
                self.forget_session(&mut state, &session, || None);
            } else {
                let soon = away.map_or(HEARTBEAT_INTERVAL, |away| {
                    (self.session_lease - away).min(HEARTBEAT_INTERVAL)
                });
                next = Some(next.map_or(soon, |next: Duration| next.min(soon)));
            }
        }
        drop(state);
        if let Some(next) = next.filter(|_| remote) {
            self.timer.schedule_within(next + Duration::from_millis(1));
        }
        if let Some(end) = *lock(&self.retire_deadline) {
            self.timer.schedule_within(end.remaining() + Duration::from_millis(1));
        }
        self.release_if_retired();
    }

    /// Counts connections as gone through which nothing comes any more, not even signs of life.
    fn drop_silent_connections(&self, state: &mut ZeroMqListenerState) {
        let is_silent = |silence: ConnectionSilence| silence.of_process > MOST_SILENCE;
        let silent = |descriptor: &&i32| connection_silence(**descriptor).is_none_or(is_silent);
        let silent: Vec<i32> = state.descriptors.keys().filter(silent).copied().collect();
        for descriptor in silent {
            let identity = state.descriptors.get(&descriptor);
            if let Some(&(session, _)) = identity.and_then(|identity| state.lanes.get(identity)) {
                state.silent_sessions.insert(descriptor, session);
            }
            self.drop_connection(state, descriptor);
        }
    }

    /// Whether a session's sender says nothing because it is slow: nobody closed its connection, and
    /// its host acknowledges what it is sent. One that is gone has its connection closed by its
    /// kernel, and a host that is gone acknowledges nothing.
    fn is_merely_slow(state: &ZeroMqListenerState, session: u128) -> bool {
        let own = state.silent_sessions.iter().filter(|(_, silent)| **silent == session);
        own.filter_map(|(&descriptor, _)| connection_silence(descriptor))
            .any(|silence| silence.of_host <= MOST_SILENCE && silence.of_process <= MOST_STALL)
    }

    /// Lets go of itself where it is retired and not needed any more.
    fn release_if_retired(&self) {
        let Some(end) = *lock(&self.retire_deadline) else { return };
        let needed = !lock(&self.state).descriptors.is_empty() && !end.has_passed();
        let Some(listeners) = self.retiring.upgrade().filter(|_| !needed) else { return };
        let mut retiring = lock(&listeners.0);
        let own = retiring.iter().position(|other| std::ptr::eq(&raw const **other, self));
        let own = own.map(|own| retiring.swap_remove(own));
        drop(retiring);
        drop(own);
    }
}

fn send_control(
    state: &mut ZeroMqListenerState,
    identity: &[u8],
    control: &ControlFrame,
) -> zmq::Result<()> {
    let frames = [identity.to_vec(), control.to_bytes()];
    state.monitored.socket.send_multipart(frames, zmq::DONTWAIT)
}

fn send_refusal(
    state: &mut ZeroMqListenerState,
    identity: &[u8],
    error: &Error,
    progress: Option<ReceiverProgress>,
) {
    let control = ControlFrame::Refused { kind: error.kind(), progress, reason: error.to_string() };
    // Where it is gone already there is nobody to tell.
    send_control(state, identity, &control).ok();
}

impl InboxListener for ZeroMqListener {
    fn retire_when_drained(self: Arc<Self>) {
        // Closed only when they have gone by themselves: libzmq forgets what a connection brought
        // when the other end closes it, and the last word would be lost.
        let known = lock(&self.state).descriptors.is_empty();
        if known {
            return;
        }
        *lock(&self.retire_deadline) = Some(Deadline::after(CLOSE_LINGER));
        self.timer.schedule_within(CLOSE_LINGER + Duration::from_millis(1));
        if let Some(retiring) = self.retiring.upgrade() {
            lock(&retiring.0).push(self);
        }
    }
}

impl EventSource for ZeroMqListener {
    fn on_readable(&self) {
        // What was said comes first: it may be a sign of life of one whose lease is over.
        self.drain_socket();
        if let Some(late) = self.timer.take_lateness() {
            self.handle_timer(late);
            self.drain_socket();
        }
        self.release_if_retired();
    }
}

impl Drop for ZeroMqListener {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if let Some(token) = self.token.get() {
            self.reactor.deregister_source(&self.timer, *token);
        }
        state.monitored.stop_watching(&self.reactor);
        if let Some(domain) = &self.zap_domain {
            self.zeromq.unrestrict_domain(domain);
        }
    }
}
