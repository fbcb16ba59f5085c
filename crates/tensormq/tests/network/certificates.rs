//! Who may connect through TLS: those whose certificate has our authority, and who are who we
//! expect.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use tessera_tensormq::{
    Endpoint, EndpointOptions, InboxOptions, ListenAddress, Received, RequestId, Security,
    TlsIdentity,
};

use crate::common::network::Cluster;
use crate::common::{
    LEASE, LOCAL, LONG, SOON, elsewhere, elsewhere_at, exchange, is_readable_on_the_way, listen,
    message, options, receive, refused, socket_address, soon, start_endpoint, tcp_listener, until,
    within,
};

fn endpoint_of(identity: TlsIdentity) -> Endpoint {
    Endpoint::start(EndpointOptions { tls: Some(identity), ..EndpointOptions::default() }).unwrap()
}

fn plain() -> InboxOptions {
    InboxOptions { listen: listen(LOCAL, Security::Plain), ..options(LONG) }
}

#[test]
fn what_is_encrypted_arrives_and_nobody_on_the_way_can_read_it() {
    for (options, readable) in [(plain(), true), (options(LONG), false)] {
        let (from, to) = (start_endpoint(), start_endpoint());
        let mut inbox = to.create_inbox("unit", &options).unwrap();
        assert_eq!(tcp_listener(&inbox).server_name.is_none(), readable);
        assert_eq!(is_readable_on_the_way(&from, &mut inbox), readable);
    }
}

#[test]
fn only_those_of_the_authority_get_in_and_only_whom_we_expect_is_believed() {
    let to = start_endpoint();
    let mut inbox = to.create_inbox("unit", &options(LONG)).unwrap();
    let address = elsewhere(&inbox);
    let expired = Cluster::shared().identity_for("node", Duration::ZERO);
    // It counts in seconds.
    thread::sleep(Duration::from_millis(1100));
    for identity in [Cluster::new().identity("node"), expired] {
        let stranger = endpoint_of(identity);
        refused(&stranger, &address);
        // Nor do we believe one that it is.
        let theirs = stranger.create_inbox("theirs", &options(LONG)).unwrap();
        refused(&start_endpoint(), &elsewhere(&theirs));
    }
    // Another of ours is not who we expect.
    let other = endpoint_of(Cluster::shared().identity("other"));
    let server_name = Some("other.node.tessera".to_owned());
    refused(&other, &elsewhere_at(&inbox, ListenAddress { server_name, ..tcp_listener(&inbox) }));
    exchange(&other, &address, &mut inbox);
    // Those who were refused left nothing behind.
    assert_eq!(inbox.sender_count(), 0);
    assert!(inbox.try_receive().is_none());
}

#[test]
fn who_does_not_encrypt_is_refused_and_who_does_is_where_nobody_else_does() {
    let to = start_endpoint();
    let mut inbox = to.create_inbox("unit", &options(LONG)).unwrap();
    let nobody = Endpoint::start(EndpointOptions::default()).unwrap();
    refused(
        &nobody,
        &elsewhere_at(&inbox, ListenAddress { server_name: None, ..tcp_listener(&inbox) }),
    );
    let error = nobody.connect(&elsewhere(&inbox)).unwrap_err().to_string();
    assert!(error.contains("needs an endpoint with a certificate"), "{error}");
    let error = nobody.create_inbox("own", &options(LONG)).unwrap_err().to_string();
    assert!(error.contains("needs an endpoint with a certificate"), "{error}");
    let open = nobody.create_inbox("open", &plain()).unwrap();
    let server_name = Some("node.node.tessera".to_owned());
    let from = start_endpoint();
    refused(&from, &elsewhere_at(&open, ListenAddress { server_name, ..tcp_listener(&open) }));
    exchange(&from, &elsewhere(&inbox), &mut inbox);
}

