//! Takes packets from one host to the other, when the link between them would have.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use tessera_core::{Error, Result, lock};
use tun_rs::{InterruptEvent, SyncDevice};

use crate::link::{Link, LinkShape, LinkTraffic};

/// Largest packet.
pub(crate) const LARGEST_PACKET: usize = 65_536;
/// A packet that is due within this time is handed over at once.
const NEAR: std::time::Duration = std::time::Duration::from_micros(20);

/// Hosts of a lab, by their addresses.
type Port = (Ipv4Addr, Arc<SyncDevice>);

/// Takes packets from host to host.
pub(crate) struct Relay {
    shared: Arc<RelayShared>,
    interrupt: Arc<InterruptEvent>,
    readers: Vec<JoinHandle<()>>,
    scheduler: Option<JoinHandle<()>>,
}

struct RelayShared {
    state: Mutex<RelayState>,
    /// Notified when a packet is due sooner than those before it, or at the end.
    sooner: Condvar,
}

#[derive(Default)]
struct RelayState {
    ports: Vec<Port>,
    links: HashMap<(Ipv4Addr, Ipv4Addr), Link>,
    waiting: BinaryHeap<Reverse<WaitingPacket>>,
    next_number: u64,
    /// All that was carried, while somebody wants it.
    captured: Option<Vec<u8>>,
    is_over: bool,
}

/// A packet under way.
struct WaitingPacket {
    due: Instant,
    /// In the order in which they were sent, where they are due at the same time.
    number: u64,
    to: Ipv4Addr,
    packet: Vec<u8>,
}

impl PartialEq for WaitingPacket {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl Eq for WaitingPacket {}

impl PartialOrd for WaitingPacket {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WaitingPacket {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

impl Relay {
    pub(crate) fn start() -> Result<Self> {
        let shared = Arc::new(RelayShared { state: Mutex::default(), sooner: Condvar::new() });
        let interrupt =
            InterruptEvent::new().map_err(|error| Error::from_io("the relay of a lab", &error))?;
        let scheduling = Arc::clone(&shared);
        let scheduler = spawn_thread("lab-links", move || scheduling.deliver_waiting())?;
        let interrupt = Arc::new(interrupt);
        Ok(Self { shared, interrupt, readers: Vec::new(), scheduler: Some(scheduler) })
    }

    /// Takes packets of a host from now on, and others' to it.
    pub(crate) fn add_port(&mut self, address: Ipv4Addr, device: SyncDevice) -> Result<()> {
        let device = Arc::new(device);
        lock(&self.shared.state).ports.push((address, Arc::clone(&device)));
        let (shared, interrupt) = (Arc::clone(&self.shared), Arc::clone(&self.interrupt));
        let reader = spawn_thread("lab-host", move || {
            let mut packet = vec![0; LARGEST_PACKET];
            while let Ok(len) = device.recv_intr(&mut packet, &interrupt) {
                shared.take_packet(address, &packet[..len]);
            }
        })?;
        self.readers.push(reader);
        Ok(())
    }

    /// Sets how one direction of a link is, from now on.
    pub(crate) fn set_shape(&self, from: Ipv4Addr, to: Ipv4Addr, shape: LinkShape) {
        lock(&self.shared.state).link(from, to).shape = shape;
    }

    pub(crate) fn traffic(&self, from: Ipv4Addr, to: Ipv4Addr) -> LinkTraffic {
        lock(&self.shared.state).link(from, to).traffic
    }

    /// Keeps everything that is carried from now on.
    pub(crate) fn start_capture(&self) {
        lock(&self.shared.state).captured = Some(Vec::new());
    }

    /// What was carried since then.
    pub(crate) fn take_capture(&self) -> Vec<u8> {
        lock(&self.shared.state).captured.take().unwrap_or_default()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        lock(&self.shared.state).is_over = true;
        self.shared.sooner.notify_all();
        // Readers that can't be woken end with their devices.
        self.interrupt.trigger().ok();
        for thread in self.readers.drain(..).chain(self.scheduler.take()) {
            thread.join().ok();
        }
    }
}

impl RelayState {
    fn link(&mut self, from: Ipv4Addr, to: Ipv4Addr) -> &mut Link {
        let seed = u64::from(u32::from(from)) << 32 | u64::from(u32::from(to));
        self.links.entry((from, to)).or_insert_with(|| Link::new(seed))
    }

    fn device_of(&self, address: Ipv4Addr) -> Option<Arc<SyncDevice>> {
        let port = self.ports.iter().find(|(known, _)| *known == address);
        port.map(|(_, device)| Arc::clone(device))
    }
}

impl RelayShared {
    /// A host sends a packet.
    fn take_packet(&self, from: Ipv4Addr, packet: &[u8]) {
        let Some(to) = destination_of(packet) else { return };
        let now = Instant::now();
        let at_once = {
            let mut state = lock(&self.state);
            let Some(device) = state.device_of(to) else { return };
            if let Some(captured) = &mut state.captured {
                captured.extend_from_slice(packet);
            }
            let Some(due) = state.link(from, to).arrival(packet.len(), now) else { return };
            if due <= now + NEAR {
                Some(device)
            } else {
                state.next_number += 1;
                let number = state.next_number;
                let is_sooner = state.waiting.peek().is_none_or(|Reverse(next)| due < next.due);
                let packet = packet.to_vec();
                state.waiting.push(Reverse(WaitingPacket { due, number, to, packet }));
                if is_sooner {
                    self.sooner.notify_one();
                }
                None
            }
        };
        if let Some(device) = at_once {
            // A host that takes no more drops it, as a card does.
            device.send(packet).ok();
        }
    }

    /// Hands packets over when they are due, until the end.
    fn deliver_waiting(&self) {
        let mut state = lock(&self.state);
        while !state.is_over {
            let now = Instant::now();
            let due = state.waiting.peek().map(|Reverse(next)| next.due);
            match due {
                Some(due) if due <= now + NEAR => {
                    let Some(Reverse(next)) = state.waiting.pop() else { continue };
                    let device = state.device_of(next.to);
                    drop(state);
                    if let Some(device) = device {
                        device.send(&next.packet).ok();
                    }
                    state = lock(&self.state);
                }
                Some(due) => {
                    let waited = self.sooner.wait_timeout(state, due.duration_since(now));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => {
                    state = self.sooner.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// Where a packet of IPv4 goes.
fn destination_of(packet: &[u8]) -> Option<Ipv4Addr> {
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let bytes: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    is_v4.then(|| Ipv4Addr::from(bytes))
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map_err(|error| Error::from_io("a thread of a lab", &error))
}
