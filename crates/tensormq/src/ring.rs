//! A channel's memory between two processes: a ring of headers one way, receipts the other.
//!
//! One process writes and one reads. Positions only grow, so that each side can tell how far the
//! other is without trusting it: what a peer could have written is checked, and a channel whose
//! numbers make no sense is ended. A process that is killed halfway through a header leaves a tail
//! that does not cover it: the half was never sent.

use std::sync::atomic::{AtomicU32, Ordering};

use tessera_core::{Error, Result};

use crate::flight::MOST_UNFINISHED;
use crate::handover::raise;
use crate::layout::MAX_HEADER;
use crate::segment::{Segment, Writers};

// Each side's words have cache lines of their own.
const TAIL: usize = 64;
const SENDER_CLOSED: usize = 72;
const HEAD: usize = 128;
const TAKEN: usize = 136;
const RECEIVER_CLOSED: usize = 144;
const RECEIVER_ALARM: usize = 192;
const SENDER_ALARM: usize = 256;
const RECEIPTS_TAIL: usize = 320;
const RECEIPTS_HEAD: usize = 384;
const RECEIPTS: usize = 4096;
const DATA: usize = RECEIPTS + 8 * MOST_UNFINISHED;

/// Bytes of the ring for each message that the queue may hold, and the least in all.
const BYTES_PER_MESSAGE: usize = 1024;
const LEAST_BYTES: usize = 64 << 10;
/// Before each header: its length. This instead of a length: go on at the start.
const WRAP: u32 = u32::MAX;

pub(crate) fn ring_len(depth: u32) -> usize {
    DATA + (depth as usize * BYTES_PER_MESSAGE).max(LEAST_BYTES).next_power_of_two()
}

/// What a peer did that can't be.
fn nonsense() -> Error {
    Error::invalid("the memory of a channel makes no sense; the other process may be broken")
}

/// The memory of a channel.
pub(crate) struct Ring {
    segment: Segment,
    capacity: u64,
}

impl Ring {
    pub(crate) fn create(depth: u32) -> Result<Self> {
        Self::over(Segment::create(ring_len(depth), Writers::All)?)
    }

    pub(crate) fn open(fd: std::os::fd::OwnedFd, len: u64, depth: u32) -> Result<Self> {
        let expected = ring_len(depth);
        if len != expected as u64 || depth == 0 || depth > crate::MOST_DEPTH {
            return Err(Error::invalid("a channel of a size that does not fit its depth"));
        }
        Self::over(Segment::open(fd, expected, true)?)
    }

    fn over(segment: Segment) -> Result<Self> {
        let capacity = (segment.len() - DATA) as u64;
        Ok(Self { segment, capacity })
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn receiver_alarm(&self) -> &AtomicU32 {
        self.segment.u32(RECEIVER_ALARM)
    }

    pub(crate) fn sender_alarm(&self) -> &AtomicU32 {
        self.segment.u32(SENDER_ALARM)
    }

    /// How many messages the receiver took.
    pub(crate) fn taken(&self) -> u64 {
        self.segment.u64(TAKEN).load(Ordering::Acquire)
    }

    /// Says that nothing more will be sent; tells whether the receiver must be woken.
    #[must_use]
    pub(crate) fn end_sending(&self) -> bool {
        self.segment.u32(SENDER_CLOSED).store(1, Ordering::Release);
        raise(self.receiver_alarm())
    }

    pub(crate) fn sender_closed(&self) -> bool {
        self.segment.u32(SENDER_CLOSED).load(Ordering::Acquire) != 0
    }

    /// Says that nothing more will be taken; tells whether the sender must be woken.
    #[must_use]
    pub(crate) fn end_receiving(&self) -> bool {
        self.segment.u32(RECEIVER_CLOSED).store(1, Ordering::SeqCst);
        raise(self.sender_alarm())
    }

    pub(crate) fn receiver_closed(&self) -> bool {
        self.segment.u32(RECEIVER_CLOSED).load(Ordering::SeqCst) != 0
    }

    fn data(&self, position: u64) -> usize {
        DATA + (position & (self.capacity - 1)) as usize
    }

    /// Bytes from a position to the end of the memory.
    fn to_the_end(&self, position: u64) -> u64 {
        self.capacity - (position & (self.capacity - 1))
    }
}

/// The sender's side.
pub(crate) struct RingWriter {
    tail: u64,
}

impl RingWriter {
    pub(crate) fn new() -> Self {
        Self { tail: 0 }
    }

