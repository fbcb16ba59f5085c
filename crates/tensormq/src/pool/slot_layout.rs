//! Where the buffers of a pool are in its memory, and the words that say who holds them.

use tessera_core::{Error, Result};

/// Offset of the first slot's word, and the distance to the next: a cache line each.
pub(super) const SLOT_WORDS_OFFSET: usize = 64;

/// Buffers of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes of each.
    pub bytes: usize,
    /// How many.
    pub count: usize,
}

/// Where each buffer of a pool is in its payload.
pub(super) fn slot_layout(buffers: &[Buffers]) -> Result<(Vec<(usize, usize)>, usize)> {
    let wrong = || Error::usage("a pool must have between 1 and 65536 buffers that fit in memory");
    if buffers.len() > 200 {
        return Err(Error::usage("a pool has buffers of at most 200 sizes"));
    }
    let mut slots = Vec::new();
    let mut offset = 0usize;
    for Buffers { bytes, count } in buffers {
        // Whole pages for what is larger than one, whole cache lines for the rest.
        let step = if *bytes >= 4096 { 4096 } else { 64 };
        let size = (*bytes).max(1).checked_next_multiple_of(step).ok_or_else(wrong)?;
        offset = offset.checked_next_multiple_of(step).ok_or_else(wrong)?;
        if slots.len().saturating_add(*count) > 65536 {
            return Err(wrong());
        }
        for _ in 0..*count {
            slots.push((offset, size));
            offset = offset.checked_add(size).ok_or_else(wrong)?;
        }
    }
    let len = offset.checked_next_multiple_of(4096).filter(|&len| len < isize::MAX as usize);
    match len {
        Some(len) if !slots.is_empty() => Ok((slots, len)),
        _ => Err(wrong()),
    }
}

/// Bytes of the memory with a word for each of so many slots.
pub(super) fn control_len(slots: usize) -> usize {
    (SLOT_WORDS_OFFSET + 64 * slots).next_multiple_of(4096)
}
