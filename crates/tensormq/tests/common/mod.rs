//! What the tests share: couriers, inboxes and messages, a sender and an inbox with a network between
//! them, and patience.

#![allow(dead_code, reason = "every test binary uses a part of this")]

pub(crate) mod honest;
pub(crate) mod random;
pub(crate) mod raw;
pub(crate) mod relay;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use tessera_core::{DType, Tensor};
use tessera_tensormq::{
    Address, ConnectOptions, Courier, CourierOptions, Fate, Inbox, InboxOptions, Listen, Message,
    Received, RequestId, Security, Sender, Transport, Wait,
};

use relay::Relay;

pub(crate) const SOON: Duration = Duration::from_secs(20);
/// A lease that passes while a test waits for it.
pub(crate) const LEASE: Duration = Duration::from_millis(200);
/// A lease that does not.
pub(crate) const LONG: Duration = Duration::from_secs(10);
/// After so long a sender gives up: the lease, and as long again as the receiver may need to notice.
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

pub(crate) fn courier() -> Courier {
    Courier::start(CourierOptions::default()).unwrap()
}

pub(crate) fn listen(endpoint: &str, security: Security) -> Vec<Listen> {
    vec![Listen::Tcp { endpoint: endpoint.to_owned(), advertise: None, security }]
}

pub(crate) fn options(lease: Duration) -> InboxOptions {
    InboxOptions { listen: listen(LOCAL, Security::Plain), lease, ..InboxOptions::default() }
}

/// The inbox as it looks from another host.
pub(crate) fn elsewhere(inbox: &Inbox) -> Address {
    Address { host: "elsewhere/0/0".to_owned(), ..inbox.address().clone() }
}

pub(crate) fn endpoint(inbox: &Inbox) -> String {
    inbox.address().tcp.clone().unwrap()
}

/// A sender and an inbox with a network between them.
pub(crate) struct Pair {
    pub(crate) from: Courier,
    pub(crate) to: Courier,
    pub(crate) inbox: Inbox,
    pub(crate) relay: Relay,
    pub(crate) sender: Sender,
}

pub(crate) fn pair(options: &InboxOptions, lanes: u16) -> Pair {
    let (from, to) = (courier(), courier());
    let inbox = to.inbox("block", options).unwrap();
    let relay = Relay::before(&inbox);
    let connect = ConnectOptions { lanes, ..ConnectOptions::default() };
    let sender = from.connect_with(&relay.address(&inbox), &connect).unwrap();
    assert_eq!(sender.peer().transport, Transport::ZmqTcp);
    Pair { from, to, inbox, relay, sender }
}

pub(crate) fn message(request: u128) -> Message {
    Message::new(RequestId(request), "task", &["block"]).unwrap()
}

fn pattern(request: u128, len: usize) -> impl Iterator<Item = u8> {
    let start = request as usize;
    (0..len).map(move |index| (index ^ (index >> 8)).wrapping_mul(7).wrapping_add(start) as u8)
}

/// A tensor whose bytes tell which request it belongs to.
pub(crate) fn payload(request: u128, len: usize) -> Tensor {
    let bytes: Vec<u8> = pattern(request, len).collect();
    Tensor::copied(DType::U8, &[len], &bytes).unwrap()
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
pub(crate) fn fates(sender: &mut Sender) -> BTreeMap<u128, Fate> {
    let mut fates = BTreeMap::new();
    for failed in sender.failed() {
        let before = fates.insert(failed.request.0, failed.fate);
        assert!(before.is_none(), "{failed:?} was {before:?} before");
    }
    assert!(sender.failed().is_empty());
    fates
}
