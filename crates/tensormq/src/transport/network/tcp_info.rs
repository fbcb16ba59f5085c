//! What the kernel knows of a TCP connection.

#![allow(unsafe_code, reason = "the kernel writes a struct that is given by its address")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::link::ConnectionSilence;

/// What the connections to another host have done, as their kernel knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionTraffic {
    /// Bytes that the other end has.
    pub acknowledged_bytes: u64,
    /// Bytes that are on their way, and were not acknowledged.
    pub outstanding_bytes: u64,
    /// How fast bytes got there last, in bits per second, while there were more to be sent.
    pub bits_per_second: Option<f64>,
    /// Whether there was too little to send for that to be all that the way allows.
    pub is_little: bool,
    /// The round trip of packets.
    pub round_trip: Option<Duration>,
}

/// For how long a TCP connection is silent; `None` where that can't be known.
pub(in crate::transport) fn connection_silence(
    descriptor: BorrowedFd<'_>,
) -> Option<ConnectionSilence> {
    let info = read_tcp_info(descriptor)?;
    let of_process = Duration::from_millis(info.tcpi_last_data_recv.into());
    let acknowledged = Duration::from_millis(info.tcpi_last_ack_recv.into());
    let (of_host, round_trip) = (of_process.min(acknowledged), round_trip_of(&info));
    Some(ConnectionSilence { of_process, of_host, round_trip })
}

/// What a TCP connection has done; `None` where that can't be known.
pub(in crate::transport) fn connection_traffic(
    descriptor: BorrowedFd<'_>,
) -> Option<ConnectionTraffic> {
    let info = read_tcp_info(descriptor)?;
    let rate = info.tcpi_delivery_rate as f64 * 8.0;
    Some(ConnectionTraffic {
        acknowledged_bytes: info.tcpi_bytes_acked,
        outstanding_bytes: u64::from(info.tcpi_unacked) * u64::from(info.tcpi_snd_mss),
        bits_per_second: (rate > 0.0).then_some(rate),
        is_little: is_app_limited(&info),
        round_trip: round_trip_of(&info),
    })
}

fn round_trip_of(info: &libc::tcp_info) -> Option<Duration> {
    (info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()))
}

/// A bit behind the scaling of windows, which has no name here.
fn is_app_limited(info: &libc::tcp_info) -> bool {
    const FLAGS_OFFSET: usize = std::mem::offset_of!(libc::tcp_info, tcpi_snd_rcv_wscale) + 1;
    const _: () = assert!(FLAGS_OFFSET < std::mem::offset_of!(libc::tcp_info, tcpi_rto));
    // SAFETY: the byte lies in the struct, before its next field, and the kernel or zeros wrote it.
    let flags = unsafe { *std::ptr::from_ref(info).cast::<u8>().add(FLAGS_OFFSET) };
    flags & 1 != 0
}

fn read_tcp_info(descriptor: BorrowedFd<'_>) -> Option<libc::tcp_info> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: all zeros are a valid value, and the kernel writes at most `len` bytes of it. Should
    // the descriptor be closed or another's by now, the call fails or tells of that one.
    unsafe {
        let result = libc::getsockopt(
            descriptor.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        );
        (result == 0).then(|| info.assume_init())
    }
}
