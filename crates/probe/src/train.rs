//! Trains of packets: how fast the second half of one comes is how fast a link is. The first may come
//! faster, where the link saved up what it may send.

use std::time::Duration;

use crate::packet::{HEADER_BYTES, TRAIN_PACKET_BYTES, TrainArrival};

/// Packets of the first train, and most of one.
pub(crate) const FIRST_TRAIN: u32 = 64;
pub(crate) const LONGEST_TRAIN: u32 = 1024;
/// Packets of a train that have to come: what waits before a slow link may be little.
const FEWEST_ARRIVED: u32 = 8;
/// A train says nothing that is over sooner: a link may send so much at once that it saved up.
const SHORTEST_SPAN: Duration = Duration::from_millis(4);
/// How far the halves of a train may be apart.
const HALVES_TOLERANCE: f64 = 0.1;
/// How long a short train should take a link, and most packets of one.
const SHORT_SPAN: Duration = Duration::from_millis(2);
const LONGEST_SHORT_TRAIN: u32 = 32;
/// Bits of a packet, on the link.
pub(crate) const PACKET_BITS: f64 = ((TRAIN_PACKET_BYTES + HEADER_BYTES) * 8) as f64;

/// A train that comes in.
pub(crate) struct TrainReceiver {
    /// Packets that it is to have.
    pub(crate) count: u32,
    /// When those came that did, in nanoseconds.
    arrivals: Vec<u64>,
    pub(crate) is_complete: bool,
}

impl TrainReceiver {
    pub(crate) fn new(count: u32) -> Self {
        Self { count, arrivals: Vec::new(), is_complete: false }
    }

    /// Takes a packet; the last one makes it complete.
    pub(crate) fn take_packet(&mut self, index: u32, nanoseconds: u64) {
        if self.arrivals.len() < LONGEST_TRAIN as usize {
            self.arrivals.push(nanoseconds);
        }
        self.is_complete |= index + 1 >= self.count;
    }

    /// How it came.
    pub(crate) fn arrival(&self) -> TrainArrival {
        let times = &self.arrivals;
        let middle = times.len() / 2;
        let (Some(first), Some(last)) = (times.first(), times.last()) else {
            return TrainArrival::default();
        };
        TrainArrival {
            received: times.len() as u32,
            halves: [rate_of(&times[..=middle.min(times.len() - 1)]), rate_of(&times[middle..])],
            span: last.saturating_sub(*first),
        }
    }
}

/// Bits per second of packets that came at these times.
fn rate_of(times: &[u64]) -> f64 {
    let (Some(first), Some(last)) = (times.first(), times.last()) else { return 0.0 };
    let span = last.saturating_sub(*first);
    if span == 0 {
        return 0.0;
    }
    (times.len() - 1) as f64 * PACKET_BITS / (span as f64 * 1e-9)
}

/// Packets of a train that says whether a link is still as fast as it was. It may say that a link is
/// faster than it is, never that it is slower.
pub(crate) fn short_train(bits_per_second: f64) -> u32 {
    let packets = bits_per_second * SHORT_SPAN.as_secs_f64() / PACKET_BITS;
    (packets.ceil() as u32 + 1).clamp(2, LONGEST_SHORT_TRAIN)
}

/// What a train says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TrainVerdict {
    /// So many bits per second.
    Rate(f64),
    /// A longer one says more; so far it is this.
    Longer(Option<f64>),
}

/// What a train of so many packets says that came like this.
pub(crate) fn judge_train(count: u32, arrival: &TrainArrival) -> TrainVerdict {
    let [first, second] = arrival.halves;
    let rate = (second > 0.0 && arrival.received >= FEWEST_ARRIVED).then_some(second);
    if count >= LONGEST_TRAIN {
        return rate.map_or(TrainVerdict::Longer(None), TrainVerdict::Rate);
    }
    let agree = (first - second).abs() <= HALVES_TOLERANCE * second;
    let is_long = Duration::from_nanos(arrival.span) >= SHORTEST_SPAN;
    // Where the second half came slower than the first, the link had saved something up, which is
    // gone by then.
    let was_spent = second < first && arrival.span >= 10 * SHORTEST_SPAN.as_nanos() as u64;
    match rate {
        Some(rate) if is_long && (agree || was_spent) => TrainVerdict::Rate(rate),
        rate => TrainVerdict::Longer(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A train through a bucket that has so many bits, and is filled at a rate.
    fn train_through(count: u32, saved: f64, rate: f64) -> TrainArrival {
        let mut receiver = TrainReceiver::new(count);
        for index in 0..count {
            let bits = f64::from(index + 1) * PACKET_BITS;
            let at = (bits - saved).max(0.0) / rate + f64::from(index) * 1e-6;
            receiver.take_packet(index, (at * 1e9) as u64);
        }
        assert!(receiver.is_complete);
        receiver.arrival()
    }

    #[test]
    fn a_train_finds_the_rate_behind_what_a_link_saved_up() {
        for rate in [2e6, 10e6, 15e6, 100e6, 500e6] {
            for saved in [0.0, 32e3 * 8.0] {
                let mut count = FIRST_TRAIN;
                let found = loop {
                    match judge_train(count, &train_through(count, saved, rate)) {
                        TrainVerdict::Rate(found) => break found,
                        TrainVerdict::Longer(_) => count *= 2,
                    }
                };
                assert!((found / rate - 1.0).abs() < 0.1, "{rate} {saved}: {found}");
                assert!(rate > 20e6 || count <= 2 * FIRST_TRAIN, "{rate} {saved}: {count}");
            }
        }
    }

    #[test]
    fn trains_of_which_little_came_say_nothing() {
        let nothing = TrainArrival::default();
        assert_eq!(judge_train(64, &nothing), TrainVerdict::Longer(None));
        assert_eq!(judge_train(LONGEST_TRAIN, &nothing), TrainVerdict::Longer(None));
        assert_eq!(TrainReceiver::new(64).arrival(), nothing);
        let mut one = TrainReceiver::new(64);
        one.take_packet(63, 5);
        assert_eq!(one.arrival().halves, [0.0, 0.0]);
    }
}
