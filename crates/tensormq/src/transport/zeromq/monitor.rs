//! What happens to a socket's connections, and the descriptor that says that there is something.

#![allow(unsafe_code, reason = "libzmq's descriptors are borrowed by number")]

use std::os::fd::BorrowedFd;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_core::Result;

use super::socket::{receive_frames, zmq_error};
use crate::reactor::{EventSource, ReactorHandle, ReactorToken};

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEvent {
    /// It broke, or the other end closed it; with the descriptor that it had.
    Disconnected(i32),
    /// It could not be made.
    NotConnected,
    /// It broke before both ends had understood each other, for a reason that is not known.
    HandshakeBroken,
    /// The other end refused us, or we it: keys don't fit, or it is no ZeroMQ of ours.
    HandshakeFailed,
}

const DISCONNECTED: u16 = zmq::SocketEvent::DISCONNECTED as u16;
const CLOSED: u16 = zmq::SocketEvent::CLOSED as u16;
const HANDSHAKE_BROKEN: u16 = zmq::SocketEvent::HANDSHAKE_FAILED_NO_DETAIL as u16;
const HANDSHAKE_FAILED: [u16; 2] = [
    zmq::SocketEvent::HANDSHAKE_FAILED_PROTOCOL as u16,
    zmq::SocketEvent::HANDSHAKE_FAILED_AUTH as u16,
];

/// A socket, and one that tells what happens to it.
pub(super) struct MonitoredSocket {
    pub(super) socket: zmq::Socket,
    monitor: zmq::Socket,
    tokens: Vec<(i32, ReactorToken)>,
}

impl MonitoredSocket {
    pub(super) fn new(context: &zmq::Context, socket: zmq::Socket) -> Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("inproc://monitor-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let fail = |error| zmq_error("a monitor", error);
        let events = DISCONNECTED | CLOSED | HANDSHAKE_BROKEN;
        let events = HANDSHAKE_FAILED.iter().fold(events, |all, one| all | one);
        socket.monitor(&name, events.into()).map_err(fail)?;
        let monitor = context.socket(zmq::PAIR).map_err(fail)?;
        monitor.set_linger(0).map_err(fail)?;
        monitor.connect(&name).map_err(fail)?;
        Ok(Self { socket, monitor, tokens: Vec::new() })
    }

    /// Has the reactor tell `source` when there is something to receive or something happened.
    pub(super) fn watch_events(
        &mut self,
        reactor: &ReactorHandle,
        source: &Weak<dyn EventSource>,
    ) -> Result<()> {
        for socket in [&self.socket, &self.monitor] {
            let fd = socket.get_fd().map_err(|error| zmq_error("a socket", error))?;
            // SAFETY: the descriptor is the socket's, which stays open until `stop_watching` was
            // called.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            self.tokens.push((fd, reactor.register_source(borrowed, Weak::clone(source))?));
        }
        Ok(())
    }

    /// Has the reactor look no more. To be called before the sockets are dropped.
    pub(super) fn stop_watching(&mut self, reactor: &ReactorHandle) {
        for (fd, token) in self.tokens.drain(..) {
            // SAFETY: as above.
            reactor.deregister_source(unsafe { BorrowedFd::borrow_raw(fd) }, token);
        }
    }

    /// What happened since the last time.
    pub(super) fn take_events(&self) -> Vec<ConnectionEvent> {
        let mut all = Vec::new();
        while let Ok(frames) = receive_frames(&self.monitor) {
            let Some(bytes) = frames.first().and_then(|frame| frame.first_chunk::<6>()) else {
                continue;
            };
            let value = i32::from_ne_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
            match u16::from_ne_bytes([bytes[0], bytes[1]]) {
                DISCONNECTED => all.push(ConnectionEvent::Disconnected(value)),
                CLOSED => all.push(ConnectionEvent::NotConnected),
                HANDSHAKE_BROKEN => all.push(ConnectionEvent::HandshakeBroken),
                event if HANDSHAKE_FAILED.contains(&event) => {
                    all.push(ConnectionEvent::HandshakeFailed);
                }
                _ => {}
            }
        }
        all
    }
}

impl Drop for MonitoredSocket {
    fn drop(&mut self) {
        // Before our end of the monitor goes: libzmq would wait for ever to tell it something.
        // SAFETY: the socket is open; no address ends its monitor.
        unsafe { zmq_sys::zmq_socket_monitor(self.socket.as_mut_ptr(), std::ptr::null(), 0) };
    }
}
