//! What every transport must do: one suite, run over each of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tessera_core::{DType, ErrorKind, Fence, Result, Tensor, TensorMut};
use tessera_tensormq::layout::MAX_HEADER;
use tessera_tensormq::{
    Address, Buffers, ConnectOptions, Deadline, Endpoint, EndpointOptions, Inbox, InboxOptions,
    Listen, Message, MessageFate, NotSent, Pool, Received, RequestId, Sender, TraceContext,
    Transport, Wait,
};

const SOON: Duration = Duration::from_secs(10);

fn soon() -> Wait {
    Wait::at_most(SOON)
}

/// A sender and an inbox over a transport, each with an endpoint of its own where they can have
/// one.
struct Pair {
    transport: Transport,
    from: Endpoint,
    to: Endpoint,
    inbox: Inbox,
    sender: Sender,
    pool: Pool,
}

fn start_endpoint() -> Endpoint {
    Endpoint::start(EndpointOptions::default()).unwrap()
}

fn inbox(endpoint: &Endpoint, name: &str, transport: Transport, depth: u32) -> Inbox {
    let newer_family = || "tcp://[::1]:0".to_owned();
    let socket_address =
        [Transport::TCP, Transport::ZMQ_TCP].contains(&transport).then(newer_family);
    let listen = vec![Listen { socket_address, ..Listen::within_host(transport) }];
    let lease = Duration::from_millis(200);
    endpoint
        .create_inbox(
            name,
            &InboxOptions { depth, listen, session_lease: lease, ..InboxOptions::default() },
        )
        .unwrap()
}

fn connect(from: &Endpoint, to: &Inbox, transport: Transport) -> Sender {
    let options = ConnectOptions { transport: Some(transport), ..ConnectOptions::default() };
    from.connect_with_options(to.address(), &options).unwrap()
}

fn pair(transport: Transport, depth: u32) -> Pair {
    let from = start_endpoint();
    let to = if transport == Transport::THREAD { from.clone() } else { start_endpoint() };
    let inbox = inbox(&to, "unit", transport, depth);
    let sender = connect(&from, &inbox, transport);
    let pool = from.create_pool(&[Buffers { bytes: 1 << 16, count: 8 }]).unwrap();
    Pair { transport, from, to, inbox, sender, pool }
}

/// Bytes that mean nothing to a transport, and are no text.
const ROUTE: &[u8] = b"\x00unit\xffnext\xfe";

fn message(request: u128) -> Message {
    Message::new(RequestId(request), "task", ROUTE).unwrap()
}

/// A time of a message as it was received: on this host it is what was sent; between hosts the time
/// on the way is not known, so that it is a little later.
fn assert_time_came(transport: Transport, received: u64, sent: u64) {
    if [Transport::THREAD, Transport::SHM].contains(&transport) {
        assert_eq!(received, sent);
    } else {
        let later = received.checked_sub(sent).map(Duration::from_nanos);
        assert!(later.is_some_and(|later| later < Duration::from_secs(1)), "{later:?}");
    }
}

/// A tensor in a pool with these elements.
fn tensor(pool: &Pool, values: &[f32]) -> Tensor {
    let buffer = pool.borrow_buffer(values.len() * 4, soon()).unwrap();
    let mut tensor = TensorMut::from_buffer(DType::F32, &[values.len()], buffer).unwrap();
    for (target, value) in tensor.bytes_mut().unwrap().chunks_exact_mut(4).zip(values) {
        target.copy_from_slice(&value.to_le_bytes());
    }
    tensor.freeze()
}

