//! Whoever is lost is connected to again and again, by a thread of its own: nobody who sends waits
//! for that.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tessera_core::{Error, Result, lock};

use super::{KnownPeers, Peers};
use crate::address::Address;
use crate::endpoint::Endpoint;
use crate::options::ConnectOptions;
use crate::sender::Sender;
use crate::transport::id::Transport;

/// How long to wait before the next try, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a try may take: the way may be long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

impl Peers {
    /// Connects anew to an instance to which sending failed; an error where that has not succeeded
    /// yet.
    pub fn reconnect_to(&self, name: &str) -> Result<()> {
        self.begin_reconnecting(name);
        self.sender_to(name).map(drop)
    }

    /// Has somebody connect to an instance until that succeeds or it is forgotten, unless it can be
    /// sent to or somebody does so already.
    pub(super) fn begin_reconnecting(&self, name: &str) {
        let (address, lost) = {
            let mut known = lock(&self.known);
            let Some(entry) = known.get_mut(name).filter(|entry| !entry.is_reconnecting) else {
                return;
            };
            // One that somebody sends with at this moment is not.
            let is_lost =
                |sender: &Arc<Mutex<Sender>>| sender.try_lock().is_ok_and(|held| held.is_lost());
            if entry.sender.as_ref().is_some_and(|sender| !is_lost(sender)) {
                return;
            }
            entry.is_reconnecting = true;
            (entry.address.clone(), entry.sender.take())
        };
        // Closed outside the lock.
        drop(lost);
        let work = Reconnecting {
            known: Arc::downgrade(&self.known),
            endpoint: self.endpoint.clone(),
            transport: self.transport,
            name: name.to_owned(),
            address,
        };
        let named = std::thread::Builder::new().name("tensormq-reconnect".to_owned());
        // Where there is no thread whoever sends next connects.
        if named.spawn(move || work.connect_until_known()).is_err()
            && let Some(entry) = lock(&self.known).get_mut(name)
        {
            entry.is_reconnecting = false;
        }
    }
}

/// An instance that is connected to again.
struct Reconnecting {
    known: Weak<KnownPeers>,
    endpoint: Endpoint,
    transport: Option<Transport>,
    name: String,
    address: Address,
}

impl Reconnecting {
    fn connect_until_known(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let connected = self.connect();
            let Some(known) = self.known.upgrade() else { return };
            let mut known = lock(&known);
            // One that is known under another address is connected to when it is sent to.
            let entry = known.get_mut(&self.name);
            let Some(entry) = entry.filter(|entry| entry.address == self.address) else { return };
            if !entry.is_reconnecting {
                return;
            }
            if let Ok(sender) = connected {
                entry.sender = Some(Arc::new(Mutex::new(sender)));
                entry.is_reconnecting = false;
                return;
            }
            drop(known);
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// By the fastest way; where nobody is there as it was known, by the way between hosts, which a
    /// process that took its place may have kept.
    fn connect(&self) -> Result<Sender> {
        let transport = self.transport.filter(|_| self.address.endpoint_id != self.endpoint.id());
        let options = |transport| ConnectOptions {
            transport,
            timeout: CONNECT_TIMEOUT,
            ..ConnectOptions::default()
        };
        self.endpoint.connect_with_options(&self.address, &options(transport)).or_else(|error| {
            let other = self.transport.is_none() && self.address.port_of(Transport::TCP).is_some();
            if !other {
                return Err(error);
            }
            let again = options(Some(Transport::TCP));
            let found = self.endpoint.connect_with_options(&self.address, &again);
            found.map_err(|_: Error| error)
        })
    }
}
