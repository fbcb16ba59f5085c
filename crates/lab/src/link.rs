//! One direction of a link: what it does to packets.

use std::time::{Duration, Instant};

use tessera_core::Random;

/// How one direction of a link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkShape {
    /// How long a packet is under way.
    pub delay: Duration,
    /// Bits in a second; as many as this machine can where nothing is said.
    pub rate: Option<u64>,
    /// The share of packets that is lost, from 0 to 1.
    pub loss: f64,
    /// How much waits before the link where it has a rate, in time to send it; more is dropped.
    pub queue: Duration,
    /// Whether nothing gets through.
    pub is_cut: bool,
}

impl Default for LinkShape {
    fn default() -> Self {
        let queue = Duration::from_millis(100);
        Self { delay: Duration::ZERO, rate: None, loss: 0.0, queue, is_cut: false }
    }
}

impl LinkShape {
    /// The same with this delay.
    #[must_use]
    pub fn with_delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// The same with so many megabits in a second.
    #[must_use]
    pub fn with_megabits(self, megabits: u64) -> Self {
        Self { rate: Some(megabits * 1_000_000), ..self }
    }

    /// The same, cut.
    #[must_use]
    pub fn cut(self) -> Self {
        Self { is_cut: true, ..self }
    }
}

/// What went over one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Bytes that got through.
    pub bytes: u64,
    /// Packets that got through.
    pub packets: u64,
    /// Packets that were dropped: by a cut, by loss, or as too many waited.
    pub dropped: u64,
}

/// One direction of a link.
pub(crate) struct Link {
    pub(crate) shape: LinkShape,
    pub(crate) traffic: LinkTraffic,
    /// When the last packet that waits has been sent.
    free_at: Instant,
    random: Random,
}

impl Link {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            shape: LinkShape::default(),
            traffic: LinkTraffic::default(),
            free_at: Instant::now(),
            random: Random::new(seed),
        }
    }

    /// When a packet of this length arrives that is sent now; `None` where it never does.
    pub(crate) fn arrival(&mut self, len: usize, now: Instant) -> Option<Instant> {
        let LinkShape { delay, rate, loss, queue, is_cut } = self.shape;
        let is_lost = loss > 0.0 && self.random.next_fraction() < loss;
        let sent = match rate {
            _ if is_cut || is_lost => None,
            None => Some(now),
            Some(rate) => {
                let begin = self.free_at.max(now);
                let takes = Duration::from_secs_f64(len as f64 * 8.0 / rate.max(1) as f64);
                // One packet may always wait, however long it takes.
                let is_full = begin.duration_since(now) > queue && begin > now;
                (!is_full).then(|| {
                    self.free_at = begin + takes;
                    self.free_at
                })
            }
        };
        match sent {
            None => self.traffic.dropped += 1,
            Some(_) => {
                self.traffic.packets += 1;
                self.traffic.bytes += len as u64;
            }
        }
        sent.map(|sent| sent + delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_delays_queues_drops_and_is_cut() {
        let now = Instant::now();
        let mut link = Link::new(1);
        assert_eq!(link.arrival(1500, now), Some(now));
        link.shape = LinkShape::default().with_delay(Duration::from_millis(50)).with_megabits(12);
        // 1,500 bytes take a millisecond.
        for number in 1..=3 {
            let due = now + Duration::from_millis(50 + number);
            let arrived = link.arrival(1500, now).unwrap();
            assert!(arrived.duration_since(due) < Duration::from_micros(10), "{number}");
        }
        let sent = (0..200).filter(|_| link.arrival(1500, now).is_some()).count();
        assert!((90..=100).contains(&sent), "{sent} wait in 100 ms");
        link.shape = LinkShape { loss: 0.25, ..LinkShape::default() };
        let arrived = (0..10_000).filter(|_| link.arrival(100, now).is_some()).count();
        assert!((7_300..7_700).contains(&arrived), "{arrived}");
        link.shape = LinkShape::default().cut();
        assert_eq!(link.arrival(100, now), None);
    }
}
