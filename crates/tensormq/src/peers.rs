//! Who can be sent to: addresses by name, and a sender to each that was sent to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::sync::lock;
use crate::{
    Address, ConnectOptions, Courier, Inbox, InboxOptions, Listen, Message, NotSent, Security,
    Sender, Transport, Wait,
};
use tessera_core::{Device, Error, Result};

/// The instances that this process knows, and its senders to them.
pub struct Peers {
    courier: Courier,
    /// The way to other processes; by default the fastest.
    transport: Option<Transport>,
    known: Mutex<HashMap<String, Known>>,
}

struct Known {
    address: Address,
    sender: Option<Arc<Mutex<Sender>>>,
}

impl Peers {
    /// Nobody yet.
    pub fn new(courier: Courier) -> Self {
        Self::over(courier, None)
    }

    /// Nobody yet; other processes are sent to over this transport, to compare with the fastest.
    pub fn over(courier: Courier, transport: Option<Transport>) -> Self {
        Self { courier, transport, known: Mutex::default() }
    }

    /// The way to other processes, where it is not the fastest.
    pub fn transport(&self) -> Option<Transport> {
        self.transport
    }

    /// An inbox that can be reached the way that the others are.
    pub fn inbox(&self, name: &str, depth: u32) -> Result<Inbox> {
        let listen = match self.transport {
            None | Some(Transport::Thread | Transport::Shm) => Vec::new(),
            Some(Transport::ZmqIpc) => vec![Listen::Ipc],
            Some(Transport::ZmqTcp) => {
                let (endpoint, advertise) = ("tcp://127.0.0.1:0".to_owned(), None);
                vec![Listen::Tcp { endpoint, advertise, security: Security::Plain }]
            }
        };
        self.courier.inbox(name, &InboxOptions { depth, listen, ..InboxOptions::default() })
    }

    /// The courier that senders belong to.
    pub fn courier(&self) -> &Courier {
        &self.courier
    }

    /// Makes an instance known.
    pub fn add(&self, name: &str, address: Address) {
        let known = Known { address, sender: None };
        let previous = lock(&self.known).insert(name.to_owned(), known);
        // Its sender is closed outside the lock.
        drop(previous);
    }

    /// Forgets an instance; a sender to it is closed once nobody sends with it.
    pub fn forget(&self, name: &str) {
        let forgotten = lock(&self.known).remove(name);
        drop(forgotten);
    }

    /// Everyone who is known.
    pub fn addresses(&self) -> Vec<(String, Address)> {
        let known = lock(&self.known);
        known.iter().map(|(name, known)| (name.clone(), known.address.clone())).collect()
    }

    /// Whether an instance is in this process, so that whatever it is sent is handed over by pointer.
    pub fn is_here(&self, name: &str) -> bool {
        let known = lock(&self.known);
        known.get(name).is_some_and(|known| known.address.courier == self.courier.id())
    }

    /// The GPU that an instance reads tensors on; none for the CPU, and where tensors don't get there as they are.
    pub fn device_of(&self, name: &str) -> Option<Device> {
        let known = lock(&self.known);
        let address = &known.get(name)?.address;
        let is_here = address.courier == self.courier.id();
        let as_they_are = is_here || self.transport.is_none_or(|way| way == Transport::Shm);
        address.device.filter(|_| as_they_are)
    }

    /// Whether an instance is in this process and runs on a GPU, so that tensors on one are handed over as they are.
    pub fn is_here_on_gpu(&self, name: &str) -> bool {
        self.is_here(name) && self.device_of(name).is_some()
    }

    /// The sender to an instance; `Lost` where there is none of that name any more.
    pub fn sender(&self, name: &str) -> Result<Arc<Mutex<Sender>>> {
        let gone = || Error::lost(format!("instance {name} is gone"));
        let address = {
            let known = lock(&self.known);
            let entry = known.get(name).ok_or_else(gone)?;
            if let Some(sender) = &entry.sender {
                return Ok(Arc::clone(sender));
            }
            entry.address.clone()
        };
        // Not under the lock: connecting to another process takes a moment.
        let transport = self.transport.filter(|_| address.courier != self.courier.id());
        let options = ConnectOptions { transport, ..ConnectOptions::default() };
        let sender = Arc::new(Mutex::new(self.courier.connect_with(&address, &options)?));
        let mut known = lock(&self.known);
        let entry = known.get_mut(name).ok_or_else(gone)?;
        Ok(Arc::clone(entry.sender.get_or_insert(sender)))
    }

    /// Sends to an instance; a message that was not sent comes back.
    pub fn send(&self, name: &str, message: Message, wait: Wait) -> Result<(), Box<NotSent>> {
        let sender = match self.sender(name) {
            Ok(sender) => sender,
            Err(error) => return Err(Box::new(NotSent { error, message })),
        };
        let sent = lock(&sender).send(message, wait);
        sent.map(drop)
    }
}
