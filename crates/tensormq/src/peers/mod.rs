//! Who can be sent to: addresses by name, and a sender to each that was sent to.

mod devices;
mod reconnecting;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tessera_core::{Error, ErrorKind, Result, lock};

use crate::address::Address;
use crate::channel::NotSent;
use crate::endpoint::Endpoint;
use crate::inbox::Inbox;
use crate::message::Message;
use crate::options::{ConnectOptions, InboxOptions, Listen};
use crate::sender::Sender;
use crate::transport::id::Transport;
use crate::wait::Wait;

/// The instances that this process knows, and its senders to them.
pub struct Peers {
    endpoint: Endpoint,
    /// The way to other processes; by default the fastest.
    transport: Option<Transport>,
    /// How others than those of this host reach inboxes that are made here.
    network: Option<Listen>,
    known: Arc<KnownPeers>,
    /// The ports of inboxes that there were before, by name.
    ports: Mutex<HashMap<String, u16>>,
}

/// Those that are known, by name.
type KnownPeers = Mutex<HashMap<String, KnownPeer>>;

struct KnownPeer {
    address: Address,
    sender: Option<Arc<Mutex<Sender>>>,
    /// Whether somebody connects to it again and again, as what was there is lost.
    is_reconnecting: bool,
}

impl Peers {
    /// Nobody yet.
    pub fn new(endpoint: Endpoint) -> Self {
        Self::with_transport(endpoint, None)
    }

    /// Nobody yet; other processes are sent to over this transport, to compare with the fastest.
    pub fn with_transport(endpoint: Endpoint, transport: Option<Transport>) -> Self {
        let (known, ports) = (Arc::default(), Mutex::default());
        Self { endpoint, transport, network: None, known, ports }
    }

    /// The same, with inboxes that other hosts reach, too.
    #[must_use]
    pub fn with_network(self, network: Listen) -> Self {
        Self { network: Some(network), ..self }
    }

    /// The way to other processes, where it is not the fastest.
    pub fn transport(&self) -> Option<Transport> {
        self.transport
    }

    /// How others than those of this host reach inboxes that are made here.
    pub fn network(&self) -> Option<&Listen> {
        self.network.as_ref()
    }

    /// An inbox that can be reached the way that the others are.
    pub fn create_inbox(&self, name: &str, depth: u32) -> Result<Inbox> {
        let create = |network: Option<Listen>| {
            let within_host = self.transport.map(Listen::within_host);
            let listen = within_host.into_iter().chain(network).collect();
            let options = InboxOptions { depth, listen, ..InboxOptions::default() };
            self.endpoint.create_inbox(name, &options)
        };
        if let (Some(network), Some(port)) = (&self.network, self.preferred_port(name))
            && let Ok(inbox) = create(Some(network.clone().at_port(port)))
        {
            return Ok(inbox);
        }
        create(self.network.clone())
    }

    /// Has an inbox of this name be at this port to other hosts when it is made, where that is free:
    /// an earlier one was there, and others go on to look for it.
    pub fn prefer_port(&self, name: &str, port: u16) {
        lock(&self.ports).insert(name.to_owned(), port);
    }

    /// The port that an inbox of this name is to have to other hosts, where one was preferred.
    pub fn preferred_port(&self, name: &str) -> Option<u16> {
        lock(&self.ports).get(name).copied()
    }

    /// The endpoint that senders belong to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Makes an instance known.
    pub fn add_peer(&self, name: &str, address: Address) {
        let known = KnownPeer { address, sender: None, is_reconnecting: false };
        let previous = lock(&self.known).insert(name.to_owned(), known);
        // Its sender is closed outside the lock.
        drop(previous);
    }

    /// Forgets an instance; a sender to it is closed once nobody sends with it.
    pub fn forget_peer(&self, name: &str) {
        let forgotten = lock(&self.known).remove(name);
        drop(forgotten);
    }

    /// Everyone who is known.
    pub fn addresses(&self) -> Vec<(String, Address)> {
        let known = lock(&self.known);
        known.iter().map(|(name, known)| (name.clone(), known.address.clone())).collect()
    }

    /// Where an instance is.
    pub fn address_of(&self, name: &str) -> Option<Address> {
        lock(&self.known).get(name).map(|known| known.address.clone())
    }

    /// Whether an instance is in this process, so that whatever it is sent is handed over by
    /// pointer.
    pub fn is_in_process(&self, name: &str) -> bool {
        let known = lock(&self.known);
        known.get(name).is_some_and(|known| known.address.endpoint_id == self.endpoint.id())
    }

    /// The sender to an instance; `Lost` where there is none of that name any more.
    pub fn sender_to(&self, name: &str) -> Result<Arc<Mutex<Sender>>> {
        let gone = || Error::lost(format!("instance {name} is gone"));
        let address = {
            let known = lock(&self.known);
            let entry = known.get(name).ok_or_else(gone)?;
            if let Some(sender) = &entry.sender {
                return Ok(Arc::clone(sender));
            }
            if entry.is_reconnecting {
                return Err(Error::lost(format!("instance {name} is out of reach")));
            }
            entry.address.clone()
        };
        // Not under the lock: connecting to another process takes a moment.
        let transport = self.transport.filter(|_| address.endpoint_id != self.endpoint.id());
        let options = ConnectOptions { transport, ..ConnectOptions::default() };
        let sender = self.endpoint.connect_with_options(&address, &options);
        let sender = Arc::new(Mutex::new(sender.inspect_err(|_| self.begin_reconnecting(name))?));
        let mut known = lock(&self.known);
        let entry = known.get_mut(name).ok_or_else(gone)?;
        Ok(Arc::clone(entry.sender.get_or_insert(sender)))
    }

    /// Sends to an instance; a message that was not sent comes back. Where the way there is lost it
    /// is made anew meanwhile.
    pub fn send_to(&self, name: &str, message: Message, wait: Wait) -> Result<(), Box<NotSent>> {
        let sender = match self.sender_to(name) {
            Ok(sender) => sender,
            Err(error) => return Err(Box::new(NotSent { error, message })),
        };
        let sent = lock(&sender).send(message, wait);
        if sent.as_ref().is_err_and(|not_sent| not_sent.error.kind() == ErrorKind::Lost) {
            self.begin_reconnecting(name);
        }
        sent.map(drop)
    }
}
