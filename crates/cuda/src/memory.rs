//! Memory of a GPU, and memory of the host that GPUs copy quickly from and to.
//!
//! Asking the driver for memory stops the GPU; so what is given back is kept and used again, by
//! size. All work of a process is in one stream: whoever gets a buffer writes it after all who read
//! it before.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use tessera_core::{Error, Fence, MemoryLocation, Region, Result, lock};

use crate::copy_counts::TO_DEVICE;
use crate::driver::check_cuda;
use crate::free_memory::{FreeMemory, MAX_FREE_BUFFERS_PER_SIZE};
use crate::{CudaEvent, Gpu};

/// Sizes are rounded up to a multiple of this, so that similar ones share buffers.
const SIZE_GRANULARITY: usize = 4096;

/// Of the GPU's memory, the part that is kept, of all sizes together.
const FREE_MEMORY_DIVISOR: usize = 16;

/// Bytes of pinned memory that are kept, of all sizes together.
const MAX_FREE_PINNED_BYTES: usize = 512 << 20;

fn round_up_size(len: usize) -> Result<usize> {
    len.max(1)
        .checked_next_multiple_of(SIZE_GRANULARITY)
        .ok_or_else(|| Error::usage(format!("no memory for {len} bytes")))
}

fn lock_free_memory(gpu: &Gpu) -> std::sync::MutexGuard<'_, FreeMemory> {
    lock(&gpu.free_memory)
}

/// Memory of a GPU.
pub struct DeviceBuffer {
    gpu: Arc<Gpu>,
    address: sys::CUdeviceptr,
    len: usize,
    size: usize,
    /// Whether it is kept for the next who needs as much.
    is_pooled: bool,
}

impl DeviceBuffer {
    /// Memory of so many bytes; what was in it before is still there.
    pub fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let free = lock_free_memory(gpu).take_fitting(round_up_size(len)?);
        match free {
            Some((address, size)) => {
                Ok(Self { gpu: Arc::clone(gpu), address, len, size, is_pooled: true })
            }
            None => {
                let mut made = Self::new_unpooled(gpu, len)?;
                made.is_pooled = true;
                Ok(made)
            }
        }
    }

    /// Memory from the driver, and back to it: for those who don't use it in the stream that all
    /// work goes into. What others gave back may still be in use there.
    pub fn new_unpooled(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let size = round_up_size(len)?;
        gpu.make_current()?;
        let what = || format!("{len} bytes");
        // SAFETY: the context is current; the memory is given back below.
        let address = check_cuda(&what(), unsafe { result::malloc_sync(size) })?;
        Ok(Self { gpu: Arc::clone(gpu), address, len, size, is_pooled: false })
    }

    /// Copies bytes of the host here, in the stream.
    ///
    /// The bytes may be changed as soon as this returns: memory that is not pinned is read before.
    pub(crate) fn copy_from_host(&mut self, bytes: &[u8]) -> Result<()> {
        self.gpu.make_current()?;
        let bytes = bytes.get(..self.len.min(bytes.len())).unwrap_or_default();
        // SAFETY: there is room for the bytes, and whoever calls keeps pinned ones until they are
        // copied.
        let copied =
            unsafe { result::memcpy_htod_async(self.address, bytes, self.gpu.raw_stream()) };
        TO_DEVICE.count_copy(bytes.len());
        check_cuda("a copy to the GPU", copied)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let most_bytes = self.gpu.total_bytes() / FREE_MEMORY_DIVISOR;
        if self.is_pooled
            && lock_free_memory(&self.gpu).try_keep(self.address, self.size, most_bytes)
        {
            return;
        }
        if self.gpu.make_current().is_ok() {
            // SAFETY: it was allocated by `new_unpooled`, and nobody has the address any more. The
            // driver waits for work that uses it. What goes wrong here can't be mended.
            unsafe { result::free_sync(self.address) }.ok();
        }
    }
}

