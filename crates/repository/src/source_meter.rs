//! How fast sources of content are, as it is seen while something is fetched from them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tessera_core::lock;

use crate::content_source::{ContentSource, SourceSpeed};

/// What a source is taken for of which nothing is known: one in the same network.
const UNKNOWN_RATE: f64 = 125e6;
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(1);
/// How long bytes are counted until they say how fast they come, and how many it takes: less than
/// that says how long it takes to ask.
const WINDOW: Duration = Duration::from_millis(250);
pub(crate) const ENOUGH_BYTES: u64 = 256 << 10;
/// How much what was seen last counts.
const NEWEST_SHARE: f64 = 0.5;
/// How much more time others must take before a source that all nodes use is used: they need it,
/// too.
const SHARED_FACTOR: f64 = 4.0;

/// How fast sources are, by what they are called.
#[derive(Default)]
pub(crate) struct SourceMeters(Mutex<HashMap<String, SourceMeter>>);

#[derive(Default)]
struct SourceMeter {
    /// How many fetch from it now, since when, and what has come since.
    active: usize,
    since: Option<Instant>,
    bytes: u64,
    rate: Option<f64>,
    round_trip: Option<Duration>,
}

impl SourceMeter {
    fn settle(&mut self, now: Instant, least: Duration) {
        let Some(since) = self.since else { return };
        let passed = now.saturating_duration_since(since);
        if passed < least || passed.is_zero() {
            return;
        }
        if self.bytes >= ENOUGH_BYTES || passed >= WINDOW {
            let seen = self.bytes as f64 / passed.as_secs_f64();
            let known = self.rate.unwrap_or(seen);
            self.rate = Some(known * (1.0 - NEWEST_SHARE) + seen * NEWEST_SHARE);
        }
        (self.since, self.bytes) = (Some(now), 0);
    }
}

/// Somebody who fetches from a source, until this is dropped.
pub(crate) struct MeteredFetch<'a> {
    meters: &'a SourceMeters,
    source: String,
}

impl SourceMeters {
    /// A source has taken so long to answer.
    pub(crate) fn note_answer(&self, source: &str, answered: Duration) {
        let mut meters = lock(&self.0);
        let meter = meters.entry(source.to_owned()).or_default();
        let known = meter.round_trip.unwrap_or(answered);
        meter.round_trip = Some((known + answered) / 2);
    }

    /// Somebody fetches much from a source from now on.
    pub(crate) fn begin_fetch(&self, source: &str) -> MeteredFetch<'_> {
        let mut meters = lock(&self.0);
        let meter = meters.entry(source.to_owned()).or_default();
        if meter.active == 0 {
            (meter.since, meter.bytes) = (Some(Instant::now()), 0);
        }
        meter.active += 1;
        MeteredFetch { meters: self, source: source.to_owned() }
    }

    /// How long so many bytes should take from a source, as far as it is known: what was seen says
    /// more than what is expected.
    pub(crate) fn expected_time(&self, source: &dyn ContentSource, bytes: u64) -> Duration {
        let (mut rate, mut round_trip) = (None, None);
        if let Some(meter) = lock(&self.0).get(source.source_name()) {
            (rate, round_trip) = (meter.rate, meter.round_trip);
        }
        if rate.is_none() || round_trip.is_none() {
            let expected = source.expected_speed();
            rate = rate.or_else(|| expected.and_then(|speed: SourceSpeed| speed.bytes_per_second));
            round_trip = round_trip.or_else(|| expected.map(|speed| speed.round_trip));
        }
        let rate = rate.filter(|rate| *rate > 0.0).unwrap_or(UNKNOWN_RATE);
        let sending = Duration::try_from_secs_f64(bytes as f64 / rate).unwrap_or(Duration::MAX);
        round_trip.unwrap_or(UNKNOWN_ROUND_TRIP).saturating_add(sending)
    }

    /// The same, as sources are put in order by it: what all nodes use comes later.
    pub(crate) fn order_of(&self, source: &dyn ContentSource, bytes: u64) -> f64 {
        let factor = if source.is_shared() { SHARED_FACTOR } else { 1.0 };
        self.expected_time(source, bytes).as_secs_f64() * factor
    }
}

impl MeteredFetch<'_> {
    /// So many bytes have come.
    pub(crate) fn note_bytes(&self, bytes: usize) {
        if let Some(meter) = lock(&self.meters.0).get_mut(&self.source) {
            meter.bytes += bytes as u64;
            meter.settle(Instant::now(), WINDOW);
        }
    }
}

impl Drop for MeteredFetch<'_> {
    fn drop(&mut self) {
        if let Some(meter) = lock(&self.meters.0).get_mut(&self.source) {
            meter.active = meter.active.saturating_sub(1);
            if meter.active == 0 {
                meter.settle(Instant::now(), Duration::ZERO);
                meter.since = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tessera_core::{ContentTree, Error, Result};

    use super::*;
    use crate::{ContentName, OpenedContent};

    struct Named(&'static str, bool, Option<SourceSpeed>);

    impl ContentSource for Named {
        fn source_name(&self) -> &str {
            self.0
        }

        fn is_shared(&self) -> bool {
            self.1
        }

        fn expected_speed(&self) -> Option<SourceSpeed> {
            self.2
        }

        fn read_tree(&self, _: ContentName) -> Result<ContentTree> {
            Err(Error::not_found("nothing"))
        }

        fn open_content(&self, _: ContentName, _: u64) -> Result<OpenedContent> {
            Err(Error::not_found("nothing"))
        }
    }

    fn speed(milliseconds: u64, megabytes: f64) -> Option<SourceSpeed> {
        let round_trip = Duration::from_millis(milliseconds);
        Some(SourceSpeed { round_trip, bytes_per_second: Some(megabytes * 1e6) })
    }

    #[test]
    fn the_nearest_comes_first_and_what_all_use_comes_later() {
        let meters = SourceMeters::default();
        let order = |source: &Named| meters.order_of(source, 1_000_000);
        let (near, far) =
            (Named("near", false, speed(1, 100.0)), Named("far", false, speed(300, 1.0)));
        let (unknown, shared) = (Named("unknown", false, None), Named("shared", true, None));
        assert!(order(&near) < order(&far));
        assert!(order(&unknown) < order(&shared));
        assert!(order(&shared) < order(&far));
        let half = meters.expected_time(&far, 500_000);
        assert!(half > Duration::from_millis(799) && half < Duration::from_millis(801), "{half:?}");
    }

    #[test]
    fn what_was_seen_says_more_than_what_was_expected() {
        let meters = SourceMeters::default();
        let source = Named("a", false, speed(1, 1000.0));
        let before = meters.expected_time(&source, 10_000_000);
        let fetch = meters.begin_fetch("a");
        meters.note_answer("a", Duration::from_millis(40));
        std::thread::sleep(Duration::from_millis(60));
        fetch.note_bytes(300 << 10);
        drop(fetch);
        let after = meters.expected_time(&source, 10_000_000);
        assert!(after > before * 10, "{before:?} {after:?}");
        assert!(after > Duration::from_millis(40));
    }
}
