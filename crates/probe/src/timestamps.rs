//! Packets with the time at which the kernel took them: whoever is to read them may be late.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};

/// Has the kernel note when packets come.
pub(crate) fn enable_timestamps(socket: &UdpSocket) -> io::Result<()> {
    Ok(setsockopt(socket, ReceiveTimestampns, &true)?)
}

/// A packet: its length, from whom, and when it came in nanoseconds since 1970.
pub(crate) struct ReceivedPacket {
    pub(crate) length: usize,
    pub(crate) from: SocketAddr,
    pub(crate) nanoseconds: u64,
}

/// Waits for a packet, for as long as the socket says.
pub(crate) fn receive_packet(
    socket: &UdpSocket,
    buffer: &mut [u8],
) -> io::Result<Option<ReceivedPacket>> {
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::empty(),
    )?;
    let nanoseconds = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmTimestampns(time) => {
            Some(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
        }
        _ => None,
    });
    let address = received.address.as_ref().and_then(|address| {
        let four = address.as_sockaddr_in().map(|four| SocketAddr::V4((*four).into()));
        four.or_else(|| address.as_sockaddr_in6().map(|six| SocketAddr::V6((*six).into())))
    });
    Ok(address.zip(nanoseconds).map(|(from, nanoseconds)| ReceivedPacket {
        length: received.bytes,
        from,
        nanoseconds,
    }))
}
