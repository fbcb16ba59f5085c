//! A message's source route: the hops that are still before it, who waits for the reply, and what
//! happened on the hops behind.
//!
//! A unit decides nothing about routing: everything it must know comes with the message. The
//! dispatcher writes the header once; whoever gets the message reads it in place, and changes only
//! what has a fixed place in it: how far it has come, and what the hop that was made took. So a hop
//! costs a copy of the header, whatever the length of the route.
//!
//! All numbers are little-endian.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 2 | version |
//! | 2 | 2 | hops |
//! | 4 | 2 | hops that were made |
//! | 6 | 1 | outcome, for a reply; 0 while the request is on its way |
//! | 7 | 1 | zero |
//! | 8 | 4 | which try this is, and which part of the request |
//! | 12 | 4 | number of the exit, for an outcome at one |
//! | 16 | 2 | bytes of the reply inbox's name |
//! | 18 | 2 | bytes of the reason, for an outcome that has one |
//! | 20 | 4 | offset of the names |
//! | 24 | 8 | how long after it was accepted it is its turn, in nanoseconds |
//! | 32 | 40 each | per hop, what it took |
//! | | 24 each | per hop, what it is |
//! | | | per hop: the inputs and the tensors kept (2 bytes each), the instance's name |
//! | | | the reply inbox's name, then the reason |
//!
//! What a hop took: started (nanoseconds since the request was accepted), waited, computed and
//! overhead in nanoseconds (8 bytes each), rows of the batch and of the request (4 each).
//!
//! What a hop is: offset of its lists (4), bytes of the instance's name (2), inputs (2), tensors
//! kept (2), flags (2: 1 an exit, 2 of probabilities, 4 on standby), number of the exit (4),
//! threshold (4), zeros (4).
//!
//! Times are durations: they mean the same on every host.

use tessera_core::{Error, Result};
use tessera_graph::ScoreKind;

/// The version of the layout.
const ROUTE_VERSION: u16 = 3;

const PREFIX_BYTES: usize = 32;
const TIMING_BYTES: usize = 48;
const HOP_BYTES: usize = 24;

/// Most hops of a route.
pub const MAX_HOPS: usize = 1024;

/// Longest reason of an outcome: a header has room for a line, not for a story.
const MAX_REASON_BYTES: usize = 2000;

const IS_EXIT: u16 = 1;
const OF_PROBABILITIES: u16 = 2;
const ON_STANDBY: u16 = 4;

/// One hop: an instance of a unit, and what it does with the tensors that a message carries.
#[derive(Clone, Debug, PartialEq)]
pub struct Hop {
    /// The instance that runs it.
    pub instance: String,
    /// Which tensors of the message are the inputs.
    pub inputs: Vec<usize>,
    /// Which tensors are carried on: those before, then the outputs, by number.
    pub keep: Vec<usize>,
    /// Where this is the head of an exit: when to leave.
    pub exit: Option<HopExit>,
}

/// When to leave at an exit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopExit {
    /// Number of the exit.
    pub number: usize,
    /// Leave where the normalised entropy is at most this.
    pub threshold: f32,
    /// What the scores are.
    pub scores: ScoreKind,
    /// Tell the scores to whoever waits for the answer, also where the request goes on.
    pub standby: bool,
}

/// What happened on one hop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HopTiming {
    /// The instance that ran it.
    pub instance: String,
    /// When it began, in nanoseconds since the request was accepted.
    pub started: u64,
    /// How long the request waited before: on its way, in the queue, and for a core.
    pub waited: u64,
    /// How long of that for the weights of its unit.
    pub loading: u64,
    /// How long it was computed.
    pub computed: u64,
    /// What the rest took: putting a batch together, deciding on an exit, forwarding.
    pub overhead: u64,
    /// Rows of the batch that it was computed in.
    pub batch: u64,
    /// Rows of it that were the request's.
    pub rows: u64,
}

