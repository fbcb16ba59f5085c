//! Sockets between processes of a host: they carry descriptors, and end when a process does.
//!
//! Their names are abstract: there is no file, so nothing is left when a process is killed.
//! Abstract names have no owner either, so both sides ask the kernel for the other's user and talk
//! only to their own.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};
use tessera_core::{Error, ErrorKind, Result};

use crate::peer_credentials::{is_own_user, peer_credentials};
use crate::wait::Wait;

/// Longest packet; what is longer is cut short and refused by whoever reads it.
const MAX_PACKET_BYTES: usize = 4096;
/// Most descriptors in a packet.
const MAX_PACKET_DESCRIPTORS: usize = 4;

/// The socket's name for something of this user.
fn abstract_address(name: &str) -> Result<SocketAddrUnix> {
    let uid = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("tessera/{uid}/{name}").as_bytes())
        .map_err(|_| Error::usage(format!("\"{name}\" is too long for the name of a socket")))
}

/// Waits for processes of this user.
pub(crate) struct UnixSocketListener(OwnedFd);

impl UnixSocketListener {
    pub(crate) fn bind(name: &str) -> Result<Self> {
        let fail = |error: Errno| Error::from_io(format!("a socket for \"{name}\""), &error.into());
        let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(fail)?;
        match bind(&socket, &abstract_address(name)?) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                return Err(Error::usage(format!("\"{name}\" is taken by a process that runs")));
            }
            Err(error) => return Err(fail(error)),
        }
        listen(&socket, 128).map_err(fail)?;
        Ok(Self(socket))
    }

    /// The next process that wants to talk; `None` where there is none now.
    pub(crate) fn accept(&self) -> Option<UnixConnection> {
        loop {
            match accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) if is_ours(&socket) => return Some(UnixConnection(socket)),
                // Somebody else's process: the socket closes here. Or it left already.
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // It waits on: we look again, and not as fast as we can.
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    return None;
                }
                Err(_) => return None,
            }
        }
    }
}

impl AsFd for UnixSocketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection to another process of this user.
pub(crate) struct UnixConnection(OwnedFd);

/// What came through a connection.
pub(crate) enum ReceivedPacket {
    /// Bytes and descriptors.
    Data(Vec<u8>, Vec<OwnedFd>),
    /// Nothing for now.
    Nothing,
    /// The other process closed it, or ended.
    End,
}

impl UnixConnection {
    pub(crate) fn connect(name: &str) -> Result<Self> {
        // It never waits: a process that does not even take connections is not waited for.
        let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            .map_err(|error| Error::from_io("a socket", &error.into()))?;
        connect(&socket, &abstract_address(name)?).map_err(|error| match error {
            Errno::CONNREFUSED => Error::lost(format!("no process listens as \"{name}\"")),
            Errno::AGAIN => Error::timed_out(format!("the process at \"{name}\" takes nobody")),
            error => {
                Error::from_io(format!("the process that listens as \"{name}\""), &error.into())
            }
        })?;
        if !is_ours(&socket) {
            return Err(Error::new(
                ErrorKind::Io,
                format!("the process that listens as \"{name}\" is another user's"),
            ));
        }
        Ok(Self(socket))
    }

    /// Sends a packet; an error where the other side is gone or reads nothing.
    pub(crate) fn send_packet(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::usage("too many descriptors for one packet"));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                Err(Error::lost("the other process is gone"))
            }
            Err(error) => Err(Error::from_io("a socket to another process", &error.into())),
        }
    }

    /// The next packet.
    pub(crate) fn receive_packet(&self, wait: Wait) -> Result<ReceivedPacket> {
        loop {
            let mut bytes = vec![0; MAX_PACKET_BYTES];
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(message) if message.bytes == 0 => return Ok(ReceivedPacket::End),
                Ok(message) => {
                    bytes.truncate(message.bytes);
                    let fds = control.drain().filter_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                        _ => None,
                    });
                    return Ok(ReceivedPacket::Data(bytes, fds.flatten().collect()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if wait.is_over() => return Ok(ReceivedPacket::Nothing),
                Err(Errno::AGAIN) => {
                    let timeout = wait.poll_timeout();
                    let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
                    match poll(&mut fds, timeout.as_ref()) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(Error::from_io("a socket", &error.into())),
                    }
                }
                Err(Errno::CONNRESET) => return Ok(ReceivedPacket::End),
                Err(error) => return Err(Error::from_io("a socket", &error.into())),
            }
        }
    }

    /// The process at the other end.
    pub(crate) fn peer_process(&self) -> u32 {
        peer_credentials(self.0.as_fd()).map_or(0, |(process, _)| process)
    }

    /// Ends the connection for both sides.
    pub(crate) fn shut_down(&self) {
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both).ok();
    }
}

impl AsFd for UnixConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn new_socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn is_ours(socket: &OwnedFd) -> bool {
    is_own_user(socket.as_fd())
}
