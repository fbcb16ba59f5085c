//! Memory of a GPU that sessions need for themselves while they are captured.
//!
//! A session that runs has an arena. One that is captured needs memory at the addresses that are
//! part of its CUDA graphs; but these are replayed one after the other, all in one stream, and may
//! all have the same. So there is one piece of memory that all CUDA graphs of a process share, as
//! large as the largest needs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{Error, Result};
use tessera_cuda::{Gpu, GrowingBuffer};

use tessera_core::lock;

/// What the driver aligns memory to, and kernels may rely on.
const ALIGNMENT: usize = 256;

/// Of the GPU's memory, the part that CUDA graphs may have, in one process.
const SCRATCH_MEMORY_DIVISOR: usize = 32;

/// Memory, parts of which are in use.
pub(super) struct CaptureScratch {
    memory: GrowingBuffer,
    free: FreeRanges,
    /// Parts that are in use.
    used: usize,
}

/// A part of it.
#[derive(Clone, Copy)]
pub(super) struct ScratchRange {
    pub(super) address: usize,
    offset: usize,
    len: usize,
}

impl CaptureScratch {
    /// With nothing in it yet.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Arc<Mutex<Self>>> {
        let memory = GrowingBuffer::new(gpu, gpu.total_bytes() / SCRATCH_MEMORY_DIVISOR)?;
        Ok(Arc::new(Mutex::new(Self { memory, free: FreeRanges::default(), used: 0 })))
    }

    /// The one that all CUDA graphs on a GPU share, for as long as somebody has it.
    pub(super) fn shared_on_gpu(gpu: &Arc<Gpu>) -> Result<Arc<Mutex<Self>>> {
        static SHARED: Mutex<BTreeMap<u32, Weak<Mutex<CaptureScratch>>>> =
            Mutex::new(BTreeMap::new());
        let mut shared = lock(&SHARED);
        if let Some(known) = shared.get(&gpu.number()).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let made = Self::new(gpu)?;
        shared.insert(gpu.number(), Arc::downgrade(&made));
        Ok(made)
    }

    /// Whether nobody uses any of it.
    pub(super) fn is_free(&self) -> bool {
        self.used == 0
    }

    /// Bytes that it has.
    pub(super) fn byte_len(&self) -> usize {
        self.memory.byte_len()
    }

    /// A part of so many bytes.
    pub(super) fn take_range(&mut self, len: usize) -> Result<ScratchRange> {
        let len = len.max(1).checked_next_multiple_of(ALIGNMENT);
        let len = len.ok_or_else(|| Error::usage("no memory for that many bytes"))?;
        let offset = match self.free.take_first_fit(len) {
            Some(offset) => offset,
            None => {
                let before = self.memory.byte_len();
                let needed =
                    before.saturating_sub(self.free.free_bytes_before(before)).saturating_add(len);
                self.memory.grow_to(needed)?;
                self.free.give_back(before, self.memory.byte_len() - before);
                let missing = || Error::engine("memory that grew, and has no room");
                self.free.take_first_fit(len).ok_or_else(missing)?
            }
        };
        self.used += 1;
        Ok(ScratchRange { address: self.memory.address() + offset, offset, len })
    }

    pub(super) fn give_back_range(&mut self, part: ScratchRange) {
        self.used -= 1;
        self.free.give_back(part.offset, part.len);
    }
}

/// Parts that are free: where, and how many bytes. No two of them touch.
#[derive(Default)]
struct FreeRanges(BTreeMap<usize, usize>);

impl FreeRanges {
    /// The first that is large enough: where it is.
    fn take_first_fit(&mut self, len: usize) -> Option<usize> {
        let (&offset, &room) = self.0.iter().find(|&(_, &room)| room >= len)?;
        self.0.remove(&offset);
        if room > len {
            self.0.insert(offset + len, room - len);
        }
        Some(offset)
    }

    /// Bytes that are free before this place.
    fn free_bytes_before(&self, end: usize) -> usize {
        let last = self.0.range(..end).next_back();
        last.filter(|&(&offset, &room)| offset + room == end).map_or(0, |(_, &room)| room)
    }

    fn give_back(&mut self, mut offset: usize, mut len: usize) {
        if let Some(room) = self.0.remove(&(offset + len)) {
            len += room;
        }
        let before = self.free_bytes_before(offset);
        if before > 0 {
            self.0.remove(&(offset - before));
            (offset, len) = (offset - before, len + before);
        }
        self.0.insert(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::FreeRanges;

    fn all(len: usize) -> FreeRanges {
        FreeRanges([(0, len)].into())
    }

    #[test]
    fn parts_that_are_given_back_are_one_again() {
        let mut free = all(1024);
        let parts = [256, 256, 512].map(|len| (free.take_first_fit(len).unwrap(), len));
        assert_eq!(parts.map(|(offset, _)| offset), [0, 256, 512]);
        assert_eq!(free.take_first_fit(1), None);
        for (offset, len) in [parts[0], parts[2], parts[1]] {
            free.give_back(offset, len);
        }
        assert_eq!(free.0, [(0, 1024)].into());
    }

    #[test]
    fn what_is_free_at_the_end_is_known() {
        let mut free = all(1024);
        assert_eq!(free.free_bytes_before(1024), 1024);
        free.take_first_fit(256).unwrap();
        assert_eq!(free.free_bytes_before(1024), 768);
        assert_eq!(free.free_bytes_before(256), 0);
        free.take_first_fit(768).unwrap();
        assert_eq!(free.free_bytes_before(1024), 0);
    }

    #[test]
    fn no_two_have_the_same_part() {
        const LEN: usize = 1 << 16;
        let mut free = all(LEN);
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let mut number = 1usize;
        for _ in 0..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let (choice, len) = (number >> 60, ((number >> 33) % 16 + 1) * 256);
            if choice < 9
                && let Some(offset) = free.take_first_fit(len)
            {
                let apart = |&(other, size): &(usize, usize)| {
                    offset + len <= other || other + size <= offset
                };
                assert!(offset + len <= LEN && taken.iter().all(apart));
                taken.push((offset, len));
            } else if !taken.is_empty() {
                let (offset, len) = taken.swap_remove((number >> 40) % taken.len());
                free.give_back(offset, len);
            }
            let (used, left): (usize, usize) =
                (taken.iter().map(|(_, len)| len).sum(), free.0.values().sum());
            assert_eq!(used + left, LEN);
        }
        for (offset, len) in taken {
            free.give_back(offset, len);
        }
        assert_eq!(free.0, [(0, LEN)].into());
    }
}
