//! Copies from the host that leave room for those of others.

use std::sync::Arc;
use std::time::Instant;

use tessera_core::{Fence, Result};

use crate::{CudaEvent, Gpu, VirtualRange};

/// Bytes that are copied at a time. The next is launched while one is under way, and no more: a GPU
/// that has copies of one stream does those of others when it has none left, so that the input of
/// somebody else's request would wait for the last of them.
const COPY_BYTES: usize = 10 << 20;

/// Copies begin at a page.
const PAGE_BYTES: usize = 4096;

/// Of fewer bytes the time is that of launches.
const LEAST_MEASURED: usize = 16 << 20;

/// Copies to a GPU one after the other, in the copy stream.
pub struct PacedCopies {
    gpu: Arc<Gpu>,
    /// When the first was launched.
    begun: Option<Instant>,
    /// The last one, and its bytes.
    under_way: Option<(CudaEvent, usize)>,
    bytes_done: usize,
}

impl PacedCopies {
    /// None so far.
    pub fn new(gpu: &Arc<Gpu>) -> Self {
        Self { gpu: Arc::clone(gpu), begun: None, under_way: None, bytes_done: 0 }
    }

    /// Copies bytes to an offset of a range; the last of them are under way when this returns.
    ///
    /// # Safety
    /// The bytes and the memory of the range stay until the copy is done.
    pub unsafe fn copy_to_range(
        &mut self,
        range: &VirtualRange,
        offset: usize,
        bytes: &[u8],
    ) -> Result<()> {
        self.begun.get_or_insert_with(Instant::now);
        // As large as each other: small ones are slow.
        let pieces = bytes.len().div_ceil(COPY_BYTES).max(1);
        let piece_bytes = bytes.len().div_ceil(pieces).next_multiple_of(PAGE_BYTES);
        for (number, chunk) in bytes.chunks(piece_bytes.max(1)).enumerate() {
            // SAFETY: as the caller says.
            unsafe { range.queue_copy_from_host(offset + number * piece_bytes, chunk) }?;
            let copied = CudaEvent::record_in_copy_stream(&self.gpu)?;
            let before = self.under_way.replace((copied, chunk.len()));
            self.wait_for_copy(before)?;
        }
        Ok(())
    }

    /// Waits until all are done.
    pub fn wait_for_last(&mut self) -> Result<()> {
        let last = self.under_way.take();
        self.wait_for_copy(last)
    }

    /// Bytes that are under way.
    pub fn bytes_under_way(&self) -> usize {
        self.under_way.as_ref().map_or(0, |(_, bytes)| *bytes)
    }

    /// Bytes per second so far; `None` where too few are done to tell.
    pub fn rate(&self) -> Option<f64> {
        let begun = self.begun.filter(|_| self.bytes_done >= LEAST_MEASURED)?;
        Some(self.bytes_done as f64 / begun.elapsed().as_secs_f64().max(f64::EPSILON))
    }

    fn wait_for_copy(&mut self, copy: Option<(CudaEvent, usize)>) -> Result<()> {
        let Some((copied, bytes)) = copy else { return Ok(()) };
        copied.wait_on_host()?;
        self.bytes_done += bytes;
        Ok(())
    }
}
