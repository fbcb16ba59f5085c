//! A channel's memory between two processes: a ring of headers one way, receipts the other.
//!
//! One process writes and one reads. Positions only grow, so that each side can tell how far the
//! other is without trusting it: what a peer could have written is checked, and a channel whose
//! numbers make no sense is ended. A process that is killed halfway through a header leaves a tail
//! that does not cover it: the half was never sent.

use std::sync::atomic::{AtomicU32, Ordering};

use tessera_core::{Error, Result};

use crate::alarm::claim_wakeup;
use crate::in_flight::MAX_UNFINISHED;
use crate::layout::MAX_HEADER;
use crate::segment::{Segment, SegmentWriters};

// Each side's words have cache lines of their own.
const TAIL_OFFSET: usize = 64;
const SENDER_CLOSED_OFFSET: usize = 72;
const HEAD_OFFSET: usize = 128;
const TAKEN_OFFSET: usize = 136;
const RECEIVER_CLOSED_OFFSET: usize = 144;
const RECEIVER_ALARM_OFFSET: usize = 192;
const SENDER_ALARM_OFFSET: usize = 256;
const RECEIPTS_TAIL_OFFSET: usize = 320;
const RECEIPTS_HEAD_OFFSET: usize = 384;
const RECEIPTS_OFFSET: usize = 4096;
const DATA_OFFSET: usize = RECEIPTS_OFFSET + 8 * MAX_UNFINISHED;

/// Bytes of the ring for each message that the queue may hold, and the least in all.
const BYTES_PER_MESSAGE: usize = 1024;
const MIN_RING_BYTES: usize = 64 << 10;
/// Before each header: its length. This instead of a length: go on at the start.
const WRAP_MARKER: u32 = u32::MAX;

pub(crate) fn ring_len(depth: u32) -> usize {
    DATA_OFFSET + (depth as usize * BYTES_PER_MESSAGE).max(MIN_RING_BYTES).next_power_of_two()
}

/// What a peer did that can't be.
fn corrupt_ring_error() -> Error {
    Error::invalid("the memory of a channel makes no sense; the other process may be broken")
}

/// The memory of a channel.
pub(crate) struct HeaderRing {
    segment: Segment,
    capacity: u64,
}

impl HeaderRing {
    pub(crate) fn create(depth: u32) -> Result<Self> {
        Self::from_segment(Segment::create(ring_len(depth), SegmentWriters::All)?)
    }

    pub(crate) fn open(fd: std::os::fd::OwnedFd, len: u64, depth: u32) -> Result<Self> {
        let expected = ring_len(depth);
        if len != expected as u64 || depth == 0 || depth > crate::options::MAX_INBOX_DEPTH {
            return Err(Error::invalid("a channel of a size that does not fit its depth"));
        }
        Self::from_segment(Segment::open(fd, expected, true)?)
    }

