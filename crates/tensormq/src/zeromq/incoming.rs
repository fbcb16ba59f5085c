//! The receiving end: one socket for all senders, and a session for each.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tessera_core::{Error, Result};

use super::frame::{received, silence_of};
use super::monitor::{Happened, Monitored};
use super::timer::Timer;
use super::wire::{Control, Hello, Progress};
use super::{
    Keys, LIFE, Listen, SILENCE, Security, check_endpoint, key_from_text, prepare, receive_frames,
    zmq_error,
};
use crate::MOST_DEPTH;
use crate::address::Transport;
use crate::channel::{Incoming, Peer, Received};
use crate::courier::Inner;
use crate::driver::{Source, Token};
use crate::flight::{Finish, Receipt};
use crate::handover::{arm, disarm, raise};
use crate::inbox::InboxShared;
use crate::layout::{Descriptor, MAX_HEADER, Place, View};
use crate::message::{Message, RequestId};
use crate::payload;
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
    inbox: Arc<InboxShared>,
    transport: Transport,
    /// How long a connection may be gone before its session is over.
    lease: Duration,
    largest: usize,
    timer: Timer,
    token: OnceLock<Token>,
    courier: Weak<Inner>,
    domain: Option<String>,
    /// By when it ends, where its inbox is closed.
    retired: Mutex<Option<Deadline>>,
    own: Weak<Self>,
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
                    self.timer.set(PROGRESS);
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
    fn tell(&self, session: &ZmqIncoming) {
        let mut state = lock(&self.state);
        if let Some((identity, progress)) = session.news(false) {
            send(&mut state, &identity, &Control::Progress(progress)).ok();
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

/// The receiving end of a channel.
pub(crate) struct ZmqIncoming {
    id: u128,
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
    fn new(hello: &Hello, listener: &ZmqListener) -> Arc<Self> {
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
    fn accept(
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

    fn connected(&self, lane: u16, identity: &[u8]) -> Progress {
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
    fn heard(&self, lane: u16) {
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
    fn disconnected(&self, lane: u16, identity: &[u8]) -> bool {
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

    fn bye(&self, last: u64) {
        lock(&self.session).last = Some(last);
        self.wake();
    }

    fn end(&self, why: Option<Error>) {
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

    fn identities(&self) -> Vec<Vec<u8>> {
        lock(&self.session).lanes.iter().flatten().cloned().collect()
    }

    fn standing(&self) -> Progress {
        lock(&self.session).standing()
    }

    /// What the sender does not know, and how to reach it.
    fn news(&self, even_none: bool) -> Option<(Vec<u8>, Progress)> {
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
    fn trust(&self) {
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

    fn is_closed(&self) -> bool {
        lock(&self.session).closed
    }

    fn since_told(&self) -> Duration {
        let told = lock(&self.session).told_at.nanoseconds();
        Duration::from_nanos(Deadline::now().nanoseconds().saturating_sub(told))
    }

    fn away(&self) -> Option<Duration> {
        let since = lock(&self.session).away?;
        let now = Deadline::now().nanoseconds();
        Some(Duration::from_nanos(now.saturating_sub(since.nanoseconds())))
    }

    fn is_over(&self) -> bool {
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
    Ok(Message { envelope: view.envelope(), tensors, receipt: None })
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
                    false => listener.timer.set(PROGRESS),
                }
            }
            return Some(received);
        }
        if session.is_done() {
            drop(session);
            // So that it is forgotten once its last message is dropped.
            if let Some(listener) = self.listener.upgrade() {
                listener.timer.set(PROGRESS);
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
            let mut state = lock(&listener.state);
            for identity in self.identities() {
                let standing = Some(self.standing());
                refuse(&mut state, &identity, &crate::sender::inbox_closed(), standing);
            }
            drop(state);
            // Sending may have taken the announcement of something to read.
            listener.work();
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
            listener.timer.set(PROGRESS);
        }
    }
}
