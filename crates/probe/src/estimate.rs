//! What is believed of a link, from echoes, trains and what is sent anyway.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::budget::{SHORT_TRAIN_SHARE, TrainBudget};
use crate::packet::TrainArrival;
use crate::train::{
    FIRST_TRAIN, LONGEST_TRAIN, PACKET_BITS, TrainVerdict, judge_train, short_train,
};

/// How often the other end is asked for an echo.
pub(crate) const ECHO_INTERVAL: Duration = Duration::from_millis(200);
/// Echoes that count: the least of them is the round trip.
const ECHO_WINDOW: Duration = Duration::from_millis(600);
/// A link through which nothing came for so long is cut.
const CUT_AFTER: Duration = Duration::from_millis(1500);
/// Where no probe came through for so long, and other things did or could not be tried, probes are
/// filtered.
const FILTERED_AFTER: Duration = Duration::from_secs(5);
/// How long what was sent anyway says more than a train.
const TRAFFIC_MEMORY: Duration = Duration::from_secs(60);
/// How old a train may be on a link that nothing else is known of.
const TRAIN_MEMORY: Duration = Duration::from_secs(60);
/// Bytes from which what was sent says how fast a link is.
const ENOUGH_BYTES: u64 = 32 << 10;
/// How often it is looked at most whether an idle link is as fast as it was, and at least.
const OFTENEST_LOOK: Duration = Duration::from_secs(1);
const RAREST_LOOK: Duration = Duration::from_secs(60);
/// How much rarer it is looked at most than it could be.
const MOST_RARENESS: f64 = 64.0;
/// A short train that says something else by so much is followed by a long one.
const OTHER_RATE: f64 = 1.5;
/// What is sent anyway is so much slower that no other look at it is needed.
const MUCH_SLOWER: f64 = 4.0;
/// A round trip that changes by so much has another reason than chance.
const JUMP_SHARE: f64 = 0.5;
const JUMP_LEAST: Duration = Duration::from_millis(5);
/// How long the answer to a train may take to come.
const TRAIN_TIMEOUT: Duration = Duration::from_secs(6);
/// Bytes that a packet of TCP brings, and those that it takes on the link.
const TCP_SHARE: f64 = 1448.0 / 1500.0;

/// What is known of a link, from this host to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkEstimate {
    /// The name of the other.
    pub to: String,
    /// There and back; none where the link is cut or nothing came yet.
    pub round_trip: Option<Duration>,
    /// Bits per second there; none where nothing is known yet.
    pub bits_per_second: Option<f64>,
    /// Bytes that were sent to find that out.
    pub probe_bytes: u64,
    /// Whether nothing comes through.
    pub is_cut: bool,
    /// Whether probes don't, as far as that can be told: what is known is what was sent anyway.
    #[serde(default)]
    pub is_filtered: bool,
}

/// What the connections to another host have done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrafficSample {
    /// Bytes that the other end has, since the connections were made.
    pub acknowledged_bytes: u64,
    /// Bytes on their way.
    pub outstanding_bytes: u64,
    /// How fast they went last, in bits per second.
    pub bits_per_second: Option<f64>,
    /// Whether there was too little to send for that to be all that the link allows.
    pub is_little: bool,
    /// The round trip that their packets see.
    pub round_trip: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct EchoSample {
    at: Instant,
    round_trip: Duration,
    /// Whether it had to wait behind what was sent at the same time.
    is_loaded: bool,
}