impl Region for DeviceBuffer {
    fn location(&self) -> MemoryLocation {
        MemoryLocation::Cuda(self.gpu.number())
    }
    fn address(&self) -> NonNull<u8> {
        NonNull::new(self.address as *mut u8).unwrap_or(NonNull::dangling())
    }
    fn byte_len(&self) -> usize {
        self.len
    }
    fn bytes(&self) -> Option<&[u8]> {
        None
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// Memory of the host that stays where it is, so that GPUs copy to and from it while the CPU does
/// other things.
pub struct PinnedBuffer {
    gpu: Arc<Gpu>,
    address: NonNull<u8>,
    len: usize,
    size: usize,
}

// SAFETY: it is plain memory with one owner.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above: shared, it is only read.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Memory of so many bytes; what was in it before is still there.
    pub fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let size = round_up_size(len)?;
        let free = lock_free_memory(gpu).pinned.get_mut(&size).and_then(Vec::pop);
        let address = match free {
            Some(address) => address as *mut u8,
            None => {
                gpu.make_current()?;
                // SAFETY: the context is current; the memory is given back below.
                let made = check_cuda("pinned memory", unsafe { result::malloc_host(size, 0) })?;
                // SAFETY: the memory is ours and of that size: it is never read before it was
                // written.
                unsafe { std::ptr::write_bytes(made.cast::<u8>(), 0, size) };
                made.cast()
            }
        };
        let address = NonNull::new(address).ok_or_else(|| Error::engine("CUDA: no memory"))?;
        Ok(Self { gpu: Arc::clone(gpu), address, len, size })
    }
}

/// Makes memory of the host that a GPU copies from and to.
pub struct PinnedAllocator(Arc<Gpu>);

impl PinnedAllocator {
    /// For this GPU.
    pub fn new(gpu: u32) -> Result<Self> {
        Gpu::open(gpu).map(Self)
    }

    /// Memory of so many bytes.
    pub fn allocate_buffer(&self, len: usize) -> Result<tessera_core::Buffer> {
        Ok(Box::new(PinnedBuffer::new(&self.0, len)?))
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let mut free = lock_free_memory(&self.gpu);
        let kept: usize = free.pinned.iter().map(|(size, same)| size * same.len()).sum();
        let same = free.pinned.entry(self.size).or_default();
        if same.len() < MAX_FREE_BUFFERS_PER_SIZE || kept + self.size <= MAX_FREE_PINNED_BYTES {
            same.push(self.address.as_ptr().expose_provenance());
            return;
        }
        drop(free);
        if self.gpu.make_current().is_ok() {
            // SAFETY: it was allocated by `new`, and nobody has the address any more.
            unsafe { result::free_host(self.address.as_ptr().cast()) }.ok();
        }
    }
}

impl Region for PinnedBuffer {
    fn location(&self) -> MemoryLocation {
        MemoryLocation::Host
    }
    fn address(&self) -> NonNull<u8> {
        self.address
    }
    fn byte_len(&self) -> usize {
        self.len
    }
    fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: there are so many bytes, which were written when the memory was made.
        Some(unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) })
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and nobody else has it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) })
    }
}

/// Pinned memory that a copy is on its way to.
pub(crate) struct FencedBuffer {
    buffer: PinnedBuffer,
    fence: Arc<CudaEvent>,
}

impl FencedBuffer {
    /// Written when `fence` has happened.
    pub(crate) fn new(buffer: PinnedBuffer, fence: Arc<CudaEvent>) -> Self {
        Self { buffer, fence }
    }
}

impl Drop for FencedBuffer {
    fn drop(&mut self) {
        // Mostly it is done, as somebody has read it. What goes wrong here is told to who waits for
        // it.
        drop(self.fence.wait_on_host());
    }
}

impl Region for FencedBuffer {
    fn location(&self) -> MemoryLocation {
        MemoryLocation::Host
    }
    fn address(&self) -> NonNull<u8> {
        self.buffer.address()
    }
    fn byte_len(&self) -> usize {
        self.buffer.byte_len()
    }
    fn bytes(&self) -> Option<&[u8]> {
        self.buffer.bytes()
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}
