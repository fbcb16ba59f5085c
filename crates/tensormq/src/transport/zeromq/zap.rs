//! Who may connect: answers libzmq's questions about keys (ZAP, ZeroMQ's RFC 27).

#![allow(unsafe_code, reason = "libzmq's descriptor is borrowed by number")]

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use tessera_core::{Result, lock};

use super::socket::{receive_frames, zmq_error};
use crate::reactor::{EventSource, ReactorHandle};

/// Accepts those who may connect.
pub(super) struct ZapAuthenticator {
    socket: Mutex<zmq::Socket>,
    /// By domain, which is one per listener: whom to accept; an empty set stands for all.
    allowed: Mutex<HashMap<String, HashSet<[u8; 32]>>>,
}

impl ZapAuthenticator {
    pub(super) fn bind_and_watch(
        context: &zmq::Context,
        reactor: &ReactorHandle,
    ) -> Result<Arc<Self>> {
        let fail = |error| zmq_error("the check of keys", error);
        let socket = context.socket(zmq::REP).map_err(fail)?;
        socket.set_linger(0).map_err(fail)?;
        socket.bind("inproc://zeromq.zap.01").map_err(fail)?;
        let fd = socket.get_fd().map_err(fail)?;
        let authenticator =
            Arc::new(Self { socket: Mutex::new(socket), allowed: Mutex::default() });
        let source: Arc<dyn EventSource> = Arc::<Self>::clone(&authenticator);
        // SAFETY: the descriptor is the socket's, which lives as long as the endpoint; should the
        // reactor find the source gone, it looks no more.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        reactor.register_source(fd, Arc::downgrade(&source))?;
        Ok(authenticator)
    }

    pub(super) fn allow_keys(&self, domain: &str, keys: HashSet<[u8; 32]>) {
        lock(&self.allowed).insert(domain.to_owned(), keys);
    }

    pub(super) fn forget_domain(&self, domain: &str) {
        lock(&self.allowed).remove(domain);
    }

    /// Version, request, domain, address, identity, mechanism, then the client's key.
    fn is_allowed(&self, frames: &[zmq::Message]) -> bool {
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

impl EventSource for ZapAuthenticator {
    fn on_readable(&self) {
        let socket = lock(&self.socket);
        while let Ok(frames) = receive_frames(&socket) {
            let request = frames.get(1).map_or(&[][..], |request| request);
            let (code, text) = if self.is_allowed(&frames) {
                ("200", "OK")
            } else {
                ("400", "this key may not connect")
            };
            let answer: [&[u8]; 6] = [b"1.0", request, code.as_bytes(), text.as_bytes(), b"", b""];
            // Where it can't be told, the client is not accepted.
            socket.send_multipart(answer, zmq::DONTWAIT).ok();
        }
    }
}
