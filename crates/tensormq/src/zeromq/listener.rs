//! A socket that an inbox listens at: it lets senders in, hears them, and notices when they go.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tessera_core::{Error, Result};

use super::frame::silence_of;
use super::incoming::ZmqIncoming;
use super::monitor::{Happened, Monitored};
use super::timer::Timer;
use super::wire::{Control, Hello, Progress};
use super::{
    Keys, LIFE, Listen, SILENCE, Security, check_endpoint, key_from_text, prepare, receive_frames,
    zmq_error,
};
use crate::address::Transport;
use crate::channel::Incoming;
use crate::courier::Inner;
use crate::driver::{Source, Token};
use crate::inbox::InboxShared;
use crate::layout::MAX_HEADER;
use crate::sync::{Mutex, lock};
use crate::unix::is_own_user;
use crate::wait::Deadline;

/// How soon a sender is told of progress while the receiver is busy with other things.
const PROGRESS: Duration = Duration::from_millis(2);
/// How long senders may take to hear that an inbox is closed.
const RETIREMENT: Duration = Duration::from_millis(500);
/// Sessions that are over and are remembered, so that a sender that comes back is told its fate.
const REMEMBERED: usize = 1024;
/// Most senders of an inbox.
const MOST_SESSIONS: usize = 1024;
/// Most connections of a sender.
pub(crate) const MOST_LANES: u16 = 16;

/// A socket that an inbox listens at.
pub(crate) struct ZmqListener {
    state: Mutex<State>,
    pub(super) inbox: Arc<InboxShared>,
    pub(super) transport: Transport,
    /// How long a connection may be gone before its session is over.
    lease: Duration,
    largest: usize,
    timer: Timer,
    token: OnceLock<Token>,
    courier: Weak<Inner>,
    domain: Option<String>,
    /// By when it ends, where its inbox is closed.
    retired: Mutex<Option<Deadline>>,
    pub(super) own: Weak<Self>,
}

struct State {
    monitored: Monitored,
    sessions: HashMap<u128, Arc<ZmqIncoming>>,
    /// Which session a connection belongs to, by the identity that ZeroMQ gave it.
    lanes: HashMap<Vec<u8>, (u128, u16)>,
    /// The identity of a connection, by its descriptor.
    descriptors: HashMap<i32, Vec<u8>>,
    /// What happened to connections, and was not acted on yet.
    happened: Vec<Happened>,
    /// How far sessions were that are over.
    over: VecDeque<(u128, Progress)>,
}

/// A listener and where it is.
pub(crate) struct Listening {
    pub(crate) listener: Arc<ZmqListener>,
    pub(crate) endpoint: String,
    /// The key of the courier, where it is encrypted.
    pub(crate) key: Option<String>,
}

