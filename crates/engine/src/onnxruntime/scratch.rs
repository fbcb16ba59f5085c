//! Memory of a GPU that sessions need for themselves while they are recorded.
//!
//! A session that runs has an arena. One that is recorded needs memory at the addresses that are part of its recordings; but
//! recordings are played one after the other, all in one stream, and may all have the same. So ONNX Runtime is given
//! functions to ask for memory with: what it asks for while it is recorded comes from pieces that all recordings of this
//! process share, and what it asks for while it warms up from pieces that are given back afterwards. The functions
//! take no context: who asks is known by the thread.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{Error, Region, Result};
use tessera_cuda::{DeviceBuffer, Gpu};

use super::lock;

/// What the driver aligns memory to, and kernels may rely on.
const ALIGNMENT: usize = 256;

/// Pieces that the driver is asked for have this many bytes at least.
const SMALLEST_PIECE: usize = 16 << 20;

/// Of the GPU's memory, the part that recordings may have, in one process.
const MOST_MEMORY: usize = 32;

/// Memory in pieces, parts of which are in use.
pub(super) struct Scratch {
    gpu: Arc<Gpu>,
    pieces: Vec<Piece>,
    /// Parts that are in use.
    used: usize,
}

struct Piece {
    buffer: DeviceBuffer,
    free: FreeParts,
}

/// Parts of a piece that are free: where, and how many bytes. No two of them touch.
struct FreeParts(BTreeMap<usize, usize>);

impl FreeParts {
    /// All of so many bytes.
    fn all(len: usize) -> Self {
        Self([(0, len)].into())
    }

    /// The first that is large enough: where it is.
    fn take(&mut self, len: usize) -> Option<usize> {
        let (&offset, &room) = self.0.iter().find(|&(_, &room)| room >= len)?;
        self.0.remove(&offset);
        if room > len {
            self.0.insert(offset + len, room - len);
        }
        Some(offset)
    }

    fn give_back(&mut self, mut offset: usize, mut len: usize) {
        if let Some(room) = self.0.remove(&(offset + len)) {
            len += room;
        }
        if let Some((&before, &room)) = self.0.range(..offset).next_back()
            && before + room == offset
        {
            self.0.remove(&before);
            (offset, len) = (before, len + room);
        }
        self.0.insert(offset, len);
    }
}

/// Where a thread's memory comes from.
#[derive(Clone)]
pub(super) enum Source {
    /// For as long as the session is there.
    Kept(Arc<Gpu>),
    /// For a run.
    Scratch(Arc<Mutex<Scratch>>),
}

/// Memory that was given out.
enum Given {
    Kept { _buffer: DeviceBuffer },
    Scratch { from: Arc<Mutex<Scratch>>, piece: usize, offset: usize, len: usize },
}

thread_local! {
    /// Where the memory of this thread comes from.
    static SOURCE: RefCell<Option<Source>> = const { RefCell::new(None) };
}

/// All that was given out, by its address.
static GIVEN: Mutex<Option<HashMap<usize, Given>>> = Mutex::new(None);

impl Scratch {
    /// With nothing in it yet.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { gpu: Arc::clone(gpu), pieces: Vec::new(), used: 0 }))
    }

    /// The one that all recordings on a GPU share, for as long as somebody has it.
    pub(super) fn shared(gpu: &Arc<Gpu>) -> Arc<Mutex<Self>> {
        static SHARED: Mutex<BTreeMap<u32, Weak<Mutex<Scratch>>>> = Mutex::new(BTreeMap::new());
        let mut shared = lock(&SHARED);
        if let Some(known) = shared.get(&gpu.number()).and_then(Weak::upgrade) {
            return known;
        }
        let made = Self::new(gpu);
        shared.insert(gpu.number(), Arc::downgrade(&made));
        made
    }

    /// Whether nobody uses any of it.
    pub(super) fn is_free(&self) -> bool {
        self.used == 0
    }

    /// Bytes that it has.
    pub(super) fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.buffer.len()).sum()
    }

    /// A part of so many bytes: the piece, the offset, and the address.
    fn take(&mut self, len: usize) -> Result<(usize, usize, usize)> {
        let pieces = self.pieces.iter_mut().enumerate();
        let mut found = pieces.map(|(index, piece)| Some((index, piece.free.take(len)?)));
        let (index, offset) = match found.find_map(|found| found) {
            Some(found) => found,
            None => {
                let mut piece = self.another(len)?;
                let offset = piece.free.take(len);
                self.pieces.push(piece);
                let missing = || Error::engine("a piece that is too small for what it is for");
                (self.pieces.len() - 1, offset.ok_or_else(missing)?)
            }
        };
        self.used += 1;
        let start = self.pieces[index].buffer.address().as_ptr().expose_provenance();
        Ok((index, offset, start + offset))
    }

    /// Another piece, of so many bytes at least.
    fn another(&self, len: usize) -> Result<Piece> {
        let (before, most) = (self.bytes(), self.gpu.total_bytes() / MOST_MEMORY);
        // Twice as much each time: there are few pieces, and the half of it is used at least.
        let size = len.max(before).max(SMALLEST_PIECE);
        let size = if before + size > most { len } else { size };
        if before + size > most {
            return Err(Error::full(format!("recordings have {before} bytes of the GPU already")));
        }
        let buffer = DeviceBuffer::new(&self.gpu, size)?;
        Ok(Piece { buffer, free: FreeParts::all(size) })
    }

    fn give_back(&mut self, piece: usize, offset: usize, len: usize) {
        self.used -= 1;
        self.pieces[piece].free.give_back(offset, len);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Not kept for others: nobody needs pieces of these sizes again.
        for piece in self.pieces.drain(..) {
            piece.buffer.release();
        }
    }
}

