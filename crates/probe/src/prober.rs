//! Asks other hosts how the links to them are, and answers those that ask.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tessera_core::{Error, Result, lock};

use crate::estimate::{ECHO_INTERVAL, LinkEstimate, LinkEstimator, TrafficSample};
use crate::key::ProbeKey;
use crate::packet::{HEADER_BYTES, Packet, PacketContent, TrainArrival};
use crate::timestamps::{enable_timestamps, receive_packet};
use crate::train::{LONGEST_TRAIN, TrainReceiver};

/// A train of which nothing came for so long is over.
const TRAIN_SILENCE: Duration = Duration::from_millis(300);
/// How long the thread that receives waits at most.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(50);
/// Trains that may come at the same time.
const MOST_TRAINS: usize = 64;

/// A host to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePeer {
    /// What it is called.
    pub name: String,
    /// Where its socket is.
    pub address: SocketAddr,
    /// Its key.
    pub key: ProbeKey,
}

/// Finds out how the links to other hosts are; ends when it is dropped.
pub struct LinkProber {
    shared: Arc<ProberShared>,
    threads: Vec<JoinHandle<()>>,
}

struct ProberShared {
    socket: UdpSocket,
    key: ProbeKey,
    links: Mutex<BTreeMap<String, ProbedLink>>,
    is_closed: AtomicBool,
}

struct ProbedLink {
    peer: ProbePeer,
    estimator: LinkEstimator,
    /// Whether it was said that probes don't come through.
    is_filter_told: bool,
}

impl LinkProber {
    /// Answers at any port of this address from now on, and asks nobody yet.
    pub fn start(address: IpAddr) -> Result<Self> {
        let fail = |error: io::Error| Error::from_io("the socket that probes links", &error);
        let socket = UdpSocket::bind((address, 0)).map_err(fail)?;
        socket.set_read_timeout(Some(RECEIVE_TIMEOUT)).map_err(fail)?;
        enable_timestamps(&socket).map_err(fail)?;
        let shared = Arc::new(ProberShared {
            socket,
            key: ProbeKey::random()?,
            links: Mutex::default(),
            is_closed: AtomicBool::new(false),
        });
        let mut threads = Vec::with_capacity(2);
        for (name, work) in [
            ("probe-send", ProberShared::ask_peers as fn(&ProberShared)),
            ("probe-receive", ProberShared::receive_packets),
        ] {
            let shared = Arc::clone(&shared);
            let spawned = std::thread::Builder::new().name(name.to_owned());
            threads.push(spawned.spawn(move || work(&shared)).map_err(fail)?);
        }
        Ok(Self { shared, threads })
    }

    /// The port that it answers at.
    pub fn port(&self) -> Result<u16> {
        let address = self.shared.socket.local_addr();
        address.map(|address| address.port()).map_err(|error| Error::from_io("a socket", &error))
    }

    /// What others must know to be answered.
    pub fn key(&self) -> &ProbeKey {
        &self.shared.key
    }

    /// The hosts to probe from now on, and no others.
    pub fn set_peers(&self, peers: Vec<ProbePeer>) {
        let now = Instant::now();
        let mut links = lock(&self.shared.links);
        let mut before = std::mem::take(&mut *links);
        for peer in peers {
            let known = before.remove(&peer.name).filter(|link| link.peer == peer);
            let link = known.unwrap_or_else(|| ProbedLink {
                peer: peer.clone(),
                estimator: LinkEstimator::new(now),
                is_filter_told: false,
            });
            links.insert(peer.name, link);
        }
    }

    /// What the connections to hosts have done, by name; those that are missing have none.
    pub fn note_traffic(&self, samples: &HashMap<String, TrafficSample>) {
        let now = Instant::now();
        for (name, link) in lock(&self.shared.links).iter_mut() {
            link.estimator.note_traffic(samples.get(name).copied().unwrap_or_default(), now);
        }
    }