fn receive(inbox: &mut Inbox) -> Message {
    match inbox.receive(soon()) {
        Some(Received::Message(message)) => message,
        other => panic!("expected a message, got {other:?}"),
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < SOON, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A check, run over every transport; each in turn, so that a failure names it.
fn over_each(check: impl Fn(Pair), depth: u32) {
    for transport in Transport::built_in() {
        println!("over {transport}");
        check(pair(transport, depth));
    }
}

#[test]
fn a_message_arrives_as_it_was_sent() {
    over_each(
        |mut pair| {
            let deadline = Deadline::after(Duration::from_secs(60));
            let trace = TraceContext { trace: [7; 16], span: [9; 8], flags: 1 };
            let tensors = vec![
                tensor(&pair.pool, &[1.0, -2.5, 3.25]),
                Tensor::from_i64(&[2, 1], &[i64::MIN, 7]).unwrap(),
                Tensor::from_strings(&[2], vec![b"one".to_vec(), Vec::new()]).unwrap(),
                Tensor::copy_from_bytes(DType::I4, &[3], &[0x21, 0x03]).unwrap(),
                Tensor::copy_from_bytes(DType::F32, &[0, 5], &[]).unwrap(),
                Tensor::from_f32(&[], &[4.5]).unwrap(),
            ];
            let accepted = Deadline::now().nanoseconds() / 2;
            let sent = message(u128::MAX - 5).with_deadline(deadline).with_trace(trace);
            let sent = sent.with_accepted(accepted);
            let made = sent.made();
            let sequence = pair.sender.send(sent.with_tensors(tensors.clone()), soon()).unwrap();
            assert_eq!(sequence, 1);
            let received = receive(&mut pair.inbox);
            assert_eq!(received.request(), RequestId(u128::MAX - 5));
            assert_eq!(received.task(), "task");
            assert_eq!(received.route(), ROUTE);
            assert_eq!(received.trace(), trace);
            assert_time_came(pair.transport, received.accepted(), accepted);
            assert_time_came(pair.transport, received.made(), made);
            assert_eq!(received.sequence(), 1);
            let difference =
                received.deadline().unwrap().remaining().abs_diff(deadline.remaining());
            assert!(difference < Duration::from_secs(1), "{difference:?}");
            for (received, sent) in received.tensors().iter().zip(&tensors) {
                assert_eq!((received.dtype(), received.shape()), (sent.dtype(), sent.shape()));
                assert_eq!(received.bytes(), sent.bytes());
                assert_eq!(received.strings(), sent.strings());
            }
            assert_eq!(received.tensors().len(), tensors.len());
            let before = Deadline::now().nanoseconds();
            let forwarded = received.forward_with(Vec::new());
            let rerouted = received.with_route(b"next").unwrap();
            assert_eq!((forwarded.route(), rerouted.route()), (ROUTE, &b"next"[..]));
            for next in [forwarded, rerouted] {
                assert_eq!((next.request(), next.task()), (received.request(), received.task()));
                assert_eq!((next.deadline(), next.trace()), (received.deadline(), trace));
                assert_eq!(next.accepted(), received.accepted());
                assert!(next.made() >= before);
                assert!(next.tensors().is_empty());
            }
        },
        4,
    );
}

#[test]
fn a_route_of_any_length_arrives_as_it_was_sent() {
    over_each(
        |mut pair| {
            for (request, len) in (0..).zip([0, 1, 7, 8, 9, 255, 256, 4000, 30_000]) {
                let route: Vec<u8> = (0..len).map(|at: usize| (at ^ (at >> 8)) as u8).collect();
                let sent = Message::new(RequestId(request), "task", &route).unwrap();
                let tensors = vec![tensor(&pair.pool, &[len as f32])];
                pair.sender.send(sent.with_tensors(tensors), soon()).unwrap();
                let received = receive(&mut pair.inbox);
                assert_eq!((received.request(), received.task()), (RequestId(request), "task"));
                assert_eq!(received.route(), route);
                assert_eq!(received.tensors()[0].to_f64().unwrap(), [len as f64]);
            }
        },
        4,
    );
}

#[test]
fn a_route_that_a_channel_has_no_room_for_is_told_and_others_go_on() {
    over_each(
        |mut pair| {
            // As long as a header can be: with a tensor it is too much for any that writes one, and
            // without for a ring of this depth.
            let len = MAX_HEADER - 112;
            let long = || Message::new(RequestId(1), "task", &vec![0xff; len]).unwrap();
            let tensors = vec![tensor(&pair.pool, &[1.0])];
            let too_long = pair
                .sender
                .send(long().with_tensors(tensors), soon())
                .map_err(|not_sent| *not_sent);
            let longest = pair.sender.send(long(), soon()).map_err(|not_sent| *not_sent);
            let goes = pair.transport != Transport::SHM;
            for (sent, goes) in [(too_long, pair.transport == Transport::THREAD), (longest, goes)] {
                assert_eq!(sent.is_ok(), goes);
                match sent {
                    Ok(_) => assert_eq!(receive(&mut pair.inbox).route().len(), len),
                    Err(NotSent { error, message }) => {
                        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
                        assert_eq!(message.route().len(), len);
                    }
                }
            }
            pair.sender.send(message(2), soon()).unwrap();
            let received = receive(&mut pair.inbox);
            assert_eq!((received.request(), received.route()), (RequestId(2), ROUTE));
            drop(received);
            pair.sender.wait_until_finished(soon()).unwrap();
            until("the buffer comes back", || pair.pool.buffers_in_use() == 0);
        },
        4,
    );
}

#[test]
fn messages_arrive_in_order_and_once() {
    over_each(
        |mut pair| {
            const COUNT: u128 = 2000;
            let pool = pair.pool.clone();
            let mut sender = pair.sender;
            let sending = thread::spawn(move || {
                for request in 0..COUNT {
                    let tensors = vec![tensor(&pool, &[request as f32])];
                    sender.send(message(request).with_tensors(tensors), soon()).unwrap();
                }
                sender.wait_until_finished(soon()).unwrap();
                assert!(sender.take_failed_messages().is_empty());
            });
            for request in 0..COUNT {
                let message = receive(&mut pair.inbox);
                assert_eq!(message.request(), RequestId(request));
                assert_eq!(message.sequence() as u128, request + 1);
                assert_eq!(message.tensors()[0].to_f64().unwrap(), [request as f64]);
            }
            sending.join().unwrap();
            match pair.inbox.receive(soon()) {
                Some(Received::Closed(peer)) => assert_eq!(peer.transport, pair.transport),
                other => panic!("expected the end, got {other:?}"),
            }
            assert!(pair.inbox.try_receive().is_none());
        },
        5,
    );
}

#[test]
fn a_receiver_that_is_behind_holds_the_sender_up_and_the_queue_stays_bounded() {
    over_each(
        |mut pair| {
            for request in 0..3 {
                pair.sender.send(message(request), Wait::No).unwrap();
            }
            let not_sent = pair.sender.send(message(3), Wait::No).unwrap_err();
            assert_eq!(not_sent.error.kind(), ErrorKind::Full);
            assert_eq!(not_sent.message.request(), RequestId(3));
            let start = Instant::now();
            let wait = Wait::at_most(Duration::from_millis(50));
            let not_sent = pair.sender.send(not_sent.message, wait).unwrap_err();
            assert_eq!(not_sent.error.kind(), ErrorKind::TimedOut);
            assert!(start.elapsed() >= Duration::from_millis(50));
            // Room that comes while it waits is used.
            let mut sender = pair.sender;
            let waiting = thread::spawn(move || {
                sender.send(not_sent.message, soon()).unwrap();
                sender
            });
            thread::sleep(Duration::from_millis(20));
            for request in 0..4 {
                assert_eq!(receive(&mut pair.inbox).request(), RequestId(request));
            }
            drop(waiting.join().unwrap());
        },
        3,
    );
}

#[test]
fn a_buffer_is_given_back_when_the_last_one_is_done_with_it() {
    over_each(
        |mut pair| {
            let mut second = inbox(&pair.to, "second", pair.transport, 4);
            let mut other = connect(&pair.from, &second, pair.transport);
            let tensor = tensor(&pair.pool, &[1.0, 2.0]);
            for sender in [&mut pair.sender, &mut other] {
                sender.send(message(1).with_tensors(vec![tensor.clone()]), soon()).unwrap();
            }
            assert_eq!(pair.pool.buffers_in_use(), 1);
            drop(tensor);
            let first = receive(&mut pair.inbox);
            let again = receive(&mut second);
            assert_eq!(first.tensors()[0].to_f64(), again.tensors()[0].to_f64());
            drop(first);
            if matches!(pair.transport, Transport::THREAD | Transport::SHM) {
                // Copied nowhere: it is the sender's buffer that is read.
                pair.sender.wait_until_finished(soon()).unwrap();
                assert_eq!(pair.pool.buffers_in_use(), 1);
            }
            drop(again);
            until("the buffer comes back", || {
                pair.sender.in_flight_count();
                other.in_flight_count();
                pair.pool.buffers_in_use() == 0
            });
        },
        4,
    );
}

#[test]
fn a_pool_that_is_empty_makes_the_borrower_wait_until_one_comes_back() {
    over_each(
        |mut pair| {
            let pool = pair.from.create_pool(&[Buffers { bytes: 64, count: 2 }]).unwrap();
            for request in 0..2 {
                let tensors = vec![tensor(&pool, &[0.0])];
                pair.sender.send(message(request).with_tensors(tensors), soon()).unwrap();
            }
            if matches!(pair.transport, Transport::THREAD | Transport::SHM) {
                let error = pool.borrow_buffer(64, Wait::No).err().unwrap();
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                let wait = Wait::at_most(Duration::from_millis(30));
                let error = pool.borrow_buffer(64, wait).err().unwrap();
                assert_eq!(error.kind(), ErrorKind::TimedOut);
                assert!(error.to_string().contains("2 of 2 are in use"), "{error}");
            }
            let waiting = thread::spawn(move || drop(pool.borrow_buffer(64, soon()).unwrap()));
            thread::sleep(Duration::from_millis(20));
            drop(receive(&mut pair.inbox));
            waiting.join().unwrap();
            let error = pair.pool.borrow_buffer(1 << 20, Wait::Forever).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Usage);
        },
        4,
    );
}

#[test]
fn what_was_not_taken_when_an_inbox_closes_comes_back_to_the_sender() {
    over_each(
        |mut pair| {
            for request in 0..4 {
                let tensors = vec![tensor(&pair.pool, &[1.0])];
                pair.sender.send(message(request).with_tensors(tensors), soon()).unwrap();
            }
            let first = receive(&mut pair.inbox);
            drop(pair.inbox);
            until("the sender learns it", || pair.sender.is_lost());
            let error = pair.sender.send(message(9), soon()).unwrap_err().error;
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            drop(first);
            let mut failed = Vec::new();
            until("all that was in flight is accounted for", || {
                failed.extend(pair.sender.take_failed_messages());
                pair.sender.in_flight_count() == 0
            });
            let certain: Vec<_> = failed
                .iter()
                .filter(|failed| failed.fate == MessageFate::NotTaken)
                .map(|failed| failed.request.0)
                .collect();
            assert_eq!(certain, [1, 2, 3], "{failed:?}");
            until("the buffers come back", || pair.pool.buffers_in_use() == 0);
        },
        8,
    );
}

#[test]
fn an_inbox_takes_turns_between_its_senders_and_hears_when_one_goes() {
    over_each(
        |mut pair| {
            let mut other = connect(&pair.from, &pair.inbox, pair.transport);
            until("both are there", || pair.inbox.sender_count() == 2);
            for request in 0..3 {
                pair.sender.send(message(request), soon()).unwrap();
                other.send(message(10 + request), soon()).unwrap();
            }
            drop(pair.sender);
            let mut requests = Vec::new();
            let mut closed = 0;
            while requests.len() < 6 || closed < 1 {
                match pair.inbox.receive(soon()) {
                    Some(Received::Message(message)) => requests.push(message.request().0),
                    Some(Received::Closed(_)) => closed += 1,
                    other => panic!("{other:?}"),
                }
            }
            let of = |range: std::ops::Range<u128>| -> Vec<u128> {
                requests.iter().copied().filter(|request| range.contains(request)).collect()
            };
            assert_eq!((of(0..3), of(10..13)), (vec![0, 1, 2], vec![10, 11, 12]));
            assert_eq!(pair.inbox.sender_count(), 1);
            other.send(message(20), soon()).unwrap();
            assert_eq!(receive(&mut pair.inbox).request(), RequestId(20));
        },
        4,
    );
}

#[test]
fn an_inbox_that_is_not_there_is_named() {
    for transport in Transport::built_in() {
        let mut pair = pair(transport, 4);
        let mut address = pair.inbox.address().clone();
        address.inbox = "nowhere".to_owned();
        let options = ConnectOptions { transport: Some(transport), ..ConnectOptions::default() };
        let error = pair.from.connect_with_options(&address, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().starts_with(&format!("inbox \"nowhere\" over {transport}: ")));
        // The channel that is there goes on.
        pair.sender.send(message(1), soon()).unwrap();
        receive(&mut pair.inbox);
    }
}

#[test]
fn waiting_in_a_task_needs_no_thread() {
    for transport in Transport::built_in() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let pair = pair(transport, 2);
        let (mut sender, mut inbox) = (pair.sender, pair.inbox);
        runtime.block_on(async {
            let wait = Wait::at_most(Duration::from_millis(20));
            assert!(inbox.receive_async(wait).await.unwrap().is_none());
            let pool = pair.from.create_pool(&[Buffers { bytes: 64, count: 1 }]).unwrap();
            // One thread for all of it: if one of them blocked it, nothing would go on.
            let sending = async {
                for request in 0..100 {
                    let buffer = pool.borrow_buffer_async(64, soon()).await.unwrap();
                    let tensor = TensorMut::from_buffer(DType::U8, &[64], buffer).unwrap().freeze();
                    let message = message(request).with_tensors(vec![tensor]);
                    sender.send_async(message, soon()).await.unwrap();
                }
            };
            let receiving = async {
                for request in 0..100 {
                    match inbox.receive_async(soon()).await.unwrap() {
                        Some(Received::Message(message)) => {
                            assert_eq!(message.request(), RequestId(request));
                        }
                        other => panic!("{other:?}"),
                    }
                }
            };
            tokio::join!(sending, receiving);
            for request in 0..2 {
                sender.send_async(message(request), soon()).await.unwrap();
            }
            let wait = Wait::at_most(Duration::from_millis(20));
            let not_sent = sender.send_async(message(3), wait).await.unwrap_err();
            assert_eq!(not_sent.error.kind(), ErrorKind::TimedOut);
        });
    }
}