/// How a request came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// At the end of its route, with its outputs.
    Done,
    /// At an exit, with its scores.
    Exit(usize),
    /// It went on; the scores of an exit, should nothing better come.
    Standby(usize),
    /// Its deadline passed before the unit of this hop.
    Late,
    /// It was not answered because an instance was out of reach; another try may help.
    Lost(String),
    /// It can't be answered.
    Failed(String),
    /// It asks for something that makes no sense for the unit of this hop.
    Refused(String),
}

/// A hop as the header has it, read in place.
#[derive(Clone, Copy, Debug)]
pub struct HopView<'a> {
    instance: &'a str,
    inputs: &'a [[u8; 2]],
    keep: &'a [[u8; 2]],
    exit: Option<HopExit>,
}

impl<'a> HopView<'a> {
    /// The instance that runs it.
    pub fn instance(&self) -> &'a str {
        self.instance
    }

    /// Which tensors of the message are the inputs.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = usize> + use<'a> {
        self.inputs.iter().map(|number| usize::from(u16::from_le_bytes(*number)))
    }

    /// Which tensors are carried on: those before, then the outputs, by number.
    pub fn keep(&self) -> impl ExactSizeIterator<Item = usize> + use<'a> {
        self.keep.iter().map(|number| usize::from(u16::from_le_bytes(*number)))
    }

    /// Where this is the head of an exit: when to leave.
    pub fn exit(&self) -> Option<HopExit> {
        self.exit
    }
}

/// A source route, in the one form that messages carry.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceRoute(Vec<u8>);

impl SourceRoute {
    /// Writes the route of a request: its hops, who gets the reply, and which try and part it is.
    pub fn write(reply_inbox: &str, part: u32, hops: &[Hop]) -> Result<Self> {
        if hops.is_empty() || hops.len() > MAX_HOPS {
            return Err(Error::invalid(format!(
                "a route of {} hops, expected 1 to {MAX_HOPS}",
                hops.len()
            )));
        }
        let mut bytes = vec![0; PREFIX_BYTES + hops.len() * (TIMING_BYTES + HOP_BYTES)];
        for (index, hop) in hops.iter().enumerate() {
            write_hop(&mut bytes, hop_offset(hops.len(), index), hop)?;
        }
        let names = u32_of(bytes.len())?;
        bytes.extend_from_slice(reply_inbox.as_bytes());
        put(&mut bytes, 0, &ROUTE_VERSION.to_le_bytes());
        put(&mut bytes, 2, &u16_of(hops.len())?.to_le_bytes());
        put(&mut bytes, 8, &part.to_le_bytes());
        put(&mut bytes, 16, &u16_of(reply_inbox.len())?.to_le_bytes());
        put(&mut bytes, 20, &names.to_le_bytes());
        Ok(Self(bytes))
    }