    /// Writes a header; `None` where there is no room for it now. Tells whether the receiver must be
    /// woken.
    pub(crate) fn push(&mut self, ring: &Ring, header: &[u8]) -> Result<Option<bool>> {
        let len = (header.len() + 8).next_multiple_of(8) as u64;
        if len > ring.capacity / 2 {
            return Err(Error::usage(format!(
                "a header of {} bytes does not fit the channel; a greater depth makes it larger",
                header.len()
            )));
        }
        let head = ring.segment.u64(HEAD).load(Ordering::Acquire);
        let used = self.tail.checked_sub(head).filter(|used| *used <= ring.capacity);
        let free = ring.capacity - used.ok_or_else(nonsense)?;
        // A header lies in one piece: where the rest is too short for it, it goes to the start.
        let skip = Some(ring.to_the_end(self.tail)).filter(|rest| *rest < len).unwrap_or(0);
        if free < skip + len {
            return Ok(None);
        }
        let mut tail = self.tail;
        if skip > 0 {
            let at = ring.data(tail);
            ring.segment.write(at, &WRAP.to_le_bytes()).ok_or_else(nonsense)?;
            tail += skip;
        }
        let at = ring.data(tail);
        ring.segment.write(at, &(header.len() as u32).to_le_bytes()).ok_or_else(nonsense)?;
        ring.segment.write(at + 8, header).ok_or_else(nonsense)?;
        self.tail = tail + len;
        ring.segment.u64(TAIL).store(self.tail, Ordering::Release);
        Ok(Some(raise(ring.receiver_alarm())))
    }

    /// The numbers of messages that the receiver is done with, since the last time.
    pub(crate) fn receipts(&mut self, ring: &Ring) -> Result<Vec<u64>> {
        let tail = ring.segment.u64(RECEIPTS_TAIL).load(Ordering::Acquire);
        let head = ring.segment.u64(RECEIPTS_HEAD).load(Ordering::Relaxed);
        let count = tail.checked_sub(head).filter(|count| *count <= MOST_UNFINISHED as u64);
        count.ok_or_else(nonsense)?;
        let place = |position: u64| RECEIPTS + 8 * (position as usize % MOST_UNFINISHED);
        let receipts =
            (head..tail).map(|at| ring.segment.u64(place(at)).load(Ordering::Relaxed)).collect();
        ring.segment.u64(RECEIPTS_HEAD).store(tail, Ordering::Release);
        Ok(receipts)
    }
}

/// The receiver's side.
pub(crate) struct RingReader {
    head: u64,
    taken: u64,
    receipts: u64,
}

impl RingReader {
    pub(crate) fn new() -> Self {
        Self { head: 0, taken: 0, receipts: 0 }
    }

    /// A copy of the next header; it stays where it is until [`RingReader::pop`].
    pub(crate) fn peek(&mut self, ring: &Ring) -> Result<Option<Vec<u8>>> {
        loop {
            let tail = ring.segment.u64(TAIL).load(Ordering::Acquire);
            let used = tail.checked_sub(self.head).filter(|used| *used <= ring.capacity);
            match used.ok_or_else(nonsense)? {
                0 => return Ok(None),
                used if used < 8 => return Err(nonsense()),
                used => {
                    let at = ring.data(self.head);
                    let bytes = ring.segment.read(at, 4).ok_or_else(nonsense)?;
                    let len = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                    if len == WRAP {
                        let skip = ring.to_the_end(self.head);
                        if skip > used || skip == ring.capacity {
                            return Err(nonsense());
                        }
                        self.head += skip;
                        continue;
                    }
                    let whole = (u64::from(len) + 8).next_multiple_of(8);
                    if len as usize > MAX_HEADER
                        || whole > used
                        || whole > ring.to_the_end(self.head)
                    {
                        return Err(nonsense());
                    }
                    let header = ring.segment.read(at + 8, len as usize);
                    return header.map(Some).ok_or_else(nonsense);
                }
            }
        }
    }

