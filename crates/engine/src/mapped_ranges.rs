//! What becomes of a mapped file that is cut short, or that its disk can't read: whoever touches a
//! page that is not there gets zeros instead of the end of the process, and the mapping counts as
//! damaged from then on.
//!
//! The kernel says so by a signal, in whose handler next to nothing is allowed: the ranges of
//! mappings are in a list of atomics that only grows.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

use tessera_core::lock;

/// Ranges that are made at a time.
const CHUNK_RANGES: usize = 256;

/// A range of memory in which a file is mapped; free where it has no start.
pub(crate) struct MappedRange {
    start: AtomicUsize,
    end: AtomicUsize,
    is_damaged: AtomicBool,
}

struct RangeChunk {
    ranges: [MappedRange; CHUNK_RANGES],
    next: AtomicPtr<RangeChunk>,
}

static CHUNKS: AtomicPtr<RangeChunk> = AtomicPtr::new(ptr::null_mut());
static FREE_RANGES: Mutex<Vec<&'static MappedRange>> = Mutex::new(Vec::new());
static INSTALLED: Once = Once::new();
/// What was there before us.
static PREVIOUS_ACTION: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

impl MappedRange {
    /// Watches over the memory of a mapping until [`MappedRange::forget`].
    pub(crate) fn watch_memory(memory: &[u8]) -> &'static Self {
        INSTALLED.call_once(install_handler);
        let range = {
            let mut free = lock(&FREE_RANGES);
            free.pop().unwrap_or_else(|| {
                let chunk = add_chunk();
                free.extend(&chunk.ranges[1..]);
                &chunk.ranges[0]
            })
        };
        range.is_damaged.store(false, Ordering::Relaxed);
        range.end.store(memory.as_ptr().addr() + memory.len(), Ordering::Relaxed);
        range.start.store(memory.as_ptr().addr(), Ordering::Release);
        range
    }

    /// Whether something was read that is not in the file any more.
    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Acquire)
    }

    /// The memory is about to be something else.
    pub(crate) fn forget(&'static self) {
        self.start.store(0, Ordering::Release);
        lock(&FREE_RANGES).push(self);
    }

    const fn unused() -> Self {
        let (start, end) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { start, end, is_damaged: AtomicBool::new(false) }
    }

    fn contains(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        start != 0 && start <= address && address < self.end.load(Ordering::Relaxed)
    }
}

/// Makes more ranges, which are there for good.
fn add_chunk() -> &'static RangeChunk {
    let chunk: &'static RangeChunk = Box::leak(Box::new(RangeChunk {
        ranges: [const { MappedRange::unused() }; CHUNK_RANGES],
        next: AtomicPtr::new(CHUNKS.load(Ordering::Acquire)),
    }));
    CHUNKS.store(ptr::from_ref(chunk).cast_mut(), Ordering::Release);
    chunk
}

fn install_handler() {
    // SAFETY: both actions are valid for the calls; the handler does only what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        let mut previous: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous) == 0 {
            PREVIOUS_ACTION.store(Box::into_raw(Box::new(previous)), Ordering::Release);
        }
    }
}

extern "C" fn handle_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives the information of the signal that this is the handler of.
    let address = unsafe { (*info).si_addr() }.addr();
    if replace_pages(address) {
        return;
    }
    let previous = PREVIOUS_ACTION.load(Ordering::Acquire);
    // SAFETY: it was made by `install_handler` and is never freed; a handler that was there takes
    // what we were given. Where there was none, the signal comes again and ends the process.
    unsafe {
        match previous.as_ref().map(|action| (action.sa_sigaction, action.sa_flags)) {
            Some((handler, flags)) if handler > libc::SIG_IGN && flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
            _ => {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
            }
        }
    }
}

/// Where a file was mapped at this address, has zeros be there and in the rest of the mapping.
fn replace_pages(address: usize) -> bool {
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    // SAFETY: chunks are never freed.
    while let Some(ranges) = unsafe { chunk.as_ref() } {
        if let Some(range) = ranges.ranges.iter().find(|range| range.contains(address)) {
            range.is_damaged.store(true, Ordering::Release);
            return map_zeros(address, range.end.load(Ordering::Relaxed));
        }
        chunk = ranges.next.load(Ordering::Acquire);
    }
    false
}

/// Maps zeros over all pages from that of `address` on, as far as `end`.
fn map_zeros(address: usize, end: usize) -> bool {
    // SAFETY: the pages belong to a mapping of ours that is in use, which is unmapped as a whole
    // later; who reads them reads zeros. The error number is that of whoever was interrupted.
    unsafe {
        let error_number = *libc::__errno_location();
        let page_bytes = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
        let first = address - address % page_bytes;
        let mapped = libc::mmap(
            ptr::without_provenance_mut(first),
            end - first,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        );
        *libc::__errno_location() = error_number;
        mapped != libc::MAP_FAILED
    }
}
