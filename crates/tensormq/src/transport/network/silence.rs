//! For how long a TCP connection is silent, as its kernel knows.

#![allow(unsafe_code, reason = "the kernel writes a struct that is given by its address")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::link::ConnectionSilence;

/// For how long a TCP connection is silent; `None` where that can't be known.
pub(in crate::transport) fn connection_silence(
    descriptor: BorrowedFd<'_>,
) -> Option<ConnectionSilence> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: all zeros are a valid value, and the kernel writes at most `len` bytes of it. Should
    // the descriptor be closed or another's by now, the call fails or tells of that one.
    let info = unsafe {
        let result = libc::getsockopt(
            descriptor.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        );
        if result != 0 {
            return None;
        }
        info.assume_init()
    };
    let of_process = Duration::from_millis(info.tcpi_last_data_recv.into());
    let acknowledged = Duration::from_millis(info.tcpi_last_ack_recv.into());
    Some(ConnectionSilence { of_process, of_host: of_process.min(acknowledged) })
}
