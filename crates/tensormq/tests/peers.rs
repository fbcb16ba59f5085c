//! Whom a process sends to by name: they are found again where another took the place of one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::time::{Duration, Instant};

use tessera_core::ErrorKind;
use tessera_tensormq::{
    Endpoint, EndpointOptions, Inbox, Listen, Message, Peers, Received, RequestId, Transport, Wait,
};

fn peers(transport: Option<Transport>) -> Peers {
    let endpoint = Endpoint::start(EndpointOptions::default()).unwrap();
    Peers::with_transport(endpoint, transport).with_network(Listen {
        socket_address: Some("tcp://127.0.0.1:0".to_owned()),
        ..Listen::within_host(Transport::TCP)
    })
}

fn send(from: &Peers, number: u128) -> Result<(), ErrorKind> {
    let message = Message::new(RequestId(number), "task", b"route").unwrap();
    from.send_to("instance", message, Wait::No).map_err(|not_sent| not_sent.error.kind())
}

fn receive(inbox: &mut Inbox) -> RequestId {
    match inbox.receive(Wait::at_most(Duration::from_secs(5))) {
        Some(Received::Message(message)) => message.request(),
        _ => panic!("nothing came"),
    }
}

#[test]
fn one_that_took_the_place_of_another_is_found_under_its_name_and_at_its_port() {
    for transport in [None, Some(Transport::TCP)] {
        let (here, there) = (peers(transport), peers(transport));
        let mut inbox = there.create_inbox("instance", 8).unwrap();
        let address = inbox.address().clone();
        here.add_peer("instance", address.clone());
        send(&here, 1).unwrap();
        assert_eq!(receive(&mut inbox), RequestId(1));
        drop((inbox, there));
        let until = Instant::now() + Duration::from_secs(20);
        // What is sent before the other is known to be gone is lost with it.
        while send(&here, 2).is_ok() {
            assert!(Instant::now() < until, "nobody noticed that it is gone");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Nobody waits for it meanwhile.
        let asked = Instant::now();
        assert_eq!(send(&here, 3), Err(ErrorKind::Lost));
        assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
        let again = peers(transport);
        let port = address.port_of(Transport::TCP).unwrap();
        again.prefer_port("instance", port);
        let mut inbox = again.create_inbox("instance", 8).unwrap();
        assert_eq!(inbox.address().port_of(Transport::TCP), Some(port));
        while send(&here, 4).is_err() {
            assert!(Instant::now() < until, "it is not found again");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(receive(&mut inbox), RequestId(4));
        // A port that another has is no reason not to begin.
        let third = peers(transport);
        third.prefer_port("instance", port);
        assert_ne!(
            third.create_inbox("instance", 8).unwrap().address().port_of(Transport::TCP),
            Some(port)
        );
    }
}
