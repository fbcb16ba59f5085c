//! Between hosts when things go wrong: connections that are cut, silent or slow, receivers that
//! start anew, keys that don't fit, and peers that send nonsense.
//!
//! Senders reach inboxes through a [`Relay`], which is the network: it can be cut, also in the
//! middle of a message, and silenced, and mended again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net;
use tessera_core::{DType, ErrorKind, Tensor, TensorMut};
use tessera_tensormq::layout::VERSION;
use tessera_tensormq::{
    Address, Buffers, ConnectOptions, Courier, CourierOptions, Fate, Inbox, InboxOptions, Keys,
    Listen, Message, Received, RequestId, Security, Sender, Transport, Wait,
};

const SOON: Duration = Duration::from_secs(20);
/// A lease that passes while a test waits for it.
const LEASE: Duration = Duration::from_millis(200);
/// A lease that does not.
const LONG: Duration = Duration::from_secs(10);
/// After so long a sender gives up: the lease, and as long again as the receiver may need to notice.
const PATIENCE: Duration = LEASE.saturating_add(Duration::from_secs(3));
/// What it may need on top of that.
const SLACK: Duration = Duration::from_millis(1500);
const LOCAL: &str = "tcp://127.0.0.1:0";

fn soon() -> Wait {
    Wait::at_most(SOON)
}

fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

fn until(what: &str, done: impl FnMut() -> bool) {
    assert!(within(SOON, done), "{what}");
}

/// A network between a sender and an inbox.
struct Relay {
    shared: Arc<Shared>,
    here: SocketAddr,
}

struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whoever connects is closed at once.
    cut: bool,
    /// Nothing is passed on to the inbox, and nobody connected to it.
    silent_there: bool,
    /// Nothing is passed on to the sender.
    silent_back: bool,
    /// Bytes to the inbox after which it is cut.
    fuse: Option<usize>,
    /// Bytes per second that it passes on to the inbox.
    rate: Option<usize>,
    /// What passed to the inbox, where that is wanted.
    record: Option<Vec<u8>>,
    connections: Vec<TcpStream>,
    /// How often all connections were closed.
    closed: u64,
    over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

impl Relay {
    fn before(inbox: &Inbox) -> Self {
        let target = inbox.address().tcp.as_deref().unwrap().strip_prefix("tcp://").unwrap();
        let target = target.parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { target, state: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept(&listener));
        Self { shared, here }
    }

    /// The way to an inbox through this network.
    fn address(&self, inbox: &Inbox) -> Address {
        Address { tcp: Some(format!("tcp://{}", self.here)), ..elsewhere(inbox) }
    }

    /// Closes all connections, and those that are made until it is mended.
    fn cut(&self) {
        self.shared.cut();
    }

    /// The same once so many more bytes went to the inbox.
    fn cut_after(&self, bytes: usize) {
        self.shared.change(|state| state.fuse = Some(bytes));
    }

    fn is_cut(&self) -> bool {
        self.shared.lock().cut
    }

    /// Passes nothing on, and closes nothing.
    fn freeze(&self) {
        self.shared.change(|state| (state.silent_there, state.silent_back) = (true, true));
    }

    /// Passes nothing on to the sender.
    fn freeze_answers(&self) {
        self.shared.change(|state| state.silent_back = true);
    }

    /// Closes all connections, and lets those that are made wait until it is mended.
    fn sever(&self) {
        self.shared.change(|state| {
            (state.silent_there, state.silent_back) = (true, true);
            state.close();
        });
    }

    fn slow_down(&self, bytes_per_second: usize) {
        self.shared.change(|state| state.rate = Some(bytes_per_second));
    }

    fn mend(&self) {
        self.shared.change(|state| {
            (state.cut, state.silent_there, state.silent_back) = (false, false, false);
        });
    }

    fn record(&self) {
        self.shared.change(|state| state.record = Some(Vec::new()));
    }

    /// Whether these bytes passed since it records.
    fn heard(&self, bytes: &[u8]) -> bool {
        contains(self.shared.lock().record.as_deref().unwrap(), bytes)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.over = true;
            state.close();
        });
        // So that whoever accepts looks up.
        drop(TcpStream::connect(self.here));
    }
}