/// Something that happens when it is told to.
#[derive(Default)]
struct Later(AtomicBool);

impl Fence for Later {
    fn is_done(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
    fn wait_on_host(&self) -> Result<()> {
        while !self.is_done() {
            thread::yield_now();
        }
        Ok(())
    }
}

#[test]
fn a_tensor_that_is_not_ready_is_not_read_before_it_is() {
    over_each(
        |mut pair| {
            let fence = Arc::new(Later::default());
            let buffer = pair.pool.borrow_buffer(4, soon()).unwrap();
            let tensor = TensorMut::from_buffer(DType::F32, &[1], buffer).unwrap();
            let tensor = tensor.freeze_with_fence(Arc::<Later>::clone(&fence));
            let happened = Arc::clone(&fence);
            let device = thread::spawn(move || {
                thread::sleep(Duration::from_millis(30));
                happened.0.store(true, Ordering::SeqCst);
            });
            pair.sender.send(message(1).with_tensors(vec![tensor]), soon()).unwrap();
            let mut received = receive(&mut pair.inbox);
            for tensor in received.take_tensors() {
                // Between threads the fence goes along; to other processes only what is ready goes.
                tensor.wait_fence_on_host().unwrap();
            }
            assert!(fence.is_done());
            device.join().unwrap();
        },
        4,
    );
}

#[test]
fn the_way_follows_from_where_the_ends_are() {
    let (here, there) = (start_endpoint(), start_endpoint());
    let last = Transport::built_in().last().unwrap();
    let own = inbox(&here, "own", Transport::THREAD, 4);
    let other = inbox(&there, "other", last, 4);
    assert_eq!(here.fastest_transport_to(own.address()).unwrap(), Transport::THREAD);
    assert_eq!(here.fastest_transport_to(other.address()).unwrap(), Transport::SHM);
    let mut elsewhere = other.address().clone();
    elsewhere.host = "another/1/2".to_owned();
    if cfg!(feature = "zeromq") {
        assert_eq!(here.fastest_transport_to(&elsewhere).unwrap(), Transport::ZMQ_TCP);
        assert_eq!(here.connect(&elsewhere).unwrap().peer().transport, Transport::ZMQ_TCP);
    }
    elsewhere.listeners.clear();
    let error = here.fastest_transport_to(&elsewhere).unwrap_err();
    assert!(error.to_string().contains("does not listen for other hosts"), "{error}");
    let text = serde_json::to_string(other.address()).unwrap();
    let address: Address = serde_json::from_str(&text).unwrap();
    assert_eq!(&address, other.address());
}

#[test]
fn a_tensor_that_is_forwarded_stays_where_it_is() {
    // Three processes' worth of endpoints: the buffer of the first reaches the third through the
    // second, and nothing is copied on the way.
    let (first, second, third) = (start_endpoint(), start_endpoint(), start_endpoint());
    let mut middle = inbox(&second, "middle", Transport::SHM, 4);
    let mut last = inbox(&third, "last", Transport::SHM, 4);
    let mut to_middle = connect(&first, &middle, Transport::SHM);
    let mut to_last = connect(&second, &last, Transport::SHM);
    let pool = first.create_pool(&[Buffers { bytes: 64, count: 2 }]).unwrap();
    let tensors = vec![tensor(&pool, &[42.0])];
    to_middle.send(message(1).with_tensors(tensors), soon()).unwrap();
    let mut received = receive(&mut middle);
    let tensors = received.take_tensors();
    to_last.send(received.forward_with(tensors), soon()).unwrap();
    drop(received);
    let received = receive(&mut last);
    assert_eq!(received.tensors()[0].to_f64().unwrap(), [42.0]);
    assert_eq!(received.tensors()[0].region().unwrap().0.pool_slot().unwrap().pool, pool.id());
    assert_eq!(received.route(), ROUTE);
    assert_eq!(first.copied_bytes() + second.copied_bytes(), 0);
    // The one in the middle goes; the last still has what it has.
    drop((to_last, middle, second));
    until("the first hears that the middle is gone", || to_middle.is_lost());
    assert_eq!(received.tensors()[0].to_f64().unwrap(), [42.0]);
    assert_eq!(pool.buffers_in_use(), 1);
    drop(received);
    until("the buffer comes back", || pool.buffers_in_use() == 0);
}

#[test]
fn a_pool_owner_that_waits_gets_back_what_an_idle_forwarder_holds() {
    // The middle holds a buffer until it knows that the last took it, and looks only when it has
    // something to do: the owner must be able to ask.
    let (first, second, third) = (start_endpoint(), start_endpoint(), start_endpoint());
    let mut middle = inbox(&second, "middle", Transport::SHM, 4);
    let mut last = inbox(&third, "last", Transport::SHM, 4);
    let mut to_middle = connect(&first, &middle, Transport::SHM);
    let mut to_last = connect(&second, &last, Transport::SHM);
    let pool = first.create_pool(&[Buffers { bytes: 64, count: 1 }]).unwrap();
    for round in 0..50 {
        let tensors = vec![tensor(&pool, &[round as f32])];
        to_middle.send(message(round).with_tensors(tensors), soon()).unwrap();
        let mut received = receive(&mut middle);
        let tensors = received.take_tensors();
        to_last.send(received.forward_with(tensors), soon()).unwrap();
        drop(received);
        assert_eq!(receive(&mut last).tensors()[0].to_f64().unwrap(), [round as f64]);
    }
}

#[test]
fn many_tensors_that_are_in_no_pool_go_in_one_message() {
    over_each(
        |mut pair| {
            let tensors: Vec<Tensor> =
                (0..100).map(|value| Tensor::from_i64(&[3], &[value; 3]).unwrap()).collect();
            for round in 0..20 {
                let message = message(round).with_tensors(tensors.clone());
                pair.sender.send(message, soon()).unwrap();
                let received = receive(&mut pair.inbox);
                for (received, sent) in received.tensors().iter().zip(&tensors) {
                    assert_eq!(received.bytes(), sent.bytes());
                }
                assert_eq!(received.tensors().len(), 100);
            }
        },
        4,
    );
}

#[test]
fn a_message_that_is_kept_does_not_hold_the_others_up() {
    over_each(
        |mut pair| {
            pair.sender.send(message(0), soon()).unwrap();
            let kept = receive(&mut pair.inbox);
            for request in 1..2500 {
                pair.sender.send(message(request), soon()).unwrap();
                assert_eq!(receive(&mut pair.inbox).request(), RequestId(request));
            }
            until("one is left", || pair.sender.in_flight_count() == 1);
            drop(kept);
            pair.sender.wait_until_finished(soon()).unwrap();
        },
        4,
    );
}

#[test]
fn a_receiver_that_is_interrupted_takes_what_is_there_and_waits_no_more() {
    over_each(
        |mut pair| {
            let interrupter = pair.inbox.interrupter();
            let waiting = thread::spawn(move || {
                // Without end, unless it is told to.
                assert!(pair.inbox.receive(Wait::Forever).is_none());
                pair.inbox
            });
            thread::sleep(Duration::from_millis(20));
            interrupter.interrupt();
            let mut inbox = waiting.join().unwrap();
            pair.sender.send(message(1), soon()).unwrap();
            let mut received = None;
            until("it came", || {
                received = inbox.receive(Wait::Forever);
                received.is_some()
            });
            assert!(matches!(received, Some(Received::Message(_))));
            assert!(inbox.receive(Wait::Forever).is_none());
        },
        4,
    );
}

#[test]
fn senders_that_share_memory_for_copies_wait_for_each_other() {
    let pair = pair(Transport::SHM, 16);
    let (mut inbox, mut sender) = (pair.inbox, pair.sender);
    let mut second = self::inbox(&pair.to, "second", Transport::SHM, 16);
    let mut other = connect(&pair.from, &second, Transport::SHM);
    let copied = || message(1).with_tensors(vec![Tensor::from_f32(&[1], &[1.0]).unwrap()]);
    let mut held = Vec::new();
    while sender.send(copied(), Wait::No).is_ok() {
        held.push(receive(&mut inbox));
    }
    let waiting = thread::spawn(move || other.send(copied(), soon()).map(|_| other).unwrap());
    thread::sleep(Duration::from_millis(30));
    assert!(second.try_receive().is_none());
    held.clear();
    receive(&mut second);
    drop(waiting.join().unwrap());
}

#[test]
fn a_pool_that_its_owner_drops_is_forgotten_by_those_who_had_it_open() {
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("memfd:tessera")).count()
    };
    let mut pair = pair(Transport::SHM, 4);
    let round = |pair: &mut Pair| {
        let pool = pair.from.create_pool(&[Buffers { bytes: 64, count: 1 }]).unwrap();
        let tensors = vec![tensor(&pool, &[5.0])];
        pair.sender.send(message(1).with_tensors(tensors), soon()).unwrap();
        drop(pool);
        assert_eq!(receive(&mut pair.inbox).tensors()[0].to_f64().unwrap(), [5.0]);
        pair.sender.wait_until_finished(soon()).unwrap();
    };
    round(&mut pair);
    let before = mappings();
    for _ in 0..20 {
        round(&mut pair);
    }
    // Other tests of this process come and go meanwhile: it must not be one more per round.
    until("the memory is given back", || mappings() < before + 40);
}