    /// What is known of the links to all that are probed.
    pub fn estimates(&self) -> Vec<LinkEstimate> {
        let now = Instant::now();
        let mut links = lock(&self.shared.links);
        let estimate = |(name, link): (&String, &mut ProbedLink)| {
            let found = link.estimator.estimate(name, now);
            if found.is_filtered && !std::mem::replace(&mut link.is_filter_told, true) {
                let address = link.peer.address;
                tracing::warn!(
                    node = name,
                    %address,
                    "no UDP comes through: the link is known by what is sent over TCP alone"
                );
            }
            found
        };
        links.iter_mut().map(estimate).collect()
    }
}

impl Drop for LinkProber {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // One that panicked has nothing left to end.
            thread.join().ok();
        }
    }
}

impl ProberShared {
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Sends echoes and trains when they are due.
    fn ask_peers(&self) {
        let mut number = first_number();
        let mut next = Instant::now();
        while !self.is_closed() {
            let now = Instant::now();
            if now < next {
                std::thread::sleep((next - now).min(RECEIVE_TIMEOUT));
                continue;
            }
            next = (next + ECHO_INTERVAL).max(now);
            let mut trains = Vec::new();
            for link in lock(&self.links).values_mut() {
                number += 1;
                let bytes =
                    Packet { number, content: PacketContent::Echo }.to_bytes(&link.peer.key);
                let estimator = &mut link.estimator;
                estimator.note_echo_sent(number, Instant::now());
                estimator.probe_bytes += (bytes.len() + HEADER_BYTES) as u64;
                // What can't be sent is not answered.
                self.socket.send_to(&bytes, link.peer.address).ok();
                if let Some(count) = estimator.due_train(now) {
                    number += 1;
                    trains.push((link.peer.clone(), number, count));
                }
            }
            // One at a time, so that they don't disturb each other.
            for (peer, number, count) in trains {
                self.send_train(&peer, number, count);
            }
        }
    }

    fn send_train(&self, peer: &ProbePeer, number: u64, count: u32) {
        let packets = (0..count).map(|index| {
            let content = PacketContent::Train { index, count };
            Packet { number, content }.to_bytes(&peer.key)
        });
        let packets: Vec<Vec<u8>> = packets.collect();
        let bytes: usize = packets.iter().map(|packet| packet.len() + HEADER_BYTES).sum();
        if let Some(link) = lock(&self.links).get_mut(&peer.name) {
            link.estimator.note_train_sent(number, count, Instant::now());
            link.estimator.probe_bytes += bytes as u64;
        }
        for packet in &packets {
            // What is lost on the way is lost here, too.
            self.socket.send_to(packet, peer.address).ok();
        }
    }

    /// Answers those that ask, and notes what they answer.
    fn receive_packets(&self) {
        let mut buffer = vec![0; 2048];
        let mut trains: HashMap<(SocketAddr, u64), (TrainReceiver, Instant)> = HashMap::new();
        while !self.is_closed() {
            let received = receive_packet(&self.socket, &mut buffer);
            self.answer_silent_trains(&mut trains);
            let Ok(Some(received)) = received else { continue };
            let bytes = &buffer[..received.length];
            let Some((kind, number)) = Packet::peek_number(bytes) else { continue };
            if matches!(kind, 2 | 4) {
                self.take_answer(bytes, number, received.from, received.nanoseconds);
                continue;
            }
            let Some(packet) = Packet::from_bytes(bytes, &self.key) else { continue };
            match packet.content {
                PacketContent::Echo => {
                    self.answer(number, PacketContent::EchoReply, received.from);
                }
                PacketContent::Train { index, count } if count <= LONGEST_TRAIN => {
                    let place = (received.from, number);
                    if trains.len() >= MOST_TRAINS && !trains.contains_key(&place) {
                        continue;
                    }
                    let (train, heard) = trains
                        .entry(place)
                        .or_insert_with(|| (TrainReceiver::new(count), Instant::now()));
                    train.take_packet(index, received.nanoseconds);
                    *heard = Instant::now();
                    if train.is_complete {
                        let arrival = train.arrival();
                        trains.remove(&place);
                        self.note_train_of_peer(received.from, &arrival);
                        self.answer(number, PacketContent::TrainReply(arrival), received.from);
                    }
                }
                _ => {}
            }
        }
    }

