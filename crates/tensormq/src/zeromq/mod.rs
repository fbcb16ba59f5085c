//! Between hosts: ZeroMQ, a header and its tensors as frames of one message.
//!
//! A channel is a session of its own above ZeroMQ's connections, of which it has one or several
//! ([`outgoing`]). Messages are numbered; the receiver says how far it is; when a connection breaks the
//! sender makes a new one, hears how far the receiver came, and sends the rest again, which the
//! receiver takes in order and once ([`incoming`]), from one socket for all senders ([`listener`]).
//! That also bounds what is on its way: the sender never has more messages out than the receiver's
//! queue has room for.

mod frame;
mod incoming;
pub(crate) mod listener;
mod monitor;
pub(crate) mod outgoing;
mod timer;
mod wire;
mod zap;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tessera_core::{Error, Result};

use crate::driver::Driver;
use crate::sync::{Mutex, lock};
use zap::Doorkeeper;

/// A key pair of CURVE, with which connections between hosts are encrypted.
#[derive(Clone)]
pub struct Keys {
    pub(crate) public: [u8; 32],
    secret: [u8; 32],
}

impl Keys {
    /// A new pair.
    pub fn generate() -> Result<Self> {
        check_curve()?;
        let pair = zmq::CurveKeyPair::new().map_err(|error| zmq_error("a key pair", error))?;
        Ok(Self { public: pair.public_key, secret: pair.secret_key })
    }

    /// A pair from its text, 40 characters each (ZeroMQ's Z85).
    pub fn from_text(public: &str, secret: &str) -> Result<Self> {
        check_curve()?;
        Ok(Self { public: key_from_text(public)?, secret: key_from_text(secret)? })
    }

    /// The public key, to be given to whoever connects.
    pub fn public(&self) -> String {
        key_to_text(&self.public)
    }

    /// The secret key, to be kept.
    pub fn secret(&self) -> String {
        key_to_text(&self.secret)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.public())
    }
}

fn check_curve() -> Result<()> {
    match zmq::has("curve") {
        Some(true) => Ok(()),
        _ => Err(Error::unsupported("this build of ZeroMQ has no encryption (CURVE)")),
    }
}

pub(crate) fn key_to_text(key: &[u8; 32]) -> String {
    zmq::z85_encode(key).unwrap_or_default()
}

pub(crate) fn key_from_text(text: &str) -> Result<[u8; 32]> {
    let wrong = || Error::usage("a key of CURVE has 40 characters of ZeroMQ's Z85");
    let bytes = (text.len() == 40 && text.is_ascii()).then(|| zmq::z85_decode(text));
    let bytes = bytes.and_then(Result::ok).and_then(|bytes| bytes.try_into().ok());
    let key = bytes.ok_or_else(wrong)?;
    // libzmq gives zeros for what it can't read.
    if key_to_text(&key) == text { Ok(key) } else { Err(wrong()) }
}

/// Refuses what libzmq can't take for an address.
fn check_endpoint(endpoint: &str, scheme: &str) -> Result<()> {
    let rest = endpoint.strip_prefix(scheme);
    match rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_control)) {
        true => Ok(()),
        false => Err(Error::usage(format!("{endpoint:?} is no address of the form {scheme}…"))),
    }
}

/// Where an inbox listens, beside shared memory.
#[derive(Clone, Debug)]
pub enum Listen {
    /// For processes of this host, over ZeroMQ: the baseline.
    Ipc,
    /// For other hosts.
    Tcp {
        /// Where, `tcp://ADDRESS:PORT`; `[…]` around an IPv6 address; port 0 for any that is free.
        endpoint: String,
        /// The name or address under which others reach it; needed where it listens at all
        /// addresses.
        advertise: Option<String>,
        /// Who may connect.
        security: Security,
    },
}

/// Who may connect to an inbox from another host.
#[derive(Clone, Debug)]
pub enum Security {
    /// Anyone, unencrypted. For networks that are trusted.
    Plain,
    /// Encrypted with the courier's keys (CURVE).
    Curve {
        /// The public keys of those who may connect; empty: all who have our public key.
        allowed: Vec<String>,
    },
}

/// ZeroMQ in this process.
pub(crate) struct Network {
    pub(crate) context: zmq::Context,
    doorkeeper: Mutex<Option<Arc<Doorkeeper>>>,
}

impl Network {
    pub(crate) fn new() -> Result<Self> {
        frame::keep_memory();
        let context = zmq::Context::new();
        // More than one thread, so that several lanes can move at once.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        context
            .set_io_threads(cores.clamp(1, 4) as i32)
            .map_err(|error| zmq_error("ZeroMQ's threads", error))?;
        Ok(Self { context, doorkeeper: Mutex::default() })
    }

    /// Has connections to `domain` checked: only these keys, where there are any.
    fn guard(&self, driver: &Driver, domain: &str, allowed: HashSet<[u8; 32]>) -> Result<()> {
        let mut doorkeeper = lock(&self.doorkeeper);
        let keeper = match &*doorkeeper {
            Some(keeper) => Arc::clone(keeper),
            None => {
                let keeper = Doorkeeper::start(&self.context, driver)?;
                *doorkeeper = Some(Arc::clone(&keeper));
                keeper
            }
        };
        keeper.allow(domain, allowed);
        Ok(())
    }

    fn unguard(&self, domain: &str) {
        if let Some(keeper) = &*lock(&self.doorkeeper) {
            keeper.forget(domain);
        }
    }
}

/// An error of libzmq.
pub(crate) fn zmq_error(what: impl fmt::Display, error: zmq::Error) -> Error {
    Error::io(what, &std::io::Error::from_raw_os_error(error.to_raw()))
}

/// Everything of a message that is there to be read, frame by frame.
fn receive_frames(socket: &zmq::Socket) -> zmq::Result<Vec<zmq::Message>> {
    let mut frames = vec![socket.recv_msg(zmq::DONTWAIT)?];
    while frames.last().is_some_and(zmq::Message::get_more) {
        frames.push(socket.recv_msg(zmq::DONTWAIT)?);
    }
    Ok(frames)
}

/// What all our sockets have in common.
fn prepare(socket: &mut zmq::Socket, endpoint: &str) -> zmq::Result<()> {
    // What is not sent when a socket closes is of no use to anyone for longer than this.
    socket.set_linger(500)?;
    // The number of messages is bounded by the channel's depth; these would drop or block instead.
    socket.set_sndhwm(0)?;
    socket.set_rcvhwm(0)?;
    let Some(address) = endpoint.strip_prefix("tcp://") else { return Ok(()) };
    // Names may stand for either; IPv4 must also work where there is no IPv6.
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    socket.set_ipv6(host.parse::<std::net::Ipv4Addr>().is_err())?;
    // A host that is gone without a goodbye is noticed by its silence. By the kernel, because ZeroMQ
    // counts whole frames as life, and a large one may take longer than anyone's patience.
    socket.set_tcp_keepalive(1)?;
    socket.set_tcp_keepalive_idle(1)?;
    socket.set_tcp_keepalive_intvl(1)?;
    socket.set_tcp_keepalive_cnt(3)?;
    socket.set_handshake_ivl(3000)?;
    frame::set_unacknowledged_limit(socket, SILENCE)
}

/// How often a sign of life is given, and after how much silence the other end is out of reach.
const LIFE: Duration = Duration::from_millis(500);
const SILENCE: Duration = Duration::from_secs(3);
