//! A file with weights, as it is on a GPU while they are there.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tessera_core::{Fence, Result, lock};
use tessera_cuda::{
    CudaEvent, Gpu, PacedCopies, PartArrivals, RegisteredMemory, VirtualRange, VirtualSlice,
};

use crate::FileMapping;
use crate::weight_parts::WeightParts;

/// Memory is mapped in pieces of this size, or of a multiple of it.
const PAGE_BYTES: usize = 4096;

/// A file with weights, as it is on a GPU.
pub(crate) struct WeightImage {
    // Before the mapping whose memory it is.
    registered: Mutex<Option<RegisteredMemory>>,
    mapping: Arc<FileMapping>,
    range: Arc<VirtualRange>,
    /// Addresses of the tables, which stay in the host's memory; filled with the first who needs
    /// them.
    tables: Option<HostTables>,
    /// What comes as one.
    parts: WeightParts,
    arrivals: PartArrivals,
    /// How many of them were put into the copy stream; all, where there is nothing to bring.
    queued: AtomicUsize,
    /// Held by whoever puts them there.
    queueing: Mutex<()>,
    /// Bytes per second at which they came last time; 0 where that is not known.
    copy_rate: AtomicU64,
    /// Whether it is needed again, as far as that is known.
    comes_back: AtomicBool,
}

/// Tables that a GPU looks rows up in over the bus.
struct HostTables {
    range: Arc<VirtualRange>,
    is_filled: Mutex<bool>,
}

