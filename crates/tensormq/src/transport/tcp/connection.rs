//! A connection that both ends have: a queue and a thread for what is sent, a thread that reads.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use rustix::net::sockopt;
use tessera_core::{Error, Result, lock};

use super::message_reader::{MessageReader, WaitableRead, message_head};
use super::tls_identity::EndableConnection;
use super::wire_socket::WireSocket;
use crate::transport::network::link::LinkFrame;
use crate::transport::network::tcp_info::{ConnectionTraffic, connection_traffic};

/// How long what was not sent when a connection is closed may take.
const CLOSE_LINGER: Duration = Duration::from_millis(500);

/// How long what is sent may stay unacknowledged. A link that loses much, and is slow, takes seconds
/// to mend that; whether the other end is there its signs of life say sooner.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(30);

/// Congestion control that remembers how fast a link is while nothing is sent.
const STEADY_CONGESTION_CONTROL: &str = "bbr";

/// What is to be sent.
#[derive(Default)]
struct SendQueue {
    messages: VecDeque<Vec<LinkFrame>>,
    /// Nothing more comes; what is there is sent.
    is_closed: bool,
    /// The connection is gone.
    is_broken: bool,
}

/// A connection, from when both ends have understood each other.
pub(super) struct Connection {
    wire: WireSocket,
    queue: Mutex<SendQueue>,
    has_work: Condvar,
}

impl Connection {
    /// Starts the threads. `on_message` is called with all that comes, and `on_end` when nothing
    /// more does, by the one that reads.
    pub(super) fn start(
        wire: WireSocket,
        largest_frame: usize,
        on_message: impl Fn(Vec<Bytes>) + Send + 'static,
        on_end: impl FnOnce(io::Error) + Send + 'static,
    ) -> Result<Arc<Self>> {
        let connection = Arc::new(Self { wire, queue: Mutex::default(), has_work: Condvar::new() });
        let (writing, reading) = (Arc::clone(&connection), Arc::clone(&connection));
        spawn_thread("tensormq-send", move || writing.send_queue())?;
        let receiving = spawn_thread("tensormq-receive", move || {
            let error = match reading.wire.decrypting_reader() {
                Some(input) => read_messages(input, largest_frame, on_message),
                None => read_messages(reading.wire.socket(), largest_frame, on_message),
            };
            reading.break_off();
            on_end(error);
        });
        // Where it can't be read, the thread that sends ends, too.
        receiving.inspect_err(|_| connection.break_off())?;
        let weak: Weak<Self> = Arc::downgrade(&connection);
        connection.wire.watch_peer(weak);
        Ok(connection)
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.wire.socket()
    }

    /// Has a message sent; an error where the connection is gone.
    pub(super) fn send_frames(&self, frames: Vec<LinkFrame>) -> Result<()> {
        let mut queue = lock(&self.queue);
        if queue.is_broken || queue.is_closed {
            return Err(Error::lost("the connection is gone"));
        }
        queue.messages.push_back(frames);
        drop(queue);
        self.has_work.notify_one();
        Ok(())
    }

    /// Ends it once what is to be sent is, or at once.
    pub(super) fn close(&self, sends_rest: bool) {
        if !sends_rest {
            return self.break_off();
        }
        lock(&self.queue).is_closed = true;
        // A peer that does not take it keeps the thread for so long.
        sockopt::set_tcp_user_timeout(self.socket(), CLOSE_LINGER.as_millis() as u32).ok();
        self.has_work.notify_one();
    }

    fn break_off(&self) {
        let mut queue = lock(&self.queue);
        queue.is_broken = true;
        let unsent = std::mem::take(&mut queue.messages);
        drop(queue);
        drop(unsent);
        self.wire.shut_down();
        self.has_work.notify_one();
    }

    /// Sends what comes, until the connection is closed.
    fn send_queue(&self) {
        while let Some(frames) = self.next_message() {
            if self.write_message(&frames).is_err() {
                return self.break_off();
            }
        }
        if !lock(&self.queue).is_broken {
            self.wire.finish_sending();
            // Whoever reads takes what is there still, and ends.
            self.wire.shut_down();
        }
    }

    fn next_message(&self) -> Option<Vec<LinkFrame>> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.is_broken {
                return None;
            }
            if let Some(message) = queue.messages.pop_front() {
                return Some(message);
            }
            if queue.is_closed {
                return None;
            }
            queue = self.has_work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write_message(&self, frames: &[LinkFrame]) -> io::Result<()> {
        let content: Vec<&[u8]> = frames
            .iter()
            .map(|frame| match frame {
                LinkFrame::Bytes(bytes) => &bytes[..],
                LinkFrame::Tensor(tensor) => tensor.bytes().unwrap_or_default(),
            })
            .collect();
        let head = message_head(content.iter().map(|frame| frame.len()));
        let parts: Vec<&[u8]> = std::iter::once(&head[..]).chain(content).collect();
        self.wire.write_parts(&parts)
    }
}

impl EndableConnection for Connection {
    fn end_at_once(&self) {
        self.break_off();
    }

    fn traffic(&self) -> Option<ConnectionTraffic> {
        connection_traffic(self.socket().as_fd())
    }
}

/// Hands on what comes until nothing does, and why.
fn read_messages(
    input: impl WaitableRead,
    largest_frame: usize,
    on_message: impl Fn(Vec<Bytes>),
) -> io::Error {
    let mut reader = MessageReader::new(input, largest_frame);
    loop {
        match reader.read_message() {
            Ok(message) => on_message(message),
            Err(error) => return error,
        }
    }
}

/// What all our sockets have in common.
pub(super) fn configure_socket(socket: impl AsFd) -> Result<()> {
    let configure = || -> rustix::io::Result<()> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        // A host that is gone without a goodbye is noticed by its silence.
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, Duration::from_secs(1))?;
        sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(1))?;
        sockopt::set_tcp_keepcnt(&socket, 3)?;
        sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED_LIMIT.as_millis() as u32)?;
        // One that starts slowly after each pause makes a tensor wait for many round trips. Where
        // the system has no other, or not for us, it stays.
        sockopt::set_tcp_congestion(&socket, STEADY_CONGESTION_CONTROL).ok();
        Ok(())
    };
    configure().map_err(|error| Error::from_io("a TCP socket", &error.into()))
}

pub(super) fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).map_err(|error| Error::from_io("a thread of a connection", &error))
}
