//! Messages made by hand, and somebody who sends them.

use std::time::Duration;

use tessera_core::DType;
use tessera_tensormq::layout::VERSION;

use super::{NOISE, SOON};

pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSED: u8 = 3;

/// The source route of the messages made here: any bytes, and with the task's name 8 of them.
pub(crate) const ROUTE: [u8; 3] = [0xff, 0, b'r'];
/// How long ago they say that their requests were accepted and that they were made.
pub(crate) const ACCEPTED_AGO: Duration = Duration::from_secs(30);
pub(crate) const MADE_AGO: Duration = Duration::from_secs(10);

/// What `src/transport/zeromq/control_frame.rs` calls a hello.
pub(crate) fn hello(session: u128, inbox: &str) -> Vec<u8> {
    let mut bytes = b"TsMC".to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([1u8, 0]);
    bytes.extend(session.to_le_bytes());
    bytes.extend(NOISE.to_le_bytes());
    bytes.extend([0u8, 0, 1, 0]);
    bytes.extend(inbox.as_bytes());
    bytes
}

pub(crate) fn bye(last: u64) -> Vec<u8> {
    let mut bytes = b"TsMC".to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.push(5);
    bytes.extend(last.to_le_bytes());
    bytes
}

/// A header after the tables at the head of `src/layout.rs`, with a tensor of bytes in each frame.
pub(crate) fn header(request: u128, sequence: u64, sizes: &[usize]) -> Vec<u8> {
    let task = b"noise";
    let start = 104 + ROUTE.len() + task.len();
    let mut bytes = b"TsMQ".to_vec();
    bytes.extend(VERSION.to_le_bytes());
    // Times are told as how long ago they were.
    bytes.extend(2u16.to_le_bytes());
    bytes.extend(((start + sizes.len() * 72) as u32).to_le_bytes());
    bytes.extend((task.len() as u16).to_le_bytes());
    bytes.extend((sizes.len() as u16).to_le_bytes());
    bytes.extend((ROUTE.len() as u32).to_le_bytes());
    bytes.extend((start as u32).to_le_bytes());
    bytes.extend(request.to_le_bytes());
    // Neither a deadline nor a trace.
    bytes.extend([0u8; 40]);
    bytes.extend(sequence.to_le_bytes());
    for ago in [ACCEPTED_AGO, MADE_AGO] {
        bytes.extend((ago.as_nanos() as u64).to_le_bytes());
    }
    bytes.extend(ROUTE);
    bytes.extend(task);
    for (number, size) in sizes.iter().enumerate() {
        bytes.extend([DType::U8.to_onnx() as u8, 1, 0, 0, 0, 0, 0, 0]);
        bytes.extend((*size as u64).to_le_bytes());
        bytes.extend([0u8; 16]);
        bytes.extend((number as u32).to_le_bytes());
        bytes.extend([0u8; 20]);
        bytes.extend((*size as u64).to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
    }
    bytes
}

/// A whole message: a header and its frames.
pub(crate) fn post(request: u128, sequence: u64, sizes: &[usize]) -> Vec<Vec<u8>> {
    let mut frames = vec![header(request, sequence, sizes)];
    frames.extend(sizes.iter().map(|size| vec![7u8; *size]));
    frames
}

/// Somebody who connects to an inbox with ZeroMQ and says what it likes.
pub(crate) struct Raw(zmq::Socket);

impl Raw {
    pub(crate) fn connect(context: &zmq::Context, socket_address: &str) -> Self {
        let socket = context.socket(zmq::DEALER).unwrap();
        socket.set_ipv6(true).unwrap();
        socket.set_linger(2000).unwrap();
        socket.set_sndhwm(0).unwrap();
        socket.set_rcvtimeo(SOON.as_millis() as i32).unwrap();
        socket.connect(socket_address).unwrap();
        Self(socket)
    }

    pub(crate) fn say(&self, frames: &[Vec<u8>]) {
        self.0.send_multipart(frames, 0).unwrap();
    }

    pub(crate) fn hear(&self) -> Vec<u8> {
        let frame = self.0.recv_bytes(0).expect("an answer");
        assert!(frame.starts_with(b"TsMC") && frame.len() > 6, "{frame:?}");
        frame
    }

    /// Says hello, and passes over what is said of sessions before.
    pub(crate) fn enter(&self, session: u128) {
        self.say(&[hello(session, "unit")]);
        while self.hear()[6] != WELCOME {}
    }
}
