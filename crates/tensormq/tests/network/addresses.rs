//! Where an inbox listens for other hosts, and how large a tensor may be.

use std::time::Duration;

use crate::NETWORK;
use crate::common::{
    LEASE, LOCAL, LONG, SOON, elsewhere, elsewhere_at, exchange, fates, listen, message, options,
    pair, payload, socket_address, soon, start_endpoint, tcp_listener, within,
};
use tessera_core::ErrorKind;
use tessera_tensormq::{
    ConnectOptions, InboxOptions, Listen, ListenAddress, MessageFate, Received, RequestId, Wait,
};

#[test]
fn an_inbox_listens_at_addresses_of_both_families() {
    let (from, to) = (start_endpoint(), start_endpoint());
    for socket_address in [LOCAL, "tcp://[::1]:0"] {
        let listen = listen(socket_address, NETWORK.security());
        let mut inbox = to.create_inbox("unit", &InboxOptions { listen, ..options(LONG) }).unwrap();
        let address = elsewhere(&inbox);
        exchange(&from, &address, &mut inbox);
    }
}

#[test]
fn an_inbox_advertises_the_address_at_which_it_listens() {
    let to = start_endpoint();
    for host in ["tcp://127.0.0.1:", "tcp://[::1]:"] {
        let listen = listen(&format!("{host}0"), NETWORK.security());
        let inbox = to.create_inbox("unit", &InboxOptions { listen, ..options(LONG) }).unwrap();
        // Also for hosts that have only the older family.
        assert!(socket_address(&inbox).starts_with(host), "{}", socket_address(&inbox));
    }
}

#[test]
fn an_inbox_that_listens_at_all_addresses_needs_a_name() {
    let (from, to) = (start_endpoint(), start_endpoint());
    for socket_address in ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0"] {
        let with = |advertise: Option<&str>| {
            let (socket_address, advertise) =
                (Some(socket_address.to_owned()), advertise.map(str::to_owned));
            let (transport, security) = (NETWORK.transport(), NETWORK.security());
            let listen = vec![Listen { transport, socket_address, advertise, security }];
            to.create_inbox("unit", &InboxOptions { listen, ..options(LONG) })
        };
        match with(None) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Usage, "{socket_address}: {error}");
                assert!(error.to_string().starts_with("inbox \"unit\": "), "{error}");
            }
            Ok(inbox) => {
                panic!("{socket_address} is advertised as {:?}", inbox.address().listeners)
            }
        }
        let mut inbox = with(Some("127.0.0.1")).unwrap();
        let address = elsewhere(&inbox);
        let advertised = tcp_listener(&inbox).socket_address;
        assert!(advertised.starts_with("tcp://127.0.0.1:"), "{address:?}");
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
        let listen = listen(socket_address, NETWORK.security());
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
fn a_port_whose_inbox_was_closed_is_bound_again_at_once() {
    let (from, to) = (start_endpoint(), start_endpoint());
    let first = to.create_inbox("unit", &options(LONG)).unwrap();
    let address = socket_address(&first);
    let sender = from.connect(&elsewhere(&first)).unwrap();
    // Its sender has yet to hear of it.
    drop(first);
    let listen = listen(&address, NETWORK.security());
    let mut again = to.create_inbox("unit", &InboxOptions { listen, ..options(LONG) }).unwrap();
    drop(sender);
    let address = elsewhere(&again);
    exchange(&from, &address, &mut again);
}