impl ZmqListener {
    pub(crate) fn bind(
        listen: &Listen,
        inbox: &Arc<InboxShared>,
        keys: Option<&Keys>,
        lease: Duration,
        largest: usize,
        courier: &Arc<Inner>,
    ) -> Result<Listening> {
        let network = courier.network()?;
        let remote = matches!(listen, Listen::Tcp { .. });
        let fail = |error| zmq_error("a socket of ZeroMQ", error);
        if let Listen::Tcp { endpoint, .. } = listen {
            check_endpoint(endpoint, "tcp://")?;
        }
        let endpoint = match listen {
            Listen::Ipc => {
                let uid = rustix::process::geteuid().as_raw();
                // The descriptor is unique in this process for as long as the inbox lives.
                let number = inbox.bell.as_fd().as_raw_fd();
                format!("ipc://@tessera/{uid}/zmq/{:016x}/{number}", courier.id)
            }
            Listen::Tcp { endpoint, .. } => endpoint.clone(),
        };
        let mut socket = network.context.socket(zmq::ROUTER).map_err(fail)?;
        prepare(&mut socket, &endpoint).map_err(fail)?;
        socket.set_router_mandatory(true).map_err(fail)?;
        // What we say is short; who does not listen to so much of it is not there.
        socket.set_sndhwm(4096).map_err(fail)?;
        // With room for what encryption adds.
        let frame = largest.max(MAX_HEADER).saturating_add(256);
        socket.set_maxmsgsize(i64::try_from(frame).unwrap_or(i64::MAX)).map_err(fail)?;
        let mut domain = None;
        if let Listen::Tcp { security: Security::Curve { allowed }, .. } = listen {
            let keys = keys.ok_or_else(|| {
                Error::usage("an inbox that is encrypted needs a courier with keys")
            })?;
            let allowed = allowed.iter().map(|key| key_from_text(key)).collect::<Result<_>>()?;
            let name = format!("{}/{}", inbox.name, Deadline::now().nanoseconds());
            network.guard(&courier.driver, &name, allowed)?;
            socket.set_curve_server(true).map_err(fail)?;
            socket.set_curve_secretkey(&keys.secret).map_err(fail)?;
            socket.set_zap_domain(&name).map_err(fail)?;
            domain = Some(name);
        }
        let monitored = Monitored::new(&network.context, socket)?;
        bind(&monitored.socket, &endpoint).map_err(|error| zmq_error(&endpoint, error))?;
        let bound = monitored.socket.get_last_endpoint().map_err(fail)?.unwrap_or_default();
        let endpoint = match listen {
            Listen::Ipc => endpoint,
            Listen::Tcp { advertise, .. } => advertised(&bound, advertise.as_deref())?,
        };
        let key = domain.as_ref().and(keys).map(Keys::public);
        let state = State {
            monitored,
            sessions: HashMap::new(),
            lanes: HashMap::new(),
            descriptors: HashMap::new(),
            happened: Vec::new(),
            over: VecDeque::new(),
        };
        let timer = Timer::new()?;
        let transport = if remote { Transport::ZmqTcp } else { Transport::ZmqIpc };
        let listener = Arc::new_cyclic(|own| Self {
            state: Mutex::new(state),
            inbox: Arc::clone(inbox),
            transport,
            lease,
            largest,
            timer,
            token: OnceLock::new(),
            courier: Arc::downgrade(courier),
            domain,
            retired: Mutex::default(),
            own: own.clone(),
        });
        let source: Arc<dyn Source> = Arc::<Self>::clone(&listener);
        let source = Arc::downgrade(&source);
        let token = courier.driver.add(&listener.timer, Weak::clone(&source))?;
        listener.token.set(token).ok();
        lock(&listener.state).monitored.watch(&courier.driver, &source)?;
        // What came before it was watched is not announced again.
        listener.work();
        Ok(Listening { listener, endpoint, key })
    }

