//! The inboxes of an endpoint by name, and what transports see of one: where to add a channel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tessera_core::{Error, Result, lock};

use crate::channel::{IncomingChannel, inbox_closed};
use crate::notifier::Notifier;

/// What an inbox listens on, for as long as it is there.
pub(crate) trait InboxListener: Send + Sync {
    /// The inbox is closed: ends once those who send to it know, or soon.
    fn retire_when_drained(self: Arc<Self>);
}

/// What the transports see of an inbox.
pub(crate) struct InboxShared {
    pub(crate) name: String,
    pub(crate) depth: u32,
    pub(crate) notifier: Arc<Notifier>,
    channels: Mutex<Vec<Arc<dyn IncomingChannel>>>,
    /// Counts changes of `channels`.
    channels_version: AtomicU64,
    closed: AtomicBool,
    /// Whether whoever receives is to wait no more.
    interrupted: AtomicBool,
}

impl InboxShared {
    fn new(name: &str, depth: u32) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            depth,
            notifier: Arc::new(Notifier::new()?),
            channels: Mutex::default(),
            channels_version: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
        })
    }

    /// Adds a channel; an error where the inbox is closed.
    pub(crate) fn add_channel(&self, channel: Arc<dyn IncomingChannel>) -> Result<()> {
        let mut channels = lock(&self.channels);
        if self.closed.load(Ordering::Acquire) {
            return Err(inbox_closed());
        }
        channels.push(channel);
        self.channels_version.fetch_add(1, Ordering::Release);
        drop(channels);
        // It may be asleep, and knows nothing of the channel's alarm yet.
        self.notifier.notify();
        Ok(())
    }

    /// Whether whoever receives is to wait no more.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire)
    }

    /// The channels, to read or to remove some.
    pub(crate) fn lock_channels(&self) -> MutexGuard<'_, Vec<Arc<dyn IncomingChannel>>> {
        lock(&self.channels)
    }

    /// Counts additions to the channels.
    pub(crate) fn channels_version(&self) -> u64 {
        self.channels_version.load(Ordering::Acquire)
    }

    /// Adds no more channels; those that there are come back.
    pub(crate) fn close_for_channels(&self) -> Vec<Arc<dyn IncomingChannel>> {
        let mut open = lock(&self.channels);
        self.closed.store(true, Ordering::Release);
        std::mem::take(&mut *open)
    }
}

/// Ends the waiting of whoever receives at an inbox, from any thread.
#[derive(Clone)]
pub struct InboxInterrupter(pub(crate) Arc<InboxShared>);

impl InboxInterrupter {
    /// From now on nobody waits at the inbox: what is there is received, and then nothing.
    pub fn interrupt(&self) {
        self.0.interrupted.store(true, Ordering::Release);
        self.0.notifier.notify();
    }
}

/// The inboxes of an endpoint.
#[derive(Default)]
pub(crate) struct InboxRegistry(Mutex<HashMap<String, Weak<InboxShared>>>);

impl InboxRegistry {
    /// A new inbox, under a name that no other has.
    pub(crate) fn create_shared(&self, name: &str, depth: u32) -> Result<Arc<InboxShared>> {
        check_inbox_name(name)?;
        if !(1..=crate::options::MAX_INBOX_DEPTH).contains(&depth) {
            return Err(Error::usage(format!(
                "inbox \"{name}\": its depth must be between 1 and {}",
                crate::options::MAX_INBOX_DEPTH
            )));
        }
        let shared = Arc::new(InboxShared::new(name, depth)?);
        let mut inboxes = lock(&self.0);
        if inboxes.get(name).is_some_and(|other| other.strong_count() > 0) {
            return Err(Error::usage(format!("there is an inbox \"{name}\" already")));
        }
        inboxes.insert(name.to_owned(), Arc::downgrade(&shared));
        Ok(shared)
    }

    /// An inbox by its name.
    pub(crate) fn find_inbox(&self, name: &str) -> Result<Arc<InboxShared>> {
        lock(&self.0)
            .get(name)
            .and_then(Weak::upgrade)
            .ok_or_else(|| Error::not_found(format!("there is no inbox \"{name}\"")))
    }

    /// Forgets an inbox that is closed.
    pub(crate) fn forget_inbox(&self, inbox: &Arc<InboxShared>) {
        let mut inboxes = lock(&self.0);
        if inboxes.get(&inbox.name).is_some_and(|known| known.as_ptr() == Arc::as_ptr(inbox)) {
            inboxes.remove(&inbox.name);
        }
    }
}

/// A name that an inbox can have.
fn check_inbox_name(name: &str) -> Result<()> {
    match name.len() {
        1..=200 => Ok(()),
        len => Err(Error::usage(format!(
            "the name of an inbox has between 1 and 200 bytes, not {len}"
        ))),
    }
}