impl State {
    fn close(&mut self) {
        self.closed += 1;
        for connection in self.connections.drain(..) {
            // It may be closed from the other side.
            connection.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn cut(&self) {
        self.change(|state| {
            state.cut = true;
            state.close();
        });
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let Ok(client) = client else { continue };
            let mut state = self.lock();
            if state.over {
                return;
            }
            if state.cut {
                continue;
            }
            state.connections.push(client.try_clone().unwrap());
            let closed = state.closed;
            drop(state);
            let shared = Arc::clone(self);
            thread::spawn(move || shared.serve(client, closed));
        }
    }

    /// Passes on between a sender and the inbox; `closed`: how often all was closed before it came.
    fn serve(self: Arc<Self>, client: TcpStream, closed: u64) {
        self.wait_while_silent(Way::There);
        let Ok(target) = TcpStream::connect(self.target) else {
            client.shutdown(Shutdown::Both).ok();
            return;
        };
        for stream in [&client, &target] {
            stream.set_nodelay(true).ok();
        }
        let mut state = self.lock();
        if state.closed != closed || state.over {
            return;
        }
        state.connections.push(target.try_clone().unwrap());
        drop(state);
        let (from, to) = (target.try_clone().unwrap(), client.try_clone().unwrap());
        let shared = Arc::clone(&self);
        let back = thread::spawn(move || shared.pass_on(from, to, Way::Back));
        self.pass_on(client, target, Way::There);
        back.join().unwrap();
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream, way: Way) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            self.wait_while_silent(way);
            let read = from.read(&mut buffer).unwrap_or(0);
            // In silence not even an end is heard.
            self.wait_while_silent(way);
            let (some, blown, pause) = self.spend(way, &buffer[..read]);
            if read == 0 || to.write_all(&buffer[..some]).is_err() {
                break;
            }
            if blown {
                self.cut();
                break;
            }
            thread::sleep(pause);
        }
        from.shutdown(Shutdown::Both).ok();
        to.shutdown(Shutdown::Both).ok();
    }

    fn wait_while_silent(&self, way: Way) {
        let mut state = self.lock();
        while !state.over
            && match way {
                Way::There => state.silent_there,
                Way::Back => state.silent_back,
            }
        {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// How many of these bytes pass, whether it is cut after them, and how long they take.
    fn spend(&self, way: Way, bytes: &[u8]) -> (usize, bool, Duration) {
        if way == Way::Back {
            return (bytes.len(), false, Duration::ZERO);
        }
        let mut state = self.lock();
        if let Some(record) = &mut state.record {
            record.extend_from_slice(bytes);
        }
        if let Some(left) = state.fuse {
            if left <= bytes.len() {
                state.fuse = None;
                return (left, true, Duration::ZERO);
            }
            state.fuse = Some(left - bytes.len());
        }
        let seconds = state.rate.map_or(0.0, |rate| bytes.len() as f64 / rate as f64);
        (bytes.len(), false, Duration::from_secs_f64(seconds))
    }
}

/// Xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`; 0 where there is none.
    fn below(&mut self, bound: usize) -> usize {
        ((self.next() >> 16) % bound.max(1) as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn courier() -> Courier {
    Courier::start(CourierOptions::default()).unwrap()
}

fn listen(endpoint: &str, security: Security) -> Vec<Listen> {
    vec![Listen::Tcp { endpoint: endpoint.to_owned(), advertise: None, security }]
}

fn options(lease: Duration) -> InboxOptions {
    InboxOptions { listen: listen(LOCAL, Security::Plain), lease, ..InboxOptions::default() }
}

/// The inbox as it looks from another host.
fn elsewhere(inbox: &Inbox) -> Address {
    Address { host: "elsewhere/0/0".to_owned(), ..inbox.address().clone() }
}

fn endpoint(inbox: &Inbox) -> String {
    inbox.address().tcp.clone().unwrap()
}

/// A sender and an inbox with a network between them.
struct Pair {
    from: Courier,
    to: Courier,
    inbox: Inbox,
    relay: Relay,
    sender: Sender,
}

fn pair(options: &InboxOptions, lanes: u16) -> Pair {
    let (from, to) = (courier(), courier());
    let inbox = to.inbox("block", options).unwrap();
    let relay = Relay::before(&inbox);
    let connect = ConnectOptions { lanes, ..ConnectOptions::default() };
    let sender = from.connect_with(&relay.address(&inbox), &connect).unwrap();
    assert_eq!(sender.peer().transport, Transport::ZmqTcp);
    Pair { from, to, inbox, relay, sender }
}

fn message(request: u128) -> Message {
    Message::new(RequestId(request), "task", &["block"]).unwrap()
}

fn pattern(request: u128, len: usize) -> impl Iterator<Item = u8> {
    let start = request as usize;
    (0..len).map(move |index| (index ^ (index >> 8)).wrapping_mul(7).wrapping_add(start) as u8)
}

/// A tensor whose bytes tell which request it belongs to.
fn payload(request: u128, len: usize) -> Tensor {
    let bytes: Vec<u8> = pattern(request, len).collect();
    Tensor::copied(DType::U8, &[len], &bytes).unwrap()
}

fn check_payload(message: &Message, len: usize) {
    let request = message.request();
    let bytes = message.tensors()[0].bytes().unwrap();
    assert_eq!(bytes.len(), len, "request {request}");
    assert!(bytes.iter().copied().eq(pattern(request.0, len)), "request {request}");
}

fn receive(inbox: &mut Inbox) -> Message {
    match inbox.receive(soon()) {
        Some(Received::Message(message)) => message,
        other => panic!("expected a message, got {other:?}"),
    }
}

/// Receives until the connection is gone; gives back the requests that came before.
fn receive_until_interrupted(inbox: &mut Inbox) -> Vec<u128> {
    let mut requests = Vec::new();
    loop {
        match inbox.receive(soon()) {
            Some(Received::Message(message)) => requests.push(message.request().0),
            Some(Received::Interrupted(_)) => return requests,
            other => panic!("expected an interruption, got {other:?}"),
        }
    }
}

/// What became of the messages that will not be done; each is told once.
fn fates(sender: &mut Sender) -> BTreeMap<u128, Fate> {
    let mut fates = BTreeMap::new();
    for failed in sender.failed() {
        let before = fates.insert(failed.request.0, failed.fate);
        assert!(before.is_none(), "{failed:?} was {before:?} before");
    }
    assert!(sender.failed().is_empty());
    fates
}

/// Sends while the network is cut again and again, after at most so many bytes.
fn deliver_everything(
    lanes: u16,
    count: u128,
    size: fn(u128) -> usize,
    cuts: usize,
    most: usize,
) -> (usize, usize) {
    let Pair { from, to, mut inbox, relay, mut sender } = pair(&options(LONG), lanes);
    let sending = thread::spawn(move || {
        for request in 0..count {
            let tensors = vec![payload(request, size(request))];
            sender.send(message(request).with_tensors(tensors), soon()).unwrap();
        }
        sender.finish(soon()).unwrap();
        assert!(sender.failed().is_empty());
    });
    let cutting = thread::spawn(move || {
        let mut random = Random(0x5eed);
        for _ in 0..cuts {
            // Some while the ends still greet each other.
            let short = random.below(3) == 0;
            relay.cut_after(random.below(if short { 1000 } else { most }));
            until("the network is cut", || relay.is_cut());
            thread::sleep(Duration::from_millis(10 + random.below(90) as u64));
            relay.mend();
        }
        relay
    });
    let (mut next, mut interrupted, mut resumed) = (0, 0, 0);
    loop {
        match inbox.receive(soon()) {
            Some(Received::Message(message)) => {
                assert_eq!(message.request(), RequestId(next));
                assert_eq!(u128::from(message.sequence()), next + 1);
                check_payload(&message, size(next));
                next += 1;
            }
            Some(Received::Interrupted(_)) => interrupted += 1,
            Some(Received::Resumed(_)) => resumed += 1,
            Some(Received::Closed(_)) => break,
            other => panic!("after {next} messages: {other:?}"),
        }
    }
    assert_eq!(next, count);
    sending.join().unwrap();
    drop(cutting.join().unwrap());
    drop((from, to));
    (interrupted, resumed)
}

#[test]
fn a_connection_that_is_cut_again_and_again_delivers_everything_once_and_in_order() {
    let size = |request: u128| {
        let request = request as usize;
        (64 << 10) + ((request * 7919 % 960) << 10) + request % 13
    };
    let (interrupted, resumed) = deliver_everything(1, 300, size, 8, 12 << 20);
    assert!(interrupted >= 1);
    assert_eq!(interrupted, resumed);
}

#[test]
fn several_lanes_that_are_cut_deliver_everything_once_and_in_order() {
    let size = |request: u128| {
        let some = [0, 17, 4_000, 70_000, 300_000][(request % 5) as usize];
        some + request as usize
    };
    let (interrupted, resumed) = deliver_everything(4, 500, size, 3, 8 << 20);
    assert!(interrupted >= 1);
    assert_eq!(interrupted, resumed);
}

#[test]
fn when_the_network_stays_away_every_message_is_accounted_for_once() {
    let mut pair = pair(&options(LEASE), 1);
    // So that the sender does not know what was taken.
    pair.relay.freeze_answers();
    for request in 0..8 {
        pair.sender.send(message(request), soon()).unwrap();
    }
    let mut held: Vec<_> = (0..5).map(|_| receive(&mut pair.inbox)).collect();
    let mut received: Vec<_> = held.iter().map(|message| message.request().0).collect();
    held.truncate(2);
    let start = Instant::now();
    pair.relay.cut();
    for request in 8..12 {
        pair.sender.send(message(request), Wait::No).unwrap();
    }
    received.extend(receive_until_interrupted(&mut pair.inbox));
    // What was not taken by now never is.
    match pair.inbox.receive(soon()) {
        Some(Received::Lost(peer, error)) => {
            assert_eq!(peer.courier, pair.from.id());
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            assert!(start.elapsed() >= LEASE);
        }
        other => panic!("expected the loss, got {other:?}"),
    }
    until("the sender gives up", || pair.sender.is_lost());
    let elapsed = start.elapsed();
    assert!(elapsed >= PATIENCE && elapsed < PATIENCE + SLACK, "{elapsed:?}");
    let error = pair.sender.send(message(99), soon()).unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(pair.sender.finish(soon()).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(pair.sender.in_flight(), 0);
    let fates = fates(&mut pair.sender);
    for request in 0..12 {
        let was_received = received.contains(&request);
        match fates.get(&request) {
            None | Some(Fate::Taken) => assert!(was_received, "{request}: {fates:?}"),
            Some(Fate::NotTaken) => assert!(!was_received, "{request}: {fates:?}"),
            Some(Fate::Unknown) => {}
        }
    }
    pair.relay.mend();
    let later = pair.inbox.receive(Wait::at_most(Duration::from_millis(100)));
    assert!(later.is_none(), "{later:?}");
}

#[test]
fn a_sender_gives_up_in_time_also_when_a_new_connection_is_met_with_silence() {
    let mut pair = pair(&options(LEASE), 1);
    pair.sender.send(message(1), soon()).unwrap();
    pair.relay.sever();
    assert!(within(PATIENCE + SLACK, || pair.sender.is_lost()), "it tries on");
}

#[test]
fn a_sender_that_comes_back_after_the_lease_is_told_exactly_what_was_taken() {
    let mut pair = pair(&options(Duration::from_millis(500)), 1);
    pair.relay.freeze_answers();
    for request in 0..8 {
        pair.sender.send(message(request), soon()).unwrap();
    }
    let mut done: Vec<_> = (0..5).map(|_| receive(&mut pair.inbox)).collect();
    let held = done.split_off(3);
    let mut received: Vec<_> = done.drain(..).map(|message| message.request().0).collect();
    pair.relay.sever();
    received.extend(receive_until_interrupted(&mut pair.inbox));
    match pair.inbox.receive(soon()) {
        Some(Received::Lost(..)) => {}
        other => panic!("expected the loss, got {other:?}"),
    }
    pair.relay.mend();
    until("the sender is refused", || pair.sender.is_lost());
    let error = pair.sender.send(message(99), soon()).unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("away for too long"), "{error}");
    let held: Vec<_> = held.iter().map(|message| message.request().0).collect();
    let mut expected = BTreeMap::new();
    for request in (0..8).filter(|request| !received.contains(request)) {
        let fate = if held.contains(&request) { Fate::Taken } else { Fate::NotTaken };
        expected.insert(request, fate);
    }
    assert_eq!(fates(&mut pair.sender), expected);
    let later = pair.inbox.receive(Wait::at_most(Duration::from_millis(100)));
    assert!(later.is_none(), "{later:?}");
    assert_eq!(pair.inbox.senders(), 0);
}

#[test]
fn silence_is_noticed_and_what_was_sent_into_it_arrives_once_it_ends() {
    let mut pair = pair(&options(LONG), 1);
    pair.sender.send(message(0), soon()).unwrap();
    drop(receive(&mut pair.inbox));
    pair.sender.finish(soon()).unwrap();
    let start = Instant::now();
    pair.relay.freeze();
    for request in 1..4 {
        pair.sender.send(message(request), soon()).unwrap();
    }
    assert!(receive_until_interrupted(&mut pair.inbox).is_empty());
    until("the sender notices", || pair.sender.is_interrupted());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    pair.relay.mend();
    match pair.inbox.receive(soon()) {
        Some(Received::Resumed(peer)) => assert_eq!(peer.courier, pair.from.id()),
        other => panic!("expected it to resume, got {other:?}"),
    }
    for request in 1..4 {
        assert_eq!(receive(&mut pair.inbox).request(), RequestId(request));
    }
    pair.sender.finish(soon()).unwrap();
    assert!(!pair.sender.is_interrupted());
}

#[test]
fn silence_is_noticed_also_in_the_middle_of_sending_much() {
    let mut pair = pair(&InboxOptions { depth: 64, ..options(LONG) }, 1);
    let tensor = payload(0, 1 << 20);
    pair.relay.freeze();
    // More than fits into what the system keeps on its way: no heartbeat gets out behind it.
    for request in 0..32 {
        let message = message(request).with_tensors(vec![tensor.clone()]);
        pair.sender.send(message, Wait::No).unwrap();
    }
    let noticed = within(Duration::from_secs(5), || pair.sender.is_interrupted());
    assert!(noticed, "the sender waits for a network that is gone");
    assert!(receive_until_interrupted(&mut pair.inbox).is_empty());
    pair.relay.mend();
    match pair.inbox.receive(soon()) {
        Some(Received::Resumed(_)) => {}
        other => panic!("expected it to resume, got {other:?}"),
    }
    for request in 0..32 {
        assert_eq!(receive(&mut pair.inbox).request(), RequestId(request));
    }
    pair.sender.finish(soon()).unwrap();
}

#[test]
fn a_tensor_that_is_long_on_its_way_over_a_slow_network_arrives() {
    let mut pair = pair(&options(LONG), 1);
    // Longer than any silence that is borne, and not silence.
    pair.relay.slow_down(2 << 20);
    let tensors = vec![payload(1, 8 << 20)];
    pair.sender.send(message(1).with_tensors(tensors), soon()).unwrap();
    check_payload(&receive(&mut pair.inbox), 8 << 20);
    pair.sender.finish(soon()).unwrap();
}

/// An inbox where another was before, as soon as the system has let go of its port.
fn reopen(courier: &Courier, port: &str) -> Inbox {
    let listen = listen(&format!("tcp://127.0.0.1:{port}"), Security::Plain);
    let options = InboxOptions { listen, ..options(LONG) };
    let start = Instant::now();
    loop {
        match courier.inbox("block", &options) {
            Ok(inbox) => return inbox,
            Err(error) => assert!(start.elapsed() < SOON, "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_receiver_that_starts_anew_is_not_taken_for_the_old_one() {
    let Pair { from, to, mut inbox, relay, mut sender } = pair(&options(LONG), 1);
    sender.send(message(0), soon()).unwrap();
    drop(receive(&mut inbox));
    sender.finish(soon()).unwrap();
    let endpoint = endpoint(&inbox);
    let (_, port) = endpoint.rsplit_once(':').unwrap();
    // As if its process were killed: nobody says goodbye.
    relay.cut();
    drop((inbox, to));
    let to = courier();
    let mut inbox = reopen(&to, port);
    relay.mend();
    until("the sender hears of it", || sender.is_lost());
    let error = sender.send(message(1), soon()).unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("anew"), "{error}");
    let mut sender = from.connect(&relay.address(&inbox)).unwrap();
    sender.send(message(2), soon()).unwrap();
    assert_eq!(receive(&mut inbox).request(), RequestId(2));
}

#[test]
fn what_a_receiver_took_before_it_started_anew_is_not_told_as_never_taken() {
    let Pair { from, to, mut inbox, relay, mut sender } = pair(&options(LONG), 1);
    relay.freeze_answers();
    for request in 0..3 {
        sender.send(message(request), soon()).unwrap();
    }
    for request in 0..2 {
        assert_eq!(receive(&mut inbox).request(), RequestId(request));
    }
    let endpoint = endpoint(&inbox);
    let (_, port) = endpoint.rsplit_once(':').unwrap();
    relay.cut();
    drop((inbox, to));
    let to = courier();
    let inbox = reopen(&to, port);
    relay.mend();
    until("the sender hears of it", || sender.is_lost());
    let fates = fates(&mut sender);
    assert_eq!(fates.len(), 3, "{fates:?}");
    for request in 0..2u128 {
        assert_ne!(fates[&request], Fate::NotTaken, "the old receiver had {request}: {fates:?}");
    }
    assert_ne!(fates[&2u128], Fate::Taken, "{fates:?}");
    drop((from, inbox));
}

#[test]
fn an_inbox_that_closes_tells_its_senders_every_time() {
    let (from, to) = (courier(), courier());
    for round in 0..40 {
        let inbox = to.inbox("block", &options(LONG)).unwrap();
        let mut sender = from.connect(&elsewhere(&inbox)).unwrap();
        for request in 0..2 {
            sender.send(message(request), soon()).unwrap();
        }
        drop(inbox);
        let told = within(Duration::from_secs(2), || sender.is_lost());
        assert!(told, "round {round}: its last word was not heard");
        let error = sender.send(message(9), soon()).unwrap_err().error;
        assert!(error.to_string().contains("closed its inbox"), "round {round}: {error}");
        let expected = BTreeMap::from([(0, Fate::NotTaken), (1, Fate::NotTaken)]);
        assert_eq!(fates(&mut sender), expected, "round {round}");
    }
}

#[test]
fn an_inbox_can_be_dropped_while_senders_knock() {
    let (done, finished) = mpsc::channel();
    // On a thread of its own: should the ends wait for each other, the test must not wait for them.
    thread::spawn(move || {
        let (from, to) = (courier(), courier());
        for _ in 0..20 {
            let inbox = to.inbox("block", &options(LEASE)).unwrap();
            let knocking: Vec<_> = (0..8)
                .map(|_| {
                    let (from, address) = (from.clone(), elsewhere(&inbox));
                    let timeout = Duration::from_millis(60);
                    let options = ConnectOptions { timeout, ..ConnectOptions::default() };
                    thread::spawn(move || drop(from.connect_with(&address, &options)))
                })
                .collect();
            let start = Instant::now();
            while inbox.senders() == 0 && start.elapsed() < Duration::from_secs(1) {
                thread::yield_now();
            }
            drop(inbox);
            for knocking in knocking {
                knocking.join().unwrap();
            }
        }
        done.send(()).unwrap();
    });
    finished.recv_timeout(SOON).expect("the inbox and who serves it wait for each other");
}

#[test]
fn a_sender_that_was_dropped_lets_go_of_its_buffers_once_they_were_taken() {
    let (from, to) = (courier(), courier());
    let mut inbox = to.inbox("block", &options(LONG)).unwrap();
    let address = elsewhere(&inbox);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let receiving = thread::spawn(move || {
        while !stopped.load(Ordering::SeqCst) {
            drop(inbox.receive(Wait::at_most(Duration::from_millis(5))));
        }
        inbox
    });
    let pool = from.pool(&[Buffers { bytes: 64, count: 256 }]).unwrap();
    for round in 0..200 {
        let mut sender = from.connect(&address).unwrap();
        let buffer = pool.borrow(64, soon()).unwrap();
        let tensor = TensorMut::over(DType::U8, &[64], buffer).unwrap().freeze();
        sender.send(message(round).with_tensors(vec![tensor]), soon()).unwrap();
        // Dropped before, while and after it is told that its message was taken.
        thread::sleep(Duration::from_micros(150 * (round % 20) as u64));
        drop(sender);
    }
    let empty = within(Duration::from_secs(5), || pool.in_use() == 0);
    stop.store(true, Ordering::SeqCst);
    drop(receiving.join().unwrap());
    assert!(empty, "{} buffers are held for senders that are gone", pool.in_use());
}

#[test]
fn a_sender_goes_on_when_the_last_handle_to_its_courier_is_gone() {
    let Pair { from, to, mut inbox, relay, mut sender } = pair(&options(LONG), 1);
    drop(from);
    sender.send(message(1), soon()).unwrap();
    drop(receive(&mut inbox));
    sender.finish(Wait::at_most(Duration::from_secs(5))).unwrap();
    drop((to, relay));
}

fn keyed(keys: &Keys) -> Courier {
    Courier::start(CourierOptions { keys: Some(keys.clone()), ..CourierOptions::default() })
        .unwrap()
}

fn encrypted(allowed: Vec<String>) -> InboxOptions {
    InboxOptions { listen: listen(LOCAL, Security::Curve { allowed }), ..options(LONG) }
}

/// Connects, and is refused before the time is over.
fn refused(from: &Courier, address: &Address) {
    let timeout = Duration::from_secs(2);
    let start = Instant::now();
    let options = ConnectOptions { timeout, ..ConnectOptions::default() };
    let error = from.connect_with(address, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(start.elapsed() < timeout + SLACK, "{:?}", start.elapsed());
}

fn exchange(from: &Courier, address: &Address, inbox: &mut Inbox) {
    let mut sender = from.connect(address).unwrap();
    for (request, len) in [(1, 100), (2, 1 << 20)] {
        let tensors = vec![payload(request, len)];
        sender.send(message(request).with_tensors(tensors), soon()).unwrap();
        let received = receive(inbox);
        assert_eq!(received.request(), RequestId(request));
        check_payload(&received, len);
    }
    sender.finish(soon()).unwrap();
    drop(sender);
    match inbox.receive(soon()) {
        Some(Received::Closed(peer)) => assert_eq!(peer.courier, from.id()),
        other => panic!("expected the end, got {other:?}"),
    }
}

#[test]
fn what_is_encrypted_arrives_and_nobody_on_the_way_can_read_it() {
    const SECRET: &[u8] = b"a secret that nobody on the way must see";
    let keys = Keys::generate().unwrap();
    for (options, readable) in [(options(LONG), true), (encrypted(Vec::new()), false)] {
        let (from, to) = (keyed(&Keys::generate().unwrap()), keyed(&keys));
        let mut inbox = to.inbox("block", &options).unwrap();
        assert_eq!(inbox.address().key, (!readable).then(|| keys.public()));
        let relay = Relay::before(&inbox);
        relay.record();
        let mut sender = from.connect(&relay.address(&inbox)).unwrap();
        let tensor = Tensor::copied(DType::U8, &[SECRET.len()], SECRET).unwrap();
        sender.send(message(1).with_tensors(vec![tensor]), soon()).unwrap();
        assert_eq!(receive(&mut inbox).tensors()[0].bytes().unwrap(), SECRET);
        assert_eq!(relay.heard(SECRET), readable);
    }
}

#[test]
fn only_who_has_the_right_key_gets_in() {
    let keys = Keys::generate().unwrap();
    let (friend, stranger) = (Keys::generate().unwrap(), Keys::generate().unwrap());
    let to = keyed(&keys);

    let mut open = to.inbox("open", &encrypted(Vec::new())).unwrap();
    let address = elsewhere(&open);
    let nobody = courier();
    exchange(&nobody, &address, &mut open);
    exchange(&keyed(&stranger), &address, &mut open);
    refused(&nobody, &Address { key: Some(stranger.public()), ..address.clone() });
    refused(&nobody, &Address { key: None, ..address });

    let mut closed = to.inbox("closed", &encrypted(vec![friend.public()])).unwrap();
    let address = elsewhere(&closed);
    refused(&keyed(&stranger), &address);
    refused(&nobody, &address);
    exchange(&keyed(&friend), &address, &mut closed);
    // Those who were refused left nothing behind.
    assert_eq!((open.senders(), closed.senders()), (0, 0));
    assert!(open.try_receive().is_none() && closed.try_receive().is_none());
}

#[test]
fn keys_come_back_from_their_text_and_nonsense_is_refused() {
    let keys = Keys::generate().unwrap();
    let again = Keys::from_text(&keys.public(), &keys.secret()).unwrap();
    assert_eq!((again.public(), again.secret()), (keys.public(), keys.secret()));
    assert!(!format!("{keys:?}").contains(&keys.secret()));

    let error = courier().inbox("block", &encrypted(Vec::new())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "an inbox without keys: {error}");

    let (from, to) = (courier(), keyed(&keys));
    let inbox = to.inbox("block", &encrypted(Vec::new())).unwrap();
    let nonsense = ["", "short", &keys.public()[1..]].map(str::to_owned);
    let as_long_as_one = ["~".repeat(40), " ".repeat(40), "é".repeat(20), "#".repeat(40)];
    for text in nonsense.into_iter().chain(as_long_as_one) {
        let address = Address { key: Some(text.clone()), ..elsewhere(&inbox) };
        for error in [
            Keys::from_text(&text, &keys.secret()).unwrap_err(),
            Keys::from_text(&keys.public(), &text).unwrap_err(),
            to.inbox("other", &encrypted(vec![text.clone()])).unwrap_err(),
            from.connect(&address).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Usage, "{text:?}: {error}");
        }
    }
}

#[test]
fn an_inbox_listens_at_addresses_of_both_families() {
    let (from, to) = (courier(), courier());
    for endpoint in [LOCAL, "tcp://[::1]:0"] {
        let listen = listen(endpoint, Security::Plain);
        let mut inbox = to.inbox("block", &InboxOptions { listen, ..options(LONG) }).unwrap();
        let address = elsewhere(&inbox);
        exchange(&from, &address, &mut inbox);
    }
}

#[test]
fn an_inbox_tells_the_address_at_which_it_was_told_to_listen() {
    let to = courier();
    for host in ["tcp://127.0.0.1:", "tcp://[::1]:"] {
        let listen = listen(&format!("{host}0"), Security::Plain);
        let inbox = to.inbox("block", &InboxOptions { listen, ..options(LONG) }).unwrap();
        // Also for hosts that have only the older family.
        assert!(endpoint(&inbox).starts_with(host), "{}", endpoint(&inbox));
    }
}

#[test]
fn an_inbox_that_listens_at_all_addresses_must_be_told_its_name() {
    let (from, to) = (courier(), courier());
    for endpoint in ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0"] {
        let with = |advertise: Option<&str>| {
            let (endpoint, advertise) = (endpoint.to_owned(), advertise.map(str::to_owned));
            let listen = vec![Listen::Tcp { endpoint, advertise, security: Security::Plain }];
            to.inbox("block", &InboxOptions { listen, ..options(LONG) })
        };
        match with(None) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Usage, "{endpoint}: {error}");
                assert!(error.to_string().starts_with("inbox \"block\": "), "{error}");
            }
            Ok(inbox) => panic!("{endpoint} is told as {:?}", inbox.address().tcp),
        }
        let mut inbox = with(Some("127.0.0.1")).unwrap();
        let address = elsewhere(&inbox);
        assert!(address.tcp.as_deref().unwrap().starts_with("tcp://127.0.0.1:"), "{address:?}");
        exchange(&from, &address, &mut inbox);
    }
}

#[test]
fn an_endpoint_that_makes_no_sense_is_an_error() {
    let (from, to) = (courier(), courier());
    let inbox = to.inbox("block", &options(LONG)).unwrap();
    let nonsense =
        ["", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:port", "127.0.0.1", "tcp://\0:1"];
    for endpoint in nonsense {
        let listen = listen(endpoint, Security::Plain);
        let other = to.inbox("other", &InboxOptions { listen, ..options(LONG) });
        assert!(other.is_err(), "{endpoint:?}");
        let address = Address { tcp: Some(endpoint.to_owned()), ..elsewhere(&inbox) };
        let timeout = Duration::from_millis(200);
        let options = ConnectOptions { timeout, ..ConnectOptions::default() };
        assert!(from.connect_with(&address, &options).is_err(), "{endpoint:?}");
    }
}

#[test]
fn a_tensor_that_is_too_large_for_an_inbox_is_an_error_for_its_sender() {
    let mut pair = pair(&InboxOptions { largest: 1 << 20, ..options(LEASE) }, 1);
    let tensors = vec![payload(1, 2 << 20)];
    let error = match pair.sender.send(message(1).with_tensors(tensors), soon()) {
        Err(not_sent) => not_sent.error,
        Ok(_) => pair.sender.finish(Wait::at_most(Duration::from_secs(5))).unwrap_err(),
    };
    assert!(!matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Full), "{error}");
    for (request, fate) in fates(&mut pair.sender) {
        assert_eq!(request, 1);
        assert_ne!(fate, Fate::Taken);
    }
    while let Some(received) = pair.inbox.try_receive() {
        assert!(!matches!(received, Received::Message(_)), "{received:?}");
    }
    // The inbox is there for others.
    let mut sender = pair.from.connect(&pair.relay.address(&pair.inbox)).unwrap();
    sender.send(message(2).with_tensors(vec![payload(2, 1 << 20)]), soon()).unwrap();
    let arrived = within(SOON, || match pair.inbox.try_receive() {
        Some(Received::Message(message)) => {
            assert_eq!(message.request(), RequestId(2));
            true
        }
        _ => false,
    });
    assert!(arrived);
}

#[test]
fn a_tensor_that_is_as_large_as_may_be_arrives_encrypted_or_not() {
    let keys = Keys::generate().unwrap();
    let (from, to) = (courier(), keyed(&keys));
    for options in [options(LONG), encrypted(Vec::new())] {
        let options = InboxOptions { largest: 100_000, ..options };
        let mut inbox = to.inbox("block", &options).unwrap();
        let mut sender = from.connect(&elsewhere(&inbox)).unwrap();
        let tensors = vec![payload(1, 100_000)];
        sender.send(message(1).with_tensors(tensors), soon()).unwrap();
        match inbox.receive(soon()) {
            Some(Received::Message(message)) => check_payload(&message, 100_000),
            other => panic!("{:?}: {other:?}", options.listen),
        }
    }
}

/// Number of the transport that those who send nonsense say they have.
const NOISE: u64 = 0xbad;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;

/// What `src/zeromq/wire.rs` calls a hello.
fn hello(session: u128, inbox: &str) -> Vec<u8> {
    let mut bytes = b"TsMC".to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([1u8, 0]);
    bytes.extend(session.to_le_bytes());
    bytes.extend(NOISE.to_le_bytes());
    bytes.extend([0u8, 0, 1, 0]);
    bytes.extend(inbox.as_bytes());
    bytes
}

fn bye(last: u64) -> Vec<u8> {
    let mut bytes = b"TsMC".to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.push(5);
    bytes.extend(last.to_le_bytes());
    bytes
}

/// A header after the tables at the head of `src/layout.rs`, with a tensor of bytes in each frame.
fn header(request: u128, sequence: u64, sizes: &[usize]) -> Vec<u8> {
    let mut task = b"noise".to_vec();
    let task_len = task.len() as u16;
    task.resize(8, 0);
    let start = 96 + task.len();
    let mut bytes = b"TsMQ".to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([0u8; 2]);
    bytes.extend(((start + sizes.len() * 72) as u32).to_le_bytes());
    bytes.extend(task_len.to_le_bytes());
    bytes.extend([0u8; 4]);
    bytes.extend((sizes.len() as u16).to_le_bytes());
    bytes.extend((start as u32).to_le_bytes());
    bytes.extend(request.to_le_bytes());
    // Neither a deadline nor a trace.
    bytes.extend([0u8; 40]);
    bytes.extend(sequence.to_le_bytes());
    bytes.extend([0u8; 8]);
    bytes.extend(task);
    for (number, size) in sizes.iter().enumerate() {
        bytes.extend([DType::U8.onnx() as u8, 1, 0, 0, 0, 0, 0, 0]);
        bytes.extend((*size as u64).to_le_bytes());
        bytes.extend([0u8; 16]);
        bytes.extend((number as u32).to_le_bytes());
        bytes.extend([0u8; 20]);
        bytes.extend((*size as u64).to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
    }
    bytes
}

/// A whole message: a header and its frames.
fn post(request: u128, sequence: u64, sizes: &[usize]) -> Vec<Vec<u8>> {
    let mut frames = vec![header(request, sequence, sizes)];
    frames.extend(sizes.iter().map(|size| vec![7u8; *size]));
    frames
}

/// Somebody who connects to an inbox with ZeroMQ and says what it likes.
struct Raw(zmq::Socket);

impl Raw {
    fn connect(context: &zmq::Context, endpoint: &str) -> Self {
        let socket = context.socket(zmq::DEALER).unwrap();
        socket.set_ipv6(true).unwrap();
        socket.set_linger(2000).unwrap();
        socket.set_sndhwm(0).unwrap();
        socket.set_rcvtimeo(SOON.as_millis() as i32).unwrap();
        socket.connect(endpoint).unwrap();
        Self(socket)
    }

    fn say(&self, frames: &[Vec<u8>]) {
        self.0.send_multipart(frames, 0).unwrap();
    }

    fn hear(&self) -> Vec<u8> {
        let frame = self.0.recv_bytes(0).expect("an answer");
        assert!(frame.starts_with(b"TsMC") && frame.len() > 6, "{frame:?}");
        frame
    }

    /// Says hello, and passes over what is said of sessions before.
    fn enter(&self, session: u128) {
        self.say(&[hello(session, "block")]);
        while self.hear()[6] != WELCOME {}
    }
}

#[test]
fn a_header_made_by_hand_after_the_tables_is_understood() {
    let to = courier();
    let mut inbox = to.inbox("block", &options(LONG)).unwrap();
    let context = zmq::Context::new();
    let raw = Raw::connect(&context, &endpoint(&inbox));
    raw.enter(1);
    raw.say(&post(77, 1, &[3, 0]));
    let received = receive(&mut inbox);
    assert_eq!((received.request(), received.task()), (RequestId(77), "noise"));
    assert_eq!((received.sequence(), received.path().count()), (1, 0));
    let bytes: Vec<_> = received.tensors().iter().map(|tensor| tensor.bytes().unwrap()).collect();
    assert_eq!(bytes, [&[7u8, 7, 7][..], &[]]);
}

#[test]
fn a_hello_that_is_not_welcome_is_told_why() {
    let to = courier();
    let mut inbox = to.inbox("block", &options(LONG)).unwrap();
    let context = zmq::Context::new();
    let raw = Raw::connect(&context, &endpoint(&inbox));
    // Who did not say hello is not heard, and the connection goes on.
    raw.say(&post(1, 1, &[8]));
    raw.say(&[bye(0)]);
    raw.say(&[Vec::new()]);
    let changed = |at: usize, value: u8| {
        let mut bytes = hello(1, "block");
        bytes[at] = value;
        bytes
    };
    for (frame, why) in [
        (changed(4, 9), "the peer speaks version 9 of TensorMQ, this process version 1"),
        (hello(1, "nowhere"), "here is inbox \"block\""),
        (changed(34, 17), "more than 16 lanes"),
        (changed(34, 0), "not one of TensorMQ"),
        (changed(7, 1), "the receiver started anew"),
        (changed(7, 2), "not one of TensorMQ"),
        (changed(6, 200), "not one of TensorMQ"),
        (changed(36, 0xff), "not one of TensorMQ"),
        (hello(1, "block")[..20].to_vec(), "not one of TensorMQ"),
    ] {
        raw.say(&[frame]);
        let answer = raw.hear();
        assert_eq!(answer[6], REFUSED, "{why}");
        assert!(contains(&answer, why.as_bytes()), "{why}: {}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(inbox.senders(), 0);
    assert!(inbox.try_receive().is_none());
    raw.enter(2);
}

#[test]
fn frames_that_do_not_fit_their_header_are_told_and_the_channel_goes_on() {
    let to = courier();
    let mut inbox = to.inbox("block", &options(LONG)).unwrap();
    let context = zmq::Context::new();
    let raw = Raw::connect(&context, &endpoint(&inbox));
    raw.enter(1);
    let mut few = post(2, 2, &[8, 8]);
    few.pop();
    let mut many = post(3, 3, &[8]);
    many.push(vec![1]);
    let mut long = post(4, 4, &[8]);
    long[1].push(1);
    // The fifth comes twice, and the sixth before it.
    let frames = [post(1, 1, &[8]), few, many, long, post(6, 6, &[]), post(5, 5, &[8])];
    for frames in frames.iter().chain(&frames[4..]) {
        raw.say(frames);
    }
    let events: Vec<_> = (0..6)
        .map(|_| match inbox.receive(soon()) {
            Some(Received::Message(message)) => (message.request().0, true),
            Some(Received::Failed { peer, request, error }) => {
                assert_eq!((peer.courier, error.kind()), (NOISE, ErrorKind::Invalid), "{error}");
                (request.unwrap().0, false)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [(1, true), (2, false), (3, false), (4, false), (5, true), (6, true)];
    assert_eq!(events, expected);
    raw.say(&[bye(6)]);
    match inbox.receive(soon()) {
        Some(Received::Closed(peer)) => assert_eq!(peer.courier, NOISE),
        other => panic!("expected the end, got {other:?}"),
    }
}

#[test]
fn a_header_that_breaks_the_rules_ends_its_channel_and_both_ends_hear_why() {
    let to = courier();
    let mut inbox = to.inbox("block", &options(LONG)).unwrap();
    let context = zmq::Context::new();
    let raw = Raw::connect(&context, &endpoint(&inbox));
    let changed = |at: usize, value: u8| {
        let mut frames = post(1, 1, &[8]);
        frames[0][at] = value;
        frames
    };
    let cut_short = vec![header(1, 1, &[8])[..50].to_vec(), vec![7; 8]];
    for (session, (frames, why)) in (1..).zip([
        (cut_short, "cut short"),
        (changed(0, 0), "not one of TensorMQ"),
        (changed(4, 9), "the peer speaks version 9 of TensorMQ, this process version 1"),
        (changed(8, 0), "its length is not what it says"),
        (changed(18, 2), "cut short"),
        (post(1, 1000, &[8]), "more messages than there is room for"),
        (post(1, u64::MAX, &[8]), "more messages than there is room for"),
    ]) {
        raw.enter(session);
        raw.say(&frames);
        let answer = raw.hear();
        assert_eq!(answer[6], REFUSED, "{why}");
        assert!(contains(&answer, why.as_bytes()), "{why}: {}", String::from_utf8_lossy(&answer));
        match inbox.receive(soon()) {
            Some(Received::Lost(peer, error)) => {
                assert_eq!(peer.courier, NOISE);
                assert!(error.to_string().contains(why), "{why}: {error}");
            }
            other => panic!("{why}: {other:?}"),
        }
        // It is over: what comes after that is not heard.
        raw.say(&post(2, 1, &[8]));
    }
    raw.enter(100);
    raw.say(&post(100, 1, &[8]));
    assert_eq!(receive(&mut inbox).request(), RequestId(100));
}

#[test]
fn who_says_hello_again_and_again_leaves_room_for_others() {
    let (from, to) = (courier(), courier());
    let inbox = to.inbox("block", &options(LEASE)).unwrap();
    let context = zmq::Context::new();
    let raw = Raw::connect(&context, &endpoint(&inbox));
    for session in 0..1100 {
        raw.say(&[hello(session, "block")]);
    }
    // What is answered last was read last.
    let mut last = hello(0, "block");
    last[4] = 9;
    raw.say(&[last]);
    while !contains(&raw.hear(), b"version 9") {}
    drop(raw);
    let address = elsewhere(&inbox);
    let room = within(Duration::from_secs(5), || from.connect(&address).is_ok());
    assert!(room, "{inbox:?}: those who are gone take all the room");
}

/// Raises a flag when it is dropped, also by a panic.
struct Raise(Arc<AtomicBool>);

impl Drop for Raise {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Makes noise while an honest sender sends, of which everything must arrive.
fn undisturbed(
    inbox: &mut Inbox,
    mut sender: Sender,
    honest: &Courier,
    noise: impl FnOnce() + Send + 'static,
) {
    let quiet = Arc::new(AtomicBool::new(false));
    let raise = Raise(Arc::clone(&quiet));
    let noise = thread::spawn(move || {
        let _raise = raise;
        noise();
    });
    let sending = thread::spawn(move || {
        let mut count = 0;
        while count < 100 || !quiet.load(Ordering::SeqCst) {
            let message = Message::new(RequestId(count), "honest", &["block"]).unwrap();
            let message = message.with_tensors(vec![payload(count, 100)]);
            sender.send(message, soon()).unwrap();
            count += 1;
        }
        sender.finish(soon()).unwrap();
        assert!(sender.failed().is_empty());
        (sender, count)
    });
    let mut next = 0;
    while !sending.is_finished() {
        match inbox.receive(Wait::at_most(Duration::from_millis(20))) {
            Some(Received::Message(message)) if message.task() == "honest" => {
                assert_eq!(message.request(), RequestId(next));
                check_payload(&message, 100);
                next += 1;
            }
            // By chance some nonsense is a message.
            Some(Received::Message(_)) | None => {}
            Some(
                Received::Failed { peer, .. }
                | Received::Closed(peer)
                | Received::Lost(peer, _)
                | Received::Interrupted(peer)
                | Received::Resumed(peer),
            ) => assert_ne!(peer.courier, honest.id()),
        }
    }
    let (sender, count) = sending.join().unwrap();
    assert_eq!(next, count);
    noise.join().unwrap();
    drop(sender);
}

/// A message of a peer that breaks a rule, or most likely does.
fn nonsense(random: &mut Random, request: u128) -> Vec<Vec<u8>> {
    const EXTREMES: [u64; 8] =
        [0, 1, 0xff, 0x7fff, 0xffff_ffff, 1 << 40, i64::MAX as u64, u64::MAX];
    let sizes: Vec<_> = (0..random.below(4)).map(|_| random.below(64)).collect();
    let sequence = match random.below(4) {
        0 => EXTREMES[random.below(EXTREMES.len())],
        _ => 1 + random.below(3) as u64,
    };
    let mut frames = post(request, sequence, &sizes);
    let len = frames[0].len();
    match random.below(9) {
        0 => {
            for _ in 0..1 + random.below(8) {
                frames[0][random.below(len)] = random.next() as u8;
            }
        }
        1 => frames[0].truncate(random.below(len)),
        2 => {
            let more = 1 + random.below(100);
            frames[0].extend(random.bytes(more));
        }
        3 => {
            let width = [2, 4, 8][random.below(3)];
            let at = random.below(len - width);
            let value = EXTREMES[random.below(EXTREMES.len())].to_le_bytes();
            frames[0][at..at + width].copy_from_slice(&value[..width]);
        }
        4 => drop(frames.pop()),
        5 => {
            let more = random.below(100);
            frames.push(random.bytes(more));
        }
        6 => {
            let which = random.below(frames.len());
            let len = random.below(200);
            frames[which] = random.bytes(len);
        }
        7 => {
            // A frame of control with anything in it; its kind is mostly one that there is.
            let len = random.below(100);
            let mut frame = b"TsMC".to_vec();
            frame.extend(VERSION.to_le_bytes());
            frame.push(1 + random.below(6) as u8);
            frame.extend(random.bytes(len));
            frames = vec![frame];
        }
        _ => {
            let len = random.below(300);
            frames = (0..1 + random.below(4)).map(|_| random.bytes(len)).collect();
        }
    }
    if frames.is_empty() {
        frames.push(Vec::new());
    }
    frames
}

#[test]
fn nonsense_from_the_network_does_not_disturb_an_honest_sender() {
    let (from, to) = (courier(), courier());
    let mut inbox = to.inbox("block", &options(LEASE)).unwrap();
    let sender = from.connect(&elsewhere(&inbox)).unwrap();
    let endpoint = endpoint(&inbox);
    undisturbed(&mut inbox, sender, &from, move || {
        let mut random = Random(0x0dd);
        let context = zmq::Context::new();
        for connection in 0..40u128 {
            let raw = Raw::connect(&context, &endpoint);
            raw.say(&nonsense(&mut random, 0));
            for variant in 0..50u128 {
                raw.enter((1 + connection) << 64 | variant);
                let frames = nonsense(&mut random, 1 << 100 | variant);
                raw.say(&frames);
                if random.below(8) == 0 {
                    raw.say(&frames);
                }
                raw.say(&[bye(0)]);
            }
            // And one who does not even speak ZeroMQ.
            let mut stranger =
                TcpStream::connect(endpoint.strip_prefix("tcp://").unwrap()).unwrap();
            let len = random.below(1000);
            // It may be thrown out before it has said all.
            stranger.write_all(&random.bytes(len)).ok();
        }
    });
}

/// Connects to a courier as processes of its host do.
fn knock(courier: u64) -> OwnedFd {
    let user = rustix::process::geteuid().as_raw();
    let name = format!("tessera/{user}/{courier:016x}");
    let name = net::SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let (family, kind) = (net::AddressFamily::UNIX, net::SocketType::SEQPACKET);
    let socket = net::socket_with(family, kind, net::SocketFlags::CLOEXEC, None).unwrap();
    net::connect(&socket, &name).unwrap();
    let timeout = net::sockopt::Timeout::Recv;
    net::sockopt::set_socket_timeout(&socket, timeout, Some(SOON)).unwrap();
    socket
}

/// The next packet; empty where the other side closed.
fn next_packet(link: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    let (len, _) = net::recv(link, &mut bytes[..], net::RecvFlags::empty()).unwrap();
    bytes.truncate(len);
    bytes
}

fn ask(courier: u64, packet: &[u8]) -> Vec<u8> {
    let link = knock(courier);
    net::send(&link, packet, net::SendFlags::NOSIGNAL).unwrap();
    next_packet(&link)
}

/// A packet after `src/protocol.rs`.
fn packet(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = b"TsMQ".to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.push(kind);
    bytes.extend(rest);
    bytes
}

/// What asks for a channel to an inbox.
fn open(inbox: &str) -> Vec<u8> {
    packet(1, &[&NOISE.to_le_bytes()[..], inbox.as_bytes()].concat())
}

const OPENED: u8 = 2;
const NOT_OPENED: u8 = 255;

#[test]
fn a_packet_that_is_not_understood_is_told_why() {
    let to = courier();
    let inbox = to.inbox("block", &InboxOptions::default()).unwrap();
    let mut newer = open("block");
    newer[4] = 9;
    let nowhere = [to.id().to_le_bytes(), 77u64.to_le_bytes()].concat();
    for (packet, why) in [
        (newer, "the peer speaks version 9 of TensorMQ, this process version 1"),
        (open("nowhere"), "there is no inbox \"nowhere\""),
        (open("block"), "a channel without a bell"),
        (packet(3, &nowhere), "there is no such pool"),
        (packet(5, &[]), "neither a channel nor a pool was asked for"),
        (packet(77, &[]), "not one of TensorMQ"),
        (packet(1, &[1, 2, 3]), "cut short"),
        (b"GET / HTTP/1.1".to_vec(), "not one of TensorMQ"),
    ] {
        let answer = ask(to.id(), &packet);
        assert_eq!(answer.get(6), Some(&NOT_OPENED), "{why}");
        assert!(contains(&answer, why.as_bytes()), "{why}: {}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(inbox.senders(), 0);
}

#[test]
fn a_peer_that_opens_a_channel_and_goes_on_with_nonsense_is_lost_when_it_goes() {
    let to = courier();
    let mut inbox = to.inbox("block", &InboxOptions::default()).unwrap();
    let link = knock(to.id());
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let descriptors = [bell.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(net::SendAncillaryMessage::ScmRights(&descriptors)));
    let packet = open("block");
    let flags = net::SendFlags::NOSIGNAL;
    net::sendmsg(&link, &[IoSlice::new(&packet)], &mut control, flags).unwrap();
    assert_eq!(next_packet(&link)[6], OPENED);
    let mut random = Random(7);
    for len in 1..100 {
        net::send(&link, &random.bytes(len), flags).unwrap();
    }
    until("it is in", || inbox.senders() == 1);
    assert!(inbox.try_receive().is_none());
    drop(link);
    match inbox.receive(soon()) {
        Some(Received::Lost(peer, error)) => {
            assert_eq!((peer.courier, peer.transport), (NOISE, Transport::Shm));
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        other => panic!("expected the loss, got {other:?}"),
    }
}

#[test]
fn nonsense_from_this_host_does_not_disturb_an_honest_sender() {
    let (from, to) = (courier(), courier());
    let mut inbox = to.inbox("block", &InboxOptions::default()).unwrap();
    let sender = from.connect(inbox.address()).unwrap();
    assert_eq!(sender.peer().transport, Transport::Shm);
    let courier = to.id();
    undisturbed(&mut inbox, sender, &from, move || {
        let mut random = Random(0xa11);
        for _ in 0..1000 {
            let len = 1 + random.below(5000);
            let mut bytes = match random.below(4) {
                0 => random.bytes(len),
                1 => packet(random.below(8) as u8, &random.bytes(len)),
                2 => open("block"),
                _ => packet(3, &random.bytes(16)),
            };
            let at = random.below(bytes.len());
            bytes[at] ^= random.next() as u8;
            let answer = ask(courier, &bytes);
            assert!(answer.is_empty() || answer[6] == NOT_OPENED, "{bytes:?}: {answer:?}");
            // Some say nothing at all.
            drop(knock(courier));
        }
    });
}