/// What is known of the link to one host.
#[derive(Debug)]
pub(crate) struct LinkEstimator {
    started: Instant,
    asked: VecDeque<(u64, Instant, u64)>,
    samples: VecDeque<EchoSample>,
    heard: Option<Instant>,
    /// When a probe was last answered, and when something else last came through.
    answered: Option<Instant>,
    carried: Option<Instant>,
    /// Since when something is on its way and nothing of it arrives, and whether that was for long:
    /// then nothing comes through until something does.
    stuck_since: Option<Instant>,
    is_stuck: bool,
    round_trip: Option<Duration>,
    /// The round trip when the last train was sent.
    train_round_trip: Option<Duration>,
    train_rate: Option<(f64, Instant)>,
    traffic_rate: Option<TrafficRate>,
    /// What was sent last was much slower than what is believed: the next says whether that lasts.
    slower_rate: Option<f64>,
    traffic: TrafficSample,
    /// Bytes that were there when their speed was last looked at.
    judged_bytes: u64,
    /// When something last said how fast it is.
    looked: Instant,
    /// How much rarer it is looked than it could be, as it was in vain.
    rareness: f64,
    /// Whether a short train says something else than is believed.
    is_doubted: bool,
    /// How fast the last train of the other end came here.
    peer_rate: Option<f64>,
    train: Option<SentTrain>,
    next_count: u32,
    budget: TrainBudget,
    pub(crate) probe_bytes: u64,
}

