//! Inboxes: where a block receives, from any number of senders over any transport.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_core::{Error, Result};

use crate::address::Address;
use crate::asynchronous::AsyncBell;
use crate::bell::Bell;
use crate::channel::{Incoming, Received};
use crate::courier::Inner;
use crate::sync::lock;
use crate::wait::{Deadline, Wait};
use crate::zeromq::listener::ZmqListener;

/// What the transports see of an inbox.
pub(crate) struct InboxShared {
    pub(crate) name: String,
    pub(crate) depth: u32,
    pub(crate) bell: Arc<Bell>,
    channels: Mutex<Vec<Arc<dyn Incoming>>>,
    /// Counts changes of `channels`.
    version: AtomicU64,
    closed: AtomicBool,
}

impl InboxShared {
    pub(crate) fn new(name: &str, depth: u32) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            depth,
            bell: Arc::new(Bell::new()?),
            channels: Mutex::default(),
            version: AtomicU64::new(1),
            closed: AtomicBool::new(false),
        })
    }

    /// Adds a channel; an error where the inbox is closed.
    pub(crate) fn add(&self, channel: Arc<dyn Incoming>) -> Result<()> {
        let mut channels = lock(&self.channels);
        if self.closed.load(Ordering::Acquire) {
            return Err(crate::sender::inbox_closed());
        }
        channels.push(channel);
        self.version.fetch_add(1, Ordering::Release);
        drop(channels);
        // It may be asleep, and knows nothing of the channel's alarm yet.
        self.bell.ring();
        Ok(())
    }
}

/// Where a block receives messages. One thread, or one task, at a time.
pub struct Inbox {
    shared: Arc<InboxShared>,
    courier: Arc<Inner>,
    address: Address,
    spin: Duration,
    /// What `shared` had at `version`.
    channels: Vec<Arc<dyn Incoming>>,
    version: u64,
    /// The channel that is looked at first, so that none is always last.
    next: usize,
    /// The bell at tokio, once a task has waited.
    async_bell: Option<AsyncBell>,
    /// What else is there for as long as the inbox is: sockets of the network.
    listeners: Vec<Arc<ZmqListener>>,
}

impl Inbox {
    pub(crate) fn new(
        shared: Arc<InboxShared>,
        courier: Arc<Inner>,
        address: Address,
        spin: Duration,
        listeners: Vec<Arc<ZmqListener>>,
    ) -> Self {
        Self {
            shared,
            courier,
            address,
            spin,
            channels: Vec::new(),
            version: 0,
            next: 0,
            async_bell: None,
            listeners,
        }
    }

    /// Where it is, for whoever wants to send to it.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How many senders there are.
    pub fn senders(&self) -> usize {
        lock(&self.shared.channels).len()
    }

    /// What is there now; does not wait.
    pub fn try_receive(&mut self) -> Option<Received> {
        if self.version != self.shared.version.load(Ordering::Acquire) {
            let channels = lock(&self.shared.channels);
            self.channels.clone_from(&channels);
            self.version = self.shared.version.load(Ordering::Acquire);
        }
        for step in 0..self.channels.len() {
            let index = (self.next + step) % self.channels.len();
            let Some(received) = self.channels[index].take() else { continue };
            self.next = index + 1;
            if let Received::Closed(_) | Received::Lost(..) = received {
                let channel = self.channels.remove(index);
                self.next = index;
                let mut channels = lock(&self.shared.channels);
                channels.retain(|other| !Arc::ptr_eq(other, &channel));
            }
            return Some(received);
        }
        None
    }

    /// Receives; `None` where nothing came in time.
    pub fn receive(&mut self, wait: Wait) -> Option<Received> {
        if let Some(received) = self.try_receive() {
            return Some(received);
        }
        if wait == Wait::No {
            return None;
        }
        if self.spin > Duration::ZERO {
            let end = Deadline::after(self.spin);
            while !end.has_passed() {
                for _ in 0..16 {
                    std::hint::spin_loop();
                }
                if let Some(received) = self.try_receive() {
                    return Some(received);
                }
            }
        }
        let bell = Arc::clone(&self.shared.bell);
        loop {
            let received = self.arm();
            if received.is_some() {
                self.disarm();
                return received;
            }
            let rang = bell.sleep(wait);
            self.disarm();
            let received = self.try_receive();
            if received.is_some() || !rang {
                return received;
            }
        }
    }

    /// Receives without a thread that waits; `None` where nothing came in time.
    pub async fn receive_async(&mut self, wait: Wait) -> Result<Option<Received>> {
        if let Some(received) = self.try_receive() {
            return Ok(Some(received));
        }
        let bell = match self.async_bell.take() {
            Some(bell) => bell,
            None => AsyncBell::new(&self.shared.bell)?,
        };
        let received = self.receive_at(&bell, wait).await?;
        // Kept for the next time; one that failed belongs to a runtime that is gone.
        self.async_bell = Some(bell);
        Ok(received)
    }

    async fn receive_at(&mut self, bell: &AsyncBell, wait: Wait) -> Result<Option<Received>> {
        let own = Arc::clone(&self.shared.bell);
        loop {
            let received = self.arm();
            if received.is_some() {
                self.disarm();
                return Ok(received);
            }
            let rang = bell.sleep(&own, wait).await?;
            self.disarm();
            let received = self.try_receive();
            if received.is_some() || !rang {
                return Ok(received);
            }
        }
    }

    /// Sets every channel's alarm, and looks once more.
    fn arm(&mut self) -> Option<Received> {
        for channel in &self.channels {
            channel.arm();
        }
        self.try_receive()
    }

    fn disarm(&mut self) {
        for channel in &self.channels {
            channel.disarm();
        }
    }
}

impl AsFd for Inbox {
    /// Readable when there may be something to receive and the inbox waits; for event loops.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.courier.forget_inbox(&self.shared);
        let mut open = lock(&self.shared.channels);
        self.shared.closed.store(true, Ordering::Release);
        let channels = std::mem::take(&mut *open);
        drop(open);
        // Not with the list locked: a listener adds to it while it has a lock that closing takes.
        for channel in channels {
            channel.close();
        }
        for listener in self.listeners.drain(..) {
            ZmqListener::retire(listener, &self.courier);
        }
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inbox({}, {} senders)", self.shared.name, self.senders())
    }
}

/// A name that an inbox can have.
pub(crate) fn check_name(name: &str) -> Result<()> {
    match name.len() {
        1..=200 => Ok(()),
        len => Err(Error::usage(format!(
            "the name of an inbox has between 1 and 200 bytes, not {len}"
        ))),
    }
}
