//! What the tests share: endpoints, inboxes and messages, a sender and an inbox with a network
//! between them, and patience.

#![allow(dead_code, reason = "every test binary uses a part of this")]

pub(crate) mod honest;
pub(crate) mod network;
pub(crate) mod random;
pub(crate) mod raw;
pub(crate) mod relay;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use tessera_core::{DType, ErrorKind, Tensor};
use tessera_tensormq::{
    Address, ConnectOptions, Endpoint, Inbox, InboxOptions, Listen, ListenAddress, Message,
    MessageFate, Received, RequestId, Security, Sender, Wait,
};

use crate::NETWORK;
use relay::Relay;

/// Number of the endpoint that those who send nonsense say they have.
pub(crate) const NOISE: u64 = 0xbad;
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// A lease that passes while a test waits for it.
pub(crate) const LEASE: Duration = Duration::from_millis(200);
/// A lease that does not.
pub(crate) const LONG: Duration = Duration::from_secs(10);
/// After so long a sender gives up: the lease, and as long again as the receiver may need to
/// notice.
pub(crate) const PATIENCE: Duration = LEASE.saturating_add(Duration::from_secs(3));
/// What it may need on top of that.
pub(crate) const SLACK: Duration = Duration::from_millis(1500);
pub(crate) const LOCAL: &str = "tcp://127.0.0.1:0";

pub(crate) fn soon() -> Wait {
    Wait::at_most(SOON)
}

pub(crate) fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

pub(crate) fn until(what: &str, done: impl FnMut() -> bool) {
    assert!(within(SOON, done), "{what}");
}

pub(crate) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

pub(crate) fn start_endpoint() -> Endpoint {
    Endpoint::start(NETWORK.endpoint_options()).unwrap()
}

pub(crate) fn listen(socket_address: &str, security: Security) -> Vec<Listen> {
    let socket_address = Some(socket_address.to_owned());
    vec![Listen { socket_address, security, ..Listen::within_host(NETWORK.transport()) }]
}

pub(crate) fn options(lease: Duration) -> InboxOptions {
    InboxOptions {
        listen: listen(LOCAL, NETWORK.security()),
        session_lease: lease,
        ..InboxOptions::default()
    }
}

/// The inbox as it looks from another host.
pub(crate) fn elsewhere(inbox: &Inbox) -> Address {
    Address { host: "elsewhere/0/0".to_owned(), ..inbox.address().clone() }
}

/// The inbox as it looks from another host, found where and with which key is said.
pub(crate) fn elsewhere_at(inbox: &Inbox, listener: ListenAddress) -> Address {
    elsewhere(inbox).with_listener(NETWORK.transport(), listener)
}

/// Where it listens for other hosts.
pub(crate) fn tcp_listener(inbox: &Inbox) -> ListenAddress {
    inbox.address().listener_of(NETWORK.transport()).cloned().unwrap()
}

pub(crate) fn socket_address(inbox: &Inbox) -> String {
    tcp_listener(inbox).socket_address
}

/// A sender and an inbox with a network between them.
pub(crate) struct Pair {
    pub(crate) from: Endpoint,
    pub(crate) to: Endpoint,
    pub(crate) inbox: Inbox,
    pub(crate) relay: Relay,
    pub(crate) sender: Sender,
}

pub(crate) fn pair(options: &InboxOptions, lanes: u16) -> Pair {
    let (from, to) = (start_endpoint(), start_endpoint());
    let inbox = to.create_inbox("unit", options).unwrap();
    let relay = Relay::before(&inbox);
    let connect = ConnectOptions { lanes, ..ConnectOptions::default() };
    let sender = from.connect_with_options(&relay.address(&inbox), &connect).unwrap();
    assert_eq!(sender.peer().transport, NETWORK.transport());
    Pair { from, to, inbox, relay, sender }
}

pub(crate) fn message(request: u128) -> Message {
    Message::new(RequestId(request), "task", b"unit").unwrap()
}

fn pattern(request: u128, len: usize) -> impl Iterator<Item = u8> {
    let start = request as usize;
    (0..len).map(move |index| (index ^ (index >> 8)).wrapping_mul(7).wrapping_add(start) as u8)
}

/// A tensor whose bytes tell which request it belongs to.
pub(crate) fn payload(request: u128, len: usize) -> Tensor {
    let bytes: Vec<u8> = pattern(request, len).collect();
    Tensor::copy_from_bytes(DType::U8, &[len], &bytes).unwrap()
}

pub(crate) fn check_payload(message: &Message, len: usize) {
    let request = message.request();
    let bytes = message.tensors()[0].bytes().unwrap();
    assert_eq!(bytes.len(), len, "request {request}");
    assert!(bytes.iter().copied().eq(pattern(request.0, len)), "request {request}");
}

pub(crate) fn receive(inbox: &mut Inbox) -> Message {
    match inbox.receive(soon()) {
        Some(Received::Message(message)) => message,
        other => panic!("expected a message, got {other:?}"),
    }
}

/// What became of the messages that will not be done; each is told once.
pub(crate) fn fates(sender: &mut Sender) -> BTreeMap<u128, MessageFate> {
    let mut fates = BTreeMap::new();
    for failed in sender.take_failed_messages() {
        let before = fates.insert(failed.request.0, failed.fate);
        assert!(before.is_none(), "{failed:?} was {before:?} before");
    }
    assert!(sender.take_failed_messages().is_empty());
    fates
}

/// Sends a little and much, which arrives, and leaves.
pub(crate) fn exchange(from: &Endpoint, address: &Address, inbox: &mut Inbox) {
    let mut sender = from.connect(address).unwrap();
    for (request, len) in [(1, 100), (2, 1 << 20)] {
        let tensors = vec![payload(request, len)];
        sender.send(message(request).with_tensors(tensors), soon()).unwrap();
        let received = receive(inbox);
        assert_eq!(received.request(), RequestId(request));
        check_payload(&received, len);
    }
    sender.wait_until_finished(soon()).unwrap();
    drop(sender);
    match inbox.receive(soon()) {
        Some(Received::Closed(peer)) => assert_eq!(peer.endpoint_id, from.id()),
        other => panic!("expected the end, got {other:?}"),
    }
}

/// Connects, and is refused before the time is over.
pub(crate) fn refused(from: &Endpoint, address: &Address) {
    let timeout = Duration::from_secs(2);
    let start = Instant::now();
    let options = ConnectOptions { timeout, ..ConnectOptions::default() };
    let error = from.connect_with_options(address, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(start.elapsed() < timeout + SLACK, "{:?}", start.elapsed());
}

/// Whether somebody between a sender and an inbox can read what is sent.
pub(crate) fn is_readable_on_the_way(from: &Endpoint, inbox: &mut Inbox) -> bool {
    const SECRET: &[u8] = b"a secret that nobody on the way must see";
    let relay = Relay::before(inbox);
    relay.record();
    let mut sender = from.connect(&relay.address(inbox)).unwrap();
    let tensor = Tensor::copy_from_bytes(DType::U8, &[SECRET.len()], SECRET).unwrap();
    sender.send(message(1).with_tensors(vec![tensor]), soon()).unwrap();
    assert_eq!(receive(inbox).tensors()[0].bytes().unwrap(), SECRET);
    relay.heard(SECRET)
}
