//! Inboxes: where a unit receives, from any number of senders over any transport.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use tessera_core::Result;

use crate::address::Address;
use crate::async_notifier::AsyncNotifier;
use crate::channel::{IncomingChannel, Received};
use crate::inbox_registry::{InboxInterrupter, InboxListener, InboxRegistry, InboxShared};
use crate::keep_alive::KeepAlive;
use crate::wait::{Deadline, Wait};

/// Where a unit receives messages. One thread, or one task, at a time.
pub struct Inbox {
    shared: Arc<InboxShared>,
    registry: Arc<InboxRegistry>,
    address: Address,
    spin_time: Duration,
    /// What `shared` had at `channels_version`.
    channels: Vec<Arc<dyn IncomingChannel>>,
    channels_version: u64,
    /// The channel that is looked at first, so that none is always last.
    next_channel: usize,
    /// The notifier at tokio, once a task has waited.
    async_notifier: Option<AsyncNotifier>,
    /// What else is there for as long as the inbox is: sockets of the network.
    listeners: Vec<Arc<dyn InboxListener>>,
    /// What drives its channels, for as long as somebody receives.
    _endpoint: KeepAlive,
}

impl Inbox {
    pub(crate) fn new(
        shared: Arc<InboxShared>,
        registry: Arc<InboxRegistry>,
        address: Address,
        spin_time: Duration,
        listeners: Vec<Arc<dyn InboxListener>>,
        endpoint: KeepAlive,
    ) -> Self {
        Self {
            shared,
            registry,
            address,
            spin_time,
            channels: Vec::new(),
            channels_version: 0,
            next_channel: 0,
            async_notifier: None,
            listeners,
            _endpoint: endpoint,
        }
    }

    /// Where it is, for whoever wants to send to it.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What ends the waiting of whoever receives here.
    pub fn interrupter(&self) -> InboxInterrupter {
        InboxInterrupter(Arc::clone(&self.shared))
    }

    /// How many senders there are.
    pub fn sender_count(&self) -> usize {
        self.shared.lock_channels().len()
    }

    /// What is there now; does not wait.
    pub fn try_receive(&mut self) -> Option<Received> {
        if self.channels_version != self.shared.channels_version() {
            let channels = self.shared.lock_channels();
            self.channels.clone_from(&channels);
            self.channels_version = self.shared.channels_version();
        }
        for step in 0..self.channels.len() {
            let index = (self.next_channel + step) % self.channels.len();
            let Some(received) = self.channels[index].take_next() else { continue };
            self.next_channel = index + 1;
            if let Received::Closed(_) | Received::Lost(..) = received {
                let channel = self.channels.remove(index);
                self.next_channel = index;
                let mut channels = self.shared.lock_channels();
                channels.retain(|other| !Arc::ptr_eq(other, &channel));
            }
            return Some(received);
        }
        None
    }

    /// Receives; `None` where nothing came in time, or nobody is to wait any more.
    pub fn receive(&mut self, wait: Wait) -> Option<Received> {
        if let Some(received) = self.try_receive() {
            return Some(received);
        }
        if wait == Wait::No {
            return None;
        }
        if self.spin_time > Duration::ZERO {
            let end = Deadline::after(self.spin_time);
            while !end.has_passed() {
                for _ in 0..16 {
                    std::hint::spin_loop();
                }
                if let Some(received) = self.try_receive() {
                    return Some(received);
                }
            }
        }
        let notifier = Arc::clone(&self.shared.notifier);
        loop {
            let received = self.arm_channels();
            if received.is_some() || self.shared.is_interrupted() {
                self.disarm_channels();
                return received;
            }
            let notified = notifier.sleep_until_notified(wait);
            self.disarm_channels();
            let received = self.try_receive();
            if received.is_some() || !notified {
                return received;
            }
        }
    }

    /// Receives without a thread that waits; `None` where nothing came in time.
    pub async fn receive_async(&mut self, wait: Wait) -> Result<Option<Received>> {
        if let Some(received) = self.try_receive() {
            return Ok(Some(received));
        }
        let async_notifier = match self.async_notifier.take() {
            Some(async_notifier) => async_notifier,
            None => AsyncNotifier::new(&self.shared.notifier)?,
        };
        let received = self.receive_when_notified(&async_notifier, wait).await?;
        // Kept for the next time; one that failed belongs to a runtime that is gone.
        self.async_notifier = Some(async_notifier);
        Ok(received)
    }

    async fn receive_when_notified(
        &mut self,
        async_notifier: &AsyncNotifier,
        wait: Wait,
    ) -> Result<Option<Received>> {
        let notifier = Arc::clone(&self.shared.notifier);
        loop {
            let received = self.arm_channels();
            if received.is_some() || self.shared.is_interrupted() {
                self.disarm_channels();
                return Ok(received);
            }
            let notified = async_notifier.sleep_until_notified(&notifier, wait).await?;
            self.disarm_channels();
            let received = self.try_receive();
            if received.is_some() || !notified {
                return Ok(received);
            }
        }
    }

    /// Sets every channel's alarm, and looks once more.
    fn arm_channels(&mut self) -> Option<Received> {
        for channel in &self.channels {
            channel.arm_wakeup();
        }
        self.try_receive()
    }

    fn disarm_channels(&mut self) {
        for channel in &self.channels {
            channel.disarm_wakeup();
        }
    }
}

impl AsFd for Inbox {
    /// Readable when there may be something to receive and the inbox waits; for event loops.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.notifier.as_fd()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.registry.forget_inbox(&self.shared);
        let channels = self.shared.close_for_channels();
        // Not with the list locked: a listener adds to it while it has a lock that closing takes.
        for channel in channels {
            channel.close_receiving();
        }
        for listener in self.listeners.drain(..) {
            listener.retire_when_drained();
        }
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inbox({}, {} senders)", self.shared.name, self.sender_count())
    }
}