    /// Reads what is there.
    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            let events = state.monitored.events();
            let happened = !events.is_empty();
            state.happened.extend(events);
            // What a connection brought before it broke is read before that is believed.
            loop {
                match receive_frames(&state.monitored.socket) {
                    Ok(frames) => self.receive(&mut state, frames),
                    Err(zmq::Error::EINTR) => {}
                    Err(_) => break,
                }
            }
            self.believe(&mut state);
            if !happened {
                return;
            }
        }
    }

    /// Acts on what happened to connections.
    fn believe(&self, state: &mut State) {
        for happened in std::mem::take(&mut state.happened) {
            if let Happened::Disconnected(descriptor) = happened {
                self.disconnected(state, descriptor);
            }
        }
    }

    /// Acts on the end of a connection that had this descriptor before the one that has it now.
    fn believe_of(&self, state: &mut State, descriptor: Option<i32>, identity: &[u8]) {
        let Some(descriptor) = descriptor else { return };
        let ended = state.happened.iter().position(|it| *it == Happened::Disconnected(descriptor));
        let other = state.descriptors.get(&descriptor).is_some_and(|known| known != identity);
        if let Some(ended) = ended.filter(|_| other) {
            state.happened.remove(ended);
            self.disconnected(state, descriptor);
        }
    }

    fn receive(&self, state: &mut State, frames: Vec<zmq::Message>) {
        let mut frames = frames.into_iter();
        let Some(identity) = frames.next().map(|identity| identity.to_vec()) else { return };
        let Some(mut first) = frames.next() else { return };
        if !Control::is_control(&first) {
            // From somebody who did not say hello: dropped.
            let Some((session, lane)) = state.lanes.get(&identity) else { return };
            let Some(session) = state.sessions.get(session).cloned() else { return };
            session.heard(*lane);
            if let Err(error) = session.accept(&first, frames) {
                self.end(state, &session, error);
            }
            return;
        }
        let descriptor = first.gets("__fd").and_then(|text| text.parse().ok());
        match Control::parse(&first) {
            Ok(Control::Hello(hello)) => {
                // The number of its descriptor may have been that of one which broke before.
                let events = state.monitored.events();
                state.happened.extend(events);
                self.believe_of(state, descriptor, &identity);
                self.hello(state, &identity, descriptor, &hello);
            }
            Ok(Control::Bye { last }) => {
                let session =
                    state.lanes.get(&identity).and_then(|lane| state.sessions.get(&lane.0));
                if let Some(session) = session {
                    session.bye(last);
                    self.tell_soon();
                }
            }
            Ok(Control::Alive) => {
                let lane = state.lanes.get(&identity);
                if let Some((session, lane)) = lane
                    && let Some(session) = state.sessions.get(session)
                {
                    session.heard(*lane);
                }
            }
            // Said by receivers.
            Ok(_) => {}
            Err(error) => refuse(state, &identity, &error, None),
        }
    }

    fn hello(&self, state: &mut State, identity: &[u8], descriptor: Option<i32>, hello: &Hello) {
        match self.admit(state, identity, descriptor, hello) {
            Ok(welcome) => {
                // Where it is gone already, the monitor says so next.
                send(state, identity, &welcome).ok();
            }
            Err((error, progress)) => refuse(state, identity, &error, progress),
        }
    }

    fn admit(
        &self,
        state: &mut State,
        identity: &[u8],
        descriptor: Option<i32>,
        hello: &Hello,
    ) -> Result<Control, (Error, Option<Progress>)> {
        let refused = |error: Error| (error, None);
        let Some(descriptor) = descriptor else {
            return Err(refused(Error::unsupported("a ZeroMQ that is too old")));
        };
        if self.transport == Transport::ZmqIpc && !is_ours(descriptor) {
            return Err(refused(Error::usage("it belongs to another user")));
        }
        if hello.inbox != self.inbox.name {
            let name = &self.inbox.name;
            return Err(refused(Error::not_found(format!("here is inbox \"{name}\""))));
        }
        if hello.lanes > MOST_LANES {
            return Err(refused(Error::usage(format!("more than {MOST_LANES} lanes"))));
        }
        if let Some(known) = state.over.iter().find(|over| over.0 == hello.session) {
            return Err((Error::lost("it was away for too long"), Some(known.1.clone())));
        }
        let session = match state.sessions.get(&hello.session) {
            Some(session) if session.is_closed() => {
                return Err((crate::sender::inbox_closed(), Some(session.standing())));
            }
            Some(session) => Arc::clone(session),
            None if hello.resume => {
                return Err(refused(Error::lost("the receiver started anew")));
            }
            None if state.sessions.len() >= MOST_SESSIONS => {
                return Err(refused(Error::full(format!("{MOST_SESSIONS} senders already"))));
            }
            None => {
                let session = ZmqIncoming::new(hello, self);
                self.inbox
                    .add(Arc::<ZmqIncoming>::clone(&session) as Arc<dyn Incoming>)
                    .map_err(refused)?;
                state.sessions.insert(hello.session, Arc::clone(&session));
                session
            }
        };
        let before = state.lanes.insert(identity.to_vec(), (hello.session, hello.lane));
        if let Some((other, lane)) = before.filter(|before| before.0 != hello.session) {
            // Whatever it was a connection of, it is one no more.
            self.interrupted(state, other, lane, identity);
        }
        state.descriptors.insert(descriptor, identity.to_vec());
        let progress = session.connected(hello.lane, identity);
        self.timer.set(LIFE);
        let lease_ms = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
        let largest = self.largest as u64;
        Ok(Control::Welcome { depth: self.inbox.depth, lease_ms, largest, progress })
    }

    fn disconnected(&self, state: &mut State, descriptor: i32) {
        let Some(identity) = state.descriptors.remove(&descriptor) else { return };
        if let Some((session, lane)) = state.lanes.remove(&identity) {
            self.interrupted(state, session, lane, &identity);
        }
    }

    /// A session has a connection less.
    fn interrupted(&self, state: &mut State, session: u128, lane: u16, identity: &[u8]) {
        let Some(session) = state.sessions.get(&session).cloned() else { return };
        if !session.disconnected(lane, identity) {
            return;
        }
        match self.transport {
            // Nothing can come between processes of a host: it is gone.
            Transport::ZmqIpc => {
                self.forget(state, &session, || Some(Error::lost("the sender's process is gone")));
            }
            _ => self.timer.set(self.lease),
        }
    }

    /// Ends a session whose sender breaks the rules.
    fn end(&self, state: &mut State, session: &Arc<ZmqIncoming>, error: Error) {
        let why = error.to_string();
        let identities = session.identities();
        // Nothing is taken any more, so that how far it is stays true.
        session.end(Some(error));
        for identity in identities {
            refuse(state, &identity, &Error::invalid(why.clone()), Some(session.standing()));
        }
        self.forget(state, session, || None);
    }

    /// Forgets a session, and remembers how far it was.
    fn forget(
        &self,
        state: &mut State,
        session: &Arc<ZmqIncoming>,
        why: impl FnOnce() -> Option<Error>,
    ) {
        session.end(why());
        state.sessions.remove(&session.id);
        state.lanes.retain(|_, lane| lane.0 != session.id);
        let progress = session.standing();
        state.over.push_back((session.id, progress));
        if state.over.len() > REMEMBERED {
            state.over.pop_front();
        }
    }

    /// Tells a session's sender how far we are.
    pub(super) fn tell(&self, session: &ZmqIncoming) {
        let mut state = lock(&self.state);
        if let Some((identity, progress)) = session.news(false) {
            send(&mut state, &identity, &Control::Progress(progress)).ok();
        }
        drop(state);
        // Sending may have taken the announcement of something to read.
        self.work();
    }

    /// The same for all senders, soon.
    pub(super) fn tell_soon(&self) {
        self.timer.set(PROGRESS);
    }

    /// Tells a session's sender that the inbox is closed.
    pub(super) fn tell_closed(&self, session: &ZmqIncoming) {
        let mut state = lock(&self.state);
        for identity in session.identities() {
            let standing = Some(session.standing());
            refuse(&mut state, &identity, &crate::sender::inbox_closed(), standing);
        }
        drop(state);
        // Sending may have taken the announcement of something to read.
        self.work();
    }

    /// What has to be done now and then.
    fn tick(&self) {
        let mut state = lock(&self.state);
        let sessions: Vec<_> = state.sessions.values().cloned().collect();
        let mut next = None;
        let remote = self.transport == Transport::ZmqTcp;
        if remote {
            self.listen_for_life(&mut state);
        }
        for session in sessions {
            let quiet = session.since_told() >= LIFE && remote;
            if let Some((identity, progress)) = session.news(quiet) {
                send(&mut state, &identity, &Control::Progress(progress)).ok();
            }
            session.trust();
            let away = session.away();
            if away.is_some_and(|away| away >= self.lease) {
                let gone = || Some(Error::lost("the sender is out of reach"));
                self.forget(&mut state, &session, gone);
            } else if session.is_over() {
                for identity in session.identities() {
                    send(&mut state, &identity, &Control::Over).ok();
                }
                self.forget(&mut state, &session, || None);
            } else {
                let soon = away.map_or(LIFE, |away| (self.lease - away).min(LIFE));
                next = Some(next.map_or(soon, |next: Duration| next.min(soon)));
            }
        }
        drop(state);
        if let Some(next) = next.filter(|_| remote) {
            self.timer.set(next + Duration::from_millis(1));
        }
        if let Some(end) = *lock(&self.retired) {
            self.timer.set(end.remaining() + Duration::from_millis(1));
        }
        self.check_retired();
    }

    /// Counts connections as gone through which nothing comes any more, not even signs of life.
    fn listen_for_life(&self, state: &mut State) {
        let silent = |descriptor: &&i32| {
            silence_of(**descriptor).is_none_or(|silence| silence > SILENCE * 2 / 3)
        };
        let silent: Vec<i32> = state.descriptors.keys().filter(silent).copied().collect();
        for descriptor in silent {
            self.disconnected(state, descriptor);
        }
    }

    /// Ends a listener once its senders know that the inbox is closed, or soon.
    pub(crate) fn retire(listener: Arc<Self>, courier: &Inner) {
        // Closed only when they have gone by themselves: libzmq forgets what a connection brought when
        // the other end closes it, and the last word would be lost.
        let known = lock(&listener.state).descriptors.is_empty();
        if known {
            return;
        }
        *lock(&listener.retired) = Some(Deadline::after(RETIREMENT));
        listener.timer.set(RETIREMENT + Duration::from_millis(1));
        lock(&courier.retiring).push(listener);
    }

    /// Lets go of itself where it is retired and not needed any more.
    fn check_retired(&self) {
        let Some(end) = *lock(&self.retired) else { return };
        let needed = !lock(&self.state).descriptors.is_empty() && !end.has_passed();
        let Some(courier) = self.courier.upgrade().filter(|_| !needed) else { return };
        let mut retiring = lock(&courier.retiring);
        let own = retiring.iter().position(|other| std::ptr::eq(&raw const **other, self));
        let own = own.map(|own| retiring.swap_remove(own));
        drop(retiring);
        drop(own);
    }
}

