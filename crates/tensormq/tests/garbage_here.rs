//! Processes of this host that send nonsense.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use common::honest::undisturbed;
use common::network::Network;
use common::random::Random;
use common::{NOISE, SOON, contains, soon, start_endpoint, until};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net;
use tessera_core::ErrorKind;
use tessera_tensormq::layout::VERSION;
use tessera_tensormq::{InboxOptions, Received, Transport};

const NETWORK: Network = Network::Tcp;

/// Connects to an endpoint as processes of its host do.
fn connect(endpoint_id: u64) -> OwnedFd {
    let user = rustix::process::geteuid().as_raw();
    let name = format!("tessera/{user}/{endpoint_id:016x}");
    let name = net::SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let (family, kind) = (net::AddressFamily::UNIX, net::SocketType::SEQPACKET);
    let socket = net::socket_with(family, kind, net::SocketFlags::CLOEXEC, None).unwrap();
    net::connect(&socket, &name).unwrap();
    let timeout = net::sockopt::Timeout::Recv;
    net::sockopt::set_socket_timeout(&socket, timeout, Some(SOON)).unwrap();
    socket
}

/// The next packet; empty where the other side closed.
fn next_packet(connection: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    let (len, _) = net::recv(connection, &mut bytes[..], net::RecvFlags::empty()).unwrap();
    bytes.truncate(len);
    bytes
}

fn ask(endpoint_id: u64, packet: &[u8]) -> Vec<u8> {
    let connection = connect(endpoint_id);
    net::send(&connection, packet, net::SendFlags::NOSIGNAL).unwrap();
    next_packet(&connection)
}

/// A packet after `src/handshake.rs`.
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
    let to = start_endpoint();
    let inbox = to.create_inbox("unit", &InboxOptions::default()).unwrap();
    let mut newer = open("unit");
    newer[4] = 9;
    let nowhere = [to.id().to_le_bytes(), 77u64.to_le_bytes()].concat();
    for (packet, reason) in [
        (newer, "the peer speaks version 9 of TensorMQ, this process version 2"),
        (open("nowhere"), "there is no inbox \"nowhere\""),
        (open("unit"), "a channel without a notifier"),
        (packet(3, &nowhere), "there is no such pool"),
        (packet(5, &[]), "neither a channel nor a pool was asked for"),
        (packet(77, &[]), "not one of TensorMQ"),
        (packet(1, &[1, 2, 3]), "cut short"),
        (b"GET / HTTP/1.1".to_vec(), "not one of TensorMQ"),
    ] {
        let answer = ask(to.id(), &packet);
        assert_eq!(answer.get(6), Some(&NOT_OPENED), "{reason}");
        assert!(
            contains(&answer, reason.as_bytes()),
            "{reason}: {}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert_eq!(inbox.sender_count(), 0);
}

#[test]
fn a_peer_that_opens_a_channel_and_goes_on_with_nonsense_is_lost_when_it_goes() {
    let to = start_endpoint();
    let mut inbox = to.create_inbox("unit", &InboxOptions::default()).unwrap();
    let connection = connect(to.id());
    let notifier = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let descriptors = [notifier.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(net::SendAncillaryMessage::ScmRights(&descriptors)));
    let packet = open("unit");
    let flags = net::SendFlags::NOSIGNAL;
    net::sendmsg(&connection, &[IoSlice::new(&packet)], &mut control, flags).unwrap();
    assert_eq!(next_packet(&connection)[6], OPENED);
    let mut random = Random(7);
    for len in 1..100 {
        net::send(&connection, &random.bytes(len), flags).unwrap();
    }
    until("it is in", || inbox.sender_count() == 1);
    assert!(inbox.try_receive().is_none());
    drop(connection);
    match inbox.receive(soon()) {
        Some(Received::Lost(peer, error)) => {
            assert_eq!((peer.endpoint_id, peer.transport), (NOISE, Transport::SHM));
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        other => panic!("expected the loss, got {other:?}"),
    }
}

#[test]
fn nonsense_from_this_host_does_not_disturb_an_honest_sender() {
    let (from, to) = (start_endpoint(), start_endpoint());
    let mut inbox = to.create_inbox("unit", &InboxOptions::default()).unwrap();
    let sender = from.connect(inbox.address()).unwrap();
    assert_eq!(sender.peer().transport, Transport::SHM);
    let endpoint_id = to.id();
    undisturbed(&mut inbox, sender, &from, move || {
        let mut random = Random(0xa11);
        for _ in 0..1000 {
            let len = 1 + random.below(5000);
            let mut bytes = match random.below(4) {
                0 => random.bytes(len),
                1 => packet(random.below(8) as u8, &random.bytes(len)),
                2 => open("unit"),
                _ => packet(3, &random.bytes(16)),
            };
            let at = random.below(bytes.len());
            bytes[at] ^= random.next() as u8;
            let answer = ask(endpoint_id, &bytes);
            assert!(answer.is_empty() || answer[6] == NOT_OPENED, "{bytes:?}: {answer:?}");
            // Some say nothing at all.
            drop(connect(endpoint_id));
        }
    });
}
