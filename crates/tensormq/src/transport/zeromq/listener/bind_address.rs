//! Where a listener is bound, what others are told of it, and who is at the other end.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use tessera_core::{Error, Result};

use super::CLOSE_LINGER;
use crate::inbox_registry::InboxShared;
use crate::peer_credentials::is_own_user;
use crate::wait::Deadline;

/// Whether the process at the other end of a socket is this user's.
#[allow(unsafe_code, reason = "libzmq gives the descriptor by number")]
pub(super) fn is_ours(descriptor: i32) -> bool {
    // SAFETY: only asked for its peer; should libzmq have closed it meanwhile, the answer is an
    // error or about another connection of ours, and the frame is refused or harmless.
    let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
    is_own_user(socket)
}

/// Where an inbox listens for processes of this host.
pub(super) fn local_address(inbox: &InboxShared, endpoint_id: u64) -> String {
    let uid = rustix::process::geteuid().as_raw();
    // The descriptor is unique in this process for as long as the inbox lives.
    let number = inbox.notifier.as_fd().as_raw_fd();
    format!("ipc://@tessera/{uid}/zmq/{endpoint_id:016x}/{number}")
}

/// Binds; waits for a moment where an inbox was there that is closed and tells its senders.
pub(super) fn bind_with_retry(socket: &zmq::Socket, socket_address: &str) -> zmq::Result<()> {
    let end = Deadline::after(CLOSE_LINGER * 2);
    loop {
        match socket.bind(socket_address) {
            Err(zmq::Error::EADDRINUSE) if !end.has_passed() => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// The socket address under which others reach what was bound.
pub(super) fn advertised_address(bound: &str, advertise: Option<&str>) -> Result<String> {
    let (host, port) = bound
        .strip_prefix("tcp://")
        .and_then(|rest| rest.rsplit_once(':'))
        .ok_or_else(|| Error::usage(format!("\"{bound}\" is no tcp://ADDRESS:PORT")))?;
    match advertise {
        Some(name) if name.contains(char::is_control) || name.is_empty() => {
            Err(Error::usage(format!("{name:?} is no name under which others reach an inbox")))
        }
        Some(name) => Ok(format!("tcp://{name}:{port}")),
        None if ["0.0.0.0", "[::]", "*", "[::ffff:0.0.0.0]"].contains(&host) => Err(Error::usage(
            "an inbox that listens at all addresses must be told under which name others reach it",
        )),
        None => Ok(bound.to_owned()),
    }
}
