//! What an inbox for other hosts is told when it is made: who may connect, at which address, and
//! how large a tensor may be.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::relay::Relay;
use common::{
    LEASE, LOCAL, LONG, SLACK, SOON, check_payload, elsewhere, elsewhere_at, fates, listen,
    message, options, pair, payload, receive, socket_address, soon, start_endpoint, tcp_listener,
    within,
};
use tessera_core::{DType, ErrorKind, Tensor};
use tessera_tensormq::{
    Address, ConnectOptions, CurveKeys, Endpoint, EndpointOptions, Inbox, InboxOptions, Listen,
    ListenAddress, MessageFate, Received, RequestId, Security, Transport, Wait,
};

fn keyed(keys: &CurveKeys) -> Endpoint {
    Endpoint::start(EndpointOptions { keys: Some(keys.clone()), ..EndpointOptions::default() })
        .unwrap()
}

fn encrypted(allowed: Vec<String>) -> InboxOptions {
    InboxOptions { listen: listen(LOCAL, Security::Curve { allowed }), ..options(LONG) }
}

/// Connects, and is refused before the time is over.
fn refused(from: &Endpoint, address: &Address) {
    let timeout = Duration::from_secs(2);
    let start = Instant::now();
    let options = ConnectOptions { timeout, ..ConnectOptions::default() };
    let error = from.connect_with_options(address, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(start.elapsed() < timeout + SLACK, "{:?}", start.elapsed());
}

fn exchange(from: &Endpoint, address: &Address, inbox: &mut Inbox) {
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

#[test]
fn what_is_encrypted_arrives_and_nobody_on_the_way_can_read_it() {
    const SECRET: &[u8] = b"a secret that nobody on the way must see";
    let keys = CurveKeys::generate().unwrap();
    for (options, readable) in [(options(LONG), true), (encrypted(Vec::new()), false)] {
        let (from, to) = (keyed(&CurveKeys::generate().unwrap()), keyed(&keys));
        let mut inbox = to.create_inbox("unit", &options).unwrap();
        assert_eq!(tcp_listener(&inbox).public_key, (!readable).then(|| keys.public_key()));
        let relay = Relay::before(&inbox);
        relay.record();
        let mut sender = from.connect(&relay.address(&inbox)).unwrap();
        let tensor = Tensor::copy_from_bytes(DType::U8, &[SECRET.len()], SECRET).unwrap();
        sender.send(message(1).with_tensors(vec![tensor]), soon()).unwrap();
        assert_eq!(receive(&mut inbox).tensors()[0].bytes().unwrap(), SECRET);
        assert_eq!(relay.heard(SECRET), readable);
    }
}

#[test]
fn only_who_has_the_right_key_gets_in() {
    let keys = CurveKeys::generate().unwrap();
    let (friend, stranger) = (CurveKeys::generate().unwrap(), CurveKeys::generate().unwrap());
    let to = keyed(&keys);

    let mut open = to.create_inbox("open", &encrypted(Vec::new())).unwrap();
    let address = elsewhere(&open);
    let nobody = start_endpoint();
    exchange(&nobody, &address, &mut open);
    exchange(&keyed(&stranger), &address, &mut open);
    for public_key in [Some(stranger.public_key()), None] {
        refused(&nobody, &elsewhere_at(&open, ListenAddress { public_key, ..tcp_listener(&open) }));
    }

    let mut closed = to.create_inbox("closed", &encrypted(vec![friend.public_key()])).unwrap();
    let address = elsewhere(&closed);
    refused(&keyed(&stranger), &address);
    refused(&nobody, &address);
    exchange(&keyed(&friend), &address, &mut closed);
    // Those who were refused left nothing behind.
    assert_eq!((open.sender_count(), closed.sender_count()), (0, 0));
    assert!(open.try_receive().is_none() && closed.try_receive().is_none());
}

#[test]
fn keys_come_back_from_their_text_and_nonsense_is_refused() {
    let keys = CurveKeys::generate().unwrap();
    let again = CurveKeys::from_text(&keys.public_key(), &keys.secret_key()).unwrap();
    assert_eq!((again.public_key(), again.secret_key()), (keys.public_key(), keys.secret_key()));
    assert!(!format!("{keys:?}").contains(&keys.secret_key()));

    let error = start_endpoint().create_inbox("unit", &encrypted(Vec::new())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "an inbox without keys: {error}");

    let (from, to) = (start_endpoint(), keyed(&keys));
    let inbox = to.create_inbox("unit", &encrypted(Vec::new())).unwrap();
    let nonsense = ["", "short", &keys.public_key()[1..]].map(str::to_owned);
    let as_long_as_one = ["~".repeat(40), " ".repeat(40), "é".repeat(20), "#".repeat(40)];
    for text in nonsense.into_iter().chain(as_long_as_one) {
        let listener = ListenAddress { public_key: Some(text.clone()), ..tcp_listener(&inbox) };
        let address = elsewhere_at(&inbox, listener);
        for error in [
            CurveKeys::from_text(&text, &keys.secret_key()).unwrap_err(),
            CurveKeys::from_text(&keys.public_key(), &text).unwrap_err(),
            to.create_inbox("other", &encrypted(vec![text.clone()])).unwrap_err(),
            from.connect(&address).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Usage, "{text:?}: {error}");
        }
    }
}

#[test]
fn an_inbox_listens_at_addresses_of_both_families() {
    let (from, to) = (start_endpoint(), start_endpoint());
    for socket_address in [LOCAL, "tcp://[::1]:0"] {
        let listen = listen(socket_address, Security::Plain);
        let mut inbox = to.create_inbox("unit", &InboxOptions { listen, ..options(LONG) }).unwrap();
        let address = elsewhere(&inbox);
        exchange(&from, &address, &mut inbox);
    }
}

#[test]
fn an_inbox_tells_the_address_at_which_it_was_told_to_listen() {
    let to = start_endpoint();
    for host in ["tcp://127.0.0.1:", "tcp://[::1]:"] {
        let listen = listen(&format!("{host}0"), Security::Plain);
        let inbox = to.create_inbox("unit", &InboxOptions { listen, ..options(LONG) }).unwrap();
        // Also for hosts that have only the older family.
        assert!(socket_address(&inbox).starts_with(host), "{}", socket_address(&inbox));
    }
}

#[test]
fn an_inbox_that_listens_at_all_addresses_must_be_told_its_name() {
    let (from, to) = (start_endpoint(), start_endpoint());
    for socket_address in ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0"] {
        let with = |advertise: Option<&str>| {
            let (socket_address, advertise) =
                (Some(socket_address.to_owned()), advertise.map(str::to_owned));
            let plain = Listen::within_host(Transport::ZMQ_TCP);
            let listen = vec![Listen { socket_address, advertise, ..plain }];
            to.create_inbox("unit", &InboxOptions { listen, ..options(LONG) })
        };
        match with(None) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Usage, "{socket_address}: {error}");
                assert!(error.to_string().starts_with("inbox \"unit\": "), "{error}");
            }
            Ok(inbox) => panic!("{socket_address} is told as {:?}", inbox.address().listeners),
        }
        let mut inbox = with(Some("127.0.0.1")).unwrap();
        let address = elsewhere(&inbox);
        let told = tcp_listener(&inbox).socket_address;
        assert!(told.starts_with("tcp://127.0.0.1:"), "{address:?}");
        exchange(&from, &address, &mut inbox);
    }
}

