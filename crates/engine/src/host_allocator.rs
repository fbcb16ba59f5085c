//! The host's allocator: what is freed goes back to the system.

use std::sync::Mutex;

use tessera_core::lock;

/// How much more this process may hold than when it is calm.
const MOST_GROWTH: u64 = 4 << 20;
/// How often it is tried to give memory back before that counts as needed.
const MOST_FAILED: u32 = 8;
/// At every so many looks it is tried all the same: what was needed then may not be any more.
const LOOKS_BETWEEN_TRIES: u32 = 10;

/// Has the allocator give large pieces back to the system when they are freed.
///
/// By default glibc learns from the first large piece that is freed to keep the next ones, up to 64
/// MB per thread: a server that has loaded its blocks would hold that for good.
pub fn give_large_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the calls take plain numbers and may be made at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4 << 20);
    }
}

/// Gives memory that was freed back to the system, as far as the allocator lets it.
///
/// Loading makes and drops much: a model's file, what engines make of weights and share in the end.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointers and may be made at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives memory back where this process holds much more than before: what `release` can free, and
/// what was freed already. Cheap where it does not; to be called every few seconds.
pub fn release_grown_memory(release: impl FnOnce()) {
    static GROWTH: Mutex<MemoryGrowth> = Mutex::new(MemoryGrowth { calm: 0, failed: 0, looks: 0 });
    let before = resident_bytes().unwrap_or(0);
    if lock(&GROWTH).has_grown(before) {
        release();
        release_freed_memory();
        lock(&GROWTH).note_released(before, resident_bytes().unwrap_or(0));
    }
}

/// What a process holds when nothing special goes on.
#[derive(Debug, PartialEq, Eq)]
struct MemoryGrowth {
    calm: u64,
    /// How often in a row nothing could be given back.
    failed: u32,
    /// Since it was last tried.
    looks: u32,
}

impl MemoryGrowth {
    fn has_grown(&mut self, now: u64) -> bool {
        let has_grown = now > self.calm + self.calm / 10 + MOST_GROWTH;
        if !has_grown {
            (self.calm, self.failed) = (self.calm.min(now), 0);
            self.looks += 1;
        }
        has_grown || self.looks >= LOOKS_BETWEEN_TRIES
    }

    /// What can't be given back for a while is needed: that is how it is from now on.
    fn note_released(&mut self, before: u64, after: u64) {
        self.looks = 0;
        self.failed = if after > before - before / 20 { self.failed + 1 } else { 0 };
        if self.failed >= MOST_FAILED {
            (self.calm, self.failed) = (after, 0);
        }
    }
}

/// Memory that is this process' own: neither of files nor shared with others.
fn resident_bytes() -> Option<u64> {
    let numbers = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = numbers.split_whitespace().skip(1).map_while(|number| number.parse().ok());
    let (resident, shared): (u64, u64) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared) * 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_until_it_is_clear_that_it_is_needed() {
        let mut growth = MemoryGrowth { calm: 100 << 20, failed: 0, looks: 0 };
        assert!(!growth.has_grown(113 << 20));
        let high = 500 << 20;
        for _ in 0..MOST_FAILED - 1 {
            assert!(growth.has_grown(high));
            growth.note_released(high, high);
        }
        assert!(growth.has_grown(high), "what is kept for seconds may go now");
        growth.note_released(high, 110 << 20);
        assert!(!growth.has_grown(110 << 20));
        for _ in 0..MOST_FAILED {
            assert!(growth.has_grown(high));
            growth.note_released(high, high);
        }
        assert!(!growth.has_grown(high), "models were loaded");
        let looks = (0..).take_while(|_| !growth.has_grown(high)).count();
        assert_eq!(looks, LOOKS_BETWEEN_TRIES as usize - 2, "or answers that nobody took");
        growth.note_released(high, 100 << 20);
        assert!(!growth.has_grown(100 << 20));
        assert_eq!(growth.calm, 100 << 20);
    }
}