    /// Reads the route of a message; every field is checked before anything is believed.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let route = Self(bytes.to_vec());
        let is_sound = route.u16_at(0) == Some(ROUTE_VERSION)
            && (1..=MAX_HOPS).contains(&route.hop_count())
            && route.hops_made() <= route.hop_count()
            && (0..route.hop_count()).all(|index| route.hop(index).is_some())
            && route.name_bytes().is_some_and(|(inbox, reason)| {
                !inbox.is_empty()
                    && std::str::from_utf8(inbox).is_ok()
                    && std::str::from_utf8(reason).is_ok()
            });
        if is_sound { Ok(route) } else { Err(Error::invalid("no source route of a message")) }
    }

    /// The header, for a message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The inbox that replies go to.
    pub fn reply_inbox(&self) -> &str {
        let name = self.name_bytes().map(|(inbox, _)| inbox);
        name.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default()
    }

    /// Which try this is, and which part of the request.
    pub fn part(&self) -> u32 {
        self.u32_at(8).unwrap_or(0)
    }

    /// The hop that is to be made now.
    pub fn current_hop(&self) -> Option<HopView<'_>> {
        self.hop(self.hops_made())
    }

    /// The hop after that.
    pub fn next_hop(&self) -> Option<HopView<'_>> {
        self.hop(self.hops_made() + 1)
    }

    /// The hop that was made last.
    pub fn previous_hop(&self) -> Option<HopView<'_>> {
        self.hops_made().checked_sub(1).and_then(|index| self.hop(index))
    }

    /// Rows of the batch that the request was in at the hop that was made last; 0 before the first.
    pub fn previous_batch_rows(&self) -> usize {
        let index = self.hops_made().checked_sub(1);
        index.and_then(|index| self.timing(index)).map_or(0, |timing| timing.batch as usize)
    }

    /// The hop that was to be made now is made, and took this long. The timing's instance is that
    /// of the hop.
    pub fn complete_hop(&mut self, timing: &HopTiming) {
        let made = self.hops_made();
        if made >= self.hop_count() {
            return;
        }
        let at = PREFIX_BYTES + made * TIMING_BYTES;
        let HopTiming { started, waited, loading, computed, overhead, batch, rows, .. } = timing;
        let times = [started, waited, loading, computed, overhead];
        for (number, value) in times.into_iter().enumerate() {
            put(&mut self.0, at + number * 8, &value.to_le_bytes());
        }
        let rows = [batch, rows].map(|rows| u32::try_from(*rows).unwrap_or(u32::MAX));
        for (number, value) in rows.into_iter().enumerate() {
            put(&mut self.0, at + 40 + number * 4, &value.to_le_bytes());
        }
        put(&mut self.0, 4, &(made as u16 + 1).to_le_bytes());
    }

    /// What happened on the hops that were made, in order.
    pub fn hop_timings(&self) -> Vec<HopTiming> {
        (0..self.hops_made()).filter_map(|index| self.timing(index)).collect()
    }

    /// The same route with a turn: so many nanoseconds after it was accepted. Whoever has several to
    /// choose from takes the one first whose turn comes first.
    #[must_use]
    pub fn with_turn(mut self, after: u64) -> Self {
        put(&mut self.0, 24, &after.to_le_bytes());
        self
    }

    /// How long after it was accepted it is its turn, in nanoseconds.
    pub fn turn(&self) -> u64 {
        self.0.get(24..32).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    /// The same route for the message that brings the reply.
    #[must_use]
    pub fn with_outcome(&self, outcome: &ReplyOutcome) -> Self {
        let (code, exit, reason) = match outcome {
            ReplyOutcome::Done => (1, 0, ""),
            ReplyOutcome::Exit(number) => (2, *number, ""),
            ReplyOutcome::Standby(number) => (3, *number, ""),
            ReplyOutcome::Late => (4, 0, ""),
            ReplyOutcome::Lost(reason) => (5, 0, reason.as_str()),
            ReplyOutcome::Failed(reason) => (6, 0, reason.as_str()),
            ReplyOutcome::Refused(reason) => (7, 0, reason.as_str()),
        };
        let reason = &reason[..reason.floor_char_boundary(MAX_REASON_BYTES)];
        let mut bytes = self.0.clone();
        // One that has an outcome already gets another.
        let names = self.name_bytes().map_or(0, |(inbox, _)| inbox.len());
        bytes.truncate(self.names_offset() + names);
        bytes.extend_from_slice(reason.as_bytes());
        bytes[6] = code;
        put(&mut bytes, 12, &u32::try_from(exit).unwrap_or(u32::MAX).to_le_bytes());
        put(&mut bytes, 18, &(reason.len() as u16).to_le_bytes());
        Self(bytes)
    }

    /// How a request came back; `None` for one that is on its way.
    pub fn outcome(&self) -> Option<ReplyOutcome> {
        let exit = || self.u32_at(12).unwrap_or(0) as usize;
        let reason = || {
            let reason = self.name_bytes().map(|(_, reason)| reason).unwrap_or_default();
            String::from_utf8_lossy(reason).into_owned()
        };
        match self.0[6] {
            1 => Some(ReplyOutcome::Done),
            2 => Some(ReplyOutcome::Exit(exit())),
            3 => Some(ReplyOutcome::Standby(exit())),
            4 => Some(ReplyOutcome::Late),
            5 => Some(ReplyOutcome::Lost(reason())),
            6 => Some(ReplyOutcome::Failed(reason())),
            7 => Some(ReplyOutcome::Refused(reason())),
            _ => None,
        }
    }

    fn hop_count(&self) -> usize {
        self.u16_at(2).map_or(0, usize::from)
    }

    fn hops_made(&self) -> usize {
        self.u16_at(4).map_or(0, usize::from)
    }

    fn names_offset(&self) -> usize {
        self.u32_at(20).unwrap_or(0) as usize
    }

    /// The reply inbox's name, and the reason of an outcome.
    fn name_bytes(&self) -> Option<(&[u8], &[u8])> {
        let (inbox, reason) = (usize::from(self.u16_at(16)?), usize::from(self.u16_at(18)?));
        let names = self.0.get(self.names_offset()..)?;
        (names.len() == inbox + reason).then(|| names.split_at(inbox))
    }

    fn hop(&self, index: usize) -> Option<HopView<'_>> {
        if index >= self.hop_count() {
            return None;
        }
        let at = hop_offset(self.hop_count(), index);
        let name = usize::from(self.u16_at(at + 4)?);
        let (inputs, keep) = (usize::from(self.u16_at(at + 6)?), usize::from(self.u16_at(at + 8)?));
        let flags = self.u16_at(at + 10)?;
        // Between the tables and the names, both of which are written on the way.
        let (start, tables) = (self.u32_at(at)? as usize, hop_offset(self.hop_count(), 0));
        let after_tables = tables + self.hop_count() * HOP_BYTES;
        let data = self.0.get(start..self.names_offset()).filter(|_| start >= after_tables)?;
        let (numbers, rest) = data.split_at_checked((inputs + keep) * 2)?;
        let (numbers, _) = numbers.as_chunks::<2>();
        let instance = std::str::from_utf8(rest.get(..name)?).ok()?;
        let exit = (flags & IS_EXIT != 0).then_some(HopExit {
            number: self.u32_at(at + 12)? as usize,
            threshold: f32::from_le_bytes(self.u32_at(at + 16)?.to_le_bytes()),
            scores: if flags & OF_PROBABILITIES != 0 {
                ScoreKind::Probabilities
            } else {
                ScoreKind::Logits
            },
            standby: flags & ON_STANDBY != 0,
        });
        let (inputs, keep) = numbers.split_at_checked(inputs)?;
        (!instance.is_empty()).then_some(HopView { instance, inputs, keep, exit })
    }

    fn timing(&self, index: usize) -> Option<HopTiming> {
        let at = PREFIX_BYTES + index * TIMING_BYTES;
        Some(HopTiming {
            instance: self.hop(index)?.instance.to_owned(),
            started: self.u64_at(at)?,
            waited: self.u64_at(at + 8)?,
            loading: self.u64_at(at + 16)?,
            computed: self.u64_at(at + 24)?,
            overhead: self.u64_at(at + 32)?,
            batch: u64::from(self.u32_at(at + 40)?),
            rows: u64::from(self.u32_at(at + 44)?),
        })
    }

    fn u16_at(&self, offset: usize) -> Option<u16> {
        Some(u16::from_le_bytes(*self.0.get(offset..)?.first_chunk()?))
    }

    fn u32_at(&self, offset: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.0.get(offset..)?.first_chunk()?))
    }

    fn u64_at(&self, offset: usize) -> Option<u64> {
        Some(u64::from_le_bytes(*self.0.get(offset..)?.first_chunk()?))
    }
}

