//! Between hosts when the network goes wrong: connections that are cut, silent or slow.
//!
//! Senders reach inboxes through a [`crate::common::relay::Relay`], which is the network.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::random::Random;
use crate::common::{
    LEASE, LONG, PATIENCE, Pair, SLACK, check_payload, fates, message, options, pair, payload,
    receive, soon, until, within,
};
use tessera_core::ErrorKind;
use tessera_tensormq::{Deadline, Inbox, InboxOptions, MessageFate, Received, RequestId, Wait};

/// Receives until the connection is gone; gives back the requests that came before.
fn receive_until_interrupted(inbox: &mut Inbox) -> Vec<u128> {
    let mut requests = Vec::new();
    loop {
        match inbox.receive(soon()) {
            Some(Received::Message(message)) => requests.push(message.request().0),
            Some(Received::Interrupted(_)) => return requests,
            other => panic!("expected an interruption, got {other:?}"),
        }
    }
}

/// Sends while the network is cut again and again, after at most so many bytes.
fn deliver_everything(
    lanes: u16,
    count: u128,
    size: fn(u128) -> usize,
    cuts: usize,
    most: usize,
) -> (usize, usize) {
    let Pair { from, to, mut inbox, relay, mut sender } = pair(&options(LONG), lanes);
    let sending = thread::spawn(move || {
        for request in 0..count {
            let tensors = vec![payload(request, size(request))];
            sender.send(message(request).with_tensors(tensors), soon()).unwrap();
        }
        sender.wait_until_finished(soon()).unwrap();
        assert!(sender.take_failed_messages().is_empty());
    });
    let cutting = thread::spawn(move || {
        let mut random = Random(0x5eed);
        for _ in 0..cuts {
            // Some while the ends still greet each other.
            let short = random.below(3) == 0;
            relay.cut_after(random.below(if short { 1000 } else { most }));
            until("the network is cut", || relay.is_cut());
            thread::sleep(Duration::from_millis(10 + random.below(90) as u64));
            relay.mend();
        }
        relay
    });
    let (mut next, mut interrupted, mut resumed) = (0, 0, 0);
    loop {
        match inbox.receive(soon()) {
            Some(Received::Message(message)) => {
                assert_eq!(message.request(), RequestId(next));
                assert_eq!(u128::from(message.sequence()), next + 1);
                check_payload(&message, size(next));
                next += 1;
            }
            Some(Received::Interrupted(_)) => interrupted += 1,
            Some(Received::Resumed(_)) => resumed += 1,
            Some(Received::Closed(_)) => break,
            other => panic!("after {next} messages: {other:?}"),
        }
    }
    assert_eq!(next, count);
    sending.join().unwrap();
    drop(cutting.join().unwrap());
    drop((from, to));
    (interrupted, resumed)
}

#[test]
fn a_connection_that_is_cut_again_and_again_delivers_everything_once_and_in_order() {
    let size = |request: u128| {
        let request = request as usize;
        (64 << 10) + ((request * 7919 % 960) << 10) + request % 13
    };
    let (interrupted, resumed) = deliver_everything(1, 300, size, 8, 12 << 20);
    assert!(interrupted >= 1);
    assert_eq!(interrupted, resumed);
}

#[test]
fn several_lanes_that_are_cut_deliver_everything_once_and_in_order() {
    let size = |request: u128| {
        let some = [0, 17, 4_000, 70_000, 300_000][(request % 5) as usize];
        some + request as usize
    };
    let (interrupted, resumed) = deliver_everything(4, 500, size, 3, 8 << 20);
    assert!(interrupted >= 1);
    assert_eq!(interrupted, resumed);
}

