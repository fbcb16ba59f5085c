//! What a sleeper waits at: an eventfd, so that a thread, another process and an async runtime can
//! all ring it or wait for it.
//!
//! A futex was measured beside it and was no faster (7 µs from ring to running in both), and can't
//! be waited for together with anything else.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use tessera_core::{Error, Result};

use crate::wait::Wait;

pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(|error| Error::io("an event descriptor", &error.into()))
    }

    /// The bell of another process, as it came through a socket.
    pub(crate) fn from_peer(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Wakes whoever waits, now or next.
    pub(crate) fn ring(&self) {
        // It can only fail when it has rung 2^64 times unheard, and then it is ringing.
        rustix::io::write(&self.0, &1u64.to_ne_bytes()).ok();
    }

    /// Forgets that it rang.
    pub(crate) fn silence(&self) {
        // "Would block": it had not rung.
        rustix::io::read(&self.0, &mut [0; 8]).ok();
    }

    /// Sleeps until it rings; false where the time is over.
    pub(crate) fn sleep(&self, wait: Wait) -> bool {
        loop {
            let timeout = wait.timeout();
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return false,
                Ok(_) => {
                    self.silence();
                    return true;
                }
                Err(Errno::INTR) => {}
                // Nothing else can happen to a descriptor that is ours; as if it had rung.
                Err(_) => return true,
            }
        }
    }

    pub(crate) fn duplicate(&self) -> Result<OwnedFd> {
        self.0.try_clone().map_err(|error| Error::io("an event descriptor", &error))
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