#[test]
fn a_socket_address_that_makes_no_sense_is_an_error() {
    let (from, to) = (start_endpoint(), start_endpoint());
    let inbox = to.create_inbox("unit", &options(LONG)).unwrap();
    let nonsense =
        ["", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:port", "127.0.0.1", "tcp://\0:1"];
    for socket_address in nonsense {
        let listen = listen(socket_address, Security::Plain);
        let other = to.create_inbox("other", &InboxOptions { listen, ..options(LONG) });
        assert!(other.is_err(), "{socket_address:?}");
        let socket_address = socket_address.to_owned();
        let listener = ListenAddress { socket_address, ..tcp_listener(&inbox) };
        let address = elsewhere_at(&inbox, listener);
        let timeout = Duration::from_millis(200);
        let options = ConnectOptions { timeout, ..ConnectOptions::default() };
        assert!(from.connect_with_options(&address, &options).is_err(), "{address:?}");
    }
}

#[test]
fn a_tensor_that_is_too_large_for_an_inbox_is_an_error_for_its_sender() {
    let mut pair = pair(&InboxOptions { largest_tensor_bytes: 1 << 20, ..options(LEASE) }, 1);
    let tensors = vec![payload(1, 2 << 20)];
    let error = match pair.sender.send(message(1).with_tensors(tensors), soon()) {
        Err(not_sent) => not_sent.error,
        Ok(_) => {
            pair.sender.wait_until_finished(Wait::at_most(Duration::from_secs(5))).unwrap_err()
        }
    };
    assert!(!matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Full), "{error}");
    for (request, fate) in fates(&mut pair.sender) {
        assert_eq!(request, 1);
        assert_ne!(fate, MessageFate::Taken);
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
    let keys = CurveKeys::generate().unwrap();
    let (from, to) = (start_endpoint(), keyed(&keys));
    for options in [options(LONG), encrypted(Vec::new())] {
        let options = InboxOptions { largest_tensor_bytes: 100_000, ..options };
        let mut inbox = to.create_inbox("unit", &options).unwrap();
        let mut sender = from.connect(&elsewhere(&inbox)).unwrap();
        let tensors = vec![payload(1, 100_000)];
        sender.send(message(1).with_tensors(tensors), soon()).unwrap();
        match inbox.receive(soon()) {
            Some(Received::Message(message)) => check_payload(&message, 100_000),
            other => panic!("{:?}: {other:?}", options.listen),
        }
    }
}