#[test]
fn a_message_that_waits_for_the_network_is_as_old_as_it_is_when_it_arrives() {
    let mut pair = pair(&options(LONG), 1);
    let away = Duration::from_secs(3);
    let deadline = Deadline::after(Duration::from_secs(60));
    pair.relay.cut();
    // One before the sender noticed, perhaps, and one after.
    let sent: Vec<_> = (0..2)
        .map(|request| {
            let message = message(request).with_deadline(deadline);
            let times = (message.accepted(), message.made());
            pair.sender.send(message, soon()).unwrap();
            until("it notices", || pair.sender.is_interrupted());
            times
        })
        .collect();
    thread::sleep(away);
    pair.relay.mend();
    for (accepted, made) in sent {
        let received = loop {
            match pair.inbox.receive(soon()) {
                Some(Received::Message(message)) => break message,
                Some(Received::Interrupted(_) | Received::Resumed(_)) => {}
                other => panic!("{other:?}"),
            }
        };
        let late = [
            received.accepted().checked_sub(accepted),
            received.made().checked_sub(made),
            received.deadline().unwrap().nanoseconds().checked_sub(deadline.nanoseconds()),
        ];
        // What it waited at the sender is known, and only what it was on the way is not.
        for late in late.map(|late| Duration::from_nanos(late.unwrap())) {
            assert!(late < away / 2, "{late:?}");
        }
    }
}

#[test]
fn when_the_network_stays_away_every_message_is_accounted_for_once() {
    let mut pair = pair(&options(LEASE), 1);
    // So that the sender does not know what was taken.
    pair.relay.freeze_answers();
    for request in 0..8 {
        pair.sender.send(message(request), soon()).unwrap();
    }
    let mut held: Vec<_> = (0..5).map(|_| receive(&mut pair.inbox)).collect();
    let mut received: Vec<_> = held.iter().map(|message| message.request().0).collect();
    held.truncate(2);
    let start = Instant::now();
    pair.relay.cut();
    for request in 8..12 {
        pair.sender.send(message(request), Wait::No).unwrap();
    }
    received.extend(receive_until_interrupted(&mut pair.inbox));
    // What was not taken by now never is.
    match pair.inbox.receive(soon()) {
        Some(Received::Lost(peer, error)) => {
            assert_eq!(peer.endpoint_id, pair.from.id());
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            assert!(start.elapsed() >= LEASE);
        }
        other => panic!("expected the loss, got {other:?}"),
    }
    until("the sender gives up", || pair.sender.is_lost());
    let elapsed = start.elapsed();
    assert!(elapsed >= PATIENCE && elapsed < PATIENCE + SLACK, "{elapsed:?}");
    let error = pair.sender.send(message(99), soon()).unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(pair.sender.wait_until_finished(soon()).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(pair.sender.in_flight_count(), 0);
    let fates = fates(&mut pair.sender);
    for request in 0..12 {
        let was_received = received.contains(&request);
        match fates.get(&request) {
            None | Some(MessageFate::Taken) => assert!(was_received, "{request}: {fates:?}"),
            Some(MessageFate::NotTaken) => assert!(!was_received, "{request}: {fates:?}"),
            Some(MessageFate::Unknown) => {}
        }
    }
    pair.relay.mend();
    let later = pair.inbox.receive(Wait::at_most(Duration::from_millis(100)));
    assert!(later.is_none(), "{later:?}");
}

#[test]
fn a_sender_gives_up_in_time_also_when_a_new_connection_is_met_with_silence() {
    let mut pair = pair(&options(LEASE), 1);
    pair.sender.send(message(1), soon()).unwrap();
    pair.relay.sever();
    assert!(within(PATIENCE + SLACK, || pair.sender.is_lost()), "it tries on");
}

#[test]
fn a_sender_that_comes_back_after_the_lease_is_told_exactly_what_was_taken() {
    let mut pair = pair(&options(Duration::from_millis(500)), 1);
    pair.relay.freeze_answers();
    for request in 0..8 {
        pair.sender.send(message(request), soon()).unwrap();
    }
    let mut done: Vec<_> = (0..5).map(|_| receive(&mut pair.inbox)).collect();
    let held = done.split_off(3);
    let mut received: Vec<_> = done.drain(..).map(|message| message.request().0).collect();
    pair.relay.sever();
    received.extend(receive_until_interrupted(&mut pair.inbox));
    match pair.inbox.receive(soon()) {
        Some(Received::Lost(..)) => {}
        other => panic!("expected the loss, got {other:?}"),
    }
    pair.relay.mend();
    until("the sender is refused", || pair.sender.is_lost());
    let error = pair.sender.send(message(99), soon()).unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("away for too long"), "{error}");
    let held: Vec<_> = held.iter().map(|message| message.request().0).collect();
    let mut expected = BTreeMap::new();
    for request in (0..8).filter(|request| !received.contains(request)) {
        let fate = if held.contains(&request) { MessageFate::Taken } else { MessageFate::NotTaken };
        expected.insert(request, fate);
    }
    assert_eq!(fates(&mut pair.sender), expected);
    let later = pair.inbox.receive(Wait::at_most(Duration::from_millis(100)));
    assert!(later.is_none(), "{later:?}");
    assert_eq!(pair.inbox.sender_count(), 0);
}