impl WeightImage {
    /// One that is not on the GPU yet. Where it comes back the host's memory keeps the file.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        mapping: &Arc<FileMapping>,
        parts: WeightParts,
        comes_back: bool,
    ) -> Result<Self> {
        let (len, tables) = (mapping.as_ref().as_ref().len(), parts.tables());
        let range = Arc::new(VirtualRange::reserve(gpu, len - tables.len())?);
        let tables = match tables.len() {
            0 => None,
            bytes => {
                let range = Arc::new(VirtualRange::reserve(gpu, bytes)?);
                Some(HostTables { range, is_filled: Mutex::default() })
            }
        };
        let arrivals = PartArrivals::new(gpu, parts.count())?;
        let (registered, mapping) = (Mutex::default(), Arc::clone(mapping));
        let (queued, queueing) = (AtomicUsize::new(parts.count()), Mutex::default());
        Ok(Self {
            registered,
            mapping,
            range,
            tables,
            parts,
            arrivals,
            queued,
            queueing,
            copy_rate: AtomicU64::new(0),
            comes_back: AtomicBool::new(comes_back),
        })
    }

    /// Its addresses on the GPU.
    pub(crate) fn range(&self) -> &Arc<VirtualRange> {
        &self.range
    }

    /// Where so many bytes from an offset of the file are, when they are there.
    pub(crate) fn slice_at(&self, offset: usize, len: usize) -> Result<VirtualSlice> {
        let start = self.parts.tables().start;
        match self.tables.as_ref().filter(|_| offset >= start) {
            Some(tables) => VirtualSlice::new(&tables.range, offset - start, len),
            None => VirtualSlice::new(&self.range, offset, len),
        }
    }

    /// The file.
    pub(crate) fn file(&self) -> &[u8] {
        self.mapping.as_ref().as_ref()
    }

    /// What comes as one, in the order in which it comes.
    pub(crate) fn parts(&self) -> &WeightParts {
        &self.parts
    }

    /// When each part comes.
    pub(crate) fn arrivals(&self) -> &PartArrivals {
        &self.arrivals
    }

    /// Whether all of it is there.
    pub(crate) fn is_there(&self) -> bool {
        let count = self.parts.count();
        self.queued.load(Ordering::Acquire) >= count
            && self.arrivals.is_there(count.saturating_sub(1))
    }

    /// Brings all of it, and waits until it is there. Work on the GPU does not.
    pub(crate) fn bring_whole(&self) -> Result<()> {
        let mut copies = PacedCopies::new(self.range.gpu());
        self.prepare_memory()?;
        let parts = 0..self.parts.count();
        let brought = parts
            .into_iter()
            .try_for_each(|part| self.bring_part(part, &mut copies))
            .and_then(|()| copies.wait_for_last());
        if !self.comes_back.load(Ordering::Relaxed) {
            drop(lock(&self.registered).take());
            self.mapping.release_pages();
        }
        brought.and_then(|()| self.check_intact()).inspect_err(|_| {
            // What is there is of no use.
            self.leave_gpu(None).ok();
        })
    }

    /// Has memory be where it is to come.
    pub(crate) fn prepare_memory(&self) -> Result<()> {
        self.register_file();
        self.fill_tables()?;
        self.range.back_with_memory()?;
        self.queued.store(0, Ordering::Release);
        Ok(())
    }

    /// Brings the next part; the end of it is under way when this returns.
    pub(crate) fn bring_part(&self, part: usize, copies: &mut PacedCopies) -> Result<()> {
        let _queueing = lock(&self.queueing);
        let place = self.parts.range(part);
        // SAFETY: the file stays as long as this does; the memory is taken away by `leave_gpu`
        // alone, which waits.
        unsafe { copies.copy_to_range(&self.range, place.start, &self.file()[place]) }?;
        self.note_part_queued(part)
    }

    /// At how many bytes per second they came last time.
    pub(crate) fn last_copy_rate(&self) -> Option<f64> {
        let rate = self.copy_rate.load(Ordering::Relaxed);
        (rate > 0).then_some(rate as f64)
    }

    /// They came at so many bytes per second.
    pub(crate) fn note_copy_rate(&self, rate: f64) {
        self.copy_rate.store(rate as u64, Ordering::Relaxed);
    }

    /// Whether all parts are on their way, or there.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire) >= self.parts.count()
    }

    /// Has all parts come that were not asked for so far: a run that waits for them is about to be
    /// launched, and its inputs are on the GPU or on their way. These come first.
    pub(crate) fn queue_rest(&self) -> Result<()> {
        if self.is_queued() {
            return Ok(());
        }
        self.range.gpu().order_copies_after_stream()?;
        self.queue_parts()
    }

    /// The same for copies that were ordered.
    pub(crate) fn queue_parts(&self) -> Result<()> {
        let count = self.parts.count();
        let _queueing = lock(&self.queueing);
        for part in self.queued.load(Ordering::Acquire)..count {
            let place = self.parts.range(part);
            // SAFETY: as above.
            unsafe { self.range.queue_copy_from_host(place.start, &self.file()[place]) }?;
            self.note_part_queued(part)?;
        }
        Ok(())
    }

    fn note_part_queued(&self, part: usize) -> Result<()> {
        self.arrivals.note_part_queued(part)?;
        self.queued.store(part + 1, Ordering::Release);
        Ok(())
    }

    /// Has it be in the host's memory, at the same addresses, until it is moved back. Nobody runs
    /// meanwhile who does not know of it.
    pub(crate) fn move_to_host(&self) -> Result<()> {
        self.leave_gpu(None)?;
        self.range.back_with_host_memory()?;
        self.range.fill_host_memory(&self.file()[..self.parts.tables().start])
    }

    /// Has it be on the GPU again.
    pub(crate) fn move_to_gpu(&self) -> Result<()> {
        self.range.gpu().synchronise_stream()?;
        // SAFETY: nothing is under way.
        unsafe { self.range.take_memory_away() }?;
        self.bring_whole()
    }

    /// Fails where the file is not what it was.
    pub(crate) fn check_intact(&self) -> Result<()> {
        self.mapping.check_intact()
    }

    fn fill_tables(&self) -> Result<()> {
        let Some(tables) = &self.tables else { return Ok(()) };
        let mut is_filled = lock(&tables.is_filled);
        if !*is_filled {
            tables.range.back_with_host_memory()?;
            tables.range.fill_host_memory(&self.file()[self.parts.tables()])?;
            *is_filled = true;
        }
        Ok(())
    }

    /// Takes its memory away once it has come and is not used any more: after this event, or, where
    /// there is none, after all that is in the stream.
    pub(crate) fn leave_gpu(&self, last_use: Option<CudaEvent>) -> Result<()> {
        self.comes_back.store(true, Ordering::Relaxed);
        let queued = self.queued.swap(self.parts.count(), Ordering::AcqRel);
        if let Some(last) = queued.checked_sub(1) {
            self.arrivals.wait_on_host(last)?;
        }
        match last_use {
            Some(event) => event.wait_on_host()?,
            None => self.range.gpu().synchronise_stream()?,
        }
        // SAFETY: what used it in the stream is done, as was said; who uses it beside has a hold.
        unsafe { self.range.take_memory_away() }
    }

    /// Lets the GPU copy from the file quickly, where that can be.
    fn register_file(&self) {
        let mut registered = lock(&self.registered);
        if registered.is_some() {
            return;
        }
        let file = self.file();
        let Some(address) = NonNull::new(file.as_ptr().cast_mut()) else { return };
        // SAFETY: the mapping has whole pages, and goes after the registration.
        let made = unsafe {
            let pages = file.len().next_multiple_of(PAGE_BYTES);
            RegisteredMemory::register_read_only(self.range.gpu(), address, pages)
        };
        match made {
            Ok(made) => *registered = Some(made),
            Err(error) => {
                tracing::debug!(%error, "weights are copied from memory that is not registered");
            }
        }
    }
}