fn send(state: &mut State, identity: &[u8], control: &Control) -> zmq::Result<()> {
    let frames = [identity.to_vec(), control.encode()];
    state.monitored.socket.send_multipart(frames, zmq::DONTWAIT)
}

fn refuse(state: &mut State, identity: &[u8], error: &Error, progress: Option<Progress>) {
    let control = Control::Refused { kind: error.kind(), progress, why: error.to_string() };
    // Where it is gone already there is nobody to tell.
    send(state, identity, &control).ok();
}

/// Whether the process at the other end of a socket is this user's.
#[allow(unsafe_code, reason = "libzmq gives the descriptor by number")]
fn is_ours(descriptor: i32) -> bool {
    // SAFETY: only asked for its peer; should libzmq have closed it meanwhile, the answer is an error
    // or about another connection of ours, and the frame is refused or harmless.
    let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
    is_own_user(socket)
}

/// Binds; waits for a moment where an inbox was there that is closed and tells its senders.
fn bind(socket: &zmq::Socket, endpoint: &str) -> zmq::Result<()> {
    let end = Deadline::after(RETIREMENT * 2);
    loop {
        match socket.bind(endpoint) {
            Err(zmq::Error::EADDRINUSE) if !end.has_passed() => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// The endpoint under which others reach what was bound.
fn advertised(bound: &str, advertise: Option<&str>) -> Result<String> {
    let (host, port) = bound
        .strip_prefix("tcp://")
        .and_then(|rest| rest.rsplit_once(':'))
        .ok_or_else(|| Error::usage(format!("\"{bound}\" is no tcp://ADDRESS:PORT")))?;
    match advertise {
        Some(name) if name.contains(char::is_control) || name.is_empty() => {
            Err(Error::usage(format!("{name:?} is no name under which others reach an inbox")))
        }
        Some(name) => Ok(format!("tcp://{name}:{port}")),
        None if ["0.0.0.0", "[::]", "*", "[::ffff:0.0.0.0]"].contains(&host) => Err(Error::usage(
            "an inbox that listens at all addresses must be told under which name others reach it",
        )),
        None => Ok(bound.to_owned()),
    }
}

impl Source for ZmqListener {
    fn ready(&self) {
        if self.timer.went_off() {
            self.tick();
        }
        self.work();
        self.check_retired();
    }
}

impl Drop for ZmqListener {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let Some(courier) = self.courier.upgrade() else { return };
        if let Some(token) = self.token.get() {
            courier.driver.remove(&self.timer, *token);
        }
        state.monitored.ignore(&courier.driver);
        if let (Some(domain), Ok(network)) = (&self.domain, courier.network()) {
            network.unguard(domain);
        }
    }
}