#[test]
fn strangers_are_thrown_out_and_disturb_nobody() {
    let to = start_endpoint();
    let mut inbox = to.create_inbox("unit", &options(LONG)).unwrap();
    let target = socket_address(&inbox);
    let target = target.strip_prefix("tcp://").unwrap();
    // Those who say nothing wait for a while, and keep nobody.
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(target).unwrap()).collect();
    for said in [&b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..], &[0; 5000], &[22, 3, 1, 255, 255]] {
        let mut stranger = TcpStream::connect(target).unwrap();
        stranger.set_read_timeout(Some(SOON)).unwrap();
        stranger.write_all(said).ok();
        // It is closed, with an alert or without one.
        let mut answer = Vec::new();
        stranger.read_to_end(&mut answer).ok();
        assert!(answer.len() < 100, "{answer:?}");
    }
    // One that goes on to say something, and never shakes hands.
    let mut slow = TcpStream::connect(target).unwrap();
    let dripping = thread::spawn(move || {
        let start = Instant::now();
        // The head of a record of 512 bytes, and those one by one.
        slow.write_all(&[22, 3, 1, 2, 0]).unwrap();
        while slow.write_all(&[1]).is_ok() && start.elapsed() < SOON {
            thread::sleep(Duration::from_millis(100));
        }
        start.elapsed()
    });
    exchange(&start_endpoint(), &elsewhere(&inbox), &mut inbox);
    assert!(dripping.join().unwrap() < Duration::from_secs(6));
    for mut stranger in silent {
        stranger.set_read_timeout(Some(SOON)).unwrap();
        let mut answer = Vec::new();
        stranger.read_to_end(&mut answer).unwrap();
    }
}

#[test]
fn a_node_that_is_removed_is_cut_off_at_once_and_does_not_come_back() {
    let own = Cluster::shared().identity("own");
    let to = endpoint_of(own.clone());
    let mut inbox = to.create_inbox("unit", &options(LEASE)).unwrap();
    let address = elsewhere(&inbox);
    let (leaving, staying) =
        ["leaving", "staying"].map(|name| endpoint_of(Cluster::shared().identity(name))).into();
    let mut removed = leaving.connect(&address).unwrap();
    let mut other = staying.connect(&address).unwrap();
    for sender in [&mut removed, &mut other] {
        sender.send(message(1), soon()).unwrap();
        drop(receive(&mut inbox));
    }
    own.set_removed_peers(["leaving.node.tessera".to_owned()]);
    let cut = within(Duration::from_millis(500), || removed.is_interrupted() || removed.is_lost());
    assert!(cut, "its connection is open");
    refused(&leaving, &address);
    until("it is told to be gone", || match inbox.try_receive() {
        Some(Received::Lost(peer, _)) => peer.endpoint_id == leaving.id(),
        Some(Received::Message(message)) => panic!("{message:?}"),
        _ => false,
    });
    other.send(message(2), soon()).unwrap();
    assert_eq!(receive(&mut inbox).request(), RequestId(2));
    // One that joins again under its name is welcome.
    own.set_removed_peers([]);
    drop(leaving.connect(&address).unwrap());
}

#[test]
fn a_certificate_is_renewed_while_connections_go_on() {
    let cluster = Cluster::new();
    let short = cluster.identity_for("node", Duration::from_secs(1));
    let to = endpoint_of(short.clone());
    let mut inbox = to.create_inbox("unit", &options(LONG)).unwrap();
    let address = elsewhere(&inbox);
    let from = endpoint_of(cluster.identity("other"));
    let mut sender = from.connect(&address).unwrap();
    thread::sleep(Duration::from_millis(2100));
    refused(&from, &address);
    let (certificate, key, authority) = cluster.certificate("node", Duration::from_secs(60));
    let foreign = Cluster::new().certificate("node", Duration::from_secs(60));
    assert!(short.renew(&certificate, &foreign.1, &authority).is_err());
    short.renew(&certificate, &key, &authority).unwrap();
    sender.send(message(1), soon()).unwrap();
    assert_eq!(receive(&mut inbox).request(), RequestId(1));
    drop(sender);
    assert!(matches!(inbox.receive(soon()), Some(Received::Closed(_))));
    exchange(&from, &address, &mut inbox);
}