impl std::fmt::Debug for SourceRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hops = (0..self.hop_count()).filter_map(|index| self.hop(index));
        f.debug_struct("SourceRoute")
            .field("hops", &hops.map(|hop| hop.instance).collect::<Vec<_>>())
            .field("made", &self.hops_made())
            .field("reply_inbox", &self.reply_inbox())
            .field("part", &self.part())
            .field("outcome", &self.outcome())
            .finish()
    }
}

/// Where a hop is described.
fn hop_offset(hops: usize, index: usize) -> usize {
    PREFIX_BYTES + hops * TIMING_BYTES + index * HOP_BYTES
}

fn write_hop(bytes: &mut Vec<u8>, at: usize, hop: &Hop) -> Result<()> {
    if hop.instance.is_empty() {
        return Err(Error::invalid("a hop without an instance"));
    }
    let data = u32_of(bytes.len())?;
    for number in hop.inputs.iter().chain(&hop.keep) {
        bytes.extend_from_slice(&u16_of(*number)?.to_le_bytes());
    }
    bytes.extend_from_slice(hop.instance.as_bytes());
    put(bytes, at, &data.to_le_bytes());
    put(bytes, at + 4, &u16_of(hop.instance.len())?.to_le_bytes());
    put(bytes, at + 6, &u16_of(hop.inputs.len())?.to_le_bytes());
    put(bytes, at + 8, &u16_of(hop.keep.len())?.to_le_bytes());
    if let Some(exit) = &hop.exit {
        let of_probabilities = exit.scores == ScoreKind::Probabilities;
        let flags = IS_EXIT
            | if of_probabilities { OF_PROBABILITIES } else { 0 }
            | if exit.standby { ON_STANDBY } else { 0 };
        put(bytes, at + 10, &flags.to_le_bytes());
        put(bytes, at + 12, &u32_of(exit.number)?.to_le_bytes());
        put(bytes, at + 16, &exit.threshold.to_le_bytes());
    }
    Ok(())
}

