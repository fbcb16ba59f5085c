//! What an inbox listens with: it accepts senders, hears them, and notices when they go.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use tessera_core::{Error, Result, lock};

use super::control_frame::{ControlFrame, Hello, MAX_LANES, ReceiverProgress};
use super::incoming::{NetworkIncoming, SessionOwner, SessionPlace};
use super::link::{ConnectionId, ConnectionSilence, LinkListener};
use super::timer::Timer;
use super::{HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, silence_limit};
use crate::channel::{IncomingChannel, inbox_closed};
use crate::inbox_registry::{InboxListener, InboxShared};
use crate::options::InboxOptions;
use crate::reactor::{EventSource, ReactorHandle, ReactorToken};
use crate::transport::id::Transport;
use crate::wait::Deadline;

/// How soon a sender hears of progress while the receiver is busy with other things.
const PROGRESS_DELAY: Duration = Duration::from_millis(2);
/// How long senders may take to hear that an inbox is closed.
pub(in crate::transport) const CLOSE_LINGER: Duration = Duration::from_millis(500);
/// After so much silence a connection counts as interrupted.
const MOST_SILENCE: Duration = Duration::from_millis(HEARTBEAT_TIMEOUT.as_millis() as u64 * 2 / 3);
/// After so much silence a process counts as gone though its host is there.
const MOST_STALL: Duration = Duration::from_secs(30);
/// Sessions that are over and are remembered, so that a sender that comes back hears its fate.
const MAX_REMEMBERED_SESSIONS: usize = 1024;
/// Most senders of an inbox.
const MAX_SESSIONS: usize = 1024;
/// Listeners of inboxes that are closed, until their senders know.
#[derive(Default)]
pub(in crate::transport) struct RetiringListeners(Mutex<Vec<Arc<NetworkListener>>>);

/// What an inbox listens with.
pub(in crate::transport) struct NetworkListener {
    state: Mutex<ListenerState>,
    inbox: Arc<InboxShared>,
    transport: Transport,
    is_within_host: bool,
    /// How long a connection may be gone before its session is over.
    session_lease: Duration,
    largest_tensor_bytes: usize,
    timer: Timer,
    token: OnceLock<ReactorToken>,
    reactor: ReactorHandle,
    retiring: Weak<RetiringListeners>,
    /// By when it ends, where its inbox is closed.
    retire_deadline: Mutex<Option<Deadline>>,
    weak_self: Weak<Self>,
}

struct ListenerState {
    links: Box<dyn LinkListener>,
    sessions: HashMap<u128, Arc<NetworkIncoming>>,
    /// Which session a connection belongs to, and which of its lanes it is.
    connections: HashMap<ConnectionId, (u128, u16)>,
    /// The sessions of connections that are open and through which nothing comes.
    silent_sessions: HashMap<ConnectionId, u128>,
    /// How far sessions were that are over.
    ended_sessions: VecDeque<(u128, ReceiverProgress)>,
}

/// Whose connections these are, and who comes after them.
pub(in crate::transport) struct ListenerParts<'a> {
    pub(in crate::transport) inbox: &'a Arc<InboxShared>,
    pub(in crate::transport) options: &'a InboxOptions,
    pub(in crate::transport) transport: Transport,
    /// Whether senders are on this host.
    pub(in crate::transport) is_within_host: bool,
    pub(in crate::transport) reactor: &'a ReactorHandle,
    pub(in crate::transport) retiring: &'a Arc<RetiringListeners>,
}

impl NetworkListener {
    /// Has the reactor watch connections of an inbox.
    pub(in crate::transport) fn start(
        links: Box<dyn LinkListener>,
        parts: &ListenerParts<'_>,
    ) -> Result<Arc<Self>> {
        let state = ListenerState {
            links,
            sessions: HashMap::new(),
            connections: HashMap::new(),
            silent_sessions: HashMap::new(),
            ended_sessions: VecDeque::new(),
        };
        let timer = Timer::new()?;
        let listener = Arc::new_cyclic(|weak_self| Self {
            state: Mutex::new(state),
            inbox: Arc::clone(parts.inbox),
            transport: parts.transport,
            is_within_host: parts.is_within_host,
            session_lease: parts.options.session_lease,
            largest_tensor_bytes: parts.options.largest_tensor_bytes,
            timer,
            token: OnceLock::new(),
            reactor: parts.reactor.clone(),
            retiring: Arc::downgrade(parts.retiring),
            retire_deadline: Mutex::default(),
            weak_self: weak_self.clone(),
        });
        let source: Arc<dyn EventSource> = Arc::<Self>::clone(&listener);
        let source = Arc::downgrade(&source);
        let token = parts.reactor.register_source(&listener.timer, Weak::clone(&source))?;
        listener.token.set(token).ok();
        lock(&listener.state).links.watch_events(parts.reactor, &source)?;
        // What came before it was watched is not announced again.
        listener.drain_connections();
        Ok(listener)
    }

