//! Who is at the other end of a socket of this host: the kernel knows.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Whether the process at the other end of a socket is this user's.
pub(crate) fn is_own_user(socket: BorrowedFd<'_>) -> bool {
    peer_credentials(socket).is_some_and(|(_, user)| user == rustix::process::geteuid().as_raw())
}

/// The process and the user at the other end of a socket; the process is 0 where it is in another
/// namespace, as in containers that share only the network.
#[allow(unsafe_code, reason = "a process of number 0 is not one for rustix")]
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY: the kernel writes at most `len` bytes of what it is given the address of.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    (result == 0).then(|| (peer.pid.unsigned_abs(), peer.uid))
}
