//! Who may connect over ZeroMQ: those who have the right keys.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::network::Network;
use common::{
    LOCAL, LONG, check_payload, elsewhere, elsewhere_at, exchange, is_readable_on_the_way, listen,
    message, options, payload, refused, soon, start_endpoint, tcp_listener,
};
use tessera_core::ErrorKind;
use tessera_tensormq::{
    CurveKeys, Endpoint, EndpointOptions, InboxOptions, ListenAddress, Received, Security,
};

const NETWORK: Network = Network::ZeroMq;

fn keyed(keys: &CurveKeys) -> Endpoint {
    Endpoint::start(EndpointOptions { keys: Some(keys.clone()), ..EndpointOptions::default() })
        .unwrap()
}

fn encrypted(allowed: Vec<String>) -> InboxOptions {
    InboxOptions { listen: listen(LOCAL, Security::Curve { allowed }), ..options(LONG) }
}

#[test]
fn what_is_encrypted_arrives_and_nobody_on_the_way_can_read_it() {
    let keys = CurveKeys::generate().unwrap();
    for (options, readable) in [(options(LONG), true), (encrypted(Vec::new()), false)] {
        let (from, to) = (keyed(&CurveKeys::generate().unwrap()), keyed(&keys));
        let mut inbox = to.create_inbox("unit", &options).unwrap();
        assert_eq!(tcp_listener(&inbox).public_key, (!readable).then(|| keys.public_key()));
        assert_eq!(is_readable_on_the_way(&from, &mut inbox), readable);
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