    /// Reads what is there.
    fn drain_connections(&self) {
        let mut state = lock(&self.state);
        loop {
            let happened = state.links.notice_events();
            // What a connection brought before it broke is read before that is believed.
            while let Some((connection, frames)) = state.links.take_message() {
                self.handle_frames(&mut state, connection, frames);
            }
            for connection in state.links.take_ended() {
                state.silent_sessions.remove(&connection);
                self.drop_connection(&mut state, connection);
            }
            if !happened {
                return;
            }
        }
    }

    fn handle_frames(&self, state: &mut ListenerState, from: ConnectionId, frames: Vec<Bytes>) {
        let mut frames = frames.into_iter();
        let Some(first) = frames.next() else { return };
        if !ControlFrame::is_control(&first) {
            // From somebody who did not say hello: dropped.
            let Some((session, lane)) = state.connections.get(&from) else { return };
            let Some(session) = state.sessions.get(session).cloned() else { return };
            session.mark_lane_heard(*lane);
            if let Err(error) = session.accept_message(&first, frames) {
                self.end_session(state, &session, error);
            }
            return;
        }
        match ControlFrame::from_bytes(&first) {
            Ok(ControlFrame::Hello(hello)) => self.answer_hello(state, from, &hello),
            Ok(ControlFrame::Bye { last }) => {
                let session = state.connections.get(&from);
                let session = session.and_then(|lane| state.sessions.get(&lane.0));
                if let Some(session) = session {
                    session.mark_last_sequence(last);
                    self.report_progress_soon();
                }
            }
            Ok(ControlFrame::Heartbeat) => {
                if let Some((session, lane)) = state.connections.get(&from)
                    && let Some(session) = state.sessions.get(session)
                {
                    session.mark_lane_heard(*lane);
                }
            }
            // Said by receivers.
            Ok(_) => {}
            Err(error) => send_refusal(state, from, &error, None),
        }
    }

    fn answer_hello(&self, state: &mut ListenerState, from: ConnectionId, hello: &Hello) {
        match self.admit_sender(state, from, hello) {
            Ok(welcome) => state.links.send_frame(from, welcome.to_bytes()),
            Err((error, progress)) => send_refusal(state, from, &error, progress),
        }
    }

