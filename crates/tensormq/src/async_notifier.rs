//! Waiting without a thread: notifiers as tokio sees them.

#![allow(unsafe_code, reason = "tokio asks for a promise that a descriptor stays open")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use tessera_core::{Error, Result};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::notifier::Notifier;
use crate::wait::Wait;

/// A notifier that a task waits at.
pub(crate) struct AsyncNotifier(AsyncFd<NotifierDescriptor>);

/// A descriptor of its own: tokio wants each registered once.
struct NotifierDescriptor(OwnedFd);

impl AsRawFd for NotifierDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsyncNotifier {
    /// For this notifier, on the runtime that runs the caller.
    pub(crate) fn new(notifier: &Notifier) -> Result<Self> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::usage("waiting in a task needs tokio's runtime, and there is none"));
        }
        let descriptor = NotifierDescriptor(notifier.duplicate_descriptor()?);
        // SAFETY: the descriptor is owned by what is registered, which gives out no other.
        let registered = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        registered
            .map(Self)
            .map_err(|error| Error::from_io("a descriptor to wait for", &error.into_parts().1))
    }

    /// Sleeps until `notifier`, which must be the one it was made for, is notified; false where the
    /// time is over.
    pub(crate) async fn sleep_until_notified(
        &self,
        notifier: &Notifier,
        wait: Wait,
    ) -> Result<bool> {
        let ready = self.0.readable();
        let ready = match wait {
            Wait::No => return Ok(false),
            Wait::Forever => Some(ready.await),
            Wait::Until(deadline) => tokio::time::timeout(deadline.remaining(), ready).await.ok(),
        };
        match ready {
            None => Ok(false),
            Some(Err(error)) => Err(Error::from_io("a descriptor to wait for", &error)),
            Some(Ok(mut ready)) => {
                notifier.clear_notification();
                ready.clear_ready();
                Ok(true)
            }
        }
    }
}
