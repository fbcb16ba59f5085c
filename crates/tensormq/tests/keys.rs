//! What an inbox for other hosts is told when it is made: who may connect, at which address, and how
//! large a tensor may be.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::relay::Relay;
use common::{
    LEASE, LOCAL, LONG, SLACK, SOON, check_payload, courier, elsewhere, endpoint, fates, listen,
    message, options, pair, payload, receive, soon, within,
};
use tessera_core::{DType, ErrorKind, Tensor};
use tessera_tensormq::{
    Address, ConnectOptions, Courier, CourierOptions, Fate, Inbox, InboxOptions, Keys, Listen,
    Received, RequestId, Security, Wait,
};

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