    /// Takes the header that was read last: its number, and whether the sender must be woken.
    pub(crate) fn pop(&mut self, ring: &Ring, header_len: usize) -> (u64, bool) {
        self.head += (header_len as u64 + 8).next_multiple_of(8);
        self.taken += 1;
        ring.segment.u64(HEAD).store(self.head, Ordering::Release);
        ring.segment.u64(TAKEN).store(self.taken, Ordering::Release);
        (self.taken, raise(ring.sender_alarm()))
    }

    /// Tells the sender that we are done with a message; whether it must be woken.
    pub(crate) fn finish(&mut self, ring: &Ring, sequence: u64) -> bool {
        // There is room: the sender has at most as many messages unfinished as there are places.
        let place = RECEIPTS + 8 * (self.receipts as usize % MOST_UNFINISHED);
        ring.segment.u64(place).store(sequence, Ordering::Relaxed);
        self.receipts += 1;
        ring.segment.u64(RECEIPTS_TAIL).store(self.receipts, Ordering::Release);
        raise(ring.sender_alarm())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(len: usize, value: u8) -> Vec<u8> {
        vec![value; len]
    }

    #[test]
    fn headers_of_all_lengths_come_out_as_they_went_in_around_the_end() {
        let ring = Ring::create(1).unwrap();
        let (mut writer, mut reader) = (RingWriter::new(), RingReader::new());
        let mut expected = std::collections::VecDeque::new();
        for round in 0..5000usize {
            let header = header(1 + round * 37 % 3000, round as u8);
            while writer.push(&ring, &header).unwrap().is_none() {
                let next: Vec<u8> = expected.pop_front().unwrap();
                assert_eq!(reader.peek(&ring).unwrap().unwrap(), next);
                reader.pop(&ring, next.len());
            }
            expected.push_back(header);
        }
        for next in expected {
            assert_eq!(reader.peek(&ring).unwrap().unwrap(), next);
            reader.pop(&ring, next.len());
        }
        assert_eq!(reader.peek(&ring).unwrap(), None);
        assert_eq!(ring.taken(), 5000);
    }

    #[test]
    fn a_header_longer_than_the_channel_takes_is_refused() {
        let ring = Ring::create(1).unwrap();
        let error = RingWriter::new().push(&ring, &header(60 << 10, 0)).unwrap_err();
        assert!(error.to_string().contains("a greater depth"), "{error}");
    }

    #[test]
    fn receipts_come_back_in_order() {
        let ring = Ring::create(1).unwrap();
        let (mut writer, mut reader) = (RingWriter::new(), RingReader::new());
        for round in 0..5 {
            for sequence in 0..MOST_UNFINISHED as u64 {
                reader.finish(&ring, round * 7 + sequence);
            }
            let receipts = writer.receipts(&ring).unwrap();
            assert_eq!(receipts.len(), MOST_UNFINISHED);
            assert_eq!((receipts[0], receipts[1]), (round * 7, round * 7 + 1));
        }
    }

    #[test]
    fn numbers_that_make_no_sense_end_the_channel() {
        let ring = Ring::create(1).unwrap();
        let mut reader = RingReader::new();
        let mut writer = RingWriter::new();
        ring.segment.u64(TAIL).store(u64::MAX, Ordering::Relaxed);
        assert!(reader.peek(&ring).is_err());
        ring.segment.u64(TAIL).store(64, Ordering::Relaxed);
        for length in [WRAP, WRAP - 1, 57, 1 << 20] {
            ring.segment.write(DATA, &length.to_le_bytes()).unwrap();
            assert!(reader.peek(&ring).is_err(), "{length}");
        }
        ring.segment.u64(HEAD).store(1, Ordering::Relaxed);
        assert!(writer.push(&ring, &[0; 8]).is_err());
        ring.segment.u64(RECEIPTS_TAIL).store(u64::MAX, Ordering::Relaxed);
        assert!(writer.receipts(&ring).is_err());
    }
}
