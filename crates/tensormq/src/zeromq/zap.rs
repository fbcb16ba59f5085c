//! Who may connect: answers libzmq's questions about keys (ZAP, ZeroMQ's RFC 27).

#![allow(unsafe_code, reason = "libzmq's descriptor is borrowed by number")]

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tessera_core::Result;

use super::{receive_frames, zmq_error};
use crate::driver::{Driver, Source};
use crate::sync::{Mutex, lock};

/// Lets in those who may.
pub(super) struct Doorkeeper {
    socket: Mutex<zmq::Socket>,
    /// By domain, which is one per listener: whom to let in; an empty set stands for all.
    allowed: Mutex<HashMap<String, HashSet<[u8; 32]>>>,
}

impl Doorkeeper {
    pub(super) fn start(context: &zmq::Context, driver: &Driver) -> Result<Arc<Self>> {
        let fail = |error| zmq_error("the check of keys", error);
        let socket = context.socket(zmq::REP).map_err(fail)?;
        socket.set_linger(0).map_err(fail)?;
        socket.bind("inproc://zeromq.zap.01").map_err(fail)?;
        let fd = socket.get_fd().map_err(fail)?;
        let keeper = Arc::new(Self { socket: Mutex::new(socket), allowed: Mutex::default() });
        let source: Arc<dyn Source> = Arc::<Self>::clone(&keeper);
        // SAFETY: the descriptor is the socket's, which lives as long as the transport; should the
        // driver find the source gone, it looks no more.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        driver.add(fd, Arc::downgrade(&source))?;
        Ok(keeper)
    }

    pub(super) fn allow(&self, domain: &str, keys: HashSet<[u8; 32]>) {
        lock(&self.allowed).insert(domain.to_owned(), keys);
    }

    pub(super) fn forget(&self, domain: &str) {
        lock(&self.allowed).remove(domain);
    }

    /// Version, request, domain, address, identity, mechanism, then the client's key.
    fn decide(&self, frames: &[zmq::Message]) -> bool {
        let [version, _, domain, _, _, mechanism, key] = frames else { return false };
        let allowed = lock(&self.allowed);
        let (Ok(domain), Ok(key)) = (std::str::from_utf8(domain), <[u8; 32]>::try_from(&key[..]))
        else {
            return false;
        };
        &version[..] == b"1.0"
            && &mechanism[..] == b"CURVE"
            && allowed.get(domain).is_some_and(|keys| keys.is_empty() || keys.contains(&key))
    }
}

impl Source for Doorkeeper {
    fn ready(&self) {
        let socket = lock(&self.socket);
        while let Ok(frames) = receive_frames(&socket) {
            let request = frames.get(1).map_or(&[][..], |request| request);
            let (code, text) = match self.decide(&frames) {
                true => ("200", "OK"),
                false => ("400", "this key may not connect"),
            };
            let answer: [&[u8]; 6] = [b"1.0", request, code.as_bytes(), text.as_bytes(), b"", b""];
            // Where it can't be told, the client is not let in.
            socket.send_multipart(answer, zmq::DONTWAIT).ok();
        }
    }
}
