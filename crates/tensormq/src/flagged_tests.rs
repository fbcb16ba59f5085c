//! Buffers on the host that are written after they were handed over, as a GPU does: here by hand.

use std::time::{Duration, Instant};

use tessera_core::{DType, ErrorKind, Tensor, TensorMut};

use crate::{
    Buffers, ConnectOptions, Endpoint, EndpointOptions, Inbox, InboxOptions, Message, Pool,
    Received, RequestId, Sender, Transport, Wait,
};

fn patience() -> Wait {
    Wait::at_most(Duration::from_secs(10))
}

/// Two ends, and a pool of the first.
fn ends() -> (Endpoint, Pool, Sender, Endpoint, Inbox) {
    let (here, there) = (EndpointOptions::default(), EndpointOptions::default());
    let (here, there) = (Endpoint::start(here).unwrap(), Endpoint::start(there).unwrap());
    let inbox = there.create_inbox("replies", &InboxOptions::default()).unwrap();
    let options = ConnectOptions { transport: Some(Transport::SHM), ..ConnectOptions::default() };
    let sender = here.connect_with_options(inbox.address(), &options).unwrap();
    let buffers = [Buffers { bytes: 4096, count: 2 }];
    let pool = here.create_pool_written_later(&buffers).unwrap();
    (here, pool, sender, there, inbox)
}

fn tensor(pool: &Pool) -> Tensor {
    let buffer = pool.borrow_buffer(8, Wait::No).unwrap();
    TensorMut::from_buffer(DType::F32, &[2], buffer).unwrap().freeze()
}

fn message(tensor: &Tensor) -> Message {
    let message = Message::new(RequestId(1), "task", b"done").unwrap();
    message.with_tensors(vec![tensor.clone()])
}

fn next(inbox: &mut Inbox) -> Tensor {
    match inbox.receive(patience()) {
        Some(Received::Message(mut message)) => message.take_tensors().remove(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_sent_early_is_waited_for_each_time_a_buffer_is_used() {
    let (here, pool, mut sender, _there, mut inbox) = ends();
    for _ in 0..20 {
        let sent = tensor(&pool);
        sender.send(message(&sent).with_early_send(), patience()).unwrap();
        let received = next(&mut inbox);
        let fence = received.fence().cloned().expect("it is not written yet");
        assert!(!fence.is_done());
        here.signal_write_fence(&sent).unwrap();
        assert!(fence.is_done());
        received.wait_fence_on_host().unwrap();
        // Both buffers have their turn.
        drop((sent, tensor(&pool)));
    }
}

#[test]
fn what_is_sent_as_ever_is_there() {
    let (_here, pool, mut sender, _there, mut inbox) = ends();
    for _ in 0..5 {
        sender.send(message(&tensor(&pool)), patience()).unwrap();
        assert!(next(&mut inbox).fence().is_none());
    }
}

#[test]
fn what_nobody_writes_any_more_is_told_as_lost() {
    let (here, pool, mut sender, _there, mut inbox) = ends();
    let sent = tensor(&pool);
    sender.send(message(&sent).with_early_send(), patience()).unwrap();
    let received = next(&mut inbox);
    let fence = received.fence().cloned().unwrap();
    drop((sent, pool, sender, here));
    let begun = Instant::now();
    while !fence.is_done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "nobody noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(received.wait_fence_on_host().unwrap_err().kind(), ErrorKind::Lost);
}