    fn from_segment(segment: Segment) -> Result<Self> {
        let capacity = (segment.len() - DATA_OFFSET) as u64;
        Ok(Self { segment, capacity })
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn receiver_alarm(&self) -> &AtomicU32 {
        self.segment.atomic_u32(RECEIVER_ALARM_OFFSET)
    }

    pub(crate) fn sender_alarm(&self) -> &AtomicU32 {
        self.segment.atomic_u32(SENDER_ALARM_OFFSET)
    }

    /// How many messages the receiver took.
    pub(crate) fn taken_count(&self) -> u64 {
        self.segment.atomic_u64(TAKEN_OFFSET).load(Ordering::Acquire)
    }

    /// Says that nothing more will be sent; tells whether the receiver must be woken.
    #[must_use]
    pub(crate) fn end_sending(&self) -> bool {
        self.segment.atomic_u32(SENDER_CLOSED_OFFSET).store(1, Ordering::Release);
        claim_wakeup(self.receiver_alarm())
    }

    pub(crate) fn is_sender_closed(&self) -> bool {
        self.segment.atomic_u32(SENDER_CLOSED_OFFSET).load(Ordering::Acquire) != 0
    }

    /// Says that nothing more will be taken; tells whether the sender must be woken.
    #[must_use]
    pub(crate) fn end_receiving(&self) -> bool {
        self.segment.atomic_u32(RECEIVER_CLOSED_OFFSET).store(1, Ordering::SeqCst);
        claim_wakeup(self.sender_alarm())
    }

    pub(crate) fn is_receiver_closed(&self) -> bool {
        self.segment.atomic_u32(RECEIVER_CLOSED_OFFSET).load(Ordering::SeqCst) != 0
    }

    fn data_offset(&self, position: u64) -> usize {
        DATA_OFFSET + (position & (self.capacity - 1)) as usize
    }

    /// Bytes from a position to the end of the memory.
    fn bytes_to_end(&self, position: u64) -> u64 {
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

    /// Writes a header; `None` where there is no room for it now. Tells whether the receiver must
    /// be woken.
    pub(crate) fn push(&mut self, ring: &HeaderRing, header: &[u8]) -> Result<Option<bool>> {
        let len = (header.len() + 8).next_multiple_of(8) as u64;
        if len > ring.capacity / 2 {
            return Err(Error::usage(format!(
                "a header of {} bytes does not fit the channel; a greater depth makes it larger",
                header.len()
            )));
        }
        let head = ring.segment.atomic_u64(HEAD_OFFSET).load(Ordering::Acquire);
        let used = self.tail.checked_sub(head).filter(|used| *used <= ring.capacity);
        let free = ring.capacity - used.ok_or_else(corrupt_ring_error)?;
        // A header lies in one piece: where the rest is too short for it, it goes to the start.
        let skip = Some(ring.bytes_to_end(self.tail)).filter(|rest| *rest < len).unwrap_or(0);
        if free < skip + len {
            return Ok(None);
        }
        let mut tail = self.tail;
        if skip > 0 {
            let at = ring.data_offset(tail);
            ring.segment
                .write_bytes(at, &WRAP_MARKER.to_le_bytes())
                .ok_or_else(corrupt_ring_error)?;
            tail += skip;
        }
        let at = ring.data_offset(tail);
        ring.segment
            .write_bytes(at, &(header.len() as u32).to_le_bytes())
            .ok_or_else(corrupt_ring_error)?;
        ring.segment.write_bytes(at + 8, header).ok_or_else(corrupt_ring_error)?;
        self.tail = tail + len;
        ring.segment.atomic_u64(TAIL_OFFSET).store(self.tail, Ordering::Release);
        Ok(Some(claim_wakeup(ring.receiver_alarm())))
    }

    /// The numbers of messages that the receiver is done with, since the last time.
    pub(crate) fn take_receipts(&mut self, ring: &HeaderRing) -> Result<Vec<u64>> {
        let tail = ring.segment.atomic_u64(RECEIPTS_TAIL_OFFSET).load(Ordering::Acquire);
        let head = ring.segment.atomic_u64(RECEIPTS_HEAD_OFFSET).load(Ordering::Relaxed);
        let count = tail.checked_sub(head).filter(|count| *count <= MAX_UNFINISHED as u64);
        count.ok_or_else(corrupt_ring_error)?;
        let place = |position: u64| RECEIPTS_OFFSET + 8 * (position as usize % MAX_UNFINISHED);
        let receipts = (head..tail)
            .map(|at| ring.segment.atomic_u64(place(at)).load(Ordering::Relaxed))
            .collect();
        ring.segment.atomic_u64(RECEIPTS_HEAD_OFFSET).store(tail, Ordering::Release);
        Ok(receipts)
    }
}

/// The receiver's side.
pub(crate) struct RingReader {
    head: u64,
    taken: u64,
    receipts_pushed: u64,
}

impl RingReader {
    pub(crate) fn new() -> Self {
        Self { head: 0, taken: 0, receipts_pushed: 0 }
    }

    /// A copy of the next header; it stays where it is until [`RingReader::pop`].
    pub(crate) fn peek(&mut self, ring: &HeaderRing) -> Result<Option<Vec<u8>>> {
        loop {
            let tail = ring.segment.atomic_u64(TAIL_OFFSET).load(Ordering::Acquire);
            let used = tail.checked_sub(self.head).filter(|used| *used <= ring.capacity);
            match used.ok_or_else(corrupt_ring_error)? {
                0 => return Ok(None),
                used if used < 8 => return Err(corrupt_ring_error()),
                used => {
                    let at = ring.data_offset(self.head);
                    let bytes = ring.segment.read_bytes(at, 4).ok_or_else(corrupt_ring_error)?;
                    let len = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                    if len == WRAP_MARKER {
                        let skip = ring.bytes_to_end(self.head);
                        if skip > used || skip == ring.capacity {
                            return Err(corrupt_ring_error());
                        }
                        self.head += skip;
                        continue;
                    }
                    let whole = (u64::from(len) + 8).next_multiple_of(8);
                    if len as usize > MAX_HEADER
                        || whole > used
                        || whole > ring.bytes_to_end(self.head)
                    {
                        return Err(corrupt_ring_error());
                    }
                    let header = ring.segment.read_bytes(at + 8, len as usize);
                    return header.map(Some).ok_or_else(corrupt_ring_error);
                }
            }
        }
    }

    /// Takes the header that was read last: its number, and whether the sender must be woken.
    pub(crate) fn pop(&mut self, ring: &HeaderRing, header_len: usize) -> (u64, bool) {
        self.head += (header_len as u64 + 8).next_multiple_of(8);
        self.taken += 1;
        ring.segment.atomic_u64(HEAD_OFFSET).store(self.head, Ordering::Release);
        ring.segment.atomic_u64(TAKEN_OFFSET).store(self.taken, Ordering::Release);
        (self.taken, claim_wakeup(ring.sender_alarm()))
    }

    /// Tells the sender that we are done with a message; whether it must be woken.
    pub(crate) fn push_receipt(&mut self, ring: &HeaderRing, sequence: u64) -> bool {
        // There is room: the sender has at most as many messages unfinished as there are places.
        let place = RECEIPTS_OFFSET + 8 * (self.receipts_pushed as usize % MAX_UNFINISHED);
        ring.segment.atomic_u64(place).store(sequence, Ordering::Relaxed);
        self.receipts_pushed += 1;
        ring.segment
            .atomic_u64(RECEIPTS_TAIL_OFFSET)
            .store(self.receipts_pushed, Ordering::Release);
        claim_wakeup(ring.sender_alarm())
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
        let ring = HeaderRing::create(1).unwrap();
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
        assert_eq!(ring.taken_count(), 5000);
    }

    #[test]
    fn a_header_longer_than_the_channel_takes_is_refused() {
        let ring = HeaderRing::create(1).unwrap();
        let error = RingWriter::new().push(&ring, &header(60 << 10, 0)).unwrap_err();
        assert!(error.to_string().contains("a greater depth"), "{error}");
    }

    #[test]
    fn receipts_come_back_in_order() {
        let ring = HeaderRing::create(1).unwrap();
        let (mut writer, mut reader) = (RingWriter::new(), RingReader::new());
        for round in 0..5 {
            for sequence in 0..MAX_UNFINISHED as u64 {
                reader.push_receipt(&ring, round * 7 + sequence);
            }
            let receipts = writer.take_receipts(&ring).unwrap();
            assert_eq!(receipts.len(), MAX_UNFINISHED);
            assert_eq!((receipts[0], receipts[1]), (round * 7, round * 7 + 1));
        }
    }

    #[test]
    fn numbers_that_make_no_sense_end_the_channel() {
        let ring = HeaderRing::create(1).unwrap();
        let mut reader = RingReader::new();
        let mut writer = RingWriter::new();
        ring.segment.atomic_u64(TAIL_OFFSET).store(u64::MAX, Ordering::Relaxed);
        assert!(reader.peek(&ring).is_err());
        ring.segment.atomic_u64(TAIL_OFFSET).store(64, Ordering::Relaxed);
        for length in [WRAP_MARKER, WRAP_MARKER - 1, 57, 1 << 20] {
            ring.segment.write_bytes(DATA_OFFSET, &length.to_le_bytes()).unwrap();
            assert!(reader.peek(&ring).is_err(), "{length}");
        }
        ring.segment.atomic_u64(HEAD_OFFSET).store(1, Ordering::Relaxed);
        assert!(writer.push(&ring, &[0; 8]).is_err());
        ring.segment.atomic_u64(RECEIPTS_TAIL_OFFSET).store(u64::MAX, Ordering::Relaxed);
        assert!(writer.take_receipts(&ring).is_err());
    }
}
