//! What a hop between two nodes takes beside the way that tensors go, such as encryption, queues
//! and threads: learnt from how long requests are on their way.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tessera_cluster::LinkEstimate;
use tessera_deploy::{PlannedTask, TaskRoute};

use super::node_table::KnownNode;
use super::task_blocks::TaskBlocks;

/// What tensors get of a link beside headers and encryption.
pub(super) const PAYLOAD_SHARE: f64 = 0.93;
/// Milliseconds that a hop takes where nothing was seen.
const USUAL_HOP_MS: f64 = 0.4;
/// What a hop is taken for, whatever was seen: what is longer is no matter of hops.
const HOP_RANGE_MS: (f64, f64) = (0.05, 20.0);
/// How long what was seen is believed.
const MEMORY: Duration = Duration::from_secs(600);
/// A link that is otherwise by so much is another.
const OTHER_RATE: f64 = 1.5;
const OTHER_ROUND_TRIP_MS: f64 = 5.0;

/// What hops take between nodes, as it was seen.
#[derive(Default)]
pub(super) struct LearnedHops(HashMap<(String, String), SeenHop>);

struct SeenHop {
    ms: f64,
    link: MeasuredLink,
    at: Instant,
}

/// A link as it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MeasuredLink {
    /// What tensors get of it.
    pub(super) bits_per_second: f64,
    /// One way.
    pub(super) ms: f64,
}

impl MeasuredLink {
    /// `None` where it is not known yet, or cut.
    pub(super) fn of(link: &LinkEstimate) -> Option<Self> {
        let (rate, round_trip) = (link.bits_per_second?, link.round_trip?);
        let ms = round_trip.as_secs_f64() * 500.0;
        (!link.is_cut).then_some(Self { bits_per_second: rate * PAYLOAD_SHARE, ms })
    }

    fn between(nodes: &BTreeMap<String, KnownNode>, from: &str, to: &str) -> Option<Self> {
        Self::of(nodes.get(from)?.links.iter().find(|link| link.to == to)?)
    }

    fn is_like(self, other: Self) -> bool {
        let ratio = self.bits_per_second / other.bits_per_second;
        (1.0 / OTHER_RATE..=OTHER_RATE).contains(&ratio)
            && 2.0 * (self.ms - other.ms).abs() <= OTHER_ROUND_TRIP_MS
    }
}

/// A way from node to node.
struct Way<'a> {
    from: &'a str,
    to: &'a str,
    bytes: f64,
}

impl LearnedHops {
    /// Looks at what gateways said lately of requests that came to the end of their routes.
    pub(super) fn update(
        &mut self,
        nodes: &BTreeMap<String, KnownNode>,
        routes: &BTreeMap<String, Arc<TaskRoute>>,
        tasks: &[Arc<TaskBlocks>],
        placed: &HashMap<String, Arc<PlannedTask>>,
    ) {
        let now = Instant::now();
        self.0.retain(|_, seen| now.saturating_duration_since(seen.at) < MEMORY);
        for blocks in tasks {
            let name = &blocks.task.name;
            let Some((route, placed)) = routes.get(name).zip(placed.get(name)) else { continue };
            for (gateway, node) in nodes {
                let reported = node.traffic.get(name).and_then(|traffic| traffic.way.as_ref());
                // What is said of another route is old.
                let is_of_route = |units: &[_]| route.steps.iter().map(|step| &step.unit).eq(units);
                if let Some(way) = reported.filter(|way| is_of_route(&way.units)) {
                    let ways = ways_of(gateway, blocks, &placed.settings.nodes);
                    self.note_ways(nodes, &ways, way.least, now);
                }
            }
        }
    }

    /// What a hop takes beside the link, in milliseconds.
    pub(super) fn hop_ms(&self, from: &str, to: &str, link: MeasuredLink) -> f64 {
        let seen = self.0.get(&(from.to_owned(), to.to_owned()));
        seen.filter(|seen| seen.link.is_like(link)).map_or(USUAL_HOP_MS, |seen| seen.ms)
    }

    fn note_ways(
        &mut self,
        nodes: &BTreeMap<String, KnownNode>,
        ways: &[Way<'_>],
        took: Duration,
        now: Instant,
    ) {
        let links: Option<Vec<MeasuredLink>> =
            ways.iter().map(|way| MeasuredLink::between(nodes, way.from, way.to)).collect();
        let Some(links) = links.filter(|links| !links.is_empty()) else { return };
        let on_links = ways.iter().zip(&links);
        let on_links = on_links.map(|(way, link)| link.ms + way.bytes * 8e3 / link.bits_per_second);
        let rest = took.as_secs_f64() * 1e3 - on_links.sum::<f64>();
        // Which of them it was is not known.
        let ms = (rest / ways.len() as f64).clamp(HOP_RANGE_MS.0, HOP_RANGE_MS.1);
        for (way, link) in ways.iter().zip(links) {
            let key = (way.from.to_owned(), way.to.to_owned());
            let before = self.0.get(&key).filter(|seen| seen.link.is_like(link));
            let ms = before.map_or(ms, |before| before.ms.midpoint(ms));
            self.0.insert(key, SeenHop { ms, link, at: now });
        }
    }
}

/// The ways of a request from a gateway through all blocks, and of its answer.
fn ways_of<'a>(gateway: &'a str, blocks: &TaskBlocks, placed: &'a [Arc<str>]) -> Vec<Way<'a>> {
    let (mut at, mut ways) = (gateway, Vec::new());
    let goals = placed.iter().map(|node| &**node).zip(blocks.input_bytes.iter().copied());
    for (to, bytes) in goals.chain([(gateway, blocks.reply_bytes)]) {
        if to != at {
            ways.push(Way { from: at, to, bytes });
            at = to;
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: MeasuredLink = MeasuredLink { bits_per_second: 1e8, ms: 5.0 };

    #[test]
    fn what_was_seen_of_a_link_holds_as_long_as_it_is_the_same() {
        let mut hops = LearnedHops::default();
        assert!((hops.hop_ms("a", "b", LINK) - USUAL_HOP_MS).abs() < 1e-9);
        let key = ("a".to_owned(), "b".to_owned());
        hops.0.insert(key, SeenHop { ms: 3.0, link: LINK, at: Instant::now() });
        let near = MeasuredLink { bits_per_second: 1.2e8, ms: 6.0 };
        assert!((hops.hop_ms("a", "b", near) - 3.0).abs() < 1e-9);
        for other in
            [MeasuredLink { ms: 150.0, ..LINK }, MeasuredLink { bits_per_second: 2e6, ..LINK }]
        {
            assert!((hops.hop_ms("a", "b", other) - USUAL_HOP_MS).abs() < 1e-9);
        }
        assert!((hops.hop_ms("b", "a", LINK) - USUAL_HOP_MS).abs() < 1e-9);
    }
}
