//! Sockets between processes of a host: they carry descriptors, and end when a process does.
//!
//! Their names are abstract: there is no file, so nothing is left when a process is killed. Abstract
//! names have no owner either, so both sides ask the kernel for the other's user and talk only to
//! their own.

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

use crate::wait::Wait;

/// Longest packet; what is longer is cut short and refused by whoever reads it.
const LONGEST: usize = 4096;
/// Most descriptors in a packet.
const DESCRIPTORS: usize = 4;

/// The socket's name for something of this user.
fn socket_name(name: &str) -> Result<SocketAddrUnix> {
    let uid = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("tessera/{uid}/{name}").as_bytes())
        .map_err(|_| Error::usage(format!("\"{name}\" is too long for the name of a socket")))
}

/// Waits for processes of this user.
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn bind(name: &str) -> Result<Self> {
        let fail = |error: Errno| Error::io(format!("a socket for \"{name}\""), &error.into());
        let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(fail)?;
        match bind(&socket, &socket_name(name)?) {
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
    pub(crate) fn accept(&self) -> Option<Link> {
        loop {
            match accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) if is_ours(&socket) => return Some(Link(socket)),
                // Somebody else's process: the socket closes here. Or it left already.
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // It knocks on: not as fast as we can look.
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    return None;
                }
                Err(_) => return None,
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection to another process of this user.
pub(crate) struct Link(OwnedFd);

/// What came through a link.
pub(crate) enum Packet {
    /// Bytes and descriptors.
    Data(Vec<u8>, Vec<OwnedFd>),
    /// Nothing for now.
    Nothing,
    /// The other process closed it, or ended.
    End,
}

impl Link {
    pub(crate) fn connect(name: &str) -> Result<Self> {
        // It never waits: a process that does not even take connections is not waited for.
        let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            .map_err(|error| Error::io("a socket", &error.into()))?;
        connect(&socket, &socket_name(name)?).map_err(|error| match error {
            Errno::CONNREFUSED => Error::lost(format!("no process listens as \"{name}\"")),
            Errno::AGAIN => Error::timed_out(format!("the process at \"{name}\" takes nobody")),
            error => Error::io(format!("the process that listens as \"{name}\""), &error.into()),
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
    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
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
            Err(error) => Err(Error::io("a socket to another process", &error.into())),
        }
    }

    /// The next packet.
    pub(crate) fn receive(&self, wait: Wait) -> Result<Packet> {
        loop {
            let mut bytes = vec![0; LONGEST];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(message) if message.bytes == 0 => return Ok(Packet::End),
                Ok(message) => {
                    bytes.truncate(message.bytes);
                    let fds = control.drain().filter_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                        _ => None,
                    });
                    return Ok(Packet::Data(bytes, fds.flatten().collect()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if wait.is_over() => return Ok(Packet::Nothing),
                Err(Errno::AGAIN) => {
                    let timeout = wait.timeout();
                    let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
                    match poll(&mut fds, timeout.as_ref()) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(Error::io("a socket", &error.into())),
                    }
                }
                Err(Errno::CONNRESET) => return Ok(Packet::End),
                Err(error) => return Err(Error::io("a socket", &error.into())),
            }
        }
    }

    /// The process at the other end.
    pub(crate) fn peer_process(&self) -> u32 {
        peer_of(self.0.as_fd()).map_or(0, |(process, _)| process)
    }

    /// Ends the connection for both sides.
    pub(crate) fn shut_down(&self) {
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both).ok();
    }
}

impl AsFd for Link {
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

/// Whether the process at the other end of a socket is this user's.
pub(crate) fn is_own_user(socket: BorrowedFd<'_>) -> bool {
    peer_of(socket).is_some_and(|(_, user)| user == rustix::process::geteuid().as_raw())
}

/// The process and the user at the other end of a socket; the process is 0 where it is in another
/// namespace, as in containers that share only the network.
#[allow(unsafe_code, reason = "a process of number 0 is not one for rustix")]
fn peer_of(socket: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY: the kernel writes at most `len` bytes of what it is given the address of.
    let result = unsafe {
        libc::getsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    (result == 0).then(|| (peer.pid.unsigned_abs(), peer.uid))
}
