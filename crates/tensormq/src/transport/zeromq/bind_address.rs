//! Where a listener is bound, and who is at the other end.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::inbox_registry::InboxShared;
use crate::peer_credentials::is_own_user;

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
