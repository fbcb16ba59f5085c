//! Messages on a connection: how many frames, how long each is, and the frames.
//!
//! | bytes | |
//! |---|---|
//! | 4 | number of frames |
//! | 8 each | their lengths |
//! | | the frames, one after the other |
//!
//! All numbers are little-endian.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use tessera_core::lock;

use crate::layout::{MAX_HEADER, MAX_TENSORS};

/// Largest frame of somebody who has said nothing yet.
const LARGEST_FIRST_FRAME: usize = 4096;
/// Buffers that are kept for frames to come, and the smallest that is worth it.
const MOST_KEPT: usize = 4;
const SMALLEST_KEPT: usize = 64 << 10;

/// The head of a message with frames of these lengths.
pub(super) fn message_head(lengths: impl ExactSizeIterator<Item = usize>) -> Vec<u8> {
    let count = u32::try_from(lengths.len()).unwrap_or(u32::MAX);
    let mut head = Vec::with_capacity(4 + 8 * lengths.len());
    head.extend(count.to_le_bytes());
    lengths.for_each(|length| head.extend((length as u64).to_le_bytes()));
    head
}

/// How long a connection keeps memory through which nothing comes; and how long whoever connected
/// may say nothing.
const IDLE_TIME: Duration = Duration::from_secs(5);

/// What messages are read from.
pub(super) trait WaitableRead: Read {
    /// Whether there is something to read, or an end, before this time is over.
    fn has_input_within(&mut self, time: Duration) -> io::Result<bool>;
}

/// Reads messages from a connection.
pub(super) struct MessageReader<R> {
    input: R,
    largest_frame: usize,
    has_read: bool,
    buffers: Arc<FrameBuffers>,
}

impl<R: WaitableRead> MessageReader<R> {
    /// Takes frames of this size at most.
    pub(super) fn new(input: R, largest_frame: usize) -> Self {
        let largest_frame = largest_frame.max(MAX_HEADER);
        Self { input, largest_frame, has_read: false, buffers: Arc::default() }
    }

    /// Waits for the next message; an error where the connection ends or breaks the rules.
    pub(super) fn read_message(&mut self) -> io::Result<Vec<Bytes>> {
        if !self.input.has_input_within(IDLE_TIME)? {
            if !self.has_read {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // Nothing comes: the memory is better used elsewhere.
            self.buffers.release_memory();
        }
        let mut count = [0; 4];
        self.input.read_exact(&mut count)?;
        let count = u32::from_le_bytes(count) as usize;
        let most = if self.has_read { MAX_TENSORS + 1 } else { 1 };
        if count == 0 || count > most {
            return Err(broken_rules("a message of too many frames, or of none"));
        }
        let mut lengths = vec![0; 8 * count];
        self.input.read_exact(&mut lengths)?;
        let lengths: Vec<u64> = lengths.chunks_exact(8).map(read_length).collect();
        let largest = if self.has_read { self.largest_frame } else { LARGEST_FIRST_FRAME };
        let frames = lengths.into_iter().map(|length| match usize::try_from(length) {
            Ok(length) if length <= largest => self.read_frame(length),
            _ => Err(broken_rules("a frame that is too long")),
        });
        let frames = frames.collect::<io::Result<Vec<_>>>()?;
        self.has_read = true;
        Ok(frames)
    }

    fn read_frame(&mut self, length: usize) -> io::Result<Bytes> {
        let mut memory = self.buffers.take_memory(length);
        // As much at a time as has come.
        self.input.read_exact(&mut memory[..length])?;
        let buffers = Arc::downgrade(&self.buffers);
        Ok(Bytes::from_owner(FrameBuffer { memory, length, buffers }))
    }
}

fn read_length(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

fn broken_rules(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Memory of frames that nobody reads any more.
#[derive(Default)]
struct FrameBuffers(Mutex<Vec<Vec<u8>>>);

impl FrameBuffers {
    /// At least so many bytes, of which some were another frame.
    fn take_memory(&self, length: usize) -> Vec<u8> {
        if length >= SMALLEST_KEPT {
            let mut kept = lock(&self.0);
            let fits = |memory: &Vec<u8>| (length..=2 * length).contains(&memory.len());
            if let Some(found) = kept.iter().rposition(fits) {
                return kept.remove(found);
            }
        }
        // Zeros that the system has at hand: they are not written here.
        vec![0; length]
    }

    fn release_memory(&self) {
        let kept = std::mem::take(&mut *lock(&self.0));
        drop(kept);
    }
}

/// A frame, whose memory is used again.
struct FrameBuffer {
    memory: Vec<u8>,
    length: usize,
    buffers: Weak<FrameBuffers>,
}

impl AsRef<[u8]> for FrameBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl Drop for FrameBuffer {
    fn drop(&mut self) {
        if self.memory.len() < SMALLEST_KEPT {
            return;
        }
        let Some(buffers) = self.buffers.upgrade() else { return };
        let mut kept = lock(&buffers.0);
        if kept.len() >= MOST_KEPT {
            kept.remove(0);
        }
        kept.push(std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing comes before what there is.
    struct Late<'a>(&'a [u8]);

    impl Read for Late<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0.read(to)
        }
    }

    impl WaitableRead for Late<'_> {
        fn has_input_within(&mut self, _: Duration) -> io::Result<bool> {
            Ok(false)
        }
    }

    impl WaitableRead for &[u8] {
        fn has_input_within(&mut self, _: Duration) -> io::Result<bool> {
            Ok(true)
        }
    }

    #[test]
    fn memory_is_given_back_where_nothing_comes_and_who_says_nothing_is_closed() {
        let bytes = message(&[&[7; 100_000]]);
        let mut reader = MessageReader::new(Late(&bytes), 1 << 20);
        assert_eq!(reader.read_message().unwrap_err().kind(), io::ErrorKind::TimedOut);
        reader.has_read = true;
        drop(reader.read_message().unwrap());
        assert_eq!(lock(&reader.buffers.0).len(), 1);
        assert!(reader.read_message().is_err());
        assert!(lock(&reader.buffers.0).is_empty());
    }

    fn message(frames: &[&[u8]]) -> Vec<u8> {
        let mut bytes = message_head(frames.iter().map(|frame| frame.len()));
        frames.iter().for_each(|frame| bytes.extend_from_slice(frame));
        bytes
    }

    #[test]
    fn messages_come_as_they_went_and_memory_is_used_again() {
        let large = vec![7; 100_000];
        let mut bytes = message(&[b"hello"]);
        bytes.extend(message(&[b"header", &large, b""]));
        bytes.extend(message(&[b"header", &large[..90_000]]));
        let mut reader = MessageReader::new(&bytes[..], 1 << 20);
        assert_eq!(reader.read_message().unwrap(), [&b"hello"[..]]);
        let second = reader.read_message().unwrap();
        assert_eq!(second, [&b"header"[..], &large, b""]);
        let address = second[1].as_ptr();
        drop(second);
        let third = reader.read_message().unwrap();
        assert_eq!((third[1].len(), third[1].as_ptr()), (90_000, address));
        assert!(reader.read_message().is_err());
    }

    #[test]
    fn what_is_too_much_is_refused_before_it_is_read() {
        let first = message(&[&[0; 5000]]);
        let many = [2u32.to_le_bytes().to_vec(), vec![0; 16]].concat();
        let long = [message(&[b"hello"]), message_head([usize::MAX].into_iter())].concat();
        for bytes in [first, many, 0u32.to_le_bytes().to_vec(), long] {
            let mut reader = MessageReader::new(&bytes[..], 1 << 20);
            let error = (0..2).find_map(|_| reader.read_message().err()).unwrap();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