    fn note_train_of_peer(&self, from: SocketAddr, arrival: &TrainArrival) {
        let mut links = lock(&self.links);
        let link = links.values_mut().find(|link| link.peer.address == from);
        if let Some(link) = link {
            link.estimator.note_train_of_peer(arrival);
        }
    }

    fn answer(&self, number: u64, content: PacketContent, to: SocketAddr) {
        let bytes = Packet { number, content }.to_bytes(&self.key);
        // Whoever does not get it asks again.
        self.socket.send_to(&bytes, to).ok();
    }

    /// Trains whose last packet was lost.
    fn answer_silent_trains(
        &self,
        trains: &mut HashMap<(SocketAddr, u64), (TrainReceiver, Instant)>,
    ) {
        let silent = trains.extract_if(|_, (_, heard)| heard.elapsed() > TRAIN_SILENCE);
        let silent: Vec<_> = silent.collect();
        for ((from, number), (train, _)) in silent {
            self.answer(number, PacketContent::TrainReply(train.arrival()), from);
        }
    }

    fn take_answer(&self, bytes: &[u8], number: u64, from: SocketAddr, nanoseconds: u64) {
        // When the kernel had it, which may be a while ago.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ago = since.saturating_sub(Duration::from_nanos(nanoseconds)).min(RECEIVE_TIMEOUT * 20);
        let now = Instant::now();
        let came = now.checked_sub(ago).unwrap_or(now);
        let mut links = lock(&self.links);
        let asked = links.values_mut().filter(|link| link.peer.address == from);
        for link in asked {
            let Some(packet) = Packet::from_bytes(bytes, &link.peer.key) else { continue };
            match packet.content {
                PacketContent::EchoReply => drop(link.estimator.note_echo(number, came)),
                PacketContent::TrainReply(arrival) => {
                    link.estimator.note_train(number, &arrival, came);
                }
                _ => {}
            }
        }
    }
}

/// Where numbers begin: not where they did in a run before.
fn first_number() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(prober: &LinkProber, what: impl Fn(&LinkEstimate) -> bool) -> LinkEstimate {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let found = prober.estimates();
            if let Some(found) = found.iter().find(|link| what(link)) {
                return found.clone();
            }
            assert!(Instant::now() < end, "{found:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn hosts_find_out_how_the_link_between_them_is_and_whether_it_is_cut() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let (a, b) = (LinkProber::start(address).unwrap(), LinkProber::start(address).unwrap());
        let peer = |name: &str, prober: &LinkProber, key: ProbeKey| ProbePeer {
            name: name.to_owned(),
            address: SocketAddr::new(address, prober.port().unwrap()),
            key,
        };
        let key: ProbeKey = b.key().to_string().parse().unwrap();
        a.set_peers(vec![peer("b", &b, key)]);
        let found = wait_for(&a, |link| link.bits_per_second.is_some());
        assert!(found.round_trip.unwrap() < Duration::from_millis(100), "{found:?}");
        assert!(found.bits_per_second.unwrap() > 10e6, "{found:?}");
        drop(b);
        wait_for(&a, |link| link.is_cut && link.round_trip.is_none());
    }

    #[test]
    fn nobody_is_answered_who_does_not_know_the_key() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let (a, b) = (LinkProber::start(address).unwrap(), LinkProber::start(address).unwrap());
        let wrong = ProbeKey::random().unwrap();
        let at = SocketAddr::new(address, b.port().unwrap());
        a.set_peers(vec![ProbePeer { name: "b".to_owned(), address: at, key: wrong }]);
        let found = wait_for(&a, |link| link.is_filtered);
        assert_eq!((found.round_trip, found.bits_per_second), (None, None));
        // Nothing else was sent that should have come through.
        assert!(!found.is_cut);
        assert!("12".parse::<ProbeKey>().is_err());
    }
}
