//! Peers that send nonsense over the network.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::common::honest::undisturbed;
use crate::common::random::Random;
use crate::common::raw::{ACCEPTED_AGO, MADE_AGO, REFUSED, ROUTE, Raw, bye, header, hello, post};
use crate::common::{
    LEASE, LONG, NOISE, contains, elsewhere, options, receive, socket_address, soon,
    start_endpoint, within,
};
use tessera_core::ErrorKind;
use tessera_tensormq::layout::VERSION;
use tessera_tensormq::{Deadline, Endpoint, Inbox, Received, RequestId};

/// An inbox, and somebody who says what it likes.
fn inbox_and_raw() -> (Endpoint, Inbox, Raw) {
    let to = start_endpoint();
    let inbox = to.create_inbox("unit", &options(LONG)).unwrap();
    let raw = Raw::connect(&socket_address(&inbox));
    (to, inbox, raw)
}

#[test]
fn a_header_made_by_hand_after_the_tables_is_understood() {
    let (_to, mut inbox, raw) = inbox_and_raw();
    raw.enter(1);
    let before = Deadline::now().nanoseconds();
    raw.say(&post(77, 1, &[3, 0]));
    let received = receive(&mut inbox);
    let after = Deadline::now().nanoseconds();
    assert_eq!((received.request(), received.task()), (RequestId(77), "noise"));
    assert_eq!((received.sequence(), received.route()), (1, &ROUTE[..]));
    assert_eq!(received.deadline(), None);
    // Whatever the clock of the other host says, it was so long ago by this one.
    for (time, ago) in [(received.accepted(), ACCEPTED_AGO), (received.made(), MADE_AGO)] {
        let ago = ago.as_nanos() as u64;
        let expected = before.saturating_sub(ago)..=after.saturating_sub(ago);
        assert!(expected.contains(&time), "{time} is not in {expected:?}");
    }
    let bytes: Vec<_> = received.tensors().iter().map(|tensor| tensor.bytes().unwrap()).collect();
    assert_eq!(bytes, [&[7u8, 7, 7][..], &[]]);
}

#[test]
fn a_hello_that_is_not_welcome_is_told_why() {
    let (_to, mut inbox, raw) = inbox_and_raw();
    // Who did not say hello is not heard, and the connection goes on.
    raw.say(&[bye(0)]);
    raw.say(&post(1, 1, &[8]));
    raw.say(&[Vec::new()]);
    let changed = |at: usize, value: u8| {
        let mut bytes = hello(1, "unit");
        bytes[at] = value;
        bytes
    };
    for (frame, reason) in [
        (changed(4, 9), "the peer speaks version 9 of TensorMQ, this process version 2"),
        (hello(1, "nowhere"), "here is inbox \"unit\""),
        (changed(34, 17), "more than 16 lanes"),
        (changed(34, 0), "not one of TensorMQ"),
        (changed(7, 1), "the receiver started anew"),
        (changed(7, 2), "not one of TensorMQ"),
        (changed(6, 200), "not one of TensorMQ"),
        (changed(36, 0xff), "not one of TensorMQ"),
        (hello(1, "unit")[..20].to_vec(), "not one of TensorMQ"),
    ] {
        raw.say(&[frame]);
        let answer = raw.hear();
        assert_eq!(answer[6], REFUSED, "{reason}");
        assert!(
            contains(&answer, reason.as_bytes()),
            "{reason}: {}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert_eq!(inbox.sender_count(), 0);
    assert!(inbox.try_receive().is_none());
    raw.enter(2);
}

#[test]
fn frames_that_do_not_fit_their_header_are_told_and_the_channel_goes_on() {
    let (_to, mut inbox, raw) = inbox_and_raw();
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
                assert_eq!(
                    (peer.endpoint_id, error.kind()),
                    (NOISE, ErrorKind::Invalid),
                    "{error}"
                );
                (request.unwrap().0, false)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [(1, true), (2, false), (3, false), (4, false), (5, true), (6, true)];
    assert_eq!(events, expected);
    raw.say(&[bye(6)]);
    match inbox.receive(soon()) {
        Some(Received::Closed(peer)) => assert_eq!(peer.endpoint_id, NOISE),
        other => panic!("expected the end, got {other:?}"),
    }
}

#[test]
fn a_header_that_breaks_the_rules_ends_its_channel_and_both_ends_hear_why() {
    let (_to, mut inbox, raw) = inbox_and_raw();
    let changed = |at: usize, value: u8| {
        let mut frames = post(1, 1, &[8]);
        frames[0][at] = value;
        frames
    };
    let cut_short = vec![header(1, 1, &[8])[..50].to_vec(), vec![7; 8]];
    for (session, (frames, reason)) in (1..).zip([
        (cut_short, "cut short"),
        (changed(0, 0), "not one of TensorMQ"),
        (changed(4, 9), "the peer speaks version 9 of TensorMQ, this process version 2"),
        (changed(8, 0), "its length is not what it says"),
        (changed(14, 2), "cut short"),
        (changed(6, 4), "unknown flags"),
        (changed(40, 1), "a deadline where it says there is none"),
        (changed(16, 2), "bytes that must be zero are not"),
        (changed(16, 4), "a route and a name that don't end where the tensors begin"),
        (changed(19, 0xff), "a route and a name that don't end where the tensors begin"),
        (post(1, 1000, &[8]), "more messages than there is room for"),
        (post(1, u64::MAX, &[8]), "more messages than there is room for"),
    ]) {
        raw.enter(session);
        raw.say(&frames);
        let answer = raw.hear();
        assert_eq!(answer[6], REFUSED, "{reason}");
        assert!(
            contains(&answer, reason.as_bytes()),
            "{reason}: {}",
            String::from_utf8_lossy(&answer)
        );
        match inbox.receive(soon()) {
            Some(Received::Lost(peer, error)) => {
                assert_eq!(peer.endpoint_id, NOISE);
                assert!(error.to_string().contains(reason), "{reason}: {error}");
            }
            other => panic!("{reason}: {other:?}"),
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
    let (from, to) = (start_endpoint(), start_endpoint());
    let inbox = to.create_inbox("unit", &options(LEASE)).unwrap();
    let raw = Raw::connect(&socket_address(&inbox));
    for session in 0..1100 {
        raw.say(&[hello(session, "unit")]);
    }
    // What is answered last was read last.
    let mut last = hello(0, "unit");
    last[4] = 9;
    raw.say(&[last]);
    while !contains(&raw.hear(), b"version 9") {}
    drop(raw);
    let address = elsewhere(&inbox);
    let room = within(Duration::from_secs(5), || from.connect(&address).is_ok());
    assert!(room, "{inbox:?}: those who are gone take all the room");
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
    let (from, to) = (start_endpoint(), start_endpoint());
    let mut inbox = to.create_inbox("unit", &options(LEASE)).unwrap();
    let sender = from.connect(&elsewhere(&inbox)).unwrap();
    let socket_address = socket_address(&inbox);
    undisturbed(&mut inbox, sender, &from, move || {
        let mut random = Random(0x0dd);
        for connection in 0..40u128 {
            let raw = Raw::connect(&socket_address);
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
            // And one who does not even speak as senders do.
            let mut stranger =
                TcpStream::connect(socket_address.strip_prefix("tcp://").unwrap()).unwrap();
            let len = random.below(1000);
            // It may be thrown out before it has said all.
            stranger.write_all(&random.bytes(len)).ok();
        }
    });
}