/// Writes a field; one past the end is left out, which no caller does.
fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    if let Some(field) = bytes.get_mut(offset..offset + value.len()) {
        field.copy_from_slice(value);
    }
}

fn u16_of(number: usize) -> Result<u16> {
    u16::try_from(number)
        .map_err(|_| Error::invalid(format!("{number} in a source route, expected 65535 at most")))
}

fn u32_of(number: usize) -> Result<u32> {
    u32::try_from(number)
        .map_err(|_| Error::invalid(format!("a source route of {number} bytes is too long")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hop(instance: &str, numbers: &[usize], exit: Option<HopExit>) -> Hop {
        let (inputs, keep) = (numbers.to_vec(), numbers.iter().rev().copied().collect());
        Hop { instance: instance.to_owned(), inputs, keep, exit }
    }

    fn timing(instance: &str, number: u64) -> HopTiming {
        HopTiming {
            instance: instance.to_owned(),
            started: number,
            waited: number + 1,
            loading: number + 5,
            computed: number + 2,
            overhead: number + 3,
            batch: number + 4,
            rows: 1,
        }
    }

    fn as_hop(view: HopView<'_>) -> Hop {
        Hop {
            instance: view.instance().to_owned(),
            inputs: view.inputs().collect(),
            keep: view.keep().collect(),
            exit: view.exit(),
        }
    }

    #[test]
    fn every_hop_reads_what_was_written_and_leaves_its_timing() {
        let exit =
            HopExit { number: 2, threshold: 0.35, scores: ScoreKind::Probabilities, standby: true };
        let logits = HopExit { scores: ScoreKind::Logits, standby: false, ..exit };
        let hops = [
            hop("ab12.0", &[], None),
            hop("cd34.1", &[0], Some(exit)),
            hop("ef56.2", &[3, 1, 65535], Some(logits)),
        ];
        let mut route = SourceRoute::write("replies", 7, &hops).unwrap();
        for (index, hop) in hops.iter().enumerate() {
            // As it goes through a message.
            route = SourceRoute::read(route.as_bytes()).unwrap();
            assert_eq!((route.reply_inbox(), route.part(), route.outcome()), ("replies", 7, None));
            assert_eq!(as_hop(route.current_hop().unwrap()), *hop);
            assert_eq!(route.next_hop().map(as_hop), hops.get(index + 1).cloned());
            let before = index.checked_sub(1).map(|before| hops[before].clone());
            assert_eq!(route.previous_hop().map(as_hop), before);
            route.complete_hop(&timing(&hop.instance, index as u64));
            assert_eq!(route.previous_batch_rows(), index + 4);
        }
        assert!(route.current_hop().is_none() && route.next_hop().is_none());
        let timings: Vec<HopTiming> =
            hops.iter().zip(0..).map(|(hop, number)| timing(&hop.instance, number)).collect();
        assert_eq!(route.hop_timings(), timings);
        // One hop too many changes nothing.
        route.complete_hop(&timing("more", 9));
        assert_eq!(route.hop_timings(), timings);
    }

    #[test]
    fn a_reply_says_how_it_went_and_what_happened() {
        let mut route = SourceRoute::write("replies", 3, &[hop("a", &[0], None)]).unwrap();
        route.complete_hop(&timing("a", 5));
        let outcomes = [
            ReplyOutcome::Done,
            ReplyOutcome::Exit(1),
            ReplyOutcome::Standby(0),
            ReplyOutcome::Late,
            ReplyOutcome::Lost("a, b".to_owned()),
            ReplyOutcome::Failed(String::new()),
            ReplyOutcome::Refused("too small".to_owned()),
        ];
        let mut reply = route.clone();
        for outcome in outcomes {
            // Also of one that has another outcome already.
            reply = SourceRoute::read(reply.with_outcome(&outcome).as_bytes()).unwrap();
            assert_eq!(reply.outcome(), Some(outcome));
            assert_eq!((reply.reply_inbox(), reply.part()), ("replies", 3));
            assert_eq!(reply.hop_timings(), route.hop_timings());
        }
        let long = ReplyOutcome::Failed("ä".repeat(5000));
        let reply = SourceRoute::read(route.with_outcome(&long).as_bytes()).unwrap();
        let Some(ReplyOutcome::Failed(reason)) = reply.outcome() else { panic!("{reply:?}") };
        assert_eq!(reason, "ä".repeat(MAX_REASON_BYTES / 2));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(SourceRoute::write("replies", 0, &[]).is_err());
        assert!(SourceRoute::write("replies", 0, &[hop("", &[], None)]).is_err());
        assert!(SourceRoute::write("replies", 0, &[hop("a", &[70_000], None)]).is_err());
        let many = vec![hop("a", &[], None); MAX_HOPS + 1];
        assert!(SourceRoute::write("replies", 0, &many).is_err());
        assert!(SourceRoute::write("replies", 0, &many[1..]).is_ok());
    }

    #[test]
    fn a_route_that_is_cut_short_is_refused_wherever_it_is_cut() {
        let hops = [hop("ab12.0", &[0, 1], None), hop("cd34.1", &[2], None)];
        let whole = SourceRoute::write("replies", 1, &hops).unwrap();
        for len in 0..whole.as_bytes().len() {
            assert!(SourceRoute::read(&whole.as_bytes()[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_hop_whose_name_is_where_others_write_is_refused() {
        let hops = [hop("ab12.0", &[0, 1], None), hop("cd34.1", &[2], None)];
        let whole = SourceRoute::write("replies", 1, &hops).unwrap();
        for offset in [0, PREFIX_BYTES, hop_offset(2, 0), whole.names_offset()] {
            let mut bytes = whole.as_bytes().to_vec();
            put(&mut bytes, hop_offset(2, 1), &(offset as u32).to_le_bytes());
            // No lists: whatever is there would do for a name.
            put(&mut bytes, hop_offset(2, 1) + 6, &[0; 4]);
            assert!(SourceRoute::read(&bytes).is_err(), "a name at {offset}");
        }
    }

    proptest! {
        /// Whatever bytes come, nothing panics; and what is believed can be read.
        #[test]
        fn garbage_is_refused_or_harmless(
            places in proptest::collection::vec((0usize..300, any::<u8>()), 0..12)
        ) {
            let hops = [hop("ab12.0", &[0, 1], None), hop("cd34.1", &[2], None)];
            let whole = SourceRoute::write("replies", 1, &hops).unwrap();
            let mut bytes = whole.as_bytes().to_vec();
            for (place, value) in places {
                let len = bytes.len();
                bytes[place % len] = value;
            }
            if let Ok(mut route) = SourceRoute::read(&bytes) {
                route.complete_hop(&timing("a", 1));
                let reply = route.with_outcome(&ReplyOutcome::Late);
                prop_assert!(SourceRoute::read(reply.as_bytes()).is_ok());
                drop(format!("{route:?} {:?}", route.hop_timings()));
            }
        }
    }
}
