//! Messages made by hand, and somebody who sends them.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tessera_core::DType;
use tessera_tensormq::layout::VERSION;

#[cfg(feature = "zeromq")]
use super::network::Network;
use super::{NOISE, SOON};
use crate::NETWORK;

pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSED: u8 = 3;

/// The source route of the messages made here: any bytes, and with the task's name 8 of them.
pub(crate) const ROUTE: [u8; 3] = [0xff, 0, b'r'];
/// How long ago they say that their requests were accepted and that they were made.
pub(crate) const ACCEPTED_AGO: Duration = Duration::from_secs(30);
pub(crate) const MADE_AGO: Duration = Duration::from_secs(10);

/// What `src/transport/network/control_frame.rs` calls a hello.
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

/// Somebody who connects to an inbox and says what it likes.
pub(crate) struct Raw {
    socket_address: String,
    socket: RefCell<RawSocket>,
}

enum RawSocket {
    Tcp(TcpStream),
    #[cfg(feature = "zeromq")]
    ZeroMq(zmq::Socket),
}

impl RawSocket {
    fn connect(socket_address: &str) -> Self {
        match NETWORK {
            #[cfg(feature = "zeromq")]
            Network::ZeroMq => Self::ZeroMq(zeromq_socket(socket_address)),
            _ => {
                let socket = TcpStream::connect(socket_address.strip_prefix("tcp://").unwrap());
                let socket = socket.unwrap();
                socket.set_read_timeout(Some(SOON)).unwrap();
                Self::Tcp(socket)
            }
        }
    }

    /// Sends a message; an error where it was thrown out.
    fn send(&mut self, frames: &[Vec<u8>]) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => {
                let mut bytes = (frames.len() as u32).to_le_bytes().to_vec();
                frames.iter().for_each(|frame| bytes.extend((frame.len() as u64).to_le_bytes()));
                frames.iter().for_each(|frame| bytes.extend(frame));
                socket.write_all(&bytes)
            }
            #[cfg(feature = "zeromq")]
            Self::ZeroMq(socket) => {
                socket.send_multipart(frames, 0).unwrap();
                Ok(())
            }
        }
    }

    /// What is said next; an error where it was thrown out.
    fn receive(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Self::Tcp(socket) => {
                let (mut count, mut length) = ([0; 4], [0; 8]);
                socket.read_exact(&mut count)?;
                assert_eq!(u32::from_le_bytes(count), 1);
                socket.read_exact(&mut length)?;
                let mut frame = vec![0; u64::from_le_bytes(length) as usize];
                socket.read_exact(&mut frame)?;
                Ok(frame)
            }
            #[cfg(feature = "zeromq")]
            Self::ZeroMq(socket) => Ok(socket.recv_bytes(0).expect("an answer")),
        }
    }
}

#[cfg(feature = "zeromq")]
fn zeromq_socket(socket_address: &str) -> zmq::Socket {
    static CONTEXT: std::sync::LazyLock<zmq::Context> = std::sync::LazyLock::new(zmq::Context::new);
    let socket = CONTEXT.socket(zmq::DEALER).unwrap();
    socket.set_ipv6(true).unwrap();
    socket.set_linger(2000).unwrap();
    socket.set_sndhwm(0).unwrap();
    socket.set_rcvtimeo(SOON.as_millis() as i32).unwrap();
    socket.connect(socket_address).unwrap();
    socket
}

impl Raw {
    pub(crate) fn connect(socket_address: &str) -> Self {
        let socket = RefCell::new(RawSocket::connect(socket_address));
        Self { socket_address: socket_address.to_owned(), socket }
    }

    pub(crate) fn say(&self, frames: &[Vec<u8>]) {
        // Where it was thrown out, it notices when it listens.
        self.socket.borrow_mut().send(frames).ok();
    }

    pub(crate) fn hear(&self) -> Vec<u8> {
        let frame = self.socket.borrow_mut().receive().expect("an answer");
        assert!(frame.starts_with(b"TsMC") && frame.len() > 6, "{frame:?}");
        frame
    }

    /// Says hello, and passes over what is said of sessions before; anew where it is thrown out.
    pub(crate) fn enter(&self, session: u128) {
        self.say(&[hello(session, "unit")]);
        loop {
            let heard = self.socket.borrow_mut().receive();
            match heard {
                Ok(frame) if frame[6] == WELCOME => return,
                Ok(_) => {}
                Err(_) => {
                    *self.socket.borrow_mut() = RawSocket::connect(&self.socket_address);
                    self.say(&[hello(session, "unit")]);
                }
            }
        }
    }
}