/// How fast it was what was sent anyway.
#[derive(Clone, Copy, Debug)]
struct TrafficRate {
    bits_per_second: f64,
    at: Instant,
    /// The round trip meanwhile: after it has changed, TCP is as fast as before for a while.
    round_trip: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct SentTrain {
    number: u64,
    count: u32,
    at: Instant,
}

impl LinkEstimator {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            started: now,
            asked: VecDeque::new(),
            samples: VecDeque::new(),
            heard: None,
            answered: None,
            carried: None,
            stuck_since: None,
            is_stuck: false,
            round_trip: None,
            train_round_trip: None,
            train_rate: None,
            traffic_rate: None,
            slower_rate: None,
            traffic: TrafficSample::default(),
            judged_bytes: 0,
            looked: now,
            rareness: 1.0,
            is_doubted: false,
            peer_rate: None,
            train: None,
            next_count: FIRST_TRAIN,
            budget: TrainBudget::new(now),
            probe_bytes: 0,
        }
    }

    /// An echo is asked for.
    pub(crate) fn note_echo_sent(&mut self, number: u64, now: Instant) {
        self.asked.push_back((number, now, self.traffic.outstanding_bytes));
        while self.asked.len() > 64 {
            self.asked.pop_front();
        }
    }

    /// An echo came; whether it was asked for.
    pub(crate) fn note_echo(&mut self, number: u64, now: Instant) -> bool {
        let Some(at) = self.asked.iter().position(|(asked, ..)| *asked == number) else {
            return false;
        };
        let Some((_, sent, outstanding)) = self.asked.remove(at) else { return false };
        let seen = now.saturating_duration_since(sent);
        // What was before it in the queue of the link has nothing to do with the way.
        let waited = match self.rate(now) {
            Some(rate) => {
                Duration::try_from_secs_f64(outstanding as f64 * 8.0 / rate).unwrap_or_default()
            }
            None => Duration::ZERO,
        };
        let round_trip = if outstanding > 0 { seen.saturating_sub(waited) } else { seen };
        let is_loaded = outstanding > 0;
        let least = self.samples.iter().map(|sample| sample.round_trip).min();
        let round_trip = round_trip.max(least.unwrap_or_default().min(seen));
        self.note_answer(now);
        self.samples.push_back(EchoSample { at: now, round_trip, is_loaded });
        self.settle_round_trip(now);
        true
    }

    /// A probe came through, and came back.
    fn note_answer(&mut self, now: Instant) {
        (self.heard, self.answered) = (Some(now), Some(now));
        (self.stuck_since, self.is_stuck) = (None, false);
    }

    fn settle_round_trip(&mut self, now: Instant) {
        let is_new = |sample: &EchoSample| now.saturating_duration_since(sample.at) <= ECHO_WINDOW;
        while self.samples.len() > 1 && self.samples.front().is_some_and(|first| !is_new(first)) {
            self.samples.pop_front();
        }
        let least = |loaded: bool| {
            let those = self.samples.iter().filter(|sample| sample.is_loaded == loaded);
            those.map(|sample| sample.round_trip).min()
        };
        self.round_trip = least(false).or_else(|| least(true)).or(self.round_trip);
    }

    /// What connections to the other have done since the last time.
    pub(crate) fn note_traffic(&mut self, sample: TrafficSample, now: Instant) {
        // Connections that ended took their counts along.
        self.judged_bytes = self.judged_bytes.min(sample.acknowledged_bytes);
        if sample.acknowledged_bytes > self.traffic.acknowledged_bytes {
            // What gets through gets through, also where probes do not.
            (self.heard, self.carried) = (Some(now), Some(now));
            (self.stuck_since, self.is_stuck) = (None, false);
            if self.samples.is_empty() || self.is_filtered(now) {
                self.round_trip = sample.round_trip.or(self.round_trip);
            }
        } else if sample.outstanding_bytes > 0 {
            let since = *self.stuck_since.get_or_insert(now);
            self.is_stuck |= now.saturating_duration_since(since) > self.patience();
        } else {
            self.stuck_since = None;
        }
        if sample.acknowledged_bytes - self.judged_bytes >= ENOUGH_BYTES
            && let Some(rate) = sample.bits_per_second
        {
            let mut bits_per_second = rate / TCP_SHARE;
            if sample.is_little && self.rate(now).is_some_and(|known| known > bits_per_second) {
                self.traffic = sample;
                return;
            }
            self.judged_bytes = sample.acknowledged_bytes;
            self.looked = now;
            // What is slower is so when it was twice: TCP holds back for a moment now and then. What
            // is much slower is so at once; the rest is averaged.
            let before = self.valid_traffic(now).map(|before| before.bits_per_second);
            let share = before.map_or(1.0, |before| bits_per_second / before);
            let is_slower = (1.0 / MUCH_SLOWER..=1.0 / OTHER_RATE).contains(&share);
            let seen = std::mem::take(&mut self.slower_rate);
            if is_slower {
                let Some(seen) = seen else {
                    self.slower_rate = Some(bits_per_second);
                    self.traffic = sample;
                    return;
                };
                bits_per_second = bits_per_second.max(seen);
            }
            if let Some(before) = before.filter(|before| bits_per_second * OTHER_RATE > *before) {
                bits_per_second = before.midpoint(bits_per_second);
            }
            let round_trip = self.round_trip;
            self.traffic_rate = Some(TrafficRate { bits_per_second, at: now, round_trip });
        }
        self.traffic = sample;
    }

    /// A train of the other end came here. A link that is another in one direction may well be in
    /// both.
    pub(crate) fn note_train_of_peer(&mut self, arrival: &TrainArrival) {
        let [_, rate] = arrival.halves;
        if arrival.received < FIRST_TRAIN || rate <= 0.0 {
            return;
        }
        let ratio = self.peer_rate.replace(rate).map_or(1.0, |before| rate / before);
        if !(1.0 / OTHER_RATE..OTHER_RATE).contains(&ratio) {
            (self.is_doubted, self.rareness) = (true, 1.0);
        }
    }

    /// How many packets a train should have that is due now.
    pub(crate) fn due_train(&mut self, now: Instant) -> Option<u32> {
        if let Some(train) = self.train {
            if now.saturating_duration_since(train.at) < TRAIN_TIMEOUT {
                return None;
            }
            self.train = None;
            self.next_count = FIRST_TRAIN;
            self.budget.pay(TRAIN_TIMEOUT.as_secs_f64() * 0.05);
        }
        let is_silent = self.answered.is_none() || self.is_filtered(now) || self.is_cut(now);
        if is_silent || self.round_trip.is_none() || self.traffic.outstanding_bytes > 0 {
            return None;
        }
        let is_longer = self.next_count > FIRST_TRAIN;
        let is_new = |(_, at): (f64, Instant)| now.saturating_duration_since(at) < TRAIN_MEMORY;
        let is_known = self.train_rate.is_some_and(is_new) || self.valid_traffic(now).is_some();
        let is_wanted = is_longer || self.has_jumped_since(self.train_round_trip) || !is_known;
        let is_doubted = self.is_doubted && self.budget.allows_debt(now);
        let is_urgent = is_longer || self.train_rate.is_none() || is_doubted;
        let may = self.budget.allows_train(now) || is_urgent;
        if (is_wanted || is_doubted) && may {
            return Some(self.next_count);
        }
        let rate = self.rate(now)?;
        let count = short_train(rate);
        let takes = f64::from(count) * PACKET_BITS / rate;
        let pause = takes / SHORT_TRAIN_SHARE * self.rareness;
        let pause = Duration::try_from_secs_f64(pause).unwrap_or(RAREST_LOOK);
        let pause = pause.clamp(OFTENEST_LOOK, RAREST_LOOK);
        (now.saturating_duration_since(self.looked) >= pause).then_some(count)
    }

    pub(crate) fn note_train_sent(&mut self, number: u64, count: u32, now: Instant) {
        self.train = Some(SentTrain { number, count, at: now });
        self.looked = now;
        if count >= FIRST_TRAIN {
            self.train_round_trip = self.round_trip;
        }
    }

    /// A train has come at the other end.
    pub(crate) fn note_train(&mut self, number: u64, arrival: &TrainArrival, now: Instant) {
        let Some(train) = self.train.filter(|train| train.number == number) else { return };
        self.train = None;
        self.note_answer(now);
        self.looked = now;
        let believed = self.rate(now);
        if train.count < FIRST_TRAIN {
            let [found, _] = arrival.halves;
            let ratio = believed.map_or(1.0, |believed| found / believed);
            self.is_doubted = found > 0.0 && !(1.0 / OTHER_RATE..OTHER_RATE).contains(&ratio);
            if !self.is_doubted {
                self.rareness = 1.0;
            }
            return;
        }
        self.budget.pay(Duration::from_nanos(arrival.span).as_secs_f64());
        let rate = match judge_train(train.count, arrival) {
            TrainVerdict::Rate(rate) => {
                self.next_count = FIRST_TRAIN;
                Some(rate)
            }
            TrainVerdict::Longer(rate) => {
                let longer = train.count * 2;
                self.next_count = if longer > LONGEST_TRAIN { FIRST_TRAIN } else { longer };
                rate
            }
        };
        if let Some(rate) = rate {
            let was_doubted = std::mem::take(&mut self.is_doubted);
            let is_same = believed.is_some_and(|known| (known / rate - 1.0).abs() < JUMP_SHARE);
            if was_doubted && is_same {
                self.rareness = (2.0 * self.rareness).min(MOST_RARENESS);
            } else if !is_same {
                self.rareness = 1.0;
            }
            self.train_rate = Some((rate, now));
            // What was sent before it may have gone another way.
            let is_other =
                |known: TrafficRate| (known.bits_per_second / rate - 1.0).abs() > JUMP_SHARE;
            if self.traffic_rate.is_some_and(is_other) {
                self.traffic_rate = None;
            }
        }
    }

    /// What is believed of its speed: what was sent anyway, where that is new enough; else whatever
    /// is newer, until a train says more.
    fn rate(&self, now: Instant) -> Option<f64> {
        if let Some(traffic) = self.valid_traffic(now) {
            return Some(traffic.bits_per_second);
        }
        let traffic = self.traffic_rate.map(|traffic| (traffic.bits_per_second, traffic.at));
        let newest = traffic.into_iter().chain(self.train_rate).max_by_key(|(_, at)| *at);
        newest.map(|(rate, _)| rate)
    }

    /// What was sent anyway, where that was not long ago and on the same way.
    fn valid_traffic(&self, now: Instant) -> Option<TrafficRate> {
        self.traffic_rate.filter(|known| {
            now.saturating_duration_since(known.at) < TRAFFIC_MEMORY
                && !self.has_jumped_since(known.round_trip)
        })
    }

    /// Whether the round trip is another than it was, for another reason than chance.
    fn has_jumped_since(&self, before: Option<Duration>) -> bool {
        let (Some(now), Some(before)) = (self.round_trip, before) else { return true };
        let change = now.abs_diff(before);
        change >= JUMP_LEAST && change.as_secs_f64() > JUMP_SHARE * before.as_secs_f64()
    }

    fn patience(&self) -> Duration {
        CUT_AFTER + 2 * self.round_trip.unwrap_or_default()
    }

    /// Whether what should come through does not: probes, where they did before; else what was sent
    /// anyway, where there was something.
    fn is_cut(&self, now: Instant) -> bool {
        let last = self.heard.unwrap_or(self.started);
        if now.saturating_duration_since(last) <= self.patience() {
            return false;
        }
        self.is_stuck || (self.answered.is_some() && !self.is_filtered(now))
    }

    /// Whether probes don't come through where other things do, or never did.
    fn is_filtered(&self, now: Instant) -> bool {
        match (self.answered, self.carried) {
            (None, _) => now.saturating_duration_since(self.started) > FILTERED_AFTER,
            (Some(answered), Some(carried)) => {
                carried.saturating_duration_since(answered) > FILTERED_AFTER
            }
            (Some(_), None) => false,
        }
    }

    /// What is known now.
    pub(crate) fn estimate(&self, to: &str, now: Instant) -> LinkEstimate {
        let is_cut = self.is_cut(now);
        LinkEstimate {
            to: to.to_owned(),
            round_trip: self.round_trip.filter(|_| !is_cut),
            bits_per_second: self.rate(now),
            probe_bytes: self.probe_bytes,
            is_cut,
            is_filtered: self.is_filtered(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn echo(link: &mut LinkEstimator, number: u64, sent: Instant, round_trip: Duration) {
        link.note_echo_sent(number, sent);
        assert!(link.note_echo(number, sent + round_trip));
        assert!(!link.note_echo(number, sent + round_trip));
    }

    #[test]
    fn a_round_trip_is_the_least_of_a_second_and_follows_a_change() {
        let start = Instant::now();
        let mut link = LinkEstimator::new(start);
        assert_eq!(link.estimate("b", start).round_trip, None);
        for number in 0..5 {
            echo(
                &mut link,
                number,
                start + 200 * MS * number as u32,
                (10 + number as u32 % 3) * MS,
            );
        }
        assert_eq!(link.estimate("b", start + 1000 * MS).round_trip, Some(10 * MS));
        for number in 5..11 {
            echo(&mut link, number, start + 200 * MS * number as u32, 310 * MS);
        }
        let at = start + 2400 * MS;
        assert_eq!(link.estimate("b", at).round_trip, Some(310 * MS));
        assert!(!link.estimate("b", at).is_cut);
        assert!(link.estimate("b", at + 3000 * MS).is_cut);
        echo(&mut link, 12, at + 3000 * MS, 10 * MS);
        assert_eq!(link.estimate("b", at + 3011 * MS).round_trip, Some(10 * MS));
    }

    #[test]
    fn a_link_on_which_probes_are_filtered_is_not_cut_while_nothing_is_sent_or_what_is_arrives() {
        let start = Instant::now();
        let mut link = LinkEstimator::new(start);
        let at = start + 20_000 * MS;
        link.note_echo_sent(1, start);
        let traffic = |acknowledged_bytes, outstanding_bytes| TrafficSample {
            acknowledged_bytes,
            outstanding_bytes,
            round_trip: Some(30 * MS),
            ..TrafficSample::default()
        };
        // Nothing was sent but probes.
        link.note_traffic(TrafficSample::default(), at);
        let found = link.estimate("b", at);
        assert_eq!((found.is_cut, found.is_filtered, found.round_trip), (false, true, None));
        link.note_traffic(traffic(1000, 0), at);
        let idle = link.estimate("b", at + 10_000 * MS);
        assert_eq!((idle.is_cut, idle.round_trip), (false, Some(30 * MS)));
        // Something is on its way, and does not arrive.
        link.note_traffic(traffic(1000, 500), at + 10_000 * MS);
        assert!(!link.estimate("b", at + 10_100 * MS).is_cut);
        link.note_traffic(traffic(1000, 500), at + 12_000 * MS);
        assert!(link.estimate("b", at + 12_000 * MS).is_cut);
        // Its connection ends, which says nothing about the link.
        link.note_traffic(TrafficSample::default(), at + 20_000 * MS);
        assert!(link.estimate("b", at + 20_000 * MS).is_cut);
        link.note_traffic(traffic(100, 0), at + 21_000 * MS);
        assert!(!link.estimate("b", at + 30_000 * MS).is_cut);
        // Probes come through after all, and then not any more: that is a cut.
        echo(&mut link, 2, at + 40_000 * MS, 30 * MS);
        let open = link.estimate("b", at + 40_100 * MS);
        assert_eq!((open.is_cut, open.is_filtered), (false, false));
        assert!(link.estimate("b", at + 43_000 * MS).is_cut);
        // Where other things arrive all the same it is none.
        link.note_traffic(traffic(200, 0), at + 46_000 * MS);
        let filtered = link.estimate("b", at + 60_000 * MS);
        assert_eq!((filtered.is_cut, filtered.is_filtered), (false, true));
    }

    #[test]
    fn what_waits_behind_others_does_not_count_as_the_way() {
        let start = Instant::now();
        let mut link = LinkEstimator::new(start);
        echo(&mut link, 0, start, 20 * MS);
        let traffic = |acknowledged_bytes, outstanding_bytes| TrafficSample {
            acknowledged_bytes,
            outstanding_bytes,
            bits_per_second: Some(8e6 * TCP_SHARE),
            is_little: false,
            round_trip: None,
        };
        link.note_traffic(traffic(1 << 20, 100_000), start);
        // 100 kB at a MB/s are a tenth of a second.
        echo(&mut link, 1, start + 400 * MS, 120 * MS);
        let found = link.estimate("b", start + 520 * MS);
        assert_eq!(found.round_trip, Some(20 * MS));
        assert!((found.bits_per_second.unwrap() / 8e6 - 1.0).abs() < 1e-9);
        echo(&mut link, 2, start + 2200 * MS, 420 * MS);
        let seen = link.estimate("b", start + 2620 * MS).round_trip.unwrap();
        assert!((310 * MS..=330 * MS).contains(&seen), "{seen:?}");
    }

    #[test]
    fn one_slow_moment_of_tcp_is_no_slow_link_and_two_are() {
        let start = Instant::now();
        let mut link = LinkEstimator::new(start);
        echo(&mut link, 0, start, 10 * MS);
        let mut sent = 0;
        let mut rate_after = |megabits: f64, at: Instant| {
            sent += 1 << 20;
            let sample = TrafficSample {
                acknowledged_bytes: sent,
                outstanding_bytes: 0,
                bits_per_second: Some(megabits * 1e6 * TCP_SHARE),
                is_little: false,
                round_trip: None,
            };
            link.note_traffic(sample, at);
            link.estimate("b", at).bits_per_second.unwrap() / 1e6
        };
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-9;
        assert!(near(rate_after(100.0, start + 100 * MS), 100.0));
        assert!(near(rate_after(40.0, start + 300 * MS), 100.0));
        assert!(near(rate_after(100.0, start + 500 * MS), 100.0));
        assert!(near(rate_after(30.0, start + 700 * MS), 100.0));
        assert!(near(rate_after(50.0, start + 900 * MS), 50.0));
        assert!(near(rate_after(2.0, start + 1100 * MS), 2.0));
    }

    #[test]
    fn a_train_that_comes_otherwise_than_before_casts_doubt_on_the_way_back() {
        let start = Instant::now();
        let mut link = LinkEstimator::new(start);
        echo(&mut link, 0, start, 10 * MS);
        link.note_train_sent(1, FIRST_TRAIN, start + 20 * MS);
        let arrival = |rate| TrainArrival { received: 64, halves: [rate, rate], span: 360_000_000 };
        link.note_train(1, &arrival(2e6), start + 30 * MS);
        link.note_train_of_peer(&arrival(2e6));
        assert_ne!(link.due_train(start + 500 * MS), Some(FIRST_TRAIN));
        link.note_train_of_peer(&arrival(100e6));
        assert_eq!(link.due_train(start + 600 * MS), Some(FIRST_TRAIN));
    }

    #[test]
    fn a_link_that_got_slow_is_not_believed_to_be_fast_again_for_a_longer_way() {
        let start = Instant::now();
        let mut link = LinkEstimator::new(start);
        echo(&mut link, 0, start, 10 * MS);
        link.note_train_sent(1, FIRST_TRAIN, start + 20 * MS);
        let arrival = TrainArrival { received: 64, halves: [1e8, 1e8], span: 7_000_000 };
        link.note_train(1, &arrival, start + 30 * MS);
        let traffic = TrafficSample {
            acknowledged_bytes: 1 << 20,
            outstanding_bytes: 0,
            bits_per_second: Some(2e6 * TCP_SHARE),
            is_little: false,
            round_trip: None,
        };
        link.note_traffic(traffic, start + 500 * MS);
        // Whatever it waited behind.
        for number in 1..8 {
            echo(&mut link, number, start + (500 + 200 * number as u32) * MS, 110 * MS);
        }
        let found = link.estimate("b", start + 2100 * MS);
        assert_eq!(found.round_trip, Some(110 * MS));
        assert!((found.bits_per_second.unwrap() / 2e6 - 1.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn trains_are_sent_where_nothing_is_known_or_the_way_has_changed() {
        let start = Instant::now();
        let mut link = LinkEstimator::new(start);
        assert_eq!(link.due_train(start), None);
        echo(&mut link, 0, start, 10 * MS);
        let at = start + 20 * MS;
        assert_eq!(link.due_train(at), Some(FIRST_TRAIN));
        link.note_train_sent(1, FIRST_TRAIN, at);
        assert_eq!(link.due_train(at), None);
        let arrival = TrainArrival { received: 64, halves: [10e6, 10e6], span: 70_000_000 };
        link.note_train(1, &arrival, at);
        assert_eq!(link.estimate("b", at).bits_per_second, Some(10e6));
        echo(&mut link, 2, start + 1000 * MS, 10 * MS);
        assert_eq!(link.due_train(start + 1100 * MS), None);
        // The last one is not paid for yet, and a short one will do.
        echo(&mut link, 3, start + 2500 * MS, 310 * MS);
        assert_eq!(link.due_train(start + 2900 * MS), Some(3));
        link.note_train_sent(2, 3, start + 2900 * MS);
        let slower = |rate| TrainArrival { received: 3, halves: [rate, rate], span: 1_000_000 };
        link.note_train(2, &slower(9e6), start + 2950 * MS);
        assert_eq!(link.due_train(start + 3000 * MS), None);
        link.note_train_sent(3, 3, start + 5000 * MS);
        link.note_train(3, &slower(2e6), start + 5050 * MS);
        assert_eq!(link.due_train(start + 5100 * MS), Some(FIRST_TRAIN));
        link.note_train_sent(4, FIRST_TRAIN, start + 5100 * MS);
        let arrival = TrainArrival { received: 64, halves: [2e6, 2e6], span: 360_000_000 };
        link.note_train(4, &arrival, start + 5600 * MS);
        assert_eq!(link.estimate("b", start + 5600 * MS).bits_per_second, Some(2e6));
    }
}
