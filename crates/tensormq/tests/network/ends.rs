//! Between hosts when an end goes: receivers that start anew, inboxes that close, and senders that
//! are dropped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::NETWORK;
use crate::common::{
    LEASE, LONG, Pair, SOON, elsewhere, fates, listen, message, options, pair, receive,
    socket_address, soon, start_endpoint, until, within,
};
use tessera_core::{DType, ErrorKind, TensorMut};
use tessera_tensormq::{
    Buffers, ConnectOptions, Endpoint, Inbox, InboxOptions, MessageFate, RequestId, Wait,
};

/// An inbox where another was before, as soon as the system has let go of its port.
fn reopen(endpoint: &Endpoint, port: &str) -> Inbox {
    let listen = listen(&format!("tcp://127.0.0.1:{port}"), NETWORK.security());
    let options = InboxOptions { listen, ..options(LONG) };
    let start = Instant::now();
    loop {
        match endpoint.create_inbox("unit", &options) {
            Ok(inbox) => return inbox,
            Err(error) => assert!(start.elapsed() < SOON, "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_receiver_that_starts_anew_is_not_taken_for_the_old_one() {
    let Pair { from, to, mut inbox, relay, mut sender } = pair(&options(LONG), 1);
    sender.send(message(0), soon()).unwrap();
    drop(receive(&mut inbox));
    sender.wait_until_finished(soon()).unwrap();
    let socket_address = socket_address(&inbox);
    let (_, port) = socket_address.rsplit_once(':').unwrap();
    // As if its process were killed: nobody says goodbye.
    relay.cut();
    drop((inbox, to));
    let to = start_endpoint();
    let mut inbox = reopen(&to, port);
    relay.mend();
    until("the sender hears of it", || sender.is_lost());
    let error = sender.send(message(1), soon()).unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("anew"), "{error}");
    let mut sender = from.connect(&relay.address(&inbox)).unwrap();
    sender.send(message(2), soon()).unwrap();
    assert_eq!(receive(&mut inbox).request(), RequestId(2));
}

#[test]
fn what_a_receiver_took_before_it_started_anew_is_not_told_as_never_taken() {
    let Pair { from, to, mut inbox, relay, mut sender } = pair(&options(LONG), 1);
    relay.freeze_answers();
    for request in 0..3 {
        sender.send(message(request), soon()).unwrap();
    }
    for request in 0..2 {
        assert_eq!(receive(&mut inbox).request(), RequestId(request));
    }
    let socket_address = socket_address(&inbox);
    let (_, port) = socket_address.rsplit_once(':').unwrap();
    relay.cut();
    drop((inbox, to));
    let to = start_endpoint();
    let inbox = reopen(&to, port);
    relay.mend();
    until("the sender hears of it", || sender.is_lost());
    let fates = fates(&mut sender);
    assert_eq!(fates.len(), 3, "{fates:?}");
    for request in 0..2u128 {
        assert_ne!(
            fates[&request],
            MessageFate::NotTaken,
            "the old receiver had {request}: {fates:?}"
        );
    }
    assert_ne!(fates[&2u128], MessageFate::Taken, "{fates:?}");
    drop((from, inbox));
}

#[test]
fn an_inbox_that_closes_tells_its_senders_every_time() {
    let (from, to) = (start_endpoint(), start_endpoint());
    for round in 0..40 {
        let inbox = to.create_inbox("unit", &options(LONG)).unwrap();
        let mut sender = from.connect(&elsewhere(&inbox)).unwrap();
        for request in 0..2 {
            sender.send(message(request), soon()).unwrap();
        }
        drop(inbox);
        let told = within(Duration::from_secs(2), || sender.is_lost());
        assert!(told, "round {round}: its last word was not heard");
        let error = sender.send(message(9), soon()).unwrap_err().error;
        assert!(error.to_string().contains("closed its inbox"), "round {round}: {error}");
        let expected = BTreeMap::from([(0, MessageFate::NotTaken), (1, MessageFate::NotTaken)]);
        assert_eq!(fates(&mut sender), expected, "round {round}");
    }
}

#[test]
fn an_inbox_can_be_dropped_while_senders_connect() {
    let (done, finished) = mpsc::channel();
    // On a thread of its own: should the ends wait for each other, the test must not wait for them.
    thread::spawn(move || {
        let (from, to) = (start_endpoint(), start_endpoint());
        for _ in 0..20 {
            let inbox = to.create_inbox("unit", &options(LEASE)).unwrap();
            let connecting: Vec<_> = (0..8)
                .map(|_| {
                    let (from, address) = (from.clone(), elsewhere(&inbox));
                    let timeout = Duration::from_millis(60);
                    let options = ConnectOptions { timeout, ..ConnectOptions::default() };
                    thread::spawn(move || drop(from.connect_with_options(&address, &options)))
                })
                .collect();
            let start = Instant::now();
            while inbox.sender_count() == 0 && start.elapsed() < Duration::from_secs(1) {
                thread::yield_now();
            }
            drop(inbox);
            for connecting in connecting {
                connecting.join().unwrap();
            }
        }
        done.send(()).unwrap();
    });
    finished.recv_timeout(SOON).expect("the inbox and who serves it wait for each other");
}

#[test]
fn a_sender_that_was_dropped_lets_go_of_its_buffers_once_they_were_taken() {
    let (from, to) = (start_endpoint(), start_endpoint());
    let mut inbox = to.create_inbox("unit", &options(LONG)).unwrap();
    let address = elsewhere(&inbox);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let receiving = thread::spawn(move || {
        while !stopped.load(Ordering::SeqCst) {
            drop(inbox.receive(Wait::at_most(Duration::from_millis(5))));
        }
        inbox
    });
    let pool = from.create_pool(&[Buffers { bytes: 64, count: 256 }]).unwrap();
    for round in 0..200 {
        let mut sender = from.connect(&address).unwrap();
        let buffer = pool.borrow_buffer(64, soon()).unwrap();
        let tensor = TensorMut::from_buffer(DType::U8, &[64], buffer).unwrap().freeze();
        sender.send(message(round).with_tensors(vec![tensor]), soon()).unwrap();
        // Dropped before, while and after it is told that its message was taken.
        thread::sleep(Duration::from_micros(150 * (round % 20) as u64));
        drop(sender);
    }
    let empty = within(Duration::from_secs(5), || pool.buffers_in_use() == 0);
    stop.store(true, Ordering::SeqCst);
    drop(receiving.join().unwrap());
    assert!(empty, "{} buffers are held for senders that are gone", pool.buffers_in_use());
}

#[test]
fn a_sender_goes_on_when_the_last_handle_to_its_endpoint_is_gone() {
    let Pair { from, to, mut inbox, relay, mut sender } = pair(&options(LONG), 1);
    drop(from);
    sender.send(message(1), soon()).unwrap();
    drop(receive(&mut inbox));
    sender.wait_until_finished(Wait::at_most(Duration::from_secs(5))).unwrap();
    drop((to, relay));
}