/// Does something whose memory comes from here.
pub(super) fn with<T>(source: Source, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Source>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let before = self.0.take();
            SOURCE.with_borrow_mut(|source| *source = before);
        }
    }
    let _restore = Restore(SOURCE.with_borrow_mut(|here| here.replace(source)));
    work()
}

/// What ONNX Runtime is told of these functions: the names of its settings, and their values.
pub(super) fn settings() -> [(&'static std::ffi::CStr, String); 3] {
    let text = |address: *const ()| address.expose_provenance().to_string();
    [
        (c"gpu_external_alloc", text(allocate as *const ())),
        (c"gpu_external_free", text(free as *const ())),
        (c"gpu_external_empty_cache", text(empty_cache as *const ())),
    ]
}

extern "C" fn allocate(len: usize) -> *mut c_void {
    let made = std::panic::catch_unwind(|| take(len));
    match made {
        Ok(Ok(address)) => std::ptr::with_exposed_provenance_mut(address),
        Ok(Err(error)) => {
            tracing::debug!(%error, len, "no memory to record with");
            std::ptr::null_mut()
        }
        Err(_) => std::ptr::null_mut(),
    }
}

fn take(len: usize) -> Result<usize> {
    let len = len.max(1).next_multiple_of(ALIGNMENT);
    let source = SOURCE.with_borrow(Clone::clone);
    let (address, given) = match source {
        Some(Source::Kept(gpu)) => {
            let buffer = DeviceBuffer::new(&gpu, len)?;
            (buffer.address().as_ptr().expose_provenance(), Given::Kept { _buffer: buffer })
        }
        Some(Source::Scratch(from)) => {
            let (piece, offset, address) = lock(&from).take(len)?;
            (address, Given::Scratch { from, piece, offset, len })
        }
        None => return Err(Error::engine("a thread that nothing is known of")),
    };
    lock(&GIVEN).get_or_insert_default().insert(address, given);
    Ok(address)
}

extern "C" fn free(pointer: *mut c_void) {
    let given = lock(&GIVEN).as_mut().and_then(|given| given.remove(&pointer.addr()));
    if let Some(Given::Scratch { from, piece, offset, len }) = given {
        lock(&from).give_back(piece, offset, len);
    }
}

extern "C" fn empty_cache() {}

#[cfg(test)]
mod tests {
    use super::FreeParts;

    #[test]
    fn parts_that_are_given_back_are_one_again() {
        let mut free = FreeParts::all(1024);
        let parts = [256, 256, 512].map(|len| (free.take(len).unwrap(), len));
        assert_eq!(parts.map(|(offset, _)| offset), [0, 256, 512]);
        assert_eq!(free.take(1), None);
        for (offset, len) in [parts[0], parts[2], parts[1]] {
            free.give_back(offset, len);
        }
        assert_eq!(free.0, [(0, 1024)].into());
    }

    #[test]
    fn no_two_have_the_same_part() {
        const LEN: usize = 1 << 16;
        let mut free = FreeParts::all(LEN);
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let mut number = 1usize;
        for _ in 0..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let (choice, len) = (number >> 60, ((number >> 33) % 16 + 1) * 256);
            if choice < 9
                && let Some(offset) = free.take(len)
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
