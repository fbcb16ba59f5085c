//! Where a listener is bound, and who is at the other end.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::inbox_registry::InboxShared;
use crate::peer_credentials::is_own_user;
use crate::transport::network::listener::CLOSE_LINGER;
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