    fn admit_sender(
        &self,
        state: &mut ListenerState,
        from: ConnectionId,
        hello: &Hello,
    ) -> Result<ControlFrame, (Error, Option<ReceiverProgress>)> {
        let refused = |error: Error| (error, None);
        state.links.check_peer(from).map_err(refused)?;
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
                let place = SessionPlace {
                    owner: self.weak_self.clone(),
                    transport: self.transport,
                    is_within_host: self.is_within_host,
                    depth: self.inbox.depth,
                };
                let session = NetworkIncoming::new(hello, place);
                self.inbox
                    .add_channel(Arc::<NetworkIncoming>::clone(&session) as Arc<dyn IncomingChannel>)
                    .map_err(refused)?;
                state.sessions.insert(hello.session, Arc::clone(&session));
                session
            }
        };
        let before = state.connections.insert(from, (hello.session, hello.lane));
        if let Some((other, lane)) = before.filter(|before| before.0 != hello.session) {
            // Whatever it was a connection of, it is one no more.
            self.interrupt_session(state, other, lane, from);
        }
        state.silent_sessions.remove(&from);
        let progress = session.attach_lane(hello.lane, from);
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

    fn drop_connection(&self, state: &mut ListenerState, connection: ConnectionId) {
        if let Some((session, lane)) = state.connections.remove(&connection) {
            self.interrupt_session(state, session, lane, connection);
        }
    }

    /// A session has a connection less.
    fn interrupt_session(
        &self,
        state: &mut ListenerState,
        session: u128,
        lane: u16,
        connection: ConnectionId,
    ) {
        let Some(session) = state.sessions.get(&session).cloned() else { return };
        if !session.detach_lane(lane, connection) {
            return;
        }
        if self.is_within_host {
            // Nothing can come between processes of a host: it is gone.
            let gone = || Some(Error::lost("the sender's process is gone"));
            self.forget_session(state, &session, gone);
        } else {
            self.timer.schedule_within(self.session_lease);
        }
    }

    /// Ends a session whose sender breaks the rules.
    fn end_session(&self, state: &mut ListenerState, session: &Arc<NetworkIncoming>, error: Error) {
        let reason = error.to_string();
        let connections = session.connections();
        // Nothing is taken any more, so that how far it is stays true.
        session.end_session(Some(error));
        for connection in connections {
            send_refusal(
                state,
                connection,
                &Error::invalid(reason.clone()),
                Some(session.current_progress()),
            );
        }
        self.forget_session(state, session, || None);
    }

    /// Forgets a session, and remembers how far it was.
    fn forget_session(
        &self,
        state: &mut ListenerState,
        session: &Arc<NetworkIncoming>,
        reason: impl FnOnce() -> Option<Error>,
    ) {
        session.end_session(reason());
        state.sessions.remove(&session.id);
        state.connections.retain(|_, lane| lane.0 != session.id);
        state.silent_sessions.retain(|_, silent| *silent != session.id);
        let progress = session.current_progress();
        state.ended_sessions.push_back((session.id, progress));
        if state.ended_sessions.len() > MAX_REMEMBERED_SESSIONS {
            state.ended_sessions.pop_front();
        }
    }

    /// What has to be done now and then.
    ///
    /// `late` is for how long this process did not look: leases are not counted meanwhile, as what
    /// the others said then is still to be read.
    fn handle_timer(&self, late: Duration) {
        let mut state = lock(&self.state);
        let sessions: Vec<_> = state.sessions.values().cloned().collect();
        let mut next = None;
        let remote = !self.is_within_host;
        if remote {
            self.drop_silent_connections(&mut state);
        }
        for session in sessions {
            let quiet = session.since_reported() >= HEARTBEAT_INTERVAL && remote;
            if let Some((connection, progress)) = session.take_unreported_progress(quiet) {
                send_control(&mut state, connection, &ControlFrame::Progress(progress));
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
                for connection in session.connections() {
                    send_control(&mut state, connection, &ControlFrame::Over);
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
    fn drop_silent_connections(&self, state: &mut ListenerState) {
        let is_silent = |silence: ConnectionSilence| {
            silence.of_process > silence_limit(MOST_SILENCE, silence.round_trip)
        };
        let silent =
            |connection: &ConnectionId| state.links.silence_of(*connection).is_none_or(is_silent);
        let silent: Vec<_> = state.connections.keys().copied().filter(silent).collect();
        for connection in silent {
            if let Some(&(session, _)) = state.connections.get(&connection) {
                state.silent_sessions.insert(connection, session);
            }
            self.drop_connection(state, connection);
        }
    }

    /// Whether a session's sender says nothing because it is slow: nobody closed its connection, and
    /// its host acknowledges what it is sent. One that is gone has its connection closed by its
    /// kernel, and a host that is gone acknowledges nothing.
    fn is_merely_slow(state: &ListenerState, session: u128) -> bool {
        let own = state.silent_sessions.iter().filter(|(_, silent)| **silent == session);
        own.filter_map(|(&connection, _)| state.links.silence_of(connection)).any(|silence| {
            silence.of_host <= silence_limit(MOST_SILENCE, silence.round_trip)
                && silence.of_process <= MOST_STALL
        })
    }

    /// Lets go of itself where it is retired and not needed any more.
    fn release_if_retired(&self) {
        let Some(end) = *lock(&self.retire_deadline) else { return };
        let needed = !lock(&self.state).connections.is_empty() && !end.has_passed();
        let Some(listeners) = self.retiring.upgrade().filter(|_| !needed) else { return };
        let mut retiring = lock(&listeners.0);
        let own = retiring.iter().position(|other| std::ptr::eq(&raw const **other, self));
        let own = own.map(|own| retiring.swap_remove(own));
        drop(retiring);
        drop(own);
    }
}

fn send_control(state: &mut ListenerState, to: ConnectionId, control: &ControlFrame) {
    state.links.send_frame(to, control.to_bytes());
}

fn send_refusal(
    state: &mut ListenerState,
    to: ConnectionId,
    error: &Error,
    progress: Option<ReceiverProgress>,
) {
    let control = ControlFrame::Refused { kind: error.kind(), progress, reason: error.to_string() };
    send_control(state, to, &control);
}

impl SessionOwner for NetworkListener {
    fn notify_inbox(&self) {
        self.inbox.notifier.notify();
    }

    fn report_progress(&self, session: &NetworkIncoming) {
        let mut state = lock(&self.state);
        if let Some((connection, progress)) = session.take_unreported_progress(false) {
            send_control(&mut state, connection, &ControlFrame::Progress(progress));
        }
        drop(state);
        // Sending may have taken the announcement of something to read.
        self.drain_connections();
    }

    fn report_progress_soon(&self) {
        self.timer.schedule_within(PROGRESS_DELAY);
    }

    fn report_closed(&self, session: &NetworkIncoming) {
        let mut state = lock(&self.state);
        for connection in session.connections() {
            let progress = Some(session.current_progress());
            send_refusal(&mut state, connection, &inbox_closed(), progress);
        }
        drop(state);
        // Sending may have taken the announcement of something to read.
        self.drain_connections();
    }
}

impl InboxListener for NetworkListener {
    fn retire_when_drained(self: Arc<Self>) {
        // Closed only when they have gone by themselves: what a connection brought may be forgotten
        // when the other end closes it (by libzmq), and the last word would be lost.
        let known = lock(&self.state).connections.is_empty();
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

impl EventSource for NetworkListener {
    fn on_readable(&self) {
        // What was said comes first: it may be a sign of life of one whose lease is over.
        self.drain_connections();
        if let Some(late) = self.timer.take_lateness() {
            self.handle_timer(late);
            self.drain_connections();
        }
        self.release_if_retired();
    }
}

impl Drop for NetworkListener {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if let Some(token) = self.token.get() {
            self.reactor.deregister_source(&self.timer, *token);
        }
        state.links.stop_watching(&self.reactor);
    }
}