#[test]
fn silence_is_noticed_and_what_was_sent_into_it_arrives_once_it_ends() {
    let mut pair = pair(&options(LONG), 1);
    pair.sender.send(message(0), soon()).unwrap();
    drop(receive(&mut pair.inbox));
    pair.sender.wait_until_finished(soon()).unwrap();
    let start = Instant::now();
    pair.relay.freeze();
    for request in 1..4 {
        pair.sender.send(message(request), soon()).unwrap();
    }
    assert!(receive_until_interrupted(&mut pair.inbox).is_empty());
    until("the sender notices", || pair.sender.is_interrupted());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    pair.relay.mend();
    match pair.inbox.receive(soon()) {
        Some(Received::Resumed(peer)) => assert_eq!(peer.endpoint_id, pair.from.id()),
        other => panic!("expected it to resume, got {other:?}"),
    }
    for request in 1..4 {
        assert_eq!(receive(&mut pair.inbox).request(), RequestId(request));
    }
    pair.sender.wait_until_finished(soon()).unwrap();
    assert!(!pair.sender.is_interrupted());
}

#[test]
fn silence_is_noticed_also_in_the_middle_of_sending_much() {
    let mut pair = pair(&InboxOptions { depth: 64, ..options(LONG) }, 1);
    let tensor = payload(0, 1 << 20);
    pair.relay.freeze();
    // More than fits into what the system keeps on its way: no heartbeat gets out behind it.
    for request in 0..32 {
        let message = message(request).with_tensors(vec![tensor.clone()]);
        pair.sender.send(message, Wait::No).unwrap();
    }
    let noticed = within(Duration::from_secs(5), || pair.sender.is_interrupted());
    assert!(noticed, "the sender waits for a network that is gone");
    assert!(receive_until_interrupted(&mut pair.inbox).is_empty());
    pair.relay.mend();
    match pair.inbox.receive(soon()) {
        Some(Received::Resumed(_)) => {}
        other => panic!("expected it to resume, got {other:?}"),
    }
    for request in 0..32 {
        assert_eq!(receive(&mut pair.inbox).request(), RequestId(request));
    }
    pair.sender.wait_until_finished(soon()).unwrap();
}

#[test]
fn a_tensor_that_is_long_on_its_way_over_a_slow_network_arrives() {
    let mut pair = pair(&options(LONG), 1);
    // Longer than any silence that is borne, and not silence.
    pair.relay.slow_down(2 << 20);
    let tensors = vec![payload(1, 8 << 20)];
    pair.sender.send(message(1).with_tensors(tensors), soon()).unwrap();
    check_payload(&receive(&mut pair.inbox), 8 << 20);
    pair.sender.wait_until_finished(soon()).unwrap();
}
